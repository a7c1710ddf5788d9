"""Which blocks of a model may be replaced, and how is one put into another's place?"""

# l place, c choice

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from parformer.blocks.stack import make_block
from parformer.compress.coding import coded_maps
from parformer.compress.replacing.wanted import Wanted
from parformer.compress.shrinking import moved, places, stacks
from parformer.config import ModelConfig
from parformer.errors import ConfigError
from parformer.first_weights import initialise
from parformer.model import Model, build_from
from parformer.notation import shown
from parformer.parts import StackConfig
from parformer.pattern import BlockSpec, Pattern
from parformer.search.placement.choices import IDENTITY, Choices
from parformer.weights import named_tensors, new_like, place


@dataclass(frozen=True)
class Places:
    """The blocks of a model that may be replaced, and each one's choices, itself the first."""

    paths: tuple[str, ...]
    """Such as `blocks.3`."""
    space: Choices

    @property
    def originals(self) -> list[int]:
        """The picks that replace nothing."""
        return [0] * len(self.paths)

    def spec(self, at: int, pick: int) -> BlockSpec:
        return self.space.layers[at][pick]


def find_places(model: Model, wanted: Wanted) -> Places:
    """Where a model has blocks that were asked about, each with weights of its own."""
    if list(coded_maps(model)):
        raise ConfigError("this model is quantized already; replace first, then quantize")
    own = dict(places(model))
    found: dict[str, tuple[BlockSpec, ...]] = {}
    for root, pattern in stacks(model):
        for number, spec in enumerate(pattern):
            path = f"{root}blocks.{number}"
            if path in own and spec.letter in wanted:
                others = [one for one in wanted[spec.letter] if one != spec]
                if others:
                    found[path] = (spec, *others)
    if not found:
        raise ConfigError(
            f"there is no block {' or '.join(map(repr, wanted))} to replace in "
            f"{shown(str(model.config.pattern))}, or none with weights of its own; name others"
        )
    return Places(tuple(found), Choices(tuple(found.values())))


def candidates(model: Model, where: Places, seed: int) -> nn.ModuleList:
    """What may stand in each place, with first weights: one list of blocks for each."""
    made = nn.ModuleList()
    for path, choices in zip(where.paths, where.space.layers, strict=True):
        config = stack_config(model.config, path)
        with torch.device("meta"):
            made.append(nn.ModuleList(make_block(config, spec, {}) for spec in choices[1:]))
    place(made, lambda weight: new_like(weight, "cpu", torch.float32))
    holder = nn.Module()
    holder.blocks = made  # first weights go by names, and these are blocks
    initialise(holder, model.config, torch.Generator().manual_seed(seed))
    return made.eval()


def stack_config(config: ModelConfig, path: str) -> StackConfig:
    """What a block at a path is told."""
    if not path.startswith("encoder."):
        return config
    assert config.source is not None
    return config.source


def swapped(
    model: Model, where: Places, picks: Sequence[int], fitted: Mapping[str, Tensor]
) -> Model:
    """The plain model with one choice in every place.

    `fitted` has the weights of `candidates`, by names such as `2.0.out.weight`: of the third
    place's first choice beside the block that is there.
    """
    chosen = {path: (at, picks[at]) for at, path in enumerate(where.paths)}
    tensors = {name: tensor.detach() for name, tensor in named_tensors(model).items()}
    renamed: dict[str, str] = {}
    fresh: dict[str, Tensor] = {}
    specs: dict[str, list[BlockSpec]] = {}
    for root, pattern in stacks(model):
        specs[root] = []
        for number, spec in enumerate(pattern):
            path = f"{root}blocks.{number}"
            at, pick = chosen.get(path, (0, 0))
            now = f"{root}blocks.{len(specs[root])}"
            renamed[path] = "" if pick else now
            if pick:
                spec = where.spec(at, pick)
                before = f"{at}.{pick - 1}."
                fresh |= {
                    f"{now}.{name.removeprefix(before)}": tensor
                    for name, tensor in fitted.items()
                    if name.startswith(before)
                }
            if not pick or spec.letter != "i":
                specs[root].append(spec)
    own = {root: Pattern(listed) if listed else IDENTITY for root, listed in specs.items()}
    pattern = Pattern(own[""].blocks, own.get("encoder."))
    return build_from(
        model.config.replaced(pattern=pattern), {**dict(moved(tensors, renamed)), **fresh}
    )
