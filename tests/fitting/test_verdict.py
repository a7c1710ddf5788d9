"""Does the verdict say what the losses say, and no more than they can?"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from parformer.evaluate.stretches import segment_means
from parformer.fitting.result import Compared, Latency, Loss, ModelFacts, Quality
from parformer.fitting.verdict import (
    EXPERIENCE,
    SEED_SPREAD,
    Limits,
    Losses,
    compare,
    judge,
    student,
)
from parformer.pattern import Pattern


def losses(
    rng: np.random.Generator, seeds: int, true: float, spread: float
) -> tuple[Losses, Losses]:
    """Both models on the same text; a seed moves one of them as a whole."""
    text = 2 + 0.3 * rng.standard_normal(128)
    base, other = {}, {}
    for seed in range(seeds):
        base[seed] = text + 0.02 * rng.standard_normal(128)
        moved = 1 + true + spread * rng.standard_normal()
        other[seed] = text * moved + 0.02 * rng.standard_normal(128)
    return base, other


@pytest.mark.parametrize("seeds", [1, 2, 4])
@pytest.mark.parametrize("true", [-0.03, 0.0, 0.02])
def test_the_interval_holds_the_truth(seeds: int, true: float) -> None:
    rng = np.random.default_rng(7)
    held = 0
    for _ in range(300):
        found = compare(*losses(rng, seeds, true, SEED_SPREAD), margin=0.01)
        held += found.low <= true <= found.high
    assert held / 300 >= 0.93


def test_seeds_that_differ_widen_the_interval_and_more_of_them_narrow_it() -> None:
    rng = np.random.default_rng(1)
    widths = {}
    for seeds, spread in ((4, 0.0), (4, 0.05), (1, 0.0)):
        found = compare(*losses(rng, seeds, 0.0, spread), margin=0.01)
        widths[seeds, spread] = found.high - found.low
    assert widths[4, 0.05] > 1.5 * widths[4, 0.0]
    assert widths[1, 0.0] > 1.5 * widths[4, 0.0]


def test_one_seed_counts_for_what_experience_says() -> None:
    base = np.full(50, 2.0)
    found = compare({0: base}, {0: base * 1.02}, margin=0.01)
    assert found.difference == pytest.approx(0.02)
    assert found.high - found.difference == pytest.approx(student(EXPERIENCE) * SEED_SPREAD)


@pytest.mark.parametrize(
    ("shift", "seeds", "verdict"),
    [(-0.05, 1, "better"), (0.05, 1, "worse"), (0.0, 1, "unclear"), (-0.005, 40, "better"),
     (0.001, 40, "at par"), (0.009, 2, "unclear")],
)  # fmt: skip
def test_verdicts(shift: float, seeds: int, verdict: str) -> None:
    base = {seed: np.full(64, 2.0) for seed in range(seeds)}
    other = {seed: np.full(64, 2.0 * (1 + shift)) for seed in range(seeds)}
    assert compare(base, other, margin=0.01).verdict == verdict


def test_only_seeds_that_both_have_are_compared() -> None:
    base = {0: np.full(8, 2.0), 1: np.full(8, 9.0)}
    assert compare(base, {0: np.full(8, 2.2)}, margin=0.01).seeds == 1


@pytest.mark.parametrize(("freedom", "exact"), [(4, 2.776), (6, 2.447), (10, 2.228), (30, 2.042)])
def test_student_is_near_the_tables(freedom: int, exact: float) -> None:
    assert student(freedom) == pytest.approx(exact, abs=0.01)


def test_segments_come_in_any_order_and_the_last_may_be_short() -> None:
    places = [np.array([5, 1, 2]), np.array([4, 3])]
    values = [np.array([5.0, 1.0, 2.0]), np.array([4.0, 3.0])]
    assert segment_means(places, values, 2).tolist() == [1.5, 3.5, 5.0]


def latency(
    ratio: float = 1.0, verdict: str = "tie", low: float = 0.98, high: float = 1.02
) -> Latency:
    return Latency(0.01 * ratio, 0.01 * low, 0.01 * high, ratio, low, high, verdict)


def row(name: str, **changes: Any) -> ModelFacts:
    usual = ModelFacts(
        name=name, title=name, how="", pattern=Pattern.parse("sf"), d_model=8, eligible=True,
        broken={}, parameters=10, decoder_parameters=9, flops=20, state_bytes=100,
        latency=latency(), memory=100, steps=6, learned=True, valid=Loss(1.5),
    )  # fmt: skip
    return replace(usual, **changes)


def against(difference: float, verdict: Quality, seeds: int = 1) -> Compared:
    return Compared(difference, difference - 0.01, difference + 0.01, seeds, 128, verdict)


NONE = Limits({}, {})


def test_at_par_and_faster() -> None:
    faster = latency(0.62, "faster")
    chosen = row("found", latency=faster, against=against(0.002, "at par", 3))
    found = judge(row("baseline"), chosen, NONE)
    assert found.kind == "at par"
    assert found.headline == "At par with the interleaved Transformer; 38% faster."
    assert "+0.2% (−0.8% to +1.2% with 95% confidence)" in found.sentences[0]
    assert "more --time" not in found.sentences[0]
    assert str(found) == f"{found.headline} {found.sentences[0]}"


def test_what_was_lost_is_told_beside_what_was_gained() -> None:
    faster, worse = latency(0.62, "faster"), against(-0.04, "better", 3)
    chosen = row("found", latency=faster, memory=139, state_bytes=41, against=worse)
    assert judge(row("baseline"), chosen, NONE).headline == (
        "4.0% better than the interleaved Transformer; 38% faster, 59% less state, "
        "but 39% more peak memory."
    )
    little = row("found", latency=faster, memory=102, against=worse)
    assert judge(row("baseline"), little, NONE).headline.endswith("; 38% faster.")


def test_worse_and_faster_within_a_limit_that_the_baseline_breaks() -> None:
    faster = latency(0.7, "faster", 0.65, 0.75)
    chosen = row("par", latency=faster, memory=60, against=against(0.021, "worse"))
    base = row("baseline", broken={"latency": 0.01})
    found = judge(base, chosen, Limits({"latency": 0.008}, {}))
    assert found.headline == (
        "2.1% worse than the interleaved Transformer; 30% faster, 40% less peak memory."
    )
    assert found.sentences[0] == (
        "It keeps to latency 8 ms (7 ms, 6.5 ms to 7.5 ms); the interleaved model has 10 ms of "
        "latency."
    )


@pytest.mark.parametrize(("high", "words"), [(0.79, "It keeps"), (0.81, "It probably keeps")])
def test_a_multiple_is_told_as_one_and_what_crosses_it_as_probable(high: float, words: str) -> None:
    faster = latency(0.7, "faster", 0.65, high)
    chosen = row("par", latency=faster, against=against(0.021, "worse"))
    base = row("baseline", broken={"latency": 0.005})
    found = judge(base, chosen, Limits({"latency": 0.004}, {"latency": 0.8}))
    assert found.sentences[0] == (
        f"{words} to 0.8× the baseline's latency (0.70×, 0.65× to {high}×)."
    )


def test_a_limit_is_judged_by_the_interval_that_is_shown() -> None:
    limits = Limits({"latency": 0.005, "memory": 90.0}, {})
    slow = Latency(0.0051, 0.0049, 0.0056, 1.0, 1.0, 1.0, "tie")
    assert limits.broken_by(row("a", latency=slow, memory=80)) == {}
    assert limits.keeping(row("a", latency=slow)) == "Too noisy to tell whether it keeps to"
    sure = Latency(0.0061, 0.0052, 0.0066, 1.0, 1.0, 1.0, "tie")
    assert limits.broken_by(row("a", latency=sure)) == {"latency": 0.0061, "memory": 100.0}
    quick = Latency(0.00407, 0.0040, 0.0042, 1.0, 1.0, 1.0, "tie")
    assert limits.broken_by(row("a", latency=quick, memory=80)) == {}
    assert limits.keeping(row("a", latency=quick)) == "It keeps to"
    assert limits.broken_by(row("a", latency=None, memory=80)) == {}


def test_no_gain_is_called_so() -> None:
    chosen = row("par", against=against(0.004, "unclear"))
    found = judge(row("baseline"), chosen, NONE)
    assert found.kind == "no gain"
    assert "attention is cheap" in found.sentences[0].lower()
    assert judge(row("baseline"), row("baseline"), NONE).kind == "no gain"


@pytest.mark.parametrize(
    ("seconds", "low", "high", "words"),
    [
        (9.0, 8.5, 9.5, "It keeps to latency 10 ms (9 ms, 8.5 ms to 9.5 ms)."),
        (9.5, 8.5, 11.0, "It probably keeps to latency 10 ms (9.5 ms, 8.5 ms to 11 ms)."),
        (10.5, 9.5, 11.0, "Too noisy to tell whether it keeps to latency 10 ms (10.5 ms, 9.5 ms"),
        (12.0, 11.0, 13.0, "Nothing that was found keeps the limits: the nearest has 12 ms"),
    ],
)
def test_the_baseline_itself_is_held_against_an_absolute_limit(
    seconds: float, low: float, high: float, words: str
) -> None:
    took = Latency(seconds / 1000, low / 1000, high / 1000, 1.0, 1.0, 1.0, "tie")
    limits = Limits({"latency": 0.01}, {})
    base = row("baseline", latency=took)
    base = replace(base, broken=limits.broken_by(base))
    found = judge(base, base, limits)
    assert found.sentences[-1].startswith(words)
    assert len(found.sentences) == 2
    within = " within latency 10 ms" if high < 10 else ""
    assert found.headline == f"Nothing beats the interleaved Transformer{within}."


def test_the_baseline_keeps_to_multiples_of_itself_and_nobody_says_so() -> None:
    limits = Limits({"latency": 0.01, "memory": 200.0}, {"latency": 1.0, "memory": 2.0})
    found = judge(row("baseline"), row("baseline", latency=latency(1.0, "tie", 1.0, 1.0)), limits)
    assert found.headline == (
        "Nothing beats the interleaved Transformer within 1× the baseline's latency and 2× the "
        "baseline's memory."
    )
    assert len(found.sentences) == 1


def test_a_tie_in_noise_is_no_tie() -> None:
    noisy = latency(0.9, "tie", 0.5, 1.6)
    chosen = row("par", latency=noisy, memory=50, against=against(-0.1, "better"))
    assert "too noisy" in judge(row("baseline"), chosen, NONE).headline


def test_a_worse_and_slower_model_is_no_gain() -> None:
    chosen = row("par", latency=latency(1.3, "slower"), against=against(0.03, "worse"))
    assert judge(row("baseline"), chosen, NONE).kind == "no gain"


def test_nothing_within_the_limits_is_said_in_the_words_of_the_limit() -> None:
    over = {"memory": 2e6, "latency": 0.009}
    faster = latency(0.9, "faster", 0.88, 0.92)
    chosen = row("par", latency=faster, broken=over, against=against(0.01, "worse"))
    limits = Limits({"memory": 1e6, "latency": 0.008}, {"latency": 0.8})
    found = judge(row("baseline"), chosen, limits)
    assert "Nothing that was found keeps the limits" in found.sentences[0]
    assert "2 MB of memory where 1 MB was asked" in found.sentences[0]
    assert "0.90× the baseline's latency where 0.8× was asked" in found.sentences[0]


def test_a_stop_before_any_training_and_before_any_comparison() -> None:
    assert judge(None, None, NONE).kind == "stopped"
    assert judge(row("baseline"), row("par", valid=None), NONE).kind == "stopped"
    half = judge(row("baseline", valid=None), row("par"), NONE, finished=False)
    assert half.kind == "stopped"
    assert half.headline == "Stopped before the models could be compared."


def test_models_that_were_not_trained_alike_are_not_compared() -> None:
    found = judge(row("baseline"), row("par", steps=4), NONE)
    assert found.kind == "not compared"
    assert "no time to train this model and the interleaved Transformer alike" in found.headline
    failed = judge(row("baseline", learned=False), row("par"), NONE)
    assert failed.kind == "no baseline"
