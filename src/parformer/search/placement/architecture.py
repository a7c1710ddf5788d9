"""How do architecture parameters become weights, patterns and costs?

Pure functions of arrays: Gumbel noise comes in as an argument, and nothing here knows of
models, files or clocks. Layers may have different numbers of choices: arrays are as wide
as the widest, and an entry that is no choice holds −inf, which no gradient ever moves.

>>> probabilities(torch.tensor([[1.0, 1.0, 1.0, 1.0], [0.0, 0.0, -math.inf, -math.inf]])).tolist()
[[0.25, 0.25, 0.25, 0.25], [0.5, 0.5, 0.0, 0.0]]
"""

# l layer, c choice

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from heapq import nlargest
from itertools import combinations, pairwise
from typing import TypeAlias, TypeVar

import torch
from torch import Tensor

from parformer.errors import ConfigError

Choice: TypeAlias = tuple[int, float, int]
"""Price in whole units, log-probability and number of one of a layer's choices."""

Trail: TypeAlias = "tuple[int, Trail] | None"
"""The picks of some first layers, the last one first."""

Way: TypeAlias = tuple[int, float, Trail]
"""Price in whole units, log-probability and picks of some first layers."""

Scored = TypeVar("Scored", Choice, Way)

MOST_WAYS = 100_000
"""How many ways to go on the search for the best picks compares at each layer."""


def gumbel_noise(shape: tuple[int, int], generator: torch.Generator) -> Tensor:
    """Noise that turns a softmax into draws from it."""
    uniform_lc = torch.rand(shape, generator=generator, dtype=torch.float64)
    # one draw in 2⁵³ is nought, which has no logarithm
    return -(-uniform_lc.clamp(min=2**-54).log()).log()


def mixing_weights(
    theta_lc: Tensor, noise_lc: Tensor, temperature: float, floor: float = 0.0
) -> Tensor:
    """Gumbel-softmax: how much of each choice a layer takes in this step.

    floor: the share of the whole that is dealt out evenly, whatever was drawn, so that every
    choice goes on learning.
    """
    weights_lc = torch.softmax((theta_lc + noise_lc.to(theta_lc)) / temperature, dim=-1)
    if not floor:
        return weights_lc
    real_lc = (theta_lc != -math.inf).to(theta_lc)
    return (1 - floor) * weights_lc + floor * real_lc / real_lc.sum(dim=-1, keepdim=True)


def probabilities(theta_lc: Tensor) -> Tensor:
    """How likely each choice is."""
    return torch.softmax(theta_lc, dim=-1)


def temperature_at(share: float, first: float, final: float) -> float:
    """From first to final by equal factors, when this share of the search is over.

    >>> [temperature_at(share, first=8.0, final=2.0) for share in (0, 0.5, 1)]
    [8.0, 4.0, 2.0]
    """
    return float(first * (final / first) ** min(max(share, 0.0), 1.0))


def expected_cost(probabilities_lc: Tensor, prices_lc: Tensor, fixed: float) -> Tensor:
    """What a drawn architecture costs on average, the fixed parts included."""
    return (probabilities_lc * prices_lc.to(probabilities_lc)).sum() + fixed


def steer(penalty: float, relative_cost: float, limit: float, rate: float) -> float:
    """Dual ascent: a higher penalty while the cost is above its limit, a lower one below it."""
    return max(0.0, penalty + rate * (relative_cost - limit))


def agreement(found: Sequence[Sequence[int]]) -> float | None:
    """How alike several searches' picks are: the share of layers, averaged over all pairs.

    >>> agreement([[0, 1, 2, 2], [0, 1, 1, 2]])
    0.75
    """
    alike = [
        sum(x == y for x, y in zip(a, b, strict=True)) / len(a) for a, b in combinations(found, 2)
    ]
    return sum(alike) / len(alike) if alike else None


def best_picks(
    log_probabilities: Sequence[Sequence[float]],
    prices: Sequence[Sequence[float]],
    limit: float = math.inf,
) -> list[int]:
    """The most probable architecture whose prices add up to the limit at most.

    Exact, and prices are summed without rounding; only where more than `MOST_WAYS` stay open,
    as with many choices that are as probable as they are dear, the least promising are given
    up. Of two architectures equally probable the cheaper one is taken. Choices of
    log-probability −inf are none.

    >>> best_picks([[-0.1, -2.0], [-0.2, -1.0]], prices=[[3, 1], [3, 1]], limit=4)
    [0, 1]
    """
    # every float is a whole number of some tiny unit, and whole numbers add up exactly
    unit = max(price.as_integer_ratio()[1] for row in prices for price in row)
    rows = [
        _worthwhile(row, [_units(price, unit) for price in price_row])
        for row, price_row in zip(log_probabilities, prices, strict=True)
    ]
    least = sum(row[0][0] for row in rows)
    # from here on, prices are what a choice costs more than its layer's cheapest
    rows = [[(price - row[0][0], gain, pick) for price, gain, pick in row] for row in rows]
    likeliest = [row[-1] for row in rows]
    if limit == math.inf or _price(likeliest) <= _units(limit, unit) - least:
        return [pick for _, _, pick in likeliest]
    if (room := _units(limit, unit) - least) < 0:
        raise ConfigError(
            f"no picks cost {limit:g} or less, the cheapest cost {least / unit:g}; raise the limit"
        )
    return _knapsack(rows, room)


def _knapsack(rows: Sequence[Sequence[Choice]], room: int) -> list[int]:
    """The picks of the best score, one in each row, whose prices fit into the room."""
    exchange, reached = _exchange_rate(rows, room)
    reached -= 1e-9  # rounding must not rule out the best
    most = MOST_WAYS // max(map(len, rows))
    hope = math.fsum(_worth(row, exchange) for row in rows)
    # front: the ways through the layers so far that no other beats in both price and score
    front: list[Way] = [(0, 0.0, None)]
    for row in rows:
        hope -= _worth(row, exchange)
        ways: list[Way] = [
            (price + more, score + gain, (pick, trail))
            for more, gain, pick in row
            for price, score, trail in front
            if price + more <= room
            # the room left buys no more than the exchange rate says
            and score + gain + hope + (room - price - more) * exchange >= reached
        ]
        ways.sort(key=lambda way: (way[0], -way[1]))
        front = _unbeaten(ways)
        if len(front) > most:
            front = sorted(nlargest(most, front, key=lambda way: way[1] - way[0] * exchange))
    return _picks(front[-1][2])


def _unbeaten(choices: Iterable[Scored]) -> list[Scored]:
    """Those that score more than all before them, which cost less."""
    kept: list[Scored] = []
    for choice in choices:
        if choice[1] > (kept[-1][1] if kept else -math.inf):
            kept.append(choice)
    return kept


def _worthwhile(row: Sequence[float], prices: Sequence[int]) -> list[Choice]:
    """A layer's choices, cheapest first, without those that cost more for no more probability."""
    assert all(gain == -math.inf for gain in row[len(prices) :]), "a choice without a price"
    choices = [(price, row[pick], pick) for pick, price in enumerate(prices)]
    kept = _unbeaten(sorted(choices, key=lambda choice: (choice[0], -choice[1])))
    assert kept, "a layer without choices"
    return kept


def _exchange_rate(rows: Sequence[Sequence[Choice]], room: int) -> tuple[float, float]:
    """What price is worth in log-probability, and a score that is known to fit.

    At this rate the layers, each for itself, choose about as much as there is room for
    (Lagrange's multiplier), which bounds what any way to go on can still gain.
    """

    def chosen(exchange: float) -> list[Choice]:
        return [max(row, key=lambda choice: choice[1] - choice[0] * exchange) for row in rows]

    # at the steepest rise of all, every layer is content with its cheapest choice
    low, high = 0.0, max((b[1] - a[1]) / (b[0] - a[0]) for row in rows for a, b in pairwise(row))
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _price(chosen(middle)) > room else (low, middle)
    fitting = chosen(high) if _price(chosen(high)) <= room else [row[0] for row in rows]
    return high, math.fsum(gain for _, gain, _ in fitting)


def _worth(row: Sequence[Choice], exchange: float) -> float:
    return max(gain - price * exchange for price, gain, _ in row)


def _price(choices: Iterable[Choice]) -> int:
    return sum(price for price, _, _ in choices)


def _units(price: float, unit: int) -> int:
    """How many whole units that is."""
    numerator, denominator = price.as_integer_ratio()
    return numerator * unit // denominator


def _picks(trail: Trail) -> list[int]:
    picks = []
    while trail is not None:
        pick, trail = trail
        picks.append(pick)
    return picks[::-1]
