"""What was scored on tasks that a model was never trained for?"""

from __future__ import annotations

from dataclasses import dataclass

from parformer.store.files import Json


@dataclass(frozen=True, slots=True)
class TaskScore:
    """One task's figure, how sure it is, and what drawing lots reaches."""

    task: str
    measure: str
    value: float
    error: float | None
    """One standard error; None where lm-eval tells none."""
    chance: float | None
    """Of choosing at random; None where there is nothing to choose from."""
    count: int
    """Questions."""

    def to_dict(self) -> Json:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class TaskScores:
    """All tasks, and their mean."""

    scores: tuple[TaskScore, ...]
    shots: int

    @property
    def mean(self) -> float:
        return sum(score.value for score in self.scores) / len(self.scores)

    def to_dict(self) -> Json:
        scores = [score.to_dict() for score in self.scores]
        return {"tasks": scores, "shots": self.shots, "mean": self.mean}
