"""Which layer learns from the teacher's, and what does a student take over before it learns?

Progressive transfer (MobileBERT, Sun et al. 2020): layers are taught one after another, bottom up,
each for as many updates, by its own feature maps and attention alone; then all of them learn from
the teacher's answers. The layer in hand learns three times as fast, those below it 0.3 times, those
above it and whatever is no layer not at all.

>>> transfer = Transfer(layers=3, steps=30)
>>> [transfer.active(step) for step in (0, 9, 10, 29, 30)]
[0, 0, 1, 2, None]
>>> [transfer.pace(layer, 15) for layer in (None, 0, 1, 2)]
[0.0, 0.3, 3.0, 0.0]
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from parformer.errors import ConfigError
from parformer.first_weights import within_blocks
from parformer.model import Model, load
from parformer.pattern import Pattern
from parformer.recipe import Recipe, TrainConfig
from parformer.train.run import open_run
from parformer.train.schedule import rate
from parformer.weights import named_tensors

ACTIVE, FINISHED = 3.0, 0.3
"""How fast the layer in hand learns, and those that are done."""
WARM = 10.0
"""A tenth of a layer's updates is a warm-up."""


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """The layers of a student, and the updates in which they are taught one by one."""

    layers: int
    steps: int

    @property
    def each(self) -> float:
        """Updates of a layer."""
        return self.steps / self.layers

    def active(self, step: int) -> int | None:
        """The layer that is taught in an update; None once all are."""
        return None if step >= self.steps else min(self.layers - 1, int(step / self.each))

    def pace(self, layer: int | None, step: int) -> float:
        """How fast a layer learns beside the rate; None is whatever is no layer."""
        active = self.active(step)
        if active is None:
            return 1.0
        if layer is None or layer > active:
            return 0.0
        return ACTIVE if layer == active else FINISHED

    def background(self, step: int) -> float:
        """The rate's own course while a layer is taught: up in a tenth, then slightly down."""
        active = self.active(step)
        assert active is not None
        done = (step - active * self.each) / self.each
        return min(0.9 + 0.1 * math.sqrt(1 - done), WARM * (done + 1 / self.each))

    def rate(self, step: int, config: TrainConfig) -> float:
        """Of an update; once all layers are taught, the schedule of what is left."""
        if step < self.steps:
            return config.learning_rate * self.background(step)
        return rate(step - self.steps, replace(config, steps=config.steps - self.steps))


class Paced:
    """Moves parameters as far as their layer's pace allows."""

    def __init__(self, model: Model, transfer: Transfer) -> None:
        self.transfer = transfer
        self.owned = [(layer_of(name), p) for name, p in model.named_parameters()]

    def before(self, step: int) -> list[Tensor]:
        """Where all are, while layers are taught one by one."""
        if self.transfer.active(step) is None:
            return []
        return [p.detach().clone() for _, p in self.owned]

    @torch.no_grad()
    def after(self, step: int, before: list[Tensor]) -> None:
        """An update is as long as its rate, so this is another rate for every layer."""
        for old, (layer, p) in zip(before, self.owned, strict=False):
            p.copy_(old + self.transfer.pace(layer, step) * (p - old))


def transfer_of(recipe: Recipe) -> Transfer | None:
    """How a recipe's layers are taught one by one, if they are."""
    shaping = recipe.compress
    if shaping is None or not shaping.progressive:
        return None
    steps = round(shaping.progressive * recipe.train.steps)
    return Transfer(layers=len(recipe.model.pattern), steps=steps)


def layer_of(name: str) -> int | None:
    """The layer that a weight of a student belongs to.

    >>> layer_of("blocks.3.blocks.0.out.weight"), layer_of("head.out.weight")
    (3, None)
    """
    return int(name.split(".")[1]) if name.startswith("blocks.") else None


def outermost(heard: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What was heard of blocks that stand in no group: layers, whatever is inside of them.

    >>> sorted(outermost({"0.0": torch.ones(1), "0": torch.ones(1), "encoder.1": torch.ones(1)}))
    ['0', 'encoder.1']
    """
    return {p: t for p, t in heard.items() if "." not in p.removeprefix("encoder.")}


def taken_over(model: Model, recipe: Recipe) -> Model:
    """A new student with what it takes from its teacher before the first update."""
    shaping = recipe.compress
    if shaping is None or shaping.take == "nothing":
        return model
    teacher = load(open_run(Path(shaping.teacher)).folder)
    pairs = dict(ends_of(model, teacher))
    if shaping.take == "layers":
        pairs |= dict(layers_of(model, teacher))
    own, theirs = named_tensors(model), named_tensors(teacher)
    with torch.no_grad():
        for name, other in pairs.items():
            if own[name].shape != theirs[other].shape:
                raise ConfigError(
                    f"compress.take {shaping.take!r}: the teacher's {other!r} has shape "
                    f"{tuple(theirs[other].shape)}, the student's {name!r} "
                    f"{tuple(own[name].shape)}; take 'nothing', or a student of the same widths"
                )
            own[name].copy_(theirs[other])
    return model


def ends_of(model: nn.Module, teacher: nn.Module) -> Iterator[tuple[str, str]]:
    """All that both have outside of their blocks."""
    theirs = named_tensors(teacher)
    for name in named_tensors(model):
        if not within_blocks(name) and name in theirs:
            yield name, name


def layers_of(model: Model, teacher: Model) -> Iterator[tuple[str, str]]:
    """Blocks of the student, and those of the teacher that they begin as."""
    places = {"blocks.": (model.config.pattern, teacher.config.pattern)}
    if model.config.pattern.encoder is not None and teacher.config.pattern.encoder is not None:
        places["encoder.blocks."] = (model.config.pattern.encoder, teacher.config.pattern.encoder)
    known = named_tensors(teacher)
    for root, (own, theirs) in places.items():
        for mine, other in spread(own, theirs).items():
            for name in named_tensors(model):
                if name.startswith(f"{root}{mine}."):
                    there = f"{root}{other}.{name.removeprefix(f'{root}{mine}.')}"
                    if there not in known:
                        raise ConfigError(
                            f"compress.take 'layers': the teacher has no {there!r} for the "
                            f"student's {name!r}; take 'ends', or a student of the same blocks"
                        )
                    yield name, there


def spread(own: Pattern, theirs: Pattern) -> dict[int, int]:
    """The teacher's block that each of the student's begins as, ends included.

    Of twelve layers a student of six takes those that DistilBERT took:

    >>> spread(Pattern.parse("(s)x6"), Pattern.parse("(s)x12"))
    {0: 0, 1: 2, 2: 4, 3: 7, 4: 9, 5: 11}
    """
    found = {}
    for letter in dict.fromkeys(block.letter for block in own):
        mine = [n for n, block in enumerate(own) if block.letter == letter]
        others = [n for n, block in enumerate(theirs) if block.letter == letter]
        if len(others) < len(mine):
            raise ConfigError(
                f"compress.take 'layers': the teacher {str(theirs)!r} has {len(others)} blocks "
                f"{letter!r}, the student {str(own)!r} {len(mine)}; take 'ends' or fewer blocks"
            )
        for number, block in enumerate(mine):
            share = number / (len(mine) - 1) if len(mine) > 1 else 0.0
            found[block] = others[round(share * (len(others) - 1))]
    return found
