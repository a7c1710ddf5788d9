"""The verb `fit`: which text, which budget, and what is told in the end?"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from parformer.cli.console import make_console, print_json, print_lines
from parformer.cli.flags import Flag, add_flags, asked
from parformer.cli.generate import show
from parformer.cli.screen import Screen
from parformer.fields import read_seconds

if TYPE_CHECKING:
    from parformer.fitting.request import FitRequest
    from parformer.fitting.result import FitResult

DESCRIPTION = """\
Text, labelled texts or pairs and a budget in, the best model that fits out, with proof. Sizes
a model for the time there is, searches where it needs attention and which sizes fit the limits,
trains the finalists side by side with the interleaved Transformer, measures them here, and says
whether anything beats it. Writes a model, its configuration and report.html. Ctrl-C leaves the
best so far; the same command goes on."""

EXAMPLES = """\
  parformer fit python-source --time 6m --limit latency=0.8x
  parformer fit 'notes/**/*.md' --limit latency=5ms --limit memory=64MB --time 1h --run notes
  parformer fit wikitext-2 --tokenizer bpe --family llama --limit parameters=5M --time 30m
  parformer fit reviews.csv --task classify --text body --label stars --limit latency=2ms --time 5m
  parformer fit --task sst2 --data GLUE --limit size=2MB --time 10m
  parformer fit pairs/ --task translate --pair de-en --limit latency=0.8x --time 30m
  parformer fit --run notes                              go on where it stopped"""

TEXT, MODELS, LABELS = "the text", "the models", "labels and pairs"
STEP, ENERGY = "the step whose latency and memory count", "estimates of energy"
USUAL = {
    "tokenizer": "byte; wordpiece for labels, bpe for pairs",
    "family": "transformer-xl; bert for labels, transformer for pairs",
    "choices": "rsfni; sfln for labels, sflr for pairs",
}
FLAGS = {
    "corpus": Flag(name="corpus", metavar="CORPUS"),
    "limits": Flag(name="--limit", metavar="METRIC=AMOUNT", default="latency=1x"),
    "time": Flag(metavar="TIME", read=read_seconds, default="10m"),
    "run": Flag(metavar="FOLDER", default="runs/fit-CORPUS"),
    "task": Flag(metavar="NAME", group=LABELS),
    "data": Flag(metavar="PATH", group=LABELS),
    "text": Flag(metavar="COLUMN", group=LABELS),
    "label": Flag(metavar="COLUMN", group=LABELS),
    "pair": Flag(metavar="XX-YY", group=LABELS),
    "start": Flag(metavar="FOLDER", group=LABELS),
    "local": Flag(name="--from", metavar="PATH", group=TEXT),
    "tokenizer": Flag(metavar="KIND", group=TEXT, default=USUAL["tokenizer"]),
    "family": Flag(metavar="NAME", group=MODELS, default=USUAL["family"]),
    "choices": Flag(metavar="LETTERS", group=MODELS, default=USUAL["choices"]),
    "margin": Flag(metavar="SHARE", group=MODELS),
    "seed": Flag(group=MODELS),
    "tgt_len": Flag(group=STEP),
    "mem_len": Flag(group=STEP),
    "threads": Flag(group=STEP),
    "watts": Flag(metavar="W", group=ENERGY),
    "grid": Flag(metavar="KG", group=ENERGY),
    "price": Flag(metavar="MONEY", group=ENERGY),
    "currency": Flag(metavar="NAME", group=ENERGY),
}
HEAVY = ("search", "pareto")
"""What --json leaves to fit.json."""


def add(parser: argparse.ArgumentParser) -> None:
    from parformer.fitting.request import FitRequest

    parser.description = DESCRIPTION
    add_flags(parser, FitRequest, FLAGS)


def read_request(arguments: argparse.Namespace) -> FitRequest:
    """What is asked; a run alone is to go on as it was."""
    from parformer.fitting.request import FitRequest

    return asked(arguments, FitRequest)


def run(arguments: argparse.Namespace) -> None:
    request = read_request(arguments)
    from parformer.fitting.job import fit

    screen = Screen(brief=True)
    with screen.bar:
        result = fit(request, command=arguments.command, watch=screen)
    if arguments.json:
        print_json({k: v for k, v in result.to_dict().items() if k not in HEAVY})
        return
    farewell(result)


def farewell(result: FitResult) -> None:
    from parformer.report.fit import fit_table

    console, path = make_console(), Path(result.run)
    console.print(fit_table(result))
    for sample in result.samples:
        if sample.name == "final":
            words = "What it writes, after some words of the text:"
            if result.scores is not None or result.asked.task:
                words = "What it says of examples that it has not seen:"
            console.print(f"\n{words}", style="bold")
            console.print(sample.prompt, style="dim", markup=False, soft_wrap=True, end="")
            show(f"{sample.text}\n\n")
    lines = [f"report: {result.report}"]
    if result.final:
        lines += [f"model:  {path / 'model'}", f"try:    {result.repeat[0]}"]
        lines += [f"{way.name}: {way.command}" for way in result.ways[2:] if way.works]
    print_lines(*lines)
