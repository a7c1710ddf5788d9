"""What may a step of a compression ask for, and how far is it to go?"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from parformer.compress.receipt import Bench
from parformer.compress.request import CompressRequest, Targets
from parformer.events import Watch

TRIED = 8_192
"""Tokens of training text that tell what a change loses."""
ATTEMPTS = 4
"""Choices that are timed before one is taken as it is."""
USUAL = 0.7
"""Share of the time that is left where nobody says."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a step may ask for."""

    request: CompressRequest
    targets: Targets
    bench: Bench
    size: int
    """Bytes that the original has on disk."""
    latency: float
    """Seconds of its steps of one token."""
    original: Path
    """The folder of the model that all began with."""
    folder: Path
    """Where the step may keep things."""
    watch: Watch
    seconds: float = 0.0
    """For training."""
    left: float | None = None
    """What a plan leaves of the time, or the bytes, that the model takes before this step."""
    grown: float = 0.0
    """What the loss has grown by so far, as a share."""

    @property
    def by_time(self) -> bool:
        """Whether parts are chosen by the time that they take, not by their bytes."""
        return self.targets.latency is not None or self.targets.size is None


def wanted_share(work: Work) -> float:
    """How much of the time, or of the bytes, may be left."""
    if work.left is not None:
        return work.left
    if not work.by_time:
        most = work.targets.bytes(work.size)
        assert most is not None
        return min(1.0, most / work.size)
    longest = work.targets.seconds(work.latency)
    return USUAL if longest is None else min(1.0, longest / work.latency)
