"""The verb `compress`."""

from __future__ import annotations

import argparse
import shlex

from parformer.cli.console import make_console, print_json, print_lines
from parformer.cli.flags import Flag, add_flags, asked
from parformer.cli.screen import Screen
from parformer.compress.request import CompressRequest
from parformer.errors import ConfigError
from parformer.fields import read_seconds

EXAMPLES = """\
  parformer compress first                                   8 bits, with a receipt
  parformer compress first --limit size=1MB                  planned by what is tried
  parformer compress first --by quantize --bits 4            four bits for all
  parformer compress first --limit latency=0.7x --limit loss=+2% --time 10m
  parformer compress first --corpus notes.txt --by vocabulary,quantize   fewer words
  parformer compress first --replace s=r,f,i --limit latency=0.7x   which attention can go"""

FLAGS = {
    "model": Flag(name="RUN"),
    "replace": Flag(metavar="BLOCK=BLOCKS"),
    "limits": Flag(name="--limit", metavar="METRIC=AMOUNT"),
    "by": Flag(metavar="STEPS"),
    "bits": Flag(default="by what each matrix bears"),
    "corpus": Flag(metavar="NAME|PATH", default="the run's own"),
    "time": Flag(read=read_seconds, metavar="TIME", default="5m"),
    "command": Flag(hidden=True),
    "run": Flag(metavar="FOLDER", default="RUN-compressed"),
    "local": Flag(name="--from", metavar="PATH"),
}


def add(parser: argparse.ArgumentParser) -> None:
    add_flags(parser, CompressRequest, FLAGS)


def run(arguments: argparse.Namespace) -> None:
    request = asked(arguments, CompressRequest, command=arguments.command)
    from parformer.compress.job import REPORT, compress
    from parformer.report.compressed import compressed_table

    screen = Screen(quiet=arguments.json)
    with screen.bar:
        result = compress(request, watch=screen)
    beyond = bool(result.limits) and not result.kept
    if arguments.json:
        print_json(result.to_dict())
    else:
        make_console().print(compressed_table(result))
        path = shlex.quote(str(result.run))
        print_lines(
            *(() if beyond else (result.verdict(),)),
            f"report: {request.folder / REPORT}",
            f"model:  {request.folder / 'model'}",
            f"try:    parformer evaluate {path}",
        )
    if beyond:  # whoever waits for the limit has to hear that it was not reached
        raise ConfigError(result.verdict())
