"""How good is what a fit hands over at its task, beside what needs no network?"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import fmean

from parformer.records import Record

Metrics = dict[str, float]
"""A task's own figures by name; higher is better."""


@dataclass(frozen=True)
class TaskScores(Record):
    """Scores by split and by who has them: `final`, `baseline`, and what needs no network."""

    task: str
    main: tuple[str, ...]
    """The metrics whose mean the task is told in."""
    splits: dict[str, dict[str, Metrics]]
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Where the main figure of the model that is handed over lies with 95% confidence, by split."""
    examples: dict[str, int] = field(default_factory=dict)
    how: str = ""
    """How answers were found, where there is more than one way."""

    @property
    def words(self) -> str:
        """The main figure's name.

        >>> TaskScores("mrpc", ("accuracy", "f1"), {}).words
        'mean of accuracy and F1'
        """
        names = [told(name) for name in self.main]
        return names[0] if len(names) == 1 else f"mean of {' and '.join(names)}"

    def figure(self, metrics: Metrics | None) -> float | None:
        """The one number of somebody's metrics; None where a part of it is missing."""
        if not metrics or any(name not in metrics for name in self.main):
            return None
        return fmean(metrics[name] for name in self.main)

    def of(self, who: str, split: str) -> float | None:
        return self.figure(self.splits.get(split, {}).get(who))

    def number(self, value: float | None) -> str:
        """A figure in digits: BLEU has another scale than shares."""
        if value is None:
            return "–"
        return f"{value:.1f}" if self.main[0] in ("bleu", "chrf") else f"{value:.3f}"

    @property
    def judged(self) -> str:
        """The split that nothing was chosen by, if there is one."""
        return "test" if "test" in self.splits else "valid"

    def best_plain(self, split: str) -> tuple[str, float] | None:
        """What needs no network and comes furthest."""
        known = {
            who: value
            for who in self.splits.get(split, {})
            if who not in (FINAL, BASELINE) and (value := self.of(who, split)) is not None
        }
        return max(known.items(), key=lambda one: one[1]) if known else None


FINAL, BASELINE = "final", "baseline"
WORDS = {"f1": "F1", "macro_f1": "macro F1", "bleu": "BLEU", "chrf": "chrF", "em": "exact match"}
WORDS |= {"pearson": "Pearson's r", "spearman": "Spearman's r", "matthews": "Matthews' r"}


def told(metric: str) -> str:
    """A metric as people write it."""
    return WORDS.get(metric, metric.replace("_", " "))
