"""Which sizes may a placement have where its layers are all alike, and how long would each take?

A small encoder, or a decoder that writes token by token, spends most of its time between matrices:
so much for every block, and a little for its FLOPs. A dozen models tell how much of each.

>>> line = Line.drawn([{"s": 2.0, "flops": 1e6}, {"s": 4.0, "flops": 1e6}], [0.003, 0.005])
>>> round(line.at({"s": 3.0, "flops": 1e6}), 4)
0.004
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np

from parformer.config import ModelConfig
from parformer.costs import cost
from parformer.errors import ConfigError
from parformer.fitting.phases import Line
from parformer.pattern import Pattern
from parformer.search.sizes.objectives import Figures

WIDTHS = (0.5, 0.75, 1, 1.25, 1.5)
"""Widths of a model, in multiples of the baseline's."""
INNER = (1, 2, 3, 4, 6)
"""Inner widths of its feed-forwards, in multiples of the model's width."""
LARGER = 1.3
"""How many times the baseline's FLOPs a model may take: a table of n-grams takes none."""
MODELS = 16
"""Models that are timed to tell what blocks cost."""

Price = Callable[[ModelConfig], Figures]


def sized(patterns: Sequence[Pattern], base: ModelConfig) -> list[ModelConfig]:
    """Every size of some patterns that is a model, and not much larger than the baseline."""
    step = 16 if base.n_head <= 4 else 64
    widths = sorted({step * max(1, round(share * base.d_model / step)) for share in WIDTHS})
    most, found = LARGER * cost(base).flops, list[ModelConfig]()
    for pattern in patterns:
        for width in widths:
            for share in INNER:
                try:
                    one = base.replaced(d_model=width, d_inner=share * width, pattern=pattern)
                    if cost(one).flops <= most:
                        found.append(one)
                except ConfigError:  # heads or channels that do not divide
                    continue
    return found or [base]


def parts_of(config: ModelConfig, flops: float) -> dict[str, float]:
    """How often each block runs, those of an encoder apart, and the FLOPs."""
    encoder = config.pattern.encoder
    found = {"flops": flops}
    for letter in "sfclrny":
        before = 0 if encoder is None else encoder.count(letter)
        found[letter] = float(config.pattern.count(letter) - before)
        found[f"{letter}|"] = float(before)
    return {name: value for name, value in found.items() if value}


def drawn_from(sizes: Mapping[str, Sequence[ModelConfig]], count: int) -> list[ModelConfig]:
    """Models from all placements in turn, the same for everybody who asks."""
    rng, names = Random("models of a fit"), list(sizes)
    return [rng.choice(sizes[names[number % len(names)]]) for number in range(count)]


@dataclass(frozen=True)
class Straight:
    """A clock: what a line says of a model."""

    line: Line
    price: Price
    known: ModelConfig
    bytes: float
    """Peak memory of the known one."""

    def latency(self, config: ModelConfig) -> float:
        return self.line.at(parts_of(config, self.price(config)["flops"]))

    def peak_bytes(self, config: ModelConfig) -> int:
        beyond = self.bytes - 4 * cost(self.known).parameters
        share = config.d_model / self.known.d_model
        return round(4 * cost(config).parameters + max(0.0, beyond * share))


def off_by(
    line: Line, parts: Sequence[Mapping[str, float]], seconds: Sequence[float]
) -> list[float]:
    """How far a line is off, as shares of what was measured."""
    return [abs(line.at(one) / took - 1) for one, took in zip(parts, seconds, strict=True)]


def tried(
    parts: Sequence[Mapping[str, float]], seconds: Sequence[float]
) -> tuple[Line, list[float]]:
    """A line through all, and how far one through every other model is off at the rest."""
    half = Line.drawn(parts[::2], seconds[::2])
    return Line.drawn(parts, seconds), off_by(half, parts[1::2], seconds[1::2])


def quantile(errors: Sequence[float], share: float) -> float:
    return float(np.quantile(np.array(errors), share))
