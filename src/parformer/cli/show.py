"""The verb `show`: stacks drawn and told, or a recipe as a file has it."""

from __future__ import annotations

import argparse
from pathlib import Path

from parformer.cli.console import make_console, print_json, print_lines, write_text
from parformer.errors import ConfigError
from parformer.naming import is_model_name, list_presets, show
from parformer.pattern import Pattern
from parformer.recipe import read_recipe

EXAMPLES = """\
  parformer show
  parformer show par-base '(sf)x16'
  parformer show transformer-xl-base par-base --svg stacks.svg
  parformer show pocket --toml > mine.toml
  parformer show first --attention 'def read(self):' --output attention.html"""


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("models", nargs="*", metavar="MODEL", help="preset, pattern or TOML file")
    parser.add_argument(
        "--svg", type=Path, metavar="FILE", help="write the stacks as a picture, too"
    )
    parser.add_argument("--toml", action="store_true", help="print the whole recipe as TOML")
    seen = parser.add_argument_group("what a trained model looks at (MODEL is a run)")
    seen.add_argument("--attention", metavar="TEXT", help="show what attends to what in this text")
    seen.add_argument("--source", metavar="TEXT", help="what its encoder reads, if it has one")
    seen.add_argument("--near", type=int, metavar="N", help="tokens that count as near (default 3)")
    seen.add_argument("--output", type=Path, metavar="FILE", help="write a page of maps, too")


def run(arguments: argparse.Namespace) -> None:
    if arguments.attention is not None:
        show_attention(arguments)
        return
    for name in ("source", "near", "output"):
        if getattr(arguments, name) is not None:
            raise ConfigError(f"--{name} belongs to --attention; give it a TEXT")
    if not arguments.models:
        if arguments.svg is not None or arguments.toml:
            raise ConfigError("--svg and --toml need a MODEL, such as par-base")
        show_presets(json=arguments.json)
    elif arguments.toml:
        print_toml(arguments.models, json=arguments.json)
    else:
        show_models(arguments.models, arguments.svg, json=arguments.json)


def show_models(models: list[str], svg: Path | None, *, json: bool) -> None:
    from rich.text import Text

    from parformer.report.stack import draw, legend, to_svg

    shown = show(*models)
    patterns = {one.name: Pattern.parse(one.pattern) for one in shown}
    if svg is not None:
        write_text(svg, to_svg(patterns))
    if json:
        print_json([one.to_dict() for one in shown])
        return
    console = make_console()
    for one in shown:
        drawn = "" if one.name == one.pattern else f"  {one.pattern}"
        console.print(Text.assemble((one.name, "bold"), drawn))
        console.print(draw(patterns[one.name]))
        console.print(Text(one.words))
        console.print()
    console.print(legend(list(patterns.values())))
    if svg is not None:
        console.print(Text(f"picture: {svg}"))


def show_attention(arguments: argparse.Namespace) -> None:
    """Maps of a trained model's attention, summed up here and drawn on a page."""
    if len(arguments.models) != 1 or arguments.svg is not None or arguments.toml:
        raise ConfigError("--attention is about one run or model folder; name just that one")
    from parformer.evaluate.attention import AttentionRequest, attention

    near = {} if arguments.near is None else {"near": arguments.near}
    source = arguments.source or ""
    found = attention(
        AttentionRequest(
            model=Path(arguments.models[0]), text=arguments.attention, source=source, **near
        ),
        command=arguments.command,
    )
    if arguments.output is not None:
        from parformer.report.attention import attention_page

        write_text(arguments.output, attention_page(found))
    if arguments.json:
        print_json(found.to_dict())
        return
    from parformer.report.attention import attention_table

    console = make_console()
    console.print(attention_table(found))
    if arguments.output is not None:
        print_lines(f"page: {arguments.output}")


def show_presets(*, json: bool) -> None:
    listed = list_presets()
    if json:
        print_json([one.to_dict() for one in listed])
        return
    from rich.table import Column, Table
    from rich.text import Text

    first = Column("preset", no_wrap=True)
    table = Table(first, "what it is", "pattern", header_style="bold", box=None)
    for one in listed:
        table.add_row(one.name, Text(one.title), Text(one.pattern))
    make_console().print(table)


def print_toml(models: list[str], *, json: bool) -> None:
    """A whole recipe; JSON of the same tables where that was asked for."""
    if len(models) != 1 or not is_model_name(models[0]):
        raise ConfigError("--toml prints one preset or file; give just that one")
    tables = read_recipe(models[0]).to_dict()
    if json:
        print_json(tables)
        return
    import tomli_w

    print(tomli_w.dumps(tables), end="")
