"""The verb `predict`: its flags, and how answers are shown."""

from __future__ import annotations

import argparse

from parformer.cli.console import make_console, print_json
from parformer.cli.flags import Flag, add_flags, asked
from parformer.cli.screen import Screen
from parformer.predict.request import Predicted, PredictRequest, predict

EXAMPLES = """\
  parformer predict reviews --text 'A lovely film.'
  parformer predict nli --text 'It rained.' --text-pair 'The street is wet.'
  parformer predict squad --question 'Who wrote it?' --passage 'It was written by Ann.'
  parformer predict reviews --input new.csv --output told.jsonl"""

FLAGS = {
    "model": Flag(name="RUN"),
    "texts": Flag(name="--text", metavar="TEXT"),
    "text_pairs": Flag(name="--text-pair", metavar="TEXT"),
    "choices": Flag(metavar="TEXT"),
    "input": Flag(metavar="FILE"),
    "output": Flag(metavar="FILE", default="the screen"),
    "device": Flag(metavar="NAME"),
}


def add(parser: argparse.ArgumentParser) -> None:
    add_flags(parser, PredictRequest, FLAGS)


def run(arguments: argparse.Namespace) -> None:
    screen = Screen(quiet=arguments.json)
    with screen.bar:
        found = predict(asked(arguments, PredictRequest), watch=screen)
    if arguments.json:
        print_json(found.to_dict())
    else:
        show(found, arguments.output)


def show(found: Predicted, output: object) -> None:
    from rich.text import Text

    console = make_console()
    for one in found.predictions:
        if one.answer is not None:
            where = f"at {one.start:,}" if one.answer else "no answer"
            console.print(Text(f"{one.answer or '–'}  {where}, {one.score:+.2f} beside no answer"))
        elif one.label is None:
            console.print(Text(f"{one.score:.4g}"))
        else:
            others = sorted(one.probabilities.items(), key=lambda pair: -pair[1])
            told = ", ".join(f"{name} {share:.3f}" for name, share in others[:5])
            console.print(Text(f"{one.label}  ({told})"))
    if output is not None:
        console.print(Text(f"{found.count:,} answers in {output}"))
    if found.calibration is not None:
        console.print(
            Text(f"Probabilities are off by {found.calibration:.1%} on average, on validation.")
        )
    elif found.probable:
        told = "How far probabilities are off is not known: no run of this model has measured it."
        console.print(Text(told), soft_wrap=True)
