"""The command line: one verb, one function.

Nothing here imports torch until a verb needs it, so that help answers at once.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from parformer import __version__
from parformer.config import ModelConfig, preset, preset_table, presets, read_model
from parformer.errors import ConfigError, ParformerError, PatternError
from parformer.fields import check_names, parse_assignment
from parformer.pattern import Pattern, describe, interleaved, par, sandwich

if TYPE_CHECKING:
    from rich.console import Console

DESCRIPTION = """\
Finds where a language model needs attention, and builds the model that does without it
everywhere else. An architecture is a pattern, such as (sfff)x6 (f)x8: s is self-attention,
f is feed-forward.
"""
EXAMPLES = """\
examples:
  parformer show                                      all presets
  parformer show transformer-xl-base par-base         two stacks, drawn
  parformer design --par 32 --p 5                     PAR's rule as a pattern
  parformer cost par-base --tgt-len 64 --mem-len 640  exact parameters, FLOPs, state
  parformer measure transformer-xl-base par-base      both on this machine, side by side
"""


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line and leaves with status 2."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see '{self.prog} --help'\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; the exit status is 0, or 2 for input that we cannot take."""
    arguments = make_parser().parse_args(argv)
    try:
        arguments.run(arguments)
    except ParformerError as error:
        print(f"parformer {arguments.verb}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # whoever read our output has gone; say nothing more
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def make_parser() -> Parser:
    parser = Parser(
        prog="parformer",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"parformer {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True, parser_class=Parser)

    def verb(name: str, run: Any, words: str, examples: str) -> argparse.ArgumentParser:
        added = verbs.add_parser(
            name,
            help=words,
            description=words,
            epilog=f"examples:\n{examples}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        added.add_argument("--json", action="store_true", help="print JSON for machines")
        added.set_defaults(run=run)
        return added

    add_design(
        verb(
            "design",
            run_design,
            "write a pattern by a paper's rule, or in another notation",
            "  parformer design --par 32 --p 5\n"
            "  parformer design --sandwich 32 --k 6\n"
            "  parformer design --from-megatron '*-*-' --as layer-types",
        )
    )
    add_show(
        verb(
            "show",
            run_show,
            "draw presets or patterns and say in words what they are",
            "  parformer show\n"
            "  parformer show par-base '(sf)x16'\n"
            "  parformer show transformer-xl-base par-base --svg stacks.svg\n"
            "  parformer show pocket --toml > mine.toml",
        )
    )
    add_cost(
        verb(
            "cost",
            run_cost,
            "price models exactly without building them",
            "  parformer cost par-base\n"
            "  parformer cost transformer-xl-base par-base\n"
            "  parformer cost par-base --pattern '(sf)x16' --set d_inner=1024 --json\n"
            "  parformer cost mine.toml --tgt-len 1 --mem-len 512 --batch 8",
        )
    )
    add_measure(
        verb(
            "measure",
            run_measure,
            "build models and measure them side by side on this machine",
            "  parformer measure transformer-xl-base par-base\n"
            "  parformer measure pocket llama-pocket --tgt-len 1 --mem-len 128 --threads 1",
        )
    )
    return parser


def add_design(parser: argparse.ArgumentParser) -> None:
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--par", type=int, metavar="BLOCKS", help="PAR's rule; p is --p")
    source.add_argument("--sandwich", type=int, metavar="BLOCKS", help="Sandwich; k is --k")
    source.add_argument("--interleaved", type=int, metavar="BLOCKS", help="attention in turn")
    source.add_argument("--from-megatron", metavar="LETTERS", help="* is attention, - is an MLP")
    source.add_argument(
        "--from-layer-types", metavar="LIST", help="such as full_attention,mlp,full_attention,mlp"
    )
    source.add_argument("--pattern", help="a pattern, to see its canonical form")
    parser.add_argument("--p", type=float, help="one block in P is attention (default 5)")
    parser.add_argument("--k", type=int, help="attention blocks moved to the front (default 6)")
    parser.add_argument(
        "--as",
        dest="notation",
        choices=("pattern", "megatron", "layer-types"),
        default="pattern",
        help="how to write it (default pattern)",
    )


def add_show(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("models", nargs="*", metavar="MODEL", help="preset, pattern or TOML file")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="write the stacks as a picture")
    parser.add_argument("--toml", action="store_true", help="print the configuration as TOML")


def add_model_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("models", nargs="+", metavar="MODEL", help="preset, pattern or TOML file")
    parser.add_argument("--pattern", help="replace the pattern of each model")
    parser.add_argument(
        "--like",
        default="transformer-xl-base",
        metavar="PRESET",
        help="what a bare pattern takes its sizes from (default transformer-xl-base)",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        dest="changes",
        metavar="FIELD=VALUE",
        help="replace a field, such as d_model=256; may be repeated",
    )
    parser.add_argument("--tgt-len", type=int, metavar="N", help="new tokens per step")
    parser.add_argument("--mem-len", type=int, metavar="N", help="remembered tokens before them")
    parser.add_argument("--batch", type=int, default=1, metavar="N", help="texts (default 1)")


def add_cost(parser: argparse.ArgumentParser) -> None:
    add_model_options(parser)
    parser.add_argument("--blocks", action="store_true", help="show every block's price")


def add_measure(parser: argparse.ArgumentParser) -> None:
    add_model_options(parser)
    parser.add_argument("--clamp-len", type=int, metavar="N", help="distances beyond count as N")
    parser.add_argument("--rounds", type=int, default=30, metavar="N", help="(default 30)")
    parser.add_argument("--threads", type=int, metavar="N", help="CPU threads (default: torch's)")
    parser.add_argument(
        "--precision", choices=("fp32", "bf16"), default="fp32", help="(default fp32)"
    )
    parser.add_argument(
        "--packed",
        action="store_true",
        help="lay weights out for this step first: faster with MKL, twice the memory",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="(default 0)")


def run_design(arguments: argparse.Namespace) -> None:
    if arguments.p is not None and arguments.par is None:
        raise PatternError(f"--p {arguments.p:g} belongs to --par; add --par BLOCKS")
    if arguments.k is not None and arguments.sandwich is None:
        raise PatternError(f"--k {arguments.k} belongs to --sandwich; add --sandwich BLOCKS")
    if arguments.par is not None:
        pattern = par(arguments.par, 5 if arguments.p is None else arguments.p)
    elif arguments.sandwich is not None:
        pattern = sandwich(arguments.sandwich, 6 if arguments.k is None else arguments.k)
    elif arguments.interleaved is not None:
        pattern = interleaved(arguments.interleaved)
    elif arguments.from_megatron is not None:
        pattern = Pattern.from_megatron(arguments.from_megatron)
    elif arguments.from_layer_types is not None:
        words = arguments.from_layer_types.split(",")
        pattern = Pattern.from_layer_types([word.strip() for word in words])
    else:
        pattern = Pattern.parse(arguments.pattern)
    notations = {
        "pattern": lambda: str(pattern),
        "megatron": pattern.to_megatron,
        "layer-types": pattern.to_layer_types,
    }
    written = notations[arguments.notation]()
    if arguments.json:
        print_json({"pattern": str(pattern), arguments.notation: written})
    else:
        print(written if isinstance(written, str) else ",".join(written))


def run_show(arguments: argparse.Namespace) -> None:
    if not arguments.models:
        list_presets(arguments)
        return
    if arguments.toml:
        print_toml(arguments.models)
        return
    patterns = {t: read_pattern(name) for t, name in by_title(arguments.models).items()}
    if arguments.svg is not None:
        from parformer.report.stack import to_svg

        write_text(arguments.svg, to_svg(patterns))
    if arguments.json:
        print_json(
            [
                {"name": name, "pattern": str(p), "letters": p.letters, "words": describe(p)}
                for name, p in patterns.items()
            ]
        )
        return
    from rich.text import Text

    from parformer.report.stack import draw, legend

    console = make_console()
    for name, pattern in patterns.items():
        console.print(Text.assemble((name, "bold"), "" if name == str(pattern) else f"  {pattern}"))
        console.print(draw(pattern))
        console.print(Text(describe(pattern)))
        console.print()
    console.print(legend(list(patterns.values())))
    if arguments.svg is not None:
        console.print(Text(f"picture: {arguments.svg}"))


def list_presets(arguments: argparse.Namespace) -> None:
    if arguments.svg is not None or arguments.toml:
        raise ConfigError("--svg and --toml need a MODEL, such as par-base")
    rows = [
        {"name": name, "title": table["title"], "pattern": str(preset(name).pattern)}
        | {"source": table["source"]}
        for name in presets()
        for table in [preset_table(name)]
    ]
    if arguments.json:
        print_json(rows)
        return
    from rich.table import Table

    table = Table("preset", "what it is", "pattern", header_style="bold", box=None)
    for row in rows:
        table.add_row(row["name"], row["title"], row["pattern"])
    make_console().print(table)


def run_cost(arguments: argparse.Namespace) -> None:
    configs = read_configs(arguments)
    from parformer.costs import cost

    lengths = {"tgt_len": arguments.tgt_len, "mem_len": arguments.mem_len}
    costs = {name: cost(c, batch=arguments.batch, **lengths) for name, c in configs.items()}
    if arguments.json:
        rows = [
            {"name": name, "pattern": str(configs[name].pattern)} | price.to_dict()
            for name, price in costs.items()
        ]
        print_json(rows[0] if len(rows) == 1 else rows)
        return
    from rich.text import Text

    from parformer.report.tables import block_table, cost_table, stacks

    console = make_console()
    console.print(stacks(configs))
    console.print()
    console.print(cost_table(costs))
    for name, price in costs.items():
        console.print()
        console.print(Text(name, style="bold"))
        console.print(block_table(price, every=arguments.blocks))


def run_measure(arguments: argparse.Namespace) -> None:
    if arguments.clamp_len is not None:
        arguments.changes.append(f"clamp_len={arguments.clamp_len}")
    configs = read_configs(arguments)
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from parformer.measure.models import measure_models
    from parformer.report.tables import measured_table, stacks, verdict

    screen = make_console(stderr=True)
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TimeRemainingColumn(),
        console=screen,
        transient=True,
        disable=not screen.is_terminal,
    )
    with bar:
        task = bar.add_task("", total=1.0)
        measured = measure_models(
            configs,
            tgt_len=arguments.tgt_len,
            mem_len=arguments.mem_len,
            batch=arguments.batch,
            rounds=arguments.rounds,
            threads=arguments.threads,
            precision=arguments.precision,
            packed=arguments.packed,
            seed=arguments.seed,
            progress=lambda what, share: bar.update(task, description=what, completed=share),
        )
    if arguments.json:
        print_json(measured.to_dict())
        return
    console = make_console()
    console.print(stacks(configs))
    console.print()
    console.print(measured_table(measured))
    for sentence in verdict(measured):
        console.print(sentence)
    console.print(f"Receipt: {measured.latency.receipt.line()}", style="dim", soft_wrap=True)


def read_configs(arguments: argparse.Namespace) -> dict[str, ModelConfig]:
    """The configurations that the command line names, by title."""
    changes = dict(parse_assignment(text) for text in arguments.changes)
    if arguments.pattern is not None:
        changes["pattern"] = arguments.pattern
    if arguments.batch < 1:
        raise ConfigError(f"--batch must be at least 1, got {arguments.batch}")
    configs = {}
    for title, name in by_title(arguments.models).items():
        if is_model_name(name):
            configs[title] = read_model(name, **changes)
        else:
            values = {"pattern": read_pattern(name), **changes}
            configs[title] = read_model(arguments.like, **values)
    return configs


def by_title(models: list[str]) -> dict[str, str]:
    """What the command line names, by the title to show; none may hide another."""
    titles: dict[str, str] = {}
    for name in models:
        title = title_of(name)
        if title in titles:
            raise ConfigError(
                f"{titles[title]!r} and {name!r} would both be called {title!r}; "
                "name each model once, and files differently"
            )
        titles[title] = name
    return titles


def is_model_name(text: str) -> bool:
    return text in presets() or text.endswith(".toml")


def read_pattern(text: str) -> Pattern:
    """The pattern of a preset or a file, or the text itself as one."""
    if is_model_name(text):
        return read_model(text).pattern
    try:
        return Pattern.parse(text)
    except PatternError as error:
        if len(text) > 4 and text.replace("-", "").isalnum():
            check_names([text], presets(), "preset or pattern")
        raise error


def title_of(text: str) -> str:
    if text in presets():
        return str(preset_table(text)["title"])
    return Path(text).stem if text.endswith(".toml") else str(read_pattern(text))


def print_toml(models: list[str]) -> None:
    if len(models) != 1 or not is_model_name(models[0]):
        raise ConfigError("--toml prints one preset or file; give just that one")
    import tomli_w

    print(tomli_w.dumps({"model": read_model(models[0]).to_dict()}), end="")


def write_text(path: Path, text: str) -> None:
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {str(path)!r}: {error.strerror}") from None


def print_json(value: object) -> None:
    print(json.dumps(value, indent=2))


def make_console(*, stderr: bool = False) -> Console:
    from rich.console import Console

    return Console(stderr=stderr, highlight=False)
