"""What was measured already, even if measuring was cut short?

One file per machine, step and reference model. Each batch of readings is one line, on disk
before the next batch begins: whoever is stopped goes on where it was, and spaces that share
sizes share their readings.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from parformer.config import ModelConfig
from parformer.errors import ConfigError, FolderError, ParformerError
from parformer.measure.device import Device, Receipt
from parformer.measure.grid import settle
from parformer.measure.readings import REFERENCE, Reading, Readings, Step
from parformer.measure.tables import TRAINING
from parformer.store.files import reason, sync

FACTS = {
    "cpu": "the CPU",
    "simd": "its vector instructions",
    "accelerator": "the accelerator",
    "torch": "torch",
    "threads": "the number of threads",
}
"""What a speed depends on most, in words."""


def facts(device: Device) -> dict[str, object]:
    return {name: getattr(device, name) for name in FACTS}


def refuse_elsewhere(measured: Device, here: Device) -> None:
    """Refuse what was measured on another machine, or otherwise than it will run."""
    for name, words in FACTS.items():
        then, now = getattr(measured, name), getattr(here, name)
        if then != now:
            raise ConfigError(
                f"this was measured where {words} is {then!r}, and here it is {now!r}; "
                "measure again with --again"
            )


def digest(*things: object) -> str:
    text = json.dumps(things, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def model_key(config: ModelConfig, step: Step) -> str:
    """The same for all models that a step takes the same time of."""
    values = {name: v for name, v in config.to_dict().items() if name not in TRAINING}
    return digest(values, step.to_dict())


class Logbook:
    """Readings by what they are of; without a path they are only remembered."""

    def __init__(self, path: Path | None, device: Device, *, again: bool = False) -> None:
        self.path, self.device = path, device
        self.readings: dict[str, Reading] = {}
        self.receipt: Receipt | None = None
        self.levels: dict[str, tuple[float, float]] = {}
        """Of what was timed beside the reference: multiples of its time, and their noise."""
        self._pace: list[float] = []
        if path is None:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if again:
                path.unlink(missing_ok=True)
            for batch in self._read(path):
                self._note(batch)
        except OSError as error:
            raise FolderError(f"cannot use {str(path)!r}: {reason(error)}") from None

    def _read(self, path: Path) -> Iterator[Readings]:
        """All batches that are whole; what a killed process left half written is cut off."""
        if not path.exists():
            return
        content = path.read_bytes()
        whole, _, torn = content.rpartition(b"\n")
        if torn:
            os.truncate(path, len(content) - len(torn))
        for line in whole.splitlines():
            try:
                batch = Readings.from_dict(json.loads(line))
                refuse_elsewhere(batch.receipt.device, self.device)
            except (ValueError, RecursionError, ParformerError):
                continue  # it is measured again
            yield batch

    def add(self, batch: Readings) -> None:
        """Keep a batch, durably."""
        refuse_elsewhere(batch.receipt.device, self.device)
        if self.path is not None:
            line = json.dumps(batch.to_dict(), separators=(",", ":")) + "\n"
            try:
                fresh = not self.path.exists()
                with self.path.open("ab") as stream:
                    stream.write(line.encode())
                    stream.flush()
                    os.fsync(stream.fileno())
                if fresh:
                    sync(self.path.parent)
            except OSError as error:
                raise FolderError(
                    f"could not write {str(self.path)!r} ({len(line):,} bytes needed): "
                    f"{reason(error)}"
                ) from None
        self._note(batch)

    def _note(self, batch: Readings) -> None:
        self.receipt = batch.receipt
        names = [reading.name for reading in batch.readings]
        self.readings |= zip(names, batch.readings, strict=True)
        if REFERENCE in names:
            self._pace += batch[REFERENCE].samples
            usual, noise, _ = settle([reading.samples for reading in batch.readings])
            multiples = usual / usual[names.index(REFERENCE)]
            self.levels |= zip(
                names, zip(multiples.tolist(), noise.tolist(), strict=True), strict=True
            )

    def pace(self) -> float:
        """Seconds that the reference usually takes."""
        return float(np.median(self._pace))
