"""Synthesizer: attention whose weights need not come from comparing tokens (Tay et al. 2020).

    y = softmax(scores + mask) · W x

Scores are dense, random, fixed, factored, or vanilla (the scaled products of queries and keys), or
a sum of several with one softmax over it: `y[random+vanilla]`. `alpha` weighs the parts of a sum
by a learned softmax; for two of them that is the authors' σ(α) and 1 − σ(α).

A table knows `length` places, the model's window unless said. A longer text is read in windows
of that length, one after the other: a token sees those before it in its window, and the first of
each itself alone. What sees both sides is not cut: there a longer text is refused.
"""

# b batch, t time, m memory, n keys, d width, h heads, g heads of what is remembered, k head width

from __future__ import annotations

from itertools import pairwise
from typing import ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parformer.blocks.base import (
    BYTES,
    Block,
    Context,
    Cost,
    Shape,
    block,
    linear_cost,
    norm_parameters,
)
from parformer.blocks.linear import Linear
from parformer.blocks.memory import InputMemory, KeyValueMemory, append, keep_inputs
from parformer.blocks.places import make_mask
from parformer.blocks.state import BlockState
from parformer.blocks.synthetic import KINDS, PARTS, VANILLA, Scores, part_cost, sizes_of
from parformer.errors import InputError
from parformer.parts import StackConfig
from parformer.pattern import BlockSpec


@block("y")
class Synthesizer(Block):
    """A token takes from others in proportions that it, or nobody, worked out."""

    options: ClassVar = {
        **dict.fromkeys(("heads", "head", "length", "rank", "a", "b"), int),
        **dict.fromkeys(("alpha", "released", "bare"), bool),
    }
    summands = KINDS
    training_state = InputMemory

    def __init__(self, config: StackConfig, spec: BlockSpec) -> None:
        super().__init__(config)
        self.sizes, self.text = sizes_of(config, spec), str(spec)
        self.bare = "bare" in spec.options
        if self.bare:
            self.norm = nn.Identity()
        self.causal, self.reach, self.dropatt = config.causal, config.reach, config.dropatt
        inside, bias = self.sizes.inside, config.attention_bias
        self.query = Linear(config.d_model, inside, bias=bias) if self.sizes.asks else None
        self.key_value = Linear(config.d_model, self.sizes.remembered, bias=bias)
        self.scores = nn.ModuleDict(
            {kind: PARTS[kind](config, self.sizes) for kind in self.sizes.kinds if kind in PARTS}
        )
        self.alpha: nn.Parameter | None = None
        if "alpha" in spec.options:
            self.alpha = nn.Parameter(torch.empty(len(self.sizes.kinds) - 1))
        self.out = Linear(inside, config.d_model, bias=bias)

    def draw(self, generator: torch.Generator) -> set[nn.Parameter]:
        drawn: set[nn.Parameter] = set()
        for part in self.scores.values():
            drawn |= cast(Scores, part).draw(generator)
        if self.alpha is not None:
            self.alpha.zero_()
            drawn.add(self.alpha)
        return drawn

    def forward(
        self, x_btd: Tensor, state: BlockState | None, context: Context
    ) -> tuple[Tensor, BlockState | None]:
        time, length = x_btd.shape[1], self.sizes.length
        if not self.causal and time > length:
            raise InputError(
                f"{time} tokens are beyond the length {length} of {self.text!r}; give at most "
                f"{length}, or build it with a larger length="
            )
        if context.starts_b is not None and state is not None:
            # a graph of any length has one window; whoever runs it starts again where that is full
            first, past, spans = context.position, state.length, [(0, time)]
        else:
            first = context.position % length if self.causal else 0
            past = 0 if state is None else min(state.length, first)
            spans = windows(first, time, length)
        remember = self.causal and (context.memory > 0 or state is not None)
        after: BlockState | None
        if self.training and remember:
            read_btd, kv_bgnk, after = self._with_inputs(x_btd, state, past, context)
        else:
            read_btd, kv_bgnk, after = self._with_keys(x_btd, state, past, context)
        seen, weights = [], []
        for start, stop in spans:
            begin = 0 if start == 0 else past + start
            kept_bgnk = kv_bgnk[:, :, begin : past + stop]
            mask = self._mask(stop - start, kept_bgnk.shape[2], time - stop, x_btd, context)
            row = first + start if len(spans) == 1 else (first + start) % length
            own_btd, own = self._attend(read_btd[:, start:stop], kept_bgnk, row, mask)
            seen.append(own_btd)
            weights.append(F.pad(own, (begin, time - stop)) if context.shows_weights else own)
        y_btd = seen[0] if len(seen) == 1 else torch.cat(seen, dim=1)
        if context.taps is not None and context.shows_weights:
            context.taps.tell("weights", torch.cat(weights, dim=2).expand(len(x_btd), -1, -1, -1))
        return self.write(x_btd, self.out(y_btd)), after

    def _mask(
        self, time: int, keys: int, later: int, like: Tensor, context: Context
    ) -> Tensor | None:
        """What to add to the scores of a window that ends so many tokens before the step does."""
        causal, reach, padding = self.causal, self.reach, context.padding
        if padding is not None:
            end = padding.shape[1] - later
            padding = padding[:, end - keys : end]
        mask: Tensor | None = context.once(
            ("window", time, keys, later, causal, reach),
            lambda: make_mask(time, keys, like, causal=causal, reach=reach, padding=padding),
        )
        return mask

    def _with_inputs(
        self, x_btd: Tensor, state: BlockState | None, past: int, context: Context
    ) -> tuple[Tensor, Tensor, BlockState | None]:
        """Training: remembered inputs go through today's projections."""
        assert state is None or isinstance(state, InputMemory)  # Model refuses any other
        all_bnd = x_btd if state is None else torch.cat((state.inputs_bmd, x_btd), dim=1)
        read_bnd = self.read(all_bnd[:, all_bnd.shape[1] - x_btd.shape[1] - past :])
        kept = keep_inputs(all_bnd, self._memory(context))
        return read_bnd[:, past:], self._heads(self.key_value(read_bnd)), kept

    def _with_keys(
        self, x_btd: Tensor, state: BlockState | None, past: int, context: Context
    ) -> tuple[Tensor, Tensor, BlockState | None]:
        """Inference: what was projected is used as it is."""
        if isinstance(state, InputMemory):
            kv_bgmk = self._heads(self.key_value(self.read(state.inputs_bmd)))
            _, state = append(None, kv_bgmk, state.length, None)
        assert state is None or isinstance(state, KeyValueMemory)
        read_btd = self.read(x_btd)
        kv_bgtk = self._heads(self.key_value(read_btd))
        if not self.causal or (state is None and context.memory == 0):
            return read_btd, kv_bgtk, None
        kv_bgnk, after = append(state, kv_bgtk, self._memory(context), None)
        return read_btd, kv_bgnk[:, :, kv_bgnk.shape[2] - x_btd.shape[1] - past :], after

    def remember(
        self, x_btd: Tensor, state: BlockState | None, context: Context
    ) -> BlockState | None:
        if not self.causal or (context.memory == 0 and state is None):
            return None
        assert state is None or isinstance(state, InputMemory)
        x_btd = x_btd.detach()
        all_bnd = x_btd if state is None else torch.cat((state.inputs_bmd, x_btd), dim=1)
        return keep_inputs(all_bnd, self._memory(context))

    def _memory(self, context: Context) -> int:
        """Tokens to keep: of a whole window the next one sees none."""
        return min(context.memory, self.sizes.length - 1)

    def _heads(self, x_bnd: Tensor) -> Tensor:
        return x_bnd.view(*x_bnd.shape[:2], -1, self.sizes.width).transpose(1, 2)

    def _attend(
        self,
        read_btd: Tensor,
        kv_bgnk: Tensor,
        row: int,
        mask: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """What tokens of one window take from its values, and by which weights."""
        time, keys = read_btd.shape[1], kv_bgnk.shape[2]
        v_bhnk = kv_bgnk[:, -self.sizes.heads :]
        scores = self._mixed(read_btd, kv_bgnk, row, row + time - keys if self.causal else 0)
        weights = torch.softmax(scores if mask is None else scores + mask, dim=-1)
        used = weights
        if self.training and self.dropatt:
            used = F.dropout(weights.expand(len(v_bhnk), -1, -1, -1), self.dropatt)
        return taken(used.to(v_bhnk.dtype), v_bhnk).transpose(1, 2).flatten(2), weights

    def _mixed(self, read_btd: Tensor, kv_bgnk: Tensor, row: int, column: int) -> Tensor:
        """The sum of all scores, each with its weight."""
        sizes, keys = self.sizes, kv_bgnk.shape[2]
        q_bhtk = None if self.query is None else self._heads(self.query(read_btd))
        shares = None
        if self.alpha is not None:
            shares = torch.softmax(torch.cat((self.alpha, self.alpha.new_zeros(1))), dim=0)
        total: Tensor | None = None
        for number, kind in enumerate(sizes.kinds):
            if kind == VANILLA:
                assert q_bhtk is not None
                asked_bhtk = q_bhtk if sizes.released else q_bhtk / sizes.width**0.5
                scores = asked_bhtk @ kv_bgnk[:, : sizes.heads].mT
            else:
                scores = self.scores[kind](read_btd, q_bhtk, row, column, keys)
            scores = scores if shares is None else shares[number] * scores
            total = scores if total is None else total + scores
        assert total is not None
        return total.to(read_btd.dtype) if total.dtype != read_btd.dtype else total

    def read(self, x_btd: Tensor) -> Tensor:
        return x_btd if self.bare else super().read(x_btd)

    def write(self, x_btd: Tensor, y_btd: Tensor) -> Tensor:
        return y_btd if self.bare else super().write(x_btd, y_btd)

    @classmethod
    def cost(cls, config: StackConfig, spec: BlockSpec, shape: Shape) -> Cost:
        sizes = sizes_of(config, spec)
        d, bias, inside = config.d_model, config.attention_bias, sizes.inside
        keys, tokens = sizes.keys(shape), shape.batch * shape.tgt_len
        again = linear_cost(d, sizes.remembered, shape.batch * keys, bias=bias)
        cached = linear_cost(d, sizes.remembered, tokens, bias=bias)
        own = Cost(0 if "bare" in spec.options else norm_parameters(config))
        own += Cost(len(sizes.kinds) - 1 if "alpha" in spec.options else 0)
        products = 2 * tokens * keys * inside
        row = BYTES * sizes.remembered if config.causal else 0
        kept = min(shape.memory, sizes.length - 1)
        for kind in sizes.kinds:
            own += part_cost(kind, config, sizes, shape)
        if sizes.asks:
            own += linear_cost(d, inside, tokens, bias=bias)
        return (
            own
            + Cost(again.parameters, again.flops, cached.flops_cached)
            + Cost(0, products, products)
            + linear_cost(inside, d, tokens, bias=bias)
            + Cost(state_bytes_per_token=row, state_bytes=row * shape.batch * kept)
        )


def windows(first: int, time: int, length: int) -> list[tuple[int, int]]:
    """Where a step of so many tokens, which begins at a place of a window, is cut.

    >>> windows(6, 12, 8)
    [(0, 2), (2, 10), (10, 12)]
    """
    edges = [0, *range(length - first, time, length), time]
    return list(pairwise(edges))


def taken(weights: Tensor, v_bhnk: Tensor) -> Tensor:
    """What is taken of the values; weights that are the same for all texts are used in one go."""
    batch, heads, keys, width = v_bhnk.shape
    if torch.compiler.is_exporting() or len(weights) == batch:
        return weights @ v_bhnk
    beside_hnm = v_bhnk.permute(1, 2, 0, 3).reshape(heads, keys, batch * width)
    y_htm = torch.bmm(weights[0], beside_hnm)
    return y_htm.view(heads, -1, batch, width).permute(2, 0, 1, 3)
