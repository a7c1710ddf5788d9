"""What is the mean of a training's last checkpoints?

Weights that a high rate still throws about lie around a better place, which is their mean
(Vaswani et al. 2017 average the last checkpoints of a translator). Which checkpoints they are
follows from the recipe alone, so that a run that was stopped ends with the same model.

>>> averaged_steps(TrainConfig(steps=100, average=3, checkpoint_every=20))
[60, 80, 100]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from parformer.errors import FolderError
from parformer.recipe import TrainConfig
from parformer.train.checkpoint import name_of, read_checkpoint

SHARE = 0.2
"""The share of a training, from its end, that checkpoints are taken from unless one says."""


def averaged_steps(config: TrainConfig) -> list[int]:
    """After which updates weights are taken, the end of the training last."""
    if config.average < 2 or not config.checkpoint_every:
        return []
    due = [*range(config.checkpoint_every, config.steps, config.checkpoint_every), config.steps]
    return due[-config.average :]


def checkpoint_steps(config: TrainConfig) -> int:
    """Updates from one checkpoint to the next, where a mean of them is wanted.

    >>> checkpoint_steps(TrainConfig(steps=1000, average=5))
    50
    """
    return config.checkpoint_every or max(1, round(SHARE * config.steps / (config.average - 1)))


def mean_of_last(
    root: Path, config: TrainConfig, notice: Callable[[str], None]
) -> dict[str, Tensor] | None:
    """The mean of the checkpoints that a recipe asks for; None where it asks for none."""
    found = []
    for step in averaged_steps(config):
        try:
            found.append(read_checkpoint(root / name_of(step)).weights)
        except FolderError as error:
            notice(f"Left out of the mean of the last checkpoints: {error}")
    if not found:
        return None
    notice(f"The model is the mean of {len(found)} checkpoints of the last updates.")
    return mean(found)


def mean(weights: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Tensor by tensor, added up in double precision; whole numbers are those of the last."""
    every = list(weights)
    return {
        name: torch.stack([one[name].double() for one in every]).mean(0).to(last.dtype)
        if last.is_floating_point()
        else last
        for name, last in every[-1].items()
    }
