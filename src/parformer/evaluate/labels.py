"""How good is a model at labelled texts?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from parformer.evaluate.perplexity import finite_or_none


@dataclass(frozen=True, slots=True)
class LabelScore:
    """What a task's authors count, the loss, and how far its confidence can be trusted."""

    loss: float
    """Nats per example, or the mean squared error of scores."""
    examples: int
    metrics: Mapping[str, float]
    """By name, as the task's authors define them."""
    main: float
    """The one number that the task is told in."""
    calibration: float | None = None
    """Expected calibration error, where there are probabilities."""
    beside: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """The metrics of the most frequent answer and of bags of n-grams, where asked for."""

    kind = "labels"

    def to_dict(self) -> dict[str, object]:
        values: dict[str, object] = {
            "kind": self.kind,
            "loss": finite_or_none(self.loss),
            "examples": self.examples,
            "score": self.main,
            "metrics": dict(self.metrics),
        }
        if self.calibration is not None:
            values["calibration_error"] = self.calibration
        if self.beside:
            values["beside"] = {name: dict(some) for name, some in self.beside.items()}
        return values
