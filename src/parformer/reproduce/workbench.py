"""What does a study have to work with: this machine, a table of models, a folder, some minutes?

Whatever takes long is kept in the folder, so that a study that was stopped goes on where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Self, TypeAlias

import torch

from parformer.config import ModelConfig
from parformer.costs import cost
from parformer.data.tokens import Prepared
from parformer.errors import ConfigError
from parformer.events import Watch
from parformer.measure.models import PLACEMENT, step_words
from parformer.measure.readings import Meter, Reading, Readings, Step, in_batches, measure_here
from parformer.measure.remembered import Remembered
from parformer.measure.statistics import compare
from parformer.recipe import DataConfig, Recipe, read_recipe
from parformer.report.words import listed
from parformer.reproduce.request import ReproduceRequest, Scale
from parformer.reproduce.study import Found, Ours
from parformer.search.ranking.rankings import FEWEST
from parformer.search.ranking.table import Trained, by_experiment, read_trained
from parformer.train.distributed import Workers
from parformer.train.job import read_text

MEASURED = "measured.jsonl"
SECONDS = 300.0
"""For the trainings of a study, where none are given."""
FEWEST_ROUNDS, MOST_ROUNDS = 8, 24
"""How often a model is timed: so often that one bad moment has no say, unless steps are long."""
PATIENCE = 2.5e12
"""FLOPs of all rounds together, each of which runs a model twice: about a minute of one core."""
AUTHORS = (
    "its authors publish theirs in https://github.com/microsoft/archai, branch neurips-lts; "
    "the columns are those that 'parformer proxies --help' names"
)


@dataclass
class Workbench:
    """Everything that a study may use; it is made anew for every study of a run."""

    scale: Scale = "pocket"
    folder: Path | None = None
    """Where trainings and measurements are kept; trainings need one."""
    models: Path | None = None
    """A table of trained models, CSV."""
    seconds: float = SECONDS
    """For the pocket trainings of one study, all together."""
    steps: int = 0
    """Updates of every pocket training instead; 0 means as many as fit into the seconds."""
    seeds: int = 1
    trains: bool = True
    """Whether pocket trainings may run."""
    corpus: str = ""
    """What they read; empty means the preset's text."""
    pairs: str = ""
    """What translators and summarisers read; none are trained where it is empty."""
    pair: str = "de-en"
    """Which texts of it are a pair."""
    rounds: int = 0
    """How often a model is timed; 0 means as often as its size allows."""
    sample: int = 0
    """Models of the table that are built, where they have to be; 0 means the study's own number."""
    threads: int = field(default_factory=torch.get_num_threads)
    meter: Meter = measure_here
    watch: Watch = field(default_factory=Watch)
    receipt: str = ""
    """Of what was measured last."""
    texts: dict[DataConfig, Prepared] = field(default_factory=dict)
    """What trainings read, once it is open."""

    @classmethod
    def of(cls, request: ReproduceRequest, watch: Watch) -> Self:
        """What a request leaves to work with."""
        return cls(
            scale=request.scale,
            folder=request.folder,
            models=request.models,
            seconds=SECONDS if request.time is None else request.time,
            steps=request.steps or 0,
            seeds=request.seeds,
            trains=not request.untrained,
            corpus=request.corpus,
            pairs=request.pairs,
            pair=request.pair,
            threads=request.threads or torch.get_num_threads(),
            watch=watch,
        )

    @property
    def training(self) -> bool:
        return self.trains and self.scale == "pocket"

    def measure(
        self,
        configs: Mapping[str, ModelConfig],
        *,
        tgt_len: int | None = None,
        mem_len: int | None = None,
    ) -> Sides:
        """Models side by side, in the same rounds; the first is what ratios are about."""
        step = self._step(configs, tgt_len, mem_len)
        self.say(f"measuring {listed(list(configs))}, {step.rounds} rounds", 0.0)
        with ExitStack() as stack:
            readings = self._meter(stack)(configs, step, self.watch.preparing)
        self.receipt = readings.receipt.line()
        shapes = [step.shape(config) for config in configs.values()]
        words = {step_words(shape.tgt_len, shape.mem_len) for shape in shapes}
        one = words.pop() if len(words) == 1 else "each after a memory of its own"
        return Sides(readings, f"measured here, {one}")

    def measure_many(
        self, configs: Mapping[str, ModelConfig], *, reference: ModelConfig, tgt_len: int
    ) -> dict[str, Reading]:
        """More models than memory holds at once, without a past, at the reference's usual speed."""
        step, tell = self._step(configs, tgt_len, 0), self.watch.preparing
        self.say(f"measuring {len(configs)} models, {step.rounds} rounds", 0.0)
        with ExitStack() as stack:
            meter = self._meter(stack)
            series = in_batches(configs, step, meter, reference=reference, progress=tell)
        self.receipt = series.receipt.line()
        return dict(zip(configs, series.readings, strict=True))

    def groups(self) -> dict[str, list[Trained]]:
        """The trained models, by experiment."""
        if self.models is None:
            raise ConfigError(
                f"this takes a table of trained models, --models TABLE.csv; {AUTHORS}"
            )
        return by_experiment(read_trained(self.models), FEWEST)

    def text(self, recipe: Recipe) -> Prepared:
        """What a recipe reads, opened once."""
        if recipe.data not in self.texts:
            self.texts[recipe.data] = read_text(recipe, Workers(), self.watch, None, Path())
        return self.texts[recipe.data]

    def say(self, what: str, share: float) -> None:
        """A line of its own: whoever has no terminal sees no bar."""
        self.watch.notice(what[0].upper() + what[1:])
        self.watch.preparing(what, share)

    def _step(
        self, configs: Mapping[str, ModelConfig], tgt_len: int | None, mem_len: int | None
    ) -> Step:
        rounds = self.rounds
        if not rounds:
            prices = [cost(c, tgt_len=tgt_len, mem_len=mem_len) for c in configs.values()]
            work = 2 * sum(price.flops_cached for price in prices)
            rounds = max(FEWEST_ROUNDS, min(MOST_ROUNDS, int(PATIENCE / work)))
        return Step(tgt_len=tgt_len, mem_len=mem_len, threads=self.threads, rounds=rounds)

    def _meter(self, stack: ExitStack) -> Meter:
        if self.folder is None:
            return self.meter
        self.folder.mkdir(parents=True, exist_ok=True)
        return stack.enter_context(Remembered(self.meter, self.folder / MEASURED))


@dataclass(frozen=True, slots=True)
class Sides:
    """Models that were measured side by side."""

    readings: Readings
    how: str

    def time_ratio(self, name: str, baseline: str, *, of: Callable[[float], float] = float) -> Ours:
        """How many times the baseline's time a model takes, or what `of` makes of that."""
        ours, theirs = self.readings[name].samples, self.readings[baseline].samples
        return time_ratio(ours, theirs, self.how, of)

    def latencies(self, baseline: str, suffix: str = "") -> dict[str, Ours]:
        """The ratio of every model but the baseline, as rows are named."""
        others = [one.name for one in self.readings.readings if one.name != baseline]
        return {f"latency-{name}{suffix}": self.time_ratio(name, baseline) for name in others}

    def milliseconds(self, name: str) -> Ours:
        reading = self.readings[name]
        return Ours(1e3 * reading.median, self.how, (1e3 * reading.low, 1e3 * reading.high))


def time_ratio(
    times: Sequence[float],
    baseline: Sequence[float],
    how: str,
    of: Callable[[float], float] = float,
) -> Ours:
    """How many times the baseline's time something takes, or what `of` makes of that."""
    found = compare(times, baseline, smallest=PLACEMENT)
    low, high = sorted((of(found.low), of(found.high)))
    tie = "a tie with the baseline: the difference is inside the noise"
    return Ours(of(found.ratio), how, (low, high), tie if found.verdict == "tie" else "")


def settings(preset: str, fields: Mapping[str, str], prefix: str = "") -> dict[str, Ours]:
    """What a preset's recipe says, by the words of a table for its fields."""
    recipe = read_recipe(preset)
    return {
        f"{prefix}{word}": Ours(attrgetter(field)(recipe), "the preset's setting")
        for word, field in fields.items()
    }


def spread(values: Sequence[float]) -> tuple[float, float] | None:
    """From the lowest to the highest of several seeds; nothing of one."""
    return (min(values), max(values)) if len(values) > 1 else None


Compute: TypeAlias = Callable[[Workbench], Found]

STUDIES: dict[str, Compute] = {}
"""What computes ours, by the name of the table or figure."""


def study(name: str) -> Callable[[Compute], Compute]:
    """Register what computes ours for a table or figure."""

    def register(compute: Compute) -> Compute:
        assert name not in STUDIES, f"{name} is there already"
        STUDIES[name] = compute
        return compute

    return register
