"""The verb `proxies`."""

from __future__ import annotations

import argparse
from pathlib import Path

from parformer.cli.console import make_console, print_json, print_lines, write_text
from parformer.cli.flags import Flag, add_flags, asked
from parformer.cli.screen import Screen
from parformer.search.ranking.request import RankingRequest, is_higher_better

EXAMPLES = """\
  parformer proxies trained_models.csv.gz
  parformer proxies trained_models.csv --score snip,synflow --sample 40 --batch 4 --tgt-len 64
  parformer proxies trained_models.csv --truth test_ppl --latency seconds --svg proxies.svg
  parformer proxies hpo_nmt/datasets --truth valid_bleu,valid_ppl --best-over learning_rate"""

FLAGS = {
    "table": Flag(name="TABLE"),
    "proxy": Flag(metavar="NAMES", default="the first two"),
    "score": Flag(metavar="NAMES"),
    "truth": Flag(metavar="COLUMN"),
    "latency": Flag(metavar="COLUMN", default="latency, if there"),
    "experiment": Flag(metavar="NAME"),
    "where": Flag(metavar="COLUMN=VALUE"),
    "best_over": Flag(metavar="COLUMN"),
}


def add(parser: argparse.ArgumentParser) -> None:
    add_flags(parser, RankingRequest, FLAGS)
    parser.add_argument("--svg", type=Path, metavar="FILE", help="write a picture")


def run(arguments: argparse.Namespace) -> None:
    request = asked(arguments, RankingRequest)
    from parformer.report.rankings import ranking_svg, side_by_side, sizes, summary, tops
    from parformer.search.ranking.job import proxies

    screen = Screen()
    with screen.bar:
        result = proxies(request, watch=screen)
    if arguments.svg is not None:
        write_text(arguments.svg, ranking_svg(result.experiments))
    if arguments.json:
        print_json(result.to_dict())
        return
    console = make_console()
    if result.also:
        console.print(side_by_side({result.truth: result.experiments, **result.also}))
        print_lines("SRC: Spearman's rank correlation of good models with high proxies; 1 is best.")
        return
    sized = any(ranking.bins for group in result.experiments.values() for ranking in group.values())
    for experiment, group in result.experiments.items():
        console.print(summary(experiment, group))
        console.print(tops(group))
        if sized:
            console.print(sizes(group))
    turned = "" if is_higher_better(result.truth) else "sign turned; "
    print_lines(
        f"SRC: Spearman's rank correlation with {result.truth}, {turned}1 is best.",
        "CR: common ratio, how many of the truly best models are among the proxy's best.",
        *["Sizes are decoder parameters, a quarter of the models each."] * sized,
    )
