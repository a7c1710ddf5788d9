"""What does a run folder hold?

`config.toml` is the recipe with nothing left open, `tokenizer.json` the vocabulary,
`metrics.jsonl` what happened, `checkpoints/` where to go on from, `model/` the trained model
and `result.json` how good it is. The same command on the same folder goes on where it
stopped; a command that asks for something else is refused and changes nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path

import tomli_w

from parformer.config import SECTIONS, read_tables
from parformer.data.tokenizers import Tokenizer, read_tokenizer
from parformer.errors import ConfigError, FolderError, ParformerError
from parformer.recipe import Recipe
from parformer.store import folder
from parformer.store.files import Json, reason, refuse_link, replace_file
from parformer.store.lock import Held, lock
from parformer.store.whole import set_aside
from parformer.train.result import RunResult

CONFIG, TOKENIZER, METRICS, RESULT = "config.toml", "tokenizer.json", "metrics.jsonl", "result.json"
CHECKPOINTS, MODEL, LOCK = "checkpoints", "model", ".lock"

BEFORE_RUN = re.compile(rf"{LOCK}|{TOKENIZER}|\.({TOKENIZER}|{CONFIG})(\.\d+)?\.new")
"""What a process may leave that was killed before its run began."""

FREE = {
    "train.threads",
    "train.kernels",
    "train.log_every",
    "train.evaluate_every",
    "train.evaluate_tokens",
    "train.final_tokens",
    "train.checkpoint_every",
    "train.keep",
    "data.local",
    "search.seeds",
}
"""What may change from one start of a run to the next: no weight depends on it, save that
other threads or kernels add numbers in another order."""

OPEN: dict[str, object] = {
    "train.threads": 0,
    "train.precision": "auto",
    "train.compile": "auto",
    "train.kernels": "auto",
    "train.evaluate_every": 0,
    "train.start_identity": "",
    "data.identity": "",
    "compress.teacher_identity": "",
}
"""What a recipe may leave open, and how it says so; a run's configuration has the answers."""

OF_VOCABULARY = tuple(
    f"model.{name}"
    for name in ("vocab_size", "source_vocab", "cutoffs", "labels", "pad", "start", "end")
)
"""What the text decides of a model."""


def is_run(path: Path) -> bool:
    return (path / CONFIG).is_file()


def read_run(path: Path) -> Recipe:
    """The recipe that a run follows."""
    if not is_run(path):
        raise FolderError(f"no run at {str(path)!r}: it has no {CONFIG}")
    try:
        return Recipe.from_dict(read_tables(str(path / CONFIG)))
    except ParformerError as error:
        raise FolderError(f"{str(path / CONFIG)!r} is broken: {error}") from None


def start_run(path: Path, recipe: Recipe, tokenizer: Tokenizer) -> None:
    """Write down what a new run will do; `config.toml` comes last and makes it a run."""
    replace_file(path / TOKENIZER, tokenizer.to_json())
    replace_file(path / CONFIG, tomli_w.dumps(recipe.to_dict()))


def make_folder(path: Path) -> None:
    """A place for a run: a new folder, an empty one, or one that holds a run."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        inside = [entry for entry in path.iterdir() if not BEFORE_RUN.fullmatch(entry.name)]
    except OSError as error:
        raise FolderError(f"cannot make the run folder {str(path)!r}: {reason(error)}") from None
    if inside and not is_run(path):
        raise FolderError(f"{str(path)!r} is not empty and holds no run; choose another --run")
    if not os.access(path, os.W_OK):
        raise FolderError(f"cannot write to the run folder {str(path)!r}: it is read-only")


@contextlib.contextmanager
def only_one(path: Path) -> Iterator[None]:
    """Two processes must not write into one run; the lock goes with the process that holds it."""
    refuse_link(path / METRICS)
    refuse_link(path / CHECKPOINTS)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(lock(path / LOCK))
        except OSError as error:
            raise FolderError(
                f"cannot write to the run folder {str(path)!r}: {error.strerror}"
            ) from None
        except Held:
            raise FolderError(
                f"another process is training in {str(path)!r}; wait for it or choose another --run"
            ) from None
        try:
            yield
        finally:
            if not is_run(path):  # nothing came of it: leave no trace
                with contextlib.suppress(OSError):
                    (path / LOCK).unlink()
                    path.rmdir()


def agree(stored: Recipe, asked: Recipe, chosen: set[str], path: Path) -> Recipe:
    """The stored recipe with what may change; refuse what may not.

    `chosen` names what the user set by hand. What the recipe left open, and the vocabulary,
    which the text decides, are compared only where the user insists.
    """
    changes: dict[str, object] = {}
    if (stored.search is None) != (asked.search is None):
        holds, verb = ("training", "train") if stored.search is None else ("search", "search")
        raise ConfigError(
            f"the run {str(path)!r} holds a {holds}; go on with parformer {verb}, "
            "or choose another --run"
        )
    for section in SECTIONS:
        old, new = getattr(stored, section), getattr(asked, section)
        if old is None:
            continue
        if new is None:
            raise ConfigError(
                f"the run {str(path)!r} has a table [{section}]; go on with: "
                f"parformer train --run {path}"
            )
        for field in fields(old):
            name = f"{section}.{field.name}"
            before, now = getattr(old, field.name), getattr(new, field.name)
            if before == now or not matters(name, now, asked, chosen):
                continue
            if name in FREE and not is_averaged(name, stored):
                if name in chosen:
                    changes[name] = now
                continue
            raise ConfigError(
                f"{name} is {shown(before)} in the run {str(path)!r} and {shown(now)} now; "
                "leave it as it was, or choose another --run"
            )
    return stored.replaced(changes)


def is_averaged(name: str, stored: Recipe) -> bool:
    """Whether the model's weights depend on how often checkpoints are made."""
    return name == "train.checkpoint_every" and stored.train.average > 1


def matters(name: str, value: object, asked: Recipe, chosen: set[str]) -> bool:
    if name in OPEN and value == OPEN[name]:
        return False
    if name in OF_VOCABULARY:
        return name in chosen
    train = asked.train
    if is_averaged(name, asked) and not value:
        return False  # found out with the number of steps
    left_open = train.time > 0 or train.epochs > 0 or bool(train.phases)
    if name == "train.warmup":
        return not (left_open or train.warmup_share > 0)
    return not (name == "train.steps" and left_open)


def shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else repr(value) if value != "" else "empty"


def read_run_tokenizer(path: Path) -> Tokenizer:
    file = path / TOKENIZER
    try:
        text = file.read_text("utf-8")
    except (OSError, ValueError) as error:
        raise FolderError(f"cannot read {str(file)!r}: {reason(error)}") from None
    return read_tokenizer(text, str(file))


def write_result(path: Path, result: Json) -> None:
    replace_file(path / RESULT, json.dumps(result, indent=2) + "\n")


def read_result(path: Path) -> RunResult | None:
    """What a finished run found; None while it is not finished."""
    if not (path / RESULT).is_file():
        return None
    return RunResult.from_dict(folder.read_json(path, RESULT), RESULT)


def read_finished(path: Path, notice: Callable[[str], None]) -> RunResult | None:
    """What a finished run found, if its result and its model are whole.

    Both follow from the last checkpoint: where one is damaged, that is said, and they are to be
    made again.
    """
    try:
        result = read_result(path)
        if result is not None and (path / MODEL).exists():
            folder.check_folder(path / MODEL, folder.FORMAT, folder.REQUIRED, folder.OPTIONAL)
    except FolderError as error:
        if not any((path / CHECKPOINTS).glob("step-*")):
            raise FolderError(
                f"{error}; there is no checkpoint to make it again from, so copy it back"
            ) from None
        notice(f"{error}; it is made again from the last checkpoint")
        set_aside(path / MODEL)
        return None
    return result


@dataclass(frozen=True, slots=True)
class Opened:
    """A trained model, in a run or by itself."""

    folder: Path
    """The model folder."""
    recipe: Recipe | None
    identity: str
    """SHA-256 of the text that it was trained on; empty if unknown."""
    tokenizer: Tokenizer | None

    def need_tokenizer(self) -> Tokenizer:
        """The tokenizer, without which no text can be read or written."""
        if self.tokenizer is None:
            raise ConfigError(
                f"{str(self.folder)!r} has no tokenizer.json, so no text can be read or written; "
                "copy it from the run that made the model"
            )
        return self.tokenizer


def open_run(path: Path) -> Opened:
    """The model of a run, or a model folder as it is."""
    if is_run(path):
        recipe = read_run(path)
        if not (path / MODEL).is_dir():
            raise FolderError(
                f"the run {str(path)!r} has no model yet; "
                f"finish it with: parformer train --run {path}"
            )
        return Opened(path / MODEL, recipe, recipe.data.identity, read_run_tokenizer(path))
    text = folder.read_tokenizer_file(path)
    where = str(path / folder.TOKENIZER)
    return Opened(path, None, "", None if text is None else read_tokenizer(text, where))
