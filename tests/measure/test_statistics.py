from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parformer.errors import ConfigError
from parformer.measure.statistics import compare, median_interval, rounds_needed, ties

times = st.floats(min_value=1e-7, max_value=1e3)
paired_times = st.lists(st.tuples(times, times), min_size=1, max_size=40)


@pytest.mark.parametrize(
    ("count", "confidence", "ranks"),
    # from printed tables of the sign test: coverage 96.9, 97.9, 95.9, 95.7, 99.2 and 99.5%
    [
        (6, 0.95, (1, 6)),
        (10, 0.95, (2, 9)),
        (20, 0.95, (6, 15)),
        (30, 0.95, (10, 21)),
        (8, 0.99, (1, 8)),
        (30, 0.99, (8, 23)),
    ],
)
def test_the_interval_ends_at_the_ranks_of_the_tables(
    count: int, confidence: float, ranks: tuple[int, int]
) -> None:
    samples = np.random.default_rng(0).permutation(np.arange(1, count + 1))
    assert median_interval(samples, confidence) == ranks


@pytest.mark.parametrize("draw", ["exponential", "standard_cauchy", "normal"])
def test_the_interval_covers_the_median_as_often_as_it_says(draw: str) -> None:
    rng, trials = np.random.default_rng(1), 4000
    median = {"exponential": np.log(2), "standard_cauchy": 0.0, "normal": 0.0}[draw]
    intervals = (median_interval(getattr(rng, draw)(size=20)) for _ in range(trials))
    covered = sum(low <= median <= high for low, high in intervals) / trials
    assert covered == pytest.approx(0.9586, abs=0.01)


def test_too_few_samples_give_their_whole_range_and_no_verdict() -> None:
    assert median_interval([3.0, 1.0, 2.0]) == (1.0, 3.0)
    seven, eight = [1.0] * 7, [1.0] * 8
    assert compare([9.0] * 7, seven).verdict == "tie"
    assert compare([9.0] * 8, eight).verdict == "slower"
    assert rounds_needed(0.99) == 8


def test_a_difference_is_measured_within_rounds() -> None:
    rng = np.random.default_rng(2)
    drift = np.exp(np.cumsum(rng.normal(0, 0.3, 40)))
    b = drift * rng.normal(1, 0.005, 40)
    a = 1.05 * drift * rng.normal(1, 0.005, 40)
    difference = compare(a, b)
    assert difference.verdict == "slower"
    assert difference.low < 1.05 < difference.high
    assert difference.high - difference.low < 0.02
    assert compare(b, a).verdict == "faster"


def test_a_certain_difference_too_small_to_name_is_a_tie() -> None:
    b = np.ones(1000)
    assert compare(1.009 * b, b).verdict == "tie"
    assert compare(1.011 * b, b).verdict == "slower"
    assert compare(1.009 * b, b, smallest=0.005).verdict == "slower"
    assert compare(1.04 * b, b, smallest=0.05).verdict == "tie"


def test_one_wild_round_decides_nothing() -> None:
    b = np.ones(30)
    a = b.copy()
    a[3] = 1000.0
    assert compare(a, b).verdict == "tie"
    assert compare(a, b).ratio == 1.0


@given(paired_times)
def test_swapping_the_two_turns_the_verdict_around(pairs: list[tuple[float, float]]) -> None:
    a, b = zip(*pairs, strict=True)
    there, back = compare(a, b), compare(b, a)
    opposite = {"faster": "slower", "slower": "faster", "tie": "tie"}
    assert back.verdict == opposite[there.verdict]
    assert back.ratio * there.ratio == pytest.approx(1)
    assert back.low * there.high == pytest.approx(1)
    assert there.low <= there.ratio * (1 + 1e-12)
    assert there.ratio <= there.high * (1 + 1e-12)


def test_the_fastest_and_its_ties_come_fastest_first() -> None:
    noise = np.random.default_rng(3).normal(1, 0.02, (4, 30))
    many = {
        "slow": 1.3 * noise[0],
        "level": 1.002 * noise[1],
        "quick": noise[2],
        "behind": 1.1 * noise[3],
    }
    assert set(ties(many)) == {"quick", "level"}
    medians = [float(np.median(many[name])) for name in ties(many)]
    assert medians == sorted(medians)
    assert ties({"alone": [1.0]}) == ("alone",)


def test_the_more_rivals_the_stricter_the_comparison_with_the_best() -> None:
    """Of 40 equals one has luck; at the level of a single pair it would leave some behind."""
    left_out_strict = left_out_plain = 0
    for trial in range(50):
        noise = np.random.default_rng(trial).normal(1, 0.05, (40, 30))
        many = {str(i): row for i, row in enumerate(noise)}
        tied = ties(many, smallest=0)
        left_out_strict += len(tied) < 40
        best = many[tied[0]]
        verdicts = [compare(row, best, smallest=0).verdict for row in noise]
        left_out_plain += "slower" in verdicts
    assert left_out_strict <= 2
    assert left_out_plain > 10


def test_a_difference_is_ready_for_json_and_for_people() -> None:
    difference = compare([1.1] * 10, [1.0] * 10)
    assert json.loads(json.dumps(difference.to_dict())) == difference.to_dict()
    assert str(difference) == "slower, ×1.100 (1.100 to 1.100)"


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        ([1.0, 2.0], [1.0], "'b' has 1 rounds and its partner 2"),
        ([1.0, 0.0], [1.0, 1.0], "positive, got 0.0 in 'a'"),
        ([1.0], [-1.0], "positive, got -1.0 in 'b'"),
        ([], [], "non-empty"),
        ([1.0, float("nan")], [1.0, 1.0], "finite"),
    ],
)
def test_times_that_cannot_be_compared_are_refused(
    a: list[float], b: list[float], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        compare(a, b)


def test_impossible_demands_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"between 0 and 1, got 1\.0"):
        median_interval([1.0, 2.0], 1.0)
    with pytest.raises(ConfigError, match=r"negative, got -0\.1"):
        compare([1.0], [1.0], smallest=-0.1)
    with pytest.raises(ConfigError, match="at least one"):
        ties({})
