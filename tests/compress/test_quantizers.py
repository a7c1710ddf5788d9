"""Are codes the nearest ones, ranges what they say, and zero exact?"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from parformer.compress.quantizers import Scheme, decode, encode, straight_through
from parformer.errors import ConfigError, InputError


def naive(row: list[float], bits: int) -> list[float]:
    """One row by the definition, number by number."""
    highest = 2 ** (bits - 1) - 1
    lowest = -highest if bits == 8 else -highest - 1
    step = max(abs(x) for x in row) / highest or 1.0
    return [step * min(max(round(x / step), lowest), highest) for x in row]


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 8])
def test_rows_are_what_the_definition_says(bits: int) -> None:
    x_oi = torch.randn(5, 13, dtype=torch.float64, generator=torch.Generator().manual_seed(bits))
    found = decode(encode(x_oi, Scheme(bits=bits, per="row")))
    wanted = torch.tensor([naive(row, bits) for row in x_oi.tolist()], dtype=torch.float64)
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("width", [1, 31, 32, 33, 70])
def test_groups_are_short_rows(width: int) -> None:
    x_oi = torch.randn(3, width, dtype=torch.float64)
    found = decode(encode(x_oi, Scheme(bits=4, per="group")))
    assert found.shape == x_oi.shape
    for start in range(0, width, 32):
        part = x_oi[:, start : start + 32]
        wanted = torch.tensor([naive(row, 4) for row in part.tolist()], dtype=torch.float64)
        torch.testing.assert_close(found[:, start : start + 32], wanted)


@given(st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=40), st.integers(2, 8))
def test_no_number_moves_further_than_half_a_step_and_zero_stays(
    row: list[float], bits: int
) -> None:
    x = torch.tensor([[*row, 0.0]], dtype=torch.float64)
    for symmetric in (True, False):
        coded = encode(x, Scheme(bits=bits, symmetric=symmetric, per="row"))
        error = (decode(coded) - x).abs()
        assert bool((error <= coded.steps * (0.5 + 1e-9)).all())
        assert error[0, -1] == 0


def test_the_range_of_least_error_loses_no_more_than_the_whole_one() -> None:
    heavy_oi = torch.from_numpy(np.random.default_rng(0).standard_t(3, (16, 64)))
    errors = {
        kind: (decode(encode(heavy_oi, Scheme(bits=4, per="row", range=kind))) - heavy_oi)
        .square()
        .sum(1)
        for kind in ("minmax", "mse")
    }
    assert bool((errors["mse"] <= errors["minmax"]).all())
    assert errors["mse"].sum() < 0.9 * errors["minmax"].sum()


def test_a_percentile_leaves_out_what_lies_far_away() -> None:
    x = torch.cat((torch.linspace(-1, 1, 999), torch.tensor([50.0])))
    coded = encode(x, Scheme(range="percentile", percentile=99.5))
    assert float(coded.steps) == pytest.approx(1 / 127, rel=0.02)
    assert decode(coded)[-1] == pytest.approx(1.0, rel=0.02)


def test_the_lectures_formula_has_129_levels_and_no_exact_zero() -> None:
    x = torch.linspace(-0.7, 1.3, 2001, dtype=torch.float64)
    usual = encode(x, Scheme(symmetric=False))
    lecture = encode(x, Scheme(symmetric=False, formula="lecture"))
    assert (usual.levels, lecture.levels) == (256, 129)
    zero = x.abs().argmin()
    assert decode(usual)[zero] == 0
    assert abs(float(decode(lecture)[zero])) == pytest.approx(0.0031, abs=1e-4)


def test_a_gradient_goes_straight_through() -> None:
    x = torch.randn(4, 9, requires_grad=True)
    weight = torch.randn(4, 9)
    (straight_through(x, Scheme(bits=3, per="row")) * weight).sum().backward()
    torch.testing.assert_close(x.grad, weight)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"bits": 1}, "2 to 8"),
        ({"bits": 9}, "2 to 8"),
        ({"group": 0}, "at least one"),
        ({"percentile": 0.5}, "above 50"),
        ({"formula": "lecture"}, "no symmetric form"),
    ],
)
def test_what_makes_no_sense_is_refused(fields: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Scheme(**fields)  # type: ignore[arg-type]


def test_nan_is_refused() -> None:
    with pytest.raises(InputError, match="NaN"):
        encode(torch.tensor([1.0, float("nan")]), Scheme())
