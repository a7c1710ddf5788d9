"""What does attention remember?

While training it keeps the block's detached inputs, which every step projects with the
weights of the moment (Transformer-XL's training). For inference it keeps keys and values
as they were projected. Both give the same numbers.
"""

# b batch, m memory, t time, d width, g key-value heads, k head width

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from parformer.blocks.base import BlockState


@dataclass(frozen=True, slots=True, eq=False)
class InputMemory(BlockState):
    """A block's past inputs, as they were before its norm."""

    inputs_bmd: Tensor

    @property
    def batch(self) -> int:
        return self.inputs_bmd.shape[0]

    @property
    def length(self) -> int:
        return self.inputs_bmd.shape[1]

    def tensors(self) -> Iterator[Tensor]:
        yield self.inputs_bmd


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


@dataclass(frozen=True, slots=True, eq=False)
class KeyValueMemory(BlockState):
    """Projected keys and values of the past; for relative attention the projected distances too."""

    trainable: ClassVar[bool] = False
    rows: Rows
    start: int
    end: int
    distances_hnk: Tensor | None = None
    """Projections of the distances n−1 … 0; they follow from the weights, not from the text."""

    @property
    def kv_bgmk(self) -> Tensor:
        """Keys of all heads, then values of all heads."""
        return self.rows.buffer[:, :, self.start : self.end]

    @property
    def batch(self) -> int:
        return self.rows.buffer.shape[0]

    @property
    def length(self) -> int:
        return self.end - self.start

    def tensors(self) -> Iterator[Tensor]:
        yield self.kv_bgmk


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
    if past is not None and past.rows.takes(past.end, time):
        rows, first, end = past.rows, past.start, past.end + time
    else:
        kept, first = 0 if past is None else past.length, 0
        end = kept + time
        batch, heads, _, width = kv_bgtk.shape
        rows = Rows(kv_bgtk.new_empty(batch, heads, end + max(64, kept // 2), width), kept)
        if past is not None:
            rows.buffer[:, :, :kept] = past.kv_bgmk
    rows.buffer.narrow(2, end - time, time).copy_(kv_bgtk)
    rows.filled = end
    state = KeyValueMemory(rows, max(first, end - memory), end, distances_hnk)
    return rows.buffer.narrow(2, first, end - first), state
