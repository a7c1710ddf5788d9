"""How do numbers become few whole numbers, and what is lost?

A quantizer maps a range of numbers to codes, `code = round(x / step) + zero`, kept within the
levels that so many bits have; `decode` goes back. Pure functions of tensors: what to quantize,
and when, is decided elsewhere.

>>> import torch
>>> scheme = Scheme(bits=8, per="row")
>>> coded = encode(torch.tensor([[-1.0, 0.0, 0.5, 1.0]]), scheme)
>>> coded.codes.tolist(), [f"{x:.3f}" for x in decode(coded)[0]]
([[-127, 0, 64, 127]], ['-1.000', '0.000', '0.504', '1.000'])

The lecture on efficient Transformers divides a range by 2^(bits − 1), which gives 129 levels for
eight bits where there is room for 256, and does not round the zero: `formula="lecture"`.

>>> given = torch.linspace(-1, 1, 1001, dtype=torch.float64)
>>> for formula in ("usual", "lecture"):
...     coded = encode(given, Scheme(symmetric=False, formula=formula))
...     print(formula, coded.levels, f"{(decode(coded) - given).abs().max():.4f}")
usual 256 0.0039
lecture 129 0.0078
"""

# o rows, i columns, g groups

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from parformer.errors import ConfigError, InputError

SHRINKS = tuple(round(1 - 0.025 * n, 3) for n in range(21))
"""Shares of the whole range that the one with the least squared error is looked for among."""
LEAST_BITS, MOST_BITS = 2, 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Scheme:
    """Which levels there are, and who shares them."""

    bits: int = 8
    """Two to eight."""
    symmetric: bool = True
    """Levels on both sides of an exact zero alike, or from the least number to the largest."""
    per: Literal["tensor", "row", "group"] = "tensor"
    """Who shares a range."""
    group: int = 32
    """Neighbours in a row that share one, where it is by group."""
    range: Literal["minmax", "percentile", "mse"] = "minmax"
    """The whole range; the one that holds so many percent; or the one that loses least."""
    percentile: float = 99.9
    """Share of the numbers, in percent, that keep within the range."""
    formula: Literal["usual", "lecture"] = "usual"
    """Which step a range has."""

    def __post_init__(self) -> None:
        if not LEAST_BITS <= self.bits <= MOST_BITS:
            raise ConfigError(f"bits are {LEAST_BITS} to {MOST_BITS}, got {self.bits}")
        if self.group < 1:
            raise ConfigError(f"a group has at least one number, got {self.group}")
        if not 50 < self.percentile <= 100:
            raise ConfigError(f"a percentile is above 50 and at most 100, got {self.percentile:g}")
        if self.formula == "lecture" and self.symmetric:
            raise ConfigError("the lecture's formula has no symmetric form; say symmetric=False")

    @property
    def lowest(self) -> int:
        """The lowest code; as far from zero as the highest where eight bits are symmetric."""
        if not self.symmetric:
            return 0
        return int(self.bits == MOST_BITS) - (1 << self.bits - 1)

    @property
    def highest(self) -> int:
        if not self.symmetric:
            return (1 << self.bits) - 1
        return (1 << self.bits - 1) - 1


@dataclass(frozen=True, slots=True, eq=False)
class Coded:
    """Codes, and how to read them."""

    codes: Tensor
    """Whole numbers, in the shape of what they stand for."""
    steps: Tensor
    """How far one code is from the next, of a shape that spreads over the codes' groups."""
    zeros: Tensor | None
    """The code of zero; None where it is 0."""
    group: int
    """Neighbours that share a step; 0 where all of a row or tensor do."""

    @property
    def levels(self) -> int:
        """How many different codes were used, and those between them."""
        return int(self.codes.max() - self.codes.min()) + 1


def encode(x: Tensor, scheme: Scheme) -> Coded:
    """The nearest codes of a tensor's numbers."""
    if not bool(torch.isfinite(x).all()):
        raise InputError("numbers that are not finite cannot be quantized; look for NaN in them")
    rows = in_groups(x, scheme)
    low, high = find_range(rows, scheme)
    steps, zeros = levels_of(low, high, scheme)
    codes = torch.round(rows / steps if zeros is None else rows / steps + zeros)
    if scheme.formula == "usual":
        codes = codes.clamp(scheme.lowest, scheme.highest)
    group = scheme.group if scheme.per == "group" else 0
    flat = codes.flatten(-2)[..., : x.shape[-1]] if group else codes
    return Coded(flat.to(torch.int16), steps, zeros, group)


def decode(coded: Coded) -> Tensor:
    """The numbers that codes stand for."""
    codes = coded.codes.to(coded.steps.dtype)
    if coded.group:
        codes = padded(codes, coded.group)
    whole = codes if coded.zeros is None else codes - coded.zeros
    x = whole * coded.steps
    return x.flatten(-2)[..., : coded.codes.shape[-1]] if coded.group else x


def in_groups(x: Tensor, scheme: Scheme) -> Tensor:
    """A tensor whose last dimension is shared by one range, or all of them are."""
    return padded(x, scheme.group) if scheme.per == "group" else x


def padded(x: Tensor, group: int) -> Tensor:
    """Rows cut into groups; the last one is filled up with zeros."""
    missing = -x.shape[-1] % group
    return torch.unflatten(torch.nn.functional.pad(x, (0, missing)), -1, (-1, group))


def find_range(x: Tensor, scheme: Scheme) -> tuple[Tensor, Tensor]:
    """The least and the largest number that has a level of its own."""
    if scheme.per == "tensor":
        flat, shape = x.flatten()[None], (1,) * x.dim()
    else:
        flat, shape = x.flatten(0, -2), (*x.shape[:-1], 1)
    if scheme.range == "percentile":
        share = scheme.percentile / 100
        low, high = (torch.quantile(flat.float(), q, dim=1) for q in (1 - share, share))
        low, high = low.to(x.dtype), high.to(x.dtype)
    else:
        low, high = flat.amin(1), flat.amax(1)
    if scheme.symmetric:
        high = torch.maximum(-low, high)
        low = -high
    elif scheme.formula == "usual":
        low, high = low.clamp(max=0), high.clamp(min=0)  # zero has a level
    if scheme.range == "mse":
        low, high = narrowed(flat, low, high, scheme)
    return low.view(shape), high.view(shape)


def narrowed(flat: Tensor, low: Tensor, high: Tensor, scheme: Scheme) -> tuple[Tensor, Tensor]:
    """Of all narrower ranges the one, row by row, whose squared error is the least."""
    best = torch.full_like(low, torch.inf)
    chosen = torch.ones_like(low)
    for shrink in SHRINKS:
        steps, zeros = levels_of(low[:, None] * shrink, high[:, None] * shrink, scheme)
        shift = 0 if zeros is None else zeros
        codes = torch.round(flat / steps + shift).clamp(scheme.lowest, scheme.highest)
        error = ((codes - shift) * steps - flat).square().sum(1)
        better = error < best
        best, chosen = torch.where(better, error, best), torch.where(better, shrink, chosen)
    return low * chosen, high * chosen


def levels_of(low: Tensor, high: Tensor, scheme: Scheme) -> tuple[Tensor, Tensor | None]:
    """How far codes are apart, and the code of zero."""
    if scheme.symmetric:
        # a negative code more than positive ones: four bits reach −8, their range 7 alone
        return nonzero(high / scheme.highest), None
    if scheme.formula == "lecture":
        steps = nonzero((high - low) / 2 ** (scheme.bits - 1))
        return steps, -(low / steps)
    steps = nonzero((high - low) / scheme.highest)
    return steps, torch.round(-low / steps).clamp(scheme.lowest, scheme.highest)


def nonzero(steps: Tensor) -> Tensor:
    """Where all numbers are zero any step will do."""
    return torch.where(steps > 0, steps, torch.ones_like(steps))


def straight_through(x: Tensor, scheme: Scheme) -> Tensor:
    """What codes make of numbers, with the gradient of the numbers themselves.

    >>> x = torch.tensor([0.2, 0.9], requires_grad=True)
    >>> straight_through(x, Scheme(bits=2)).sum().backward()
    >>> x.grad.tolist()
    [1.0, 1.0]
    """
    with torch.no_grad():
        moved = decode(encode(x, scheme)) - x
    return x + moved
