"""Are the statistics those of a textbook, and is a good proxy always on the positive side?"""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parformer.errors import ConfigError
from parformer.search.ranking import rankings
from parformer.search.ranking.rankings import (
    SHARES,
    bootstrap_interval,
    common_ratio,
    front_distance,
    rank_proxy,
    spearman,
    spearman_by_size,
    top_count,
    top_spearman,
)


def naive_ranks(values: list[float]) -> list[float]:
    """1 plus how many are lower, plus half of how many others are equal."""
    return [
        1 + sum(other < value for other in values) + (values.count(value) - 1) / 2
        for value in values
    ]


def naive_spearman(a: list[float], b: list[float]) -> float:
    x, y = naive_ranks(a), naive_ranks(b)
    mx, my = sum(x) / len(x), sum(y) / len(y)
    top = sum((p - mx) * (q - my) for p, q in zip(x, y, strict=True))
    under = math.sqrt(sum((p - mx) ** 2 for p in x) * sum((q - my) ** 2 for q in y))
    return top / under if under else math.nan


SMALL = st.lists(st.tuples(st.integers(0, 5), st.integers(-9, 9)), min_size=2, max_size=12)


@settings(max_examples=40)
@given(SMALL)
def test_ties_share_their_mean_rank(pairs: list[tuple[int, int]]) -> None:
    a, b = ([float(value) for value in column] for column in zip(*pairs, strict=True))
    wanted = naive_spearman(a, b)
    assert spearman(a, b) == pytest.approx(wanted, abs=1e-12, nan_ok=True)
    assert spearman(b, a) == pytest.approx(wanted, abs=1e-12, nan_ok=True)
    turned = [-value for value in a]
    assert spearman(turned, b) == pytest.approx(-wanted, abs=1e-12, nan_ok=True)


def test_known_correlations() -> None:
    # the textbook's: IQ and hours of television
    iq = [106, 100, 86, 101, 99, 103, 97, 113, 112, 110]
    hours = [7, 27, 2, 50, 28, 29, 20, 12, 6, 17]
    assert spearman(iq, hours) == pytest.approx(-29 / 165)
    assert spearman([1, 2, 2, 3], [1, 2, 3, 4]) == pytest.approx(4.5 / math.sqrt(4.5 * 5))
    assert math.isnan(spearman([1, 1, 1], [1, 2, 3]))
    assert spearman([1, 2, -math.inf], [2, 3, 1]) == 1.0


@settings(max_examples=40)
@given(SMALL, st.integers(0, 99))
def test_a_resample_is_its_models_written_out(pairs: list[tuple[int, int]], seed: int) -> None:
    a, b = (np.array(column, dtype=float) for column in zip(*pairs, strict=True))
    times = np.random.default_rng(seed).multinomial(len(a), np.full(len(a), 1 / len(a)), size=4)
    found = rankings._weighted_spearman(a, b, times.astype(float))
    for row, value in zip(times, found, strict=True):
        wanted = naive_spearman(np.repeat(a, row).tolist(), np.repeat(b, row).tolist())
        assert value == pytest.approx(wanted, abs=1e-12, nan_ok=True)


def drawn(count: int, noise: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    size = rng.uniform(0, 1, count)
    return 60 - 30 * size + noise * rng.normal(size=count), size


def test_the_interval_holds_the_correlation_and_narrows_with_models() -> None:
    widths = []
    for count in (20, 200):
        truth, proxy = drawn(count, 5.0)
        low, high = bootstrap_interval(-truth, proxy)
        assert low < spearman(-truth, proxy) < high <= 1
        widths.append(high - low)
    assert widths[1] < 0.7 * widths[0]


def test_the_interval_is_the_percentiles_of_plain_resampling() -> None:
    truth, proxy = drawn(30, 8.0)
    rng = np.random.default_rng(5)
    plain = []
    for _ in range(1000):
        some = rng.integers(0, 30, 30)
        plain.append(naive_spearman((-truth[some]).tolist(), proxy[some].tolist()))
    for confidence in (0.95, 0.5):
        low, high = bootstrap_interval(-truth, proxy, resamples=4000, confidence=confidence)
        share = (1 - confidence) / 2
        assert low == pytest.approx(np.quantile(plain, share), abs=0.03)
        assert high == pytest.approx(np.quantile(plain, 1 - share), abs=0.03)


def test_the_interval_depends_on_the_seed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    truth, proxy = drawn(40, 5.0)
    once = bootstrap_interval(truth, proxy, seed=3)
    assert bootstrap_interval(truth, proxy, seed=3) == once
    assert bootstrap_interval(truth, proxy, seed=4) != once
    monkeypatch.setattr(rankings, "AT_ONCE", 130)  # three resamples at a time
    assert bootstrap_interval(truth, proxy, seed=3) == pytest.approx(once, abs=0.1)


def test_what_never_varies_has_no_interval() -> None:
    assert all(map(math.isnan, bootstrap_interval([1, 1, 1], [1, 2, 3])))
    # some resamples of three models vary in nothing; they are left out
    assert bootstrap_interval([1, 2, 3], [1, 2, 3]) == (1.0, 1.0)


# The best models


@pytest.mark.parametrize("share", SHARES)
def test_common_ratio_counts_a_set(share: float) -> None:
    truth, proxy = drawn(50, 10.0)
    count = round(50 * share)
    best = set(np.argsort(truth)[:count].tolist())
    chosen = set(np.argsort(-proxy)[:count].tolist())
    assert common_ratio(truth, proxy, share) == pytest.approx(len(best & chosen) / count)


def test_common_ratio_knows_which_side_is_good() -> None:
    perplexity = [20, 30, 40, 50]
    assert common_ratio(perplexity, [4, 3, 2, 1], 0.25) == 1
    assert common_ratio(perplexity, [1, 2, 3, 4], 0.25) == 0
    assert common_ratio(perplexity, [1, 2, 3, 4], 0.5) == 0
    assert common_ratio(perplexity, [1, 2, 3, 4], 1.0) == 1


@settings(max_examples=40)
@given(SMALL, st.sampled_from(SHARES))
def test_equal_models_count_in_part_whatever_their_order(
    pairs: list[tuple[int, int]], share: float
) -> None:
    truth, proxy = (np.array(column, dtype=float) for column in zip(*pairs, strict=True))
    found = common_ratio(truth, proxy, share)
    assert 0 <= found <= 1 + 1e-12
    assert common_ratio(truth[::-1], proxy[::-1], share) == pytest.approx(found)
    assert common_ratio(truth, -truth, share) == pytest.approx(1)


def test_a_proxy_that_says_nothing_finds_what_chance_finds() -> None:
    assert common_ratio(np.arange(20), np.ones(20), 0.25) == pytest.approx(0.25)


def test_the_best_are_ranked_among_themselves() -> None:
    truth = [10, 11, 12, 13, 40, 50, 60, 70]
    proxy = [1, 2, 3, 4, 0.4, 0.3, 0.2, 0.1]
    assert top_spearman(truth, proxy, 0.5) == pytest.approx(-1)
    assert top_spearman(truth, proxy, 1.0) == pytest.approx(
        naive_spearman([-t for t in truth], proxy)
    )
    assert math.isnan(top_spearman(truth, proxy, 0.25))
    assert not math.isnan(top_spearman(truth, proxy, 0.3))


@pytest.mark.parametrize(
    ("models", "share", "count"),
    [
        (200, 0.1, 20),
        (10, 0.3, 3),
        (10, 0.7, 7),
        (15, 0.1, 2),
        (3, 0.1, 1),
        (7, 1.0, 7),
        (1, 0.9, 1),
    ],
)
def test_a_share_of_the_models_is_rounded_up(models: int, share: float, count: int) -> None:
    assert top_count(models, share) == count


def test_bins_hold_equally_many_models_by_size() -> None:
    size = [8, 1, 7, 2, 6, 3, 5, 4, 9, 10, 11, 12]
    truth = [100 - s if s <= 6 else 100 + s for s in size]
    bins = spearman_by_size(truth, size, size, bins=2)
    assert [(b.low, b.high, b.models) for b in bins] == [(1, 6, 6), (7, 12, 6)]
    assert [b.spearman for b in bins] == pytest.approx([1, -1])
    assert [b.models for b in spearman_by_size(truth, size, size)] == [3, 3, 3, 3]
    few = spearman_by_size([3, 2, 1, 4, 5], [1, 2, 3, 4, 5], [1, 2, 3, 4, 5])
    assert [b.models for b in few] == [2, 1, 1, 1]
    assert all(math.isnan(b.spearman) for b in few)
    assert len(spearman_by_size([3, 2], [1, 2], [1, 2])) == 2


# Fronts


def naive_distance(perplexity: list[float], latency: list[float], proxy: list[float]) -> float:
    def best(quality: list[float]) -> list[int]:
        every = range(len(latency))
        return [
            i
            for i in every
            if not any(
                latency[j] <= latency[i]
                and quality[j] >= quality[i]
                and (latency[j] < latency[i] or quality[j] > quality[i])
                for j in every
            )
        ]

    true = best([-p for p in perplexity])
    total, chosen = 0.0, best(proxy)
    for i in chosen:
        near = min(true, key=lambda j: (abs(latency[j] - latency[i]), latency[j]))
        total += abs(perplexity[i] - perplexity[near]) / perplexity[near]
    return total / len(chosen)


@pytest.mark.parametrize("seed", range(20))
def test_the_distance_between_fronts_is_the_paper_s(seed: int) -> None:
    rng = np.random.default_rng(seed)
    latency = rng.integers(1, 12, 25).astype(float)
    perplexity = 80 - 4 * latency + rng.normal(0, 6, 25)
    proxy = np.round(latency + rng.normal(0, 2, 25))
    found = front_distance(perplexity, latency, proxy)
    assert found == pytest.approx(
        naive_distance(perplexity.tolist(), latency.tolist(), proxy.tolist())
    )


def test_a_perfect_proxy_finds_the_front_itself() -> None:
    truth, latency = [50.0, 40.0, 45.0, 30.0], [1.0, 2.0, 3.0, 4.0]
    assert front_distance(truth, latency, [-t for t in truth]) == 0
    # the proxy takes the third for better than the second: 45 against 40, the faster neighbour
    assert front_distance(truth, latency, [1, 2, 3, 4]) == pytest.approx((45 - 40) / 40 / 4)


def test_no_front_without_perplexities() -> None:
    with pytest.raises(ConfigError, match="perplexities above 0"):
        front_distance([1, 0, 2], [1, 2, 3], [1, 2, 3])


# All together


def test_a_good_proxy_is_good_in_every_respect() -> None:
    truth, proxy = drawn(80, 1.0)
    good = rank_proxy(truth, proxy, size=proxy, latency=1 + proxy)
    bad = rank_proxy(truth, -proxy, size=proxy, latency=1 + proxy)
    assert good.spearman > 0.95
    assert good.spearman == -bad.spearman
    assert good.interval[0] > 0.9
    assert good.top[1.0] == good.spearman
    assert good.common[1.0] == bad.common[1.0] == 1
    assert all(good.common[share] > bad.common[share] for share in SHARES[:5])
    assert len(good.bins) == 4
    assert all(part.spearman > 0.5 for part in good.bins)
    assert good.distance is not None
    assert bad.distance is not None
    assert good.distance < 0.1
    plain = rank_proxy(truth, proxy)
    assert (plain.bins, plain.distance, plain.models) == ((), None, 80)
    assert rank_proxy(truth, proxy, seed=1).interval != plain.interval


@pytest.mark.parametrize(
    ("truth", "proxy", "message"),
    [
        ([1, 2], [1, 2], "2 models are too few to rank; give 3 or more"),
        ([1, 2, 3], [1, 2], r"as many numbers are needed, got \(3,\), \(2,\)"),
        ([], [], "as many numbers"),
        ([[1, 2, 3]], [[1, 2, 3]], "as many numbers"),
        ([1, 2, math.nan], [1, 2, 3], "nan cannot be ranked"),
        ([1, 2, 3], [1, 2, math.nan], "nan cannot be ranked"),
    ],
)
def test_what_cannot_be_ranked_is_refused(
    truth: list[float], proxy: list[float], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        rank_proxy(truth, proxy)


def test_strange_settings_are_refused() -> None:
    for share in (0, 1.1, math.nan):
        with pytest.raises(ConfigError, match="share must be above 0 and at most 1"):
            common_ratio([1, 2], [1, 2], share)
    with pytest.raises(ConfigError, match="resamples must be at least 1, got 0"):
        bootstrap_interval([1, 2], [1, 2], resamples=0)
    for confidence in (0, 1, 2):
        with pytest.raises(ConfigError, match="confidence is a share between 0 and 1"):
            bootstrap_interval([1, 2], [1, 2], confidence=confidence)


def test_every_pair_of_models_is_seen() -> None:
    """Spearman of three models: all six orders by hand."""
    wanted = {(1, 2, 3): 1.0, (1, 3, 2): 0.5, (2, 1, 3): 0.5, (3, 2, 1): -1.0}
    for order, value in wanted.items():
        assert spearman([1, 2, 3], order) == pytest.approx(value)
    assert all(spearman(pair, pair[::-1]) == -1 for pair in combinations(range(5), 2))
