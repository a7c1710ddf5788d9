"""Self-attention: what a token means among the others.

One core serves all families: memory of inputs in training, of keys and values afterwards. Kinds
of positions are subclasses: none or learned ones need nothing more (GPT-2, BERT), rotary ones turn
queries and keys (Llama), relative ones score distances (Transformer-XL).
"""

# b batch, t time, m memory, n = m + t keys, d width, h heads, g key-value heads, k head width

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parformer.blocks.base import (
    BYTES,
    Block,
    Context,
    Cost,
    Options,
    Shape,
    block,
    linear_cost,
    norm_parameters,
)
from parformer.blocks.linear import FedProjection, Linear, parts
from parformer.blocks.memory import InputMemory, KeyValueMemory, append, keep_inputs
from parformer.blocks.places import make_mask, rotations, turn
from parformer.blocks.state import BlockState
from parformer.blocks.taps import attend_openly
from parformer.errors import ConfigError
from parformer.kernels.attention import attend, usable
from parformer.parts import InsideConfig, StackConfig
from parformer.pattern import BlockSpec


@block("s")
class SelfAttention(Block):
    """Every token asks all tokens it may see, and takes from them in proportion."""

    options = {"heads": int, "head": int, "kv_heads": int}  # noqa: RUF012
    training_state = InputMemory
    kinds: ClassVar[dict[str, type[SelfAttention]]] = {}
    """By the kind of positions; whatever is missing here needs no more than this class."""

    def __init_subclass__(cls, *, positions: str = "", **more: Any) -> None:
        super().__init_subclass__(**more)
        if positions:
            cls.kinds[positions] = cls

    @classmethod
    def make(cls, config: StackConfig, spec: BlockSpec) -> Block:
        return cls.kinds.get(config.positions, SelfAttention)(config, spec)

    def __init__(self, config: StackConfig, spec: BlockSpec) -> None:
        super().__init__(config)
        self.heads, self.kv_heads, self.width = head_sizes(config, spec.options)
        self.dropatt = config.dropatt
        self.causal, self.reach = config.causal, config.reach
        self.absent_score = config.absent_score
        inside = self.heads * self.width
        both = 2 * self.kv_heads * self.width
        narrow, wide = read_widths(config)
        self.fed = is_fed(config)
        """Whether a bottleneck says what is read here, and norms it."""
        if self.fed and self.pre_norm:
            self.norm = nn.Identity()
        both_ways = isinstance(config, InsideConfig) and config.feed == "shared"
        self.remembered = narrow + wide if both_ways else narrow
        bias = config.attention_bias
        self.qkv: nn.Module = (
            FedProjection((narrow, wide), (inside + both // 2, both // 2), bias=bias)
            if both_ways
            else Linear(narrow, inside + both, bias=bias)
        )
        self.out = Linear(inside, config.d_model, bias=bias)

    def forward(
        self, x_btd: Tensor, state: BlockState | None, context: Context
    ) -> tuple[Tensor, BlockState | None]:
        y_btd, after = self.answer(x_btd, state, context)
        return self.write(x_btd, y_btd), after

    def answer(
        self, x_btd: Tensor, state: BlockState | None, context: Context
    ) -> tuple[Tensor, BlockState | None]:
        """What is taken from the tokens that are seen, and what to remember."""
        remember = self.causal and (context.memory > 0 or state is not None)
        if self.training and remember:
            y_btd, after = self._with_inputs(x_btd, state, context)
        else:
            y_btd, after = self._with_keys(x_btd, state, context)
        return self.out(y_btd), after

    def _with_inputs(
        self, x_btd: Tensor, state: BlockState | None, context: Context
    ) -> tuple[Tensor, BlockState | None]:
        """Training: remembered inputs go through today's projections."""
        assert state is None or isinstance(state, InputMemory)  # Model refuses any other
        past = 0 if state is None else state.length
        new_btd = torch.cat(context.feed, dim=-1) if self.fed else x_btd
        all_bnd = new_btd if state is None else torch.cat((state.inputs_bmd, new_btd), dim=1)
        kv_bnd = None
        if past == 0:
            q_btd = self.qkv(self.look(all_bnd))
        else:
            sizes = [self.heads * self.width, 2 * self.kv_heads * self.width]
            read_bnd = self.look(all_bnd)
            q_btd, kv_bnd = parts(self.qkv, sizes, [read_bnd[:, past:], read_bnd])
        kept = keep_inputs(all_bnd, context.memory)
        if self._usable(q_btd, all_bnd.shape[1], context):
            return self._attend_compiled(q_btd, kv_bnd, context), kept
        q_bhtk, kv_bgnk = self._placed(q_btd, kv_bnd, context)
        return self._attend(q_bhtk, kv_bgnk, context, None), kept

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
        qkv_btd = self.qkv(*context.feed) if self.fed else self.qkv(self.read(x_btd))
        alone = not self.causal or (state is None and context.memory == 0)
        if alone and self._usable(qkv_btd, x_btd.shape[1], context):
            return self._attend_compiled(qkv_btd, None, context), None
        q_bhtk, kv_bgtk = self._split(qkv_btd)
        q_bhtk = self.place_queries(q_bhtk, context.position, context)
        kv_bgtk = self.place_keys(kv_bgtk, context.position, context)
        if alone:
            return self._attend(q_bhtk, kv_bgtk, context, None), None
        keys = x_btd.shape[1] + (0 if state is None else state.length)
        # A gradient goes through this step's own distances; they are reused only without one.
        reuse = not torch.is_grad_enabled()
        known_hnk = self.known_distances(state if reuse else None, keys, context)
        kv_bgnk, after = append(state, kv_bgtk, context.memory, known_hnk if reuse else None)
        return self._attend(q_bhtk, kv_bgnk, context, known_hnk), after

    def _project_memory(self, state: InputMemory, context: Context) -> KeyValueMemory:
        """Turn a training memory into an inference one."""
        _, kv_bgmk = self._split(self.qkv(self.look(state.inputs_bmd)))
        kv_bgmk = self.place_keys(kv_bgmk, context.position - state.length, context)
        _, after = append(None, kv_bgmk, state.length, None)
        return after

    def look(self, x_btd: Tensor) -> Tensor:
        """What is projected of the stream, or of what a bottleneck feeds instead."""
        return x_btd if self.fed else self.read(x_btd)

    def _heads(self, x_btd: Tensor) -> Tensor:
        return x_btd.view(*x_btd.shape[:2], -1, self.width).transpose(1, 2)

    def _split(self, qkv_btd: Tensor) -> tuple[Tensor, Tensor]:
        # one call, here and below: a token's step is mostly Python; and one copy in its gradient
        sizes = (self.heads, 2 * self.kv_heads)
        q_bhtk, kv_bgtk = torch.split_with_sizes(self._heads(qkv_btd), sizes, 1)
        return q_bhtk, kv_bgtk

    def _placed(
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
        q_bhtk = self.place_queries(q_bhtk, kv_bgnk.shape[2] - q_bhtk.shape[2], context)
        return q_bhtk, self.place_keys(kv_bgnk, 0, context)

    # What kinds of positions differ in

    def place_queries(self, q_bhtk: Tensor, first: int, context: Context) -> Tensor:
        """Queries of the places from `first` on."""
        return q_bhtk

    def place_keys(self, kv_bgnk: Tensor, first: int, context: Context) -> Tensor:
        """Keys, then values, of the places from `first` on."""
        return kv_bgnk

    def known_distances(
        self, state: KeyValueMemory | None, keys: int, context: Context
    ) -> Tensor | None:
        """Projected distances that inference may use again in later steps."""
        return None

    def distances_and_biases(
        self, keys: int, context: Context
    ) -> tuple[Tensor, Tensor, Tensor] | None:
        """What the compiled kernel has to know of relative positions."""
        return None

    def _attend(
        self, q_bhtk: Tensor, kv_bgnk: Tensor, context: Context, known_hnk: Tensor | None
    ) -> Tensor:
        """What queries take from the values, all heads side by side."""
        k_bgnk, v_bgnk = kv_bgnk.chunk(2, 1)
        time, keys = q_bhtk.shape[2], k_bgnk.shape[2]
        if self.absent_score and context.padding is not None:
            k_bgnk = k_bgnk * context.padding[:, None, :, None]  # the mask has their scores
        dropout = self.dropatt if self.training else 0.0
        if context.shows_weights:
            mask, scaled_bhtk = self.mask(time, keys, q_bhtk, context), q_bhtk / self.width**0.5
            y_bhtk = attend_openly(scaled_bhtk, k_bgnk, v_bgnk, mask, dropout, context.taps)
            return y_bhtk.transpose(1, 2).flatten(2)
        alone = context.padding is None and self.causal and time == keys and time > 1
        y_bhtk = F.scaled_dot_product_attention(
            q_bhtk,
            k_bgnk,
            v_bgnk,
            attn_mask=None if alone else self.mask(time, keys, q_bhtk, context),
            is_causal=alone,
            dropout_p=dropout,
            enable_gqa=self.kv_heads != self.heads,
        )
        return y_bhtk.transpose(1, 2).flatten(2)

    def mask(self, time: int, keys: int, like: Tensor, context: Context) -> Tensor | None:
        """What to add to scores; None where every key is seen."""
        absent, causal, reach = self.absent_score, self.causal, self.reach
        return see_mask(time, keys, like, context, causal=causal, reach=reach, absent=absent)

    def _usable(self, x: Tensor, keys: int, context: Context) -> bool:
        """Whether the compiled kernel can do it: it masks the future, or absent tokens."""
        both = context.padding is not None and (self.causal or self.absent_score)
        return (
            not both
            and not context.shows_weights
            and usable(x, keys, self.dropatt if self.training else 0.0)
        )

    def _attend_compiled(self, q_btd: Tensor, kv_bnd: Tensor | None, context: Context) -> Tensor:
        """The same by a kernel made for this CPU."""
        keys = q_btd.shape[1] if kv_bnd is None else kv_bnd.shape[1]
        relative = self.distances_and_biases(keys, context)
        q_btd, kv_bnd = self._placed_flat(q_btd, kv_bnd, context)
        return attend(
            q_btd,
            kv_bnd,
            relative,
            context.padding,
            heads=self.heads,
            groups=self.kv_heads,
            causal=self.causal,
            limit=self.reach or keys,
        )

    def _placed_flat(
        self, q_btd: Tensor, kv_bnd: Tensor | None, context: Context
    ) -> tuple[Tensor, Tensor | None]:
        """Queries and keys as the compiled kernel reads them."""
        return q_btd, kv_bnd

    def zeros(self, batch: int, memory: int) -> BlockState | None:
        like = next(self.parameters())
        return InputMemory(like.new_zeros(batch, memory, self.remembered).detach())

    @classmethod
    def cost(cls, config: StackConfig, spec: BlockSpec, shape: Shape) -> Cost:
        heads, kv_heads, width = head_sizes(config, spec.options)
        batch, time, keys = shape.batch, shape.tgt_len, shape.keys
        d, inside, half = config.d_model, heads * width, kv_heads * width
        bias, (narrow, wide) = config.attention_bias, read_widths(config)

        def keys_and_values(tokens: int) -> Cost:
            return linear_cost(narrow, half, tokens, bias=bias) + linear_cost(
                wide, half, tokens, bias=bias
            )

        queries = linear_cost(narrow, inside, batch * time, bias=bias)
        values_again, values_cached = keys_and_values(batch * keys), keys_and_values(batch * time)
        out = linear_cost(inside, d, batch * time, bias=bias)
        products = 2 * 2 * batch * time * keys * inside
        distances = Cost()
        if config.positions == "relative":
            rows = keys if config.causal else keys + time - 1
            products += 2 * batch * time * rows * inside
            biases = 2 * inside if config.position_bias == "per-layer" else 0
            # One table serves the whole batch, and inference makes it once for all steps.
            again = linear_cost(d, inside, rows, bias=False).flops
            distances = Cost(d * inside + biases, again, 0 if config.causal else again)
        row = BYTES * 2 * half if config.causal else 0
        return (
            queries
            + Cost(values_again.parameters, values_again.flops, values_cached.flops_cached)
            + distances
            + out
            + Cost(0 if is_fed(config) and config.norm == "pre" else norm_parameters(config))
            + Cost(0, products, products)
            + Cost(state_bytes_per_token=row, state_bytes=row * batch * shape.memory)
        )


class RotaryAttention(SelfAttention, positions="rotary"):
    """Queries and keys are turned by angles that grow with their place."""

    def __init__(self, config: StackConfig, spec: BlockSpec) -> None:
        super().__init__(config, spec)
        self.base = config.rotary_base

    def place_queries(self, q_bhtk: Tensor, first: int, context: Context) -> Tensor:
        count = q_bhtk.shape[2]
        cos_nk, sin_nk = context.once(
            ("rotations", first, count, self.width, self.base),
            lambda: rotations(first, count, self.width, self.base, q_bhtk, context.starts_b),
        )
        return turn(q_bhtk, cos_nk, sin_nk)

    def place_keys(self, kv_bgnk: Tensor, first: int, context: Context) -> Tensor:
        k_bgnk, v_bgnk = kv_bgnk.chunk(2, dim=1)
        return torch.cat((self.place_queries(k_bgnk, first, context), v_bgnk), dim=1)

    def _placed_flat(
        self, q_btd: Tensor, kv_bnd: Tensor | None, context: Context
    ) -> tuple[Tensor, Tensor | None]:
        q_bhtk, kv_bgnk = self._placed(q_btd, kv_bnd, context)
        return q_bhtk.transpose(1, 2).flatten(2), kv_bgnk.transpose(1, 2).flatten(2)


def read_widths(config: StackConfig) -> tuple[int, int]:
    """Widths of what queries and keys read, and of what values read."""
    own = config.d_model
    if not is_fed(config):
        return own, own
    assert isinstance(config, InsideConfig)
    return (own if config.feed == "shared" else config.d_outside), config.d_outside


def is_fed(config: StackConfig) -> bool:
    """Whether a bottleneck has its attention read something else than the stream inside."""
    return isinstance(config, InsideConfig) and config.feed in ("shared", "outside")


def head_sizes(config: StackConfig, options: Options) -> tuple[int, int, int]:
    """As `plain_head_sizes`, if they suit the stack's positions."""
    heads, kv_heads, width = plain_head_sizes(config, options)
    if config.positions == "rotary" and width % 2:
        raise ConfigError(f"rotary positions need an even head width, got {width}; set d_head")
    shared = config.n_head * config.head_width(config.n_head)
    if config.shared_biases and heads * width != shared:
        raise ConfigError(
            f"a block of {heads} heads × {width} cannot share position biases of {shared}; "
            "set position_bias='per-layer'"
        )
    return heads, kv_heads, width


def plain_head_sizes(config: StackConfig, options: Options) -> tuple[int, int, int]:
    """Heads, key-value heads and the width of one, for a block with these options."""
    heads = int(options.get("heads", config.n_head))
    kv_heads = int(options.get("kv_heads", config.n_kv_head or heads))
    width = int(options["head"]) if "head" in options else config.head_width(heads)
    if heads % kv_heads:
        raise ConfigError(
            f"{kv_heads} key-value heads do not divide {heads} heads; "
            f"set n_kv_head or kv_heads= to a divisor of {heads}"
        )
    return heads, kv_heads, width


def see_mask(
    time: int,
    keys: int,
    like: Tensor,
    context: Context,
    *,
    causal: bool,
    reach: int,
    absent: float = 0.0,
) -> Tensor | None:
    """What to add to scores: 0 where a query may look, −inf where not; None if all is seen.

    `absent` is for places without a token, in the place of −inf; their scores are 0 then.
    """
    if time == 1 and causal and context.padding is None and not reach:
        return None
    mask: Tensor | None = context.once(
        ("mask", time, keys, causal, reach, absent),
        lambda: make_mask(
            time, keys, like, causal=causal, reach=reach, padding=context.padding, absent=absent
        ),
    )
    return mask
