"""Foreign weights by name, and foreign configurations: what was asked for, taken, left over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor

from parformer.errors import ConfigError, InputError

Foreign: TypeAlias = Mapping[str, Any]
"""A configuration as its own JSON has it."""

ACTIVATION_NAMES = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "silu": "silu",
    "swish": "silu",
}


class Checkpoint:
    """Foreign weights by name, which notes what was taken."""

    def __init__(self, weights: Mapping[str, Tensor], prefix: str) -> None:
        self.weights = {name.removeprefix(prefix): tensor for name, tensor in weights.items()}
        self.taken: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self.weights

    def take(self, name: str) -> Tensor:
        if name not in self.weights:
            raise InputError(
                f"the weights lack {name!r}; they belong to another model or configuration"
            )
        self.taken.add(name)
        return self.weights[name]

    def linear(self, theirs: str, ours: str, *, transposed: bool = False) -> dict[str, Tensor]:
        """Weight and, where there is one, bias."""
        weight = self.take(f"{theirs}.weight")
        taken = {f"{ours}.weight": weight.T if transposed else weight}
        if f"{theirs}.bias" in self:
            taken[f"{ours}.bias"] = self.take(f"{theirs}.bias")
        return taken

    def joined(self, theirs: list[str], ours: str) -> dict[str, Tensor]:
        """Several linear maps of the same input as one."""
        parts = [self.linear(name, ours) for name in theirs]
        for name, part in zip(theirs, parts, strict=True):
            if part.keys() != parts[0].keys():
                raise InputError(
                    f"of {theirs[0]!r} and {name!r} only one has a bias; is it another model?"
                )
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    def masked_head(
        self, theirs: str, transform: str, words: str, *, tied: bool
    ) -> dict[str, Tensor]:
        """A masked-word head and its transform, whose table may be that of the embedding."""
        taken = self.linear(f"{transform}dense", "head.transform")
        taken |= self.linear(f"{transform}LayerNorm", "head.norm")
        taken["head.bias"] = self.take(f"{theirs}.bias")
        if tied:
            self.tied(f"{theirs}.decoder.weight", words)
            self.tied(f"{theirs}.decoder.bias", f"{theirs}.bias")
        else:
            taken |= self.linear(f"{theirs}.decoder", "head")  # its bias is the one in use
        return taken

    def tied(self, second: str, first: str) -> None:
        """A tied weight may stand there under its second name as well, with the same numbers."""
        if second in self and not torch.equal(self.take(second), self.take(first)):
            raise InputError(
                f"the weights {second!r} and {first!r} differ, but the configuration ties them; "
                "is it another model's?"
            )

    def refuse_leftovers(self, *harmless: str) -> None:
        """Every weight must have been used, but for buffers."""
        for name in sorted(self.weights.keys() - self.taken):
            if not name.endswith(harmless):
                raise InputError(f"the weights hold {name!r}, which this model has no place for")


def whole(config: Mapping[str, object], name: str) -> int:
    value = config.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ConfigError(f"the configuration needs a whole number {name!r}, got {value!r}")
    return value


def activation(name: str) -> Any:
    if name not in ACTIVATION_NAMES:
        raise ConfigError(
            f"unknown activation {name!r}; known: {', '.join(sorted(ACTIVATION_NAMES))}"
        )
    return ACTIVATION_NAMES[name]
