"""Which weights move towards zero, and which away from it?

Movement pruning (Sanh, Wolf and Rush 2020): every weight of a block's matrices has a score, and
those with the highest scores are seen. Scores learn by gradients that go straight through the
choice, ∂L/∂S = ∂L/∂(what is seen) · W: a weight's falls while it moves towards zero. Soft: all are
seen whose σ(S) is above a threshold that rises, and a penalty on σ(S) says how many that will be.
Tables of words and heads keep all they have. What is not seen may come back until the last update.

>>> scores = torch.tensor([[3.0, -1.0], [0.5, -2.0]])
>>> highest(scores, 0.5).tolist(), above(scores, 0.3).tolist()
([[True, False], [True, False]], [[True, False], [True, False]])
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from parformer.blocks.linear import Linear
from parformer.errors import ConfigError
from parformer.first_weights import within_blocks
from parformer.model import Model
from parformer.shaping import CompressConfig
from parformer.train.beside import Beside
from parformer.weights import LEAST

FEWEST = 0.005
"""Share of a matrix that is seen whatever the threshold."""


class Movement(Beside):
    """Scores of a model's matrices, and what is seen of these."""

    def __init__(self, model: Model, config: CompressConfig) -> None:
        super().__init__()
        self.config = config
        found = {
            name: module
            for name, module in model.named_modules()
            if type(module) is Linear and within_blocks(name) and module.weight.numel() >= LEAST
        }
        if not found:
            raise ConfigError(
                f"no matrix of the blocks has {LEAST:,} weights or more to prune by movement"
            )
        self.weights = dict(zip(found, (one.weight for one in found.values()), strict=True))
        self.scores = nn.ParameterList(
            nn.Parameter(torch.zeros_like(weight)) for weight in self.weights.values()
        )
        self.masks = [torch.ones_like(weight) for weight in self.weights.values()]
        for number, module in enumerate(found.values()):
            module.shown = partial(self.seen, number)
        self.learn(self.scores, config.score_rate)

    def seen(self, number: int, weight: Tensor) -> Tensor:
        """What a map computes with; scores have a gradient wherever the weights are."""
        scores = self.scores[number]
        # nought in value, so that only a gradient comes of it
        straight: Tensor = (scores - scores.detach()) * weight.detach()
        return weight * self.masks[number] + straight

    def penalty(self, share: float) -> Tensor:
        """How much is seen, as a mean over the matrices; it counts as the threshold does."""
        heights = torch.stack([torch.sigmoid(scores).mean() for scores in self.scores])
        return self.config.score_penalty * self.config.risen(share) * heights.mean()

    def after(self, share: float, heat: float) -> None:
        """Once this share of the updates is done: move the scores, and choose anew."""
        if self.config.prune_by == "soft-movement":
            self.penalty(share).backward()  # type: ignore[no-untyped-call]
        super().after(share, heat)

    @torch.no_grad()
    def finish(self) -> None:
        for weight, mask in zip(self.weights.values(), self.masks, strict=True):
            weight.mul_(mask)

    @torch.no_grad()
    def choose(self, share: float) -> None:
        """Which weights are seen from here on."""
        for scores, mask in zip(self.scores, self.masks, strict=True):
            if self.config.prune_by == "soft-movement":
                mask.copy_(above(scores, self.config.threshold * self.config.risen(share)))
            else:
                mask.copy_(highest(scores, self.config.zeros_at(share)))


def highest(scores: Tensor, share: float) -> Tensor:
    """True for what stays when the share with the least scores goes; of equal ones the first go."""
    gone = round(share * scores.numel())
    order = scores.detach().flatten().argsort(stable=True)
    stays = torch.ones(scores.numel(), dtype=torch.bool, device=scores.device)
    stays[order[:gone]] = False
    return stays.view(scores.shape)


def above(scores: Tensor, threshold: float) -> Tensor:
    """True where σ(S) is above a threshold; for a few, whatever that is."""
    stays = torch.sigmoid(scores.detach()) > threshold
    if int(stays.sum()) < FEWEST * scores.numel():
        return highest(scores, 1 - FEWEST)
    return stays
