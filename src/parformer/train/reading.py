"""Where in the text is a training, and what do the blocks remember of it?

The batch of every turn follows from its number alone; what the blocks remember does not, and
is saved with every checkpoint, all rows of the batch in order, whichever process had them.
"""

# b batch, t time

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import cast

import torch
from torch import Tensor

from parformer.blocks.base import Block
from parformer.blocks.state import BlockState
from parformer.data.batches import Batch, Batches
from parformer.errors import FolderError
from parformer.model import Model
from parformer.state import State
from parformer.train.distributed import Workers

RECENT = "text/recent"
"""The last tokens, among what the blocks remember."""


class Reading:
    """A text in the middle of being read, piece by piece of every batch."""

    def __init__(
        self, batches: Batches, *, batch: int, rows: slice, pieces: int, workers: Workers
    ) -> None:
        self.batches, self.batch, self.rows, self.workers = batches, batch, rows, workers
        self.carries = batches.carries
        self.states: list[State | None] = [None] * pieces

    def pieces(self, index: int) -> Iterator[Batch]:
        """Batch number `index` in pieces, on the device that trains."""
        read = self.batches.at(index, self.rows)
        if read.fresh:
            self.states = [None] * len(self.states)
        for piece in read.pieces(len(self.states)):
            yield piece.to(self.workers.device)

    def keep(self, piece: int, state: State | None) -> None:
        self.states[piece] = state if self.carries else None

    def memory(self) -> tuple[dict[str, Tensor], int]:
        """What the blocks remember, by block and part, and how many tokens they have read."""
        states = [state for state in self.states if state is not None]
        if not states:
            return {}, 0
        parts: dict[str, list[Tensor]] = {}
        for state in states:
            for i, remembered in enumerate(state.blocks):
                for name, tensor in ({} if remembered is None else remembered.tensors()).items():
                    parts.setdefault(f"{i}/{name}", []).append(tensor)
            if state.recent_bk is not None:
                parts.setdefault(RECENT, []).append(state.recent_bk)
        gathered = {n: self.workers.gather_rows(torch.cat(t)) for n, t in parts.items()}
        return gathered, states[0].position

    def restore(self, model: Model, memory: Mapping[str, Tensor], position: int) -> None:
        """Go on where `memory` was taken."""
        if not memory:
            return
        by_block: dict[int, dict[str, Tensor]] = {}
        recent: Tensor | None = None
        for name, tensor in memory.items():
            number, _, part = name.partition("/")
            if len(tensor) != self.batch or not (number.isdigit() or name == RECENT):
                raise FolderError(
                    f"the checkpoint's memory {name!r} has {len(tensor)} rows, the batch "
                    f"{self.batch}; it belongs to another run"
                )
            if name == RECENT:
                recent = tensor[self.rows]
                continue
            by_block.setdefault(int(number), {})[part] = tensor[self.rows]
        count = len(self.states)
        size = (self.rows.stop - self.rows.start) // count
        config = model.config
        for i in range(count):
            blocks = tuple(
                self._recall(cast(Block, block), by_block.get(n, {}), i)
                for n, block in enumerate(model.blocks)
            )
            last = None if recent is None else recent.chunk(count)[i].to(self.workers.device)
            self.states[i] = State(size, config, config.memory, position, blocks, recent_bk=last)

    def _recall(self, block: Block, tensors: Mapping[str, Tensor], piece: int) -> BlockState | None:
        """One block's memory of one piece of the batch."""
        if not tensors:
            return None
        count, device = len(self.states), self.workers.device
        return block.recall(
            {name: t.chunk(count)[piece].clone().to(device) for name, t in tensors.items()}
        )
