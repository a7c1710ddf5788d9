"""Which steps, and in which order, where only limits are given?

What was tried on the model as it is tells what each step leaves of bytes and of time, and what it
loses. Of all ways to put steps together the one is taken that keeps the limits by the least.

>>> eight = Option(step="quantize", what="8 bits", size=0.26, time=0.8, loses=0.001)
>>> half = Option(step="shrink", what="half of it", size=0.5, time=0.6, loses=0.04, left=0.5)
>>> [way.names for way in ways([eight, half])]
[('quantize',), ('shrink', 'distil'), ('shrink', 'distil', 'quantize')]
>>> best(ways([eight, half]), Bounds(size=0.2, loss=0.02)).told
'shrink (half of it), distil, quantize (8 bits)'
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from parformer.compress.request import Targets
from parformer.records import Record
from parformer.report.words import percent, signed

ORDER = ("vocabulary", "shrink", "quantize")
"""What is tried, in the order in which it is done."""
TAUGHT = 0.2
"""Share of what shrinking loses that is left when the model was taught again: a cautious guess,
which the step's receipt corrects."""
CLOCK = 0.97
"""Times are planned to be so much shorter than they have to be, since they are measured again."""
SMALLER = 0.93
"""Where a model is shrunk and then quantized, bytes are planned to be so much fewer than they have
to be: less of a narrower model is in matrices that are worth codes of their own."""


@dataclass(frozen=True, kw_only=True)
class Option(Record):
    """Something that was tried on the model as it is."""

    step: str
    what: str
    size: float
    """Share of the bytes that is left."""
    time: float = 1.0
    """Share of a step of one token that is left; 1 where no limit is a time."""
    loses: float
    """What the loss grows by, as a share; of words, how much of the text is spelled otherwise."""
    left: float | None = None
    """What the step has to leave, by its own prices."""

    @property
    def expected(self) -> float:
        """What is lost once the whole plan is done."""
        return max(0.0, self.loses) * (TAUGHT if self.step == "shrink" else 1.0)


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Limits as shares of what the original has."""

    size: float | None = None
    time: float | None = None
    loss: float | None = None
    bearable: float = 0.02
    """What the loss may grow by before other ways are looked for."""

    @classmethod
    def of(cls, targets: Targets, size: int, latency: float) -> Bounds:
        most, longest = targets.bytes(size), targets.seconds(latency)
        return cls(
            size=None if most is None else most / size,
            time=None if longest is None else longest / latency,
            loss=targets.loss,
            bearable=targets.may_lose,
        )


@dataclass(frozen=True)
class Way:
    """Some options together, in their order."""

    options: tuple[Option, ...]

    @property
    def size(self) -> float:
        return prod(option.size for option in self.options)

    @property
    def time(self) -> float:
        return prod(option.time for option in self.options)

    @property
    def loses(self) -> float:
        return sum(option.expected for option in self.options)

    @property
    def steps(self) -> tuple[Planned, ...]:
        """What is to be done; what was shrunk is taught again."""
        found = []
        for option in self.options:
            found.append(Planned(name=option.step, left=option.left))
            if option.step == "shrink":
                found.append(Planned(name="distil"))
        return tuple(found)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(step.name for step in self.steps)

    @property
    def told(self) -> str:
        what = {option.step: f" ({option.what})" for option in self.options}
        return ", ".join(f"{name}{what.get(name, '')}" for name in self.names)

    def beyond(self, bounds: Bounds) -> float:
        """How far limits of bytes and time are exceeded, as shares of them; 0 if they are kept."""
        both = {"shrink", "quantize"} <= set(self.names)
        aim = SMALLER if both else 1.0
        size = 0.0 if bounds.size is None else self.size / (aim * bounds.size) - 1
        time = 0.0 if bounds.time is None else self.time / (CLOCK * bounds.time) - 1
        return max(0.0, size) + max(0.0, time)


@dataclass(frozen=True, kw_only=True)
class Planned(Record):
    """One step of a plan."""

    name: str
    left: float | None = None
    """What it has to leave of the time, or the bytes, that the model takes before it."""


@dataclass(frozen=True, kw_only=True)
class Plan(Record):
    """What is to be done, and what it was decided by."""

    key: str
    """Of the model, the text and the wishes that it was made for."""
    steps: tuple[Planned, ...]
    told: str
    reaches: bool
    """Whether all limits are kept, by what was tried."""
    size: float
    time: float
    loses: float
    """What is expected to be left of bytes and of time, and lost."""
    tried: tuple[Option, ...]

    @classmethod
    def of(cls, way: Way, bounds: Bounds, tried: Iterable[Option], key: str) -> Plan:
        reaches = way.beyond(bounds) == 0 and (bounds.loss is None or way.loses <= bounds.loss)
        return cls(
            key=key,
            steps=way.steps,
            told=way.told,
            reaches=reaches,
            size=way.size,
            time=way.time,
            loses=way.loses,
            tried=tuple(tried),
        )

    def words(self) -> str:
        """The plan in a sentence."""
        time = f" and {percent(round(self.time, 2))} of the time" if self.time != 1 else ""
        told = f"{percent(round(self.size, 2))} of the bytes{time}, loss about {signed(self.loses)}"
        nearest = "" if self.reaches else "; nothing that was tried reaches the limits"
        return f"The plan: {self.told}. By what was tried that leaves {told}{nearest}."


def ways(tried: Sequence[Option]) -> list[Way]:
    """All ways to put options together: none or one of every step, in their order."""
    of_step = [[None, *(one for one in tried if one.step == step)] for step in ORDER]
    every = (tuple(one for one in way if one is not None) for way in product(*of_step))
    return [Way(options) for options in every if options]


def best(found: Sequence[Way], bounds: Bounds) -> Way:
    """The way that keeps the limits with the least training, steps and loss; else the nearest.

    A way that loses more than it may is none, unless all do.
    """
    within = [way for way in found if bounds.loss is None or way.loses <= bounds.loss]
    if not within:
        return min(found, key=lambda way: way.loses)
    kept = [way for way in within if way.beyond(bounds) == 0]
    if not kept:
        return min(within, key=lambda way: (way.beyond(bounds), way.loses))
    sound = [way for way in kept if way.loses <= bounds.bearable]
    if not sound:
        return min(kept, key=lambda way: (way.loses, len(way.steps)))
    return min(sound, key=lambda way: ("distil" in way.names, len(way.steps), way.loses))


def settled(way: Way, bounds: Bounds) -> bool:
    """Whether nothing else has to be tried."""
    return way.beyond(bounds) == 0 and way.loses <= bounds.bearable
