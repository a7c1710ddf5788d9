"""How near can another block come to what a trained one gives?

One pass of the teacher feeds all: each block that may be replaced runs as it is, and beside it
whatever may stand in its place reads the same stream and learns to give the same. Nobody hears of
another's mistakes, so all of them learn in the same pass.
"""

# b batch, t time, d width

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from parformer.blocks.base import Block, Context, Cost, Shape
from parformer.blocks.state import BlockState
from parformer.compress.replacing.learning import learn, read, seconds_of
from parformer.compress.replacing.places import Places, candidates
from parformer.data.batches import Tokens
from parformer.events import Watch
from parformer.model import Model, build_from
from parformer.parts import StackConfig
from parformer.pattern import BlockSpec
from parformer.recipe import Recipe
from parformer.tasks import find_task
from parformer.train.optimizers import clip_gradients, make_adam, set_learning_rate
from parformer.train.rules import MOMENTS
from parformer.weights import named_tensors, put

RATE = 3e-3
WARMUP = 0.05
"""Of all updates; afterwards the rate falls in a straight line."""
CLIP = 1.0
"""Of the gradient of each candidate."""
SMALLEST = 1e-12


class Shown(Block):
    """A block as it is, and those beside it that learn to give what it gives."""

    letter = "shown"

    def __init__(self, block: Block, beside: Iterable[nn.Module]) -> None:
        nn.Module.__init__(self)
        self.block = block
        self.beside = list(beside)  # a list hides them: they belong to their own module
        self.errors: list[Tensor] = []

    def forward(
        self, x_btd: Tensor, state: BlockState | None, context: Context
    ) -> tuple[Tensor, BlockState | None]:
        y_btd, kept = self.block(x_btd, state, context)
        there = None if context.padding is None else context.padding[:, -x_btd.shape[1] :]
        self.errors = [
            apart(other(x_btd, None, context)[0], y_btd, x_btd, there) for other in self.beside
        ]
        return y_btd, kept

    @classmethod
    def cost(cls, config: StackConfig, spec: BlockSpec, shape: Shape) -> Cost:
        raise AssertionError("what is shown has no price of its own")


def apart(own_btd: Tensor, y_btd: Tensor, x_btd: Tensor, there_bt: Tensor | None) -> Tensor:
    """The squared distance to what a block gives, beside that of doing nothing.

    >>> x, y = torch.zeros(1, 2, 1), torch.ones(1, 2, 1)
    >>> float(apart(x, y, x, None)), float(apart((x + y) / 2, y, x, None))
    (1.0, 0.25)
    """
    wrong_bt = (own_btd - y_btd).square().mean(-1)
    done_bt = (y_btd - x_btd).square().mean(-1)
    if there_bt is not None:
        wrong_bt, done_bt = wrong_bt[there_bt], done_bt[there_bt]
    return wrong_bt.mean() / done_bt.mean().clamp(min=SMALLEST)


class Fitting:
    """A teacher with candidates beside its blocks."""

    def __init__(
        self, model: Model, where: Places, recipe: Recipe, text: Tokens, seed: int
    ) -> None:
        self.task = find_task(recipe)
        self.batches = self.task.batches(text)
        self.others = candidates(model, where, seed)
        self.teacher = copied(model).requires_grad_(False)
        self.shown: list[Shown] = []
        for path, beside in zip(where.paths, self.others, strict=True):
            block = self.teacher.get_submodule(path)
            self.shown.append(Shown(cast(Block, block), cast(nn.ModuleList, beside)))
            put(self.teacher, path, self.shown[-1])
        self.learners = [o for beside in self.others for o in cast(nn.ModuleList, beside)]
        learned = [p for p in self.others.parameters() if p.requires_grad]
        groups = [{"params": learned, "keeps": ("step", *MOMENTS)}]
        self.optimizer = make_adam(torch.optim.Adam, groups, {"lr": RATE}) if learned else None

    def errors_at(self, number: int) -> list[list[Tensor]]:
        """How far each candidate is from its block, on a batch."""
        read(self.teacher, self.task, self.batches.at(number))
        return [shown.errors for shown in self.shown]

    def update(self, step: int, steps: int) -> None:
        """All candidates, on the same batch."""
        assert self.optimizer is not None
        wrong = [e for row in self.errors_at(step) for e in row if e.requires_grad]
        torch.stack(wrong).sum().backward()  # type: ignore[no-untyped-call]
        for one in self.learners:
            clip_gradients(one.parameters(), CLIP)
        set_learning_rate(self.optimizer, RATE * share_at(step, steps))
        self.optimizer.step()
        self.optimizer.zero_grad()

    def weights(self) -> dict[str, Tensor]:
        return {
            name: tensor.detach().clone() for name, tensor in named_tensors(self.others).items()
        }

    @torch.no_grad()
    def errors(self, count: int, first: int) -> list[list[float]]:
        """Means over some batches that come after those that were learned from."""
        sums = [[0.0] * len(shown.beside) for shown in self.shown]
        for number in range(first, first + count):
            for total, row in zip(sums, self.errors_at(number), strict=True):
                for choice, error in enumerate(row):
                    total[choice] += float(error) / count
        return sums


def share_at(step: int, steps: int) -> float:
    """Of the full rate: up, then down in a straight line.

    >>> [round(share_at(step, 20), 2) for step in (0, 1, 10, 19)]
    [1.0, 1.0, 0.53, 0.05]
    """
    warm = max(1, round(WARMUP * steps))
    return min((step + 1) / warm, (steps - step) / max(1, steps - warm))


def fit(
    make: Callable[[], Fitting], *, steps: int, root: Path, watch: Watch
) -> tuple[dict[str, Tensor], list[list[float]]]:
    """Weights of all candidates after so many passes, and how far each still is from its block."""
    work = make()
    if work.optimizer is not None:
        learn(
            work.others,
            work.optimizer,
            lambda step: work.update(step, steps),
            steps=steps,
            root=root,
            watch=watch,
            what="fitting replacements to what their blocks give",
        )
    return work.weights(), work.errors(JUDGED, steps)


JUDGED = 4
"""Batches that errors are told of."""


def passes_in(make: Callable[[], Fitting], seconds: float, least: int) -> int:
    """Passes that fit into a time."""
    work = make()
    if work.optimizer is None:
        return least
    each = seconds_of(lambda step: work.update(step, 1000))
    return max(least, int(seconds / each))


def copied(model: Model) -> Model:
    """The same model in other tensors."""
    return build_from(model.config, {n: t.detach() for n, t in named_tensors(model).items()})
