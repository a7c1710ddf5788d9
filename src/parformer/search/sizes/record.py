"""What does a study keep of a candidate?"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from parformer.records import Json, Record

FORMAT = "parformer-study-1"

Outcome = tuple[Sequence[float] | None, str, Json]
"""Values or None, why there are none, and figures worth keeping."""


@dataclass(frozen=True)
class Finished(Record):
    """A finished slot."""

    slot: int
    genome: str
    """As canonical JSON."""
    values: tuple[float, ...] | None
    """One per objective; None if it cannot be evaluated."""
    why: str = ""
    """Why there are no values."""
    extra: Json = field(default_factory=dict)
    """Further figures, small enough for JSON."""

    @classmethod
    def make(cls, slot: int, genome: str, outcome: Outcome) -> Finished:
        """What will be read back later: values must be finite, and extra is what JSON keeps."""
        values, why, extra = outcome
        numbers = None if values is None else tuple(float(value) + 0.0 for value in values)
        for place, number in enumerate(numbers or ()):
            if not math.isfinite(number):
                numbers, why = None, why or f"objective {place + 1} is {number}"
                break
        return cls(slot, genome, numbers, why, json.loads(json.dumps(extra)))
