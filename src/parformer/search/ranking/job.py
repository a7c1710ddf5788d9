"""From a table of trained models to how well cheap scores rank them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from parformer.errors import ConfigError
from parformer.events import Listener, Watch, nobody
from parformer.fields import check_names
from parformer.notation import shown
from parformer.records import Record
from parformer.search.ranking.rankings import FEWEST, Ranking, rank_proxy
from parformer.search.ranking.request import COLUMNS, RankingRequest, is_higher_better
from parformer.search.ranking.table import (
    Trained,
    best_over,
    by_experiment,
    config_of,
    numbers,
    read_trained,
    score_trained,
)
from parformer.search.ranking.translators import read_translators
from parformer.verbs import requested

LATENCY = "latency"


@dataclass(frozen=True, kw_only=True)
class RankingResult(Record):
    """How well each proxy ranks the models of each experiment."""

    table: Path
    truth: str
    skipped: int = 0
    """Models that were left out, as a column has nothing for them."""
    experiments: Mapping[str, Mapping[str, Ranking]]
    """By experiment, then by proxy."""
    also: Mapping[str, Mapping[str, Mapping[str, Ranking]]] = field(default_factory=dict)
    """The same by every further truth."""


def proxies(
    request: RankingRequest | None = None, *, watch: Listener = nobody, **fields: Any
) -> RankingResult:
    """Rank a table's models by cheap scores and by the truth; takes a request or its fields."""
    request = requested(RankingRequest, request, fields)
    tell, table = Watch(watch), Path(request.table)
    given = read_translators(table) if table.is_dir() else read_trained(table)
    read = chosen(of_experiment(given, request), request)
    truth, *others = request.truths
    asked = [
        *request.truths,
        *request.columns.values(),
        *([request.latency] * bool(request.latency)),
    ]
    models = [model for model in read if all(model.value(name).strip() for name in asked)]
    skipped = len(read) - len(models)
    if skipped:
        tell.notice(f"{skipped:,} of {skipped + len(models):,} models have a gap and are left out.")

    def judged(column: str) -> dict[str, dict[str, Ranking]]:
        kept, higher = models, is_higher_better(column)
        if request.best_over:
            kept = best_over(models, request.best_over, column, higher=higher)
        groups = by_experiment(kept, FEWEST, sample=request.sample, seed=request.seed)
        computed = compute(request, groups, tell)
        return {
            name: rank_group(request, column, group, computed.get(name, {}))
            for name, group in groups.items()
        }

    return RankingResult(
        table=table,
        truth=truth,
        skipped=skipped,
        experiments=judged(truth),
        also={name: judged(name) for name in others},
    )


def chosen(models: Sequence[Trained], request: RankingRequest) -> Sequence[Trained]:
    """The models that have what was asked for in some columns."""
    for condition in request.where:
        column, _, wanted = condition.partition("=")
        known = list(dict.fromkeys(model.value(column) for model in models))
        models = [model for model in models if same(model.value(column), wanted)]
        if not models:
            raise ConfigError(
                f"no model in {str(request.table)!r} has {condition}; {column} is "
                f"{', '.join(map(shown, known[:20]))}"
            )
    return models


def same(one: str, other: str) -> bool:
    """Whether two values are the same word or number.

    >>> same("30000.0", "30000"), same("3e-4", "0.0003"), same("a", "b")
    (True, True, False)
    """
    try:
        return float(one) == float(other)
    except ValueError:
        return one == other


def compute(
    request: RankingRequest, groups: Mapping[str, Sequence[Trained]], watch: Watch
) -> dict[str, dict[str, list[float]]]:
    """Scores of every model, by experiment; without any, nothing is built."""
    if not request.scores:
        return {}
    from parformer.search.ranking.proxies import PROXIES

    check_names(request.scores, PROXIES, "score")
    total, done = sum(map(len, groups.values())), 0

    def scored(name: str) -> None:
        nonlocal done
        done += 1
        watch.preparing(f"scored {name}", done / total)

    return {
        experiment: score_trained(
            group,
            request.scores,
            batch=request.batch,
            tgt_len=request.tgt_len,
            seed=request.seed,
            progress=scored,
        )
        for experiment, group in groups.items()
    }


def of_experiment(models: Sequence[Trained], request: RankingRequest) -> Sequence[Trained]:
    if not request.experiment:
        return models
    known = list(dict.fromkeys(model.experiment for model in models))
    if request.experiment not in known:
        raise ConfigError(
            f"no experiment {request.experiment!r} in {str(request.table)!r}; it has "
            f"{', '.join(map(repr, known[:20]))}"
        )
    return [model for model in models if model.experiment == request.experiment]


def rank_group(
    request: RankingRequest,
    column: str,
    group: Sequence[Trained],
    computed: Mapping[str, Sequence[float]],
) -> dict[str, Ranking]:
    """Every proxy's ranking of one experiment's models, beside what a column says of them."""
    higher = is_higher_better(column)
    truth = [-value if higher else value for value in numbers(group, column)]
    scores: dict[str, Sequence[float]] = {
        name: numbers(group, column) for name, column in request.columns.items()
    }
    scores |= computed
    sizes = scores.get("decoder-parameters")
    if sizes is None and COLUMNS["decoder-parameters"] in group[0].values:
        sizes = numbers(group, COLUMNS["decoder-parameters"])
    latency = None
    if not higher and (request.latency or LATENCY in group[0].values):
        latency = numbers(group, request.latency or LATENCY)
    flops = mean_flops(request, group)
    return {
        name: replace(
            rank_proxy(truth, values, size=sizes, latency=latency, seed=request.seed),
            flops=flops.get(name),
        )
        for name, values in scores.items()
    }


def mean_flops(request: RankingRequest, group: Sequence[Trained]) -> dict[str, float]:
    """What a score takes for one model on average; a count is there already."""
    costs = dict.fromkeys(COLUMNS, 0.0)
    if not request.scores:
        return costs
    from parformer.blocks.base import Shape
    from parformer.search.ranking.proxies import proxy_flops

    shape = Shape(request.batch, request.tgt_len, 0, 0)
    configs = [config_of(model) for model in group]
    for name in request.scores:
        costs[name] = sum(proxy_flops(name, config, shape) for config in configs) / len(configs)
    return costs
