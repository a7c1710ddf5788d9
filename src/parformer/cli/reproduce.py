"""The verb `reproduce`: its flags, and tables as they are done."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from parformer.cli.console import make_console, print_json, print_lines
from parformer.cli.flags import Flag, add_flags, asked
from parformer.cli.screen import Screen
from parformer.errors import ConfigError
from parformer.fields import read_seconds
from parformer.reproduce.published import PAPERS, read_pages, work_words
from parformer.reproduce.request import ReproduceRequest

if TYPE_CHECKING:
    from parformer.reproduce.result import ReproducedStudy

LIST = "list"

EXAMPLES = """\
  parformer reproduce list
  parformer reproduce par-table-a2
  parformer reproduce lts --untrained --models trained_models_wt103.csv.gz --run lts
  parformer reproduce par-first-table-1 --time 20m --seeds 2 --run attention
  parformer reproduce par-table-1 --scale paper --run trained"""

FLAGS = {
    "names": Flag(name="NAME"),
    "models": Flag(metavar="TABLE"),
    "run": Flag(metavar="FOLDER", default="runs/reproduce-NAME for what takes time"),
    "time": Flag(metavar="TIME", read=read_seconds, default="5m"),
    "corpus": Flag(metavar="NAME|PATH", default="python-source"),
    "pairs": Flag(metavar="NAME|PATH"),
    "pair": Flag(metavar="A-B"),
    "threads": Flag(default="torch's"),
}


def add(parser: argparse.ArgumentParser) -> None:
    add_flags(parser, ReproduceRequest, FLAGS)


def run(arguments: argparse.Namespace) -> None:
    if LIST in arguments.names:
        if arguments.names != [LIST]:
            raise ConfigError("list stands alone: parformer reproduce list")
        tell_list(json=arguments.json)
        return
    request = asked(arguments, ReproduceRequest)
    from parformer.reproduce.job import reproduce

    screen = Screen(quiet=arguments.json, doing="", brief=True)

    def tell(study: ReproducedStudy) -> None:
        if not arguments.json:
            from parformer.report.reproduced import study_table

            screen.bar.stop()
            make_console().print(study_table(study), soft_wrap=False)
            screen.bar.start()

    with screen.bar:
        result = reproduce(request, watch=screen, each=tell, command=arguments.command)
    if arguments.json:
        print_json(result.to_dict())
    elif result.report is not None:
        print_lines(f"report: {result.report}")


def tell_list(*, json: bool) -> None:
    pages = list(read_pages().values())
    if json:
        rows = [
            {
                "name": page.name,
                "paper": PAPERS[page.paper],
                "place": page.place,
                "title": page.title,
                "rows": len(page.lines),
                "work": work_words(page),
                "minutes": page.minutes,
            }
            for page in pages
        ]
        print_json(rows)
        return
    from parformer.report.reproduced import list_table

    console = make_console()
    for paper in dict.fromkeys(page.paper for page in pages):
        console.print(PAPERS[paper], style="bold", soft_wrap=True, markup=False)
        console.print(list_table(page for page in pages if page.paper == paper), markup=False)
