"""What does a whole model lose when several blocks go at once?

Every place becomes a mixture of its block and of what may stand there, each weighed by a gate. The
blocks stay as they are and only the gates learn: the task's loss pulls them towards what is needed,
a penalty towards what is cheap (the search of PAR Transformer, Mandava et al. 2020, on a model that
is trained already). The penalty steers to the middle between the model and the cheapest one, so
that the same gates answer for any limit.
"""

# l place, c choice

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from parformer.compress.replacing.fitting import copied
from parformer.compress.replacing.learning import learn, seconds_of
from parformer.compress.replacing.places import Places
from parformer.data.batches import Tokens, number_for
from parformer.events import Watch
from parformer.model import Model
from parformer.recipe import Recipe
from parformer.search.placement.architecture import (
    expected_cost,
    gumbel_noise,
    mixing_weights,
    probabilities,
    steer,
    temperature_at,
)
from parformer.search.placement.prices import Prices
from parformer.search.placement.session import Architecture
from parformer.search.placement.supernet import Mixture
from parformer.tasks import find_task
from parformer.train.optimizers import make_adam
from parformer.train.rules import MOMENTS
from parformer.weights import put

RATE = 0.1
HOT, COLD = 2.0, 0.5
"""Temperatures of the mixing at first and in the end."""
STEERING = 0.5
"""How fast the penalty follows what is too dear, in shares of the model's first loss."""


class Gates(Architecture):
    """A number for every choice of every place, and the penalty that prices have."""

    penalty: Tensor

    def __init__(self, where: Places) -> None:
        super().__init__(where.space)
        self.register_buffer("penalty", torch.zeros((), dtype=torch.float64))


class Gating:
    """A frozen model with a gate for every choice."""

    def __init__(
        self,
        model: Model,
        where: Places,
        others: nn.ModuleList,
        prices: Prices,
        recipe: Recipe,
        text: Tokens,
        seed: int,
    ) -> None:
        self.task, self.seed, self.prices = find_task(recipe), seed, prices
        self.batches = self.task.batches(text)
        self.gates = Gates(where)
        self.mixed = copied(model)
        self.mixtures = []
        for path, beside in zip(where.paths, others, strict=True):
            own = [self.mixed.get_submodule(path), *beside]  # type: ignore[misc]
            self.mixtures.append(Mixture(own))
            put(self.mixed, path, self.mixtures[-1])
        self.mixed.requires_grad_(False)
        self.relative_lc = prices.relative_lc()
        cheapest = sum(map(min, prices.choices)) + prices.fixed
        self.middle = (1 + cheapest / prices.baseline) / 2
        numbers = [{"params": [self.gates.numbers_lc], "keeps": ("step", *MOMENTS)}]
        self.optimizer = make_adam(torch.optim.Adam, numbers, {"lr": RATE, "betas": (0.5, 0.999)})

    def cost(self, temperature: float = 1.0) -> Tensor:
        """What the gates choose on average, beside the model as it is."""
        chances_lc = probabilities(self.gates() / temperature)
        return expected_cost(chances_lc, self.relative_lc, self.prices.relative_fixed)

    def loss(self, weights_lc: Tensor, number: int) -> Tensor:
        """The task's, of a batch, with so much of every choice."""
        for mixture, weights_c in zip(self.mixtures, weights_lc, strict=True):
            mixture.weights_c = weights_c[: len(mixture.choices)]
        return self.task.loss(self.mixed, self.batches.at(number), None).total

    def update(self, step: int, steps: int) -> None:
        """The gates alone, by loss and penalty."""
        generator = torch.Generator().manual_seed(number_for(self.seed, "gates", step))
        numbers_lc = self.gates()
        noise_lc = gumbel_noise((numbers_lc.shape[0], numbers_lc.shape[1]), generator)
        heat = temperature_at(step / steps, HOT, COLD)
        loss = self.loss(mixing_weights(numbers_lc, noise_lc, heat), step)
        # as warm as the mixing, or the price would outweigh the loss while that is even
        (loss + float(self.gates.penalty) * self.cost(heat)).backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.optimizer.zero_grad()
        with torch.no_grad():
            rate = STEERING * float(loss.detach())
            self.gates.penalty.fill_(
                steer(float(self.gates.penalty), float(self.cost()), self.middle, rate)
            )

    def chances(self) -> list[list[float]]:
        """How likely each choice of each place is."""
        rows = probabilities(self.gates().detach().double()).tolist()
        return [row[: len(m.choices)] for row, m in zip(rows, self.mixtures, strict=True)]


def learn_gates(
    make: Callable[[], Gating], *, steps: int, root: Path, watch: Watch
) -> Sequence[Sequence[float]]:
    """How likely each choice is after so many updates."""
    work = make()
    learn(
        work.gates,
        work.optimizer,
        lambda step: work.update(step, steps),
        steps=steps,
        root=root,
        watch=watch,
        what="finding out together which blocks can go",
    )
    return work.chances()


def updates_in(make: Callable[[], Gating], seconds: float, least: int) -> int:
    """Updates that fit into a time."""
    work = make()
    each = seconds_of(lambda step: work.update(step, 1000))
    return max(least, int(seconds / each))
