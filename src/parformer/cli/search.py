"""The verb `search`: which block belongs where, and in which sizes?"""

from __future__ import annotations

import argparse
import shlex
from typing import TYPE_CHECKING

from parformer.cli.console import make_console, print_json, print_lines
from parformer.cli.flags import Flag, add_flags, asked
from parformer.cli.screen import Screen
from parformer.cli.workers import JOIN_EXAMPLES, add_join
from parformer.fields import read_seconds
from parformer.search.placement.request import DEFAULT, PlacementRequest
from parformer.search.sizes.request import SizesRequest

if TYPE_CHECKING:
    from parformer.search.sizes.ranges import Range
    from parformer.search.sizes.space import Unit

EXAMPLES = """\
  parformer search placement --corpus python-source --run where
  parformer search placement --time 4m --limit latency=0.7x --retrain
  parformer search sizes --limit latency=5ms --run gallery
  parformer search join --storage postgresql://me@database/studies"""

PLACEMENT_EXAMPLES = """\
  parformer search placement --corpus python-source --run where
  parformer search placement --corpus 'notes/*.txt' --layers 12 --choices sfi --seeds 3
  parformer search placement --time 4m --limit latency=0.7x --retrain
  parformer search placement --by trials --choices rsfni --time 5m
  parformer search placement lite-pocket-translation --by trials --corpus pairs/ --pair de-en
  parformer search placement transformer-pocket-translation --corpus pairs/ --pair de-en
  parformer search placement par-search --from ~/wikitext-103 --seeds 6"""

SIZES_EXAMPLES = """\
  parformer search sizes --run gallery
  parformer search sizes lts-as-run --like lts-gpt2 --limit latency=50ms
  parformer search sizes mine.toml --objectives quality,latency --iterations 10
  parformer search sizes pocket-mixed --proxy short-training --corpus notes.txt --workers 2
  parformer search sizes translation --limit latency=40ms --beam 5 --population 20
  parformer search sizes --spaces"""

PLACEMENT_FLAGS = {
    "recipe": Flag(name="RECIPE", default=DEFAULT),
    "corpus": Flag(metavar="NAME|PATH", default="the recipe's"),
    "local": Flag(name="--from", metavar="PATH"),
    "tokenizer": Flag(metavar="KIND", default="the recipe's"),
    "pair": Flag(metavar="NAMES"),
    "layers": Flag(default="the recipe's"),
    "encoder_layers": Flag(default="the recipe's"),
    "choices": Flag(metavar="BLOCKS", default="sfi"),
    "by": Flag(default="supernet"),
    "mode": Flag(default="soft"),
    "seeds": Flag(default="1"),
    "steps": Flag(default="the recipe's"),
    "time": Flag(read=read_seconds, metavar="TIME", default="steps instead; such as 90s or 4m"),
    "penalty": Flag(metavar="METRIC=NUMBER"),
    "limit": Flag(metavar="METRIC=SHAREx"),
    "seed": Flag(default="0"),
    "run": Flag(metavar="FOLDER", default="runs/search-RECIPE-CORPUS"),
    "precision": Flag(default="auto"),
    "device": Flag(metavar="NAME"),
    "changes": Flag(name="--set", metavar="SECTION.FIELD=VALUE"),
    "command": Flag(hidden=True),
}

QUALITY, MEASURED, ENGINE = "quality", "what is measured", "the search"
SIZES_FLAGS = {
    "space": Flag(name="SPACE"),
    "like": Flag(metavar="MODEL"),
    "objectives": Flag(metavar="NAMES"),
    "limits": Flag(name="--limit", metavar="METRIC=AMOUNT"),
    "proxy": Flag(metavar="NAME", group=QUALITY),
    "corpus": Flag(metavar="NAME|PATH", group=QUALITY),
    "pair": Flag(metavar="NAMES", group=QUALITY),
    "steps": Flag(group=QUALITY),
    "share": Flag(metavar="SHARE", group=QUALITY),
    "tgt_len": Flag(group=MEASURED, default="the model's"),
    "mem_len": Flag(group=MEASURED, default="the model's"),
    **{name: Flag(group=MEASURED)
       for name in ("source_len", "beam", "batch", "threads", "precision", "latency_by",
                    "measure_on", "again")},
    **{name: Flag(group=ENGINE)
       for name in ("sampler", "population", "iterations", "workers")},
    "seed": Flag(group=ENGINE, default="0"),
    "run": Flag(metavar="FOLDER", group=ENGINE, default="runs/pareto-SPACE-MODEL"),
    "storage": Flag(metavar="ADDRESS", group=ENGINE, default="in the run folder"),
    "study": Flag(metavar="NAME", group=ENGINE),
    "command": Flag(hidden=True),
}  # fmt: skip


def add(parser: argparse.ArgumentParser) -> None:
    ways = parser.add_subparsers(
        dest="way", metavar="WAY", required=True, parser_class=type(parser)
    )

    def way(name: str, words: str, more: str, examples: str, *also: str) -> argparse.ArgumentParser:
        return ways.add_parser(
            name,
            aliases=also,
            help=words,
            description=more,
            epilog=f"examples:\n{examples}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    placement = way(
        "placement",
        "which block each layer needs: by one supernet (PAR), or by many short trainings",
        "Train a supernet whose every layer mixes its choices of blocks, and see which one each "
        "layer settles on, as PAR Transformer does (Mandava et al. 2020); or with --by trials "
        "train many patterns a little and the better half on. Writes search.json or trials.json, "
        "and report.html. The same command on the same run goes on where it stopped.",
        PLACEMENT_EXAMPLES,
        "differentiable",
    )
    placement.set_defaults(act=run_placement)
    placement.add_argument("--json", action="store_true", help="print JSON for machines")
    add_flags(placement, PlacementRequest, PLACEMENT_FLAGS)
    sizes = way(
        "sizes",
        "every size worth having between the fastest and the best on this device (LTS)",
        "Find every architecture worth having between the fastest and the best on this device, "
        "without training any, as LiteTransformerSearch does (Javaheripi et al. 2022). Block "
        "costs are measured once per device, the front is measured for real. Writes pareto.json "
        "and report.html. The same command on the same run goes on where it stopped.",
        SIZES_EXAMPLES,
        "pareto",
    )
    sizes.set_defaults(act=run_sizes)
    sizes.add_argument("--json", action="store_true", help="print JSON for machines")
    sizes.add_argument("--spaces", action="store_true", help="list the spaces and what they hold")
    add_flags(sizes, SizesRequest, SIZES_FLAGS)
    add_join(
        way(
            "join",
            "help with a search for sizes that was begun elsewhere, on its storage",
            "Work on a search for sizes that somebody began on a shared storage, until it is done. "
            "Any number of processes and machines may.",
            JOIN_EXAMPLES,
        )
    )


def run(arguments: argparse.Namespace) -> None:
    """Every way has its own."""
    raise AssertionError(arguments.way)


def run_placement(arguments: argparse.Namespace) -> None:
    request = asked(arguments, PlacementRequest)
    from parformer.report.trials import trials_table
    from parformer.search.placement.job import REPORT, StoppedSearch, search_placement
    from parformer.search.trials.result import TrialsResult

    path = request.folder(request.asked())
    screen = Screen(doing="searching")
    try:
        with screen.bar:
            result = search_placement(request, watch=screen)
    except StoppedSearch as stopped:
        if arguments.json:
            print_json({"run": str(path), "finished": False, "step": stopped.step, "patterns": []})
        raise
    if result is None:  # not the first process of torchrun
        return
    model, corpus = map(shlex.quote, (request.recipe or DEFAULT, result.corpus))
    pair = request.asked().data.pair
    again = f"train:  parformer train {model} --corpus {corpus}{f' --pair {pair}' * bool(pair)} "
    again += "--pattern "
    again += shlex.quote(str(result.pattern))
    if isinstance(result, TrialsResult):
        if arguments.json:
            print_json({"run": str(path), "finished": True, **result.to_dict()})
            return
        make_console().print(trials_table(result))
        print_lines(result.verdict(), f"report: {path / REPORT}", again)
        return
    if arguments.json:
        values = result.to_dict()
        patterns = [seed["pattern"] for seed in values.pop("seeds")]
        print_json({"run": str(path), "finished": True, **values, "patterns": patterns})
        return
    from parformer.report.search import found_table

    make_console().print(found_table(result))
    print_lines(f"report: {path / REPORT}", again)


def run_sizes(arguments: argparse.Namespace) -> None:
    if arguments.spaces:
        list_spaces(arguments)
        return
    request = asked(arguments, SizesRequest)
    from parformer.search.sizes.job import REPORT, search_sizes

    screen = Screen()
    with screen.bar:
        result = search_sizes(request, watch=screen)
    path = request.folder(request.wanted())
    if arguments.json:
        values = result.to_dict()
        del values["visited"]
        print_json({"run": str(path), **values})
        return
    from parformer.report.pareto import front_table, verdict

    make_console().print(front_table(result))
    print_lines(
        verdict(result),
        f"report: {path / REPORT}",
        f"pick:   parformer pick {shlex.quote(str(path))} --limit …",
    )


def side_words(unit: Unit, layers: Range, alike: bool) -> tuple[str, str]:
    """How many layers a stack may have, and what one of them holds."""
    blocks = "\n".join(" | ".join(map(str, slot)) for slot in unit)
    return layers.text + (", all alike" if alike else ""), blocks


def list_spaces(arguments: argparse.Namespace) -> None:
    from parformer.search.sizes.files import space_names
    from parformer.search.sizes.space import read_space

    spaces = [read_space(name) for name in space_names()]
    if arguments.json:
        print_json([space.to_dict() | {"size": float(space.size)} for space in spaces])
        return
    from rich.table import Table

    table = Table(header_style="bold", show_lines=True)
    for head in ("space", "like", "layers", "one layer", "fields", "architectures"):
        table.add_column(head)
    for space in spaces:
        table.add_row(
            f"{space.name}\n{space.title}",
            space.recipe,
            *(
                "\nencoder\n".join(words)
                for words in zip(
                    *(side_words(*side, space.alike) for side in space.sides), strict=True
                )
            ),
            "\n".join(f"{name} {values.text}" for name, values in space.fields),
            f"{space.size:.1e}",
        )
    make_console().print(table, markup=False)
