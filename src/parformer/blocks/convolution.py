"""Convolution: what a token means beside its neighbours.

Every channel mixes a few neighbouring places, and the channels of a head do it alike. The weights
of the taps are learned (lightweight) or made from the token in the middle (dynamic; Wu et al.
2019). They always sum to one, over all taps, those beyond the ends of a text included.
"""

# b batch, t time, c channels, h heads, k taps

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parformer.blocks.base import BYTES, Cost, Shape, linear_cost
from parformer.blocks.linear import Linear
from parformer.blocks.state import BlockState
from parformer.kernels.convolution import convolve


@dataclass(frozen=True, eq=False)
class Tail(BlockState):
    """What a convolution reads of the past: always as many places, zeros before a text."""

    inputs_bkc: Tensor

    @property
    def length(self) -> int:
        return self.inputs_bkc.shape[1]


def tap_weights(
    scores: Tensor, *, inside_only: bool = False, time: int = 0, left: int = 0
) -> Tensor:
    """Weights of the taps, (…, heads, taps), from their scores.

    With `inside_only`, taps beyond the ends of a text of `time` places have no weight, and the
    others sum to one (fairseq's renorm_padding); scores are (batch, time, heads, taps) then.
    """
    if inside_only:
        place_tk = (
            torch.arange(time, device=scores.device)[:, None]
            + torch.arange(scores.shape[-1], device=scores.device)
            - left
        )
        outside_tk = (place_tk < 0) | (place_tk >= time)
        scores = scores.masked_fill(outside_tk[:, None], -torch.inf)
    return torch.softmax(scores, dim=-1)


class Convolution(nn.Module):
    """A map into the channels, perhaps gated, a convolution over time, and a map out of them."""

    def __init__(
        self,
        channels: int,
        heads: int,
        taps: int,
        *,
        dynamic: bool,
        gated: bool,
        causal: bool,
        bias: bool,
        dropout: float = 0.0,
        leaky: bool = False,
        inner: int = 0,
    ) -> None:
        """From `channels` to as many, mixing `inner` of them (0 means all).

        With `leaky` places that hold no token count as their biases, as released.
        """
        super().__init__()
        width, channels = channels, inner or channels
        self.channels, self.heads, self.taps = channels, heads, taps
        self.gated, self.causal, self.leaky = gated, causal, leaky
        self.dropout = dropout
        self.inner = Linear(width, channels * (2 if gated else 1), bias=bias)
        self.kernel = Linear(channels, heads * taps, bias=False) if dynamic else None
        self.scores = None if dynamic else nn.Parameter(torch.empty(heads, taps))
        self.out = Linear(channels, width, bias=bias)

    def forward(
        self, x_btc: Tensor, tail: Tail | None, present_bt: Tensor | None
    ) -> tuple[Tensor, Tail | None]:
        """What is seen near each place, and what the next step has to know."""
        u_btc = self.read(x_btc, present_bt)
        weights = self.weights(u_btc)
        time = x_btc.shape[1]
        if tail is None:
            first = 1 - self.taps if self.causal else -(self.taps // 2)
            y_btc = convolve(u_btc, weights, time, first)
            return self.out(y_btc), self.kept(u_btc)
        u_bnc = torch.cat((tail.inputs_bkc, u_btc), dim=1)
        return self.out(convolve(u_bnc, weights, time, 0)), self.kept(u_bnc)

    def read(self, x_btc: Tensor, present_bt: Tensor | None) -> Tensor:
        """What is mixed: nothing where there is no token."""
        absent_bt1 = None if present_bt is None else ~present_bt[..., None]
        if self.leaky and absent_bt1 is not None and not self.causal:
            x_btc = x_btc.masked_fill(absent_bt1, 0.0)
        u_btc: Tensor = self.inner(x_btc)
        if self.gated:
            u_btc = F.glu(u_btc, dim=-1)
        if absent_bt1 is not None and not self.leaky:
            u_btc = u_btc.masked_fill(absent_bt1, 0.0)
        return u_btc

    def weights(self, u_btc: Tensor) -> Tensor:
        """(batch, time, heads, taps), or (heads, taps) for all places alike."""
        if self.kernel is not None:
            weights = tap_weights(torch.unflatten(self.kernel(u_btc), -1, (self.heads, self.taps)))
        else:
            assert self.scores is not None
            weights = tap_weights(self.scores)
        if self.training and self.dropout:
            weights = F.dropout(weights, self.dropout)
        return weights

    def kept(self, u_bnc: Tensor) -> Tail | None:
        """The last places, one less than there are taps."""
        if not self.causal or self.taps == 1:
            return None
        missing = self.taps - 1 - u_bnc.shape[1]
        u_bnc = u_bnc.detach()
        if missing > 0:
            return Tail(F.pad(u_bnc, (0, 0, missing, 0)))
        # a copy, or the state would hold on to what it forgets
        return Tail(u_bnc[:, -missing:].clone())

    def remember(self, x_btc: Tensor, tail: Tail | None, present_bt: Tensor | None) -> Tail | None:
        """What a step would keep, without its answer."""
        if not self.causal or self.taps == 1:
            return None
        last = max(0, x_btc.shape[1] - (self.taps - 1))
        u_btc = self.read(x_btc[:, last:], None if present_bt is None else present_bt[:, last:])
        return self.kept(u_btc if tail is None else torch.cat((tail.inputs_bkc, u_btc), dim=1))

    def zeros(self, batch: int) -> Tail | None:
        if not self.causal or self.taps == 1:
            return None
        like = next(self.parameters())
        return Tail(like.new_zeros(batch, self.taps - 1, self.channels).detach())


def convolution_cost(
    channels: int,
    heads: int,
    taps: int,
    shape: Shape,
    *,
    dynamic: bool,
    gated: bool,
    causal: bool,
    bias: bool,
    inner: int = 0,
) -> Cost:
    """What such a convolution has and does."""
    tokens = shape.batch * shape.tgt_len
    width, channels = channels, inner or channels
    mixing = 2 * tokens * channels * taps
    kernel = Cost(heads * taps)
    if dynamic:
        kernel = linear_cost(channels, heads * taps, tokens, bias=False)
    tail = BYTES * (taps - 1) * channels * shape.batch if causal else 0
    return (
        linear_cost(width, channels * (2 if gated else 1), tokens, bias=bias)
        + kernel
        + Cost(flops=mixing, flops_cached=mixing, state_bytes=tail)
        + linear_cost(channels, width, tokens, bias=bias)
    )
