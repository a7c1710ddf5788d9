"""How does a search for sizes work its study off?

LiteTransformerSearch (Javaheripi et al. 2022), on a profile of the device: a candidate's latency
and memory are predicted at once. Settings and results live in a study, so the same search on the
same folder goes on where it stopped, alone or beside others.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from parformer.config import ModelConfig
from parformer.errors import ConfigError, FolderError, ParformerError
from parformer.events import Watch
from parformer.measure.device import Device
from parformer.measure.profile import Profile, profile_device
from parformer.measure.readings import Meter, Reading, Step
from parformer.measure.remembered import Remembered
from parformer.search.limits import excess
from parformer.search.sentences import measure_any
from parformer.search.sizes.evolution import make_sampler
from parformer.search.sizes.objectives import Candidate, Clock, Pricing, make_quality, minimised
from parformer.search.sizes.record import Finished, Outcome
from parformer.search.sizes.space import Genome
from parformer.search.sizes.storage import read_address
from parformer.search.sizes.study import Study, join_study, open_study
from parformer.search.sizes.wanted import (
    Wanted,
    as_today,
    nothing_within,
    settle_limits,
    sizes_of,
    whole_models,
)
from parformer.search.sizes.work import work

STUDY, OLD_STUDY = "study.db", "study.jsonl"
NAME = "pareto"
MEASURED = "measured.jsonl"
ROUGH = 0.1
"""Predictions that are off by more than this were made from a bad measurement."""
PATIENCE = 10.0
"""Seconds that helpers get to finish what they are at."""
ENOUGH = 5
"""Generations after which limits that nothing keeps to are given up."""


@dataclass(frozen=True)
class Ended:
    """What a search came to, before anything of its front is measured."""

    wanted: Wanted
    limits: Mapping[str, float]
    candidates: Sequence[Candidate]
    profile: Profile | None
    seconds: Mapping[str, float]


class MeasuringClock:
    """A clock that builds every model and measures it."""

    def __init__(self, meter: Meter, step: Step) -> None:
        @lru_cache(maxsize=1)
        def read(config: ModelConfig) -> Reading:
            return meter({"candidate": config}, step)["candidate"]

        self.read = read

    def latency(self, config: ModelConfig) -> float:
        return self.read(config).median

    def peak_bytes(self, config: ModelConfig) -> int:
        return self.read(config).peak_bytes


def search_front(
    wanted: Wanted,
    path: Path,
    *,
    storage: str = "",
    name: str = NAME,
    again: bool = False,
    meter: Meter = measure_any,
    device: Device | None = None,
    watch: Watch | None = None,
    stop: Callable[[], bool] = lambda: False,
    workers: int = 1,
    cache: Path | None = None,
) -> Ended:
    """Work a study off, alone or beside others; what is stored already is not done again.

    `workers` is how many processes of this machine take part.
    """
    watch = watch or Watch()
    address = storage or default_storage(path)
    if workers > 1 and read_address(address).kind == "memory":
        raise ConfigError(
            f"{workers} workers need a study that several processes can write to; "
            "give --storage sqlite:FILE or postgresql://…"
        )
    began = time.monotonic()
    limits: dict[str, float] = {}
    if wanted.limits:  # a limit that was a multiple must be the same when the search goes on
        with Remembered(meter, path / MEASURED) as remembered:
            limits = settle_limits(wanted, remembered)
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
    settings = wanted.to_settings() | {
        "limits_here": limits,
        "profile": None if profile is None else profile.to_dict(),
    }
    slots = wanted.plan.slots
    with open_study(address, name, settings, slots=slots, today=as_today) as study:
        with helpers(address, name, workers - 1):
            work_off(study, wanted, limits, clock_of(wanted, profile, meter), watch, stop)
        seconds = {"profile": profiled - began, "search": time.monotonic() - profiled}
        return ending(study, wanted, limits, profile, seconds)


@contextmanager
def helpers(storage: str, name: str, count: int) -> Iterator[None]:
    """Processes of this machine that help with a study for the while.

    On another machine `parformer search join --storage ADDRESS` does the same.
    """
    context = multiprocessing.get_context("spawn")
    started = [
        context.Process(target=help_with, args=(storage, name, os.getpid()), daemon=True)
        for _ in range(count)
    ]
    for helper in started:
        helper.start()
    try:
        yield
    finally:
        for helper in started:
            helper.join(PATIENCE)
            if helper.is_alive():
                helper.terminate()
                helper.join(PATIENCE)


def help_with(storage: str, name: str, parent: int) -> None:
    """One helper's whole life; it ends with the process that started it."""
    import torch

    torch.set_num_threads(1)
    # Ctrl-C reaches all processes of a terminal, and the first one speaks for all
    with suppress(KeyboardInterrupt, ParformerError), join_study(storage, name) as study:
        join_search(study, stop=lambda: os.getppid() != parent)


def join_search(
    study: Study, *, meter: Meter = measure_any, watch: Watch | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> None:  # fmt: skip
    """Help with a study that somebody began, on this machine or another."""
    try:
        wanted = Wanted.from_settings(study.settings, study.slots)
        limits = dict(study.settings["limits_here"])
        stored = study.settings["profile"]
    except (FolderError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"the study {study.name!r} is of another version of Parformer: {error!r}"
        ) from None
    profile = None if stored is None else Profile.from_dict(stored)
    work_off(study, wanted, limits, clock_of(wanted, profile, meter), watch or Watch(), stop)


def work_off(
    study: Study,
    wanted: Wanted,
    limits: Mapping[str, float],
    clock: Clock | None,
    watch: Watch,
    stop: Callable[[], bool] = lambda: False,
) -> None:
    """Propose and price until all slots are done."""
    plan, quality = wanted.plan, make_quality(wanted.grading, wanted.space.like)
    pricing = Pricing(wanted.space, wanted.step, quality, clock)
    sampler = make_sampler(wanted.sampler, wanted.space, plan, pricing.allowed)
    known: dict[int, Candidate] = {}

    def propose(slot: int, records: list[Finished]) -> str:
        known.update((r.slot, candidate_of(r, limits)) for r in records if r.slot not in known)
        candidates = [known[record.slot] for record in records]
        genome = sampler.propose(slot, candidates).text
        refuse_contradiction(slot, wanted, limits, candidates)
        return genome

    def evaluate(text: str) -> Outcome:
        figures = pricing.figures(Genome.read(text))
        return minimised(figures, wanted.objectives), "", figures

    done = study.finished()

    def tell(record: Finished) -> None:
        nonlocal done
        done += 1
        generation = plan.generation(min(done, plan.slots - 1))
        words = f"searching, iteration {generation + 1} of {plan.iterations}"
        watch.preparing(words, done / plan.slots)

    work(study, propose, evaluate, generations=plan.bounds, stop=stop, on_record=tell)


def candidate_of(record: Finished, limits: Mapping[str, float]) -> Candidate:
    """A record as samplers want it."""
    over = excess(record.extra, limits) if record.values is not None else 0.0
    return Candidate(Genome.read(record.genome), record.values, over, record.extra)


def refuse_contradiction(
    slot: int, wanted: Wanted, limits: Mapping[str, float], candidates: Sequence[Candidate]
) -> None:
    """After some generations without a single candidate within limits, say which came nearest."""
    if not limits or slot != wanted.plan.start(min(ENOUGH, wanted.plan.iterations - 1)):
        return
    usable = [one for one in candidates if one.values is not None]
    if usable and not any(one.fits for one in usable):
        raise nothing_within(limits, usable, wanted.space)


def ending(
    study: Study,
    wanted: Wanted,
    limits: Mapping[str, float],
    profile: Profile | None,
    seconds: Mapping[str, float],
) -> Ended:
    candidates = [candidate_of(record, limits) for record in study.records(wanted.plan.slots)]
    return Ended(wanted, limits, candidates, profile, seconds)


def clock_of(wanted: Wanted, profile: Profile | None, meter: Meter) -> Clock | None:
    if not wanted.clocked:
        return None
    return profile if wanted.latency_by == "profile" else MeasuringClock(meter, wanted.step)


def default_storage(path: Path) -> str:
    """In the run folder; a study that version 0.1 began there goes on."""
    if (path / OLD_STUDY).is_file():
        return f"notebook:{path / OLD_STUDY}"
    return f"sqlite:{path / STUDY}"


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
