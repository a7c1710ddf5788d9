"""Is the best held against the plain Transformer that one would take instead, and in equal time?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from parformer.fitting import rivals
from parformer.fitting.phases import BASELINE, Contestant, EqualTime
from parformer.fitting.result import Held
from parformer.fitting.rivals import DIVERGED, TOO_LATE, TOO_LONG, in_equal_time, rival_of
from parformer.fitting.verdict import judge
from tests.fitting.test_verdict import NONE, against, latency, row


def after(loss: float, *, learned: bool = True) -> Contestant:
    return Contestant(None, (loss, loss), learned)


FOUND = {
    BASELINE: after(2.0),
    "interleaved": after(2.1),
    "par": after(1.9),
    "recurrent": after(1.8),
}


def fit_of(**changes: Any) -> Any:
    """As much of a fit as these functions ask."""
    numbers: dict[str, float] = {}
    paces = {BASELINE: 2.0, "interleaved": 1.5, "par": 1.2, "recurrent": 1.0}
    told: list[str] = []
    usual = {
        "eligible": ["interleaved", "par", "recurrent"],
        "by_clock": True,
        "pace": paces.__getitem__,
        "token_pace": lambda: 0.0,
        "left_to_train": 1e6,
        "progress": SimpleNamespace(
            number=lambda name, make: numbers.setdefault(name, float(make()))
        ),
        "watch": SimpleNamespace(notice=told.append),
        "alike": SimpleNamespace(has=lambda _: True, lengthen=lambda *_: True),
        "recipe_of": lambda name, steps, rate, *, warmup: (name, steps, rate, warmup),
        "train": lambda recipe, name: SimpleNamespace(steps=recipe[1], path=Path(name)),
        "told": told,
    }
    return SimpleNamespace(**(usual | changes))


def test_the_rival_keeps_the_limits_where_one_does() -> None:
    fit = fit_of()
    assert rival_of(fit, FOUND, "recurrent") == "interleaved"
    assert rival_of(fit, FOUND, "interleaved") == BASELINE
    fit.eligible = [BASELINE, "interleaved", "recurrent"]
    assert rival_of(fit, FOUND, "recurrent") == BASELINE  # the better of both
    failed = {**FOUND, "interleaved": after(2.1, learned=False)}
    assert rival_of(fit_of(), failed, "recurrent") == BASELINE


def test_in_equal_time_the_slower_one_has_fewer_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rivals, "rate_of", lambda *_: 0.1)
    monkeypatch.setattr(rivals, "segments", lambda *_: np.array([2.3, 2.3]))
    fit = fit_of()
    found = in_equal_time(fit, FOUND, "recurrent", "interleaved", 300)
    assert found == EqualTime(200, (2.3, 2.3))
    assert fit.told == ["interleaved for as long as recurrent took: 200 updates"]


def stopped_early(recipe: Any, name: str) -> Any:
    return SimpleNamespace(steps=recipe[1] - 1, path=Path(name))


@pytest.mark.parametrize(
    ("changes", "rival", "wanted"),
    [
        ({"by_clock": False}, "interleaved", None),
        # 150 s of it would take too much
        ({"left_to_train": 100.0}, "interleaved", EqualTime(0, (), TOO_LONG)),
        ({"pace": lambda _: 1.0}, "interleaved", EqualTime(300, (2.1, 2.1))),
        ({"train": lambda *_: None}, "interleaved", EqualTime(0, (), DIVERGED)),
        ({"train": stopped_early}, "interleaved", EqualTime(0, (), TOO_LATE)),
    ],
)
def test_where_it_cannot_be_told_the_reason_is(
    changes: dict[str, Any],
    rival: str,
    wanted: EqualTime | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rivals, "rate_of", lambda *_: 0.1)
    assert in_equal_time(fit_of(**changes), FOUND, "recurrent", rival, 300) == wanted


def test_the_verdict_names_the_rival_and_tells_both_differences() -> None:
    chosen = row("recurrent", latency=latency(0.7, "faster"), against=against(-0.01, "unclear"))
    better = against(-0.06, "better")
    held = Held("interleaved", better, against(-0.08, "better"), 4)
    found = judge(row("baseline"), chosen, NONE, held=held)
    assert found.headline == (
        "6.0% better than the best plain Transformer within the limits; beside the interleaved one "
        "without limits: 30% faster."
    )
    assert found.sentences[-1] == (
        "In equal time its loss differs by −8.0% (−9.0% to −7.0%): the plain one then has 4 "
        "updates beside 6 of its own."
    )
    silent = replace(held, in_time=None, steps=0, untold=TOO_LONG)
    assert judge(row("baseline"), chosen, NONE, held=silent).sentences[-1] == (
        "In equal time they were not compared: that would have taken more than 25% of the time "
        "that was left."
    )
    nobody_asked = replace(silent, untold="")
    assert "qual time" not in str(judge(row("baseline"), chosen, NONE, held=nobody_asked))
    same = Held(BASELINE, better, better, 6)
    told = judge(row("baseline"), chosen, NONE, held=same)
    assert "In equal time it is the same" in told.sentences[-1]
    assert "better than the interleaved Transformer" in told.headline
