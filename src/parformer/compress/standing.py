"""Which stairs stay, and which are left out?

A step has to gain something, and may not lose more than the limit says. What loses more is judged
together with a step that trains on after it, where one follows: both stay, or neither does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from parformer.compress.receipt import Bench, Figures
from parformer.compress.request import Targets
from parformer.compress.result import Stair
from parformer.events import Watch
from parformer.model import Model

GAIN = 0.99
"""What a step must leave of a figure, at most, to have gained anything."""
TEACHES = "distil"
"""The step that brings back what those before it have lost."""


@dataclass(frozen=True)
class Waiting:
    """The first step that lost more than it may, and what to go back to should nothing help."""

    step: str
    bench: Bench
    teacher: Path


@dataclass
class Standing:
    """The stairs so far, and the models on them."""

    models: dict[str, Model]
    folders: dict[str, Path]
    stairs: list[Stair]
    bench: Bench
    """With the text in the tokens of the model at the foot."""
    teacher: Path
    """The folder of the original, with the tokens of the model at the foot."""
    waiting: Waiting | None = None

    @property
    def foot(self) -> str:
        return [stair.name for stair in self.stairs if stair.taken][-1]

    def figures(self, name: str) -> Figures:
        return next(stair.figures for stair in self.stairs if stair.name == name)

    @property
    def grown(self) -> float:
        """What the loss has grown by at the foot, as a share."""
        return self.figures(self.foot).loss / self.stairs[0].figures.loss - 1

    def judge(self, bench: Bench, targets: Targets, later: tuple[str, ...], watch: Watch) -> None:
        """Whether the last stair stays, whose text `bench` has in its tokens, and what waited."""
        *before, stair = self.stairs
        first = before[0].figures
        foot = [one for one in before if one.taken][-1].figures
        useless, lossy = useless_for(stair.figures, foot), lossy_for(stair.figures, first, targets)
        if lossy and not useless and TEACHES in later:
            watch.notice(f"{stair.name}: {lossy}; it is judged after {TEACHES}")
            self.stairs[-1] = replace(stair, judged_with=TEACHES)
            self.waiting = self.waiting or Waiting(stair.name, self.bench, self.teacher)
        elif why := useless or lossy:
            watch.notice(f"{stair.name} is left out: {why}")
            self.stairs[-1] = replace(stair, taken=False, why=why)
            self.bench = with_other(self.bench, bench)
            helpless = stair.name == TEACHES and lossy_for(foot, first, targets)
            if self.waiting is not None and helpless:
                self.give_up(self.waiting, lossy, watch)
            return
        if bench is not self.bench:  # it is the first step: this is the original in other tokens
            self.teacher = self.folders[stair.name]
        self.bench = bench

    def give_up(self, waiting: Waiting, lossy: str, watch: Watch) -> None:
        """Leave out what waited for a step that did not help, and go back to what was before."""
        start = [stair.name for stair in self.stairs].index(waiting.step)
        why = f"even with {TEACHES} after it {lossy}"
        for number, stair in enumerate(self.stairs[start:], start):
            if stair.taken:
                watch.notice(f"{stair.name} is left out: {why}")
                self.stairs[number] = replace(stair, taken=False, why=why)
        self.bench = with_other(waiting.bench, self.bench)
        self.teacher, self.waiting = waiting.teacher, None


def with_other(bench: Bench, other: Bench) -> Bench:
    """The same, and the text in another model's tokens."""
    return bench if bench is other else replace(bench, others=(*bench.others, other))


def useless_for(after: Figures, before: Figures) -> str:
    """That nothing was gained, if nothing was."""
    smaller = after.size <= GAIN * before.size
    faster = after.token <= GAIN * before.token or after.piece <= GAIN * before.piece
    if smaller or faster or after.loss < before.loss:
        return ""
    return "it is neither smaller nor faster nor better"


def lossy_for(after: Figures, first: Figures, targets: Targets) -> str:
    """That more was lost than may be, if it was."""
    grown = after.loss / first.loss - 1
    if targets.loss is None or grown <= targets.loss:
        return ""
    return f"the loss would grow by {grown:.2%}, more than {targets.loss:.2%}"
