"""What does attention remember?

While training it keeps the block's detached inputs, which every step projects with the
weights of the moment (Transformer-XL's training). For inference it keeps keys and values
as they were projected. Both give the same numbers.
"""

# b batch, m memory, t time, d width, g key-value heads, k head width

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from parformer.blocks.state import BlockState


@dataclass(frozen=True, eq=False)
class InputMemory(BlockState):
    """A block's past inputs, as they were before its norm."""

    inputs_bmd: Tensor

    @property
    def length(self) -> int:
        return self.inputs_bmd.shape[1]


def keep_inputs(all_bnd: Tensor, memory: int) -> InputMemory | None:
    """The last `memory` inputs; None where nothing may be kept."""
    keep = min(memory, all_bnd.shape[1])
    if keep == 0:
        return None
    # contiguous, or the state would hold on to what it forgets
    return InputMemory(all_bnd[:, all_bnd.shape[1] - keep :].detach().contiguous())


class Rows:
    """Key-value rows that grow at the end without being copied.

    Whoever was given the first n rows keeps seeing just those: later rows are written
    behind them, and only by the one who saw all there were. A second continuation of the
    same past (a beam, a retry) finds the place taken and gets a copy.
    """

    __slots__ = ("buffer", "filled")

    def __init__(self, buffer: Tensor, filled: int) -> None:
        self.buffer, self.filled = buffer, filled

    def takes(self, end: int, more: int) -> bool:
        return (
            end == self.filled
            and end + more <= self.buffer.shape[2]
            and self.buffer.is_inference() == torch.is_inference_mode_enabled()
        )


ROOM = 64
"""Tokens that a buffer has room for at least, beyond those that it was made for."""
FEW = 8
"""The same where rows are chosen, as beams do at every token: memory that is new costs time."""


@dataclass(frozen=True, eq=False)
class KeyValueMemory(BlockState):
    """Projected keys and values of the past; for relative attention the projected distances too."""

    kept: Rows
    start: int
    end: int
    distances_hnk: Tensor | None = None
    """Projections of the distances n−1 … 0; they follow from the weights, not from the text."""

    @property
    def trainable(self) -> bool:
        return False

    @property
    def kv_bgmk(self) -> Tensor:
        """Keys of all heads, then values of all heads."""
        return self.kept.buffer[:, :, self.start : self.end]

    @property
    def batch(self) -> int:
        return self.kept.buffer.shape[0]

    @property
    def length(self) -> int:
        return self.end - self.start

    def tensors(self) -> dict[str, Tensor]:
        return {"kv_bgmk": self.kv_bgmk}

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> Self:
        kv_bgmk = tensors["kv_bgmk"]
        length = kv_bgmk.shape[2]
        return cls(Rows(kv_bgmk, length), 0, length)

    def rows(self, index_b: Tensor) -> Self:
        if torch.is_grad_enabled() or torch.compiler.is_compiling():
            return replace(super().rows(index_b), distances_hnk=self.distances_hnk)
        # into a place with room, so that the next token need not move them again
        kv_bgmk, length = self.kv_bgmk, self.length
        _, heads, _, width = kv_bgmk.shape
        buffer = kv_bgmk.new_empty(len(index_b), heads, length + FEW, width)
        torch.index_select(kv_bgmk, 0, index_b, out=buffer.narrow(2, 0, length))
        return replace(self, kept=Rows(buffer, length), start=0, end=length)

    def fitted(self, length: int) -> Self:
        more = length - self.length
        if more <= 0:
            return replace(self, start=self.end - length)
        return self.of({"kv_bgmk": F.pad(self.kv_bgmk, (0, 0, more, 0))})


def append(
    past: KeyValueMemory | None, kv_bgtk: Tensor, memory: int, distances_hnk: Tensor | None
) -> tuple[Tensor, KeyValueMemory]:
    """Past and new rows together, and the state that keeps the last `memory` of them."""
    time = kv_bgtk.shape[2]
    if torch.is_grad_enabled() or torch.compiler.is_compiling():
        # Autograd and graph capture want new tensors rather than writes into old ones.
        all_bgnk = kv_bgtk if past is None else torch.cat((past.kv_bgmk, kv_bgtk), dim=2)
        end = all_bgnk.shape[2]
        rows, start = Rows(all_bgnk.detach(), end), max(0, end - memory)
        return all_bgnk, KeyValueMemory(rows, start, end, distances_hnk)
    if past is not None and past.kept.takes(past.end, time):
        rows, first, end = past.kept, past.start, past.end + time
    else:
        kept, first = 0 if past is None else past.length, 0
        end = kept + time
        batch, heads, _, width = kv_bgtk.shape
        rows = Rows(kv_bgtk.new_empty(batch, heads, end + max(ROOM, kept // 2), width), kept)
        if past is not None:
            rows.buffer[:, :, :kept] = past.kv_bgmk
    rows.buffer.narrow(2, end - time, time).copy_(kv_bgtk)
    rows.filled = end
    state = KeyValueMemory(rows, max(first, end - memory), end, distances_hnk)
    return rows.buffer.narrow(2, first, end - first), state
