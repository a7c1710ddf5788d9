"""Do limits alone lead to the right steps, in the right order, by what was tried?"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import parformer as pf
from parformer.compress import trying, worth
from parformer.compress.choosing import size_price
from parformer.compress.planning import (
    CLOCK,
    TAUGHT,
    Bounds,
    Option,
    Plan,
    Planned,
    best,
    settled,
    ways,
)
from parformer.compress.receipt import Change
from parformer.compress.request import CompressRequest
from parformer.compress.result import CompressResult
from tests.compress.test_job import QUICK, SMALL, unwanted, without_clock

EIGHT = Option(step="quantize", what="8 bits", size=0.25, time=0.8, loses=0.001)
FOUR = Option(step="quantize", what="4 bits", size=0.14, time=0.7, loses=0.3)
WORDS = Option(step="vocabulary", what="some", size=0.6, time=0.9, loses=0.004, left=0.6)
PARTS = Option(step="shrink", what="most", size=0.7, time=0.6, loses=0.05, left=0.7)
HALF = Option(step="shrink", what="half", size=0.4, time=0.4, loses=0.6, left=0.4)
TRIED = (HALF, EIGHT, PARTS, WORDS, FOUR)


def names(bounds: Bounds, tried: tuple[Option, ...] = TRIED) -> tuple[str, ...]:
    return best(ways(tried), bounds).names


def test_nothing_is_done_that_is_not_needed() -> None:
    assert names(Bounds(size=0.3)) == ("quantize",)
    assert names(Bounds(time=0.9)) == ("quantize",)
    rough, slim = replace(EIGHT, loses=0.015), replace(HALF, size=0.28, loses=0.001)
    assert names(Bounds(size=0.3), (rough, slim)) == ("quantize",), "a training would lose less"
    assert settled(best(ways([EIGHT]), Bounds(size=0.3)), Bounds(size=0.3))
    assert not settled(best(ways([EIGHT]), Bounds(size=0.2)), Bounds(size=0.2))
    assert not settled(best(ways([FOUR]), Bounds(size=0.2)), Bounds(size=0.2)), "it loses much"


def test_words_go_first_and_bits_last_and_what_is_shrunk_is_taught() -> None:
    way = best(ways(TRIED), Bounds(size=0.11, loss=0.05))
    assert way.steps == (
        Planned(name="vocabulary", left=0.6),
        Planned(name="shrink", left=0.7),
        Planned(name="distil"),
        Planned(name="quantize"),
    )
    assert way.size == pytest.approx(0.6 * 0.7 * 0.25)
    assert way.loses == pytest.approx(0.001 + 0.004 + TAUGHT * 0.05)


def test_no_training_where_fewer_words_are_enough() -> None:
    assert names(Bounds(size=0.16)) == ("vocabulary", "quantize")
    assert names(Bounds(size=0.16), (EIGHT, FOUR, PARTS, HALF)) != ("quantize",)


def test_it_stops_before_the_step_that_loses_too_much() -> None:
    bounds = Bounds(size=0.01, loss=0.02)
    way = best(ways(TRIED), bounds)
    assert way.names == ("vocabulary", "shrink", "distil", "quantize")
    assert way.options[1] is PARTS, "half of it would lose too much"
    assert way.options[-1] is EIGHT, "four bits would"
    plan = Plan.of(way, bounds, TRIED, "key")
    assert not plan.reaches
    assert "nothing that was tried reaches the limits" in plan.words()
    assert names(Bounds(size=0.01, loss=0.0005)) == ("quantize",), "all lose more: the least of it"


def test_without_a_limit_of_the_loss_much_is_lost_only_where_nothing_else_helps() -> None:
    assert best(ways(TRIED), Bounds(size=0.15, bearable=0.02)).options == (WORDS, EIGHT)
    assert best(ways([EIGHT, FOUR]), Bounds(size=0.15)).options == (FOUR,)


def test_times_are_planned_with_something_to_spare() -> None:
    bounds = Bounds(time=0.8)
    assert names(bounds, (EIGHT, PARTS)) != ("quantize",)
    exact = replace(EIGHT, time=0.8 * CLOCK)
    assert names(bounds, (exact, PARTS)) == ("quantize",)


def test_bits_that_are_slower_here_are_no_step_towards_less_time() -> None:
    slower = replace(EIGHT, time=1.3)
    assert names(Bounds(time=0.65), (slower, PARTS)) == ("shrink", "distil")


def test_limits_are_shares_of_the_original() -> None:
    limits = ("size=1kB", "latency=0.5x", "loss=+3%")
    targets = CompressRequest(model=Path("x"), limits=limits).targets
    assert Bounds.of(targets, 4000, 0.01) == Bounds(size=0.25, time=0.5, loss=0.03, bearable=0.03)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("trained") / "run"
    pf.train(
        model="llama-pocket", corpus="python-docs", steps=4, run=run, changes=SMALL, beside=False
    )
    return run


def test_a_size_that_bits_do_not_reach_is_planned_once(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_clock(monkeypatch)
    asked = {"model": trained, "run": tmp_path / "few", "updates": 1, **QUICK}
    result = pf.compress(**asked, limits=("size=0.12x",))
    plan = result.plan
    assert plan is not None
    assert [step.name for step in plan.steps] == ["shrink", "distil", "quantize"]
    assert [stair.name for stair in result.stairs[1:]] == ["shrink", "distil", "quantize"]
    assert {one.step for one in plan.tried} == {"quantize", "shrink"}, "all bytes are in the text"
    assert result.kept
    assert result.last.figures.size == pytest.approx(plan.size * result.first.figures.size, rel=0.2)
    assert Plan.from_dict(json.loads((tmp_path / "few" / trying.FILE).read_text())) == plan
    assert CompressResult.load(tmp_path / "few").plan == plan
    page = (tmp_path / "few" / "report.html").read_text("utf-8")
    assert "What was planned, and why?" in page
    monkeypatch.setattr(trying, "make_plan", unwanted)
    assert pf.compress(**asked, limits=("size=0.12x",)).plan == plan
    with pytest.raises(AssertionError):
        pf.compress(**asked, limits=("size=0.1x",))
    named = pf.compress(**asked, by="quantize", limits=("size=0.1x",))
    assert named.plan is None
    older = {name: value for name, value in named.to_dict().items() if name != "plan"}
    assert CompressResult.from_dict(older).plan is None


def test_bits_alone_are_tried_where_they_are_enough(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_clock(monkeypatch)
    told: list[str] = []
    result = pf.compress(
        model=trained,
        run=tmp_path / "few",
        limits=("size=0.4x",),
        watch=lambda event: told.append(getattr(event, "text", "")),
        **QUICK,
    )
    assert result.plan is not None
    assert [one.what for one in result.plan.tried] == ["8 bits"]
    assert sum(text.startswith("The plan: quantize (8 bits).") for text in told) == 1


def test_a_limit_of_the_loss_is_planned_with_the_bits_that_it_leaves(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_clock(monkeypatch)
    result = pf.compress(model=trained, run=tmp_path / "few", limits=("loss=+30%",), **QUICK)
    assert result.plan is not None
    assert [(one.step, one.what) for one in result.plan.tried] == [("quantize", "4 bits")]
    assert "matrices in 4 bits" in result.last.done


def test_a_limit_of_time_is_planned_by_the_clock(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With prices and times that no clock decides, however noisy this machine is."""
    without_clock(monkeypatch)
    monkeypatch.setattr(worth, "token_seconds", lambda _, model: 1e-9 * size_price(model))
    half = Change(ratio=0.5, low=0.4, high=0.6, verdict="less")
    monkeypatch.setattr(trying, "timed", lambda *_: half)
    asked = {"model": trained, "run": tmp_path / "few", "updates": 1, **QUICK}
    plan = pf.compress(limits=("latency=0.01x",), **asked).plan
    assert plan is not None
    assert not plan.reaches
    assert {one.time for one in plan.tried} == {0.5}
    assert [step.name for step in plan.steps] == ["shrink", "distil", "quantize"]
    assert {one.what for one in plan.tried if one.step == "shrink"} == {"50% of the time"}
    assert plan.time == 0.25
