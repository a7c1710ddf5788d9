"""LiteTransformerSearch's figures about ranking trained models, from a table of them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from random import Random

import numpy as np

from parformer.costs import cost
from parformer.errors import ConfigError
from parformer.reproduce.study import Found, Ours
from parformer.reproduce.trainings import SHORT, pocket, train_pocket
from parformer.reproduce.workbench import Workbench, study
from parformer.search.ranking.proxies import PROXIES
from parformer.search.ranking.rankings import (
    Ranking,
    bootstrap_interval,
    common_ratio,
    front_distance,
    rank_proxy,
    spearman,
)
from parformer.search.ranking.table import Trained, config_of, numbers, score_trained
from parformer.search.sizes.space import read_space

TRUTH, DECODER, TOTAL = "valid_ppl", "params_nonembedding", "params_total"
SCORED = 20
"""Models that low-cost proxies are computed for."""
MEASURED = 24
"""Models whose latency is measured."""
TEXTS, LENGTH = 2, 32
"""What a low-cost proxy looks at."""
DRAWS = 500
"""Resamples of the bootstrap that says how sure a distance is."""
DRAWN = 12
"""Models that are trained to the end to see how early their order shows."""


def family(bench: Workbench, name: str) -> list[Trained]:
    """The table's models of one backbone."""
    for group in bench.groups().values():
        if config_of(group[0]).family == name:
            return group
    raise ConfigError(f"{str(bench.models)!r} has no {name} models; this takes some")


def ranking(models: list[Trained], column: str = DECODER) -> Ranking:
    sizes = numbers(models, DECODER)
    return rank_proxy(numbers(models, TRUTH), numbers(models, column), size=sizes)


def source(models: list[Trained]) -> str:
    return f"from the table given: {len(models)} trained models of {models[0].experiment}"


def correlation(models: list[Trained], column: str = DECODER) -> Ours:
    found = ranking(models, column)
    return Ours(found.spearman, source(models), found.interval)


def correlated(truth: Sequence[float], scores: Sequence[float], how: str) -> Ours:
    return Ours(spearman(truth, scores), how, bootstrap_interval(truth, scores))


@study("lts-table-1")
def table_1(bench: Workbench) -> Found:
    return {"src-parameters": correlation(family(bench, "transformer-xl"))}


@study("lts-figure-3")
def figure_3(bench: Workbench) -> Found:
    return {f"src-{name}": correlation(family(bench, name)) for name in ("transformer-xl", "gpt2")}


@study("lts-figure-6")
def figure_6(bench: Workbench) -> Found:
    found: dict[str, Ours] = {}
    for name in ("transformer-xl", "gpt2"):
        models = family(bench, name)
        ranks, how = ranking(models), source(models)
        found[f"{name}-decoder"] = correlation(models)
        found[f"{name}-total"] = correlation(models, TOTAL)
        found[f"{name}-cr-10"] = Ours(100 * ranks.common[0.1], how)
        found[f"{name}-cr-50"] = Ours(100 * ranks.common[0.5], how)
        found[f"{name}-top-10"] = Ours(ranks.top[0.1], how)
    return found


@study("lts-figure-12")
def figure_12(bench: Workbench) -> Found:
    models = family(bench, "transformer-xl")
    return {
        f"bin-{number}": Ours(
            part.spearman,
            f"{source(models)}, {part.models} of them",
            note=f"{part.low / 1e6:.1f} to {part.high / 1e6:.1f} M decoder parameters",
        )
        for number, part in enumerate(ranking(models).bins, start=1)
    }


def sampled(bench: Workbench, models: list[Trained], count: int) -> list[Trained]:
    """Some models of a table, the same in every run."""
    count = min(bench.sample or count, len(models))
    return [models[i] for i in sorted(Random(0).sample(range(len(models)), count))]


@study("lts-figure-5")
def figure_5(bench: Workbench) -> Found:
    models = family(bench, "transformer-xl")
    some = sampled(bench, models, SCORED)
    names = [name for name in PROXIES if name not in ("decoder-parameters", "parameters")]
    done = count(1)

    def tell(name: str) -> None:
        bench.say(f"scored {name}", next(done) / len(some))

    scores = score_trained(some, names, batch=TEXTS, tgt_len=LENGTH, progress=tell)
    better = [-value for value in numbers(some, TRUTH)]
    how = f"computed here for {len(some)} of the table's models, {TEXTS} texts of {LENGTH} tokens"
    found = {name: correlated(better, scores[name], how) for name in names}
    return {"decoder-parameters": correlation(models), **found}


@study("lts-figure-11")
def figure_11(bench: Workbench) -> Found:
    models = family(bench, "transformer-xl")
    some = sampled(bench, models, MEASURED)
    configs = {model.name: config_of(model) for model in some}
    middle = sorted(configs.values(), key=lambda config: cost(config).decoder_parameters)
    read = bench.measure_many(configs, reference=middle[len(middle) // 2], tgt_len=192)
    latency = [read[model.name].median for model in some]
    columns = np.array([numbers(some, TRUTH), latency, numbers(some, DECODER)])
    rng, size = np.random.default_rng(0), len(some)
    drawn = [front_distance(*columns[:, rng.integers(size, size=size)]) for _ in range(DRAWS)]
    low, high = np.quantile([100 * distance for distance in drawn], [0.025, 0.975])
    how = f"{size} of the table's models, latency measured here"
    distance = Ours(100 * front_distance(*columns), how, (float(low), float(high)))
    return {"distance": distance, "src": correlation(models)}


@study("lts-figure-4")
def figure_4(bench: Workbench) -> Found:
    space, rng = read_space("pocket"), Random(0)
    configs = {f"model {i + 1}": space.config(space.draw(rng)) for i in range(DRAWN)}
    recipes = {
        name: pocket(model__pattern=str(config.pattern), model__d_model=config.d_model, **SHORT)
        for name, config in configs.items()
    }
    trained = train_pocket(bench, "lts-figure-4", recipes)
    if trained is None:
        return {}
    ends = [curves[0].loss for curves in trained.curves.values()]
    steps = trained.plan.steps
    how = f"pocket training here: {DRAWN} models of 0.1 to 4 M parameters, {steps:,} updates"
    found = {}
    for eighths in (1, 2, 4):
        early = [curves[0].valid[eighths - 1][1] for curves in trained.curves.values()]
        found[f"src-part-{eighths}"] = correlated(ends, early, how)
    counts = [cost(config).decoder_parameters for config in configs.values()]
    found["src-parameters"] = correlated([-loss for loss in ends], counts, how)
    found["common"] = Ours(100 * common_ratio(ends, counts, 0.5), how)
    return found
