"""Which weights can become zero?

The smallest ones of every matrix, or of all matrices together; or those that a mask says, such as
one of a lottery ticket. A matrix that is mostly zeros is as fast as any other here: only its file
is smaller.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy

import torch
from torch import Tensor

from parformer.compress.coding import coded_maps
from parformer.errors import ConfigError
from parformer.model import Model
from parformer.train.shape import smallest_of
from parformer.weights import matrices

Masks = Mapping[str, Tensor]
"""What stays, by the name of its matrix."""


def pruned(model: Model, share: float, *, together: bool = False) -> Model:
    """A copy whose smallest weights are zero: a share of every matrix, or of all together."""
    if list(coded_maps(model)):
        raise ConfigError("this model is quantized already; prune first, then quantize")
    return masked(model, masks_for(model, share, together=together))


def masks_for(model: Model, share: float, *, together: bool = False) -> dict[str, Tensor]:
    """What stays of every matrix when the smallest weights go."""
    return smallest_of(matrices(model), share, together=together)


def masked(model: Model, masks: Masks) -> Model:
    """A copy with zeros wherever a mask says so."""
    again = deepcopy(model)
    apply(again, masks)
    return again


@torch.no_grad()
def apply(model: Model, masks: Masks) -> None:
    """Zeros wherever a mask says so, in place."""
    places = matrices(model)
    for name, mask in masks.items():
        if name not in places or places[name].shape != mask.shape:
            raise ConfigError(f"the mask of {name!r} is another model's; make it of this one")
        places[name].mul_(mask)


def sparsity(model: Model) -> float:
    """Share of the weights of all matrices that are zero."""
    weights = list(matrices(model).values())
    zeros = sum(int((weight == 0).sum()) for weight in weights)
    return zeros / sum(weight.numel() for weight in weights)
