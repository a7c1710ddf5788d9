"""Does the verdict say what the losses say, and no more than they can?"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from parformer.fitting.verdict import (
    EXPERIENCE,
    SEED_SPREAD,
    Losses,
    choose,
    compare,
    judge,
    segment_means,
    student,
)


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


def test_of_models_that_are_as_good_the_fastest_is_taken() -> None:
    found = {"a": 1.000, "b": 1.002, "c": 1.1}
    assert choose(found, {"a": 2.0, "b": 1.0, "c": 0.1}, close=0.0025) == "b"
    assert choose(found, {"a": 2.0, "b": 1.0, "c": 0.1}, close=0.001) == "a"


def test_segments_come_in_any_order_and_the_last_may_be_short() -> None:
    places = [np.array([5, 1, 2]), np.array([4, 3])]
    values = [np.array([5.0, 1.0, 2.0]), np.array([4.0, 3.0])]
    assert segment_means(places, values, 2).tolist() == [1.5, 3.5, 5.0]


def row(name: str, **changes: Any) -> dict[str, Any]:
    latency = {"ratio": 1.0, "ratio_low": 0.98, "ratio_high": 1.02, "verdict": "tie"}
    given = {"name": name, "valid": {"loss": 1.5}, "latency": latency, "memory": 100,
             "state_bytes": 100, "broken": {}, "against": None}  # fmt: skip
    return given | changes


def against(difference: float, verdict: str, seeds: int = 1) -> dict[str, Any]:
    return {"difference": difference, "low": difference - 0.01, "high": difference + 0.01,
            "seeds": seeds, "segments": 128, "verdict": verdict}  # fmt: skip


def test_at_par_and_faster() -> None:
    faster = {"ratio": 0.62, "verdict": "faster"}
    chosen = row("found", latency=faster, against=against(0.002, "at par", 3))
    found = judge(row("baseline"), chosen, {})
    assert found["kind"] == "at par"
    assert found["headline"] == "At par with the interleaved Transformer; 38% faster."
    assert "+0.2% (−0.8% to +1.2% with 95% confidence)" in found["sentences"][0]
    assert "more --time" not in found["sentences"][0]


def test_worse_and_faster_within_a_limit_that_the_baseline_breaks() -> None:
    faster = {"ratio": 0.7, "verdict": "faster"}
    chosen = row("par", latency=faster, memory=60, against=against(0.021, "worse"))
    base = row("baseline", broken={"latency": 0.005})
    found = judge(base, chosen, {"latency": 0.004})
    assert found["headline"] == (
        "2.1% worse than the interleaved Transformer; 30% faster, 40% less peak memory."
    )
    assert "It keeps to latency 4 ms" in found["sentences"][0]
    assert "has 5 ms of latency" in found["sentences"][0]


def test_a_multiple_is_told_as_one() -> None:
    faster = {"ratio": 0.7, "ratio_low": 0.65, "ratio_high": 0.81, "verdict": "faster"}
    chosen = row("par", latency=faster, against=against(0.021, "worse"))
    base = row("baseline", broken={"latency": 0.005})
    found = judge(base, chosen, {"latency": 0.004}, {"latency": 0.8})
    assert found["sentences"][0] == (
        "It keeps to 0.8× the baseline's latency (0.70×, 0.65× to 0.81×)."
    )


def test_no_gain_is_called_so() -> None:
    chosen = row("par", against=against(0.004, "unclear"))
    found = judge(row("baseline"), chosen, {})
    assert found["kind"] == "no gain"
    assert "attention is cheap" in found["sentences"][0].lower()
    assert judge(row("baseline"), row("baseline"), {})["kind"] == "no gain"


def test_a_tie_in_noise_is_no_tie() -> None:
    noisy = {"ratio": 0.9, "ratio_low": 0.5, "ratio_high": 1.6, "verdict": "tie"}
    chosen = row("par", latency=noisy, memory=50, against=against(-0.1, "better"))
    assert "too noisy" in judge(row("baseline"), chosen, {})["headline"]


def test_a_worse_and_slower_model_is_no_gain() -> None:
    slower = {"ratio": 1.3, "verdict": "slower"}
    chosen = row("par", latency=slower, against=against(0.03, "worse"))
    assert judge(row("baseline"), chosen, {})["kind"] == "no gain"


def test_nothing_within_the_limits_is_said() -> None:
    faster = {"ratio": 0.9, "verdict": "faster"}
    chosen = row("par", latency=faster, broken={"memory": 2e6}, against=against(0.01, "worse"))
    found = judge(row("baseline"), chosen, {"memory": 1e6})
    assert "Nothing that was found keeps the limits" in found["sentences"][0]
    assert "2 MB of memory where 1 MB was asked" in found["sentences"][0]


def test_a_stop_before_any_training() -> None:
    assert judge({}, None, {})["kind"] == "stopped"
