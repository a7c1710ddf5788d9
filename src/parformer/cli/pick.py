"""The verb `pick`."""

from __future__ import annotations

import argparse
import shlex

from parformer.cli.console import print_json, print_lines
from parformer.cli.flags import Flag, add_flags, asked
from parformer.search.limits import in_words
from parformer.search.sizes.request import PickRequest

EXAMPLES = """\
  parformer pick gallery --limit latency=5ms
  parformer pick gallery --limit latency=0.7x --limit memory=8MB --output small.toml"""

FLAGS = {
    "run": Flag(name="RUN"),
    "limits": Flag(name="--limit", metavar="METRIC=AMOUNT"),
    "name": Flag(metavar="NAME"),
    "output": Flag(metavar="FILE", default="RUN/NAME.toml, such as RUN/g7.toml"),
}


def add(parser: argparse.ArgumentParser) -> None:
    add_flags(parser, PickRequest, FLAGS)


def run(arguments: argparse.Namespace) -> None:
    request = asked(arguments, PickRequest)
    from parformer.search.sizes.picking import pick

    picked = pick(request)
    if arguments.json:
        print_json(picked.to_dict())
        return
    words = [f"{picked.decoder_parameters:,} parameters in the stack"]
    for metric in ("latency", "memory"):
        if (value := picked.figure(metric)) is not None:
            how = "measured" if picked.is_measured(metric) else "predicted"
            words.append(f"{in_words(metric, value)} of {metric} ({how})")
    print_lines(
        f"{picked.name}: {picked.pattern}",
        ", ".join(words),
        f"written: {picked.config_file}",
        f"train:   parformer train {shlex.quote(str(picked.config_file))}",
    )
