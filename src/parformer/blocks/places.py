"""Where does a token stand: embedded distances, rotations, and what a token may see?"""

# b batch, t time, n keys, h heads, k head width, d width

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Places:
    """What relative attention shares among the blocks of one stack, in one step."""

    table: Callable[[int, int], Tensor]
    """Embeddings of the distances from count − 1 down to −ahead, with this step's dropout."""
    biases: tuple[Tensor, Tensor] | None = None
    """Content and position bias, where all blocks share them."""
    made: dict[tuple[int, int], Tensor] = field(default_factory=dict)

    def distances(self, count: int, ahead: int = 0) -> Tensor:
        if torch.compiler.is_exporting():
            return self.table(count, ahead)
        if (count, ahead) not in self.made:
            self.made[count, ahead] = self.table(count, ahead)
        return self.made[count, ahead]


def sinusoids(count: int, width: int, clamp_len: int, ahead: int = 0) -> Tensor:
    """Sines, then cosines, of the distances count − 1 … −ahead at falling rates."""
    distance_n = torch.arange(count - 1, -1 - ahead, -1.0)
    if clamp_len >= 0:
        distance_n = distance_n.clamp(-clamp_len, clamp_len)
    rate_k = 1 / (10_000 ** (torch.arange(0.0, width, 2.0) / width))
    angle_nk = torch.outer(distance_n, rate_k)
    return torch.cat((angle_nk.sin(), angle_nk.cos()), dim=-1)


def make_mask(
    time: int,
    keys: int,
    like: Tensor,
    *,
    causal: bool,
    reach: int,
    padding: Tensor | None,
    absent: float = 0.0,
) -> Tensor | None:
    """What to add to scores: 0 where a query may look, −inf where not; None if all is seen.

    `absent`, if it is not 0, stands for −inf where there is no token.
    """
    hidden: Tensor | None = None
    limit = reach or keys
    query_t1 = torch.arange(keys - time, keys, device=like.device)[:, None]
    key_1n = torch.arange(keys, device=like.device)[None]
    if causal and (time > 1 or keys > limit):
        hidden = (key_1n > query_t1) | (key_1n <= query_t1 - limit)
    if padding is not None and absent:
        mask_b11n = torch.zeros_like(padding, dtype=like.dtype).masked_fill(~padding, absent)
        mask_b11n = mask_b11n[:, None, None]
        return mask_b11n if hidden is None else mask_b11n.masked_fill(hidden, -math.inf)
    if padding is not None:
        absent_b11n = ~padding[:, None, None]
        if causal:
            # a query that is no token itself would see nothing, and nothing has no mean
            absent_b11n = absent_b11n & (key_1n != query_t1)
        hidden = absent_b11n if hidden is None else hidden | absent_b11n
    if hidden is None:
        return None
    return torch.zeros_like(hidden, dtype=like.dtype).masked_fill(hidden, -math.inf)


def rotations(
    first: int,
    count: int,
    width: int,
    base: float,
    like: Tensor,
    starts_b: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Cosines and sines for the places first … first + count − 1, less where a row starts."""
    # far into a text an angle in fp32 is off by more than a degree
    place_n = torch.arange(first, first + count, device=like.device, dtype=torch.float64)
    rate_k = base ** (-torch.arange(0, width, 2, device=like.device).double() / width)
    if starts_b is not None:
        place_n = (place_n - starts_b[:, None])[:, None]  # of every row, for all of its heads
    angle_nk = (place_n[..., None] * rate_k).repeat(*[1] * place_n.dim(), 2)
    return angle_nk.cos().to(like.dtype), angle_nk.sin().to(like.dtype)


def turn(x_bhnk: Tensor, cos_nk: Tensor, sin_nk: Tensor) -> Tensor:
    """Rotate each pair (i, i + width/2) by its angle."""
    left, right = x_bhnk.chunk(2, dim=-1)
    return x_bhnk * cos_nk + torch.cat((-right, left), dim=-1) * sin_nk
