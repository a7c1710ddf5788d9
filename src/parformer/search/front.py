"""Which of many candidates is nothing else better than?

Every row is a candidate, every column an objective, and lower is better throughout. What is
not a number counts as infinitely bad.

>>> front(np.array([[1, 5], [2, 2], [3, 3], [5, 1]])).tolist()
[True, True, False, True]
>>> hypervolume(np.array([[1.0, 5.0], [2.0, 2.0], [5.0, 1.0]]), np.array([6.0, 6.0]))
18.0
"""

# n candidates, k objectives

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


def front(values: ArrayLike) -> Flags:
    """Which rows no other row dominates: no worse everywhere, better somewhere."""
    nk = as_rows(values)
    kept = np.zeros(len(nk), dtype=bool)
    best, count = np.empty_like(nk), 0
    # in rising order only what came before can dominate a row
    for row in np.lexsort(nk.T[::-1]):
        one, known = nk[row], best[:count]
        no_worse = known[(known <= one).all(axis=1)]
        if not (no_worse < one).any():
            best[count] = one
            count += 1
            kept[row] = True
    return kept


def ranks(values: ArrayLike) -> NDArray[np.int64]:
    """0 for the front, 1 for what is the front without it, and so on (NSGA-II)."""
    nk = as_rows(values)
    found = np.zeros(len(nk), dtype=np.int64)
    left, rank = np.arange(len(nk)), 0
    while len(left):
        best = front(nk[left])
        found[left[best]] = rank
        left, rank = left[~best], rank + 1
    return found


def crowding(values: ArrayLike) -> Floats:
    """How far apart each row's neighbours are, over all objectives; infinite at the ends.

    An objective that is the same for all has no ends.

    >>> crowding([[0, 4], [1, 2], [4, 0]]).tolist()
    [inf, 2.0, inf]
    """
    nk = as_rows(values)
    total = np.zeros(len(nk))
    for column, scaled in zip(nk.T, _scaled(nk).T, strict=True):
        order = np.argsort(column, kind="stable")
        if len(order) and column[order[0]] < column[order[-1]]:
            total[order[1:-1]] += scaled[order[2:]] - scaled[order[:-2]]
            total[order[[0, -1]]] = np.inf
    return total


def thin(values: ArrayLike, most: int, first: Sequence[int] = ()) -> list[int]:
    """At most so many rows, spread as evenly as can be: `first` and the best of each objective,
    then always the row that is farthest from all that were taken.

    >>> thin([[0, 10], [1, 9], [5, 5], [9, 1], [10, 0]], 3)
    [0, 2, 4]
    """
    nk = as_rows(values)
    if len(nk) <= most:
        return list(range(len(nk)))
    scaled = _scaled(nk)
    wanted = iter(dict.fromkeys([*first, *map(int, nk.argmin(axis=0))]))
    taken: list[int] = []
    away = np.full(len(nk), np.inf)
    while len(taken) < most:
        row = next(wanted, int(away.argmax()))
        taken.append(row)
        away = np.minimum(away, np.linalg.norm(scaled - scaled[row], axis=1))
        away[row] = -1.0  # among equal rows too, none is taken twice
    return sorted(taken)


def hypervolume(values: ArrayLike, reference: ArrayLike) -> float:
    """How much of the space up to the reference point the rows dominate, exactly."""
    corner = np.atleast_1d(np.asarray(reference, dtype=np.float64))
    nk = as_rows(values)
    return _volume(nk[(nk < corner).all(axis=1)], corner)


def _volume(nk: Floats, corner: Floats) -> float:
    """Slices along the last objective, from the best up; what is worse than a slice joins later."""
    if not len(nk):
        return 0.0
    if nk.shape[1] == 1:
        return float(corner[0] - nk[:, 0].min())
    if nk.shape[1] == 2:
        return _area(nk, corner)
    nk = nk[front(nk)]
    nk = nk[np.argsort(nk[:, -1], kind="stable")]
    heights = np.diff(np.append(nk[:, -1], corner[-1]))
    return float(
        sum(
            height * _volume(nk[:count, :-1], corner[:-1])
            for count, height in enumerate(heights, start=1)
            if height > 0
        )
    )


def _area(nk: Floats, corner: Floats) -> float:
    nk = nk[np.argsort(nk[:, 0], kind="stable")]
    lowest = np.minimum.accumulate(nk[:, 1])
    widths = np.diff(np.append(nk[:, 0], corner[0]))
    return float((widths * (corner[1] - lowest)).sum())


def _scaled(nk: Floats) -> Floats:
    """Every objective from 0 to 1; what is infinite stands at one of the ends."""
    finite = np.isfinite(nk)
    low = nk.min(axis=0, where=finite, initial=np.inf)
    high = nk.max(axis=0, where=finite, initial=-np.inf)
    low, high = np.where(low > high, 0.0, low), np.where(low > high, 0.0, high)
    return (np.clip(nk, low, high) - low) / np.where(high > low, high - low, 1.0)


def as_rows(values: ArrayLike | Sequence[Sequence[float]]) -> Floats:
    rows = np.asarray(values, dtype=np.float64)
    rows = rows[:, None] if rows.ndim == 1 else rows
    return np.where(np.isnan(rows), np.inf, rows)
