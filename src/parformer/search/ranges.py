"""Which values does `128..1024/64` stand for?

>>> read_range("2|4|8", "heads").values, len(read_range("128..1024/64", "d_model").values)
((2, 4, 8), 15)
>>> read_range("4M..100M", "parameters").values
(4000000, 100000000)
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Self

from parformer.errors import ConfigError
from parformer.notation import shown
from parformer.pattern import Value

MOST = 4096
"""Values that one gene may have."""

UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9}
_STEPS = re.compile(r"(?P<low>\d+)(?P<a>[kMG]?)\.\.(?P<high>\d+)(?P<b>[kMG]?)(?:/(?P<step>\d+))?")


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

    Without a step a stretch counts by one, and stands for its two ends where it is too long.
    """
    way_out = f"write it as 128..1024/64 or 2|4|8, for {name}"
    written = str(text).strip().replace(" ", "")
    if steps := _STEPS.fullmatch(written):
        low = int(steps["low"]) * UNITS[steps["a"]]
        high = int(steps["high"]) * UNITS[steps["b"]]
        step = int(steps["step"] or 1)
        if low > high or step < 1:
            raise ConfigError(f"{name} {shown(written)} holds no value; {way_out}")
        if steps["step"] is None and high - low >= MOST:
            return Range((low, high), written)
        if (high - low) // step >= MOST:
            raise ConfigError(f"{name} {shown(written)} holds more than {MOST:,} values; {way_out}")
        return Range(tuple(range(low, high + 1, step)), written)
    values = []
    for part in written.split("|"):
        number = re.fullmatch(r"(\d{1,15})([kMG]?)", part)
        if number is None and not re.fullmatch(r"[a-z][a-z0-9-]*", part):
            raise ConfigError(f"cannot read {name} {shown(str(text))}; {way_out}")
        values.append(part if number is None else int(number[1]) * UNITS[number[2]])
    if len(set(values)) < len(values):
        raise ConfigError(f"{name} {shown(written)} has a value twice; give it once")
    return Range(tuple(sorted(values, key=lambda v: (isinstance(v, str), v))), written)


def split_choices(text: str) -> list[str]:
    """Split at bars that stand outside of brackets.

    >>> split_choices("s[heads=2|4] | i")
    ['s[heads=2|4]', 'i']
    """
    if not isinstance(text, str):
        raise ConfigError(f"{shown(text)} is no block; write it as s[heads=2|4|8]")
    return [part.strip() for part in re.split(r"\|(?![^\[]*\])", text)]
