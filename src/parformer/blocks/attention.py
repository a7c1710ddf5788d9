"""Self-attention: what a token means among the others.

One block serves all families: relative positions with segment memory (Transformer-XL),
learned positions (GPT-2, BERT), rotary ones with grouped queries (Llama), or none.
"""

# b batch, t time, m memory, n = m + t keys, d width, h heads, g key-value heads, k head width

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parformer.blocks.base import (
    BYTES,
    Block,
    BlockState,
    Context,
    Cost,
    Linear,
    Options,
    Shape,
    block,
    linear_cost,
    norm_parameters,
)
from parformer.blocks.memory import InputMemory, KeyValueMemory, append, keep_inputs
from parformer.config import ModelConfig
from parformer.errors import ConfigError
from parformer.kernels.attention import attend, usable
from parformer.kernels.half import linear


@block("s")
class SelfAttention(Block):
    """Every token asks all tokens it may see, and takes from them in proportion."""

    options = {"heads": int, "head": int, "kv_heads": int}  # noqa: RUF012
    training_state = InputMemory

    def __init__(self, config: ModelConfig, options: Options) -> None:
        super().__init__(config)
        self.heads, self.kv_heads, self.width = head_sizes(config, options)
        self.dropatt = config.dropatt
        self.relative = config.positions == "relative"
        self.rotary = config.positions == "rotary"
        self.causal = config.causal
        inside = self.heads * self.width
        both = 2 * self.kv_heads * self.width
        self.qkv = Linear(config.d_model, inside + both, bias=config.attention_bias)
        self.out = Linear(inside, config.d_model, bias=config.attention_bias)
        if self.relative:
            self.distance = Linear(config.d_model, inside, bias=False)
            if config.position_bias == "per-layer":
                self.content_bias = nn.Parameter(torch.empty(inside))
                self.position_bias = nn.Parameter(torch.empty(inside))

    def forward(
        self, x_btd: Tensor, state: BlockState | None, context: Context
    ) -> tuple[Tensor, BlockState | None]:
        remember = self.causal and (context.memory > 0 or state is not None)
        if self.training and remember:
            assert not isinstance(state, KeyValueMemory)  # Model refuses such a state
            y_btd, after = self._with_inputs(x_btd, state, context)
        else:
            y_btd, after = self._with_keys(x_btd, state, context)
        return self.write(x_btd, y_btd), after

    def _with_inputs(
        self, x_btd: Tensor, state: BlockState | None, context: Context
    ) -> tuple[Tensor, BlockState | None]:
        """Training: remembered inputs go through today's projections."""
        assert state is None or isinstance(state, InputMemory)
        past = 0 if state is None else state.length
        all_bnd = x_btd if state is None else torch.cat((state.inputs_bmd, x_btd), dim=1)
        kv_bnd = None
        if past == 0:
            q_btd = self.qkv(self.read(x_btd))
        else:
            sizes = [self.heads * self.width, 2 * self.kv_heads * self.width]
            q_weight, kv_weight = torch.split(self.qkv.weight, sizes)
            bias = self.qkv.bias
            q_bias, kv_bias = (None, None) if bias is None else torch.split(bias, sizes)
            read_bnd = self.read(all_bnd)
            q_btd = linear(read_bnd[:, past:], q_weight, q_bias)
            kv_bnd = linear(read_bnd, kv_weight, kv_bias)
        if usable(q_btd, all_bnd.shape[1], self.dropatt):
            y_btd = self._attend_compiled(q_btd, kv_bnd, context)
        else:
            q_bhtk, kv_bgnk = self._rotated(q_btd, kv_bnd, context)
            distances_hnk = self._distances(kv_bgnk.shape[2], context) if self.relative else None
            y_btd = self._attend(q_bhtk, kv_bgnk, distances_hnk, context)
        return y_btd, keep_inputs(all_bnd, context.memory)

    def remember(
        self, x_btd: Tensor, state: BlockState | None, context: Context
    ) -> BlockState | None:
        if not self.causal or (context.memory == 0 and state is None):
            return None
        assert state is None or isinstance(state, InputMemory)
        x_btd = x_btd.detach()
        all_bnd = x_btd if state is None else torch.cat((state.inputs_bmd, x_btd), dim=1)
        return keep_inputs(all_bnd, context.memory)

    def _with_keys(
        self, x_btd: Tensor, state: BlockState | None, context: Context
    ) -> tuple[Tensor, BlockState | None]:
        """Inference: remembered keys and values are used as they are."""
        if isinstance(state, InputMemory):
            state = self._project_memory(state, context)
        assert state is None or isinstance(state, KeyValueMemory)
        qkv_btd = self.qkv(self.read(x_btd))
        alone = not self.causal or (state is None and context.memory == 0)
        if alone and usable(qkv_btd, x_btd.shape[1], self.dropatt if self.training else 0.0):
            return self._attend_compiled(qkv_btd, None, context), None
        q_bhtk, kv_bgtk = self._split(qkv_btd)
        if self.rotary:
            q_bhtk = self._rotate(q_bhtk, context.position, context)
            kv_bgtk = self._rotate_keys(kv_bgtk, context.position, context)
        distances_hnk = kept_hnk = None
        if self.relative:
            # A gradient goes through this step's own distances; they are reused only without one.
            reuse = not torch.is_grad_enabled()
            keys = x_btd.shape[1] + (0 if state is None else state.length)
            known_hnk = state.distances_hnk if state is not None and reuse else None
            distances_hnk = self._enough_distances(known_hnk, keys, context)
            kept_hnk = distances_hnk if reuse else None
        if alone:
            return self._attend(q_bhtk, kv_bgtk, distances_hnk, context), None
        kv_bgnk, after = append(state, kv_bgtk, context.memory, kept_hnk)
        return self._attend(q_bhtk, kv_bgnk, distances_hnk, context), after

    def _project_memory(self, state: InputMemory, context: Context) -> KeyValueMemory:
        """Turn a training memory into an inference one."""
        _, kv_bgmk = self._split(self.qkv(self.read(state.inputs_bmd)))
        if self.rotary:
            kv_bgmk = self._rotate_keys(kv_bgmk, context.position - state.length, context)
        _, after = append(None, kv_bgmk, state.length, None)
        return after

    def _heads(self, x_btd: Tensor) -> Tensor:
        return x_btd.view(*x_btd.shape[:2], -1, self.width).transpose(1, 2)

    def _split(self, qkv_btd: Tensor) -> tuple[Tensor, Tensor]:
        # one call, here and below: a token's step is mostly Python; and one copy in its gradient
        sizes = (self.heads, 2 * self.kv_heads)
        q_bhtk, kv_bgtk = torch.split_with_sizes(self._heads(qkv_btd), sizes, 1)
        return q_bhtk, kv_bgtk

    def _rotated(
        self, q_btd: Tensor, kv_bnd: Tensor | None, context: Context
    ) -> tuple[Tensor, Tensor]:
        """Queries and keys by head, in training. Places count from the first key.

        Attention sees differences of places only, and numbers that grow with the text would
        make every step another one for torch.compile.
        """
        if kv_bnd is None:
            q_bhtk, kv_bgnk = self._split(q_btd)
        else:
            q_bhtk, kv_bgnk = self._heads(q_btd), self._heads(kv_bnd)
        if self.rotary:
            q_bhtk = self._rotate(q_bhtk, kv_bgnk.shape[2] - q_bhtk.shape[2], context)
            kv_bgnk = self._rotate_keys(kv_bgnk, 0, context)
        return q_bhtk, kv_bgnk

    def _rotate(self, x_bhnk: Tensor, first: int, context: Context) -> Tensor:
        """Rotary positions: turn queries or keys by angles that grow with their place."""
        count, base = x_bhnk.shape[2], context.config.rotary_base
        cos_nk, sin_nk = context.once(
            ("rotations", first, count, self.width),
            lambda: rotations(first, count, self.width, base, x_bhnk),
        )
        return turn(x_bhnk, cos_nk, sin_nk)

    def _rotate_keys(self, kv_bgnk: Tensor, first: int, context: Context) -> Tensor:
        k_bgnk, v_bgnk = kv_bgnk.chunk(2, dim=1)
        return torch.cat((self._rotate(k_bgnk, first, context), v_bgnk), dim=1)

    def _distances(self, count: int, context: Context) -> Tensor:
        assert context.sinusoids is not None
        return self._heads(self.distance(context.sinusoids(count))[None])[0]

    def _enough_distances(self, known_hnk: Tensor | None, keys: int, context: Context) -> Tensor:
        """Projected distances are reused; when more are needed, some are made in advance."""
        if known_hnk is None:
            return self._distances(keys, context)
        known = known_hnk.shape[1]
        if keys > known:
            known_hnk = self._distances(max(keys, known + max(64, known // 2)), context)
        return known_hnk

    def _attend(
        self, q_bhtk: Tensor, kv_bgnk: Tensor, distances_hnk: Tensor | None, context: Context
    ) -> Tensor:
        k_bgnk, v_bgnk = kv_bgnk.chunk(2, 1)
        dropout = self.dropatt if self.training else 0.0
        scale = 1 / math.sqrt(self.width)
        if distances_hnk is None:
            y_bhtk = self._attend_plainly(q_bhtk, k_bgnk, v_bgnk, dropout, context)
        else:
            keys = k_bgnk.shape[2]
            content_bias, position_bias = self._biases(context)
            mask_tn = see_mask(q_bhtk.shape[2], keys, context, q_bhtk)
            r_hnk = distances_hnk[:, distances_hnk.shape[1] - keys :]
            q_position_bhtk = (q_bhtk + position_bias) * scale
            bias_bhtn = align(q_position_bhtk @ r_hnk.transpose(-1, -2), mask_tn)
            q_content_bhtk = q_bhtk + content_bias
            if self.kv_heads != self.heads:
                groups = self.heads // self.kv_heads
                k_bgnk = k_bgnk.repeat_interleave(groups, dim=1)
                v_bgnk = v_bgnk.repeat_interleave(groups, dim=1)
            if torch.is_grad_enabled() or dropout:
                # The fused kernel has no gradient for its bias; this is the fastest way that has.
                y_bhtk = attend_openly(q_content_bhtk * scale, k_bgnk, v_bgnk, bias_bhtn, dropout)
            else:
                y_bhtk = F.scaled_dot_product_attention(
                    q_content_bhtk, k_bgnk, v_bgnk, attn_mask=bias_bhtn, scale=scale
                )
        y_btd: Tensor = self.out(y_bhtk.transpose(1, 2).flatten(2))
        return y_btd

    def _attend_compiled(self, q_btd: Tensor, kv_bnd: Tensor | None, context: Context) -> Tensor:
        """The same by a kernel made for this CPU."""
        keys = q_btd.shape[1] if kv_bnd is None else kv_bnd.shape[1]
        relative = None
        if self.relative:
            content_h1k, position_h1k = self._biases(context)
            distances_hnk = self._distances(keys, context)
            relative = distances_hnk, content_h1k.squeeze(1), position_h1k.squeeze(1)
        if self.rotary:
            q_bhtk, kv_bgnk = self._rotated(q_btd, kv_bnd, context)
            q_btd, kv_bnd = (x.transpose(1, 2).flatten(2) for x in (q_bhtk, kv_bgnk))
        config = context.config
        y_btd: Tensor = self.out(
            attend(
                q_btd,
                kv_bnd,
                relative,
                context.padding,
                heads=self.heads,
                groups=self.kv_heads,
                causal=self.causal,
                limit=config.mem_len if config.same_length else keys,
            )
        )
        return y_btd

    def _attend_plainly(
        self, q_bhtk: Tensor, k_bgnk: Tensor, v_bgnk: Tensor, dropout: float, context: Context
    ) -> Tensor:
        time, keys = q_bhtk.shape[2], k_bgnk.shape[2]
        alone = self.causal and time == keys and time > 1 and context.padding is None
        mask = None if alone else see_mask(time, keys, context, q_bhtk)
        return F.scaled_dot_product_attention(
            q_bhtk,
            k_bgnk,
            v_bgnk,
            attn_mask=mask,
            is_causal=alone,
            dropout_p=dropout,
            enable_gqa=self.kv_heads != self.heads,
        )

    def _biases(self, context: Context) -> tuple[Tensor, Tensor]:
        content, position = (
            (self.content_bias, self.position_bias) if context.biases is None else context.biases
        )
        shape = (self.heads, 1, self.width)
        return content.view(shape), position.view(shape)

    def zeros(self, batch: int, memory: int) -> BlockState | None:
        weight = self.qkv.weight
        return InputMemory(weight.new_zeros(batch, memory, weight.shape[1]).detach())

    @classmethod
    def cost(cls, config: ModelConfig, options: Options, shape: Shape) -> Cost:
        heads, kv_heads, width = head_sizes(config, options)
        batch, time, keys = shape.batch, shape.tgt_len, shape.keys
        d, inside, both = config.d_model, heads * width, 2 * kv_heads * width
        queries = linear_cost(d, inside, batch * time, bias=config.attention_bias)
        values_again = linear_cost(d, both, batch * keys, bias=config.attention_bias)
        values_cached = linear_cost(d, both, batch * time, bias=config.attention_bias)
        out = linear_cost(inside, d, batch * time, bias=config.attention_bias)
        products = 2 * 2 * batch * time * keys * inside
        distances = Cost()
        if config.positions == "relative":
            products += 2 * batch * time * keys * inside
            biases = 2 * inside if config.position_bias == "per-layer" else 0
            # One table serves the whole batch, and inference makes it once for all steps.
            distances = Cost(d * inside + biases, linear_cost(d, inside, keys, bias=False).flops)
        row = BYTES * both if config.causal else 0
        return (
            queries
            + Cost(values_again.parameters, values_again.flops, values_cached.flops_cached)
            + distances
            + out
            + Cost(norm_parameters(config), products, products)
            + Cost(state_bytes_per_token=row, state_bytes=row * batch * shape.memory)
        )


def head_sizes(config: ModelConfig, options: Options) -> tuple[int, int, int]:
    """Heads, key-value heads and the width of one, for a block with these options."""
    heads = int(options.get("heads", config.n_head))
    kv_heads = int(options.get("kv_heads", config.n_kv_head or heads))
    width = int(options["head"]) if "head" in options else config.head_width(heads)
    if heads % kv_heads:
        raise ConfigError(
            f"{kv_heads} key-value heads do not divide {heads} heads; "
            f"set n_kv_head or kv_heads= to a divisor of {heads}"
        )
    if config.positions == "rotary" and width % 2:
        raise ConfigError(f"rotary positions need an even head width, got {width}; set d_head")
    shared = config.n_head * config.head_width(config.n_head)
    together = config.positions == "relative" and config.position_bias == "shared"
    if together and heads * width != shared:
        raise ConfigError(
            f"a block of {heads} heads × {width} cannot share position biases of {shared}; "
            "set position_bias='per-layer'"
        )
    return heads, kv_heads, width


def align(scores_bhtn: Tensor, mask_tn: Tensor | None) -> Tensor:
    """Scores by distance become scores by key, with the mask added."""
    if mask_tn is None:
        assert scores_bhtn.shape[2] == 1  # one query sees the distances in the order of the keys
        return scores_bhtn
    aligned: Tensor = Align.apply(scores_bhtn, mask_tn)  # type: ignore[no-untyped-call]
    return aligned


class Align(torch.autograd.Function):
    """Move row t left by (time − 1 − t), so that columns stand for keys, not distances.

    Query t and key j are m + t − j apart. Column c holds distance n − 1 − c, so the score
    of key j stands in column j + (time − 1 − t): a view whose rows are one shorter does it.
    Future keys get another row's numbers, which the mask hides. The gradient goes back the
    same way; autograd's own for such a view takes twice as long.
    """

    @staticmethod
    def forward(ctx: Any, scores_bhtn: Tensor, mask_tn: Tensor) -> Tensor:
        time, keys = scores_bhtn.shape[2:]
        rows_bhn = scores_bhtn.contiguous().flatten(2)[..., time - 1 :]
        return rows_bhn.unfold(-1, keys, max(keys - 1, 1)) + mask_tn

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (gradient_bhtn,) = gradients
        time, keys = gradient_bhtn.shape[2:]
        shifted = F.pad(gradient_bhtn.flatten(2), (time, 0))
        return torch.unflatten(shifted, -1, (time, keys + 1))[..., 1:], None


def attend_openly(
    q_bhtk: Tensor, k_bhnk: Tensor, v_bhnk: Tensor, bias_bhtn: Tensor, dropout: float
) -> Tensor:
    """Attention with every step in the open, so that the bias gets its gradient."""
    weights_bhtn = torch.softmax(q_bhtk @ k_bhnk.transpose(-1, -2) + bias_bhtn, dim=-1)
    if dropout:
        weights_bhtn = F.dropout(weights_bhtn, dropout)
    return weights_bhtn @ v_bhnk


def see_mask(time: int, keys: int, context: Context, like: Tensor) -> Tensor | None:
    """What to add to scores: 0 where a query may look, −inf where not; None if all is seen."""
    config = context.config
    if time == 1 and config.causal and context.padding is None and not config.same_length:
        return None
    mask: Tensor | None = context.once(
        ("mask", time, keys), lambda: make_mask(time, keys, context, like)
    )
    return mask


def make_mask(time: int, keys: int, context: Context, like: Tensor) -> Tensor | None:
    config = context.config
    hidden: Tensor | None = None
    limit = config.mem_len if config.same_length else keys
    if config.causal and (time > 1 or keys > limit):
        query_t1 = torch.arange(keys - time, keys, device=like.device)[:, None]
        key_1n = torch.arange(keys, device=like.device)[None]
        hidden = (key_1n > query_t1) | (key_1n <= query_t1 - limit)
    if context.padding is not None:
        absent_b11n = ~context.padding[:, None, None]
        hidden = absent_b11n if hidden is None else hidden | absent_b11n
    if hidden is None:
        return None
    return torch.zeros_like(hidden, dtype=like.dtype).masked_fill(hidden, -math.inf)


def rotations(
    first: int, count: int, width: int, base: float, like: Tensor
) -> tuple[Tensor, Tensor]:
    """Cosines and sines for the places first … first + count − 1."""
    # far into a text an angle in fp32 is off by more than a degree
    place_n = torch.arange(first, first + count, device=like.device, dtype=torch.float64)
    rate_k = base ** (-torch.arange(0, width, 2, device=like.device).double() / width)
    angle_nk = torch.outer(place_n, rate_k).repeat(1, 2)
    return angle_nk.cos().to(like.dtype), angle_nk.sin().to(like.dtype)


def turn(x_bhnk: Tensor, cos_nk: Tensor, sin_nk: Tensor) -> Tensor:
    """Rotate each pair (i, i + width/2) by its angle."""
    left, right = x_bhnk.chunk(2, dim=-1)
    return x_bhnk * cos_nk + torch.cat((-right, left), dim=-1) * sin_nk
