"""Do the right stairs stay, alone and together?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import parformer as pf
from parformer.compress.receipt import Bench, Figures
from parformer.compress.request import Targets
from parformer.compress.result import CompressResult, Stair, recovery_words
from parformer.compress.standing import Standing, lossy_for, useless_for
from parformer.data.tokens import Prepared
from parformer.events import Watch
from parformer.measure.device import describe_device
from parformer.recipe import Recipe
from parformer.report.compressed import compressed_page
from parformer.search.machine import Machine

FIRST = Figures(size=100, parameters=9, memory=9, token=1.0, piece=1.0, loss=2.0)
LIMIT = Targets(loss=0.05)


def bench(**changes: int) -> Bench:
    prepared = Prepared("text", "identity", None, {}, Path())  # type: ignore[arg-type]
    return Bench(Recipe(model=pf.preset("pocket", **changes)), prepared, 1024)


def walk(
    *steps: tuple[str, Figures], told: list[str] | None = None, other: Bench | None = None
) -> Standing:
    """The stairs after some steps with such figures; the first of them may be in another bench."""
    stair = Stair(name="original", done="", figures=FIRST)
    standing = Standing({}, {"original": Path("original")}, [stair], bench(), Path("original"))
    names = [name for name, _ in steps]
    watch = Watch(lambda event: told.append(event.text) if told is not None else None)  # type: ignore[attr-defined]
    for number, (name, figures) in enumerate(steps, start=1):
        standing.folders[name] = Path(name)
        standing.stairs.append(Stair(name=name, done="", figures=figures))
        now = other if number == 1 and other is not None else standing.bench
        standing.judge(now, LIMIT, tuple(names[number:]), watch)
    return standing


def after(**changes: float) -> Figures:
    return replace(FIRST, **changes)


def taken(standing: Standing) -> dict[str, bool]:
    return {stair.name: stair.taken for stair in standing.stairs[1:]}


def test_an_objection_is_what_the_figures_say() -> None:
    assert "neither smaller nor faster nor better" in useless_for(FIRST, FIRST)
    assert useless_for(after(size=50), FIRST) == ""
    assert useless_for(after(token=0.5), FIRST) == ""
    assert "more than 5.00%" in lossy_for(after(size=50, loss=2.2), FIRST, LIMIT)
    assert lossy_for(after(loss=2.05), FIRST, LIMIT) == ""
    assert lossy_for(after(loss=9.0), FIRST, Targets()) == ""


def test_what_a_later_step_teaches_again_is_judged_after_it() -> None:
    told: list[str] = []
    found = walk(
        ("shrink", after(size=50, loss=2.96)), ("distil", after(size=50, loss=2.08)), told=told
    )
    assert taken(found) == {"shrink": True, "distil": True}
    assert found.foot == "distil"
    assert [stair.judged_with for stair in found.stairs] == ["", "distil", ""]
    assert told == [
        "shrink: the loss would grow by 48.00%, more than 5.00%; it is judged after distil"
    ]
    assert recovery_words(found.stairs) == (
        " After shrink alone the loss was +48.0%, after distil +4.0%."
    )


@pytest.mark.parametrize("loss", [2.4, 3.5])
def test_both_go_where_teaching_does_not_help(loss: float) -> None:
    """Whether it helped a little, or not at all."""
    told: list[str] = []
    found = walk(
        ("shrink", after(size=50, loss=2.96)),
        ("distil", after(size=50, loss=loss)),
        ("quantize", after(size=25, loss=2.01)),
        told=told,
    )
    assert taken(found) == {"shrink": False, "distil": False, "quantize": True}
    assert f"even with distil after it the loss would grow by {loss / 2 - 1:.2%}" in (
        found.stairs[1].why
    )
    assert found.stairs[2].why
    assert sum("is left out" in line for line in told) == 2


def test_what_kept_the_limit_before_stays_when_the_others_go() -> None:
    found = walk(
        ("replace", after(size=80, loss=2.02)),
        ("shrink", after(size=50, loss=2.96)),
        ("distil", after(size=50, loss=2.4)),
    )
    assert taken(found) == {"replace": True, "shrink": False, "distil": False}
    assert found.foot == "replace"


def test_nobody_waits_for_a_step_that_does_not_come() -> None:
    found = walk(("shrink", after(size=50, loss=2.96)), ("quantize", after(size=25, loss=2.02)))
    assert taken(found) == {"shrink": False, "quantize": True}
    found = walk(("shrink", after(loss=2.96)), ("distil", after(loss=1.9)))
    assert taken(found) == {"shrink": False, "distil": True}, "what gains nothing does not wait"


def test_teaching_that_helps_nothing_goes_alone_where_nothing_waits() -> None:
    found = walk(("shrink", after(size=50, loss=2.02)), ("distil", after(size=50, loss=2.03)))
    assert taken(found) == {"shrink": True, "distil": False}


def test_a_text_in_fewer_words_goes_back_to_the_old_ones() -> None:
    """What the teacher reads follows the stair at the foot."""
    few, cut = bench(vocab_size=50), ("vocabulary", after(size=50, loss=2.96))
    kept = walk(cut, ("distil", after(size=50, loss=2.02)), other=few)
    assert kept.bench is few
    assert kept.teacher == Path("vocabulary")
    gone = walk(cut, ("distil", after(size=50, loss=2.5)), other=few)
    assert gone.teacher == Path("original")
    assert gone.bench.recipe == bench().recipe
    assert gone.bench.others == (few,), "models that were left out are still read with their words"


def told(standing: Standing) -> tuple[str, str]:
    """Verdict and page."""
    found = CompressResult(
        source="run",
        corpus="text",
        tokenizer="byte",
        task="language",
        limits=("loss=+5%",),
        stairs=tuple(standing.stairs),
        kept=True,
        seconds=1.0,
        device=Machine.of(describe_device(), 0),
        version="0",
        date="2026-11-19",
    )
    return found.verdict(), compressed_page(found)


def test_verdict_and_page_tell_what_was_judged_together() -> None:
    shrink = ("shrink", after(size=50, loss=2.96))
    verdict, page = told(walk(shrink, ("distil", after(size=50, loss=2.08))))
    assert "After shrink alone the loss was +48.0%, after distil +4.0%." in verdict
    assert "lost more than it may, and was judged with distil" in page
    verdict, page = told(walk(shrink, ("distil", after(size=50, loss=2.4))))
    why = "even with distil after it the loss would grow by 20.00%, more than 5.00%"
    assert f"shrink: {why}" in verdict
    assert f"left out: {why}" in page
