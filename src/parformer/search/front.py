"""Which of many candidates is nothing else better than?

Every row is a candidate, every column an objective, and lower is better throughout.

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

    >>> crowding([[0, 4], [1, 2], [4, 0]]).tolist()
    [inf, 2.0, inf]
    """
    nk = as_rows(values)
    total = np.zeros(len(nk))
    for column in nk.T:
        order = np.argsort(column, kind="stable")
        span = column[order[-1]] - column[order[0]] if len(order) else 0.0
        total[order[:1]] = total[order[-1:]] = np.inf
        if span > 0:
            total[order[1:-1]] += (column[order[2:]] - column[order[:-2]]) / span
    return total


def thin(values: ArrayLike, most: int) -> list[int]:
    """At most so many rows, spread as evenly as can be: the best of each objective first,
    then always the row that is farthest from all that were taken.

    >>> thin([[0, 10], [1, 9], [5, 5], [9, 1], [10, 0]], 3)
    [0, 2, 4]
    """
    nk = as_rows(values)
    if len(nk) <= most:
        return list(range(len(nk)))
    low, high = nk.min(axis=0), nk.max(axis=0)
    scaled = (nk - low) / np.where(high > low, high - low, 1.0)
    taken = list(dict.fromkeys(int(column.argmin()) for column in scaled.T))[:most]
    away = np.min([np.linalg.norm(scaled - scaled[i], axis=1) for i in taken], axis=0)
    while len(taken) < most:
        farthest = int(away.argmax())
        taken.append(farthest)
        away = np.minimum(away, np.linalg.norm(scaled - scaled[farthest], axis=1))
    return sorted(taken)


def hypervolume(values: ArrayLike, reference: ArrayLike) -> float:
    """How much of the space up to the reference point the rows dominate, exactly."""
    corner = np.asarray(reference, dtype=np.float64)
    nk = as_rows(values)
    nk = nk[(nk < corner).all(axis=1)]
    return _volume(nk[front(nk)], corner) if len(nk) else 0.0


def _volume(nk: Floats, corner: Floats) -> float:
    """Slices along the last objective, from the best up; what is worse than a slice joins later."""
    if nk.shape[1] == 1:
        return float(corner[0] - nk[:, 0].min())
    if nk.shape[1] == 2:
        return _area(nk, corner)
    nk = nk[np.argsort(nk[:, -1], kind="stable")]
    edges = np.append(nk[:, -1], corner[-1])
    total = 0.0
    for count in range(1, len(nk) + 1):
        height = edges[count] - edges[count - 1]
        if height > 0:
            flat = nk[:count, :-1]
            total += height * _volume(flat[front(flat)], corner[:-1])
    return float(total)


def _area(nk: Floats, corner: Floats) -> float:
    nk = nk[np.lexsort((nk[:, 1], nk[:, 0]))]
    lowest = np.minimum.accumulate(nk[:, 1])
    widths = np.diff(np.append(nk[:, 0], corner[0]))
    return float((widths * (corner[1] - lowest)).sum())


def as_rows(values: ArrayLike | Sequence[Sequence[float]]) -> Floats:
    rows = np.asarray(values, dtype=np.float64)
    return rows.reshape(len(rows), -1) if rows.ndim != 2 else rows
