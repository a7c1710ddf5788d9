"""How far should the codes of few bits reach?

The whole range of a row or a group keeps its largest number and is coarse for all others. Here the
share of it that has codes is learned, one for every row (8 bits) or group of 32 (4 and fewer):
what lies beyond is cut, and as in learned step size quantization (Esser et al. 2020) the gradient
of a range is that of its end for what is cut, and for everything else that of its own rounding,
∂ŵ/∂r = (ŵ − w) / r. In the end the weights are cut too, so that their whole range is the learned.

>>> weight = torch.tensor([[0.1] * 31 + [4.0]])
>>> first_shares(weight, 4).tolist() == [[1.0]], float(first_shares(weight / weight, 2).min())
(True, 1.0)
"""

# o outputs, i inputs, g groups, k neighbours in a group

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor, nn

from parformer.blocks.coded import NARROW, CodedLinear, in_groups
from parformer.blocks.linear import Linear
from parformer.embedding import SingleTable
from parformer.train.beside import Beside

SHARES = tuple(1 - 0.05 * n for n in range(11))
"""What the first share is the best of, by squared error."""
LEAST_SHARE = 0.05


class Ranges(Beside):
    """How much of the range of each row or group of every matrix has codes."""

    def __init__(
        self, places: Mapping[Linear | SingleTable, Tensor], bits: int, rate: float
    ) -> None:
        """For modules that may be shown something else in place of their weight."""
        super().__init__()
        self.bits, self.weights = bits, list(places.values())
        self.shares = nn.ParameterList(
            nn.Parameter(first_shares(weight.detach(), bits)) for weight in self.weights
        )
        for number, module in enumerate(places):
            module.shown = partial(self.seen, number)
        self.learn(self.shares, rate)

    def seen(self, number: int, weight_oi: Tensor) -> Tensor:
        """What the codes make of a weight; gradients go to it, and to its ranges."""
        groups_ogk = grouped(weight_oi, self.bits)
        reach_og1 = self.reach(number, groups_ogk)
        cut_oi = self.back(cut(groups_ogk, reach_og1), weight_oi)
        with torch.no_grad():
            rounding_oi = few(cut_oi, self.bits).weight.to(cut_oi.dtype) - cut_oi
            slopes_ogk = grouped(rounding_oi, self.bits) / reach_og1
        # nought in value, so that only a gradient comes of it
        straight_ogk = (reach_og1 - reach_og1.detach()) * slopes_ogk.nan_to_num(0.0, 0.0, 0.0)
        shown_oi: Tensor = cut_oi + rounding_oi + self.back(straight_ogk, weight_oi)
        return shown_oi

    def reach(self, number: int, groups_ogk: Tensor) -> Tensor:
        whole_og1 = groups_ogk.detach().abs().amax(2, keepdim=True)
        reach_og1: Tensor = self.shares[number].to(groups_ogk.dtype)[..., None] * whole_og1
        return reach_og1

    def back(self, groups_ogk: Tensor, like_oi: Tensor) -> Tensor:
        return groups_ogk.flatten(1)[:, : like_oi.shape[1]]

    @torch.no_grad()
    def choose(self, share: float) -> None:
        for numbers in self.shares:
            numbers.clamp_(LEAST_SHARE, 1.0)

    @torch.no_grad()
    def finish(self) -> None:
        """What has no code of its own is cut, and ranges are whole again."""
        for number, weight in enumerate(self.weights):
            groups_ogk = grouped(weight, self.bits)
            weight.copy_(self.back(cut(groups_ogk, self.reach(number, groups_ogk)), weight))
            self.shares[number].fill_(1.0)


def cut(groups_ogk: Tensor, reach_og1: Tensor) -> Tensor:
    """Numbers within their reach, and its end for those beyond it."""
    return torch.where(groups_ogk.abs() <= reach_og1, groups_ogk, groups_ogk.sign() * reach_og1)


def grouped(weight_oi: Tensor, bits: int) -> Tensor:
    """Those that share a range: rows, or 32 neighbours."""
    return in_groups(weight_oi) if bits <= NARROW else weight_oi[:, None]


def few(weight: Tensor, bits: int) -> CodedLinear:
    """A matrix in so many bits, the nearest codes within its whole range."""
    return CodedLinear.of(weight.detach().float(), None, bits=bits)


def first_shares(weight_oi: Tensor, bits: int) -> Tensor:
    """For every row or group (outputs, groups), the share of its range that loses least."""
    groups_ogk = grouped(weight_oi, bits)
    whole_og1 = groups_ogk.abs().amax(2, keepdim=True)
    best_og = torch.full(groups_ogk.shape[:2], torch.inf, device=weight_oi.device)
    chosen_og = torch.ones_like(best_og)
    for share in SHARES:
        cut_oi = cut(groups_ogk, share * whole_og1).flatten(1)[:, : weight_oi.shape[1]]
        lost_oi = few(cut_oi, bits).weight - weight_oi.float()
        error_og = grouped(lost_oi, bits).square().sum(2)
        better_og = error_og < best_og
        best_og = torch.where(better_og, error_og, best_og)
        chosen_og = torch.where(better_og, share, chosen_og)
    return chosen_og
