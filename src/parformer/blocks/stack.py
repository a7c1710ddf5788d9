"""The only loop over blocks: vectors in, vectors out.

>>> import torch
>>> from parformer.config import preset
>>> stack = Stack(preset("srupp-pocket", dropout=0.0))
>>> y_btd, state = stack(torch.zeros(2, 5, 384))
>>> y_btd.shape, state.position, stack(y_btd, state)[1].position
(torch.Size([2, 5, 384]), 5, 10)
"""

# b batch, t time, d width

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parformer.blocks.base import (
    Block,
    Context,
    Cost,
    Shape,
    Source,
    find_block,
    make_norm,
    norm_parameters,
)
from parformer.blocks.places import Places, sinusoids
from parformer.blocks.state import BlockState, join_blocks, register, rows_of
from parformer.blocks.taps import Taps
from parformer.errors import ConfigError, InputError
from parformer.parts import InsideConfig, StackConfig
from parformer.pattern import BlockSpec, Pattern

Remembered: TypeAlias = tuple[BlockState | None, ...]
"""What each block of a stack remembers."""

Shared: TypeAlias = dict[str, tuple[BlockSpec, str, Block]]
"""Blocks by the name that they are shared under, with their spec and what they read."""


@dataclass(frozen=True, eq=False)
class StackState:
    """What a stack remembers of the vectors so far. Give it back with those that follow."""

    memory: int
    """Places that attention may keep."""
    position: int
    """Places read so far."""
    blocks: Remembered

    def rows(self, index_b: Tensor) -> StackState:
        """The past of these rows of the batch, in this order."""
        return replace(self, blocks=rows_of(self.blocks, index_b))

    @staticmethod
    def join(states: Sequence[StackState]) -> StackState:
        """The pasts of several batches as one."""
        return replace(states[0], blocks=join_blocks([state.blocks for state in states]))


register(
    StackState,
    lambda state: {"blocks": state.blocks},
    lambda parts, known: StackState(*known, **parts),
    lambda state: (state.memory, state.position),
)


class Stack(nn.Module):
    """The blocks of a pattern, one after the other."""

    config: StackConfig

    def __init__(
        self, config: StackConfig, shared: Shared | None = None, *, inherits: bool = False
    ) -> None:
        """With `inherits` the blocks share what those of the stack around them share."""
        super().__init__()
        self.config = config
        self.make_blocks(config, {} if shared is None else shared, inherits=inherits)

    def make_blocks(self, config: StackConfig, shared: Shared, *, inherits: bool = False) -> None:
        """The blocks, and what they share."""
        self.inherits = inherits
        self.blocks = nn.ModuleList(make_block(config, spec, shared) for spec in config.pattern)
        if config.drop_once:
            cast(Block, self.blocks[-1]).dropout = 0.0
        self.final_norm = make_norm(config) if config.final_norm else None
        self.content_bias: nn.Parameter | None = None
        self.position_bias: nn.Parameter | None = None
        if config.shared_biases and not inherits:
            inside = config.n_head * config.head_width(config.n_head)
            self.content_bias = nn.Parameter(torch.empty(inside))
            self.position_bias = nn.Parameter(torch.empty(inside))
        self._sinusoids: dict[int, Tensor] = {}

    def run(
        self,
        x_btd: Tensor,
        before: Sequence[BlockState | None],
        context: Context,
        first: int = 0,
    ) -> tuple[Tensor, Remembered]:
        """What the last block gives, and what each of them remembers.

        Whoever listens knows the blocks by their numbers, from `first` on.
        """
        if not self.inherits and self.config.positions == "relative":
            context = replace(context, places=self.places())
        after: list[BlockState | None] = []
        for block, remembered in zip(self.blocks, before, strict=True):
            if context.taps is None:
                x_btd, remembered = block(x_btd, remembered, context)
            else:
                here = context.taps.at(first + len(after))
                here.tell("input", x_btd)
                x_btd, remembered = block(x_btd, remembered, replace(context, taps=here))
                here.tell("output", x_btd)
            after.append(remembered)
        if self.final_norm is not None:
            x_btd = self.final_norm(x_btd)
        return x_btd, tuple(after)

    def forward(
        self,
        x_btd: Tensor,
        state: StackState | None = None,
        *,
        padding: Tensor | None = None,
        taps: Taps | None = None,
        source: Source | None = None,
    ) -> tuple[Tensor, StackState]:
        """What the stack gives for x (batch, time, width), and what to go on from.

        `padding` (batch, remembered places and time) is true where there is something. `source`
        comes with the first vectors, where blocks look at one.
        """
        if self.config.numbered:
            raise ConfigError(
                f"a stack by itself has no {self.config.positions} positions, which belong to an "
                "embedding; "
                "set positions='rotary' or 'none', or build the model"
            )
        state = self.initial_state() if state is None else state
        self._check(x_btd, state)
        context = Context(state.memory, state.position, padding, source, taps=taps)
        x_btd, after = self.run(x_btd, state.blocks, context)
        return x_btd, StackState(state.memory, state.position + x_btd.shape[1], after)

    def initial_state(self, memory: int | None = None) -> StackState:
        """Before the first vector; `memory` is the configuration's unless given."""
        memory = self.config.memory if memory is None else memory
        if memory < 0:
            raise InputError(f"memory must not be negative, got {memory}")
        return StackState(memory, 0, (None,) * len(self.blocks))

    def zeros(self, batch: int, memory: int) -> Remembered:
        """Memories full of zeros, for blocks that have one to fill."""
        return tuple(cast(Block, block).zeros(batch, memory) for block in self.blocks)

    def remember(
        self, x_btd: Tensor, before: Sequence[BlockState | None], context: Context
    ) -> Remembered:
        """What blocks would remember that need not run for it."""
        pairs = zip(self.blocks, before, strict=True)
        return tuple(cast(Block, block).remember(x_btd, known, context) for block, known in pairs)

    def recall(self, parts: Sequence[Mapping[str, Tensor]]) -> Remembered:
        """The training memories that were taken apart, block by block."""
        pairs = zip(self.blocks, parts, strict=True)
        return tuple(cast(Block, block).recall(own) if own else None for block, own in pairs)

    def places(self) -> Places:
        """Distances and biases for one step."""
        content, position = self.content_bias, self.position_bias
        shared = None if content is None or position is None else (content, position)
        return Places(self._distance_table, shared)

    def _distance_table(self, count: int, ahead: int) -> Tensor:
        if torch.compiler.is_exporting():
            return sinusoids(count, self.config.d_model, self.config.clamp_len, ahead)
        self.extend_distances(count, ahead)
        known = self._sinusoids[ahead]
        table = known[known.shape[0] - count - ahead :].to(next(self.parameters()).dtype)
        if self.training and self.config.dropout:
            return F.dropout(table, self.config.dropout)
        return table

    def extend_distances(self, count: int, ahead: int = 0) -> None:
        """Have as many at hand; outside of a graph, where what a module keeps may change."""
        device = next(self.parameters()).device
        known = self._sinusoids.get(ahead)
        if known is None or known.shape[0] < count + ahead or known.device != device:
            with torch.inference_mode(False):  # training may need them after an evaluation
                width, clamp = self.config.d_model, self.config.clamp_len
                self._sinusoids[ahead] = sinusoids(max(count, 64), width, clamp, ahead).to(device)

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


def make_block(config: StackConfig, spec: BlockSpec, shared: Shared) -> Block:
    """The block that a pattern asks for; one that is shared already is given again."""
    cls = find_block(spec)
    if spec.inside is not None:
        return cls(config, spec, shared)  # type: ignore[call-arg]
    name = spec.options.get("share")
    if name is None:
        return cls.make(config, spec)
    reads = stream_of(config)
    if str(name) not in shared:
        shared[str(name)] = (spec, reads, cls.make(config, spec))
    known, stream, block = shared[str(name)]
    check_sharing(spec, reads, known, stream)
    return block


def check_sharing(spec: BlockSpec, reads: str, known: BlockSpec, stream: str) -> None:
    """Blocks of one name are the same, on streams of the same width."""
    if known != spec or stream != reads:
        raise ConfigError(
            f"{str(spec)!r} of {reads} cannot share the weights of {str(known)!r} "
            f"of {stream}; give it another name"
        )


def stream_of(config: StackConfig) -> str:
    """What blocks of a stack read, in words."""
    if not isinstance(config, InsideConfig) or not config.feed:
        return f"width {config.d_model}"
    return f"width {config.d_model}, feed={config.feed} from {config.d_outside}"


Seen = dict[str, tuple[BlockSpec, str]]
"""Whose weights have names, and what they read."""


def stack_costs(config: StackConfig, pattern: Pattern, shape: Shape, seen: Seen) -> Iterator[Cost]:
    """The price of every block; weights that were seen before are not counted again."""
    priced: dict[BlockSpec, Cost] = {}
    reads = stream_of(config)
    for spec in pattern:
        cls, name = find_block(spec), spec.options.get("share")
        if spec.inside is not None:
            yield cls.cost(config, spec, shape, seen)  # type: ignore[call-arg]
            continue
        if spec not in priced:
            priced[spec] = cls.cost(config, spec, shape)
        known = name is not None and str(name) in seen
        if name is not None:
            check_sharing(spec, reads, *seen.setdefault(str(name), (spec, reads)))
        yield priced[spec].shared() if known else priced[spec]


def stack_parameters(config: StackConfig) -> int:
    """What a stack has beside its blocks: biases that they share, a norm in the end."""
    biases = 2 * config.n_head * config.head_width(config.n_head) if config.shared_biases else 0
    return biases + (norm_parameters(config) if config.final_norm else 0)
