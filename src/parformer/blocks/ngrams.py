"""Memory of n-grams: what was learned for the last few tokens is looked up and added.

Every order has a table whose rows are found by a hash; pairs of tokens have rows of their own as
far as √rows tokens go, so that 65,536 rows tell all pairs of bytes apart. No matrix is
multiplied: a row is gated by how well it agrees with the stream, since another n-gram may have
left it there.
"""

# b batch, t time, d width, k tokens before this step, w width of a row, o orders

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parformer.blocks.base import (
    TOKEN_BYTES,
    Block,
    Context,
    Cost,
    Options,
    Shape,
    block,
    norm_parameters,
)
from parformer.blocks.state import BlockState
from parformer.errors import ConfigError, InputError
from parformer.parts import StackConfig
from parformer.pattern import BlockSpec

ROWS = 16_384
TO = 4
NOTHING = -1
"""Stands before a text and in places that hold no token."""
MIXERS = (-7046029254386353131, -4658895280553007687)
"""Odd numbers whose bits look random, as whole numbers of 64 bits."""


class Sizes(NamedTuple):
    """What a block's options mean."""

    first: int
    last: int
    """The shortest and the longest n-grams, in tokens."""
    rows: int
    width: int

    @property
    def orders(self) -> range:
        return range(self.first, self.last + 1)


def sizes_of(config: StackConfig, options: Options) -> Sizes:
    last = int(options.get("to", TO))
    first = int(options.get("from", min(2, last)))
    sizes = Sizes(
        first,
        last,
        int(options.get("rows", ROWS)),
        int(options.get("width", max(1, config.d_model // 4))),
    )
    if not 2 <= first <= last:
        raise ConfigError(
            f"n remembers n-grams of 2 tokens or more, got from={first} to={last}; "
            "write such as n[to=4]"
        )
    if sizes.width > config.d_model:
        raise ConfigError(
            f"n has rows of width {sizes.width}, wider than the stream of {config.d_model}; "
            "lower n[width]"
        )
    return sizes


@dataclass(frozen=True, eq=False)
class Recent(BlockState):
    """The last tokens, as many as the longest n-gram has before its last."""

    tokens_bk: Tensor

    @property
    def length(self) -> int:
        return self.tokens_bk.shape[1]


@block("n")
class NGramMemory(Block):
    """Rows of tables, found by the last tokens."""

    options: ClassVar = {"from": int, "to": int, "rows": int, "width": int}
    training_state = Recent

    def __init__(self, config: StackConfig, spec: BlockSpec) -> None:
        super().__init__(config)
        self.sizes, self.causal = sizes_of(config, spec.options), config.causal
        shape, orders = (self.sizes.rows, self.sizes.width), self.sizes.orders
        self.rows = nn.ParameterList([nn.Parameter(torch.empty(shape)) for _ in orders])
        self.gate_scale = nn.Parameter(torch.empty(len(orders)))
        self.gate_bias = nn.Parameter(torch.empty(len(orders)))
        self.sparse = False
        """Whether gradients name the rows that were used, and no others."""

    def draw(self, generator: torch.Generator) -> set[nn.Parameter]:
        for table in self.rows:
            table.zero_()
        self.gate_scale.fill_(1.0)
        self.gate_bias.zero_()
        return {*self.rows, self.gate_scale, self.gate_bias}

    def forward(
        self, x_btd: Tensor, state: BlockState | None, context: Context
    ) -> tuple[Tensor, BlockState | None]:
        known_br = self.known(state, context)
        time, width = x_btd.shape[1:]
        read_btd = self.read(x_btd)
        found_btd = torch.zeros_like(read_btd)
        first = 0
        each = zip(self.row_numbers(known_br, time), self.rows, strict=True)
        for place, (number_bt, table) in enumerate(each):
            row_btw = F.embedding(number_bt, table, sparse=self.sparse and self.training)
            channels = torch.arange(first, first + self.sizes.width, device=x_btd.device) % width
            agrees_bt1 = (read_btd[..., channels] * row_btw).sum(-1, keepdim=True)
            scaled = agrees_bt1 * (self.gate_scale[place] / math.sqrt(self.sizes.width))
            gated_btw = torch.sigmoid(scaled + self.gate_bias[place]) * row_btw
            found_btd = found_btd.index_add(-1, channels, gated_btw.to(found_btd.dtype))
            # tables that are narrower than the stream write side by side, and round again
            first = (first + self.sizes.width) % width
        return self.write(x_btd, found_btd), self.kept(known_br)

    def remember(
        self, x_btd: Tensor, state: BlockState | None, context: Context
    ) -> BlockState | None:
        return self.kept(self.known(state, context))

    def kept(self, known_br: Tensor) -> Recent | None:
        if not self.causal:
            return None  # who sees both sides has no step to come
        return Recent(known_br[:, known_br.shape[1] - (self.sizes.last - 1) :].clone())

    def known(self, state: BlockState | None, context: Context) -> Tensor:
        """The tokens before this step and those of it."""
        tokens_bt = context.tokens
        if tokens_bt is None:
            raise InputError(
                "n looks tokens up, and a stack by itself reads vectors; build a model with it"
            )
        tokens_bt = tokens_bt.long()
        if context.padding is not None:
            there_bt = context.padding[:, -tokens_bt.shape[1] :]
            tokens_bt = tokens_bt.masked_fill(~there_bt, NOTHING)
        if state is None:
            shape = (len(tokens_bt), self.sizes.last - 1)
            before_bk = tokens_bt.new_full(shape, NOTHING)
        else:
            assert isinstance(state, Recent)
            before_bk = state.tokens_bk
        return torch.cat((before_bk, tokens_bt), dim=1)

    def row_numbers(self, known_br: Tensor, time: int) -> Iterator[Tensor]:
        """Which row of its table each order asks for."""
        start, rows = known_br.shape[1] - time, self.sizes.rows
        last_bt = known_br[:, start:]
        hash_bt = mixed(torch.zeros_like(last_bt), last_bt)
        for order in range(2, self.sizes.last + 1):
            start -= 1
            before_bt = known_br[:, start : start + time]
            hash_bt = mixed(hash_bt, before_bt)
            number_bt = (hash_bt >> 24 & (2**31 - 1)) % rows
            if order == 2:
                side = math.isqrt(rows)
                own_bt = (before_bt >= 0) & (before_bt < side) & (last_bt < side)
                number_bt = torch.where(own_bt, before_bt * side + last_bt, number_bt)
            if order >= self.sizes.first:
                yield number_bt

    @classmethod
    def cost(cls, config: StackConfig, spec: BlockSpec, shape: Shape) -> Cost:
        sizes = sizes_of(config, spec.options)
        orders = len(sizes.orders)
        return Cost(
            parameters=orders * (sizes.rows * sizes.width + 2) + norm_parameters(config),
            state_bytes=TOKEN_BYTES * (sizes.last - 1) * shape.batch * config.causal,
        )


def mixed(hash_bt: Tensor, tokens_bt: Tensor) -> Tensor:
    """The hash of n-grams with one more token before them."""
    hash_bt = (hash_bt ^ (tokens_bt + 2)) * MIXERS[0]
    return (hash_bt ^ hash_bt >> 29) * MIXERS[1]
