"""Blocks without embedding or head: vectors in, vectors out.

>>> import torch
>>> from parformer.config import preset
>>> stack = Stack(preset("srupp-pocket", dropout=0.0))
>>> y_btd, state = stack(torch.zeros(2, 5, 384))
>>> y_btd.shape, state.position, stack(y_btd, state)[1].position
(torch.Size([2, 5, 384]), 5, 10)
"""

# b batch, t time, d width

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from torch import Tensor, nn

from parformer.blocks.base import Block, BlockState, Context, find_block
from parformer.config import ModelConfig
from parformer.errors import ConfigError, InputError


@dataclass(frozen=True, slots=True, eq=False)
class StackState:
    """What a stack remembers of the vectors so far. Give it back with those that follow."""

    memory: int
    """Places that attention may keep."""
    position: int
    """Places read so far."""
    blocks: tuple[BlockState | None, ...]


class Stack(nn.Module):
    """The blocks of a pattern, one after the other."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        if config.positions in ("relative", "learned"):
            raise ConfigError(
                f"a stack by itself has no {config.positions} positions, which belong to a model; "
                "set positions='rotary' or 'none', or build the model"
            )
        self.config = config
        self.blocks = nn.ModuleList(
            find_block(spec)(config, spec.options)  # type: ignore[call-arg]
            for spec in config.pattern
        )
        if config.family == "sru":
            # as in a model: its authors leave what the last block gives to whoever reads it
            cast(Block, self.blocks[-1]).dropout = 0.0

    def initial_state(self, memory: int | None = None) -> StackState:
        """Before the first vector; `memory` is the configuration's unless given."""
        memory = self.config.memory if memory is None else memory
        if memory < 0:
            raise InputError(f"memory must not be negative, got {memory}")
        return StackState(memory, 0, (None,) * len(self.blocks))

    def forward(self, x_btd: Tensor, state: StackState | None = None) -> tuple[Tensor, StackState]:
        """What the last block gives for x (batch, time, width), and what to go on from."""
        state = self.initial_state() if state is None else state
        self._check(x_btd, state)
        context = Context(self.config, state.memory, state.position)
        after = []
        for block, remembered in zip(self.blocks, state.blocks, strict=True):
            x_btd, remembered = block(x_btd, remembered, context)
            after.append(remembered)
        return x_btd, StackState(state.memory, state.position + x_btd.shape[1], tuple(after))

    def _check(self, x_btd: Tensor, state: StackState) -> None:
        if x_btd.dim() != 3 or x_btd.shape[-1] != self.config.d_model or not x_btd.numel():
            raise InputError(
                f"a stack of width {self.config.d_model} reads (batch, time, "
                f"{self.config.d_model}), got {tuple(x_btd.shape)}"
            )
        if len(state.blocks) != len(self.blocks):
            raise InputError(
                f"the state belongs to a stack of {len(state.blocks)} blocks, this one has "
                f"{len(self.blocks)}; start with initial_state"
            )
        for block in state.blocks:
            if block is not None and block.batch != x_btd.shape[0]:
                raise InputError(
                    f"the state belongs to a batch of {block.batch}, the input to one of "
                    f"{x_btd.shape[0]}; start with initial_state or use the same batch"
                )
            if self.training and block is not None and not block.trainable:
                raise InputError(
                    "this state was made for inference; training starts from initial_state "
                    "or goes on with a state of its own"
                )
