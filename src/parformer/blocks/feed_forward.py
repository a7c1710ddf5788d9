"""Two linear maps with a non-linearity between: what a token means by itself."""

# b batch, t time, d width, n inner width

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from parformer.blocks.base import (
    Block,
    Context,
    Cost,
    Shape,
    block,
    linear_cost,
    norm_parameters,
)
from parformer.blocks.linear import ACTIVATIONS, Linear, activated
from parformer.blocks.state import BlockState
from parformer.parts import StackConfig
from parformer.pattern import BlockSpec


@block("f")
class FeedForward(Block):
    """The wide middle holds most of a model's parameters; every token goes through it alone."""

    options = {"inner": int}  # noqa: RUF012 - declared as a ClassVar in Block

    def __init__(self, config: StackConfig, spec: BlockSpec) -> None:
        super().__init__(config)
        inner = inner_width(config, spec)
        self.gated = config.gated
        self.activation = ACTIVATIONS[config.activation]
        self.inner_dropout = config.dropout if config.inner_dropout else 0.0
        bias = config.feed_forward_bias
        self.inner = Linear(config.d_model, inner * (2 if self.gated else 1), bias=bias)
        self.out = Linear(inner, config.d_model, bias=bias)

    def forward(
        self, x_btd: Tensor, state: BlockState | None, context: Context
    ) -> tuple[Tensor, BlockState | None]:
        read_btd = self.read(x_btd)
        if self.gated:
            gate_btn, y_btn = self.inner(read_btd).chunk(2, dim=-1)
            y_btn = self.activation(gate_btn) * y_btn
        else:
            y_btn = activated(self.inner, read_btd, self.activation)
        if self.training and self.inner_dropout:
            y_btn = F.dropout(y_btn, self.inner_dropout)
        return self.write(x_btd, self.out(y_btn)), None

    @classmethod
    def cost(cls, config: StackConfig, spec: BlockSpec, shape: Shape) -> Cost:
        inner = inner_width(config, spec)
        tokens = shape.batch * shape.tgt_len
        bias = config.feed_forward_bias
        return (
            linear_cost(config.d_model, inner * (2 if config.gated else 1), tokens, bias=bias)
            + linear_cost(inner, config.d_model, tokens, bias=bias)
            + Cost(norm_parameters(config))
        )


def inner_width(config: StackConfig, spec: BlockSpec) -> int:
    return int(spec.options.get("inner", config.d_inner))
