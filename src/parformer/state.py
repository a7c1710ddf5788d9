"""What does a model remember of the text so far, and what does a step give?"""

# b batch, t time, m memory

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from parformer.blocks.stack import Remembered
from parformer.blocks.state import fit_blocks, join_blocks, register, rows_of
from parformer.config import ModelConfig
from parformer.errors import InputError
from parformer.grams import largest_order


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
    starts_b: Tensor | None = None
    """Places before each row's first token, where rows have read different numbers of tokens."""

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


EXTRAS = ("window_bt", "padding_bm", "recent_bk", "starts_b")
"""What a state may have beside that of its blocks."""


def _joined(tensors: Sequence[Tensor | None]) -> Tensor | None:
    known = [tensor for tensor in tensors if tensor is not None]
    if known and len(known) < len(tensors):
        raise InputError("a state with padding cannot be joined with one without; give it to all")
    return torch.cat(known) if known else None


def can_stand_beside(state: State, other: State) -> bool:
    """Whether `side_by_side` takes both: a Synthesizer tells places by their number alone, and
    counts must not take what stands before a text for its words.
    """
    config = state.config
    if state.position == other.position and state.starts_b is None and other.starts_b is None:
        return config == other.config
    seen = (config.count_order or largest_order(config.vocab_size)) - 1 if config.counts else 0
    enough = min(fewest(state), fewest(other)) >= seen
    return config == other.config and enough and not config.pattern.count("y")


def fewest(state: State) -> int:
    """Tokens that the row with the fewest has read."""
    return state.position - (0 if state.starts_b is None else int(state.starts_b.max()))


def side_by_side(states: Sequence[State]) -> State:
    """The pasts of several batches as one, however many tokens each has read.

    All end in one column, and those with fewer tokens begin later: places before that are absent.
    """
    longest = max(state.position for state in states)
    if len({state.position for state in states}) > 1 or any(s.starts_b is not None for s in states):
        states = [begun_later(state, longest - state.position) for state in states]
    return State.join(states)


def begun_later(state: State, later: int) -> State:
    """The same past behind so many absent places; below 0, with so many fewer."""
    position = state.position + later
    width = min(position, state.memory)
    before = min(state.position, state.memory)
    window, present, recent = state.window_bt, state.padding_bm, state.recent_bk
    device = next((b.device for b in state.blocks if b is not None), None)
    starts = state.starts_b
    if starts is None:
        starts = torch.zeros(state.batch, dtype=torch.long, device=device)
    if present is None:
        present = torch.ones(state.batch, before, dtype=torch.bool, device=device)
    present = F.pad(present, (width - before, 0)) if width else None
    if recent is not None:
        missing = state.config.sight(state.config.vocab_size) - recent.shape[1]
        recent = F.pad(recent, (missing, 0), value=NOTHING)
    return replace(
        state,
        position=position,
        blocks=fit_blocks(state.blocks, width),
        window_bt=None if window is None else F.pad(window, (later, 0)),
        padding_bm=present,
        recent_bk=recent,
        starts_b=starts + later,
    )


def without_absent(state: State) -> State:
    """The same without the places that no row has a token in."""
    if state.starts_b is None:
        return state
    state = begun_later(state, -int(state.starts_b.min()))
    starts_b = state.starts_b
    assert starts_b is not None
    full = bool((starts_b <= state.position - min(state.position, state.memory)).all())
    present, same = None if full else state.padding_bm, not bool(starts_b.any())
    return replace(state, padding_bm=present, starts_b=None if same else starts_b)


NOTHING = -1
"""Stands where a row has no token yet, for recall."""


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
