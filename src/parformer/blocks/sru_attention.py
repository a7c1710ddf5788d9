"""SRU++: a recurrence whose projection is attention (Lei 2021).

    z = W x            queries are z itself; keys and values are made from it: K = Wᵏ z, V = Wᵛ z
    u = Wᵒ norm(z + α · softmax(z Kᵀ / √width) V)
    h = recurrence(u, x)

α starts from zero, so the recurrence learns first and attention sets in later. There are no
positions: the recurrence tells where a token stands.
"""

# b batch, t time, m memory, n = m + t keys, d width, p width of the projection, h heads,
# g = 2 h: keys of all heads, then values; k head width

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parformer.blocks.attention import see_mask
from parformer.blocks.base import (
    BYTES,
    Context,
    Cost,
    Options,
    Shape,
    block,
    linear_cost,
    make_norm,
    norm_parameters,
)
from parformer.blocks.cross_attention import SourceMemory
from parformer.blocks.linear import Linear
from parformer.blocks.memory import InputMemory, KeyValueMemory, append, keep_inputs
from parformer.blocks.places import make_mask
from parformer.blocks.sru import Recurrent, inside_width, norm_place, recurrence_cost
from parformer.blocks.state import BlockState
from parformer.blocks.taps import attend_openly
from parformer.errors import ConfigError, InputError
from parformer.kernels.attention import attend, usable
from parformer.parts import StackConfig
from parformer.pattern import BlockSpec


@dataclass(frozen=True, eq=False)
class AttentiveMemory(BlockState):
    """While training: the cell, and the inputs that attention may still look at."""

    cell_bd: Tensor
    inputs_bmd: Tensor | None = None

    @property
    def length(self) -> int:
        return 0 if self.inputs_bmd is None else self.inputs_bmd.shape[1]


@dataclass(frozen=True, eq=False)
class AttentiveKeys(BlockState):
    """For inference: the cell, and keys and values as they were projected."""

    cell_bd: Tensor
    past: KeyValueMemory
    source: SourceMemory | None = None
    """Keys and values of the source, for `a[source]`."""

    @property
    def trainable(self) -> bool:
        return False

    @property
    def length(self) -> int:
        return self.past.length

    def tensors(self) -> dict[str, Tensor]:
        read = {} if self.source is None else self.source.tensors()
        known = {f"source_{name}": tensor for name, tensor in read.items()}
        return {"cell_bd": self.cell_bd, **self.past.tensors(), **known}

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> Self:
        known = {n.removeprefix("source_"): t for n, t in tensors.items() if n.startswith("source")}
        read = SourceMemory.of(known) if known else None
        return cls(tensors["cell_bd"], KeyValueMemory.of(tensors), read)

    def fitted(self, length: int) -> Self:
        return replace(self, past=self.past.fitted(length))


@block("a")
class SRUAttention(Recurrent):
    """A token asks the past before it mixes into the cell."""

    options = {  # noqa: RUF012
        "heads": int,
        "width": int,
        "norm": str,
        "qkv": bool,
        "source": bool,
        "both": bool,
    }
    training_state = AttentiveMemory

    def __init__(self, config: StackConfig, spec: BlockSpec) -> None:
        inside, heads, place = attention_sizes(config, spec.options)
        super().__init__(config, inside, spec.options)
        self.heads, self.place = heads, place
        self.causal, self.reads_source = config.causal, "source" in spec.options
        self.width, self.stream = inside // heads, config.d_model
        self.reach = config.reach
        self.dropatt = config.dropatt
        self.project = Linear(config.d_model, inside, bias=False)
        self.query = Linear(inside, inside, bias=False) if "qkv" in spec.options else None
        self.key_value = Linear(inside, 2 * inside, bias=False)
        self.alpha = nn.Parameter(torch.empty(1))
        self.inner_norm = None if place == "off" else make_norm(config, inside)

    def forward(
        self, x_btd: Tensor, state: BlockState | None, context: Context
    ) -> tuple[Tensor, BlockState | None]:
        assert state is None or isinstance(state, AttentiveMemory | AttentiveKeys)
        cell_bd = None if state is None else state.cell_bd
        past: InputMemory | KeyValueMemory | None = None
        if isinstance(state, AttentiveKeys):
            past = state.past
        elif state is not None and state.inputs_bmd is not None:
            past = InputMemory(state.inputs_bmd)
        after: AttentiveMemory | AttentiveKeys
        if self.reads_source or not self.causal:
            return self._beside(x_btd, state, past, context)
        if self.training and (context.memory > 0 or past is not None):
            assert not isinstance(past, KeyValueMemory)  # Model refuses such a state
            z_btp, seen_btp, inputs = self._with_inputs(x_btd, past, context)
            y_btd, last_bd = self._after(x_btd, z_btp, seen_btp, cell_bd)
            after = AttentiveMemory(last_bd, None if inputs is None else inputs.inputs_bmd)
        else:
            z_btp, seen_btp, keys = self._with_keys(x_btd, past, context)
            y_btd, last_bd = self._after(x_btd, z_btp, seen_btp, cell_bd)
            after = AttentiveMemory(last_bd) if keys is None else AttentiveKeys(last_bd, keys)
        return y_btd, after

    def _beside(
        self,
        x_btd: Tensor,
        state: BlockState | None,
        past: InputMemory | KeyValueMemory | None,
        context: Context,
    ) -> tuple[Tensor, BlockState | None]:
        """For translation: an encoder, or a decoder that looks at the source before its text."""
        assert not isinstance(past, InputMemory)  # nobody carries inputs from pair to pair
        read = self._source_keys(state, context)
        z_btp = self.project(x_btd)
        read_btp = self._read(z_btp)
        kv_bgtk = self._heads(self.key_value(read_btp))
        kept = None
        if self.causal and not self.training:
            kv_bgtk, kept = append(past, kv_bgtk, context.memory, None)
        q_bhtk = self._heads(self._ask(read_btp))
        mask = make_mask(
            q_bhtk.shape[2],
            kv_bgtk.shape[2],
            q_bhtk,
            causal=self.causal,
            reach=self.reach,
            padding=context.padding,
        )
        if read is not None:
            mask = beside_source(mask, read, q_bhtk, kv_bgtk.shape[2])
            k_bhnk, v_bhnk = (
                torch.cat(both, dim=2)
                for both in zip(read.kv_bgsk.chunk(2, 1), kv_bgtk.chunk(2, 1), strict=True)
            )
        else:
            k_bhnk, v_bhnk = kv_bgtk.chunk(2, dim=1)
        dropout = self.dropatt if self.training else 0.0
        if context.shows_weights:
            scaled_bhtk = q_bhtk / self.width**0.5
            seen_bhtk = attend_openly(scaled_bhtk, k_bhnk, v_bhnk, mask, dropout, context.taps)
        else:
            seen_bhtk = F.scaled_dot_product_attention(
                q_bhtk, k_bhnk, v_bhnk, attn_mask=mask, dropout_p=dropout
            )
        cell_bd = state.cell_bd if isinstance(state, AttentiveMemory | AttentiveKeys) else None
        seen_btp = seen_bhtk.transpose(1, 2).flatten(2)
        y_btd, last_bd = self._after(x_btd, z_btp, seen_btp, cell_bd, context.padding)
        if kept is None:
            return y_btd, AttentiveMemory(last_bd) if self.causal else None
        return y_btd, AttentiveKeys(last_bd, kept, None if read is None else read.detached())

    def _source_keys(self, state: BlockState | None, context: Context) -> SourceMemory | None:
        """Keys and values of the source, by the maps that the block's own text goes through."""
        if not self.reads_source:
            return None
        if context.source is not None:
            read_bsp = self._read(self.project(context.source.vectors_bsd))
            return SourceMemory(self._heads(self.key_value(read_bsp)), context.source.padding)
        if not isinstance(state, AttentiveKeys) or state.source is None:
            raise InputError("a decoder needs its source; give it with the first tokens")
        return state.source

    def _with_inputs(
        self, x_btd: Tensor, past: InputMemory | None, context: Context
    ) -> tuple[Tensor, Tensor, InputMemory | None]:
        """Training: remembered inputs go through today's projections."""
        all_bnd = x_btd if past is None else torch.cat((past.inputs_bmd, x_btd), dim=1)
        z_bnp = self.project(all_bnd)
        read_bnp = self._read(z_bnp)
        first = 0 if past is None else past.length
        kv_bnp = self.key_value(read_bnp)
        q_btp = self._ask(read_bnp[:, first:])
        kept = keep_inputs(all_bnd, context.memory)
        return z_bnp[:, first:], self._attend(q_btp, kv_bnp, context), kept

    def _with_keys(
        self, x_btd: Tensor, past: InputMemory | KeyValueMemory | None, context: Context
    ) -> tuple[Tensor, Tensor, KeyValueMemory | None]:
        """Inference: remembered keys and values are used as they are."""
        if isinstance(past, InputMemory):
            kv_bmp = self.key_value(self._read(self.project(past.inputs_bmd)))
            _, past = append(None, self._heads(kv_bmp), past.length, None)
        z_btp = self.project(x_btd)
        read_btp = self._read(z_btp)
        q_btp, kv_btp = self._ask(read_btp), self.key_value(read_btp)
        if past is None and context.memory == 0:
            return z_btp, self._attend(q_btp, kv_btp, context), None
        kv_bgnk, after = append(past, self._heads(kv_btp), context.memory, None)
        return z_btp, self._attend_plainly(self._heads(q_btp), kv_bgnk, context), after

    def _read(self, z_bnp: Tensor) -> Tensor:
        """What queries, keys and values are made from."""
        if self.place != "pre" or self.inner_norm is None:
            return z_bnp
        normed_bnp: Tensor = self.inner_norm(z_bnp)
        return normed_bnp.to(z_bnp.dtype)  # under autocast a norm answers in fp32

    def _ask(self, read_btp: Tensor) -> Tensor:
        return read_btp if self.query is None else self.query(read_btp)

    def _after(
        self,
        x_btd: Tensor,
        z_btp: Tensor,
        seen_btp: Tensor,
        cell_bd: Tensor | None,
        present_bt: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """What attention saw joins the projection, and the recurrence takes both."""
        inside_btp = z_btp + self.alpha * seen_btp
        if self.place == "post" and self.inner_norm is not None:
            inside_btp = self.inner_norm(inside_btp)
        if self.training and self.inner_dropout:
            inside_btp = F.dropout(inside_btp, self.inner_dropout)
        return self.recur(x_btd, inside_btp, cell_bd, present_bt)

    def _heads(self, x_bnp: Tensor) -> Tensor:
        return x_bnp.view(*x_bnp.shape[:2], -1, self.width).transpose(1, 2)

    def _attend(self, q_btp: Tensor, kv_bnp: Tensor, context: Context) -> Tensor:
        """Attention over keys that were all projected in this step."""
        keys = kv_bnp.shape[1]
        dropout = self.dropatt if self.training else 0.0
        if context.shows_weights or not usable(q_btp, keys, dropout):
            return self._attend_plainly(self._heads(q_btp), self._heads(kv_bnp), context)
        groups = {"heads": self.heads, "groups": self.heads}
        return attend(q_btp, kv_bnp, None, None, **groups, causal=True, limit=self.reach or keys)

    def _attend_plainly(self, q_bhtk: Tensor, kv_bgnk: Tensor, context: Context) -> Tensor:
        k_bhnk, v_bhnk = kv_bgnk.chunk(2, dim=1)
        time, keys = q_bhtk.shape[2], k_bhnk.shape[2]
        alone = bool(time == keys and time > 1 and not self.reach and not context.shows_weights)
        mask = None
        if not alone:
            mask = see_mask(time, keys, q_bhtk, context, causal=True, reach=self.reach)
        dropout = self.dropatt if self.training else 0.0
        if context.shows_weights:
            scaled_bhtk = q_bhtk / self.width**0.5
            seen_bhtk = attend_openly(scaled_bhtk, k_bhnk, v_bhnk, mask, dropout, context.taps)
            return seen_bhtk.transpose(1, 2).flatten(2)
        seen_bhtk = F.scaled_dot_product_attention(
            q_bhtk,
            k_bhnk,
            v_bhnk,
            attn_mask=mask,
            is_causal=alone,
            dropout_p=dropout,
        )
        return seen_bhtk.transpose(1, 2).flatten(2)

    def zeros(self, batch: int, memory: int) -> BlockState | None:
        like = self.gate_weight
        kind = torch.promote_types(like.dtype, torch.float32)
        cell_bd = like.new_zeros(batch, self.stream, dtype=kind).detach()
        return AttentiveMemory(cell_bd, like.new_zeros(batch, memory, self.stream).detach())

    def draw(self, generator: torch.Generator) -> set[nn.Parameter]:
        self.alpha.zero_()
        return super().draw(generator)

    @classmethod
    def cost(cls, config: StackConfig, spec: BlockSpec, shape: Shape) -> Cost:
        inside, _, place = attention_sizes(config, spec.options)
        batch, time, keys, d = shape.batch, shape.tgt_len, shape.keys, config.d_model
        projected = linear_cost(d, inside, batch * keys, bias=False)
        projected += linear_cost(inside, 2 * inside, batch * keys, bias=False)
        cached = linear_cost(d, inside, batch * time, bias=False)
        cached += linear_cost(inside, 2 * inside, batch * time, bias=False)
        products = 2 * 2 * batch * time * keys * inside
        row = BYTES * 2 * inside
        price = recurrence_cost(config, inside, spec.options, shape)
        if "qkv" in spec.options:
            price += linear_cost(inside, inside, batch * time, bias=False)
        if "source" in spec.options:
            price += source_cost(d, inside, shape)
        norm = 0 if place == "off" else norm_parameters(config, inside)
        return (
            price
            + Cost(projected.parameters, projected.flops, cached.flops_cached)
            + Cost(1 + norm, products, products)
            + Cost(state_bytes_per_token=row, state_bytes=row * batch * shape.memory)
        )


def source_cost(width: int, inside: int, shape: Shape) -> Cost:
    """What a source costs beside the text: its keys once, and being looked at by every token."""
    rows = shape.batch * shape.source
    keys = linear_cost(width, inside, rows, bias=False)
    keys += linear_cost(inside, 2 * inside, rows, bias=False)
    products = 2 * 2 * shape.batch * shape.tgt_len * shape.source * inside
    return Cost(0, keys.flops + products, products, state_bytes=BYTES * 2 * inside * rows)


def beside_source(
    mask: Tensor | None, read: SourceMemory, like: Tensor, keys: int
) -> Tensor | None:
    """A mask of a text's own keys, made wider by those of its source, which all tokens see."""
    if mask is None and read.present_bs is None:
        return None
    batch, _, time, _ = like.shape
    sizes = (batch, 1, time)
    own = like.new_zeros(*sizes, keys) if mask is None else mask.expand(*sizes, keys)
    seen = like.new_zeros(*sizes, read.kv_bgsk.shape[2])
    if read.present_bs is not None:
        seen = seen.masked_fill(~read.present_bs[:, None, None], -math.inf)
    return torch.cat((seen, own), dim=-1)


def attention_sizes(config: StackConfig, options: Options) -> tuple[int, int, str]:
    """The width inside an `a` block, its heads, and where its norm stands."""
    inside, heads = inside_width(config, options), int(options.get("heads", 1))
    if inside % heads:
        raise ConfigError(
            f"{heads} heads do not divide the width {inside} inside 'a[{options}]'; "
            f"set width= or d_attention to a multiple of {heads}"
        )
    return inside, heads, norm_place("a", options, ("post", "pre", "off"))
