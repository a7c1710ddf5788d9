"""The verb `design`: its flags, and the pattern as it was asked for."""

from __future__ import annotations

import argparse

from parformer.cli.console import print_json
from parformer.cli.flags import Flag, add_flags, asked
from parformer.naming import DesignRequest, design

EXAMPLES = """\
  parformer design --par 32 --p 5
  parformer design --sandwich 32 --k 6
  parformer design --from-megatron '*-*-' --as layer-types"""

FLAGS = {
    "par": Flag(metavar="BLOCKS"),
    "sandwich": Flag(metavar="BLOCKS"),
    "interleaved": Flag(metavar="BLOCKS"),
    "from_megatron": Flag(metavar="LETTERS"),
    "from_layer_types": Flag(metavar="LIST"),
    "pattern": Flag(metavar="PATTERN"),
    "p": Flag(metavar="P"),
    "k": Flag(metavar="K"),
    "notation": Flag(name="--as"),
}


def add(parser: argparse.ArgumentParser) -> None:
    add_flags(parser, DesignRequest, FLAGS)


def run(arguments: argparse.Namespace) -> None:
    designed = design(asked(arguments, DesignRequest))
    if arguments.json:
        print_json(designed.to_dict())
    else:
        written = designed.written
        print(written if isinstance(written, str) else ",".join(written))
