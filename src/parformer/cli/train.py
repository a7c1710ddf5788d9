"""The verb `train`: which model, on which text, for how long, and what does one see of it?"""

from __future__ import annotations

import argparse
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parformer.cli.beside import add_beside, in_a_line, verdict
from parformer.cli.console import add_device, make_console, print_json
from parformer.cli.screen import Screen, in_words
from parformer.errors import ConfigError, Stopped
from parformer.events import Watch
from parformer.fields import parse_assignment
from parformer.recipe import Recipe, read_recipe

if TYPE_CHECKING:
    from parformer.train.loop import Outcome


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", nargs="?", metavar="MODEL", help="preset or TOML file; not needed to go on"
    )
    add_text(parser)
    parser.add_argument("--pattern", help="replace the model's pattern")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--steps", type=int, metavar="N", help="updates (default: the recipe's)")
    length.add_argument("--time", metavar="TIME", help="for all updates, such as 90s or 5m")
    parser.add_argument(
        "--seed", type=int, metavar="N", help="of weights and the order of the text (default 0)"
    )
    parser.add_argument("--run", type=Path, metavar="FOLDER", help="(default runs/MODEL-CORPUS)")
    parser.add_argument("--precision", choices=("auto", "fp32", "bf16"), help="(default auto)")
    parser.add_argument(
        "--compile", choices=("auto", "on", "off"), help="use torch.compile (default auto)"
    )
    add_beside(parser)
    add_device(parser)
    parser.add_argument(
        "--shard", action="store_true", help="spread the model over torchrun's processes (FSDP2)"
    )
    add_set(parser, "[model], [data] or [train]")


def add_text(parser: argparse.ArgumentParser) -> None:
    """Which text to read, and how."""
    parser.add_argument(
        "--corpus",
        metavar="NAME|PATH",
        help="a corpus by name, or a file, folder or glob of text; see 'parformer data' "
        "(default: the recipe's)",
    )
    parser.add_argument(
        "--from", dest="local", metavar="PATH", help="a local copy of a published corpus"
    )
    parser.add_argument(
        "--tokenizer",
        metavar="KIND",
        help="byte, used-bytes, character, word or bpe (default: the recipe's)",
    )


def add_set(parser: argparse.ArgumentParser, sections: str) -> None:
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        dest="changes",
        metavar="SECTION.FIELD=VALUE",
        help=f"replace a field of {sections}; may be repeated",
    )


def run(arguments: argparse.Namespace) -> None:
    changes = read_changes(
        arguments,
        {
            "data.corpus": arguments.corpus,
            "data.local": arguments.local,
            "data.tokenizer": arguments.tokenizer,
            "model.pattern": arguments.pattern,
            "train.steps": arguments.steps,
            "train.time": None if arguments.time is None else read_seconds(arguments.time),
            "train.seed": arguments.seed,
            "train.precision": arguments.precision,
            "train.compile": arguments.compile,
        },
    )
    if arguments.model is None and arguments.run is None:
        raise ConfigError("name a MODEL to train, such as pocket, or the --run to go on with")
    asked = None if arguments.model is None else read_recipe(arguments.model, changes)
    path = arguments.run or Path("runs") / run_name(arguments.model, asked)
    from parformer.train.distributed import workers_from
    from parformer.train.job import train_model

    with workers_from(device=arguments.device, shard=arguments.shard) as workers:
        screen = Screen(quiet=not workers.first)
        if asked is None and changes:
            from parformer.train.run import read_run

            asked = read_run(path).replaced(changes)
        with screen.bar:
            outcome = train_model(
                asked,
                path,
                chosen=changes,
                workers=workers,
                watch=Watch(screen),
                beside=arguments.beside,
            )
        if not workers.first:
            return
        if arguments.json:
            beside = {"beside": {split: one.to_dict() for split, one in outcome.beside.items()}}
            print_json(
                {"run": str(path), "step": outcome.step, "finished": outcome.finished}
                | dict(outcome.result)
                | (beside if outcome.beside else {})
            )
        elif outcome.finished:
            farewell(path, outcome, screen.unit)
    if not outcome.finished:
        raise Stopped(
            f"stopped after step {outcome.step:,}, everything is saved; "
            f"go on with: parformer train --run {shlex.quote(str(path))}"
        )


def read_changes(arguments: argparse.Namespace, short: dict[str, Any]) -> dict[str, Any]:
    """Everything the command line sets, each by the field it stands for.

    `short` holds what has an option of its own; the rest comes from `--set`.
    """
    changes = dict(parse_assignment(text) for text in arguments.changes)
    for name, value in short.items():
        if value is not None:
            if name in changes and changes[name] != value:
                raise ConfigError(f"{name} is given twice, as {changes[name]!r} and {value!r}")
            changes[name] = value
    if arguments.steps is not None:
        changes.setdefault("train.time", 0.0)
    return changes


def read_seconds(text: str) -> float:
    """A length of time as people write it: 90, 90s, 5m, 1.5h.

    >>> read_seconds("1.5m")
    90.0
    """
    parts = re.fullmatch(r"(\d+(?:\.\d*)?)\s*([smh]?)", text.strip())
    if parts is None or float(parts[1]) <= 0:
        raise ConfigError(f"cannot read the time {text!r}; write it as 90s, 5m or 1.5h")
    return float(parts[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[parts[2]]


def run_name(model: str, recipe: Recipe | None) -> str:
    """Where a run goes when nobody says: its model and its text, and a seed that is not 0."""
    assert recipe is not None
    words = [Path(model).stem, Path(recipe.data.corpus).stem]
    if recipe.train.seed:
        words.append(str(recipe.train.seed))
    return re.sub(r"[^\w.]+", "-", "-".join(words)).strip("-.") or "run"


def farewell(path: Path, outcome: Outcome, unit: str) -> None:
    """How it ended, and what to do next."""
    console = make_console()
    for split in ("valid", "test"):
        if split in outcome.result:
            score = outcome.result[split]
            words = in_words(score["loss"], unit)
            console.print(f"{split:<6} {words}  {score['tokens']:,} tokens")
            if split in outcome.beside:
                words = in_a_line(outcome.beside[split], unit, 1.0)
                console.print(f"       {words}", soft_wrap=True)
    for split in ("test", "valid"):
        if split in outcome.beside and split in outcome.result:
            console.print(verdict(outcome.result[split]["loss"], outcome.beside[split]))
            break
    for line in (
        f"model: {path / 'model'}",
        f"try:   parformer generate {shlex.quote(str(path))} --prompt 'import '",
    ):
        console.print(line, soft_wrap=True, markup=False)
