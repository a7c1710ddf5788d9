"""The verb `measure`: its flags, and models side by side."""

from __future__ import annotations

import argparse
from typing import Any

from parformer.cli import cost
from parformer.cli.console import make_console, print_json
from parformer.cli.flags import Flag, add_flags, asked
from parformer.cli.screen import Screen
from parformer.cli.workers import WORKER, add_serving, serve_measuring
from parformer.errors import ConfigError
from parformer.measure.request import MeasureRequest, measure

EXAMPLES = """\
  parformer measure transformer-xl-base par-base
  parformer measure pocket llama-pocket --tgt-len 1 --mem-len 128 --threads 1
  parformer measure pocket llama-pocket --runtime onnx    where it will be deployed
  parformer measure worker --storage postgresql://me@database/studies"""

FLAGS = cost.FLAGS | {"threads": Flag(default="torch's")}


def add(parser: argparse.ArgumentParser) -> None:
    add_flags(parser, MeasureRequest, FLAGS)
    parser.add_argument(
        "--runtime",
        choices=("torch", "onnx"),
        help="what runs the step that is timed (default torch); memory is always torch's",
    )
    add_serving(parser)


def find_runtime(name: str | None) -> Any:
    """What makes the steps of a runtime; None for torch."""
    if name in (None, "torch"):
        return None
    from parformer.export.measuring import RUNTIMES

    return RUNTIMES[str(name)]


def run(arguments: argparse.Namespace) -> None:
    if arguments.models == [WORKER]:
        serve_measuring(arguments)
        return
    if arguments.storage is not None:
        raise ConfigError("--storage belongs to a worker: parformer measure worker --storage …")
    request = asked(arguments, MeasureRequest)
    screen = Screen(quiet=arguments.json)
    with screen.bar:
        measured = measure(request, watch=screen, runtime=find_runtime(arguments.runtime))
    if arguments.json:
        print_json(measured.to_dict())
        return
    from parformer.report.tables import measured_table, stacks, verdict

    console = make_console()
    console.print(stacks({name: one.config for name, one in measured.models.items()}))
    console.print()
    console.print(measured_table(measured))
    for sentence in verdict(measured):
        console.print(sentence)
    console.print(f"Receipt: {measured.latency.receipt.line()}", style="dim", soft_wrap=True)
