"""The verb `train`: its flags, and what one sees of it."""

from __future__ import annotations

import argparse
import shlex

from parformer.cli import labels
from parformer.cli.beside import in_a_line, verdict
from parformer.cli.console import make_console, print_json, print_lines
from parformer.cli.flags import Flag, add_flags, asked
from parformer.cli.screen import Screen, in_words
from parformer.errors import Stopped
from parformer.fields import read_seconds
from parformer.train.request import TrainRequest, TrainResult, train

EXAMPLES = """\
  parformer train pocket --corpus python-source --time 3m --run first
  parformer train pocket --pattern '(sfff)x2 (f)x4' --steps 2000 --set train.learning_rate=1e-3
  parformer train lite-pocket-translation --task translate --data pairs/ --pair de-en
  parformer train --start runs/encoder --task classify --data reviews.csv --text body --label stars
  parformer train mine.toml --corpus 'notes/*.txt' --seed 7
  torchrun --nproc-per-node 2 -m -- parformer train par-base --run base --shard"""

FLAGS = {
    "model": Flag(name="MODEL"),
    "corpus": Flag(metavar="NAME|PATH", default="the recipe's"),
    "data": Flag(metavar="PATH", default=""),
    "pair": Flag(metavar="FROM-TO"),
    "task": Flag(metavar="NAME", default="what the model is made for"),
    "local": Flag(name="--from", metavar="PATH"),
    "tokenizer": Flag(metavar="KIND", default="the recipe's"),
    "steps": Flag(default="the recipe's"),
    "time": Flag(read=read_seconds, metavar="TIME", default="steps instead; such as 90s or 5m"),
    "start": Flag(metavar="FOLDER"),
    "text": Flag(metavar="COLUMN", default="the usual"),
    "label": Flag(metavar="COLUMN", default="label"),
    "epochs": Flag(default="3 from a start, 10 without"),
    "tries": Flag(name="--try", metavar="FIELD=A,B"),
    "seed": Flag(default="0"),
    "run": Flag(metavar="FOLDER", default="runs/MODEL-CORPUS"),
    "precision": Flag(default="auto"),
    "compile": Flag(default="auto"),
    "device": Flag(metavar="NAME"),
    "changes": Flag(name="--set", metavar="SECTION.FIELD=VALUE"),
}


SENTENCES = {"de": "Ein Hund läuft.", "en": "A dog runs.", "fr": "Un chien court."}
"""What translators from a language may be asked first."""


def add(parser: argparse.ArgumentParser) -> None:
    add_flags(parser, TrainRequest, FLAGS)


def run(arguments: argparse.Namespace) -> None:
    request = asked(arguments, TrainRequest)
    screen = Screen()
    with screen.bar:
        result = train(request, watch=screen)
    if not result.first:
        return
    if arguments.json:
        print_json(result.to_dict())
    elif result.outcome.finished:
        farewell(result)
    if not result.outcome.finished:
        raise Stopped(
            f"stopped after step {result.outcome.step:,}, everything is saved; "
            f"go on with: parformer train --run {shlex.quote(str(result.run))}"
        )


def farewell(result: TrainResult) -> None:
    """How it ended, and what to do next."""
    if result.labelled:
        labels.farewell(result)
        return
    console, outcome = make_console(), result.outcome
    if result.several is not None:
        for line in labels.spread_lines(result.several):
            console.print(line, soft_wrap=True, markup=False)
    scores = outcome.result.scores if outcome.result is not None else {}
    for split, score in scores.items():
        console.print(f"{split:<6} {in_words(score.loss, result.unit)}  {score.tokens:,} tokens")
        if split in outcome.beside:
            words = in_a_line(outcome.beside[split], result.unit, 1.0)
            console.print(f"       {words}", soft_wrap=True)
    for split in ("test", "valid"):
        if split in outcome.beside and split in scores:
            console.print(verdict(scores[split].loss, outcome.beside[split]))
            break
    for split, score in scores.items():
        if "bleu" in score.values:
            told = score.values
            console.print(f"{split:<6} BLEU {told['bleu']:.1f}, chrF {told['chrf']:.1f}")
            console.print(f"       {told['signature']}", soft_wrap=True)
        if "rouge1" in score.values:
            from parformer.evaluate.summaries import rouge_of

            rouge = rouge_of(score.values)
            kinds = f"{rouge.rouge1:.1f}, {rouge.rouge2:.1f}, {rouge.rougeL:.1f}"
            console.print(f"{split:<6} ROUGE-1, 2, L {kinds}")
            console.print(f"       {rouge.verdict}", soft_wrap=True)
    if told := {s: one.values["metrics"] for s, one in scores.items() if "metrics" in one.values}:
        for split, metrics in told.items():
            console.print(f"{split:<6} {labels.in_words(metrics)}")  # type: ignore[arg-type]
        tune = f"parformer train --start {shlex.quote(str(result.run))} --task classify --data FILE"
        print_lines(f"model: {result.run / 'model'}", f"try:   {tune}")
        return
    asking = "--prompt 'import '"
    if result.source:
        asking = f"--source '{SENTENCES.get(result.source, 'TEXT')}'"
    print_lines(
        f"model: {result.run / 'model'}",
        f"try:   parformer generate {shlex.quote(str(result.run))} {asking}",
    )
