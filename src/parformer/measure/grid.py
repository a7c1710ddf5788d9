"""What lies between the sizes that were measured?

>>> grid = Grid(axes=((1, 3), (10, 20)), values=(0.0, 1.0, 2.0, 3.0))
>>> grid.at((3, 10)), grid.at((2, 15))
(2.0, 1.5)

Times go through a formula first: a few non-negative weights on what is counted anyway
(FLOPs, parameters) explain nearly all of a time, and only the rest, a factor near one, is
interpolated. So a few nodes are enough, though a time grows with the square of a width.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise, product

import numpy as np
from numpy.typing import ArrayLike, NDArray

from parformer.errors import ConfigError
from parformer.records import Record

Place = tuple[int, ...]
"""A node, as its index on every axis."""

Levels = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Grid(Record):
    """Numbers at the nodes of some axes, and multilinear between them."""

    axes: tuple[tuple[int | float, ...], ...]
    """Rising; an axis of one node is the same everywhere."""
    values: tuple[int | float, ...]
    """The last axis first, as in nested loops."""

    def __post_init__(self) -> None:
        for axis in self.axes:
            if not axis or any(low >= high for low, high in pairwise(axis)):
                raise ConfigError(f"the nodes of an axis must rise, got {list(axis)}")
        if len(self.values) != (needed := math.prod(map(len, self.axes))):
            raise ConfigError(f"a grid of {needed} nodes has {len(self.values)} values")

    @classmethod
    def filled(cls, axes: Sequence[Sequence[float]], known: Mapping[Place, float]) -> Grid:
        """From some of the nodes; the others are like the nearest, the first axes counting most."""
        assert known, "a grid needs at least one value"

        def value(place: Place) -> float:
            far = lambda other: [abs(a - b) for a, b in zip(place, other, strict=True)]  # noqa: E731
            return known[place if place in known else min(known, key=far)]

        return cls(tuple(map(tuple, axes)), tuple(map(value, places(axes))))

    def at(self, point: Sequence[float]) -> float:
        """The value at a point; beyond the outermost nodes it is as at them."""
        assert len(point) == len(self.axes), (point, self.axes)
        low, weights, stride = 0, [], 1
        for axis, size in zip(reversed(self.axes), reversed(point), strict=True):
            cell = min(max(bisect_right(axis, size) - 1, 0), max(len(axis) - 2, 0))
            if len(axis) > 1:
                share = (size - axis[cell]) / (axis[cell + 1] - axis[cell])
                weights.append((stride, min(max(share, 0.0), 1.0)))
            low += cell * stride
            stride *= len(axis)
        total = 0.0
        for corner in product((False, True), repeat=len(weights)):
            index, weight = low, 1.0
            for up, (stride, share) in zip(corner, weights, strict=True):
                index += stride * up
                weight *= share if up else 1 - share
            total += weight * self.values[index] if weight else 0.0
        return total


def places(axes: Sequence[Sequence[float]]) -> list[Place]:
    """All nodes in the order of `Grid.values`."""
    return list(product(*(range(len(axis)) for axis in axes)))


def pick_nodes(values: Sequence[int], most: int) -> tuple[int, ...]:
    """At most so many of the values, both ends among them, each about as many times the last.

    >>> pick_nodes(range(128, 961, 64), 5)
    (128, 192, 384, 576, 960)
    """
    rising = sorted(set(values))
    if len(rising) <= most:
        return tuple(rising)
    assert most >= 2, most
    assert rising[0] > 0, rising
    step = (rising[-1] / rising[0]) ** (1 / (most - 1))
    wanted = [rising[0] * step**i for i in range(most)]
    return tuple(sorted({min(rising, key=lambda v: abs(math.log(v / w))) for w in wanted}))


def fit(
    features: ArrayLike,
    targets: ArrayLike,
    *,
    centre: ArrayLike = 0.0,
    pull: ArrayLike = 0.0,
) -> NDArray[np.float64]:
    """Non-negative weights whose weighted sums come nearest to the targets, relatively.

    Minimises Σ (Σ weight · feature / target − 1)² + Σ pull · (weight − centre)². Every choice
    of weights that stay at nought is tried: of a handful there are few, and the best one that
    is nowhere negative is the answer.

    >>> fit([[1, 10], [1, 20], [1, 40]], [7, 12, 22]).round(6).tolist()
    [2.0, 0.5]
    """
    target = np.asarray(targets, np.float64)
    if target.ndim != 1 or not target.size or not (target > 0).all():
        raise ConfigError(f"only positive numbers can be fitted, got {np.array2string(target)}")
    rows = np.asarray(features, np.float64) / target[:, None]
    count = rows.shape[1]
    centre, pull = (np.broadcast_to(np.asarray(a, np.float64), count) for a in (centre, pull))
    matrix = np.concatenate((rows, np.diag(np.sqrt(pull))))
    wanted = np.concatenate((np.ones(len(rows)), np.sqrt(pull) * centre))
    # columns of one size: FLOPs are a million times the parameters, and both may matter
    scale = np.abs(matrix).max(axis=0)
    matrix = matrix / np.where(scale > 0, scale, 1.0)

    best, least = np.zeros(count), float(wanted @ wanted)
    for some in range(1, count + 1):
        for free in map(list, combinations(range(count), some)):
            weights = np.linalg.lstsq(matrix[:, free], wanted, rcond=None)[0]
            missed = matrix[:, free] @ weights - wanted
            # a little less is rounding: then the simpler explanation stands
            if (weights >= 0).all() and missed @ missed < least * (1 - 1e-9) - 1e-18:
                best, least = np.zeros(count), float(missed @ missed)
                best[free] = weights
    return best / np.where(scale > 0, scale, 1.0)


def settle(times: ArrayLike) -> tuple[Levels, Levels, Levels]:
    """Times of models (rows) in rounds (columns), without what slowed down whole rounds.

    Gives each model's usual time, how uncertain that is, as a share of it, and the factor of
    each round. Rows and columns are swept by medians in turn, so that a stall in one place
    moves neither.

    >>> usual, noise, rounds = settle([[1.0, 2.0, 1.0], [3.0, 6.0, 3.0]])
    >>> usual.round(6).tolist(), rounds.round(6).tolist()
    ([1.0, 3.0], [1.0, 2.0, 1.0])
    """
    logs = np.log(np.asarray(times, np.float64))
    columns = np.zeros(logs.shape[1])
    for _ in range(SWEEPS):
        rows = np.median(logs - columns, axis=1)
        columns = np.median(logs - rows[:, None], axis=0)
        columns -= np.median(columns)
    rows = np.median(logs - columns, axis=1)
    strays = np.median(np.abs(logs - rows[:, None] - columns), axis=1)
    # of normal noise: its spread is 1.48 times the median stray, a median's 1.25 times a mean's
    noise = 1.4826 * 1.2533 * strays / np.sqrt(len(columns))
    return np.exp(rows), noise, np.exp(columns)


SWEEPS = 20
"""Medians in turn settle long before."""


@dataclass(frozen=True, slots=True)
class Surface(Record):
    """A formula, and between the nodes what the formula leaves over.

    Exact at every node that was measured without noise. What noise can explain of the rest is
    taken out of it: then the formula, which knows all nodes, is the better witness.
    """

    weights: tuple[float, ...]
    """Of the features that the formula is made of."""
    rest: Grid
    """Measured over formula."""

    @classmethod
    def through(
        cls,
        axes: Sequence[Sequence[float]],
        known: Mapping[Place, float],
        features: Mapping[Place, Sequence[float]],
        noise: Mapping[Place, float],
    ) -> Surface:
        """Through what is known of some nodes, each with its features and its relative noise."""
        weights = fit([features[place] for place in known], list(known.values()))
        rest = {
            place: math.log(value / float(np.dot(features[place], weights)))
            for place, value in known.items()
        }
        spread = sum(value**2 for value in rest.values())
        doubt = sum(noise[place] ** 2 for place in known)
        kept = max(0.0, 1 - doubt / spread) if spread > 0 else 0.0
        factors = {place: math.exp(kept * value) for place, value in rest.items()}
        return cls(tuple(weights.tolist()), Grid.filled(axes, factors))

    def at(self, point: Sequence[float], features: Sequence[float]) -> float:
        """The value of something with these sizes and these features."""
        formula = sum(w * feature for w, feature in zip(self.weights, features, strict=True))
        return formula * self.rest.at(point)
