"""Whose update is it: the weights', or the architecture's?

>>> table = Timetable(steps=20, warmup=4, cycle=5, turns=1)
>>> [table.at(step).kind[0] for step in range(4, 14)]
['w', 'w', 'w', 'w', 'a', 'w', 'w', 'w', 'w', 'a']
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from parformer.recipe import SearchConfig

Kind = Literal["weights", "architecture"]


@dataclass(frozen=True, slots=True)
class Turn:
    """Whose update it is, and which of its own."""

    kind: Kind
    index: int


@dataclass(frozen=True, slots=True)
class Timetable:
    """Who is updated when: a warm-up, then cycles."""

    steps: int
    warmup: int
    """Updates of the weights before anything else."""
    cycle: int
    turns: int
    """Updates of the architecture at the end of each cycle."""

    @classmethod
    def of(cls, steps: int, config: SearchConfig, epoch: int) -> Timetable:
        """`epoch` is how many updates one reading of the weights' text takes."""
        cycle = config.cycle or max(2, round(epoch / (1 - config.share)))
        turns = min(cycle - 1, max(1, round(config.share * cycle)))
        return cls(steps, round(config.warmup * steps), cycle, turns)

    def at(self, step: int) -> Turn:
        if step < self.warmup:
            return Turn("weights", step)
        cycle, place = divmod(step - self.warmup, self.cycle)
        first = self.cycle - self.turns
        if place < first:
            return Turn("weights", self.warmup + cycle * first + place)
        return Turn("architecture", cycle * self.turns + place - first)

    @property
    def tuning(self) -> int:
        """Updates after the warm-up."""
        return self.steps - self.warmup
