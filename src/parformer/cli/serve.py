"""The verb `serve`: its flags, and where it listens."""

from __future__ import annotations

import argparse

from parformer.cli.console import print_json, print_lines
from parformer.cli.flags import Flag, add_flags, asked
from parformer.events import Event, Notice
from parformer.serve.request import ServeRequest, serve

EXAMPLES = """\
  parformer serve first                        OpenAI's API at http://127.0.0.1:8000/v1
  parformer serve first --port 0 --batch 32
  PARFORMER_API_KEY=secret parformer serve first --host 0.0.0.0 --allow-host models.example"""

FLAGS = {
    "model": Flag(name="RUN"),
    "host": Flag(metavar="ADDRESS"),
    "name": Flag(metavar="NAME"),
    "timeout": Flag(metavar="SECONDS"),
    "allow_host": Flag(metavar="NAME"),
    "device": Flag(metavar="NAME"),
}


def add(parser: argparse.ArgumentParser) -> None:
    add_flags(parser, ServeRequest, FLAGS)


def run(arguments: argparse.Namespace) -> None:
    def tell(event: Event) -> None:
        if isinstance(event, Notice):
            if arguments.json:
                print_json({"notice": event.text})
            else:
                print_lines(f"{event.text}; Ctrl-C stops it once the answers under way are done")

    serve(asked(arguments, ServeRequest), watch=tell)
