"""How does a step in C++ want weights of 8 or 4 bits to lie?

Sixteen rows side by side, so that no sum goes across a vector (kernels/decoder/matrix.h has the
picture). The whole numbers are those of `blocks/coded.py`, in another order.

>>> import torch
>>> int8_panels(torch.ones(3, 70, dtype=torch.int8)).shape
torch.Size([1, 32, 16, 4])
>>> int4_panels(torch.ones(17, 70, dtype=torch.int8)).shape
torch.Size([2, 12, 16, 4])
"""

# o outputs, i inputs, g groups of 32 inputs

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

PANEL, GROUP, BLOCK = 16, 32, 64
"""Rows side by side; inputs that share a step in 4 bits; what an int8 row is padded to."""


def int8_panels(numbers_oi: Tensor) -> Tensor:
    """Numbers from −127 to 127, plus 128: [panels][inputs / 4][16][4]."""
    tiles = padded(numbers_oi, BLOCK, 128).unflatten(1, (-1, 4))  # type: ignore[no-untyped-call]
    return as_panels(tiles)


def int4_panels(numbers_oi: Tensor) -> Tensor:
    """Numbers from −8 to 7, plus 8: [panels][inputs / 8][16][4], four below, four above."""
    tiles = padded(numbers_oi, GROUP, 8).unflatten(1, (-1, 2, 4))  # type: ignore[no-untyped-call]
    return as_panels(tiles[:, :, 0] | tiles[:, :, 1] << 4)


def step_panels(steps_og: Tensor) -> Tensor:
    """Steps of groups, [panels][groups][16]."""
    return as_panels(F.pad(steps_og, (0, 0, 0, -len(steps_og) % PANEL)))


def padded(numbers_oi: Tensor, unit: int, offset: int) -> Tensor:
    """Numbers plus an offset, in whole panels and units, filled up with what means zero."""
    rows, inputs = numbers_oi.shape
    more = (0, -inputs % unit, 0, -rows % PANEL)
    return F.pad(numbers_oi.to(torch.int16) + offset, more, value=offset).to(torch.uint8)


def as_panels(rows_o: Tensor) -> Tensor:
    """Sixteen rows side by side, after what they have first."""
    return torch.unflatten(rows_o, 0, (-1, PANEL)).transpose(1, 2).contiguous()


def whole_panels(scales_o: Tensor) -> Tensor:
    """Scales of rows, and ones for rows that fill a panel up."""
    return F.pad(scales_o.float(), (0, -len(scales_o) % PANEL), value=1.0).contiguous()
