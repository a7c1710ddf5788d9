"""Other machines that help: `measure worker` and `search join`."""

from __future__ import annotations

import argparse

from parformer.cli.console import make_console, print_json
from parformer.cli.screen import Screen
from parformer.errors import ConfigError, Stopped
from parformer.events import Watch
from parformer.fields import read_seconds

WORKER = "worker"
"""What `parformer measure` is told instead of a model."""

JOIN_EXAMPLES = """\
  parformer search join --storage postgresql://me@database/studies
  parformer search join --storage sqlite:runs/gallery/study.db"""


def add_storage(parser: argparse.ArgumentParser, *, required: bool) -> None:
    parser.add_argument(
        "--storage",
        required=required,
        metavar="ADDRESS",
        help="where the study is kept: sqlite:FILE or postgresql://USER:PASSWORD@HOST/DATABASE",
    )
    parser.add_argument("--study", default="pareto", metavar="NAME", help="(default pareto)")


def add_serving(parser: argparse.ArgumentParser) -> None:
    """What belongs to `parformer measure worker` alone."""
    group = parser.add_argument_group("as a worker, which measures for a search elsewhere")
    add_storage(group, required=False)  # type: ignore[arg-type]
    group.add_argument(
        "--idle", metavar="TIME", help="stop after so long without work, such as 10m"
    )


def serve_measuring(arguments: argparse.Namespace) -> None:
    """Measure what searches on other machines ask for."""
    if arguments.storage is None:
        raise ConfigError(
            "a worker needs to know where jobs are; add --storage, the same as the search has"
        )
    from parformer.search.sizes.remote import serve

    idle = float("inf") if arguments.idle is None else read_seconds(arguments.idle)
    console = make_console(stderr=True)

    def say(text: str) -> None:
        console.print(text, soft_wrap=True, markup=False)

    say(f"measuring for the study {arguments.study!r}; stop with Ctrl-C")
    done = serve(arguments.storage, arguments.study, idle=idle, say=say)
    if arguments.json:
        print_json({"jobs": done})
    else:
        say(f"{done} jobs done")


def add_join(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(act=run_join)
    parser.add_argument("--json", action="store_true", help="print JSON for machines")
    add_storage(parser, required=True)


def run_join(arguments: argparse.Namespace) -> None:
    """Propose and evaluate candidates of a study until it is done."""
    from parformer.search.sizes.engine import join_search
    from parformer.search.sizes.study import join_study

    screen = Screen(quiet=arguments.json)
    with screen.bar, join_study(arguments.storage, arguments.study) as study:
        try:
            join_search(study, watch=Watch(screen))
        except KeyboardInterrupt:
            raise Stopped("stopped; the others go on, and what was found is stored") from None
        finished, slots = study.finished(), study.slots
    if arguments.json:
        print_json({"study": arguments.study, "finished": finished, "slots": slots})
    else:
        screen.say(f"{finished:,} of {slots:,} candidates are done")
