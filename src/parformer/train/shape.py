"""How are weights shaped from update to update: shown in few bits, or made zero?"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from parformer.blocks.coded import CodedLinear
from parformer.blocks.linear import Linear
from parformer.embedding import SingleTable
from parformer.errors import ConfigError, FolderError
from parformer.model import Model
from parformer.shaping import CompressConfig
from parformer.store.folder import read_tensors
from parformer.train.movement import Movement, highest
from parformer.weights import LEAST, matrices

OWN = "shaping/"
"""What begins the names of what shaping remembers in a checkpoint."""


class Shaping:
    """What a recipe's [compress] does to a model's matrices; a function of weights and step."""

    def __init__(self, model: Model, config: CompressConfig, steps: int) -> None:
        self.config, self.steps = config, steps
        self.weights = matrices(model)
        if config.bits:
            show_in(model, config.bits)
        self.masks = read_masks(Path(config.masks), self.weights) if config.masks else {}
        self.apply(self.masks)
        self.movement = None if config.prune_by == "magnitude" else Movement(model, config)

    @property
    def scores(self) -> list[nn.Parameter]:
        """What learns beside the weights."""
        return [] if self.movement is None else list(self.movement.scores)

    def tensors(self) -> dict[str, Tensor]:
        """What is remembered from update to update."""
        own = {} if self.movement is None else self.movement.tensors()
        return {f"{OWN}{name}": tensor for name, tensor in own.items()}

    def restore(self, tensors: Mapping[str, Tensor], step: int) -> None:
        """Go on after so many updates."""
        if self.movement is not None:
            own = {n.removeprefix(OWN): t for n, t in tensors.items() if n.startswith(OWN)}
            self.movement.restore(own, step / self.steps)

    def after(self, step: int, heat: float = 1.0) -> None:
        """Once update number `step` is done, at such a share of the full rate: zeros."""
        if self.movement is not None:
            self.movement.after((step + 1) / self.steps, heat)
            return
        if self.masks:
            self.apply(self.masks)
        share = self.config.zeros_at((step + 1) / self.steps)
        if share:
            self.apply(
                {name: smallest_gone(weight, share) for name, weight in self.weights.items()}
            )

    @torch.no_grad()
    def apply(self, masks: dict[str, Tensor]) -> None:
        for name, mask in masks.items():
            self.weights[name].mul_(mask)


def smallest_gone(weight: Tensor, share: float) -> Tensor:
    """True for what stays when the smallest share goes; of equal ones the first go.

    >>> smallest_gone(torch.tensor([[3.0, -1.0], [0.5, -2.0]]), 0.5).tolist()
    [[True, False], [False, True]]
    """
    return highest(weight.abs(), share)


def show_in(model: Model, bits: int) -> None:
    """Let every matrix be seen as so many bits will keep it; gradients go straight through."""

    def seen(weight: Tensor) -> Tensor:
        with torch.no_grad():
            moved = few(weight, bits).weight.to(weight.dtype) - weight
        return weight + moved

    for module in model.modules():
        if isinstance(module, SingleTable) or (
            type(module) is Linear and module.weight.numel() >= LEAST
        ):
            module.shown = seen


def few(weight: Tensor, bits: int) -> CodedLinear:
    """A matrix in so many bits, the nearest codes within its whole range."""
    return CodedLinear.of(weight.detach().float(), None, bits=bits)


def read_masks(file: Path, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Masks by the name of their matrix."""
    try:
        masks = read_tensors(file)
    except FolderError as error:
        raise ConfigError(f"compress.masks: {error}") from None
    for name, mask in masks.items():
        if name not in weights or weights[name].shape != mask.shape:
            raise ConfigError(f"the mask of {name!r} in {str(file)!r} is another model's")
    return {name: mask.bool() for name, mask in masks.items()}
