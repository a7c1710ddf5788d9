"""The verb `cost`: its flags, and prices in tables."""

from __future__ import annotations

import argparse

from parformer.cli.console import make_console, print_json
from parformer.cli.flags import Flag, add_flags, asked
from parformer.naming import CostRequest

EXAMPLES = """\
  parformer cost par-base
  parformer cost transformer-xl-base par-base
  parformer cost par-base --pattern '(sf)x16' --set d_inner=1024 --json
  parformer cost mine.toml --tgt-len 1 --mem-len 512 --batch 8"""

FLAGS = {
    "models": Flag(name="MODEL"),
    "like": Flag(metavar="PRESET"),
    "changes": Flag(name="--set", metavar="FIELD=VALUE"),
    "tgt_len": Flag(default="the model's"),
    "mem_len": Flag(default="the model's"),
}


def add(parser: argparse.ArgumentParser) -> None:
    add_flags(parser, CostRequest, FLAGS)
    parser.add_argument("--blocks", action="store_true", help="price every block by itself")


def run(arguments: argparse.Namespace) -> None:
    request = asked(arguments, CostRequest)
    configs = request.configs()
    from parformer.costs import cost

    lengths = {"tgt_len": request.tgt_len, "mem_len": request.mem_len}
    costs = {name: cost(c, batch=request.batch, **lengths) for name, c in configs.items()}
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
