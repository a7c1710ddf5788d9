"""The verb `push`: its flags, and where a folder is afterwards."""

from __future__ import annotations

import argparse

from parformer.cli.console import print_json, print_lines
from parformer.cli.flags import Flag, add_flags, asked
from parformer.export.pushing import PushRequest, push

EXAMPLES = """\
  parformer push first-hub me/first               by huggingface_hub, as whoever is logged in"""

FLAGS = {
    "folder": Flag(name="FOLDER"),
    "name": Flag(name="NAME"),
    "message": Flag(metavar="TEXT"),
}


def add(parser: argparse.ArgumentParser) -> None:
    add_flags(parser, PushRequest, FLAGS)


def run(arguments: argparse.Namespace) -> None:
    pushed = push(asked(arguments, PushRequest))
    if arguments.json:
        print_json(pushed.to_dict())
    else:
        print_lines(f"pushed: {pushed.url}")
