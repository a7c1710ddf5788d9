"""How are weights shaped from update to update: shown in few bits, or made zero?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from parformer.blocks.linear import Linear
from parformer.embedding import SingleTable
from parformer.errors import ConfigError, FolderError
from parformer.model import Model
from parformer.shaping import CompressConfig
from parformer.store.folder import read_tensors
from parformer.train.beside import Beside
from parformer.train.movement import Movement, highest
from parformer.train.ranges import Ranges, few
from parformer.weights import LEAST, matrices

OWN = "shaping/"
"""What begins the names of what shaping remembers in a checkpoint."""


class Shaping:
    """What a recipe's [compress] does to a model's matrices; a function of weights and step."""

    def __init__(self, model: Model, config: CompressConfig, steps: int) -> None:
        self.config, self.steps = config, steps
        self.weights = matrices(model)
        self.masks = read_masks(Path(config.masks), self.weights) if config.masks else {}
        self.apply(self.masks)
        self.beside = beside(model, config)
        if config.bits and self.beside is None:
            show_in(model, config.bits)

    @property
    def learned(self) -> list[nn.Parameter]:
        """What learns beside the weights."""
        return [] if self.beside is None else list(self.beside.parameters())

    def tensors(self) -> dict[str, Tensor]:
        """What is remembered from update to update."""
        own = {} if self.beside is None else self.beside.tensors()
        return {f"{OWN}{name}": tensor for name, tensor in own.items()}

    def restore(self, tensors: Mapping[str, Tensor], step: int) -> None:
        """Go on after so many updates."""
        if self.beside is not None:
            own = {n.removeprefix(OWN): t for n, t in tensors.items() if n.startswith(OWN)}
            self.beside.restore(own, step / self.steps)

    def after(self, step: int, heat: float = 1.0) -> None:
        """Once update number `step` is done, at such a share of the full rate: zeros, ranges."""
        if self.masks:
            self.apply(self.masks)
        if self.beside is not None:
            self.beside.after((step + 1) / self.steps, heat)
            if isinstance(self.beside, Movement):
                return
        share = self.config.zeros_at((step + 1) / self.steps)
        if share:
            together = self.config.prune_over == "model"
            self.apply(smallest_of(self.weights, share, together=together))

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


@torch.no_grad()
def smallest_of(
    weights: Mapping[str, Tensor], share: float, *, together: bool
) -> dict[str, Tensor]:
    """What stays when the smallest go: a share of every matrix, or of all of them together."""
    if not together:
        return {name: smallest_gone(weight, share) for name, weight in weights.items()}
    sizes = torch.cat([weight.abs().flatten() for weight in weights.values()])
    gone = round(share * sizes.numel())
    cut = sizes.kthvalue(gone).values if gone else sizes.new_tensor(-1.0)
    return {name: weight.abs() > cut for name, weight in weights.items()}


def beside(model: Model, config: CompressConfig) -> Beside | None:
    """What learns beside the weights: scores of movements, or the ranges of few bits."""
    if config.prune_by != "magnitude":
        return Movement(model, config)
    if config.bits and config.ranges == "learned":
        return Ranges(dict(shown_places(model)), config.bits, config.range_rate)
    return None


def show_in(model: Model, bits: int) -> None:
    """Let every matrix be seen as so many bits will keep it; gradients go straight through."""

    def seen(weight: Tensor) -> Tensor:
        with torch.no_grad():
            moved = few(weight, bits).weight.to(weight.dtype) - weight
        return weight + moved

    for module, _ in shown_places(model):
        module.shown = seen


def shown_places(model: Model) -> Iterator[tuple[Linear | SingleTable, Tensor]]:
    """What can be shown in few bits: the table of words, and every matrix of some size."""
    for module in model.modules():
        if isinstance(module, SingleTable):
            yield module, module.tables[0]
        elif type(module) is Linear and module.weight.numel() >= LEAST:
            yield module, module.weight


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
