"""Where does a training stand, and may it go on from there?

What a checkpoint tells besides weights: where the metrics end, which vocabulary the weights are
of, and on what machine they were made.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from parformer.data.tokens import Prepared
from parformer.errors import FolderError
from parformer.events import Watch
from parformer.kernels import native
from parformer.measure.device import describe_device
from parformer.records import Record
from parformer.train.distributed import Workers
from parformer.train.run import TOKENIZER


@dataclass(slots=True)
class Tally:
    """Losses since the last line of metrics; part of a checkpoint, so that no mean is torn."""

    total: float = 0.0
    count: int = 0

    def add(self, loss: float) -> None:
        self.total += loss
        self.count += 1

    def take(self) -> float:
        mean = self.total / self.count
        self.total, self.count = 0.0, 0
        return mean


@dataclass(frozen=True, slots=True)
class Machine(Record):
    """What bits depend on besides the recipe; older checkpoints leave some of it out."""

    torch: str | None = None
    threads: int | None = None
    processes: int | None = None
    sharded: bool | None = None
    kernels: str | None = None
    device: str | None = None


@dataclass(frozen=True, slots=True)
class Best(Record):
    """The best validation of a training."""

    step: int
    value: float
    """What validations are compared by; lower is better."""
    since: int = 0
    """Validations after it."""


@dataclass(frozen=True, slots=True)
class Standing(Record):
    """Where the loop stood when a checkpoint was written."""

    metrics_bytes: int
    """Where the metrics end."""
    tally: tuple[float, int]
    """Losses since their last line, and how many."""
    vocabulary: str = ""
    """SHA-256 of it."""
    machine: Machine | None = None
    best: Best | None = None
    """The best validation so far, where a training may stop early."""


def digest_of(prepared: Prepared) -> str:
    """SHA-256 of the vocabulary."""
    return hashlib.sha256(prepared.tokenizer.to_json().encode()).hexdigest()


def refuse_other_vocabulary(before: Standing, prepared: Prepared, path: Path) -> None:
    """Weights mean nothing with other words in the places of those that they were trained on."""
    if before.vocabulary != digest_of(prepared):
        raise FolderError(
            f"{str(path / TOKENIZER)!r} is not the vocabulary that the checkpoint was trained "
            "with; copy it back, or choose another --run"
        )


def machine(workers: Workers) -> Machine:
    device = describe_device()
    return Machine(
        torch=device.torch,
        threads=device.threads,
        processes=workers.count,
        sharded=workers.shard,
        kernels="native" if native.enabled else "plain",
        device=f"{device.cpu}, {device.simd}, {workers.device.type}",
    )


def compare_machines(before: Machine | None, workers: Workers, watch: Watch) -> None:
    """Say so where going on cannot be bit-exact."""
    if before is None:
        raise FolderError("the checkpoint does not say on what machine it was written")
    known = before.to_dict()
    for name, value in machine(workers).to_dict().items():
        if known[name] != value:
            watch.notice(
                f"Not bit-exact from here on: {name} was {known[name]}, now it is {value}."
            )
