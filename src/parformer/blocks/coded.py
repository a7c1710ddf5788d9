"""What stands behind the door when a matrix is kept in few bits?

`CodedLinear` takes the place of a `Linear`: eight bits with a scale for every row, or four bits in
groups of 32 neighbours, each with a step of eight bits of its row's scale. Without a kernel the
weight is decoded and multiplied as ever, which defines the numbers. With `reach` the inputs become
eight bits too: whole numbers from −127 to 127 over that reach, beyond which they are cut.

>>> import torch
>>> linear = CodedLinear.of(torch.tensor([[1.0, -0.5], [0.0, 2.0]]), None, bits=8)
>>> linear(torch.eye(2)).T.round(decimals=2).tolist()
[[1.0, -0.5], [0.0, 2.0]]
"""

# o outputs, i inputs, g groups, n rows of numbers

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parformer.blocks.linear import Direct
from parformer.kernels.coded import Panels, multiply

GROUP = 32
"""Neighbours in a row that share a step, where there are four bits or fewer."""
STEPS = 255
"""Steps that a row's scale is divided into."""
NARROW, WIDE = 4, 8
"""Bits that codes are kept in; fewer bits use fewer of the codes."""
ACTIVATION_LEVELS = 127


class CodedLinear(Direct):
    """A linear map whose matrix is kept as codes."""

    codes: Tensor
    """Eight bits: int8 (outputs, inputs). Four: uint8 (outputs, groups × 16), a group's first half
    in the low and its second half in the high bits, each code plus 8."""
    scales: Tensor
    """(outputs, 1): what a code is worth, or a group's full step."""
    steps: Tensor | None
    """(outputs, groups) as uint8: how much of the scale a group has, in 255ths."""
    reach: Tensor | None
    """(1,): how far inputs go that become eight bits; None where they stay as they are."""

    def __init__(
        self, inputs: int, outputs: int, *, bits: int, bias: bool, reach: bool = False
    ) -> None:
        super().__init__()
        self.in_features, self.out_features, self.bits = inputs, outputs, bits
        groups = -(-inputs // GROUP)
        shape = (outputs, inputs) if bits == WIDE else (outputs, groups * GROUP // 2)
        kind = torch.int8 if bits == WIDE else torch.uint8
        self.register_buffer("codes", torch.empty(shape, dtype=kind))
        self.register_buffer("scales", torch.empty(outputs, 1))
        steps = None if bits == WIDE else torch.empty(outputs, groups, dtype=torch.uint8)
        self.register_buffer("steps", steps)
        self.register_buffer("reach", torch.empty(1) if reach else None)
        self.bias = nn.Parameter(torch.empty(outputs)) if bias else None
        self._panels: tuple[int, Panels] | None = None

    @classmethod
    def of(cls, weight_oi: Tensor, bias_o: Tensor | None, *, bits: int) -> Self:
        """A matrix in the nearest codes; `compress` has better ones for few bits."""
        if bits == WIDE:
            scales_o1 = unit(weight_oi.abs().amax(1, keepdim=True)) / 127
            return cls.from_codes(torch.round(weight_oi / scales_o1), scales_o1, None, bias_o)
        highest = (1 << bits - 1) - 1
        wanted_og = in_groups(weight_oi).abs().amax(2) / highest
        return cls.in_steps(weight_oi, wanted_og, bias_o, lowest=-highest - 1, highest=highest)

    @classmethod
    def in_steps(
        cls,
        weight_oi: Tensor,
        wanted_og: Tensor,
        bias_o: Tensor | None,
        *,
        lowest: int,
        highest: int,
    ) -> Self:
        """Four bits, with the steps nearest above the wanted ones and the codes nearest to them."""
        scales_o1 = unit(wanted_og.amax(1, keepdim=True))
        steps_og = torch.ceil(wanted_og / scales_o1 * STEPS - 1e-4).clamp(1, STEPS)
        worth_og1 = (steps_og * (scales_o1 / STEPS))[..., None]
        codes_ogk = torch.round(in_groups(weight_oi) / worth_og1).clamp(lowest, highest)
        codes_oi = codes_ogk.flatten(1)[:, : weight_oi.shape[1]]
        return cls.from_codes(codes_oi, scales_o1, steps_og, bias_o)

    @classmethod
    def from_codes(
        cls, codes_oi: Tensor, scales_o1: Tensor, steps_og: Tensor | None, bias_o: Tensor | None
    ) -> Self:
        """Whole numbers as they are to be kept."""
        bits = WIDE if steps_og is None else NARROW
        made = cls(codes_oi.shape[1], codes_oi.shape[0], bits=bits, bias=bias_o is not None)
        with torch.no_grad():
            made.scales = scales_o1.detach().float().clone()
            if steps_og is None:
                made.codes = codes_oi.detach().to(torch.int8)
            else:
                whole = (in_groups(codes_oi.detach()) + 8).to(torch.uint8)
                halves = torch.unflatten(whole, 2, (2, -1))
                made.codes = (halves[:, :, 0] | (halves[:, :, 1] << 4)).flatten(1)
                made.steps = steps_og.detach().to(torch.uint8)
            if made.bias is not None and bias_o is not None:
                made.bias = nn.Parameter(bias_o.detach().clone())
        return made

    @property
    def weight(self) -> Tensor:
        """The matrix that the codes stand for."""
        return self.rows(None)

    def whole(self, chosen: Tensor | None = None) -> Tensor:
        """The codes as whole numbers (rows, inputs), of all rows or of the chosen ones."""
        codes = self.codes if chosen is None else self.codes[chosen]
        if self.bits == WIDE:
            return codes
        halves = torch.unflatten(codes, -1, (-1, GROUP // 2))
        both = torch.cat((halves & 15, halves >> 4), dim=-1).to(torch.int8) - 8
        return both.flatten(-2)[..., : self.in_features]

    def rows(self, chosen: Tensor | None) -> Tensor:
        """Rows of the matrix, as an embedding looks them up."""
        scales = self.scales if chosen is None else self.scales[chosen]
        codes = self.whole(chosen).to(scales.dtype)
        if self.steps is None:
            return codes * scales
        steps = self.steps if chosen is None else self.steps[chosen]
        worth = (steps.to(scales.dtype) * (scales / STEPS))[..., None]
        return (in_groups(codes) * worth).flatten(-2)[..., : self.in_features]

    def forward(self, x: Tensor) -> Tensor:
        if self.reach is not None:
            x = rounded_to(x, self.reach)
        if (y := multiply(self, x)) is not None:
            return y
        return F.linear(x, self.weight.to(x.dtype), self.bias)

    def panels(self) -> Panels:
        """The codes once more, in the order in which the kernel reads them."""
        if self._panels is None or self._panels[0] != self.codes.data_ptr():
            scales_o, steps_og = self.scales[:, 0], self.steps
            made = Panels(self.whole(), scales_o, steps_og, STEPS)
            self._panels = (self.codes.data_ptr(), made)
        return self._panels[1]

    @property
    def laid_out(self) -> int:
        """Bytes that this takes beside the codes, once they were multiplied."""
        return 0 if self._panels is None else self._panels[1].bytes

    def sharing(self, bias: nn.Parameter | None) -> CodedLinear:
        """Another map of the very same codes, with a bias of its own."""
        again = CodedLinear(self.in_features, self.out_features, bits=self.bits, bias=False)
        again.codes, again.scales, again.steps = self.codes, self.scales, self.steps
        again.bias = bias
        return again

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Codes stay what they are, whatever else becomes of the numbers."""
        before = self.scales
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.scales = before.to(self.scales.device)
        return self


def in_groups(x_oi: Tensor) -> Tensor:
    """Rows in groups of neighbours (…, groups, 32); the last one is filled up with zeros."""
    return torch.unflatten(F.pad(x_oi, (0, -x_oi.shape[-1] % GROUP)), -1, (-1, GROUP))


def unit(scales: Tensor) -> Tensor:
    """Where all numbers are zero any scale will do."""
    return torch.where(scales > 0, scales, torch.ones_like(scales))


def rounded_to(x: Tensor, reach: Tensor) -> Tensor:
    """Inputs as eight bits show them; a gradient goes straight through where nothing is cut."""
    step = (reach / ACTIVATION_LEVELS).to(x.dtype)
    inside = x.clamp(-reach.to(x.dtype), reach.to(x.dtype))
    return inside + (torch.round(inside / step) * step - inside).detach()
