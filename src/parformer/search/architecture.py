"""How do architecture parameters become weights, patterns and costs?

Pure functions of arrays: Gumbel noise comes in as an argument, and nothing here knows of
models, files or clocks. Layers may have different numbers of choices: arrays are as wide
as the widest, and an entry that is no choice holds −inf, which no gradient ever moves.

>>> theta_lc = masked(torch.zeros(2, 3), widths=[3, 2])
>>> probabilities(theta_lc).sum(dim=1).tolist(), probabilities(theta_lc)[1].tolist()
([1.0, 1.0], [0.5, 0.5, 0.0])
"""

# l layer, c choice

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import TypeAlias

import torch
from torch import Tensor

from parformer.errors import ConfigError

Choice: TypeAlias = tuple[float, float, int]
"""Price, log-probability and number of one of a layer's choices."""

Trail: TypeAlias = "tuple[int, Trail] | None"
"""The picks of some first layers, the last one first."""

Way: TypeAlias = tuple[int, float, Trail]
"""Price in whole units, log-probability and picks of some first layers."""

MOST_WAYS = 100_000
"""How many ways to go on the search for the best picks compares at each layer."""


def masked(theta_lc: Tensor, widths: Sequence[int]) -> Tensor:
    """The parameters with −inf where a layer has no such choice.

    A trained tensor should itself hold only finite numbers and pass through here: weight
    decay or a norm would turn an infinite one into NaN.
    """
    places_c = torch.arange(theta_lc.shape[1], device=theta_lc.device)
    widths_l = torch.tensor(widths, device=theta_lc.device)
    return theta_lc.masked_fill(places_c >= widths_l[:, None], -math.inf)


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
    as for dozens of choices as probable as they are dear, the smallest differences in
    probability are passed over. Of two architectures equally probable the cheaper one is taken. Choices of
    log-probability −inf are none.

    >>> best_picks([[-0.1, -2.0], [-0.2, -1.0]], prices=[[3, 1], [3, 1]], limit=4)
    [0, 1]
    """
    rows = [_worthwhile(row, price) for row, price in zip(log_probabilities, prices, strict=True)]
    likeliest = [row[-1] for row in rows]
    if limit == math.inf:
        return [pick for _, _, pick in likeliest]
    # every float is a whole number of some tiny unit, and whole numbers add up exactly
    unit = max(price.as_integer_ratio()[1] for row in rows for price, _, _ in row)
    room = _units(limit, unit)
    if sum(_units(price, unit) for price, _, _ in likeliest) <= room:
        return [pick for _, _, pick in likeliest]
    cheapest = [_units(row[0][0], unit) for row in rows]
    if sum(cheapest) > room:
        raise ConfigError(
            f"no picks cost {limit:g} or less, the cheapest cost {sum(cheapest) / unit:g}; "
            "raise the limit"
        )
    exchange, reached = _exchange_rate(rows, limit)

    # front: the ways through the layers so far that no other beats in both price and score
    front: list[Way] = [(0, 0.0, None)]
    most = MOST_WAYS // max(map(len, rows))
    needed, slack = sum(cheapest), 1e-9  # rounding must not rule out the best
    hope = math.fsum(_worth(row, exchange) for row in rows)
    for row, least in zip(rows, cheapest, strict=True):
        needed -= least
        hope -= _worth(row, exchange)
        steps = [(_units(price, unit), gain, pick) for price, gain, pick in row]
        ways: list[Way] = [
            (cost + price, score + gain, (pick, trail))
            for price, gain, pick in steps
            for cost, score, trail in front
            if cost + price + needed <= room
            # what is left to spend buys no more than the exchange rate says
            and score + gain + hope + exchange * ((room - cost - price) / unit) > reached - slack
        ]
        ways.sort(key=lambda way: (way[0], -way[1]))
        front = _thinned(ways)
        if len(front) > most:
            grain = (front[-1][1] - front[0][1]) / most
            slack += grain
            front = _thinned(front, grain)
    return _picks(front[-1][2])


def _thinned(ways: Iterable[Way], grain: float = 0.0) -> list[Way]:
    """Of ways by rising price, those that score more than a grain above what is cheaper."""
    kept: list[Way] = []
    for way in ways:
        if not kept or way[1] > kept[-1][1] + grain:
            kept.append(way)
    return kept


def _worthwhile(row: Sequence[float], prices: Sequence[float]) -> list[Choice]:
    """A layer's choices, cheapest first, without those that cost more for no more probability."""
    assert all(gain == -math.inf for gain in row[len(prices) :]), "a choice without a price"
    choices = sorted(
        ((price, gain, pick) for pick, (price, gain) in enumerate(zip(prices, row, strict=False))),
        key=lambda choice: (choice[0], -choice[1]),
    )
    kept: list[Choice] = []
    for choice in choices:
        if choice[1] > (kept[-1][1] if kept else -math.inf):
            kept.append(choice)
    assert kept, "a layer without choices"
    return kept


def _exchange_rate(rows: Sequence[Sequence[Choice]], limit: float) -> tuple[float, float]:
    """What a unit of price is worth in log-probability, and a score that is within the limit.

    At this rate the layers, each for itself, choose about as much as the limit allows
    (Lagrange's multiplier); it bounds what any way to go on can still gain.
    """
    low, high = 0.0, 1.0
    while _spent(rows, high) > limit and high < 1e300:
        high *= 4
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if _spent(rows, middle) > limit else (low, middle)
    score = math.fsum(_chosen(row, high)[1] for row in rows)
    return high, score


def _chosen(row: Sequence[Choice], exchange: float) -> Choice:
    return max(row, key=lambda choice: choice[1] - exchange * choice[0])


def _worth(row: Sequence[Choice], exchange: float) -> float:
    return max(gain - exchange * price for price, gain, _ in row)


def _spent(rows: Sequence[Sequence[Choice]], exchange: float) -> float:
    return math.fsum(_chosen(row, exchange)[0] for row in rows)


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
