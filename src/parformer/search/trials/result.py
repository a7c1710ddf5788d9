"""What did a search by trials find: every pattern that was tried, and how far it came?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from parformer.evaluate.counting import References
from parformer.pattern import Pattern
from parformer.records import Record, Result
from parformer.report.words import Unit
from parformer.search.machine import Machine
from parformer.search.placement.target import Target


@dataclass(frozen=True, kw_only=True)
class Trial(Record):
    """A pattern that was trained for a while."""

    pattern: Pattern
    how: str
    """usual, random or expected: where it came from."""
    losses: tuple[float, ...]
    """On validation text after each look that it came to."""
    cost: float | None = None
    """Beside the interleaved model's, where a limit was given."""


@dataclass(frozen=True, kw_only=True)
class TrialsResult(Result):
    """The pattern that came through all looks with the lowest loss, and those that did not."""

    FILE: ClassVar[str] = "trials.json"
    FORMAT: ClassVar[str] = "parformer-trials-1"

    pattern: Pattern
    corpus: str
    layers: int
    choices: str
    by: str
    tokenizer: str
    steps: int
    """Updates of those that came to the end."""
    looks: tuple[int, ...]
    """Updates after which the better half went on."""
    trials: tuple[Trial, ...]
    """The best first."""
    learned: bool = True
    """Whether the best learned more than counting pairs of tokens tells."""
    references: References | None = None
    target: Target | None = None
    seconds: float
    updates: int
    """Of all trainings together."""
    device: Machine
    command: str = ""
    version: str
    date: str

    @property
    def loss(self) -> float:
        return self.trials[0].losses[-1]

    @property
    def unit(self) -> Unit:
        return Unit.of(self.tokenizer)

    def verdict(self) -> str:
        """What came out, in a sentence or two."""
        if not self.learned:
            return "Nothing was learned in this time: no pattern is better than counting pairs."
        finished = [one for one in self.trials if len(one.losses) == len(self.looks)]
        found = f"{self.pattern} came out best of {len(self.trials)} patterns, "
        found += f"{self.unit.told(self.loss)} after {self.steps:,} updates"
        if len(finished) > 1:
            behind = finished[1].losses[-1] / self.loss - 1
            found += f"; the next one that came to the end, {finished[1].pattern}, is "
            found += f"{behind:.1%} behind"
        return f"{found}. One seed: differences below one per cent may be luck."
