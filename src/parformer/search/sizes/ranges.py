"""Which values does `128..1024/64` stand for, and which blocks does `s[heads=2|4] | i`?

>>> read_range("2|4|8", "heads").values, len(read_range("128..1024/64", "d_model").values)
((2, 4, 8), 15)
>>> read_range("4M..100M", "parameters").values
(4000000, 100000000)
>>> [str(block) for block in read_slot("s[heads=2|4] | i")]
['s[heads=2|4]', 'i']
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import prod
from random import Random
from typing import Any, Self

from parformer.blocks.base import find_block
from parformer.errors import ConfigError
from parformer.notation import shown
from parformer.pattern import BlockSpec, Pattern, Value, block_of

MOST = 4096
"""Values that one gene may have."""

UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9}
_STEPS = re.compile(
    r"(?P<low>[0-9]{1,15})(?P<a>[kMG]?)\s*\.\.\s*(?P<high>[0-9]{1,15})(?P<b>[kMG]?)"
    r"(?:\s*/\s*(?P<step>[0-9]{1,15}))?"
)
_NUMBER = re.compile(r"([0-9]{1,15})([kMG]?)")
_DECIMAL = re.compile(r"[0-9]{1,15}\.[0-9]{1,15}")
_WORD = re.compile(r"[a-z][a-z0-9_+.-]*")


@dataclass(frozen=True, slots=True)
class Range:
    """Values in rising order, and how they were written."""

    values: tuple[Any, ...]
    text: str

    @classmethod
    def of(cls, value: Value) -> Self:
        """Just one value."""
        return cls((value,), str(value))


def read_range(text: str | int, name: str) -> Range:
    """A number, choices between bars, or a stretch with its step; sizes may end in k, M or G.

    Choices may be shares, such as 0.25|0.5.

    Without a step a stretch counts by one, and stands for its two ends where it is too long.
    """
    way_out = f"write it as 128..1024/64 or 2|4|8, for {shown(name)}"
    if not isinstance(text, str):
        if type(text) is not int or abs(text) >= 10**15:
            raise ConfigError(f"a range must be a text or a whole number; {way_out}")
        text = str(text)
    if steps := _STEPS.fullmatch(text.strip()):
        return _stretch(steps, way_out)
    values: list[Value] = []
    for part in text.split("|"):
        values.append(_read_value(part.strip(), f"cannot read {shown(text)}; {way_out}"))
    if len(set(values)) < len(values):
        raise ConfigError(f"{shown(text)} has a value twice; give it once, for {shown(name)}")
    if len(values) > MOST:
        raise ConfigError(f"{shown(text)} holds more than {MOST:,} values; {way_out}")
    written = "|".join(part.strip() for part in text.split("|"))
    return Range(tuple(sorted(values, key=lambda v: (isinstance(v, str), v))), written)


def _read_value(text: str, refusal: str) -> Value:
    if number := _NUMBER.fullmatch(text):
        return int(number[1]) * UNITS[number[2]]
    if _DECIMAL.fullmatch(text):
        return float(text)
    if not _WORD.fullmatch(text):
        raise ConfigError(refusal)
    return text


def _stretch(steps: re.Match[str], way_out: str) -> Range:
    low = int(steps["low"]) * UNITS[steps["a"]]
    high = int(steps["high"]) * UNITS[steps["b"]]
    step = int(steps["step"] or 1)
    written = re.sub(r"\s", "", steps[0])
    if low > high or step < 1:
        raise ConfigError(f"{shown(written)} holds no value; {way_out}")
    if steps["step"] is None and high - low >= MOST:
        return Range((low, high), written)
    if (high - low) // step >= MOST:
        raise ConfigError(f"{shown(written)} holds more than {MOST:,} values; {way_out}")
    return Range(tuple(range(low, high + 1, step)), written)


@dataclass(frozen=True, slots=True)
class Ranged:
    """A block whose options are still open."""

    kind: str
    """A letter, or a bottleneck with its inside."""
    options: tuple[tuple[str, Range], ...] = ()

    @property
    def letters(self) -> frozenset[str]:
        """The letters that run, inside a bottleneck too."""
        return frozenset(step.letter for step in Pattern([block_of(self.kind)]).steps)

    def fit(self, width: int, ratio: float) -> dict[str, tuple[Value, ...]]:
        """The values of every option in a model of this width."""
        return {name: self.fitting(name, width, ratio) for name, _ in self.options}

    def fitting(self, name: str, width: int, ratio: float) -> tuple[Value, ...]:
        """The values of an option: bottlenecks are narrower than the model, unless it is meant."""
        values = fitting(name, dict(self.options)[name], width, ratio)
        if name == "width" and self.kind.startswith("<") and "wide" not in dict(self.options):
            return tuple(value for value in values if int(value) <= width)
        return values

    def draw(self, rng: Random, width: int, ratio: float) -> BlockSpec:
        fit = self.fit(width, ratio)
        return block_of(self.kind, {name: rng.choice(fit[name]) for name in fit})

    def least(self, width: int, ratio: float) -> BlockSpec:
        """The lowest value of every option."""
        fit = self.fit(width, ratio)
        return block_of(self.kind, {name: fit[name][0] for name in fit})

    def count(self, width: int, ratio: float) -> int:
        return prod(map(len, self.fit(width, ratio).values()))

    def corners(self, width: int, ratio: float) -> Iterator[BlockSpec]:
        """All that differ in more than an inner width, of which only the ends are taken."""
        fit = self.fit(width, ratio)
        ends = [(v[0], v[-1]) if name == "inner" else v for name, v in fit.items()]
        for values in product(*ends):
            yield block_of(self.kind, dict(zip(fit, values, strict=True)))

    def has(self, kind: str, options: Mapping[str, object]) -> bool:
        """Whether this is about the same block and the same options, whatever their values."""
        return kind == self.kind and options.keys() == dict(self.options).keys()

    def overlaps(self, other: Ranged) -> bool:
        """Whether both could be the very same block."""
        return self.has(other.kind, dict(other.options)) and all(
            {*one.values} & {*two.values}
            for (_, one), (_, two) in zip(self.options, other.options, strict=True)
        )

    def __str__(self) -> str:
        options = ",".join(
            name if r.values[0] is True else f"{name}={r.text}" for name, r in self.options
        )
        return f"{self.kind}[{options}]" if options else self.kind


Slot = tuple[Ranged, ...]
"""One place of a layer, and the blocks that may stand there."""


@lru_cache(maxsize=65_536)
def fitting(name: str, values: Range, width: int, ratio: float) -> tuple[Value, ...]:
    """The values that a model of this width may have."""
    if name != "inner":
        return values.values
    # 1.1 × 10 is a little more than 11 to a computer
    return tuple(value for value in values.values if value >= ratio * width - 1e-6)


def read_slot(text: str) -> Slot:
    """Blocks that may stand in one place, such as `s[heads=2|4] | f[inner=64..256/64] | i`."""
    return tuple(map(_read_ranged, split_choices(text)))


def _read_ranged(choice: str) -> Ranged:
    end = choice.rfind(">") + 1  # a bottleneck's inside may have options of its own
    letter, bracket, rest = choice[end:].partition("[")
    kind = choice[:end] + letter
    if bracket and not rest.endswith("]"):
        raise ConfigError(
            f"{shown(choice)} has no closing bracket; write it as f[inner=64..256/64]"
        )
    options: dict[str, Range] = {}
    for option in filter(None, rest.removesuffix("]").split(",")):
        name, equals, values = (part.strip() for part in option.partition("="))
        if name in options:
            raise ConfigError(f"second option {shown(name)} in {shown(choice)}; give it once")
        options[name] = read_range(values, name) if equals else Range.of(True)
    kind = block_of(kind.strip()).kind
    block = Ranged(kind, tuple(sorted(options.items())))
    # numbers stand before words, so that the ends have all types that there are
    for end in (0, -1):
        find_block(block_of(kind, {name: r.values[end] for name, r in block.options}))
    return block


def split_choices(text: str) -> list[str]:
    """Split at bars that stand outside of brackets.

    >>> split_choices("s[heads=2|4] | i")
    ['s[heads=2|4]', 'i']
    """
    if not isinstance(text, str):
        raise ConfigError(f"{shown(text)} is no block; write it as s[heads=2|4|8]")
    choices, inside = [""], False
    for piece in re.split(r"([|\[\]])", text):
        inside = piece == "[" or (inside and piece != "]")
        if piece == "|" and not inside:
            choices.append("")
        else:
            choices[-1] += piece
    return [choice.strip() for choice in choices]


@lru_cache(maxsize=65_536)
def read_block(text: str) -> BlockSpec:
    """One block from its text."""
    blocks = Pattern.parse(text).blocks
    if len(blocks) != 1:
        raise ConfigError(f"{shown(text)} is not one block")
    return blocks[0]
