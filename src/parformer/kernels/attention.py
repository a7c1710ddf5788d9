"""How is attention trained fastest on a CPU?

Piece by piece: a few sequences at a time, and of those a block of queries with just the keys
that it may see, so that scores stay in the cache from one multiplication to the next. The
weights of attention are kept for the gradient instead of being computed again. The maths is
softmax(q kᵀ · scale + mask) v, and with relative positions (q + u) kᵀ + shift((q + w) rᵀ) in
the place of q kᵀ; how the pieces are cut follows from the shapes alone.

Both directions are registered as operators, which `torch.compile` calls as they are.
"""

# b batch, t time, n keys, d width, h heads, g key-value heads, k head width
# z = sequences of a piece × heads, c = keys that a piece sees

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

PIECE = 2**18
"""Scores that are worked on at a time, where one sequence has no more: 1 MB in fp32."""

BLOCK = 128
"""Queries that are worked on at a time, where later ones see more keys."""


@dataclass(frozen=True, slots=True)
class Shapes:
    """Where queries, keys and values lie in their tensors."""

    batch: int
    time: int
    keys: int
    heads: int
    kv_heads: int
    width: int
    causal: bool

    @property
    def scale(self) -> float:
        return 1 / math.sqrt(self.width)

    def pieces(self) -> Iterator[tuple[slice, slice, slice]]:
        """Sequences, queries and keys of each piece."""
        together = max(1, PIECE // (self.heads * self.time * self.keys))
        block = BLOCK if self.causal and self.time % BLOCK == 0 else self.time
        for first in range(0, self.batch, together):
            sequences = slice(first, min(first + together, self.batch))
            for start in range(0, self.time, block):
                end = start + block
                seen = self.keys - self.time + end if self.causal else self.keys
                yield sequences, slice(start, end), slice(0, seen)

    def scores(self) -> int:
        """Scores of all pieces."""
        return sum(
            (b.stop - b.start) * self.heads * (t.stop - t.start) * n.stop
            for b, t, n in self.pieces()
        )


class Tensors:
    """Queries, keys and values, or their gradients, by head, in one tensor or in two."""

    def __init__(self, shapes: Shapes, q_btd: Tensor, kv_bnd: Tensor | None) -> None:
        heads, groups, width = shapes.heads, shapes.kv_heads, shapes.width
        q_bthk = q_btd.unflatten(-1, (-1, width)).transpose(1, 2)
        kv_bgnk = q_bthk[:, heads:] if kv_bnd is None else by_head(kv_bnd, width)
        self.q_bhtk = q_bthk[:, :heads]
        self.k_bgnk, self.v_bgnk = kv_bgnk[:, :groups], kv_bgnk[:, groups:]
        self.repeats = heads // groups
