"""The verb `search`: which block belongs where, and in which sizes?"""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parformer.cli.console import add_device, make_console, print_json
from parformer.cli.pareto import EXAMPLES as PARETO_EXAMPLES
from parformer.cli.pareto import add_pareto
from parformer.cli.screen import Screen
from parformer.cli.train import add_set, add_text, read_changes, read_seconds, run_name
from parformer.cli.workers import JOIN_EXAMPLES, add_join
from parformer.errors import Stopped
from parformer.events import Watch
from parformer.recipe import Recipe, read_recipe

if TYPE_CHECKING:
    from parformer.search.placement.job import Searched

DEFAULT = "pocket-search"
REPORT = "report.html"


def add(parser: argparse.ArgumentParser) -> None:
    ways = parser.add_subparsers(
        dest="way", metavar="WAY", required=True, parser_class=type(parser)
    )
    add_differentiable(
        ways.add_parser(
            "differentiable",
            help="train one supernet, and see which block each layer settles on (PAR)",
            description="Train a supernet whose every layer mixes its choices of blocks, and see "
            "which one each layer settles on, as PAR Transformer does (Mandava et al. 2020). "
            "Writes search.json and report.html. The same command on the same run goes on "
            "where it stopped.",
            epilog=f"examples:\n{DIFFERENTIABLE_EXAMPLES}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
    )
    add_pareto(
        ways.add_parser(
            "pareto",
            help="every size worth having between the fastest and the best on this device (LTS)",
            description="Find every architecture worth having between the fastest and the best on "
            "this device, without training any, as LiteTransformerSearch does (Javaheripi et al. "
            "2022). Block costs are measured once per device, the front is measured for real. "
            "Writes pareto.json and report.html. The same command on the same run goes on where "
            "it stopped.",
            epilog=f"examples:\n{PARETO_EXAMPLES}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
    )
    add_join(
        ways.add_parser(
            "join",
            help="help with a Pareto search that was begun elsewhere, on its storage",
            description="Work on a Pareto search that somebody began on a shared storage, until it "
            "is done. Any number of processes and machines may.",
            epilog=f"examples:\n{JOIN_EXAMPLES}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
    )


DIFFERENTIABLE_EXAMPLES = """\
  parformer search differentiable --corpus python-source --run where
  parformer search differentiable --corpus 'notes/*.txt' --layers 12 --choices sfi --seeds 3
  parformer search differentiable --time 4m --limit latency=0.7x --retrain
  parformer search differentiable par-search --from ~/wikitext-103 --seeds 6"""
EXAMPLES = """\
  parformer search differentiable --corpus python-source --run where
  parformer search differentiable --time 4m --limit latency=0.7x --retrain
  parformer search pareto --limit latency=5ms --run gallery
  parformer search join --storage postgresql://me@database/studies"""


def add_differentiable(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON for machines")
    parser.add_argument(
        "model",
        nargs="?",
        metavar="RECIPE",
        help=f"preset or TOML file whose sizes, text and training are used (default {DEFAULT})",
    )
    add_text(parser)
    parser.add_argument(
        "--layers", type=int, metavar="N", help="layers to fill (default: the recipe's)"
    )
    parser.add_argument(
        "--choices",
        metavar="BLOCKS",
        help="blocks that every layer may choose from: s attention, f feed-forward, i nothing; "
        "with options, such as 's[heads=2]s[heads=8]fi' (default sfi)",
    )
    parser.add_argument(
        "--mode",
        choices=("soft", "sampled"),
        help="run all choices mixed, as the paper, or only a drawn one: cheaper, but biased "
        "(default soft)",
    )
    parser.add_argument("--seeds", type=int, metavar="N", help="independent searches (default 1)")
    length = parser.add_mutually_exclusive_group()
    length.add_argument(
        "--steps", type=int, metavar="N", help="updates of each search (default: the recipe's)"
    )
    length.add_argument(
        "--time", metavar="TIME", help="for all searches together, such as 90s or 4m"
    )
    cost = parser.add_mutually_exclusive_group()
    cost.add_argument(
        "--penalty",
        metavar="METRIC=NUMBER",
        help="what a cost of one interleaved model adds to the loss: flops=0.1; the metrics are "
        "flops, parameters, state and latency, which is measured here",
    )
    cost.add_argument(
        "--limit",
        metavar="METRIC=SHAREx",
        help="what the pattern may cost of the interleaved model: latency=0.7x is 30%% faster",
    )
    parser.add_argument(
        "--retrain",
        action="store_true",
        help="then train the found pattern and its rivals from scratch, with as many updates",
    )
    parser.add_argument("--seed", type=int, metavar="N", help="the first seed (default 0)")
    parser.add_argument(
        "--run", type=Path, metavar="FOLDER", help="(default runs/search-RECIPE-CORPUS)"
    )
    parser.add_argument("--precision", choices=("auto", "fp32", "bf16"), help="(default auto)")
    add_device(parser)
    add_set(parser, "[model], [data], [train] or [search]")


def run(arguments: argparse.Namespace) -> None:
    changes = read_changes(
        arguments,
        {
            "data.corpus": arguments.corpus,
            "data.local": arguments.local,
            "data.tokenizer": arguments.tokenizer,
            "train.steps": arguments.steps,
            "train.time": None if arguments.time is None else read_seconds(arguments.time),
            "train.seed": arguments.seed,
            "train.precision": arguments.precision,
            "search.layers": arguments.layers,
            "search.choices": arguments.choices,
            "search.mode": arguments.mode,
            "search.seeds": arguments.seeds,
            "search.penalty": arguments.penalty,
            "search.limit": arguments.limit,
        },
    )
    if arguments.penalty:
        changes.setdefault("search.limit", "")
    if arguments.limit:
        changes.setdefault("search.penalty", "")
    from parformer.train.run import is_run, read_run

    goes_on = arguments.run is not None and arguments.model is None and is_run(arguments.run)
    if goes_on:
        asked = read_run(arguments.run).replaced(changes)
    else:
        asked = read_recipe(arguments.model or DEFAULT, changes)
    path = arguments.run or Path("runs") / search_name(arguments.model or DEFAULT, asked)
    search_and_tell(arguments, asked, path, changes)


def search_and_tell(
    arguments: argparse.Namespace, asked: Recipe, path: Path, changes: dict[str, Any]
) -> None:
    from parformer.search.placement.job import search_differentiable
    from parformer.train.distributed import workers_from

    with workers_from(device=arguments.device) as workers:
        screen = Screen(quiet=not workers.first, doing="searching")
        with screen.bar:
            searched = search_differentiable(
                asked,
                path,
                chosen=changes,
                retrain=arguments.retrain,
                command=arguments.command,
                workers=workers,
                watch=Watch(screen),
            )
        if not workers.first:
            return
        if searched.finished:
            write_report(searched, path)
        if arguments.json:
            print_json(
                {"run": str(path), "finished": searched.finished}
                | ({} if searched.finished else {"step": searched.step})
                | {name: value for name, value in searched.found.items() if name != "seeds"}
                | {"patterns": [seed["pattern"] for seed in searched.found.get("seeds", ())]}
            )
        elif searched.finished:
            farewell(searched, path, arguments.model or DEFAULT)
    if not searched.finished:
        raise Stopped(
            f"stopped in {searched.where} after step {searched.step:,}, everything is saved; go "
            f"on with: parformer search differentiable --run {shlex.quote(str(path))}"
            + (" --retrain" if arguments.retrain else "")
        )


def write_report(searched: Searched, path: Path) -> None:
    from parformer.report.search import search_page
    from parformer.store.files import replace_file

    replace_file(path / REPORT, search_page(searched.found))


def farewell(searched: Searched, path: Path, model: str) -> None:
    from parformer.report.search import found_table

    console = make_console()
    console.print(found_table(searched.found))
    named = (model, searched.found["corpus"], searched.found["pattern"])
    model, corpus, pattern = map(shlex.quote, named)
    for line in (
        f"report: {path / REPORT}",
        f"train:  parformer train {model} --corpus {corpus} --pattern {pattern}",
    ):
        console.print(line, soft_wrap=True, markup=False)


def search_name(model: str, recipe: Recipe) -> str:
    """Where a search goes when nobody says; not where a training of the same recipe would go."""
    name = run_name(model, recipe)
    return name if model == DEFAULT else f"search-{name}"
