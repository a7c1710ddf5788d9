"""Text and a budget in, the best model that fits out: the whole job, phase by phase.

A phase is done once: what it found is in the run's journal, and whoever comes back goes on with
the next. What a clock decided (sizes, updates) is among that, so it is decided once.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Any

from parformer.errors import FolderError, ParformerError, Stopped
from parformer.events import Event, Listener, Phase, Watch, nobody
from parformer.fitting import (
    candidates,
    contest,
    finalists,
    ladder,
    placements,
    rates,
    rivals,
    running,
    training,
    winner,
)
from parformer.fitting.about import about_phases
from parformer.fitting.outcome import conclude
from parformer.fitting.phases import (
    Baseline,
    Contest,
    Finalists,
    PhaseResult,
    Placed,
    Profiled,
    Rates,
    Seeds,
    TextFacts,
    Winner,
)
from parformer.fitting.progress import FILE, Clock, Progress
from parformer.fitting.request import FitRequest
from parformer.fitting.result import REPORT, FitResult
from parformer.fitting.running import TRAININGS, Running
from parformer.measure.readings import Meter, measure_here
from parformer.model import load
from parformer.report.fit import fit_page
from parformer.store.files import reason, replace_file
from parformer.train.allocator import keep_memory
from parformer.train.run import LOCK, MODEL, only_one
from parformer.verbs import requested


def fit(
    request: FitRequest | str | Path | None = None,
    *,
    watch: Listener | None = None,
    quiet: bool = False,
    command: str = "parformer.fit",
    meter: Meter = measure_here,
    cache: Path | None = None,
    clock: Clock = time.monotonic,
    **fields: Any,
) -> FitResult:
    """Find, train and prove the best model within a budget; the same run goes on where it stopped.

    request: all that is asked, or a text alone, with the rest as fields by name: run, limits such
    as "latency=5ms" or "latency=0.7x" of the interleaved baseline, time in seconds or steps, and
    whatever else `parformer fit --help` lists.
    watch: told what happens; without one every phase is printed, unless it is to be quiet.

    Ctrl-C leaves the best so far.
    """
    if isinstance(request, str | Path):
        request, fields = None, {"corpus": request, **fields}
    request = requested(FitRequest, request, fields)
    path = request.folder
    fresh = make_room(path)
    keep_memory()
    with only_one(path):
        if (known := finished_fit(path, request)) is not None:
            return known
        watching = Watch(watch or (nobody if quiet else spoken))
        progress = Progress(path, request if request.corpus else None, clock)
        run = Running(progress, path, watching, meter, cache, clock)
        try:
            result = work_off(run, command)
        except (KeyboardInterrupt, Stopped):
            raise stopped(run, command) from None
        except ParformerError:
            if fresh and not (path / TRAININGS).exists():
                discard(path)  # what cannot be done leaves no trace
            raise
        run.alike.tidy("*")
        for kept in (training.going_on("*"), rivals.early("*")):
            run.alike.forget(kept)
    return result


def spoken(event: Event) -> None:
    """Every phase a line, as a notebook shows it."""
    if isinstance(event, Phase):
        clock = f", {event.left:,.0f} s left" if event.left else ""
        print(f"[{event.number}/{event.of}] {event.title}{clock}")


def work_off(run: Running, command: str) -> FitResult:
    """All phases that are not done yet, and the result."""

    def phase(kind: type[PhaseResult], make: Callable[[Running], PhaseResult]) -> None:
        if run.progress.has(kind.PHASE):
            return
        if (
            run.planned[kind.PHASE]
            and kind in (Profiled, Placed)
            and not run.seconds_for(kind.PHASE)
        ):
            run.leave_out(kind.PHASE)
        announce(run, kind.PHASE)
        run.progress.once(kind, lambda: make(run))

    # a text that is not there is refused before a plan is told
    run.progress.timed(TextFacts.PHASE, run.look)
    if run.by_clock:
        run.watch.planned(run.plan)
    phase(TextFacts, running.read)
    phase(Baseline, ladder.size)
    if not run.progress.has(Finalists.PHASE):
        run.progress.timed(Baseline.PHASE, lambda: finalists.refuse_unreachable(run))
    phase(Profiled, candidates.profile)
    phase(Placed, placements.search)
    phase(Finalists, finalists.find)
    phase(Rates, rates.rates)
    phase(Contest, contest.contest)
    phase(Seeds, winner.seeds)
    phase(Winner, winner.winner)
    announce(run, "report")
    result: FitResult = run.progress.timed("report", lambda: conclude(run, command=command))
    result = replace(result, phases=tuple(about_phases(run)))  # the last one is over too
    write(run.path, result)
    return result


def announce(run: Running, name: str) -> None:
    """Tell that a phase begins, unless it is left out."""
    for number, part in enumerate(run.plan, start=1):
        out = not part.planned and (run.by_clock or bool(part.note))
        if part.name == name and not out and not run.progress.left_out(name):
            left = run.left if run.by_clock else 0.0
            run.watch.phase(part, number, len(run.plan), left)


def stopped(run: Running, command: str) -> Stopped:
    """Write down the best so far, and say how to go on."""
    try:
        result = conclude(run, command=command)
        write(run.path, result)
        best = f"the best so far is in {run.path}; " if result.chosen else ""
    except (ParformerError, KeyboardInterrupt):
        best = ""
    path = quote(str(run.path))
    return Stopped(f"stopped, everything is saved; {best}go on with: parformer fit --run {path}")


def write(path: Path, result: FitResult) -> None:
    result.save(path)
    replace_file(path / REPORT, fit_page(result))


def finished_fit(path: Path, request: FitRequest) -> FitResult | None:
    """What a fit that came to its end found, if it is whole; else it is concluded again."""
    if not (path / FitResult.FILE).is_file():
        return None
    try:
        known = FitResult.load(path)
        if not known.finished:
            return None
        load(path / MODEL)
    except FolderError:
        if (path / FILE).is_file():
            return None  # the journal and the trainings have all that it takes to make them again
        raise
    with suppress(FolderError):  # a journal that is broken is not needed any more
        if request.corpus and (path / FILE).is_file():
            Progress(path, request)
    return known


def discard(path: Path) -> None:
    """Take back what was written before it was clear that nothing could come of it."""
    for name in (placements.SEARCH, "sizes"):
        shutil.rmtree(path / name, ignore_errors=True)
    (path / FILE).unlink(missing_ok=True)


def make_room(path: Path) -> bool:
    """A new folder, an empty one, or one that holds a fit; whether it is empty."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        inside = {entry.name for entry in path.iterdir()} - {LOCK}
    except OSError as error:
        raise FolderError(f"cannot make the run folder {str(path)!r}: {reason(error)}") from None
    if inside and not inside & {FILE, FitResult.FILE}:
        raise FolderError(f"{str(path)!r} is not empty and holds no fit; choose another --run")
    return not inside
