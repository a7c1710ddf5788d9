"""What came of a compression: every stair, its receipt, and the model at the foot of it?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from parformer.compress.planning import Plan
from parformer.compress.receipt import Change, Figures
from parformer.compress.replacing.result import Replacement
from parformer.records import Record, Result
from parformer.report.words import Unit, megabytes, signed
from parformer.search.machine import Machine

ORIGINAL = "original"


@dataclass(frozen=True, kw_only=True)
class Stair(Record):
    """One step of a compression, and what it was worth."""

    name: str
    done: str
    """What was done, in words."""
    figures: Figures
    taken: bool = True
    """Whether what follows builds on it."""
    why: str = ""
    """Why it was not taken."""
    judged_with: str = ""
    """The later step that it was judged with, since by itself it lost more than it may."""
    seconds: float = 0.0
    replacement: Replacement | None = None
    """Which blocks went and why, where some did."""
    sample: str = ""
    """What the model wrote on after some words of the text, where it writes."""


@dataclass(frozen=True, kw_only=True)
class CompressResult(Result):
    """A model made smaller, step by step."""

    FILE: ClassVar[str] = "compress.json"
    FORMAT: ClassVar[str] = "parformer-compress-1"

    source: str
    """What was compressed."""
    corpus: str
    tokenizer: str
    task: str
    limits: tuple[str, ...]
    stairs: tuple[Stair, ...]
    """The original first."""
    kept: bool
    """Whether all limits are kept."""
    plan: Plan | None = None
    """What was decided by limits alone, where nobody named the steps."""
    prompt: str = ""
    seconds: float
    device: Machine
    command: str = ""
    version: str
    date: str
    run: Path | None = None

    @property
    def unit(self) -> Unit:
        return Unit.of(self.tokenizer)

    @property
    def first(self) -> Stair:
        return self.stairs[0]

    @property
    def last(self) -> Stair:
        """The foot of the stairs: the last step that was taken."""
        return [stair for stair in self.stairs if stair.taken][-1]

    def verdict(self) -> str:
        """What was gained and what it cost, in a sentence or two."""
        before, after = self.first.figures, self.last.figures
        if self.last is self.first:
            why = "; ".join(f"{s.name}: {s.why}" for s in self.stairs if s.why)
            return f"Nothing was gained, so the model stays as it is ({why})."
        words = [f"{before.size / after.size:.1f}× smaller"]
        words[0] += f" ({megabytes(before.size)} → {megabytes(after.size)})"
        words.append(speed_words(after.token_change, "one-token steps"))
        words.append(loss_words(after))
        told = f"{words[0]}, {words[1]}, {words[2]}.{recall_words(before, after)}"
        told += recovery_words(self.stairs)
        if self.limits and not self.kept:
            told = f"Not within {', '.join(self.limits)}: the nearest that was found is {told}"
        return told


def speed_words(change: Change | None, what: str) -> str:
    """How much faster something became.

    >>> speed_words(Change(ratio=0.5, low=0.4, high=0.6, verdict="less"), "steps")
    'steps 2.00× as fast'
    """
    if change is None or change.verdict == "tie":
        return f"{what} as fast as before"
    if change.verdict == "less":
        return f"{what} {1 / change.ratio:.2f}× as fast"
    return f"{what} SLOWER, {change.ratio:.2f}× the time"


def recall_words(before: Figures, after: Figures) -> str:
    """What became of recall, where it was tried."""
    if before.recalled is None or after.recalled is None:
        return ""
    told = [
        f"{what} {getattr(before.recalled, what):.0%} → {getattr(after.recalled, what):.0%}"
        for what in ("copying", "recall")
    ]
    return f" Of what it has just read: {', '.join(told)}."


def recovery_words(stairs: Sequence[Stair]) -> str:
    """What a step had lost by itself that was judged with a later one."""
    first = stairs[0].figures.loss
    grown = {stair.name: signed(stair.figures.loss / first - 1, 1) for stair in stairs}
    return "".join(
        f" After {stair.name} alone the loss was {grown[stair.name]}, "
        f"after {stair.judged_with} {grown[stair.judged_with]}."
        for stair in stairs
        if stair.taken and stair.judged_with
    )


def loss_words(figures: Figures) -> str:
    change = figures.loss_change
    if change is None:
        return f"loss {figures.loss:.4f}"
    told = f"loss {signed(change.ratio - 1, 2)}"
    return f"{told} ({signed(change.low - 1, 2)} to {signed(change.high - 1, 2)})"
