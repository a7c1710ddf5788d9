"""What does a fit say: `fit.json`, with everything the verdict rests on?"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Literal, Self

from parformer.evaluate.attention import AttentionResult
from parformer.evaluate.counting import References
from parformer.fitting.phases import Curve, Dropped, Seen, TextFacts, Tried
from parformer.fitting.request import NO_MORE, FitRequest
from parformer.fitting.scored import Metrics, TaskScores
from parformer.generate import Sampling, generate_text
from parformer.measure.device import Receipt
from parformer.model import Model, load
from parformer.pattern import Pattern
from parformer.records import Record, Result
from parformer.report.words import Unit
from parformer.search.limits import read_limits
from parformer.search.placement.result import PlacementResult
from parformer.search.trials.result import TrialsResult
from parformer.train.run import MODEL, open_run

REPORT = "report.html"

Quality = Literal["better", "at par", "worse", "unclear"]


@dataclass(frozen=True)
class Asked(Record):
    """What the fit was asked for, as far as its verdict depends on it."""

    limits: tuple[str, ...]
    time: float
    steps: int
    margin: float
    family: str
    choices: str
    seed: int
    task: str = ""

    @classmethod
    def of(cls, request: FitRequest) -> Self:
        return cls.from_dict({**request.to_dict(), "limits": request.limits or (NO_MORE,)})

    @property
    def multiples(self) -> dict[str, float]:
        """The limits that were asked for as multiples of the baseline's figures."""
        return {limit.metric: limit.most for limit in read_limits(self.limits) if limit.relative}


@dataclass(frozen=True)
class StepFacts(Record):
    """The step whose latency and memory count."""

    tgt_len: int
    mem_len: int
    batch: int
    threads: int
    precision: str
    rounds: int
    words: str


@dataclass(frozen=True)
class PhaseFacts(Record):
    """A phase: what was planned, and what it took."""

    name: str
    title: str
    planned: float
    note: str = ""
    seconds: float | None = None
    """None if it was not begun."""
    left_out: str = ""
    """Why it was given up though it was planned."""


@dataclass(frozen=True)
class Latency(Record):
    """Seconds of a step and how many times the baseline's, each with its 95% interval."""

    seconds: float
    low: float
    high: float
    ratio: float
    ratio_low: float
    ratio_high: float
    verdict: str


@dataclass(frozen=True)
class Loss(Record):
    """In nats per token; None where it is not finite."""

    loss: float | None
    tokens: int = 0


@dataclass(frozen=True)
class Compared(Record):
    """How much worse a model is than the baseline, as a share of the baseline's loss."""

    difference: float
    low: float
    high: float
    seeds: int
    segments: int
    verdict: Quality


@dataclass(frozen=True)
class Held(Record):
    """What the chosen model is held against: the best plain Transformer that keeps the limits."""

    name: str
    against: Compared | None
    """With as many updates each."""
    in_time: Compared | None
    """With as much time each; None where that was not tried."""
    steps: int
    """Updates of the rival in that time."""
    untold: str = ""
    """Why it was not tried."""


@dataclass(frozen=True)
class ModelFacts(Record):
    """What is known of one model, from all phases that looked at it."""

    name: str
    title: str
    how: str
    pattern: Pattern
    d_model: int
    eligible: bool
    """Whether it may be chosen."""
    broken: dict[str, float]
    """The limits that it does not keep, and what it has of each."""
    parameters: int
    decoder_parameters: int
    flops: int
    state_bytes: int
    latency: Latency | None
    memory: int
    predicted: float | None = None
    """Seconds that a step was to take by the profile of the device; None where there was none."""
    size: int = 0
    """Bytes of the saved model; 0 where it was not counted."""
    rates: tuple[Tried, ...] = ()
    rate: float | None = None
    steps: int | None = None
    dropped: Dropped | None = None
    learned: bool | None = None
    valid: Loss | None = None
    """After the equal training."""
    against: Compared | None = None
    curve: Curve = ()
    valid_curve: Curve = ()
    metrics: Metrics = field(default_factory=dict)
    """Its task's own figures on validation, after the equal training."""

    @property
    def loss(self) -> float | None:
        """On validation text after the equal training; a dropped model had none."""
        return None if self.dropped or self.valid is None else self.valid.loss

    def figure(self, metric: str) -> float | None:
        """What it costs, measured or counted."""
        if metric == "latency":
            return None if self.latency is None else self.latency.seconds
        costs = {"memory": self.memory, "state": self.state_bytes, "flops": self.flops}
        costs["size"] = self.size or 4 * self.parameters
        return float((costs | {"parameters": self.parameters})[metric])

    @property
    def fails(self) -> bool:
        """Whether it could not be chosen, however good."""
        return bool(self.broken) or not self.eligible


@dataclass(frozen=True)
class Final(Record):
    """The model that is handed over."""

    folder: str
    name: str
    steps: int
    retrained: bool
    """Whether it is another training than that of the contest."""
    valid: Loss
    test: Loss | None
    baseline_test: Loss | None
    latency: Latency | None
    memory: int
    curve: Curve = ()
    valid_curve: Curve = ()

    def loss(self, split: str) -> float | None:
        found = self.test if split == "test" else self.valid
        return None if found is None else found.loss


@dataclass(frozen=True)
class Verdict(Record):
    """What the fit came to, in plain words."""

    kind: str
    headline: str
    sentences: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join([self.headline, *self.sentences])


@dataclass(frozen=True)
class Sample(Record):
    """What a model wrote after some words of the text."""

    name: str
    prompt: str
    text: str


@dataclass(frozen=True)
class SizesSeen(Record):
    """What the searches for sizes looked at, placement by placement."""

    objectives: tuple[str, ...]
    proxy: str
    visited: dict[str, dict[str, tuple[float, ...]]]
    front: dict[str, tuple[dict[str, float], ...]]

    @classmethod
    def of(cls, pictures: dict[str, Seen]) -> Self:
        return cls(
            ("quality", "latency", "memory"),
            "decoder-parameters",
            {name: one.visited for name, one in pictures.items()},
            {name: one.front for name, one in pictures.items()},
        )


@dataclass(frozen=True)
class ProfileFacts(Record):
    """How far off the profile of the device was, on models it had not seen."""

    seconds: float | None
    median_error: float | None
    p90_error: float | None
    finalists_error: float | None = None
    """The median over the finalists, as they were measured in the end; None where that is not
    known.
    """


@dataclass(frozen=True)
class Energy(Record):
    """What the job drew, emitted and cost, estimated."""

    seconds: float
    watts: float
    kwh: float
    co2_kg: float
    money: float
    currency: str
    grid: float
    price: float
    source: str


@dataclass(frozen=True)
class DeviceFacts(Record):
    """The machine, as far as a reader of the report wants to know."""

    cpu: str
    cores: int
    threads: int
    torch: str
    ram_bytes: int | None


@dataclass(frozen=True)
class Way(Record):
    """A command, and what came of trying it."""

    name: str
    command: str
    works: bool
    """Whether it was tried and did what it should."""
    note: str
    """What was compared; or why it is left out."""
    possible: bool = True
    """Whether it may be told at all: a model may have no place there."""


@dataclass(frozen=True, kw_only=True)
class FitResult(Result):
    """The model that a fit found, and what speaks for it."""

    FILE: ClassVar[str] = "fit.json"
    FORMAT: ClassVar[str] = "parformer-fit-1"

    run: str = ""
    """The folder that holds the model, its configuration and the report."""
    corpus: str
    tokenizer: str
    unit: str
    unit_words: str
    command: str
    version: str
    date: str
    finished: bool
    asked: Asked
    step: StepFacts | None
    limits: dict[str, float]
    text: TextFacts | None
    phases: tuple[PhaseFacts, ...]
    models: tuple[ModelFacts, ...]
    baseline: str
    chosen: str | None
    final: Final | None
    references: dict[str, References]
    verdict: Verdict
    samples: tuple[Sample, ...]
    search: PlacementResult | None
    """By a supernet, as version 0.1 searched."""
    pareto: SizesSeen | None
    profile: ProfileFacts | None
    energy: Energy
    receipt: Receipt | None
    device: DeviceFacts
    repeat: tuple[str, ...]
    warnings: tuple[str, ...]
    held: Held | None = None
    """None where nothing was compared, and in what version 0.1 wrote."""
    trials: TrialsResult | None = None
    """The search for placements."""
    looks: AttentionResult | None = None
    """What the model that is handed over attends to; None where nothing in it does."""
    what: str = ""
    """What was asked for, in words."""
    lesson: str = ""
    """What the curves of trainings are in, where that is not what models are compared in."""
    scores: TaskScores | None = None
    """What the models are worth at a task, beside what needs no network."""
    ways: tuple[Way, ...] = ()
    """How the model leaves the house."""

    @classmethod
    def load(cls, folder: Path) -> Self:
        return replace(super().load(folder), run=str(folder))

    @property
    def quality(self) -> Unit:
        """What losses are told in."""
        return Unit(self.unit, self.unit_words)

    @property
    def learning(self) -> Unit:
        """What curves are told in."""
        return Unit("plain", self.lesson) if self.lesson else self.quality

    @cached_property
    def base(self) -> ModelFacts | None:
        """The interleaved Transformer; None where the fit did not come so far."""
        return self._find(self.baseline)

    @cached_property
    def choice(self) -> ModelFacts | None:
        """The chosen model."""
        return None if self.chosen is None else self._find(self.chosen)

    def _find(self, name: str) -> ModelFacts | None:
        return next((model for model in self.models if model.name == name), None)

    @property
    def pattern(self) -> str:
        """Of the chosen model; where nothing was learned, of the one that lies there."""
        model = self.choice or self._find(self.final.name if self.final else self.baseline)
        return "" if model is None else str(model.pattern)

    @property
    def report(self) -> Path:
        """The page about it."""
        return Path(self.run) / REPORT

    @cached_property
    def model(self) -> Model:
        """The model itself."""
        return load(Path(self.run) / MODEL)

    def generate(self, prompt: str, tokens: int = 200, *, temperature: float = 0.8) -> str:
        """What the model writes after a prompt."""
        tokenizer = open_run(Path(self.run)).tokenizer
        assert tokenizer is not None, "a run has its tokenizer"
        sampling = Sampling(temperature=temperature)
        (text,) = generate_text(self.model, tokenizer, [prompt], tokens, sampling=sampling)
        return prompt + text
