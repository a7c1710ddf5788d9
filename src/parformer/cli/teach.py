"""The verb `teach`."""

from __future__ import annotations

import argparse
import shlex

from parformer.cli.console import print_json, print_lines
from parformer.cli.flags import Flag, add_flags, asked
from parformer.cli.screen import Screen
from parformer.compress.teaching import TeachRequest, teach

EXAMPLES = """\
  parformer teach translator --to lessons                  its beams as targets
  parformer train lite-pocket-translation --task translate --data lessons --pair de-en"""

FLAGS = {
    "model": Flag(name="RUN"),
    "to": Flag(metavar="FOLDER"),
    "data": Flag(metavar="PATH", default="the run's own"),
    "limit": Flag(default="all"),
}


def add(parser: argparse.ArgumentParser) -> None:
    add_flags(parser, TeachRequest, FLAGS)


def run(arguments: argparse.Namespace) -> None:
    request = asked(arguments, TeachRequest)
    screen = Screen(quiet=arguments.json)
    with screen.bar:
        done = teach(request, watch=screen)
    if arguments.json:
        print_json(done.to_dict())
        return
    print_lines(
        f"{done.sources:,} sources translated, {done.alike:.1%} of them as the pairs have them, "
        f"with {done.words:.2f} times their words.",
        f"try: parformer train MODEL --task translate --data {shlex.quote(done.folder)} "
        f"--pair {done.pair}",
    )
