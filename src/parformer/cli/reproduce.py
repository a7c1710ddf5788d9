"""The verb `reproduce`."""

from __future__ import annotations

import argparse
import datetime
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parformer import __version__
from parformer.cli.console import make_console, print_json
from parformer.cli.screen import Screen
from parformer.cli.train import read_seconds
from parformer.errors import ConfigError, FolderError
from parformer.events import Watch
from parformer.fields import need_at_least

if TYPE_CHECKING:
    from parformer.reproduce.published import Page
    from parformer.reproduce.study import Result

LIST = "list"
REPORT, RESULTS = "report.html", "reproduced.json"

EXAMPLES = """\
  parformer reproduce list
  parformer reproduce par-table-a2
  parformer reproduce lts --untrained --models trained_models_wt103.csv.gz --run lts
  parformer reproduce par-first-table-1 --time 20m --seeds 2 --run attention
  parformer reproduce par-table-1 --scale paper --run trained"""


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "names",
        nargs="+",
        metavar="NAME",
        help="tables and figures by the names that 'list' shows; par, par-first, lts or srupp for "
        "all of a paper; all for all; or list",
    )
    parser.add_argument(
        "--scale",
        choices=("pocket", "paper"),
        default="pocket",
        help="where quality is asked for: small trainings here, or the paper's own, whose commands "
        "are printed and whose finished runs are read from --run (default pocket)",
    )
    parser.add_argument(
        "--models",
        type=Path,
        metavar="TABLE",
        help="CSV of trained models, perhaps gzipped, as LiteTransformerSearch's authors publish",
    )
    parser.add_argument(
        "--run",
        type=Path,
        metavar="FOLDER",
        help="where trainings and measurements are kept, and the page is written; the same command "
        "goes on where it stopped (default runs/reproduce-NAME for what takes time)",
    )
    length = parser.add_mutually_exclusive_group()
    length.add_argument(
        "--time", default="5m", metavar="TIME", help="for the trainings of each study (default 5m)"
    )
    length.add_argument(
        "--steps", type=int, default=0, metavar="N", help="updates of each training"
    )
    parser.add_argument(
        "--seeds", type=int, default=1, metavar="N", help="trainings of each model (default 1)"
    )
    parser.add_argument("--untrained", action="store_true", help="leave out what takes trainings")
    parser.add_argument("--corpus", metavar="NAME|PATH", help="(default python-source)")
    parser.add_argument("--threads", type=int, metavar="N", help="CPU threads (default: torch's)")


def run(arguments: argparse.Namespace) -> None:
    from parformer.reproduce.published import expand, read_pages

    if LIST in arguments.names:
        if arguments.names != [LIST]:
            raise ConfigError("list stands alone: parformer reproduce list")
        tell_list(arguments, list(read_pages().values()))
        return
    for name, least in (("steps", 0), ("seeds", 1), ("threads", 1)):
        if getattr(arguments, name) is not None:
            need_at_least(f"--{name}", getattr(arguments, name), least)
    seconds = read_seconds(arguments.time)
    pages = [read_pages()[name] for name in expand(arguments.names)]
    if arguments.models is not None and not arguments.models.is_file():
        raise ConfigError(f"cannot read {str(arguments.models)!r}: there is no such file")
    folder = arguments.run or default_folder(arguments, pages)
    if folder is not None:
        make_folder(folder)
    from parformer.reproduce.job import reproduce
    from parformer.reproduce.workbench import Workbench

    screen = Screen(quiet=arguments.json, doing="", brief=True)
    watch = Watch(screen)
    more = {} if arguments.threads is None else {"threads": arguments.threads}
    bench = Workbench(
        scale=arguments.scale,
        folder=folder,
        models=arguments.models,
        seconds=seconds,
        steps=arguments.steps,
        seeds=arguments.seeds,
        trains=not arguments.untrained,
        corpus=arguments.corpus or "",
        progress=watch.preparing,
        watch=watch,
        **more,
    )

    def tell(result: Result) -> None:
        if not arguments.json:
            from parformer.report.reproduced import study_table

            screen.bar.stop()
            make_console().print(study_table(result.to_dict()), soft_wrap=False)
            screen.bar.start()

    with screen.bar:
        results = reproduce([page.name for page in pages], bench, on_result=tell)
    finish(arguments, results, folder)


def default_folder(arguments: argparse.Namespace, pages: Sequence[Page]) -> Path | None:
    """Only what takes time needs one."""
    trains = arguments.scale == "pocket" and not arguments.untrained
    takes = {"measure"} | ({"train"} if trains else set())
    if not any(takes & set(page.work) for page in pages):
        return None
    return Path("runs") / (f"reproduce-{pages[0].name}" if len(pages) == 1 else "reproduce")


def make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FolderError(f"cannot make {str(folder)!r}: {error.strerror}") from None


def tell_list(arguments: argparse.Namespace, pages: Sequence[Page]) -> None:
    from parformer.reproduce.published import PAPERS, work_words

    rows: list[dict[str, Any]] = [
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
    if arguments.json:
        print_json(rows)
        return
    from parformer.report.reproduced import list_table

    console = make_console()
    for paper in dict.fromkeys(row["paper"] for row in rows):
        console.print(paper, style="bold", soft_wrap=True, markup=False)
        console.print(list_table(row for row in rows if row["paper"] == paper), markup=False)


def finish(arguments: argparse.Namespace, results: Sequence[Result], folder: Path | None) -> None:
    from parformer.report.page import Made
    from parformer.report.reproduced import reproduced_page
    from parformer.store.files import replace_file

    studies = [result.to_dict() for result in results]
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    made = Made(command=arguments.command, date=today, version=__version__)
    whole = {"command": made.command, "date": today, "version": __version__, "studies": studies}
    if folder is not None:
        replace_file(folder / RESULTS, json.dumps(whole, indent=2) + "\n")
        replace_file(folder / REPORT, reproduced_page(studies, made))
    if arguments.json:
        print_json(whole | {"report": None if folder is None else str(folder / REPORT)})
    elif folder is not None:
        make_console().print(f"report: {folder / REPORT}", soft_wrap=True, markup=False)
