"""Text and a budget in, the best model that fits out: the whole job, phase by phase.

A phase is done once: what it found is in the run's notes, and whoever comes back goes on with
the next. What a clock decided (sizes, updates) is among that, so it is decided once.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from shlex import quote
from typing import Any

from parformer.errors import FolderError, ParformerError, Stopped
from parformer.events import Watch
from parformer.fitting import contest, designing
from parformer.fitting.ask import Ask
from parformer.fitting.desk import Desk
from parformer.fitting.notes import FILE, Notes, Result
from parformer.fitting.result import FOUND, REPORT, conclude
from parformer.measure.readings import Meter, measure_here
from parformer.report.fit import fit_page
from parformer.store import folder
from parformer.store.files import replace_file
from parformer.train.allocator import keep_memory
from parformer.train.run import LOCK, only_one

WORK: Mapping[str, Callable[[Desk], Result]] = {
    "text": designing.read,
    "size": designing.size,
    "profile": designing.profile,
    "search": designing.search,
    "sizes": designing.sizes,
    "rates": contest.rates,
    "contest": contest.contest,
    "seeds": contest.seeds,
    "winner": contest.winner,
}


def fit_text(
    ask: Ask | None,
    path: Path,
    *,
    command: str = "",
    watch: Watch | None = None,
    meter: Meter = measure_here,
    cache: Path | None = None,
) -> dict[str, Any]:
    """Find, train and prove the best model within a budget; what fit.json holds.

    The same call on the same folder goes on where it stopped; without an ask the folder's own
    is taken. Ctrl-C leaves the best so far.
    """
    fresh = make_room(path)
    keep_memory()
    with only_one(path):
        desk = Desk(Notes(path, ask), path, watch or Watch(), meter, cache)
        if (known := finished_fit(path)) is not None:
            return known
        try:
            work_off(desk)
            announce(desk, "report")
            found = desk.notes.once("report", lambda: conclude(desk, command=command))
        except (KeyboardInterrupt, Stopped):
            raise stopped(desk, command) from None
        except ParformerError:
            if fresh and not (path / "trainings").exists():
                discard(path)  # what cannot be done leaves no trace
            raise
        write(path, found)
        desk.trainings.tidy("*")
    return found


def work_off(desk: Desk) -> None:
    """All phases that are not done yet."""
    if not desk.ask.steps:
        desk.watch.planned(desk.phases)
    for name, make in WORK.items():
        if not desk.notes.has(name):
            announce(desk, name)
            desk.notes.once(name, lambda make=make: make(desk))  # type: ignore[misc]


def announce(desk: Desk, name: str) -> None:
    """Tell that a phase begins, unless it is left out."""
    for number, phase in enumerate(desk.phases, start=1):
        out = not phase.planned and (not desk.ask.steps or bool(phase.note))
        if phase.name == name and not out:
            desk.watch.phase(phase, number, len(desk.phases), desk.left)


def stopped(desk: Desk, command: str) -> Stopped:
    """Write down the best so far, and say how to go on."""
    try:
        found = conclude(desk, command=command)
        write(desk.path, found)
        best = f"the best so far is in {desk.path}; " if found["chosen"] else ""
    except (ParformerError, KeyboardInterrupt):
        best = ""
    run = quote(str(desk.path))
    return Stopped(f"stopped, everything is saved; {best}go on with: parformer fit --run {run}")


def write(path: Path, found: dict[str, Any]) -> None:
    replace_file(path / FOUND, json.dumps(found) + "\n")
    replace_file(path / REPORT, fit_page(found))


def finished_fit(path: Path) -> dict[str, Any] | None:
    """What a fit that came to its end found."""
    if not (path / FOUND).is_file():
        return None
    found: dict[str, Any] = folder.read_json(path, FOUND)
    return found if found.get("finished") else None


def discard(path: Path) -> None:
    """Take back what was written before it was clear that nothing could come of it."""
    for name in ("search", "sizes"):
        shutil.rmtree(path / name, ignore_errors=True)
    (path / FILE).unlink(missing_ok=True)


def make_room(path: Path) -> bool:
    """A new folder, an empty one, or one that holds a fit; whether it is empty."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        inside = {entry.name for entry in path.iterdir()} - {LOCK}
    except OSError as error:
        raise FolderError(f"cannot make the run folder {str(path)!r}: {error.strerror}") from None
    if inside and FILE not in inside:
        raise FolderError(f"{str(path)!r} is not empty and holds no fit; choose another --run")
    return not inside
