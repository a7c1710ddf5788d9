"""Who measures models, and what do they hand back?

A meter takes configurations and a step, and gives readings. `measure_here` measures on this
machine; another machine may serve as well, so all that goes in or out is plain JSON.

>>> step = Step(tgt_len=192, mem_len=0, rounds=20)
>>> Step.from_dict(step.to_dict()) == step
True
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Protocol, Self

import numpy as np
import torch

from parformer.blocks.base import Shape
from parformer.config import ModelConfig
from parformer.costs import cost, step_shape
from parformer.errors import ConfigError, FolderError, ParformerError
from parformer.events import Preparing
from parformer.measure.device import Receipt, pinned_threads
from parformer.measure.grid import settle
from parformer.measure.models import PLACEMENT, PRECISIONS, Runtime, measure_models
from parformer.measure.statistics import compare, median_interval
from parformer.records import Json, Record

MOST_BYTES = 4 << 30
"""Weights that may be alive at once, unless a caller knows better."""

SOURCED = ("source", "beam")
"""What a step says of translators."""
REFERENCE = "reference"
"""The name of the model that is timed in every batch."""


class Stored(Record):
    """A record that comes from files and other machines: whatever is wrong with it is theirs."""

    __slots__ = ()

    @classmethod
    def from_dict(cls, values: Mapping[str, object], place: str = "") -> Self:
        try:
            return super().from_dict(values, place)
        except ParformerError as error:
            name = cls.__name__.lower()
            raise FolderError(f"the stored {name} is broken: {error}") from None


@dataclass(frozen=True, kw_only=True, slots=True)
class Step(Stored):
    """What is measured of a model: one step with its memory full."""

    tgt_len: int | None = None
    """New tokens; None takes the configuration's own number."""
    mem_len: int | None = None
    """Remembered tokens before them; None takes the configuration's own number."""
    batch: int = 1
    """Texts side by side."""
    threads: int = 1
    """PyTorch's threads."""
    precision: str = "fp32"
    """What weights are kept as."""
    rounds: int = 10
    """How often each model is timed."""
    source: int = 0
    """Tokens of the source that a translator reads; then a step is a whole text of `tgt_len`."""
    beam: int = 1
    """Texts that are looked for side by side there."""

    def to_dict(self) -> Json:
        """What is about translators alone is left out where there are none."""
        values = Stored.to_dict(self)
        return values if self.source else {n: v for n, v in values.items() if n not in SOURCED}

    def __post_init__(self) -> None:
        for name, least in (("tgt_len", 1), ("mem_len", 0)):
            if getattr(self, name) is not None:
                _need_whole(name, getattr(self, name), least)
        for name in ("batch", "threads", "rounds", "beam"):
            _need_whole(name, getattr(self, name), 1)
        _need_whole("source", self.source, 0)
        if self.precision not in PRECISIONS:
            raise ConfigError(
                f"unknown precision {self.precision!r}; known: {', '.join(PRECISIONS)}"
            )

    def shape(self, config: ModelConfig) -> Shape:
        """The step of this model."""
        return step_shape(config, self.tgt_len, self.mem_len, self.batch)

    @property
    def weight_bytes(self) -> int:
        """Bytes of one weight."""
        return torch.finfo(PRECISIONS[self.precision]).bits // 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading(Stored):
    """What one model's step took."""

    name: str
    median: float
    low: float
    high: float
    """Seconds, and where their median lies with 95% confidence."""
    ratio: float
    """To the first model of the batch: the median over rounds that timed both."""
    samples: tuple[float, ...]
    """Seconds, one per round."""
    peak_bytes: int
    """The most tensor bytes alive at once, weights and memory included."""
    resident_bytes: int
    """Weights, and the memory of the step before."""

    def __post_init__(self) -> None:
        times = self.median, self.low, self.high, self.ratio, *self.samples
        sizes = self.peak_bytes, self.resident_bytes
        if not self.samples or not all(0 < n < math.inf for n in times) or min(sizes) < 0:
            raise ConfigError(f"no model took such times, or such bytes: {times[:4]}, {sizes}")

    @property
    def working_bytes(self) -> int:
        return self.peak_bytes - self.resident_bytes

    @classmethod
    def taken(
        cls, name: str, samples: Sequence[float], ratio: float, peak_bytes: int, resident: int
    ) -> Self:
        low, high = median_interval(samples)
        return cls(
            name=name,
            median=float(np.median(samples)),
            low=low,
            high=high,
            ratio=ratio,
            samples=tuple(samples),
            peak_bytes=peak_bytes,
            resident_bytes=resident,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Readings(Stored):
    """Models measured in the same rounds."""

    readings: tuple[Reading, ...]
    receipt: Receipt

    def __post_init__(self) -> None:
        if len({len(reading.samples) for reading in self.readings}) != 1:
            raise ConfigError("readings are not of the same rounds")

    def __getitem__(self, name: str) -> Reading:
        for reading in self.readings:
            if reading.name == name:
                return reading
        known = ", ".join(reading.name for reading in self.readings)
        raise ConfigError(f"no model {name!r} was measured; there are: {known}")


class Meter(Protocol):
    """Measures models side by side; the first is what ratios are about."""

    def __call__(
        self, configs: Mapping[str, ModelConfig], step: Step, progress: Preparing | None = None
    ) -> Readings: ...


def measure_here(
    configs: Mapping[str, ModelConfig],
    step: Step,
    progress: Preparing | None = None,
    *,
    runtime: Runtime | None = None,
) -> Readings:
    """On this machine. All models are alive at once, so give few: `in_batches` cuts many.

    `runtime` makes the step that is timed, where another one than torch is to run it.
    """
    with pinned_threads(step.threads):
        measured = measure_models(
            configs,
            tgt_len=step.tgt_len,
            mem_len=step.mem_len,
            batch=step.batch,
            rounds=step.rounds,
            threads=step.threads,
            precision=step.precision,
            standing=True,
            progress=progress,
            runtime=runtime,
        )
    first = next(iter(configs))
    readings = []
    for name, model in measured.models.items():
        samples = measured.latency[name].samples_seconds
        ratio = measured.latency.ratio(name, first)
        memory = model.memory
        readings.append(
            Reading.taken(name, samples, ratio, memory.peak_bytes, memory.resident_bytes)
        )
    return Readings(readings=tuple(readings), receipt=measured.latency.receipt)


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """Many models in order, as if they had been timed in the same rounds."""

    readings: tuple[Reading, ...]
    """Seconds at the reference's usual speed; ratios are to the reference."""
    ties: tuple[bool, ...]
    """Of each model and the next one: whether their times cannot be told apart."""
    reference_seconds: float
    receipt: Receipt


def in_batches(
    configs: Mapping[str, ModelConfig],
    step: Step,
    meter: Meter = measure_here,
    *,
    reference: ModelConfig,
    most_bytes: int = MOST_BYTES,
    progress: Preparing | None = None,
) -> Series:
    """Measure many models, few at a time.

    Each batch has the reference, and the last model of the batch before: so any two
    neighbours were timed in the same rounds and can be compared. A machine's speed drifts
    between batches and within them: times are what they would be at the reference's usual
    speed, without what slowed down a whole round.
    """
    if REFERENCE in configs:
        raise ConfigError(f"a model cannot be called {REFERENCE!r}; rename it")
    if not configs:
        raise ConfigError("there is nothing to measure; give at least one model")
    batches = cut(configs, step, most_bytes=most_bytes, overlap=True)
    taken: list[Readings] = []
    for i, names in enumerate(batches):
        models = {REFERENCE: reference} | {name: configs[name] for name in names}
        taken.append(meter(models, step, part_of(progress, i / len(batches), 1 / len(batches))))

    usual = float(np.median([seconds for batch in taken for seconds in batch[REFERENCE].samples]))
    seconds: dict[str, list[float]] = {name: [] for name in configs}
    bytes_of, ties = {}, []
    for names, batch in zip(batches, taken, strict=True):
        levels, _, rounds = settle([batch[name].samples for name in (REFERENCE, *names)])
        for name in names:
            seconds[name] += (usual / levels[0] * np.array(batch[name].samples) / rounds).tolist()
            bytes_of[name] = batch[name].peak_bytes, batch[name].resident_bytes
        for a, b in pairwise(names):
            difference = compare(batch[a].samples, batch[b].samples, smallest=PLACEMENT)
            ties.append(difference.verdict == "tie")
    return Series(
        readings=tuple(
            Reading.taken(name, found, float(np.median(found)) / usual, *bytes_of[name])
            for name, found in seconds.items()
        ),
        ties=tuple(ties),
        reference_seconds=usual,
        receipt=taken[-1].receipt,
    )


def cut(
    configs: Mapping[str, ModelConfig],
    step: Step,
    *,
    most_bytes: int = MOST_BYTES,
    overlap: bool = False,
) -> list[list[str]]:
    """Names in order, in batches whose weights fit into a bound.

    With overlap the last of a batch is the first of the next one. A model too large for the
    bound still gets its turn: alone, or with its neighbour where they are to be compared.
    """
    batches: list[list[str]] = []
    held, fewest = 0, 2 if overlap else 1
    sizes = {name: weights_bytes(config, step) for name, config in configs.items()}
    for name, size in sizes.items():
        if not batches or (held + size > most_bytes and len(batches[-1]) >= fewest):
            carried = batches[-1][-1:] if batches and overlap else []
            batches.append(carried)
            held = sum(sizes[each] for each in carried)
        batches[-1].append(name)
        held += size
    return batches


def weights_bytes(config: ModelConfig, step: Step) -> int:
    return cost(config, tgt_len=1, mem_len=0).parameters * step.weight_bytes


def part_of(progress: Preparing | None, start: float, share: float) -> Preparing | None:
    """What one of several jobs tells, as a part of the whole."""
    if progress is None:
        return None
    return partial(_tell, progress, start, share)


def _tell(progress: Preparing, start: float, share: float, what: str, done: float) -> None:
    progress(what, start + share * done)


def _need_whole(name: str, value: object, least: int) -> None:
    if type(value) is not int or value < least:
        raise ConfigError(f"{name} must be a whole number from {least} up, got {value!r}")
