"""SRU: a recurrence so light that nearly all its work is the matrix product before it.

Gates decide, channel by channel, how much of a cell each token overwrites and how much of it
shows (Lei et al. 2018). The highway inside is residual sum enough: there is no norm around the
block. Here the product is the narrow one of SRU++ (Lei 2021), through a projection; as
`r[full]` it is the wide one of the original. In an encoder `r[both]` lets half of the channels
read from the end on.
"""

# b batch, t time, d width, p width of the projection,
# k what the recurrence takes (candidate, forget, reset), g gates (forget, reset)

from __future__ import annotations

import math
from dataclasses import dataclass

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
    make_norm,
    norm_parameters,
)
from parformer.blocks.linear import Linear
from parformer.blocks.state import BlockState
from parformer.errors import ConfigError
from parformer.kernels.recurrence import recurrence
from parformer.parts import StackConfig
from parformer.pattern import BlockSpec

RESET_BIAS = -2.0
"""At first little of the cell shows, so that a deep stack begins near the identity."""
KEEPS = 1e4
"""What makes a forget gate keep its cell to the last bit."""


@dataclass(frozen=True, eq=False)
class CellMemory(BlockState):
    """All that a recurrence knows of the past: one number per channel, never in half precision."""

    cell_bd: Tensor

    @property
    def length(self) -> int:
        return 0  # of no token by itself


class Recurrent(Block):
    """What SRU and SRU++ share: the gates, the cell and the product that feeds them."""

    state_needs_run = True

    def __init__(self, config: StackConfig, inside: int, options: Options) -> None:
        nn.Module.__init__(self)
        check_sides(config, options)
        width = config.d_model
        self.both = "both" in options
        self.dropout = self.inner_dropout = config.dropout
        self.gate_weight = nn.Parameter(torch.empty(2 * width))
        self.gate_bias = nn.Parameter(torch.empty(2 * width))
        self.out = Linear(inside, 3 * width, bias=False)

    def recur(
        self,
        x_btd: Tensor,
        inside_btp: Tensor,
        cell_bd: Tensor | None,
        present_bt: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The stream after the recurrence, and the cell to go on from.

        `present_bt` says where there are tokens, for what reads from the end on.
        """
        u_btkd = torch.unflatten(self.out(inside_btp), -1, (3, -1))
        mask_bd = None
        if self.training and self.dropout:
            # the same channels for a whole text: they show nothing of their cells
            mask_bd = F.dropout(torch.ones_like(x_btd[:, 0]), self.dropout)
        weight_gd, bias_gd = self.gate_weight.view(2, -1), self.gate_bias.view(2, -1)
        if self.both:
            if present_bt is not None:  # what is no token leaves the cell as it is
                there_bt1 = present_bt[..., None]
                candidate, forget, reset = u_btkd.unbind(2)
                kept = forget.masked_fill(~there_bt1, KEEPS)
                u_btkd = torch.stack((candidate, kept, reset), dim=2)
            u_btkd, x_btd = half_turned(u_btkd), half_turned(x_btd)
        y_btd, last_bd = recurrence(u_btkd, x_btd, weight_gd, bias_gd, cell_bd, mask_bd=mask_bd)
        if self.both:
            y_btd = half_turned(y_btd)
            if present_bt is not None:
                y_btd = y_btd * present_bt[..., None]
        return y_btd, last_bd.detach()

    def draw(self, generator: torch.Generator) -> set[nn.Parameter]:
        """First weights as SRU++ draws them, in any family; all but the norm's, which it gives."""
        self.gate_weight.uniform_(-1, 1, generator=generator)
        forget_d, reset_d = self.gate_bias.chunk(2)
        forget_d.zero_()
        reset_d.fill_(RESET_BIAS)
        for part in self.modules():
            if isinstance(part, Linear):
                nn.init.xavier_uniform_(part.weight, generator=generator)
        self.out.weight.mul_(math.sqrt(1 - self.inner_dropout))
        return {p for name, p in self.named_parameters() if "norm" not in name}


def half_turned(x: Tensor) -> Tensor:
    """The second half of the channels from the end of time (dimension 1) to its beginning."""
    onward, back = x.chunk(2, dim=-1)
    return torch.cat((onward, back.flip(1)), dim=-1)


@block("r")
class SRU(Recurrent):
    """Every token mixes itself into a cell, which goes on to the next token."""

    options = {"width": int, "norm": str, "full": bool, "both": bool}  # noqa: RUF012
    training_state = CellMemory

    def __init__(self, config: StackConfig, spec: BlockSpec) -> None:
        inside, norm = projection(config, spec.options)
        super().__init__(config, inside or config.d_model, spec.options)
        self.project = Linear(config.d_model, inside, bias=False) if inside else None
        self.inner_norm = make_norm(config, inside) if norm else None

    def forward(
        self, x_btd: Tensor, state: BlockState | None, context: Context
    ) -> tuple[Tensor, BlockState | None]:
        assert state is None or isinstance(state, CellMemory)
        inside_btp = x_btd
        if self.project is not None:
            inside_btp = self.project(x_btd)
            if self.inner_norm is not None:
                inside_btp = self.inner_norm(inside_btp)
            if self.training and self.inner_dropout:
                inside_btp = F.dropout(inside_btp, self.inner_dropout)
        cell_bd = None if state is None else state.cell_bd
        y_btd, last_bd = self.recur(x_btd, inside_btp, cell_bd, context.padding)
        return y_btd, CellMemory(last_bd)

    def draw(self, generator: torch.Generator) -> set[nn.Parameter]:
        drawn = super().draw(generator)
        if self.project is None:
            width = self.out.in_features
            reach = math.sqrt(3 / width)
            self.out.weight.uniform_(-reach, reach, generator=generator)
            candidate_dd, gates_dd = torch.split(self.out.weight, [width, 2 * width])
            candidate_dd.mul_(math.sqrt(1 - self.dropout))
            gates_dd.mul_(math.sqrt(0.5))
        return drawn

    @classmethod
    def cost(cls, config: StackConfig, spec: BlockSpec, shape: Shape) -> Cost:
        inside, norm = projection(config, spec.options)
        tokens, d = shape.batch * shape.tgt_len, config.d_model
        price = recurrence_cost(config, inside or d, spec.options, shape)
        if inside:
            price += linear_cost(d, inside, tokens, bias=False)
        return price + Cost(norm_parameters(config, inside) if norm else 0)


def projection(config: StackConfig, options: Options) -> tuple[int, bool]:
    """The width that an `r` projects to, 0 for none, and whether it has a norm there."""
    if "full" in options:
        for name in ("width", "norm"):
            if name in options:
                raise ConfigError(
                    f"r[full] has no projection that {name}={options[name]} could be about; "
                    f"leave out full or {name}"
                )
        return 0, False
    return inside_width(config, options), norm_place("r", options, ("post", "off")) == "post"


def inside_width(config: StackConfig, options: Options) -> int:
    """The width inside an `r` or `a` block."""
    return int(options.get("width", config.d_attention or max(1, config.d_model // 4)))


def norm_place(letter: str, options: Options, known: tuple[str, ...]) -> str:
    place = str(options.get("norm", "post"))
    if place not in known:
        raise ConfigError(
            f"norm in '{letter}[{options}]' must be one of {', '.join(known)}, got {place!r}"
        )
    return place


def recurrence_cost(config: StackConfig, inside: int, options: Options, shape: Shape) -> Cost:
    """The product that feeds the gates, the gates' own vectors, and the cell that is kept."""
    check_sides(config, options)
    d = config.d_model
    product = linear_cost(inside, 3 * d, shape.batch * shape.tgt_len, bias=False)
    return product + Cost(4 * d, state_bytes=BYTES * d * shape.batch)


def check_sides(config: StackConfig, options: Options) -> None:
    """Only an encoder sees both sides: its attention does, and a recurrence that is to."""
    if "both" in options and not config.encodes:
        raise ConfigError(
            f"both in [{options}] reads from the end on, which only the encoder of encoder | "
            "decoder may; leave it out"
        )
    if "both" in options and config.d_model % 2:
        raise ConfigError(
            f"both in [{options}] gives each direction half of d_model, got {config.d_model}; "
            f"try {config.d_model + 1}"
        )
    if not config.causal and not config.encodes:
        raise ConfigError(
            f"a recurrence (r or a) reads from the past on, but this model (family "
            f"{config.family!r}, causal=false) sees both sides; take a causal family such as "
            "'sru', or s in place of r and a"
        )
