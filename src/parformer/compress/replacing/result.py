"""What was found out about replacing blocks, and what was chosen?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from parformer.records import Record, Result
from parformer.search.placement.prices import Prices

Table = tuple[tuple[float, ...], ...]
"""A number for every choice of every place."""


@dataclass(frozen=True, kw_only=True)
class Plan(Record):
    """What the clock decided, once."""

    passes: int
    """Of the teacher, that candidates learn from."""
    updates: int
    """Of the gates."""


@dataclass(frozen=True, kw_only=True)
class Learned(Record):
    """What is known of every choice, whatever the limit."""

    errors: Table
    """How far a candidate is from what its block gives, beside doing nothing, which is 1."""
    alone: Table
    """What the loss of some training text grows by when it alone is replaced, as a share."""
    chances: Table
    """How likely the gates find each choice, all places being free."""


@dataclass(frozen=True, kw_only=True)
class Candidate(Record):
    """One choice in every place."""

    picks: tuple[int, ...]
    pattern: str
    by: str
    """Who proposed it: the gates, or the blocks' losses one by one."""
    cost: float
    """By the sum of its prices, beside the model as it was."""
    time: float | None = None
    """By the clock."""
    before: float
    """Loss on some training text as soon as blocks are replaced."""
    after: float | None = None
    """Loss on validation text once it was taught; None where it was not."""


@dataclass(frozen=True, kw_only=True)
class Solved(Record):
    """Choices within a limit, the most promising first."""

    candidates: tuple[Candidate, ...]


@dataclass(frozen=True, kw_only=True)
class Rung(Record):
    """What another limit would lead to."""

    limit: float
    pattern: str
    cost: float
    alone: float
    """The sum of what its blocks lose one by one, as a share of the loss."""


@dataclass(frozen=True, kw_only=True)
class Replacement(Result):
    """Which blocks went, and why these."""

    FILE: ClassVar[str] = "replacement.json"
    FORMAT: ClassVar[str] = "parformer-replacement-1"

    paths: tuple[str, ...]
    choices: tuple[tuple[str, ...], ...]
    """Of every place, the block that was there first."""
    plan: Plan
    learned: Learned
    prices: Prices
    limit: float
    """What may be left of the time, or of the parameters, as a share."""
    candidates: tuple[Candidate, ...]
    chosen: int
    """Which of them."""
    ladder: tuple[Rung, ...]

    @property
    def picks(self) -> tuple[int, ...]:
        return self.candidates[self.chosen].picks
