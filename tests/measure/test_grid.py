from __future__ import annotations

import math
from itertools import product
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parformer.errors import ConfigError
from parformer.measure.grid import Grid, Surface, fit, pick_nodes, places, settle


def naive(axes: list[list[float]], table: object, point: list[float]) -> float:
    """Linear between two slices of the first axis, each of them found the same way."""
    if not axes:
        assert isinstance(table, float)
        return table
    assert isinstance(table, list)
    (axis, *others), (size, *rest) = axes, point
    slices = [naive(others, each, rest) for each in table]
    return float(np.interp(size, axis, slices))


@given(st.integers(0, 10**6), st.integers(1, 3))
def test_a_grid_is_linear_in_every_direction(seed: int, count: int) -> None:
    rng = Random(seed)
    axes = [sorted(rng.sample(range(1, 50), rng.randint(1, 4))) for _ in range(count)]
    shape = tuple(map(len, axes))
    table = np.array([rng.uniform(-5, 5) for _ in range(math.prod(shape))]).reshape(shape)
    grid = Grid(tuple(map(tuple, axes)), tuple(table.flatten().tolist()))
    point = [rng.uniform(0, 55) for _ in axes]  # beyond the ends too
    expected = naive([list(map(float, axis)) for axis in axes], table.tolist(), point)
    assert grid.at(point) == pytest.approx(expected, abs=1e-9)


def test_a_grid_is_exact_at_its_nodes_whatever_stands_elsewhere() -> None:
    axes = ((1, 2, 5), (3, 9))
    values = (0.1, 1e300, 0.3, 1e-300, 0.7, -4.0)
    grid = Grid(axes, values)
    assert [grid.at(point) for point in product(*axes)] == list(values)


def test_an_axis_of_one_node_is_the_same_everywhere() -> None:
    grid = Grid(((7,), (1, 3)), (10.0, 20.0))
    assert grid.at((100, 2)) == grid.at((0, 2)) == 15


def test_a_missing_node_is_like_the_nearest_of_the_same_width() -> None:
    axes = ((1, 2), (10, 20, 30))
    grid = Grid.filled(axes, {(0, 0): 1.0, (0, 1): 2.0, (0, 2): 3.0, (1, 2): 4.0})
    assert grid.values == (1.0, 2.0, 3.0, 4.0, 4.0, 4.0)
    nothing_as_wide = Grid.filled(axes, {(0, 0): 1.0, (0, 2): 3.0})
    assert nothing_as_wide.values == (1.0, 1.0, 3.0, 1.0, 1.0, 3.0)


def test_places_come_in_the_order_of_the_values() -> None:
    assert places(((1, 2), (5, 6, 7))) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]


@pytest.mark.parametrize("axis", [(), (2, 1), (1, 1)])
def test_nodes_must_rise(axis: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="must rise"):
        Grid((axis,), (1.0,) * len(axis))


def test_values_must_be_as_many_as_nodes() -> None:
    with pytest.raises(ConfigError, match="6 nodes has 5 values"):
        Grid(((1, 2), (1, 2, 3)), (0.0,) * 5)


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=80), st.integers(2, 8))
def test_nodes_are_some_of_the_values_and_hold_both_ends(values: list[int], most: int) -> None:
    nodes = pick_nodes(values, most)
    assert list(nodes) == sorted(set(nodes) & set(values))
    assert (nodes[0], nodes[-1]) == (min(values), max(values))
    assert len(nodes) <= most
    if len(set(values)) <= most:
        assert set(nodes) == set(values)


def test_nodes_stand_in_a_steady_ratio() -> None:
    nodes = pick_nodes(range(1, 1025), 6)
    assert nodes == (1, 4, 16, 64, 256, 1024)


def descend(
    features: np.ndarray, targets: np.ndarray, centre: np.ndarray, pull: np.ndarray
) -> np.ndarray:
    """The same minimum, found by walking downhill and never below nought."""
    rows = features / targets[:, None]
    slope = rows.T @ rows + np.diag(pull)
    start = rows.T @ np.ones(len(rows)) + pull * centre
    weights = np.ones(len(centre))
    length = 1 / np.linalg.eigvalsh(slope).max()
    for _ in range(20_000):
        weights = np.maximum(weights - length * (slope @ weights - start), 0)
    return weights


@pytest.mark.parametrize("seed", range(8))
def test_a_fit_is_the_nearest_without_negative_weights(seed: int) -> None:
    rng = np.random.default_rng(seed)
    features = rng.uniform(0.2, 1, (9, 3))
    wanted = np.array([1.0, 0.0, 0.4]) if seed % 2 else rng.uniform(0, 1, 3)
    targets = features @ wanted * rng.uniform(0.8, 1.2, 9)
    centre, pull = rng.uniform(0, 1, 3), rng.uniform(0.05, 0.3, 3)
    found = fit(features, targets, centre=centre, pull=pull)
    assert found == pytest.approx(descend(features, targets, centre, pull), abs=1e-5)


def test_a_fit_is_relative() -> None:
    """A second of error is much in a short time and little in a long one."""
    assert fit([[1.0], [1.0]], [1.0, 100.0])[0] == pytest.approx(1.01 / 1.0001)


def test_a_weight_that_would_be_negative_is_nought() -> None:
    rows = [[1, x] for x in (1.0, 2.0, 4.0)]
    constant, slope = fit(rows, [2 * x - 0.5 for x in (1.0, 2.0, 4.0)])
    assert constant == 0
    assert 1.5 < slope < 2


def test_features_of_any_size_can_be_fitted() -> None:
    rows = [[1.0, 1e12 * x, 1e-6 * x * x] for x in (1.0, 2.0, 3.0, 5.0)]
    targets = [0.5 + x + x * x for x in (1.0, 2.0, 3.0, 5.0)]
    assert fit(rows, targets) == pytest.approx([0.5, 1e-12, 1e6])


def test_a_feature_that_never_occurs_has_its_centre() -> None:
    rows = [[2.0, 0.0], [4.0, 0.0]]
    assert fit(rows, [2.0, 4.0], centre=[1, 1], pull=[0.1, 0.1]) == pytest.approx([1, 1])
    assert fit(rows, [2.0, 4.0])[1] == 0


@pytest.mark.parametrize("targets", [[], [1.0, 0.0], [1.0, -2.0], [1.0, math.nan]])
def test_only_positive_numbers_can_be_fitted(targets: list[float]) -> None:
    with pytest.raises(ConfigError, match="only positive"):
        fit(np.ones((len(targets), 1)), targets)


def test_slow_rounds_are_told_from_slow_models() -> None:
    rng = np.random.default_rng(0)
    models, rounds = rng.uniform(1, 50, 7), rng.uniform(0.5, 3, 11)
    rounds /= np.median(rounds)
    usual, noise, found = settle(np.outer(models, rounds))
    assert usual == pytest.approx(models)
    assert found == pytest.approx(rounds)
    assert noise == pytest.approx(np.zeros(7), abs=1e-12)


def test_a_stall_moves_nothing() -> None:
    models, rounds = np.array([1.0, 2.0, 5.0, 7.0]), np.array([1.0, 1.5, 1.0, 0.9, 1.2])
    rounds /= np.median(rounds)
    times = np.outer(models, rounds)
    times[1, 2] *= 30
    times[3, 0] *= 4
    usual, noise, found = settle(times)
    assert usual == pytest.approx(models)
    assert found == pytest.approx(rounds)
    assert noise[0] == pytest.approx(0, abs=1e-12)


def test_noise_is_what_a_repetition_would_differ_by() -> None:
    rng = np.random.default_rng(1)
    levels, doubts = [], []
    for _ in range(300):
        times = np.exp(rng.normal(0, 0.1, (20, 12)) + rng.normal(0, 0.5, 12))
        usual, noise, _ = settle(times)
        levels.append(math.log(usual[0] / np.exp(np.log(usual).mean())))
        doubts.append(noise[0])
    assert np.median(doubts) == pytest.approx(np.std(levels), rel=0.25)


AXES = ((64, 128, 256), (100, 400))


def features(width: float, inner: float) -> list[float]:
    return [1.0, width * inner]


def points() -> dict[tuple[int, ...], tuple[int, int]]:
    return {place: (AXES[0][place[0]], AXES[1][place[1]]) for place in places(AXES)}


def surface(known: dict[tuple[int, ...], float], noise: float) -> Surface:
    rows = {place: features(*point) for place, point in points().items()}
    return Surface.through(AXES, known, rows, dict.fromkeys(known, noise))


def test_a_surface_without_noise_goes_through_every_node() -> None:
    known = {place: 1 + (7 * i % 5) for i, place in enumerate(points())}
    exact = surface(known, 0.0)
    for place, point in points().items():
        assert exact.at(point, features(*point)) == pytest.approx(known[place])


def test_a_surface_that_is_its_formula_is_exact_in_between() -> None:
    known = {place: 3 + 0.01 * w * n for place, (w, n) in points().items()}
    exact = surface(known, 0.0)
    assert exact.at((100, 250), features(100, 250)) == pytest.approx(3 + 0.01 * 100 * 250)
    assert exact.at((1000, 1), features(1000, 1)) == pytest.approx(3 + 0.01 * 1000)


def test_noise_is_taken_out_of_the_rest_and_nothing_more() -> None:
    known = {
        place: (3 + 0.01 * w * n) * (1.1 if sum(place) % 2 else 0.9)
        for place, (w, n) in points().items()
    }
    exact, half, none = (surface(known, noise) for noise in (0.0, 0.07, 0.5))
    assert none.rest.values == (1.0,) * 6
    for a, b in zip(exact.rest.values, half.rest.values, strict=True):
        assert 0.3 < math.log(b) / math.log(a) < 0.7
    assert exact.weights == half.weights == none.weights


def test_a_surface_survives_json() -> None:
    known = {place: 1.0 + i for i, place in enumerate(points())}
    del known[2, 0]  # and one node was never measured
    rough = surface(known, 0.01)
    assert Surface.from_dict(rough.to_dict()) == rough
