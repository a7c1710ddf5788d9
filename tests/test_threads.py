"""Do threads wait as what others do calls for, and only where nobody has said how?"""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from parformer import threads
from parformer.errors import ConfigError
from parformer.measure.device import check_threads
from parformer.threads import Ballast, Crowd, Times

TOLD = "import os; print(os.environ.get('GOMP_SPINCOUNT'))"
WATCHED = """
import threading, torch, parformer
from parformer.measure.device import pinned_threads
with pinned_threads(None):
    print(any(thread.name == "crowd" for thread in threading.enumerate()))
"""


class Weight(Ballast):
    """Ballast that only says whether it is there."""

    def take(self) -> None:
        self._done = self._done or threading.Event()

    def drop(self) -> None:
        self._done = None


def said(code: str, **more: str) -> str:
    """What a new process prints, for whom nobody has said how to wait."""
    environment = {n: v for n, v in os.environ.items() if n not in threads.KNOWN} | more
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_where_others_can_be_seen_nothing_is_set_for_good() -> None:
    assert said(f"import parformer; {TOLD}") == "None"


def test_where_they_cannot_threads_spin_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "times_now", lambda: None)
    given: dict[str, str] = {}
    threads.settle(given)
    assert given["GOMP_SPINCOUNT"] == threads.SPINS


@pytest.mark.parametrize("name", threads.KNOWN)
def test_what_the_user_said_stays(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "times_now", lambda: None)
    given = {name: "7"}
    threads.settle(given)
    assert given == {name: "7"}


@pytest.mark.skipif(sys.platform != "linux", reason="others are seen on Linux alone")
def test_work_watches_the_others_even_where_torch_came_first() -> None:
    assert said(WATCHED) == "True"
    assert said(WATCHED, OMP_WAIT_POLICY="passive") == "False"


@pytest.mark.parametrize(
    ("others", "using", "before", "crowded"),
    [
        (0.0, 2, False, False),
        (0.2, 2, False, False),
        (0.5, 2, False, True),
        (2.0, 2, False, True),
        (1.0, 1, False, False),  # one thread waits for nobody
        (0.2, 2, True, True),  # not at every breath
        (0.1, 2, True, False),
    ],
)
def test_threads_sleep_while_others_need_the_cores(
    others: float, using: int, before: bool, crowded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "cores", lambda: 2)
    looks = iter([Times(100, 50, 20), Times(110, 50 + 5 * others + 4, 24)])
    ballast = Weight()
    if before:
        ballast.take()
    crowd = Crowd(lambda: next(looks), ballast, lambda: using)
    crowd.look()
    assert bool(ballast) is crowded


def test_nothing_happens_where_the_clock_stands_or_nobody_tells() -> None:
    crowd = Crowd(lambda: Times(1, 1, 1), Weight(), lambda: 2)
    crowd.look()
    assert not crowd.ballast
    crowd = Crowd(lambda: None, Weight(), lambda: 2)
    crowd.look()
    assert not crowd.ballast


def test_ballast_is_a_team_of_threads_that_goes_again() -> None:
    code = """
import os, time, torch
from parformer.threads import Ballast
torch.set_num_threads(2)
torch.ones(1 << 18).mul_(2.0)
count = lambda: len(os.listdir("/proc/self/task"))
def settled(wanted):
    end = time.monotonic() + 20
    while count() != wanted and time.monotonic() < end:
        time.sleep(0.01)
    return count() == wanted
before, ballast = count(), Ballast()
ballast.take()
ballast.take()
there = settled(before + 2)
ballast.drop()
print(there, settled(before))
"""
    assert said(code) == "True True"


def test_no_machine_runs_any_number_of_threads() -> None:
    check_threads(None)
    check_threads(threads.most_threads())
    for asked in (0, threads.most_threads() + 1):
        with pytest.raises(ConfigError, match=f"got {asked}"):
            check_threads(asked)
