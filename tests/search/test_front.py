"""Does the front agree with loops that a reader can check by eye?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise, product
from math import inf, isinf, nan, prod, sqrt
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parformer.search.front import crowding, front, hypervolume, ranks, thin

Rows = list[list[float]]


@st.composite
def tables(draw: st.DrawFn) -> Rows:
    """Few rows of small whole numbers, so that ties and equal rows are common."""
    width = draw(st.integers(1, 4))
    row = st.lists(st.integers(0, 4), min_size=width, max_size=width)
    return draw(st.lists(row, max_size=8))


def many_tables(count: int, *, rows: int = 12, top: int = 4) -> Iterator[tuple[Rows, Random]]:
    """The same without a search for the simplest that fails, which takes its time."""
    for number in range(count):
        rng = Random(number)
        width = rng.randint(1, 4)
        yield (
            [[rng.randint(0, top) for _ in range(width)] for _ in range(rng.randint(1, rows))],
            rng,
        )


def dominates(one: list[float], other: list[float]) -> bool:
    no_worse = all(a <= b for a, b in zip(one, other, strict=True))
    return no_worse and any(a < b for a, b in zip(one, other, strict=True))


def naive_front(rows: Rows) -> list[bool]:
    return [not any(dominates(other, row) for other in rows) for row in rows]


def naive_ranks(rows: Rows) -> list[int]:
    """The longest chain of rows, each of which dominates the next, ends with its rank."""
    return [
        max((1 + rank for other, rank in zip(rows, naive_ranks_below(rows, row), strict=True)
             if dominates(other, row)), default=0)
        for row in rows
    ]  # fmt: skip


def naive_ranks_below(rows: Rows, row: list[float]) -> list[int]:
    below = [other for other in rows if dominates(other, row)]
    found = dict(zip(map(tuple, below), naive_ranks(below), strict=True)) if below else {}
    return [found.get(tuple(other), -1) for other in rows]


def naive_crowding(rows: Rows) -> list[float]:
    found = [0.0] * len(rows)
    for k in range(len(rows[0])):
        order = sorted(range(len(rows)), key=lambda i: rows[i][k])
        low, high = rows[order[0]][k], rows[order[-1]][k]
        if low == high:
            continue
        for place, i in enumerate(order):
            if place in (0, len(order) - 1):
                found[i] = inf
            else:
                before, after = rows[order[place - 1]][k], rows[order[place + 1]][k]
                found[i] += (after - before) / (high - low)
    return found


def naive_thin(rows: Rows, most: int, first: list[int]) -> list[int]:
    if len(rows) <= most:
        return [*range(len(rows))]
    columns = list(zip(*rows, strict=True))
    spans = [(max(column) - min(column)) or 1 for column in columns]

    def apart(i: int, j: int) -> float:
        return sqrt(
            sum(((a - b) / s) ** 2 for a, b, s in zip(rows[i], rows[j], spans, strict=True))
        )

    taken: list[int] = []
    for wanted in [*first, *(column.index(min(column)) for column in columns)]:
        if wanted not in taken and len(taken) < most:
            taken.append(wanted)
    while len(taken) < most:
        left = [i for i in range(len(rows)) if i not in taken]
        # a sum of squares may round either way, so near ties go to the earlier row
        distance = {i: round(min((apart(i, j) for j in taken), default=0.0), 9) for i in left}
        taken.append(max(left, key=lambda i: (distance[i], -i)))
    return sorted(taken)


@given(tables())
@settings(max_examples=60)
def test_the_front_is_what_nothing_dominates(rows: Rows) -> None:
    assert front(rows).tolist() == naive_front(rows)


def test_many_fronts_are_what_nothing_dominates() -> None:
    for rows, _ in many_tables(500):
        assert front(rows).tolist() == naive_front(rows)


def test_a_rank_is_the_longest_chain_of_better_rows() -> None:
    for rows, _ in many_tables(200, rows=10):
        assert ranks(rows).tolist() == naive_ranks(rows)


def test_crowding_agrees_with_a_loop() -> None:
    for rows, _ in many_tables(300):
        np.testing.assert_allclose(crowding(rows), naive_crowding(rows))


def test_thinning_agrees_with_a_loop() -> None:
    compared = 0
    for rows, rng in many_tables(500, top=1000):
        most = rng.randint(0, 8)
        first = rng.sample(range(len(rows)), k=rng.randint(0, min(most, len(rows))))
        found = thin(rows, most, first)
        assert len(set(found)) == len(found) == min(most, len(rows))
        assert {*first} <= {*found}
        if distinct_distances(rows):
            compared += 1
            assert found == naive_thin(rows, most, first)
    assert compared > 200


def test_thinning_never_takes_a_row_twice() -> None:
    for rows, rng in many_tables(300, top=2):
        most = rng.randint(0, 12)
        found = thin(rows, most)
        assert found == sorted(set(found))
        assert len(found) == min(most, len(rows))


def distinct_distances(rows: Rows) -> bool:
    """Whether no choice hangs on how a square root was rounded."""
    scaled = np.array(rows, dtype=float)
    scaled = (scaled - scaled.min(axis=0)) / np.maximum(np.ptp(scaled, axis=0), 1)
    apart = sorted(float(np.linalg.norm(a - b)) for a, b in combinations(scaled, 2))
    return all(b - a > 1e-6 for a, b in pairwise(apart))


def count_cells(rows: Rows, corner: Sequence[int]) -> int:
    """Cells of a grid that some row dominates."""
    return sum(
        any(all(a <= b for a, b in zip(row, cell, strict=True)) for row in rows)
        for cell in product(*map(range, corner))
    )


@given(tables(), st.integers(0, 5))
@settings(max_examples=60)
def test_the_hypervolume_of_whole_numbers_is_a_count_of_cells(rows: Rows, top: int) -> None:
    corner = [top] * (len(rows[0]) if rows else 2)
    assert hypervolume(rows, corner) == count_cells(rows, corner)


def test_many_hypervolumes_are_counts_of_cells() -> None:
    for rows, rng in many_tables(150, top=5):
        corner = [rng.randint(1, 6) for _ in rows[0]]
        assert hypervolume(rows, corner) == count_cells(rows, corner)


def test_the_hypervolume_of_any_numbers_is_inclusion_and_exclusion() -> None:
    rng = Random(0)
    for width, count in product(range(1, 5), range(1, 6)):
        rows = [[rng.uniform(-3, 2) for _ in range(width)] for _ in range(count)]
        total = 0.0
        for size in range(1, count + 1):
            for some in combinations(rows, size):
                worst = [max(column) for column in zip(*some, strict=True)]
                total -= (-1) ** size * prod(max(0.0, 1.5 - value) for value in worst)
        assert hypervolume(rows, [1.5] * width) == pytest.approx(total)


def test_the_order_of_rows_does_not_matter() -> None:
    for rows, rng in many_tables(100):
        order = rng.sample(range(len(rows)), k=len(rows))
        shuffled = [rows[i] for i in order]
        assert front(shuffled).tolist() == front(rows)[order].tolist()
        assert ranks(shuffled).tolist() == ranks(rows)[order].tolist()
        corner = [5] * len(rows[0])
        assert hypervolume(shuffled, corner) == hypervolume(rows, corner)


def test_no_rows_are_no_error() -> None:
    for nothing in ([], np.empty((0, 3))):
        assert front(nothing).tolist() == ranks(nothing).tolist() == []
        assert crowding(nothing).tolist() == thin(nothing, 3) == []
        assert hypervolume(nothing, [1, 1, 1]) == 0.0


def test_a_list_of_numbers_has_one_objective() -> None:
    assert front([3, 1, 2, 1]).tolist() == [False, True, False, True]
    assert ranks([3, 1, 2, 1]).tolist() == [2, 0, 1, 0]
    assert hypervolume([3, 1, 2], 4) == 3.0


def test_equal_rows_stay_together() -> None:
    assert front([[1, 2], [1, 2], [2, 3]]).tolist() == [True, True, False]
    assert thin([[1, 2]] * 5, 3) == [0, 1, 2]
    assert crowding([[1, 2]] * 3).tolist() == [0, 0, 0]


def test_an_objective_that_never_changes_has_no_ends() -> None:
    varied = [[0, 7], [3, 7], [1, 7], [9, 7]]
    assert crowding(varied).tolist() == [inf, pytest.approx(8 / 9), pytest.approx(3 / 9), inf]


def test_what_is_infinite_is_compared_and_what_is_no_number_is_worst() -> None:
    rows = [[inf, 1.0], [nan, 2.0], [0.0, 5.0], [1.0, 4.0], [-inf, 9.0]]
    assert front(rows).tolist() == [True, False, True, True, True]
    assert ranks(rows).tolist() == [0, 1, 0, 0, 0]
    assert crowding(rows).tolist().count(inf) == 3
    assert not any(np.isnan(crowding(rows)))
    assert isinf(hypervolume(rows, [10.0, 10.0]))
    assert hypervolume(rows[:4], [10.0, 10.0]) == hypervolume(rows[2:4], [10.0, 10.0]) == 59.0
    assert thin(rows, 2) == [0, 4]
    for most in range(6):
        assert len(set(thin(rows, most))) == most
    assert thin([[inf, nan]] * 3, 2) == [0, 1]


def test_the_middle_goes_first_when_a_front_is_thinned() -> None:
    line = [[i, 10 - i] for i in range(11)]
    assert thin(line, 3) == [0, 5, 10]
    assert thin(line, 3, first=[3]) == [0, 3, 10]
    assert thin(line, 1, first=[3, 4]) == [3]
    assert thin(line, 0) == thin(line, -1) == []
    assert thin(line, 99) == [*range(11)]
