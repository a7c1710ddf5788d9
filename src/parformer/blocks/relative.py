"""Relative attention: how far a key lies back counts, not where it stands (Transformer-XL).

The score of a query and a key at distance i is (q + content) k + (q + position) r_i, where r_i is
the projected embedding of the distance. Where both sides are seen, distances go below zero.
"""

# b batch, t time, n keys, r distances, h heads, g key-value heads, k head width

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parformer.blocks.attention import SelfAttention
from parformer.blocks.base import Context
from parformer.blocks.linear import Linear
from parformer.blocks.memory import KeyValueMemory
from parformer.blocks.taps import attend_openly
from parformer.parts import StackConfig
from parformer.pattern import BlockSpec


class RelativeAttention(SelfAttention, positions="relative"):
    """Scores of what a key holds, and of how far away it is."""

    def __init__(self, config: StackConfig, spec: BlockSpec) -> None:
        super().__init__(config, spec)
        inside = self.heads * self.width
        self.distance = Linear(config.d_model, inside, bias=False)
        if config.position_bias == "per-layer":
            self.content_bias = nn.Parameter(torch.empty(inside))
            self.position_bias = nn.Parameter(torch.empty(inside))

    def _distances(self, count: int, context: Context, ahead: int = 0) -> Tensor:
        """Projections of the distances count − 1 … −ahead."""
        assert context.places is not None
        return self._heads(self.distance(context.places.distances(count, ahead))[None])[0]

    def known_distances(
        self, state: KeyValueMemory | None, keys: int, context: Context
    ) -> Tensor | None:
        """Projected distances are reused; when more are needed, some are made in advance."""
        known_hnk = None if state is None else state.distances_hnk
        if known_hnk is None:
            return self._distances(keys, context)
        known = known_hnk.shape[1]
        if keys > known:
            known_hnk = self._distances(max(keys, known + max(64, known // 2)), context)
        return known_hnk

    def distances_and_biases(
        self, keys: int, context: Context
    ) -> tuple[Tensor, Tensor, Tensor] | None:
        content_h1k, position_h1k = self._biases(context)
        distances_hnk = self._distances(keys, context)
        return distances_hnk, content_h1k.squeeze(1), position_h1k.squeeze(1)

    def _usable(self, x: Tensor, keys: int, context: Context) -> bool:
        return self.causal and super()._usable(x, keys, context)

    def _attend(
        self, q_bhtk: Tensor, kv_bgnk: Tensor, context: Context, known_hnk: Tensor | None
    ) -> Tensor:
        k_bgnk, v_bgnk = kv_bgnk.chunk(2, 1)
        time, keys = q_bhtk.shape[2], k_bgnk.shape[2]
        if known_hnk is None:
            r_hrk = self._distances(keys, context, 0 if self.causal else time - 1)
        else:
            r_hrk = known_hnk[:, known_hnk.shape[1] - keys :]
        content_bias, position_bias = self._biases(context)
        mask = self.mask(time, keys, q_bhtk, context)
        scale = 1 / math.sqrt(self.width)
        q_position_bhtk = (q_bhtk + position_bias) * scale
        bias_bhtn = align(q_position_bhtk @ r_hrk.transpose(-1, -2), keys, mask)
        q_content_bhtk = q_bhtk + content_bias
        if self.kv_heads != self.heads:
            groups = self.heads // self.kv_heads
            k_bgnk = k_bgnk.repeat_interleave(groups, dim=1)
            v_bgnk = v_bgnk.repeat_interleave(groups, dim=1)
        dropout = self.dropatt if self.training else 0.0
        if torch.is_grad_enabled() or dropout or context.shows_weights:
            # The fused kernel has no gradient for its bias; this is the fastest way that has.
            y_bhtk = attend_openly(
                q_content_bhtk * scale, k_bgnk, v_bgnk, bias_bhtn, dropout, context.taps
            )
        else:
            y_bhtk = F.scaled_dot_product_attention(
                q_content_bhtk, k_bgnk, v_bgnk, attn_mask=bias_bhtn, scale=scale
            )
        return y_bhtk.transpose(1, 2).flatten(2)

    def _biases(self, context: Context) -> tuple[Tensor, Tensor]:
        shared = None if context.places is None else context.places.biases
        content, position = (self.content_bias, self.position_bias) if shared is None else shared
        shape = (self.heads, 1, self.width)
        return content.view(shape), position.view(shape)


def align(scores_bhtr: Tensor, keys: int, mask: Tensor | None) -> Tensor:
    """Scores by distance become scores by key, with the mask added."""
    if scores_bhtr.shape[2] == 1 and mask is None:
        return scores_bhtr  # one query sees the distances in the order of the keys
    if torch.compiler.is_exporting():
        return picked(scores_bhtr, keys, mask)
    aligned: Tensor = Align.apply(scores_bhtr, keys, mask)  # type: ignore[no-untyped-call]
    return aligned


def picked(scores_bhtr: Tensor, keys: int, mask: Tensor | None) -> Tensor:
    """The same by looking each score up, for graphs whose runtimes know no views."""
    time, columns = scores_bhtr.shape[2:]
    later_t1 = torch.arange(time - 1, -1, -1)[:, None]
    column_tn = (torch.arange(keys) + later_t1).clamp(max=columns - 1)
    found_bhtn = scores_bhtr.gather(-1, column_tn.expand(*scores_bhtr.shape[:2], -1, -1))
    return found_bhtn if mask is None else found_bhtn + mask


class Align(torch.autograd.Function):
    """Move row t left by (time − 1 − t), so that columns stand for keys, not distances.

    Query t and key j are m + t − j apart. Column c holds distance n − 1 − c, so the score
    of key j stands in column j + (time − 1 − t): a view whose rows are one shorter does it.
    Without distances below zero, future keys get another row's numbers, which the mask hides.
    The gradient goes back the same way; autograd's own for such a view takes twice as long.
    """

    @staticmethod
    def forward(ctx: Any, scores_bhtr: Tensor, keys: int, mask: Tensor | None) -> Tensor:
        time, ctx.columns = scores_bhtr.shape[2:]
        rows = scores_bhtr.contiguous().flatten(2)[..., time - 1 :]
        aligned_bhtn = rows.unfold(-1, keys, max(ctx.columns - 1, 1))
        return aligned_bhtn.clone() if mask is None else aligned_bhtn + mask

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (gradient_bhtn,) = gradients
        time, keys = gradient_bhtn.shape[2:]
        if ctx.columns > keys:
            gradient_bhtn = F.pad(gradient_bhtn, (0, ctx.columns - keys))
        shifted = F.pad(gradient_bhtn.flatten(2), (time, 0))
        return torch.unflatten(shifted, -1, (time, ctx.columns + 1))[..., 1:], None, None
