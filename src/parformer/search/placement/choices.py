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
from typing import Self, TypeVar

from parformer.blocks.base import find_block
from parformer.errors import ConfigError
from parformer.notation import shown
from parformer.pattern import BlockSpec, Pattern

MAX_LAYERS = 512
MAX_CHOICES = 64
"""What a layer may choose from at most: a supernet holds the weights of all of them."""

IDENTITY = Pattern.parse("i")
MIXERS = "srlaycn"
"""Letters of blocks that see other tokens."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Stretch:
    """The layers of one stack, among all that are counted through."""

    name: str
    """Encoder or decoder; empty where there is one stack."""
    first: int
    count: int

    @property
    def layers(self) -> range:
        return range(self.first, self.first + self.count)

    def of(self, rows: Sequence[T]) -> Sequence[T]:
        """Its own of what there is for every layer."""
        return rows[self.first : self.first + self.count]

    def told(self, layer: int) -> str:
        """A layer as people count it.

        >>> Stretch("decoder", 6, 9).told(7), Stretch("", 0, 9).told(7)
        ('decoder layer 2', 'layer 8')
        """
        return f"{self.name} layer {layer - self.first + 1}".strip()


def stretches_of(layers: int, encoder: int = 0) -> tuple[Stretch, ...]:
    """All stacks of so many layers, of which the first ones may be an encoder's."""
    if not encoder:
        return (Stretch("", 0, layers),)
    return Stretch("encoder", 0, encoder), Stretch("decoder", encoder, layers - encoder)


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
    def stretches(self) -> tuple[Stretch, ...]:
        """The layers of every stack."""
        return stretches_of(len(self.layers), self.encoder)

    @property
    def nothing(self) -> Pattern:
        """As many layers of identities, none of them left out.

        >>> str(Choices.of_sides([(2, "sf"), (3, "scf")]).nothing)
        '(i)x2 | (i)x3'
        """
        *before, stack = (IDENTITY * stretch.count for stretch in self.stretches)
        return Pattern(stack.blocks, before[0]) if before else stack

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
        *before, stack = (without_nothing(one.of(picked)) for one in self.stretches)
        return Pattern(stack.blocks, before[0]) if before else stack


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
