"""Is what others take of the processor counted, and told with a latency?"""

from __future__ import annotations

from pathlib import Path

import pytest

from parformer import threads
from parformer.measure import latency
from parformer.measure.neighbours import Neighbours
from parformer.threads import Times, times_now

STAT = """\
cpu  999 999 999 999 0 0 0 0 0 0
cpu0 {user} 0 100 {idle} 50 0 0 0 0 0
cpu1 100 0 0 900 0 0 0 0 0 0
cpu9 5000 0 0 0 0 0 0 0 0 0
intr 1 2 3
"""


@pytest.mark.parametrize(
    ("now", "share"),
    [
        (Times(110, 60, 10), 0.0),
        (Times(110, 70, 10), 0.1),
        (Times(110, 160, 60), 0.5),
        (Times(110, 50, 60), 0.0),
        (Times(10, 50, 0), None),
        (None, None),
    ],
)
def test_what_is_not_our_own_is_the_others(now: Times | None, share: float | None) -> None:
    moments = iter([Times(10, 50, 0), now])
    found = Neighbours(lambda: next(moments)).share()
    assert found == (None if share is None else pytest.approx(share))


def test_only_cores_of_this_process_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stat = tmp_path / "stat"
    stat.write_text(STAT.format(user=300, idle=550))
    monkeypatch.setattr(threads, "STAT", stat)
    monkeypatch.setattr(threads.os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(threads.os, "sysconf", lambda _: 100)
    found = times_now()
    assert found is not None
    assert (found.total, found.busy) == (20.0, 5.0)
    stat.unlink()
    assert times_now() is None


def test_a_latency_on_a_busy_machine_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latency.Neighbours, "share", lambda _: 0.62)
    receipt = latency.measure_latency({"one": lambda: None}, rounds=1).receipt
    assert (receipt.others, receipt.busy) == (0.62, True)
