"""How good is a trained model, as `result.json` of its run says?

>>> found = RunResult.from_dict({"steps": 8, "valid": {"loss": 1.5, "tokens": 64}})
>>> found.steps, found.loss_on("valid"), found.loss_on("test")
(8, 1.5, inf)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from parformer.records import Json, Record, typed


@dataclass(frozen=True, slots=True)
class Written:
    """A task's score as it was written down; what else there is in it, its task knows."""

    values: Mapping[str, object]

    @property
    def loss(self) -> float:
        """What is compared; infinite where it was no number."""
        loss = typed(self.values.get("loss"), float | None, "loss")
        return math.inf if loss is None else float(loss)

    @property
    def tokens(self) -> int:
        return int(typed(self.values.get("tokens", 0), int, "tokens"))

    def to_dict(self) -> Json:
        return dict(self.values)

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> Self:
        return cls(values)


@dataclass(frozen=True, slots=True)
class RunResult(Record):
    """What a finished run found: its updates, and a score for each split that there is."""

    steps: int
    valid: Written | None = None
    test: Written | None = None

    @property
    def scores(self) -> dict[str, Written]:
        """By split."""
        both = {"valid": self.valid, "test": self.test}
        return {split: score for split, score in both.items() if score is not None}

    def loss_on(self, split: str) -> float:
        """Infinite where there is no such split."""
        return self.scores[split].loss if split in self.scores else math.inf

    def to_dict(self) -> Json:
        scores = {split: score.to_dict() for split, score in self.scores.items()}
        return {"steps": self.steps, **scores}
