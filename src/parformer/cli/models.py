"""The verbs about models as such: design, show, cost, measure."""

from __future__ import annotations

import argparse
from pathlib import Path

from parformer.cli.console import make_console, print_json, progress_bar, write_text
from parformer.cli.workers import WORKER, add_serving, serve_measuring
from parformer.config import ModelConfig, preset, preset_table, presets, read_model
from parformer.errors import ConfigError, PatternError
from parformer.fields import check_names, parse_assignment
from parformer.pattern import Pattern, describe, interleaved, par, sandwich
from parformer.recipe import read_recipe


def add_design(parser: argparse.ArgumentParser) -> None:
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--par", type=int, metavar="BLOCKS", help="PAR's rule; see --p")
    source.add_argument("--sandwich", type=int, metavar="BLOCKS", help="Sandwich; see --k")
    source.add_argument(
        "--interleaved", type=int, metavar="BLOCKS", help="attention and feed-forward in turn"
    )
    source.add_argument(
        "--from-megatron", metavar="LETTERS", help="such as *-*-: * is attention, - a feed-forward"
    )
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
    parser.add_argument(
        "--svg", type=Path, metavar="FILE", help="write the stacks as a picture, too"
    )
    parser.add_argument("--toml", action="store_true", help="print the whole recipe as TOML")


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
    parser.add_argument(
        "--tgt-len", type=int, metavar="N", help="new tokens per step (default: the model's)"
    )
    parser.add_argument(
        "--mem-len",
        type=int,
        metavar="N",
        help="remembered tokens before them (default: the model's)",
    )
    parser.add_argument(
        "--batch", type=int, default=1, metavar="N", help="texts at once (default 1)"
    )


def add_cost(parser: argparse.ArgumentParser) -> None:
    add_model_options(parser)
    parser.add_argument("--blocks", action="store_true", help="price every block by itself")


def add_measure(parser: argparse.ArgumentParser) -> None:
    add_model_options(parser)
    parser.add_argument("--clamp-len", type=int, metavar="N", help="distances beyond count as N")
    parser.add_argument(
        "--rounds", type=int, default=30, metavar="N", help="to time each model in (default 30)"
    )
    parser.add_argument("--threads", type=int, metavar="N", help="CPU threads (default: torch's)")
    parser.add_argument(
        "--precision",
        choices=("fp32", "bf16"),
        default="fp32",
        help="of all numbers (default fp32)",
    )
    parser.add_argument(
        "--packed",
        action="store_true",
        help="lay weights out for this step first: faster with MKL, twice the memory",
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="of weights and tokens (default 0)"
    )
    add_serving(parser)


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
    if arguments.models == [WORKER]:
        serve_measuring(arguments)
        return
    if arguments.storage is not None:
        raise ConfigError("--storage belongs to a worker: parformer measure worker --storage …")
    if arguments.clamp_len is not None:
        arguments.changes.append(f"clamp_len={arguments.clamp_len}")
    configs = read_configs(arguments)
    from parformer.measure.models import measure_models
    from parformer.report.tables import measured_table, stacks, verdict

    with progress_bar() as bar:
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

    print(tomli_w.dumps(read_recipe(models[0]).to_dict()), end="")
