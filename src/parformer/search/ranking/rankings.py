"""How well does a cheap score rank trained models?

Perplexity is the truth, and lower is better; a proxy is a score, and higher is better. A good
proxy has a correlation near 1 all the same: signs are taken care of here, once.

>>> perplexity, proxy = [30.0, 25.0, 22.0, 21.0], [1e6, 3e6, 2e6, 9e6]
>>> found = rank_proxy(perplexity, proxy)
>>> round(found.spearman, 2), found.common[0.5]
(0.8, 0.5)
"""

# n models, r resamples, g groups of equal values

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from parformer.errors import ConfigError
from parformer.records import Json
from parformer.search.front import front

Floats = NDArray[np.float64]

SHARES = tuple(tenth / 10 for tenth in range(1, 11))
"""The best tenth of the models, the best two tenths, and so on (Figure 6 of the paper)."""
BINS = 4
"""Ranges of model size (Figure 12)."""
FEWEST = 3
"""Models below which no correlation means anything."""
RESAMPLES = 1000
AT_ONCE = 4_000_000
"""Numbers of a bootstrap that are in memory at once."""


@dataclass(frozen=True, slots=True)
class Bin:
    """Models of about one size, and how they are ranked among themselves."""

    low: float
    high: float
    models: int
    spearman: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranking:
    """What a proxy is good for; nan where too few or equal models say nothing."""

    models: int
    spearman: float
    interval: tuple[float, float]
    """Where the correlation lies with 95% confidence."""
    top: Mapping[float, float]
    """By share: the correlation among the truly best models alone."""
    common: Mapping[float, float]
    """By share: how many of the truly best are among the proxy's best."""
    bins: tuple[Bin, ...]
    """By size, where sizes were given; small models first."""
    distance: float | None
    """How far, as a share of perplexity, the proxy's front is from the true one."""
    flops: float | None = None
    """What the score takes for one model on average; None where nobody knows."""

    def to_dict(self) -> Json:
        """Ready for JSON, which knows no nan."""
        return {
            "models": self.models,
            "spearman": _known(self.spearman),
            "interval": [_known(value) for value in self.interval],
            "top": {f"{share:g}": _known(value) for share, value in self.top.items()},
            "common": {f"{share:g}": _known(value) for share, value in self.common.items()},
            "bins": [{**asdict(part), "spearman": _known(part.spearman)} for part in self.bins],
            "front_distance": self.distance,
            "flops": self.flops,
        }


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def rank_proxy(
    perplexity: ArrayLike,
    proxy: ArrayLike,
    *,
    size: ArrayLike | None = None,
    latency: ArrayLike | None = None,
    seed: int = 0,
) -> Ranking:
    """Everything at once, for models that were all trained alike."""
    truth_n, proxy_n = paired(perplexity, proxy)
    if len(truth_n) < FEWEST:
        raise ConfigError(f"{len(truth_n)} models are too few to rank; give {FEWEST} or more")
    return Ranking(
        models=len(truth_n),
        spearman=spearman(-truth_n, proxy_n),
        interval=bootstrap_interval(-truth_n, proxy_n, seed=seed),
        top={share: top_spearman(truth_n, proxy_n, share) for share in SHARES},
        common={share: common_ratio(truth_n, proxy_n, share) for share in SHARES},
        bins=() if size is None else spearman_by_size(truth_n, proxy_n, size),
        distance=None if latency is None else front_distance(truth_n, latency, proxy_n),
    )


def spearman(a: ArrayLike, b: ArrayLike) -> float:
    """The correlation of two rankings, equal values sharing a rank; nan without any variety.

    >>> spearman([1, 2, 3], [10, 40, 90])
    1.0
    """
    a_n, b_n = paired(a, b)
    once_1n = np.ones((1, len(a_n)))
    return float(_weighted_spearman(a_n, b_n, once_1n)[0])


def bootstrap_interval(
    a: ArrayLike,
    b: ArrayLike,
    *,
    resamples: int = RESAMPLES,
    confidence: float = 0.95,
    seed: int = 0,
) -> tuple[float, float]:
    """Where the rank correlation lies, had other models been drawn: the percentile bootstrap."""
    if resamples < 1:
        raise ConfigError(f"resamples must be at least 1, got {resamples}")
    if not 0 < confidence < 1:
        raise ConfigError(f"confidence is a share between 0 and 1, got {confidence:g}")
    a_n, b_n = paired(a, b)
    rng, count = np.random.default_rng(seed), len(a_n)
    each = max(1, AT_ONCE // count)
    found = []
    for start in range(0, resamples, each):
        # how often each model was drawn is all that its resample says
        shape = min(each, resamples - start)
        times_rn = rng.multinomial(count, np.full(count, 1 / count), size=shape)
        found.append(_weighted_spearman(a_n, b_n, times_rn.astype(np.float64)))
    known = np.concatenate(found)
    known = known[~np.isnan(known)]
    if not len(known):
        return math.nan, math.nan
    low, high = np.quantile(known, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def top_spearman(truth: ArrayLike, proxy: ArrayLike, share: float) -> float:
    """The rank correlation among the truly best models; nan with fewer than three of them."""
    truth_n, proxy_n = paired(truth, proxy)
    best = np.argsort(truth_n, kind="stable")[: top_count(len(truth_n), share)]
    if len(best) < FEWEST:
        return math.nan
    return spearman(-truth_n[best], proxy_n[best])


def common_ratio(truth: ArrayLike, proxy: ArrayLike, share: float) -> float:
    """How many of the truly best models are among the proxy's best, as a share.

    Lower is better in `truth`, higher in `proxy`. Models that are equal where the line is drawn
    count in part, so their order in the table does not matter.

    >>> common_ratio([1, 2, 3, 4], [9, 1, 8, 2], 0.5)
    0.5
    """
    truth_n, proxy_n = paired(truth, proxy)
    count = top_count(len(truth_n), share)
    both_n = np.minimum(_membership(-truth_n, count), _membership(proxy_n, count))
    return float(both_n.sum() / count)


def spearman_by_size(
    truth: ArrayLike, proxy: ArrayLike, size: ArrayLike, bins: int = BINS
) -> tuple[Bin, ...]:
    """The rank correlation within ranges of size that have equally many models each."""
    truth_n, proxy_n = paired(truth, proxy)
    _, size_n = paired(truth, size)
    found = []
    for some in np.array_split(np.argsort(size_n, kind="stable"), bins):
        if len(some):
            known = len(some) >= FEWEST
            value = spearman(-truth_n[some], proxy_n[some]) if known else math.nan
            low, high = float(size_n[some[0]]), float(size_n[some[-1]])
            found.append(Bin(low, high, len(some), value))
    return tuple(found)


def front_distance(perplexity: ArrayLike, latency: ArrayLike, proxy: ArrayLike) -> float:
    """How much worse the models are that the proxy takes for the Pareto front: d_avg.

    The mean over them of |p − p*| / p*, where p* is the perplexity of the model nearest in
    latency on the true front (Appendix C of the paper). Of two equally near the faster one.
    """
    truth_n, proxy_n = paired(perplexity, proxy)
    _, latency_n = paired(perplexity, latency)
    if not len(truth_n) or truth_n.min() <= 0:
        raise ConfigError("a distance between fronts needs models with perplexities above 0")
    true = np.flatnonzero(front(np.column_stack((latency_n, truth_n))))
    true = true[np.argsort(latency_n[true], kind="stable")]
    chosen = np.flatnonzero(front(np.column_stack((latency_n, -proxy_n))))
    apart = np.abs(latency_n[chosen][:, None] - latency_n[true][None])
    nearest_n = truth_n[true[apart.argmin(axis=1)]]
    return float(np.mean(np.abs(truth_n[chosen] - nearest_n) / nearest_n))


def top_count(models: int, share: float) -> int:
    """Models in the best share, one at least.

    >>> top_count(200, 0.1), top_count(15, 0.1), top_count(3, 0.1)
    (20, 2, 1)
    """
    if not 0 < share <= 1:
        raise ConfigError(f"share must be above 0 and at most 1, got {share:g}")
    return math.ceil(models * share - 1e-9)  # 0.3 · 10 is a little more than 3


def paired(a: ArrayLike, b: ArrayLike) -> tuple[Floats, Floats]:
    """Two rows of as many numbers, none of them nan."""
    a_n, b_n = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if a_n.ndim != 1 or a_n.shape != b_n.shape or not len(a_n):
        raise ConfigError(f"two rows of as many numbers are needed, got {a_n.shape}, {b_n.shape}")
    if np.isnan(a_n).any() or np.isnan(b_n).any():
        raise ConfigError("nan cannot be ranked; leave that model out")
    return a_n, b_n


def _weighted_spearman(a_n: Floats, b_n: Floats, times_rn: Floats) -> Floats:
    """Of samples in which each model occurs so many times."""
    ranks_a_rn, ranks_b_rn = _weighted_ranks(a_n, times_rn), _weighted_ranks(b_n, times_rn)
    total_r1 = times_rn.sum(axis=1, keepdims=True)
    middle_r1 = (total_r1 + 1) / 2  # the mean rank, ties or not
    ranks_a_rn -= middle_r1
    ranks_b_rn -= middle_r1
    both_r = (times_rn * ranks_a_rn * ranks_b_rn).sum(axis=1)
    spread_r = (times_rn * ranks_a_rn**2).sum(axis=1) * (times_rn * ranks_b_rn**2).sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        found_r: Floats = np.clip(both_r / np.sqrt(spread_r), -1, 1)
    return found_r


def _weighted_ranks(values_n: Floats, times_rn: Floats) -> Floats:
    """Ranks from 1 in each sample; what is equal shares the mean of its ranks."""
    _, group_n = np.unique(values_n, return_inverse=True)
    order = np.argsort(group_n, kind="stable")
    starts_g = np.flatnonzero(np.diff(group_n[order], prepend=-1))
    members_rg = np.add.reduceat(times_rn[:, order], starts_g, axis=1)
    ranks_rg = np.cumsum(members_rg, axis=1) - (members_rg - 1) / 2
    ranks: Floats = ranks_rg[:, group_n]
    return ranks


def _membership(values_n: Floats, count: int) -> Floats:
    """1 for the `count` highest, 0 for the others, and a part for those that share the last place.

    The parts add up to `count`.
    """
    line = np.sort(values_n)[-count]
    above_n, on_n = values_n > line, values_n == line
    parts_n: Floats = above_n + on_n * ((count - above_n.sum()) / on_n.sum())
    return parts_n
