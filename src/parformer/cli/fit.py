"""The verb `fit`: which text, which budget, and what is told in the end?"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parformer.cli.console import make_console, print_json
from parformer.cli.generate import show
from parformer.cli.pareto import add_limits
from parformer.cli.screen import Screen
from parformer.cli.train import read_seconds
from parformer.errors import ConfigError
from parformer.events import Watch

if TYPE_CHECKING:
    from parformer.fitting.ask import Ask

DESCRIPTION = """\
Text and a budget in, the best model that fits out, with proof. Sizes a model for the time
there is, searches where it needs attention and which sizes fit the limits, trains the
finalists side by side with the interleaved Transformer, measures them here, and says whether
anything beats it. Writes a model, its configuration and report.html. Ctrl-C leaves the best
so far; the same command goes on."""

EXAMPLES = """\
  parformer fit python-source --time 6m --limit latency=0.8x
  parformer fit 'notes/**/*.md' --limit latency=5ms --limit memory=64MB --time 1h --run notes
  parformer fit wikitext-2 --tokenizer bpe --family llama --limit parameters=5M --time 30m
  parformer fit --run notes                              go on where it stopped"""


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    parser.add_argument(
        "corpus", nargs="?", metavar="CORPUS",
        help="a corpus by name, or a file, folder or glob of text; see 'parformer data'; "
        "not needed to go on",
    )  # fmt: skip
    add_limits(parser, "the interleaved baseline (default: latency=1x)")
    length = parser.add_mutually_exclusive_group()
    length.add_argument(
        "--time", metavar="TIME", help="for everything, such as 10m or 2h (default 10m)"
    )
    length.add_argument("--steps", type=int, metavar="N", help="updates of each finalist")
    parser.add_argument("--run", type=Path, metavar="FOLDER", help="(default runs/fit-CORPUS)")
    text = parser.add_argument_group("the text")
    text.add_argument(
        "--from", dest="local", metavar="PATH", help="a local copy of a published corpus"
    )
    text.add_argument(
        "--tokenizer", metavar="KIND",
        help="byte, used-bytes, character, word or bpe (default byte)",
    )  # fmt: skip
    models = parser.add_argument_group("the models")
    models.add_argument(
        "--family", metavar="NAME", help="transformer-xl, gpt2 or llama (default transformer-xl)"
    )
    models.add_argument(
        "--choices",
        metavar="LETTERS",
        help="blocks to place: s attention, f feed-forward, r recurrence, i nothing (default rsfi)",
    )
    models.add_argument(
        "--margin", type=float, metavar="SHARE",
        help="at par means within this share of the baseline's loss (default 0.01)",
    )  # fmt: skip
    models.add_argument("--seed", type=int, metavar="N", help="(default 0)")
    step = parser.add_argument_group("the step whose latency and memory count")
    step.add_argument("--tgt-len", type=int, metavar="N", help="new tokens (default: as trained)")
    step.add_argument("--mem-len", type=int, metavar="N", help="remembered tokens before them")
    step.add_argument("--threads", type=int, metavar="N", help="(default 1)")
    money = parser.add_argument_group("estimates of energy")
    money.add_argument(
        "--watts", type=float, metavar="W", help="power drawn while it runs (default 10 a core)"
    )
    money.add_argument("--grid", type=float, metavar="KG", help="CO₂ of a kWh (default 0.4)")
    money.add_argument("--price", type=float, metavar="MONEY", help="of a kWh (default 0.3)")
    money.add_argument("--currency", metavar="NAME", help="(default EUR)")


def run(arguments: argparse.Namespace) -> None:
    if arguments.corpus is None and arguments.run is None:
        raise ConfigError("name a CORPUS to fit, such as python-source, or the --run to go on with")
    ask = read_ask(arguments)
    path = arguments.run or Path("runs") / fit_name(arguments.corpus)
    from parformer.fitting.job import fit_text

    screen = Screen(brief=True)
    with screen.bar:
        found = fit_text(ask, path, command=arguments.command, watch=Watch(screen))
    if arguments.json:
        heavy = ("search", "pareto")
        print_json({"run": str(path), **{k: v for k, v in found.items() if k not in heavy}})
        return
    farewell(found, path)


def read_ask(arguments: argparse.Namespace) -> Ask | None:
    """What is asked; None where a run is to go on as it was."""
    from parformer.fitting.ask import Ask

    names = ("local", "tokenizer", "family", "choices", "margin", "seed", "tgt_len", "mem_len",
             "threads", "watts", "grid", "price", "currency")  # fmt: skip
    given: dict[str, Any] = {name: getattr(arguments, name) for name in names}
    if arguments.time is not None:
        given["time"] = read_seconds(arguments.time)
    if arguments.steps is not None:
        if arguments.steps < 1:
            raise ConfigError(f"--steps must be at least 1, got {arguments.steps}")
        given["steps"] = arguments.steps
    given = {name: value for name, value in given.items() if value is not None}
    if arguments.limits:
        given["limits"] = tuple(arguments.limits)
    if arguments.corpus is not None:
        return Ask(corpus=arguments.corpus, **given)
    if given:
        raise ConfigError(
            f"--{next(iter(given)).replace('_', '-')} belongs to a new fit; to go on, give "
            "--run alone, or name the CORPUS too"
        )
    return None


def fit_name(corpus: str) -> str:
    return re.sub(r"[^\w.]+", "-", f"fit-{Path(corpus).stem}").strip("-.")


def farewell(found: dict[str, Any], path: Path) -> None:
    from parformer.report.fit import fit_table

    console = make_console()
    console.print(fit_table(found))
    for sample in found["samples"]:
        if sample["name"] == "final":
            console.print("\nWhat it writes, after some words of the text:", style="bold")
            console.print(sample["prompt"], style="dim", markup=False, soft_wrap=True, end="")
            show(f"{sample['text']}\n\n")
    lines = [f"report: {path / 'report.html'}"]
    if found["final"]:
        lines += [
            f"model:  {path / 'model'}",
            f"try:    {found['repeat'][0]}",
        ]
    for line in lines:
        console.print(line, soft_wrap=True, markup=False)
