"""What did a search for sizes find?

`pareto.json` as types: what reports, `pick`, `fit` and notebooks read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from parformer.config import ModelConfig
from parformer.measure.device import Receipt
from parformer.measure.prediction import Accuracy, Spread
from parformer.measure.readings import Step
from parformer.pattern import Pattern
from parformer.records import Json, Record, Result
from parformer.search.limits import CLOCKED
from parformer.search.machine import Machine
from parformer.search.sizes.evolution import Plan


@dataclass(frozen=True, kw_only=True)
class Predicted(Record):
    """What a profile of the device says of a model's step."""

    latency: float
    """Seconds."""
    memory: float
    """Bytes at its worst moment."""


@dataclass(frozen=True, kw_only=True)
class Measured(Predicted):
    """What the step really took."""

    latency_interval: tuple[float, float] | None = None
    """Where the median lies with 95% confidence."""


@dataclass(frozen=True, kw_only=True)
class Member(Record):
    """A model of the front, or of the baseline that it is compared with."""

    name: str
    pattern: Pattern
    fields: Mapping[str, int] = field(default_factory=dict)
    """Of the model, where they differ from the one that the space is like."""
    layers: int
    """How often the space's unit is repeated."""
    encoder_layers: int = 0
    """The same of the encoder's, for translators."""
    quality: float
    """As the proxy scores it; higher is better."""
    parameters: int
    decoder_parameters: int
    flops: int
    """Of one step."""
    state_bytes: int
    """With memory full."""
    predicted: Predicted | None = None
    measured: Measured | None = None
    tie: bool = False
    """Whether its latency cannot be told from that of the next one."""
    digest: str = ""
    genome: str = ""
    """What the space made it from, as JSON."""

    def figure(self, metric: str) -> float | None:
        """Measured if it was, else predicted; or what was counted."""
        if metric in CLOCKED:
            known = self.measured or self.predicted
            return None if known is None else float(getattr(known, metric))
        if metric == "size":
            return 4.0 * self.parameters  # no space of sizes has counts
        return float(getattr(self, {"state": "state_bytes"}.get(metric, metric)))

    def is_measured(self, metric: str) -> bool:
        """Whether a figure was measured or counted, not predicted."""
        return metric not in CLOCKED or self.measured is not None

    def to_dict(self) -> Json:
        """Without a word about encoders where there are none."""
        values = super().to_dict()
        if not self.encoder_layers:
            del values["encoder_layers"]
        return values

    def config(self, like: ModelConfig) -> ModelConfig:
        """The whole model, all else as the space's."""
        return like.replaced(pattern=self.pattern, **self.fields)


@dataclass(frozen=True, kw_only=True)
class Saving(Record):
    """A baseline beside what the front has for the same quality."""

    layers: int
    """Of the baseline."""
    quality: float
    latency: float
    memory: float
    found: str
    """The model that is better in both; the next four are its own."""
    found_latency: float
    found_memory: float
    speedup: float
    memory_ratio: float
    fastest: float
    """The least latency of the front at this quality, as a share of the baseline's."""
    smallest: float
    """Likewise of memory."""


@dataclass(frozen=True, kw_only=True)
class Savings(Record):
    """What the front saves at equal quality, as LiteTransformerSearch's section 4.4 has it."""

    rows: tuple[Saving, ...]
    latency_saved: float
    """On average over the baselines, by the fastest of the front each."""
    memory_saved: float
    largest: Saving
    """The deepest baseline that the front reaches."""


@dataclass(frozen=True, kw_only=True)
class Hypervolume(Record):
    """How much of the room between the best and the first generation's worst is dominated."""

    reference: tuple[float, ...]
    ideal: tuple[float, ...]
    by_iteration: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Errors(Record):
    """How far predictions were from measurements, over the front."""

    latency: Spread
    memory: Spread


@dataclass(frozen=True, kw_only=True)
class Profiled(Record):
    """The profile that candidates were predicted by."""

    seconds: float
    """That it took here; next to nothing where it was there already."""
    measured: str
    """When."""
    held_out: Accuracy | None = None
    """Its error on whole models that had no part in it."""


@dataclass(frozen=True, kw_only=True)
class SpaceSummary(Record):
    """What was searched."""

    name: str
    title: str = ""
    size: float
    """Architectures."""
    like: Pattern
    """Of the model that all candidates are like."""
    recipe: str = ""
    """Where that model came from; it says how to train."""
    family: str
    model: ModelConfig


@dataclass(frozen=True, kw_only=True)
class StepSummary(Step):
    """What was measured of a model."""

    words: str
    """The same for people."""


@dataclass(frozen=True, kw_only=True)
class Sampling(Plan):
    """How candidates were drawn."""

    sampler: str = "lts"


@dataclass(frozen=True, kw_only=True)
class SizesResult(Result):
    """What a search for sizes found, is it true, and what is it worth."""

    FILE: ClassVar[str] = "pareto.json"
    FORMAT: ClassVar[str] = "parformer-pareto-1"

    space: SpaceSummary
    objectives: tuple[str, ...]
    proxy: str
    """What stood for quality."""
    limits: Mapping[str, float] = field(default_factory=dict)
    """In seconds, bytes and counts."""
    step: StepSummary
    plan: Sampling
    latency_by: str
    pace: float = 1.0
    """How many times as long a step took as when the device was profiled."""
    evaluated: int
    """Candidates that were looked at."""
    visited: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Some of them, by objective."""
    front_size: int
    """Unbeaten candidates, of which `front` has some."""
    front: tuple[Member, ...]
    baseline: tuple[Member, ...] = ()
    """The model that the space is like, with one layer, two, and so on."""
    savings: Savings | None = None
    hypervolume: Hypervolume
    errors: Errors | None = None
    profile: Profiled | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    """That profile, search and measuring took."""
    receipt: Receipt | None = None
    device: Machine
    warnings: tuple[str, ...] = ()
    command: str = ""
    version: str
    date: str

    @property
    def costs(self) -> tuple[str, ...]:
        """The objectives that a search makes small."""
        return tuple(name for name in self.objectives if name != "quality")
