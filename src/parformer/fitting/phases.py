"""What does each phase of a fit find?

The journal keeps these as JSON, phase by phase, under the names that version 0.1 gave them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np

from parformer.config import ModelConfig
from parformer.data.overlap import Overlap
from parformer.evaluate.counting import References
from parformer.measure.profile import Profile
from parformer.recipe import Recipe
from parformer.records import Record

Curve = tuple[tuple[int, float], ...]
"""Losses by update."""

BASELINE = "baseline"


class PhaseResult(Record):
    """What a phase found."""

    __slots__ = ()
    PHASE: ClassVar[str]


@dataclass(frozen=True)
class TextFacts(PhaseResult):
    """The text as tokens, which stay on disk; its measures, and what counting makes of it."""

    PHASE = "text"
    identity: str
    tokens: int
    bytes: int
    vocabulary: int
    overlap: dict[str, Overlap]
    references: dict[str, References]
    counts: int = 0
    """Bytes of the table of n-grams that stands beside every model; 0 for none."""
    examples: dict[str, int] = field(default_factory=dict)
    """Examples or pairs of every split, where it is no running text."""
    length: int = 0
    """Tokens of a typical example, or of a typical translation."""
    source: int = 0
    """Tokens of a typical source."""
    ignorance: float = 0.0
    """The training's loss of whoever knows frequencies alone, on validation."""
    to_beat: float = 0.0
    """What validation is judged by, of whoever learned nothing."""
    plain: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)
    """Metrics of what needs no network, by split and by its name."""
    repeated: dict[str, float] = field(default_factory=dict)
    """The share of each split's examples that stand in train too."""


@dataclass(frozen=True)
class Baseline(PhaseResult):
    """The interleaved model, as large as the time and the limits allow, and what it costs."""

    PHASE = "size"
    recipe: Recipe
    figures: dict[str, float]
    limits: dict[str, float]
    """In seconds, bytes and counts."""
    tokens: float = 0.0
    """What it reads in the contest by the pace that was timed; 0 in what older versions wrote."""


@dataclass(frozen=True)
class Line(Record):
    """Seconds as a sum: something for a model at all, for each of its blocks, for its FLOPs."""

    costs: dict[str, float]
    """Seconds of one block, by its letter, and of one FLOP."""
    fixed: float = 0.0

    @classmethod
    def drawn(cls, parts: Sequence[Mapping[str, float]], seconds: Sequence[float]) -> Self:
        """Through measured models, in shares of their times; nothing costs less than nothing."""
        names = sorted({name for one in parts for name in one})
        took_n = np.array(seconds)
        table = np.array([[1.0, *(one.get(name, 0.0) for name in names)] for one in parts])
        table /= took_n[:, None]
        scale = np.maximum(table.max(axis=0), 1e-30)
        kept = list(range(table.shape[1]))
        while True:
            # a little ridge: letters that always come together share their cost
            some = table[:, kept] / scale[kept]
            both = some.T @ some + 1e-4 * np.eye(len(kept))
            found = np.linalg.solve(both, some.sum(axis=0)) / scale[kept]
            if (found >= 0).all() or len(kept) == 1:
                break
            kept = [place for place, value in zip(kept, found, strict=True) if value > 0] or kept[
                :1
            ]
        each = dict(zip(kept, np.maximum(found, 0.0).tolist(), strict=True))
        costs = {name: each[n] for n, name in enumerate(names, 1) if n in each}
        return cls(costs, each.get(0, 0.0))

    def at(self, parts: Mapping[str, float]) -> float:
        return self.fixed + sum(self.costs.get(name, 0.0) * much for name, much in parts.items())


@dataclass(frozen=True)
class Profiled(PhaseResult):
    """Block costs on this device; nothing where that is left out."""

    PHASE = "profile"
    profile: Profile | None = None
    median_error: float | None = None
    p90_error: float | None = None
    line: Line | None = None
    """In place of a profile, for models whose blocks are all alike."""


@dataclass(frozen=True)
class Placed(PhaseResult):
    """What a search for placements found; nothing where that is left out."""

    PHASE = "search"
    pattern: str = ""


@dataclass(frozen=True)
class Seen(Record):
    """A figure of every set of sizes that a search looked at, and the unbeaten ones."""

    visited: dict[str, tuple[float, ...]]
    front: tuple[dict[str, float], ...]


@dataclass(frozen=True)
class Finalist(Record):
    """A model that enters the contest."""

    name: str
    title: str
    how: str
    config: ModelConfig
    figures: dict[str, float]
    """Counted, and measured beside the baseline."""
    eligible: bool
    """Whether it keeps the limits, and so may be chosen."""
    bits: int = 0
    """In which it keeps a latency; 0 if as it was trained."""
    predicted: float | None = None
    """Seconds of a step by the profile of the device, where it is measured as that has it."""


@dataclass(frozen=True)
class Finalists(PhaseResult):
    """The baseline, and every placement in the sizes that fit."""

    PHASE = "sizes"
    models: tuple[Finalist, ...]
    pictures: dict[str, Seen]


@dataclass(frozen=True)
class Paces(PhaseResult):
    """Seconds of an update of every finalist, and of a token in validation."""

    PHASE = "rates.paces"
    updates: dict[str, float]
    token: float

    def to_dict(self) -> dict[str, Any]:
        return {**self.updates, "token": self.token}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], place: str = "") -> Self:
        numbers = {name: float(value) for name, value in values.items()}
        return cls(token=numbers.pop("token", 0.0), updates=numbers)


@dataclass(frozen=True)
class Tried(Record):
    """A short training at one rate."""

    rate: float
    loss: float | None
    """On validation text; None where its numbers were no longer finite."""
    stuck: bool = False
    """Whether it still knew nothing but how frequent each token is."""
    curve: Curve = ()
    """Losses on the text trained on, by update."""

    @property
    def standing(self) -> float:
        """What it is compared by: a loss on the plateau says nothing about its rate."""
        return math.inf if self.loss is None or self.stuck else self.loss


@dataclass(frozen=True)
class RatesOf(Record):
    """The rates that a finalist tried, and the one it was given."""

    rates: tuple[Tried, ...]
    rate: float


@dataclass(frozen=True)
class Rates(PhaseResult):
    """The learning rate of each finalist."""

    PHASE = "rates"
    steps: int
    models: dict[str, RatesOf]


@dataclass(frozen=True)
class Dropped(Record):
    """When and why a finalist did not go on."""

    step: int
    """Updates that it had; 0 if it was not begun."""
    loss: float | None
    why: str


@dataclass(frozen=True)
class Contestant(Record):
    """How a finalist did."""

    dropped: Dropped | None
    segments: tuple[float, ...] | None = None
    """Mean losses on stretches of validation text, after all of its training."""
    learned: bool | None = None
    """Whether that is more than pairs of tokens, which anybody can count."""
    steps: int | None = None
    """Updates that it had where the time did not last; None for those of all."""


@dataclass(frozen=True)
class EqualTime(Record):
    """A model after as much time as another one took."""

    steps: int
    segments: tuple[float, ...]
    untold: str = ""
    """Why it was not trained for as long; nothing else is known then."""


@dataclass(frozen=True)
class Contest(PhaseResult):
    """All finalists after equally many updates, and the best of those that may be chosen."""

    PHASE = "contest"
    steps: int
    models: dict[str, Contestant]
    best: str
    rival: str = BASELINE
    """The plain Transformer that the best is held against."""
    equal_time: EqualTime | None = None
    """The rival after as much time as the best took for these updates."""

    def steps_of(self, name: str) -> int:
        own = self.models[name].steps
        return self.steps if own is None else own


@dataclass(frozen=True)
class Seeds(PhaseResult):
    """The best and its rival again, with other seeds: losses of segments by seed and name."""

    PHASE = "seeds"
    seeds: dict[int, dict[str, tuple[float, ...]]]


@dataclass(frozen=True)
class Winner(PhaseResult):
    """Which training's model is handed over."""

    PHASE = "winner"
    name: str
    run: str
    steps: int
    retrained: bool
