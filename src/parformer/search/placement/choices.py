"""Which architectures may a search choose from?

A space gives every layer its choices of blocks. Both searches take one: the differentiable
one mixes a layer's choices, the Pareto one draws among them.

>>> space = Choices.uniform(4, "sfi")
>>> space.size, str(space.pattern([0, 1, 2, 1]))
(81, 's (f)x2')
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Self

from parformer.blocks.base import find_block
from parformer.errors import ConfigError
from parformer.notation import shown
from parformer.pattern import BlockSpec, Pattern

MAX_LAYERS = 512
MAX_CHOICES = 64
"""What a layer may choose from at most: a supernet holds the weights of all of them."""

IDENTITY = Pattern.parse("i")


@dataclass(frozen=True, slots=True)
class Choices:
    """The choices of every layer, in the order that picks count them."""

    layers: tuple[tuple[BlockSpec, ...], ...]
    encoder: int = 0
    """So many of them, the first ones, are the encoder's."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", tuple(map(tuple, self.layers)))
        _check_layers(len(self.layers))
        alike = len(set(self.layers)) == 1
        for number, choices in enumerate(self.layers[:1] if alike else self.layers, start=1):
            _check_choices(choices, "every layer" if alike else f"layer {number}")

    @classmethod
    def uniform(cls, layers: int, choices: str | Pattern) -> Self:
        """The same choices for every layer, written as a pattern.

        >>> str(Choices.uniform(2, "s[heads=2] s[heads=4] f").pattern([1, 2]))
        's[heads=4]f'
        """
        _check_layers(layers)
        return cls((Pattern.parse(choices).blocks,) * layers)

    @classmethod
    def of_sides(cls, sides: Sequence[tuple[int, str]]) -> Self:
        """Layers and choices of one stack, or of an encoder and a decoder.

        >>> str(Choices.of_sides([(2, "sf"), (3, "scf")]).pattern([0, 1, 0, 1, 2]))
        'sf | scf'
        """
        for layers, _ in sides:
            _check_layers(layers)
        rows = [(Pattern.parse(choices).blocks,) * layers for layers, choices in sides]
        return cls(sum(rows, ()), sides[0][0] if len(sides) > 1 else 0)

    @property
    def size(self) -> int:
        """How many sequences of choices there are."""
        return prod(map(len, self.layers))

    def pattern(self, picks: Sequence[int]) -> Pattern:
        """The architecture of one choice per layer; identities do nothing and are left out.

        >>> Choices.uniform(3, "sfi").pattern([2, 2, 2])
        Pattern('i')
        """
        if len(picks) != len(self.layers):
            raise ConfigError(f"{len(picks)} picks for {len(self.layers)} layers; give one each")
        for number, (choices, pick) in enumerate(zip(self.layers, picks, strict=True), start=1):
            if not 0 <= pick < len(choices):
                raise ConfigError(
                    f"pick {pick} of layer {number}; its choices are 0 to {len(choices) - 1}"
                )
        picked = [choices[pick] for choices, pick in zip(self.layers, picks, strict=True)]
        stack = without_nothing(picked[self.encoder :])
        if not self.encoder:
            return stack
        return Pattern(stack.blocks, without_nothing(picked[: self.encoder]))


def without_nothing(blocks: Sequence[BlockSpec]) -> Pattern:
    """A stack without its identities, or one where there is nothing else."""
    stack = Pattern(blocks)
    return IDENTITY if stack.letters.strip("i") == "" else stack.without_identity()


def _check_layers(layers: int) -> None:
    if not (isinstance(layers, int) and 1 <= layers <= MAX_LAYERS):
        raise ConfigError(
            f"layers must be a whole number from 1 to {MAX_LAYERS}, got {shown(layers)}"
        )


def _check_choices(choices: tuple[BlockSpec, ...], where: str) -> None:
    way_out = "give two blocks or more, such as sfi"
    if not choices:
        raise ConfigError(f"{where} has no choices; {way_out}")
    # refuses what is no block
    text = shown(str(Pattern(choices)))
    if len(choices) < 2:
        raise ConfigError(f"{where} has only one choice, {text}; {way_out}")
    if len(choices) > MAX_CHOICES:
        raise ConfigError(f"{where} has {len(choices):,} choices; give at most {MAX_CHOICES}")
    for place, choice in enumerate(choices):
        if choice in choices[:place]:
            raise ConfigError(
                f"{where} has the choice {shown(str(choice))} twice, in {text}; give it once"
            )
        find_block(choice)
