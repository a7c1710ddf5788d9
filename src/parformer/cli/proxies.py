"""The verb `proxies`."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parformer.cli.console import make_console, print_json, progress_bar, write_text
from parformer.errors import ConfigError
from parformer.fields import need_at_least

if TYPE_CHECKING:
    from parformer.search.ranking.rankings import Ranking
    from parformer.search.ranking.table import Trained

COLUMNS = {"decoder-parameters": "params_nonembedding", "parameters": "params_total"}
"""Proxies that a table holds already, and their columns in the published one."""
LATENCY = "latency"

EXAMPLES = """\
  parformer proxies trained_models.csv.gz
  parformer proxies trained_models.csv --score snip,synflow --sample 40 --batch 4 --tgt-len 64
  parformer proxies trained_models.csv --truth test_ppl --latency seconds --svg proxies.svg"""


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "table",
        type=Path,
        metavar="TABLE",
        help="CSV of trained models, perhaps gzipped: columns experiment, model, valid_ppl, "
        "params_nonembedding, params_total, cfg_…",
    )
    parser.add_argument(
        "--proxy",
        metavar="NAMES",
        help="decoder-parameters, parameters, or any columns where higher is better, with commas "
        "between (default the first two)",
    )
    parser.add_argument(
        "--score",
        metavar="NAMES",
        help="scores to compute by building every model: grad-norm, snip, grasp, fisher, synflow, "
        "jacob-cov, relu-log-det, and the counts",
    )
    parser.add_argument(
        "--truth",
        default="valid_ppl",
        metavar="COLUMN",
        help="what a good model has little of (default valid_ppl)",
    )
    parser.add_argument(
        "--latency",
        metavar="COLUMN",
        help="for the distance between Pareto fronts (default latency, if there)",
    )
    parser.add_argument("--experiment", metavar="NAME", help="this one alone")
    parser.add_argument(
        "--sample", type=int, default=0, metavar="N", help="so many models of each experiment"
    )
    parser.add_argument("--batch", type=int, default=16, metavar="N", help="texts (default 16)")
    parser.add_argument(
        "--tgt-len", type=int, default=192, metavar="N", help="tokens of each (default 192)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="(default 0)")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="write a picture")


def run(arguments: argparse.Namespace) -> None:
    for name, least in (("batch", 1), ("tgt-len", 1), ("seed", 0), ("sample", 0)):
        need_at_least(f"--{name}", getattr(arguments, name.replace("-", "_")), least)
    columns, names = wanted_proxies(arguments)
    from parformer.search.ranking.rankings import FEWEST
    from parformer.search.ranking.table import by_experiment, read_trained

    models = read_trained(arguments.table)
    if arguments.experiment is not None:
        known = list(dict.fromkeys(model.experiment for model in models))
        if arguments.experiment not in known:
            raise ConfigError(
                f"no experiment {arguments.experiment!r} in {str(arguments.table)!r}; it has "
                f"{', '.join(map(repr, known[:20]))}"
            )
        models = [model for model in models if model.experiment == arguments.experiment]
    groups = by_experiment(models, FEWEST, sample=arguments.sample, seed=arguments.seed)
    computed = compute(arguments, groups, names)
    rankings = {
        experiment: rank(arguments, group, columns, computed[experiment])
        for experiment, group in groups.items()
    }
    costs = {experiment: mean_flops(arguments, groups[experiment], names) for experiment in groups}
    tell(arguments, rankings, costs)


def wanted_proxies(arguments: argparse.Namespace) -> tuple[dict[str, str], list[str]]:
    """Columns by the name of their proxy, and scores that have to be computed."""
    names = split_names("--score", arguments.score)
    if names:
        from parformer.fields import check_names
        from parformer.search.ranking.proxies import PROXIES

        check_names(names, PROXIES, "score")
    asked = split_names("--proxy", arguments.proxy) or [n for n in COLUMNS if n not in names]
    both = next((name for name in asked if name in names), None)
    if both is not None:
        raise ConfigError(f"{both!r} is in --proxy and in --score; leave it out of one of them")
    return {name: COLUMNS.get(name, name) for name in asked}, names


def split_names(option: str, text: str | None) -> list[str]:
    if text is None:
        return []
    names = [name.strip() for name in text.split(",")]
    if not all(names) or len(set(names)) < len(names):
        raise ConfigError(f"{option} takes different names with commas between, got {text!r}")
    return names


def compute(
    arguments: argparse.Namespace, groups: Mapping[str, Sequence[Trained]], names: list[str]
) -> dict[str, dict[str, list[float]]]:
    """Scores of every model, by experiment."""
    if not names:
        return {experiment: {} for experiment in groups}
    from parformer.search.ranking.table import score_trained

    total = sum(map(len, groups.values()))
    found = {}
    with progress_bar() as bar:
        task = bar.add_task("building models", total=total)
        for experiment, group in groups.items():
            found[experiment] = score_trained(
                group,
                names,
                batch=arguments.batch,
                tgt_len=arguments.tgt_len,
                seed=arguments.seed,
                progress=lambda name: bar.update(task, advance=1, description=f"scored {name}"),
            )
    return found


def rank(
    arguments: argparse.Namespace,
    group: Sequence[Trained],
    columns: Mapping[str, str],
    computed: Mapping[str, list[float]],
) -> dict[str, Ranking]:
    from parformer.search.ranking.rankings import rank_proxy
    from parformer.search.ranking.table import numbers

    truth = numbers(group, arguments.truth)
    scores = {name: numbers(group, column) for name, column in columns.items()} | dict(computed)
    sizes = scores.get("decoder-parameters")
    if sizes is None and COLUMNS["decoder-parameters"] in group[0].values:
        sizes = numbers(group, COLUMNS["decoder-parameters"])
    latency = None
    if arguments.latency is not None or LATENCY in group[0].values:
        latency = numbers(group, arguments.latency or LATENCY)
    return {
        name: rank_proxy(truth, values, size=sizes, latency=latency, seed=arguments.seed)
        for name, values in scores.items()
    }


def mean_flops(
    arguments: argparse.Namespace, group: Sequence[Trained], names: list[str]
) -> dict[str, float | None]:
    """What a score takes for one model on average; a count is there already."""
    costs: dict[str, float | None] = dict.fromkeys(COLUMNS, 0.0)
    if not names:
        return costs
    from parformer.blocks.base import Shape
    from parformer.search.ranking.proxies import proxy_flops
    from parformer.search.ranking.table import config_of

    shape = Shape(arguments.batch, arguments.tgt_len, 0, 0)
    configs = [config_of(model) for model in group]
    for name in names:
        costs[name] = sum(proxy_flops(name, config, shape) for config in configs) / len(configs)
    return costs


def tell(
    arguments: argparse.Namespace,
    rankings: Mapping[str, Mapping[str, Ranking]],
    costs: Mapping[str, Mapping[str, float | None]],
) -> None:
    from parformer.report.rankings import ranking_svg, sizes, summary, tops

    if arguments.svg is not None:
        write_text(arguments.svg, ranking_svg(rankings))
    if arguments.json:
        found = {
            experiment: {
                name: plain(ranking) | {"flops": costs[experiment].get(name)}
                for name, ranking in group.items()
            }
            for experiment, group in rankings.items()
        }
        print_json({"table": str(arguments.table), "truth": arguments.truth, "experiments": found})
        return
    console = make_console()
    sized = any(ranking.bins for group in rankings.values() for ranking in group.values())
    for experiment, group in rankings.items():
        console.print(summary(experiment, group, costs[experiment]))
        console.print(tops(group))
        if sized:
            console.print(sizes(group))
    for line in (
        f"SRC: Spearman's rank correlation with {arguments.truth}, sign turned; 1 is best.",
        "CR: common ratio, how many of the truly best models are among the proxy's best.",
        *["Sizes are decoder parameters, a quarter of the models each."] * sized,
    ):
        console.print(line, soft_wrap=True, markup=False)


def plain(ranking: Ranking) -> dict[str, Any]:
    """Ready for JSON, which knows no nan."""
    shares = {"top": ranking.top, "common": ranking.common}
    return {
        "models": ranking.models,
        "spearman": number_or_none(ranking.spearman),
        "interval": [number_or_none(value) for value in ranking.interval],
        **{
            kind: {f"{share:g}": number_or_none(value) for share, value in values.items()}
            for kind, values in shares.items()
        },
        "bins": [
            {
                "low": part.low,
                "high": part.high,
                "models": part.models,
                "spearman": number_or_none(part.spearman),
            }
            for part in ranking.bins
        ],
        "front_distance": ranking.distance,
    }


def number_or_none(value: float) -> float | None:
    return None if math.isnan(value) else value
