"""What was measured for a run already?

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     with Remembered(measure_here, Path(folder) / "measured.jsonl") as meter:
...         len(meter.known)
0
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from parformer.config import ModelConfig
from parformer.errors import ParformerError
from parformer.events import Preparing
from parformer.measure.cache import refuse_elsewhere
from parformer.measure.device import describe_device
from parformer.measure.readings import Meter, Readings, Step, measure_here
from parformer.store.files import Json
from parformer.store.lines import SEAL, Lines, seal, unseal


class Remembered:
    """A meter that keeps every batch of readings in a file, and takes them from there."""

    def __init__(self, meter: Meter, file: Path) -> None:
        self.meter = meter
        self.lines = Lines(file, SEAL, unseal)
        self.known: dict[str, Json] = {
            entry["key"]: entry["readings"] for entry in self.lines.found
        }

    def __call__(
        self, configs: Mapping[str, ModelConfig], step: Step, progress: Preparing | None = None
    ) -> Readings:
        models = [[name, config.to_dict()] for name, config in configs.items()]
        text = json.dumps([models, step.to_dict()], sort_keys=True)
        key = hashlib.sha256(text.encode()).hexdigest()
        if (kept := self._recall(key, step)) is not None:
            return kept
        readings = self.meter(configs, step, progress)
        self.lines.add(seal(json.dumps({"key": key, "readings": readings.to_dict()})))
        self.lines.settle()
        return readings

    def _recall(self, key: str, step: Step) -> Readings | None:
        if key not in self.known:
            return None
        try:
            readings = Readings.from_dict(self.known[key])
            if self.meter is measure_here:
                refuse_elsewhere(readings.receipt.device, describe_device(step.threads))
        except ParformerError:  # broken, or of another machine: measured again
            return None
        return readings

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.lines.close()
