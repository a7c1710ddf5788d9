"""What does a model remember of the text so far, and what does a step give?"""

# b batch, t time, m memory

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from parformer.blocks.stack import Remembered
from parformer.blocks.state import join_blocks, register, rows_of
from parformer.config import ModelConfig
from parformer.errors import InputError


@dataclass(frozen=True, eq=False)
class State:
    """What a model remembers of the text so far. Give it back with the tokens that follow."""

    batch: int
    config: ModelConfig
    """The model that it belongs to."""
    memory: int
    """Tokens that the blocks may keep."""
    position: int
    """Tokens read so far, within the window where places are numbered."""
    blocks: Remembered
    window_bt: Tensor | None = None
    """The tokens themselves, where places are numbered and a model may have to read them again."""
    padding_bm: Tensor | None = None
    """Which remembered places hold a token, where some do not."""
    recent_bk: Tensor | None = None
    """The last tokens, where counts are asked about what follows them."""

    @property
    def bytes(self) -> int:
        """Bytes of everything remembered in the blocks, and of the tokens that counts ask for."""
        recent = self.recent_bk
        own = 0 if recent is None else recent.numel() * recent.element_size()
        return own + sum(block.bytes for block in self.blocks if block is not None)

    @property
    def trainable(self) -> bool:
        """Whether training may go on from it."""
        return all(block.trainable for block in self.blocks if block is not None)

    def rows(self, index_b: Tensor) -> State:
        """The past of these rows of the batch, in this order: beams, a server's batch."""
        known = {name: getattr(self, name) for name in EXTRAS}
        extras: dict[str, Any] = {
            n: None if t is None else t.index_select(0, index_b) for n, t in known.items()
        }
        return replace(self, batch=len(index_b), blocks=rows_of(self.blocks, index_b), **extras)

    @staticmethod
    def join(states: Sequence[State]) -> State:
        """The pasts of several batches of one model as one."""
        first = states[0]
        for state in states:
            if (state.config, state.position) != (first.config, first.position):
                raise InputError(
                    f"a state after {state.position} tokens cannot be joined with one after "
                    f"{first.position}; they must agree"
                )
        blocks = join_blocks([state.blocks for state in states])
        extras: dict[str, Any] = {
            name: _joined([getattr(state, name) for state in states]) for name in EXTRAS
        }
        return replace(
            first,
            batch=sum(state.batch for state in states),
            blocks=blocks,
            **extras,
        )


EXTRAS = ("window_bt", "padding_bm", "recent_bk")
"""What a state may have beside that of its blocks."""


def _joined(tensors: Sequence[Tensor | None]) -> Tensor | None:
    known = [tensor for tensor in tensors if tensor is not None]
    if known and len(known) < len(tensors):
        raise InputError("a state with padding cannot be joined with one without; give it to all")
    return torch.cat(known) if known else None


register(
    State,
    lambda state: {name: getattr(state, name) for name in ("blocks", *EXTRAS)},
    lambda parts, known: State(*known, **parts),
    lambda state: (state.batch, state.config, state.memory, state.position),
)


@dataclass(frozen=True, slots=True, eq=False)
class Output:
    """What a step gives."""

    hidden: Tensor
    """(batch, time, width) before the head."""
    state: State | None
    logits: Tensor | None = None
    """(batch, time, vocabulary), when no targets were given."""
    loss: Tensor | None = None
    """Mean negative log-probability of the targets that count."""
    losses: Tensor | None = None
    """(batch, time), 0 where a target does not count."""
    pooled: Tensor | None = None
    """(batch, width), for models with a pooler."""
    pair_logits: Tensor | None = None
    """(batch, 2), for models with a head for pairs of sentences."""
    label_logits: Tensor | None = None
    """(batch, labels), or (batch, time, 2) for spans, for models with a head for labelled texts."""
