"""What happens while a verb works, for whoever looks on?

Every verb takes one function and calls it with events, plain values that a progress bar, a
notebook or a page can show. Inside, a `Watch` turns what the work says into them.

>>> watch = Watch(print)
>>> watch.notice("Going on from step 10.")
Notice(text='Going on from step 10.')
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Notice:
    """A sentence for people."""

    text: str


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a piece of work is that has no updates to count."""

    what: str
    share: float


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of a long job begins."""

    name: str
    title: str
    number: int
    of: int
    left: float
    """Seconds that remain for everything; 0 where no clock runs."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a long job, its time, and what one should know about it."""

    name: str
    title: str
    planned: float
    """Seconds; 0 means that it is left out, or that no clock runs."""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Planned:
    """What a job by the clock means to do."""

    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Training:
    """A training begins, or goes on."""

    text: str
    """Model, text and updates, in a line."""
    unit: str
    """What people read losses in: bits or perplexity."""


@dataclass(frozen=True, slots=True)
class Started:
    """So many updates are done, and so many there will be."""

    step: int
    steps: int


@dataclass(frozen=True, slots=True)
class Step:
    """An update that was logged."""

    step: int
    loss: float
    tokens_per_second: float


@dataclass(frozen=True, slots=True)
class Validated:
    """A look at text that is not trained on."""

    step: int
    loss: float


@dataclass(frozen=True, slots=True)
class Wrote:
    """A piece of text that a model has just written after the prompt at a place."""

    place: int
    text: str


Event: TypeAlias = (
    Notice | Progress | Phase | Planned | Training | Started | Step | Validated | Wrote
)
Listener: TypeAlias = Callable[[Event], None]

Preparing: TypeAlias = Callable[[str, float], None]
"""Is told what goes on and which share of it is done, as `Watch.preparing` is."""


def nobody(event: Event) -> None:
    """Looks on."""


class Watch:
    """What work says, as events for one listener."""

    def __init__(self, tell: Listener = nobody) -> None:
        self.tell = tell

    def notice(self, text: str) -> None:
        self.tell(Notice(text))

    def preparing(self, what: str, share: float) -> None:
        self.tell(Progress(what, share))

    def planned(self, parts: tuple[Part, ...]) -> None:
        self.tell(Planned(parts))

    def phase(self, part: Part, number: int, of: int, left: float) -> None:
        self.tell(Phase(part.name, part.title, number, of, left))

    def training(self, text: str, unit: str) -> None:
        self.tell(Training(text, unit))

    def start(self, step: int, steps: int) -> None:
        self.tell(Started(step, steps))

    def step(self, step: int, loss: float, tokens_per_second: float) -> None:
        self.tell(Step(step, loss, tokens_per_second))

    def validated(self, step: int, loss: float) -> None:
        self.tell(Validated(step, loss))

    def wrote(self, place: int, text: str) -> None:
        self.tell(Wrote(place, text))
