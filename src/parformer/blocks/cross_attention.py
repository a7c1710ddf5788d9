"""Cross-attention: what a token takes from the text that an encoder has read."""

# b batch, t time, s source, d width, h heads, g key-value heads, k head width

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import groupby
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from parformer.blocks.attention import plain_head_sizes
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
from parformer.blocks.places import make_mask
from parformer.blocks.state import BlockState
from parformer.blocks.taps import attend_openly
from parformer.errors import InputError
from parformer.parts import StackConfig
from parformer.pattern import BlockSpec


@dataclass(frozen=True, eq=False)
class SourceMemory(BlockState):
    """Keys and values of the source: all that later steps need of it.

    Texts of one source that stand side by side, as beams do, have its keys once.
    """

    kv_bgsk: Tensor
    present_bs: Tensor | None = None
    """True where there is a token."""
    each: int = 1
    """Texts in a row that ask the same source; keys have a row for all of them."""

    @property
    def trainable(self) -> bool:
        return False

    def detached(self) -> SourceMemory:
        """The same with no gradient behind it."""
        return SourceMemory(self.kv_bgsk.detach(), self.present_bs, self.each)

    def tensors(self) -> dict[str, Tensor]:
        found = {"kv_bgsk": self.kv_bgsk}
        if self.present_bs is not None:
            found["present_bs"] = self.present_bs
        if self.each == 1:
            return found
        return {name: tensor.repeat_interleave(self.each, 0) for name, tensor in found.items()}

    @property
    def batch(self) -> int:
        return self.each * len(self.kv_bgsk)

    def rows(self, index_b: Tensor) -> Self:
        if torch.compiler.is_compiling():
            return super().rows(index_b)
        asked = [(n, len(list(same))) for n, same in groupby((index_b // self.each).tolist())]
        counts = {count for _, count in asked}
        if len(counts) != 1:
            return super().rows(index_b)
        found = replace(self, each=counts.pop())
        sources = [n for n, _ in asked]
        if sources == list(range(len(self.kv_bgsk))):
            return found
        chosen_n = torch.tensor(sources, device=index_b.device)
        present = None if self.present_bs is None else self.present_bs.index_select(0, chosen_n)
        return replace(found, kv_bgsk=self.kv_bgsk.index_select(0, chosen_n), present_bs=present)

    @property
    def length(self) -> int:
        return 0  # of no token of this text


@block("c")
class CrossAttention(Block):
    """Every token asks the source, all of it, wherever it stands."""

    options = {"heads": int, "head": int, "kv_heads": int}  # noqa: RUF012

    def __init__(self, config: StackConfig, spec: BlockSpec) -> None:
        super().__init__(config)
        self.heads, self.kv_heads, self.width = plain_head_sizes(config, spec.options)
        self.dropatt = config.dropatt
        inside, both = self.heads * self.width, 2 * self.kv_heads * self.width
        self.query = Linear(config.d_model, inside, bias=config.attention_bias)
        self.key_value = Linear(source_width(config), both, bias=config.attention_bias)
        self.out = Linear(inside, config.d_model, bias=config.attention_bias)

    def forward(
        self, x_btd: Tensor, state: BlockState | None, context: Context
    ) -> tuple[Tensor, BlockState | None]:
        assert state is None or isinstance(state, SourceMemory)
        if context.source is not None:
            kv_bgsk = self._heads(self.key_value(context.source.vectors_bsd))
            read = SourceMemory(kv_bgsk, context.source.padding)
        elif state is not None:
            read = state
        else:
            raise InputError("a decoder needs its source; give it with the first tokens")
        batch, time, _ = x_btd.shape
        q_btd = self.query(self.read(x_btd))
        # texts of one source ask it together, as if they were one long text
        q_bhtk = self._heads(q_btd.reshape(batch // read.each, read.each * time, -1))
        y_btd = self._attend(q_bhtk, read.kv_bgsk, read.present_bs, context)
        y_btd = y_btd.reshape(batch, time, -1)
        after = None if self.training else read.detached()
        return self.write(x_btd, self.out(y_btd)), after

    def _heads(self, x_bnd: Tensor) -> Tensor:
        return x_bnd.view(*x_bnd.shape[:2], -1, self.width).transpose(1, 2)

    def _attend(
        self, q_bhtk: Tensor, kv_bgsk: Tensor, present_bs: Tensor | None, context: Context
    ) -> Tensor:
        k_bgsk, v_bgsk = kv_bgsk.chunk(2, dim=1)
        time, keys = q_bhtk.shape[2], k_bgsk.shape[2]
        mask = make_mask(time, keys, q_bhtk, causal=False, reach=0, padding=present_bs)
        dropout = self.dropatt if self.training else 0.0
        if context.shows_weights:
            scaled_bhtk = q_bhtk / self.width**0.5
            y_bhtk = attend_openly(scaled_bhtk, k_bgsk, v_bgsk, mask, dropout, context.taps)
            return y_bhtk.transpose(1, 2).flatten(2)
        y_bhtk = F.scaled_dot_product_attention(
            q_bhtk,
            k_bgsk,
            v_bgsk,
            attn_mask=mask,
            dropout_p=dropout,
            enable_gqa=self.kv_heads != self.heads,
        )
        return y_bhtk.transpose(1, 2).flatten(2)

    @classmethod
    def cost(cls, config: StackConfig, spec: BlockSpec, shape: Shape) -> Cost:
        heads, kv_heads, width = plain_head_sizes(config, spec.options)
        d, inside, both = config.d_model, heads * width, 2 * kv_heads * width
        tokens, bias = shape.batch * shape.tgt_len, config.attention_bias
        source = linear_cost(source_width(config), both, shape.batch * shape.source, bias=bias)
        products = 2 * 2 * tokens * shape.source * inside
        return (
            linear_cost(d, inside, tokens, bias=bias)
            # later steps have the source's keys and values at hand
            + Cost(source.parameters, source.flops, 0)
            + linear_cost(inside, d, tokens, bias=bias)
            + Cost(norm_parameters(config), products, products)
            + Cost(state_bytes=BYTES * both * shape.batch * shape.source)
        )


def source_width(config: StackConfig) -> int:
    return config.d_source or config.d_model
