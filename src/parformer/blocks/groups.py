"""Blocks that have a stack inside: one that narrows the stream, one that uses its weights again.

`<sffff>` projects the stream down, runs its inside there and projects up again (MobileBERT);
`{sf}x12` runs its inside twelve times with one set of weights (ALBERT).

Who feeds the attention inside a bottleneck stands behind it: the narrow stream, which is normed
then (`feed=inside`); queries and keys from a bottleneck of their own, values from the stream
outside (`feed=shared`); or all of them from outside (`feed=outside`).
"""

# b batch, t time, d width, w width inside

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import cast

from torch import Tensor, nn

from parformer.blocks.base import (
    GROUPS,
    Block,
    Context,
    Cost,
    Shape,
    linear_cost,
    make_norm,
    norm_parameters,
)
from parformer.blocks.linear import Linear
from parformer.blocks.stack import (
    Remembered,
    Seen,
    Shared,
    Stack,
    stack_costs,
    stack_parameters,
)
from parformer.blocks.state import BlockState, GroupState, apart, together
from parformer.errors import ConfigError
from parformer.parts import InsideConfig, StackConfig
from parformer.pattern import BlockSpec, Pattern


class Group(Block):
    """A block that runs a stack, once or more often."""

    state_needs_run = True
    inside: Stack
    times = 1

    def before(self, state: BlockState | None) -> Remembered:
        assert state is None or isinstance(state, GroupState)
        blank: Remembered = (None,) * (self.times * len(self.inside.blocks))
        return blank if state is None else state.blocks

    def zeros(self, batch: int, memory: int) -> BlockState | None:
        return together(self.inside.zeros(batch, memory) * self.times)

    def recall(self, tensors: Mapping[str, Tensor]) -> BlockState:
        count = len(self.inside.blocks)
        parts = apart(tensors, count * self.times)
        rounds = (self.inside.recall(parts[n : n + count]) for n in range(0, len(parts), count))
        return GroupState(tuple(state for each in rounds for state in each))


class Bottleneck(Group):
    """Down to a narrow stream, through the inside, and up again."""

    letter = "<"
    options = {"feed": str, "width": int, "wide": bool}  # noqa: RUF012
    words = {"feed": ("inside", "shared", "outside")}  # noqa: RUF012

    def __init__(self, config: StackConfig, spec: BlockSpec, shared: Shared) -> None:
        super().__init__(config)
        narrow = inside_config(config, spec)
        d, width, bias = config.d_model, narrow.d_model, config.feed_forward_bias
        self.feed = narrow.feed
        self.down = Linear(d, width, bias=bias)
        self.down_norm = make_norm(narrow) if narrow.feed else None
        self.shared = Linear(d, width, bias=bias) if narrow.feed == "shared" else None
        self.shared_norm = make_norm(narrow) if narrow.feed == "shared" else None
        self.inside = Stack(narrow, shared)
        self.out = Linear(width, d, bias=bias)

    def forward(
        self, x_btd: Tensor, state: BlockState | None, context: Context
    ) -> tuple[Tensor, BlockState | None]:
        read_btd = self.read(x_btd)
        x_btw = self.down(read_btd)
        if self.down_norm is not None:
            x_btw = self.down_norm(x_btw)
        if self.shared is not None and self.shared_norm is not None:
            context = replace(context, feed=(self.shared_norm(self.shared(read_btd)), read_btd))
        elif self.feed == "outside":
            context = replace(context, feed=(read_btd,))
        x_btw, after = self.inside.run(x_btw, self.before(state), context)
        return self.write(x_btd, self.out(x_btw)), together(after)

    @classmethod
    def cost(
        cls, config: StackConfig, spec: BlockSpec, shape: Shape, seen: Seen | None = None
    ) -> Cost:
        narrow = inside_config(config, spec)
        d, width, bias = config.d_model, narrow.d_model, config.feed_forward_bias
        tokens = shape.batch * shape.tgt_len
        own = linear_cost(d, width, tokens, bias=bias) + linear_cost(width, d, tokens, bias=bias)
        if narrow.feed:
            own += Cost(norm_parameters(narrow))
        if narrow.feed == "shared":
            own += linear_cost(d, width, tokens, bias=bias) + Cost(norm_parameters(narrow))
        inside = stack_costs(narrow, narrow.pattern, shape, {} if seen is None else seen)
        return sum(inside, own + Cost(norm_parameters(config) + stack_parameters(narrow)))


class Repeated(Group):
    """The inside several times, with the same weights and a memory of its own each time."""

    letter = "{"

    def __init__(self, config: StackConfig, spec: BlockSpec, shared: Shared) -> None:
        nn.Module.__init__(self)
        self.times = spec.times
        once = config.stack(pattern=inside_of(spec), final_norm=False, drop_once=False)
        self.inside = Stack(once, shared, inherits=True)

    def forward(
        self, x_btd: Tensor, state: BlockState | None, context: Context
    ) -> tuple[Tensor, BlockState | None]:
        before, after = self.before(state), list[BlockState | None]()
        count = len(self.inside.blocks)
        for start in range(0, len(before), count):
            x_btd, known = self.inside.run(x_btd, before[start : start + count], context, start)
            after += known
        return x_btd, together(after)

    @classmethod
    def cost(
        cls, config: StackConfig, spec: BlockSpec, shape: Shape, seen: Seen | None = None
    ) -> Cost:
        inside = stack_costs(config, inside_of(spec), shape, {} if seen is None else seen)
        once = sum(inside, Cost())
        again = (once.shared() for _ in range(spec.times - 1))
        return sum(again, once)


def placed(
    stack: Stack, before: str = "", first: int = 0
) -> Iterator[tuple[str, BlockSpec, Block]]:
    """Every block that runs, by its place, as whoever listens to them knows it.

    >>> from parformer.config import preset
    >>> stack = Stack(preset("pocket", pattern="{sf}x2 f"))
    >>> [(place, str(spec)) for place, spec, _ in placed(stack)]
    [('0.0', 's'), ('0.1', 'f'), ('0.2', 's'), ('0.3', 'f'), ('1', 'f')]
    """
    pairs = zip(stack.config.pattern, stack.blocks, strict=True)
    for number, (spec, module) in enumerate(pairs, start=first):
        if not isinstance(module, Group):
            yield f"{before}{number}", spec, cast(Block, module)
            continue
        count = len(module.inside.blocks)
        for turn in range(module.times):
            yield from placed(module.inside, f"{before}{number}.", turn * count)


def inside_of(spec: BlockSpec) -> Pattern:
    return cast(Pattern, spec.inside)


def inside_config(config: StackConfig, spec: BlockSpec) -> InsideConfig:
    """What a bottleneck's inside is told, if there is attention for what is fed to it."""
    narrow = config.narrowed(spec)
    if narrow.feed in ("shared", "outside") and not attends(narrow.pattern):
        raise ConfigError(
            f"feed={narrow.feed} in {str(spec)!r} is what s inside reads, and there is none; "
            "leave it out or write an s"
        )
    return narrow


def attends(pattern: Pattern) -> bool:
    """Whether there is an s, not counting those in a bottleneck of their own."""
    groups = (block.inside for block in pattern if block.inside and block.letter != "<")
    return "s" in pattern.letters or any(map(attends, groups))


GROUPS["<"], GROUPS["{"] = Bottleneck, Repeated
