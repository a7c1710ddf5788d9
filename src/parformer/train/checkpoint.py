"""From where does an interrupted training go on?

From the newest checkpoint that is whole. A checkpoint is a folder of its own, written beside
its place, made durable, then renamed; its manifest holds the SHA-256 of every file. Two are
kept at least, so that a damaged one costs some steps and never the run.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from parformer.errors import FolderError
from parformer.store import folder, whole
from parformer.store.faults import failpoint
from parformer.store.files import Json

FORMAT = "parformer-checkpoint-1"
WEIGHTS, OPTIMIZER, MEMORY = "weights.safetensors", "optimizer.safetensors", "memory.safetensors"
PROGRESS = "progress.json"
FILES = {WEIGHTS, OPTIMIZER, MEMORY, PROGRESS}


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """Everything that the next update depends on."""

    step: int
    """Updates done."""
    weights: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor]
    memory: Mapping[str, Tensor]
    """What the blocks remember of each text, by block and part; empty at a fresh start."""
    progress: Json
    """Plain values: where the metrics end, on what machine this was written, and so on."""


def write_checkpoint(
    root: Path, checkpoint: Checkpoint, keep: int, spared: Collection[int] = ()
) -> Path:
    """Add a checkpoint, then let the oldest go."""
    path = root / name_of(checkpoint.step)
    failpoint("checkpoint.before-write")
    values = {"step": checkpoint.step, **checkpoint.progress}
    folder.write_folder(
        path,
        FORMAT,
        {
            WEIGHTS: checkpoint.weights,
            OPTIMIZER: checkpoint.optimizer,
            MEMORY: checkpoint.memory,
            PROGRESS: folder.json_bytes(values),
        },
    )
    failpoint("checkpoint.before-rotation")
    rotate(root, keep, spared)
    failpoint("checkpoint.after-rotation")
    return path


def rotate(root: Path, keep: int, spared: Collection[int] = ()) -> None:
    """Let all go but the newest, and those after the steps that are spared."""
    names = set(map(name_of, spared))
    for old in (path for path in in_order(root)[:-keep] if path.name not in names):
        # renamed first: what is half removed must not look like a checkpoint
        gone = old.with_name(f".{old.name}.gone")
        shutil.rmtree(gone, ignore_errors=True)
        old.rename(gone)
        failpoint("checkpoint.during-rotation")
        shutil.rmtree(gone, ignore_errors=True)


def name_of(step: int) -> str:
    return f"step-{step:09d}"


def in_order(root: Path) -> list[Path]:
    """All that are called a checkpoint, the newest last."""
    found = [path for path in root.glob("step-*") if not path.is_symlink()]
    return sorted(found, key=lambda path: (len(path.name), path.name))


def read_checkpoint(path: Path) -> Checkpoint:
    """A checkpoint after every checksum was found right."""
    folder.check_folder(path, FORMAT, FILES)
    values = folder.read_json(path, PROGRESS)
    step = values.pop("step", None)
    if not isinstance(step, int) or name_of(step) != path.name:
        raise FolderError(f"{str(path)!r} holds step {step!r}; it was renamed or made by hand")
    return Checkpoint(
        step,
        folder.read_tensors(path / WEIGHTS),
        folder.read_tensors(path / OPTIMIZER),
        folder.read_tensors(path / MEMORY),
        values,
    )


def newest_checkpoint(root: Path, notice: Callable[[str], None]) -> Checkpoint | None:
    """The newest checkpoint that is whole; what is damaged is named and set aside.

    None where there never was one. Where all are damaged there is no good answer: that is an
    error, for a silent new start would overwrite a long run.
    """
    found = in_order(root)[::-1]
    for path in found:
        try:
            checkpoint = read_checkpoint(path)
        except FolderError as error:
            notice(f"checkpoint {path.name} cannot be used: {error}")
            continue
        for damaged in found[: found.index(path)]:
            whole.set_aside(damaged)
        return checkpoint
    if found:
        raise FolderError(
            f"none of the {len(found)} checkpoints in {str(root)!r} is whole; "
            "copy one back, or choose another --run to start again"
        )
    return None


BEST_FORMAT, BEST = "parformer-best-1", "best"
"""The weights of the best validation of a run, in a folder beside its checkpoints."""


def write_best(run: Path, step: int, weights: Mapping[str, Tensor]) -> None:
    values = folder.json_bytes({"step": step})
    folder.write_folder(run / BEST, BEST_FORMAT, {WEIGHTS: weights, PROGRESS: values})


def read_best(run: Path, step: int, notice: Callable[[str], None]) -> Mapping[str, Tensor] | None:
    """Those after this step; None, which is said, where they are gone or damaged."""
    try:
        folder.check_folder(run / BEST, BEST_FORMAT, {WEIGHTS, PROGRESS})
        found = folder.read_json(run / BEST, PROGRESS).get("step")
        if found == step:
            return folder.read_tensors(run / BEST / WEIGHTS)
        notice(f"The best weights are those of step {found}, not of {step:,}; the last are taken.")
    except FolderError as error:
        notice(f"The best weights cannot be used, so the last are taken: {error}")
    return None


def sweep(root: Path, name: str = "step-") -> None:
    """Remove folders that a killed process left half written or half removed."""
    whole.sweep(root, f".{name}*")
