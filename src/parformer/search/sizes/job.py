"""From a space of sizes and a device to every architecture worth having between the two ends.

LiteTransformerSearch (Javaheripi et al. 2022), on a profile of the device: a candidate's latency
and memory are predicted at once, and only the front is built and measured. Settings and results
live in a study, so the same command on the same folder goes on where it stopped, and workers on
other machines need the study's address and nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

from parformer.config import ModelConfig
from parformer.costs import cost
from parformer.errors import ConfigError
from parformer.events import Watch
from parformer.measure.device import Device
from parformer.measure.profile import BlockRange, Profile, Sizes, profile_device
from parformer.measure.readings import Meter, Readings, Step, measure_here
from parformer.search.limits import Limit, as_option, excess, in_words
from parformer.search.sizes.evolution import Plan, Scored, make_sampler
from parformer.search.sizes.objectives import Clock, Figures, Pricing, minimised
from parformer.search.sizes.quality import Grading, make_quality
from parformer.search.sizes.space import Genome, SearchSpace, read_space
from parformer.search.sizes.study import Outcome, Record, Study, open_study, work

STUDY = "study.jsonl"
DATABASE = "study.db"
NAME = "pareto"
WHOLE = 24
"""Whole models measured for the profile: half of them calibrate it, half report its error."""

ROUGH = 0.1
"""Predictions that are off by more than this were made from a bad measurement."""

CLOCKED = ("latency", "memory")
WAYS = ("profile", "measuring")


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a search is asked for; a run writes it down and goes on with nothing else."""

    space: SearchSpace
    plan: Plan
    step: Step
    objectives: tuple[str, ...] = ("quality", "latency", "memory")
    limits: tuple[Limit, ...] = ()
    grading: Grading = field(default_factory=Grading)
    sampler: str = "lts"
    latency_by: str = "profile"
    """Whether latency and memory of candidates come from a profile or from measuring each."""

    def __post_init__(self) -> None:
        self.grading.check(self.space)

    @property
    def clocked(self) -> bool:
        """Whether anything has to be measured on the device."""
        return bool({*self.objectives, *(limit.metric for limit in self.limits)} & {*CLOCKED})

    @property
    def expensive(self) -> bool:
        """Whether a candidate takes so long that each result is stored at once."""
        return self.grading.expensive or (self.clocked and self.latency_by == "measuring")

    def to_settings(self) -> dict[str, Any]:
        """What makes a study this one; its length may grow."""
        plan = self.plan.to_dict()
        del plan["iterations"]
        return {
            "space": self.space.to_dict(),
            "objectives": list(self.objectives),
            "limits": [asdict(limit) for limit in self.limits],
            "proxy": self.grading.to_dict(),
            "sampler": self.sampler,
            "plan": plan,
            "step": self.step.to_dict(),
            "latency_by": self.latency_by,
        }

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any], iterations: int = 1) -> Wanted:
        """What `to_settings` gave; a study does not say how long it is to be."""
        return cls(
            space=read_space(settings["space"]),
            plan=Plan(**settings["plan"], iterations=iterations),
            step=Step.from_dict(settings["step"]),
            objectives=tuple(settings["objectives"]),
            limits=tuple(Limit(**limit) for limit in settings["limits"]),
            grading=Grading.from_dict(settings["proxy"]),
            sampler=settings["sampler"],
            latency_by=settings["latency_by"],
        )


@dataclass(frozen=True)
class Ended:
    """What a search came to, before anything of its front is measured."""

    wanted: Wanted
    limits: Mapping[str, float]
    pricing: Pricing
    scored: Sequence[Scored]
    figures: Sequence[Figures]
    """Of each scored candidate; empty for one that could not be evaluated."""
    profile: Profile | None
    seconds: Mapping[str, float]
    finished: bool


class Measured:
    """A clock that builds every model and measures it."""

    def __init__(self, meter: Meter, step: Step) -> None:
        self.meter, self.step = meter, step
        self._last: tuple[ModelConfig, Readings] | None = None

    def read(self, config: ModelConfig) -> Readings:
        if self._last is None or self._last[0] != config:
            self._last = config, self.meter({"candidate": config}, self.step)
        return self._last[1]

    def latency(self, config: ModelConfig) -> float:
        return self.read(config)["candidate"].median

    def peak_bytes(self, config: ModelConfig) -> int:
        return self.read(config)["candidate"].peak_bytes


def search_front(
    wanted: Wanted,
    path: Path,
    *,
    storage: str = "",
    name: str = NAME,
    again: bool = False,
    meter: Meter = measure_here,
    device: Device | None = None,
    watch: Watch | None = None,
    stop: Callable[[], bool] = lambda: False,
    opened: Callable[[], Callable[[], None]] = lambda: lambda: None,
    cache: Path | None = None,
) -> Ended:
    """Work a study off, alone or beside others; what is stored already is not done again.

    `opened` is called once others may join, and what it returns when the study is worked off.
    """
    watch = watch or Watch()
    began = time.monotonic()
    profile = None
    if wanted.clocked and wanted.latency_by == "profile":
        profile = profile_device(
            sizes_of(wanted),
            meter=meter,
            device=device,
            folder=cache,
            whole=whole_models(wanted),
            progress=watch.preparing,
            again=again,
        )
        watch.notice(profile_words(profile))
    profiled = time.monotonic()
    clock = clock_of(wanted, profile, meter)
    limits = settle_limits(wanted, meter)
    address = storage or default_storage(wanted, path)
    settings = wanted.to_settings() | {
        "limits_here": limits,
        "profile": None if profile is None else profile.to_dict(),
    }
    with open_study(address, name, settings, slots=wanted.plan.slots) as study:
        closed = opened()
        try:
            pricing = work_off(study, wanted, limits, clock, watch, stop)
        finally:
            closed()
        return ending(
            study,
            wanted,
            limits,
            pricing,
            profile,
            {"profile": profiled - began, "search": time.monotonic() - profiled},
        )


def join_search(
    study: Study, *, meter: Meter = measure_here, watch: Watch | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> None:  # fmt: skip
    """Help with a study that somebody began, on this machine or another."""
    settings = study.settings
    try:
        wanted = Wanted.from_settings(settings)
        plan = replace(wanted.plan, iterations=iterations_of(wanted.plan, study.slots))
        wanted = replace(wanted, plan=plan)
        limits = dict(settings["limits_here"])
        stored = settings["profile"]
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"the study {study.name!r} is of another version of Parformer: {error!r}"
        ) from None
    profile = None if stored is None else Profile.from_dict(stored)
    clock = clock_of(wanted, profile, meter)
    work_off(study, wanted, limits, clock, watch or Watch(), stop)


def work_off(
    study: Study,
    wanted: Wanted,
    limits: Mapping[str, float],
    clock: Clock | None,
    watch: Watch,
    stop: Callable[[], bool],
) -> Pricing:
    """Propose and price until all slots are done."""
    step = wanted.step
    shape = step.shape(wanted.space.like)
    pricing = Pricing(
        wanted.space,
        shape.tgt_len,
        shape.mem_len,
        step.batch,
        make_quality(wanted.grading, wanted.space.like),
        clock,
    )
    plan = wanted.plan
    sampler = make_sampler(wanted.sampler, wanted.space, plan, pricing.allowed)
    scores = ScoreBook(limits)

    def propose(slot: int, records: list[Record]) -> str:
        genome = sampler.propose(slot, scores.read(records)).text
        refuse_contradiction(slot, wanted, limits, scores, records)
        return genome

    def evaluate(text: str) -> Outcome:
        figures = pricing.figures(Genome.read(text))
        return minimised(figures, wanted.objectives), "", figures

    done = study.finished()

    def tell(record: Record) -> None:
        nonlocal done
        done += 1
        generation = plan.generation(min(done, plan.slots - 1))
        words = f"searching, iteration {generation + 1} of {plan.iterations}"
        watch.preparing(words, done / plan.slots)

    work(study, propose, evaluate, generations=plan.bounds, stop=stop, on_record=tell)
    return pricing


class ScoreBook:
    """Records as samplers want them, each read once."""

    def __init__(self, limits: Mapping[str, float]) -> None:
        self.limits = limits
        self._known: dict[int, Scored] = {}

    def read(self, records: Sequence[Record]) -> list[Scored]:
        for record in records:
            if record.slot not in self._known:
                over = excess(record.extra, self.limits) if record.values is not None else 0.0
                self._known[record.slot] = Scored(Genome.read(record.genome), record.values, over)
        return [self._known[record.slot] for record in records]


def refuse_contradiction(
    slot: int,
    wanted: Wanted,
    limits: Mapping[str, float],
    scores: ScoreBook,
    records: Sequence[Record],
) -> None:
    """After some generations without a single candidate within limits, say which came nearest."""
    if not limits or slot != wanted.plan.start(min(5, wanted.plan.iterations - 1)):
        return
    scored = scores.read(records)
    usable = [i for i, one in enumerate(scored) if one.values is not None]
    if not usable or any(scored[i].excess == 0 for i in usable):
        return
    nearest = min(usable, key=lambda i: scored[i].excess)
    raise nothing_within(limits, scored[nearest].genome, records[nearest].extra, wanted.space)


def nothing_within(
    limits: Mapping[str, float], genome: Genome, figures: Mapping[str, float], space: SearchSpace
) -> ConfigError:
    """Which limits the nearest candidate breaks, and what would let it in."""
    broken = [name for name, most in limits.items() if figures[name] > most]
    has = " and ".join(
        f"{in_words(name, figures[name])} of {name} where {in_words(name, limits[name])} is allowed"
        for name in broken
    )
    options = " ".join(f"--limit {as_option(name, figures[name])}" for name in broken)
    pattern = space.config(genome).pattern
    return ConfigError(
        f"nothing in the space {space.name!r} is within the limits; the nearest, {pattern} with "
        f"d_model {genome.fields['d_model']}, has {has}; try {options}"
    )


def ending(
    study: Study,
    wanted: Wanted,
    limits: Mapping[str, float],
    pricing: Pricing,
    profile: Profile | None,
    seconds: Mapping[str, float],
) -> Ended:
    records = study.records(wanted.plan.slots)
    scored = ScoreBook(limits).read(records)
    return Ended(
        wanted,
        limits,
        pricing,
        scored,
        [dict(record.extra) for record in records],
        profile,
        seconds,
        finished=len(records) == wanted.plan.slots,
    )


def iterations_of(plan: Plan, slots: int) -> int:
    """How many iterations a study of so many slots has."""
    return plan.generation(slots - 1) + 1


def clock_of(wanted: Wanted, profile: Profile | None, meter: Meter) -> Clock | None:
    if not wanted.clocked:
        return None
    return profile if wanted.latency_by == "profile" else Measured(meter, wanted.step)


def default_storage(wanted: Wanted, path: Path) -> str:
    """Results that cost nothing are written once per generation, others one by one."""
    return f"sqlite:{path / DATABASE}" if wanted.expensive else f"notebook:{path / STUDY}"


def settle_limits(wanted: Wanted, meter: Meter) -> dict[str, float]:
    """Limits in seconds, bytes and counts; a multiple is of the model that the space is like."""
    if not any(limit.relative for limit in wanted.limits):
        return {limit.metric: limit.most for limit in wanted.limits}
    like, step = wanted.space.like, wanted.step
    shape = step.shape(like)
    price = cost(like, tgt_len=shape.tgt_len, mem_len=shape.mem_len, batch=step.batch)
    baseline: dict[str, float] = {
        "flops": price.flops,
        "parameters": price.parameters,
        "state": price.state_bytes,
    }
    if any(limit.relative and limit.metric in CLOCKED for limit in wanted.limits):
        reading = meter({"baseline": like}, step)["baseline"]
        baseline |= {"latency": reading.median, "memory": reading.peak_bytes}
    return {limit.metric: limit.of(baseline[limit.metric]).most for limit in wanted.limits}


def sizes_of(wanted: Wanted) -> Sizes:
    """What a profile has to know of the space."""
    space = wanted.space
    return Sizes(
        base=space.like,
        fields={name: tuple(map(int, r.values)) for name, r in space.fields},
        blocks=tuple(
            BlockRange(letter=block.letter, options={name: r.values for name, r in block.options})
            for block in space.ranged_blocks()
            if block.letter != "i"
        ),
        typical_bytes=typical_bytes(wanted),
        step=wanted.step,
        inner_ratio=space.inner_ratio,
    )


def typical_bytes(wanted: Wanted) -> int:
    """Weights of the blocks of a candidate in the middle of the space."""
    prices = [cost(config, tgt_len=1, mem_len=0) for config in whole_models(wanted)]
    counts = sorted(price.decoder_parameters for price in prices)
    return counts[len(counts) // 2] * wanted.step.weight_bytes


def whole_models(wanted: Wanted) -> list[ModelConfig]:
    """Candidates from all over the space, the same for everybody who asks."""
    space, found = wanted.space, []
    rng = Random(f"whole models of {space.name}")
    for _ in range(100 * WHOLE):
        config = space.config(space.draw(rng))
        if not space.bounds or space.within_bounds(cost(config)):
            found.append(config)
        if len(found) == WHOLE:
            break
    return found


def profile_words(profile: Profile) -> str:
    """What is known about the profile's error, in a line."""
    error = profile.error
    if error is None:
        return "Device profile: its error is not known"
    words = (
        f"Device profile: latency off by {error.latency.median:.1%} in the median of whole models "
        f"and by {error.latency.p90:.1%} in one of ten, memory by {error.memory.median:.1%}"
    )
    if error.latency.median > ROUGH:
        words += "; that is much: was the machine busy? Measure it anew with --again"
    return words
