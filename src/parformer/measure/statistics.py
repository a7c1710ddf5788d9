"""Is one faster than the other, or is that the noise?

>>> compare([1.10, 1.12, 1.09, 1.11] * 5, [1.00, 1.01, 1.00, 1.02] * 5).verdict
'slower'
>>> compare([1.00, 1.02, 0.99, 1.01] * 5, [1.01, 1.00, 1.01, 0.99] * 5).verdict
'tie'

Timings drift, come in bursts and depend on the ones before them, so no formula that
counts on independent or normal noise can be trusted. What can be trusted is the lot:
every round times every candidate once, in an order drawn anew. Were two candidates
equally fast, it would be a fair coin, tossed afresh each round, which of them met the
slower moment, whatever the machine was doing. The number of rounds that a wins is then
binomial, exactly, and the order statistics of the per-round ratios a/b enclose their
median with a known probability. Nothing else is assumed.

Two safeguards on top. The intervals that decide are 99% ones, because verdicts come in
crowds. And a difference is named only when its whole interval lies beyond the smallest
difference worth naming (1%): copies of one model may well differ by that much, because
their weights lie elsewhere in memory. Where they differ by more, `latency.Remade` lets
them draw their place anew in every round, like the order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from parformer.errors import ConfigError
from parformer.records import Record

Verdict = Literal["faster", "slower", "tie"]

CONFIDENCE = 0.99
"""How sure a verdict must be that it is not the noise."""

SMALLEST = 0.01
"""The smallest relative difference worth naming."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference(Record):
    """How a compares with b, from times taken in the same rounds."""

    ratio: float
    """The median over the rounds of a/b; below 1, a takes less time."""

    low: float
    high: float
    """Where the median ratio lies, with the confidence below."""

    verdict: Verdict
    """Of a: "faster" or "slower" than b, or a "tie"."""

    rounds: int
    confidence: float
    smallest: float

    def __str__(self) -> str:
        return f"{self.verdict}, ×{self.ratio:.3f} ({self.low:.3f} to {self.high:.3f})"


def median_interval(samples: ArrayLike, confidence: float = 0.95) -> tuple[float, float]:
    """Two of the samples that enclose the median of whatever they were drawn from.

    Fewer samples than `rounds_needed(confidence)` cannot promise that much; their whole
    range is the most that they can say.

    >>> median_interval([3, 1, 2, 5, 4, 7, 6, 9, 8])
    (2.0, 8.0)
    """
    ordered = np.sort(_checked(samples))
    rank = max(_rank(len(ordered), confidence), 1)
    return float(ordered[rank - 1]), float(ordered[-rank])


def rounds_needed(confidence: float = CONFIDENCE) -> int:
    """The fewest rounds from which anything can be told with this confidence.

    >>> rounds_needed(0.95), rounds_needed(0.99)
    (6, 8)
    """
    rounds = 1
    while _rank(rounds, confidence) == 0:
        rounds += 1
    return rounds


def compare(
    a: ArrayLike, b: ArrayLike, *, confidence: float = CONFIDENCE, smallest: float = SMALLEST
) -> Difference:
    """Is a faster than b? One time of each per round; too few rounds are always a tie."""
    if smallest < 0:
        raise ConfigError(f"the smallest difference cannot be negative, got {smallest}")
    log_ratios = np.log(_times(a, "a")) - np.log(_times(b, "b", like=a))
    low, high = median_interval(log_ratios, confidence)

    margin = math.log1p(smallest)
    verdict: Verdict = "tie"
    if _rank(len(log_ratios), confidence) > 0:
        if high < -margin:
            verdict = "faster"
        elif low > margin:
            verdict = "slower"
    return Difference(
        ratio=math.exp(np.median(log_ratios)),
        low=math.exp(low),
        high=math.exp(high),
        verdict=verdict,
        rounds=len(log_ratios),
        confidence=confidence,
        smallest=smallest,
    )


def ties(
    many: Mapping[str, Sequence[float]],
    *,
    confidence: float = CONFIDENCE,
    smallest: float = SMALLEST,
) -> tuple[str, ...]:
    """The best candidate by its median, and all that cannot be told from it, best first.

    The confidence is that of the whole answer: each of n candidates has n - 1 rivals that
    luck could put ahead of it, so a single comparison is held to 1/(n - 1) of the doubt.

    >>> steady = [1.00, 1.01, 1.02, 1.00, 1.01, 1.02] * 3
    >>> ties({"slow": [2 * t for t in steady], "one": steady, "other": steady[::-1]})
    ('one', 'other')
    """
    if not many:
        raise ConfigError("there is no best of no candidates; give at least one")
    ranked = sorted(many, key=lambda name: float(np.median(_times(many[name], name))))
    best = many[ranked[0]]
    strict = 1 - (1 - confidence) / max(len(many) - 1, 1)
    return tuple(
        name
        for name in ranked
        if compare(many[name], best, confidence=strict, smallest=smallest).verdict != "slower"
    )


@lru_cache(maxsize=1024)
def _rank(count: int, confidence: float) -> int:
    """The greatest k for which the kth smallest and kth largest of the samples enclose
    the median with this confidence; 0 if even the smallest and largest do not.

    The kth smallest lies above the median when fewer than k samples fall below it: fewer
    than k heads in `count` tosses of a fair coin.
    """
    if not 0 < confidence < 1:
        raise ConfigError(f"confidence must lie between 0 and 1, got {confidence}")
    rank, outcomes = 0, 1
    # 1e-12: 1 - 0.95 is not quite 0.05, and a promise met exactly is met
    while 2 * outcomes / 2**count <= 1 - confidence + 1e-12:
        rank += 1
        outcomes += math.comb(count, rank)
    return rank


def _checked(samples: ArrayLike) -> NDArray[np.float64]:
    values = np.asarray(samples, dtype=np.float64)
    if values.ndim != 1 or values.size == 0 or not np.isfinite(values).all():
        raise ConfigError(
            f"samples must be a non-empty row of finite numbers, got {np.array2string(values)}"
        )
    return values


def _times(samples: ArrayLike, name: str, *, like: ArrayLike | None = None) -> NDArray[np.float64]:
    times = _checked(samples)
    if times.min() <= 0:
        raise ConfigError(
            f"a time must be positive, got {times.min()} in {name!r}; time more calls per sample"
        )
    if like is not None and len(times) != (rounds := len(np.asarray(like))):
        raise ConfigError(
            f"{name!r} has {len(times)} rounds and its partner {rounds}; "
            f"only times taken in the same rounds can be compared"
        )
    return times
