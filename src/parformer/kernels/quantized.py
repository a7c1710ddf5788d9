"""How do weights lie in 8 or 4 bits, and how does a step in C++ want them?

int8 has one scale for each row, int4 one for each 32 numbers of a row; both are symmetric, so that
a weight is its whole number times its scale. Two numbers of 4 bits share a byte, the first of them
below. For a step in C++ sixteen rows lie side by side (kernels/decoder/matrix.h says how); the
whole numbers are the same.

>>> import torch
>>> weight = torch.randn(3, 70)
>>> numbers, scales = to_int8(weight)
>>> bool(((from_int8(numbers, scales) - weight).abs() <= scales[:, None] / 2 + 1e-6).all())
True
"""

# o outputs, i inputs, g groups of 32 inputs

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

PANEL, GROUP, BLOCK = 16, 32, 128
"""Rows side by side; inputs that share a scale in 4 bits; those an int8 row is padded to."""


def to_int8(weight_oi: Tensor) -> tuple[Tensor, Tensor]:
    """Whole numbers from −127 to 127, and a scale (fp32) for each row."""
    weight_oi = weight_oi.detach().float()
    scale_o = weight_oi.abs().amax(dim=1) / 127
    return torch.round(weight_oi / divisor(scale_o)[:, None]).to(torch.int8), scale_o


def from_int8(numbers_oi: Tensor, scale_o: Tensor) -> Tensor:
    return numbers_oi.float() * scale_o[:, None]


def to_int4(weight_oi: Tensor) -> tuple[Tensor, Tensor]:
    """Bytes of two numbers from −8 to 7 each, and a scale (fp16) for each 32 of a row."""
    grouped_ogi = grouped(weight_oi.detach().float())
    most_og = grouped_ogi.abs().amax(dim=2)
    scale_og = (most_og / 7).half()
    numbers = torch.round(grouped_ogi / divisor(scale_og.float())[..., None]).clamp(-8, 7)
    return pack_nibbles(numbers.to(torch.int8).flatten(1)), scale_og


def from_int4(bytes_on: Tensor, scale_og: Tensor, inputs: int) -> Tensor:
    numbers_oi = unpack_nibbles(bytes_on).float()
    scaled = torch.unflatten(numbers_oi, 1, (-1, GROUP)) * scale_og.float()[..., None]
    return scaled.flatten(1)[:, :inputs]


def divisor(scale: Tensor) -> Tensor:
    """What rows of zeros can be divided by too."""
    return scale.masked_fill(scale == 0, 1.0)


def grouped(weight_oi: Tensor) -> Tensor:
    return torch.unflatten(F.pad(weight_oi, (0, -weight_oi.shape[1] % GROUP)), 1, (-1, GROUP))


def pack_nibbles(numbers_oi: Tensor) -> Tensor:
    """Two neighbours in a byte, the first one below."""
    nibbles = numbers_oi.view(torch.uint8) & 15
    return nibbles[:, ::2] | nibbles[:, 1::2] << 4


def unpack_nibbles(bytes_on: Tensor) -> Tensor:
    both = torch.stack((bytes_on & 15, bytes_on >> 4), dim=-1).flatten(1)
    return ((both ^ 8).to(torch.int16) - 8).to(torch.int8)


# As a step in C++ reads them


def int8_panels(numbers_oi: Tensor, scale_o: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers plus 128, [panels][inputs / 4][16][4], and scales of whole panels."""
    rows, inputs = numbers_oi.shape
    more = -rows % PANEL
    padded = F.pad(numbers_oi.to(torch.int16) + 128, (0, -inputs % BLOCK, 0, more), value=128)
    tiles = padded.to(torch.uint8).view(-1, PANEL, padded.shape[1] // 4, 4)
    return tiles.transpose(1, 2).contiguous(), F.pad(scale_o.float(), (0, more)).contiguous()


def int4_panels(bytes_on: Tensor, scale_og: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers plus 8, [panels][inputs / 8][16][4 bytes], and scales [panels][groups][16]."""
    numbers_oi = unpack_nibbles(bytes_on).to(torch.int16) + 8
    more = -len(numbers_oi) % PANEL
    padded = F.pad(numbers_oi, (0, 0, 0, more), value=8).to(torch.uint8)
    tiles = padded.view(-1, PANEL, padded.shape[1] // 8, 2, 4).transpose(1, 2)
    scales = F.pad(scale_og, (0, 0, 0, more)).view(-1, PANEL, scale_og.shape[1])
    return (tiles[..., 0, :] | tiles[..., 1, :] << 4).contiguous(), scales.mT.contiguous()


def is_half(scale: Tensor) -> bool:
    """Whether fp16 holds these scales as they are."""
    return scale.dtype == torch.float16 or bool((scale.half().to(scale.dtype) == scale).all())
