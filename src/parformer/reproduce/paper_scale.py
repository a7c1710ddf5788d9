"""What would the paper's own training take, and was it done?

Every preset has its paper's recipe. Here is the command that follows it, and the score of a run
that did; a run that is no such training is refused, and one that was cut short says so.
"""

from __future__ import annotations

import math
import re
import shlex
from pathlib import Path

from parformer.errors import FolderError
from parformer.fields import parse_assignment
from parformer.recipe import Recipe, read_recipe
from parformer.reproduce.published import Training
from parformer.reproduce.study import Ours
from parformer.train.run import is_run, read_result, read_run

GPUS = 8
"""Where a recipe does not say how many."""


def recipe_of(training: Training) -> Recipe:
    changes = dict(parse_assignment(text) for text in training.changes)
    if training.pattern:
        changes["model.pattern"] = training.pattern
    return read_recipe(training.preset, changes)


def machine_words(training: Training) -> str:
    """What it was made for, in a few words."""
    machine = recipe_of(training).machine
    return machine.partition(":")[0].partition(";")[0].strip() or f"{GPUS} GPUs"


def gpus(training: Training) -> int:
    first = re.match(r"(\d+) GPUs?", recipe_of(training).machine)
    return int(first[1]) if first else GPUS


def command_of(training: Training, folder: Path | None) -> str:
    """The command that trains it as the paper did."""
    words = ["torchrun", "--nproc-per-node", str(gpus(training)), "-m", "--"]
    words += ["parformer", "train", training.preset]
    if training.pattern:
        words += ["--pattern", training.pattern]
    for change in training.changes:
        words += ["--set", change]
    words += ["--run", str((folder or Path("runs/paper")) / training.folder)]
    return shlex.join(words)


def finished(training: Training, folder: Path | None) -> Ours | None:
    """The score of a run that did it, if there is one."""
    if folder is None or not is_run(path := folder / training.folder):
        return None
    stored, asked = read_run(path), recipe_of(training)
    refuse_another(stored, asked, path)
    result = read_result(path)
    if result is None:
        return None
    value: object = result.to_dict()
    for name in training.score.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise FolderError(f"the run {str(path)!r} has no {training.score} in its result.json")
    steps = result.steps
    note = ""
    if steps != asked.train.steps:
        note = f"the paper's training has {asked.train.steps:,} updates"
    how = f"run {path.name}: {steps:,} updates, {stored.data.corpus}"
    return Ours(float(value), how, note=note, single=True)


def refuse_another(stored: Recipe, asked: Recipe, path: Path) -> None:
    """The run has to be about the same model and text."""
    for name, ours, theirs in (
        ("pattern", stored.model.pattern, asked.model.pattern),
        ("d_model", stored.model.d_model, asked.model.d_model),
        ("d_inner", stored.model.d_inner, asked.model.d_inner),
        ("corpus", stored.data.corpus, asked.data.corpus),
    ):
        if ours != theirs:
            raise FolderError(
                f"the run {str(path)!r} has {name} {str(ours)!r} where the paper has "
                f"{str(theirs)!r}; rename it, or give another --run"
            )
