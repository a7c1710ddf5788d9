"""The whole job as one function, for the command line and a notebook alike."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from parformer import folder
from parformer.durable import replace_file
from parformer.errors import FolderError, ParformerError, Stopped
from parformer.fit.ask import Ask
from parformer.fit.job import FitWatch, Job, Quiet
from parformer.fit.notes import FILE, Notes
from parformer.fit.result import FOUND, REPORT, conclude
from parformer.measure.meter import Meter, measure_here
from parformer.report.fit import fit_page
from parformer.train.allocator import keep_memory
from parformer.train.run import LOCK, only_one


def fit_text(
    ask: Ask | None,
    path: Path,
    *,
    command: str = "",
    watch: FitWatch | None = None,
    meter: Meter = measure_here,
    cache: Path | None = None,
) -> dict[str, Any]:
    """Find, train and prove the best model within a budget; what fit.json holds.

    The same call on the same folder goes on where it stopped; without an ask the folder's own
    is taken. Ctrl-C leaves the best so far.
    """
    make_room(path)
    keep_memory()
    with only_one(path):
        notes = Notes(path, ask)
        job = Job(notes, path, watch or Quiet(), meter, cache)
        if (known := finished_fit(path)) is not None:
            return known
        try:
            job.run()
            job.announce("report")
            found = notes.once("report", lambda: conclude(job, command=command))
        except (KeyboardInterrupt, Stopped):
            stopped(job, path, command)
        write(path, found)
    return found


def stopped(job: Job, path: Path, command: str) -> None:
    """Write down the best so far, and say how to go on."""
    try:
        found = conclude(job, command=command)
        write(path, found)
    except (ParformerError, KeyboardInterrupt):
        found = {"chosen": None}
    best = f"the best so far is {path}; " if found["chosen"] else ""
    raise Stopped(f"stopped, everything is saved; {best}go on with: parformer fit --run {path}")


def write(path: Path, found: dict[str, Any]) -> None:
    replace_file(path / FOUND, json.dumps(found) + "\n")
    replace_file(path / REPORT, fit_page(found))


def finished_fit(path: Path) -> dict[str, Any] | None:
    """What a fit that came to its end found."""
    if not (path / FOUND).is_file():
        return None
    found: dict[str, Any] = folder.read_json(path, FOUND)
    return found if found.get("finished") else None


def make_room(path: Path) -> None:
    """A new folder, an empty one, or one that holds a fit."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        inside = {entry.name for entry in path.iterdir()} - {LOCK}
    except OSError as error:
        raise FolderError(f"cannot make the run folder {str(path)!r}: {error.strerror}") from None
    if inside and FILE not in inside:
        raise FolderError(f"{str(path)!r} is not empty and holds no fit; choose another --run")
