"""Which models enter the contest? The baseline, and every placement in the sizes that fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from random import Random
from typing import Any

from parformer.config import ModelConfig
from parformer.costs import cost
from parformer.data.corpora import find_corpus
from parformer.data.overlap import overlaps
from parformer.errors import ConfigError, CorpusError
from parformer.fitting.desk import BASELINE, ROUNDS, Desk, count_references
from parformer.fitting.finalists import (
    CLOCKED,
    Reckoned,
    candidates,
    choose,
    inner_widths,
    inside_widths,
    measured_figures,
    picture,
    placements,
    search_sizes,
    space_of,
    widths_of,
)
from parformer.fitting.notes import Result
from parformer.fitting.sizing import PROBE, affordable, ladder, reckon, within
from parformer.fitting.trainings import SURVIVE
from parformer.measure.profile import BlockRange, Profile, Sizes, profile_device
from parformer.recipe import SearchConfig, read_recipe
from parformer.search.limits import as_option, excess, in_words
from parformer.search.placement.job import search_differentiable
from parformer.search.sizes.objectives import Clock
from parformer.train.distributed import Workers
from parformer.train.plan import decide, fit_vocabulary, step_seconds
from parformer.train.session import refuse_misfits, train_length

FINALISTS = 5
"""Models that a size is reckoned for."""
REACH = (0.3, 0.97)
"""Limits between these multiples of the baseline steer the search for placements."""
LITTLE = 60.0
"""Seconds of a profile in which fewer models are measured, less often."""


def read(desk: Desk) -> Result:
    """The text as tokens, which stay on disk; its measures, and what counting makes of it."""
    tokens = desk.prepared.splits["train"].tokens
    corpus = find_corpus(desk.ask.corpus, local=desk.ask.local or None)
    return {
        "identity": desk.prepared.identity,
        "tokens": len(tokens),
        "bytes": desk.prepared.splits["train"].bytes,
        "vocabulary": desk.prepared.tokenizer.size,
        "overlap": {split: asdict(one) for split, one in overlaps(corpus).items()},
        "references": {s: one.to_dict() for s, one in count_references(desk.prepared).items()},
    }


def size(desk: Desk) -> Result:
    """The baseline, as large as the time and the limits allow, and what it costs."""
    tokens = desk.prepared.splits["train"].tokens
    recipe = fit_vocabulary(desk.ask.recipe(), desk.prepared.tokenizer, lambda _: None)
    recipe = recipe.replaced({"data.identity": desk.prepared.identity})
    rungs = ladder(recipe.model)
    recipe = replace(recipe, model=rungs[PROBE])
    refuse_misfits(recipe, tokens, Workers())
    recipe = decide(recipe, tokens, Workers(), desk.watch.notice)
    per_update = recipe.train.batch * train_length(recipe)
    if desk.ask.steps:
        paces, seconds = [1.0] * len(rungs), float(desk.ask.steps)
    else:
        paces = reckon(rungs, rungs[PROBE], step_seconds(recipe, tokens, Workers()))
        seconds = desk.planned["contest"] / FINALISTS / SURVIVE
    largest = affordable(rungs, paces, seconds, per_update)
    config = rungs[within_absolute(desk, rungs, largest)]
    reading = desk.meter({BASELINE: config}, desk.step)[BASELINE]
    figures = {**desk.counts(config), "latency": reading.median, "memory": reading.peak_bytes}
    limits = {b.metric: b.of(figures[b.metric]).most for b in desk.ask.bounds}
    parameters = cost(config).parameters
    desk.watch.notice(
        f"Baseline: {config.pattern}, width {config.d_model}, {parameters:,} parameters, "
        f"{1000 * reading.median:.3g} ms a step."
    )
    return {
        "recipe": replace(recipe, model=config).to_dict(),
        "figures": figures,
        "limits": limits,
    }


def within_absolute(desk: Desk, rungs: Sequence[ModelConfig], largest: int) -> int:
    """The largest rung that keeps limits which are no multiples of the baseline's."""
    limits = {b.metric: b.most for b in desk.ask.bounds if not b.relative}
    if not limits:
        return largest
    figures = [desk.counts(config) for config in rungs[: largest + 1]]
    if set(limits) & set(CLOCKED):
        few = {str(n): config for n, config in enumerate(rungs[: largest + 1])}
        readings = desk.meter(few, desk.step)
        for n, one in enumerate(figures):
            reading = readings[str(n)]
            one |= {"latency": reading.median, "memory": float(reading.peak_bytes)}
    return within(figures, limits, largest)


def profile(desk: Desk) -> Result:
    """Block costs on this device; nothing where that is left out."""
    seconds = desk.planned["profile"]
    if not seconds:
        return {}
    base, letters = desk.recipe.model, desk.ask.letters
    options = {"f": {"inner": inner_widths(base)}, "r": {"width": inside_widths(base)}}
    sizes = Sizes(
        base=base,
        fields={"d_model": tuple(widths_of(base))},
        blocks=tuple(
            BlockRange(letter=letter, options=options.get(letter, {}))
            for letter in letters
            if letter != "i"
        ),
        typical_bytes=4 * cost(base).decoder_parameters,
        step=replace(desk.step, rounds=6 if seconds < LITTLE else ROUNDS),
    )
    profile = profile_device(
        sizes,
        meter=desk.meter,
        folder=desk.cache,
        whole=whole_models(desk, 8 if seconds < LITTLE else 24),
        progress=desk.watch.preparing,
    )
    error = profile.error
    if error is not None:
        desk.watch.notice(
            f"Latency of any size is predicted from now on, off by {error.latency.median:.0%} "
            "in the median."
        )
    return {
        "profile": profile.to_dict(),
        "median_error": None if error is None else error.latency.median,
        "p90_error": None if error is None else error.latency.p90,
    }


def whole_models(desk: Desk, count: int) -> list[ModelConfig]:
    """Models from all placements by rule, to calibrate the profile and to tell its error."""
    base, rng = desk.recipe.model, Random("whole models of a fit")
    rules = placements(len(base.pattern), desk.ask.letters, "")
    recipe = desk.preset
    spaces = [space_of(one.name, p, base, recipe) for one in rules for p in one.patterns]
    return [
        (space := spaces[number % len(spaces)]).config(space.draw(rng)) for number in range(count)
    ]


def clock_of(desk: Desk) -> Clock:
    known = desk.result("profile")
    if known:
        return Profile.from_dict(known["profile"])
    figures = desk.result("size")["figures"]
    return Reckoned(desk.recipe.model, figures["latency"], int(figures["memory"]), desk.step)


def search(desk: Desk) -> Result:
    """Where a supernet puts the blocks; nothing where that is left out."""
    seconds = desk.planned["search"]
    if not seconds and not desk.ask.steps:
        return {}
    known = read_recipe("pocket-search").search or SearchConfig()
    recipe = replace(desk.recipe, search=known).replaced(
        {
            "search.choices": desk.ask.choices,
            "search.limit": steering(desk),
            "train.time": 0.8 * seconds,
            "train.steps": max(30, desk.ask.steps),
            "train.warmup": 3,
            "train.evaluate_tokens": 1024,
            "train.final_tokens": 1024,
        }
    )
    if seconds:
        recipe = recipe.replaced({"train.warmup": 100})
    try:
        found = search_differentiable(
            recipe, desk.path / "search", watch=desk.watch, command="parformer fit"
        )
    except CorpusError as error:
        desk.watch.notice(f"No search for placements, only those by rule: {error}")
        return {}
    if not found.finished:
        raise KeyboardInterrupt
    return {"pattern": str(found.found["pattern"])}


def steering(desk: Desk) -> str:
    """The limit that the search for placements is told, as a multiple of the baseline."""
    figures = desk.result("size")["figures"]
    for metric in ("latency", "flops", "parameters", "state"):
        if metric in desk.limits:
            share = desk.limits[metric] / figures[metric]
            if REACH[0] <= share <= REACH[1]:
                return f"{metric}={share:.4g}x"
    return ""


def sizes(desk: Desk) -> Result:
    """The finalists: every placement with the sizes that fit, measured beside the baseline."""
    base, clock, limits = desk.recipe.model, clock_of(desk), desk.limits
    found = desk.result("search").get("pattern", "")
    rules = placements(len(base.pattern), desk.ask.letters, found)
    tried: dict[str, list[ModelConfig]] = {}
    pictures = {}
    (desk.path / "sizes").mkdir(exist_ok=True)
    for number, placement in enumerate(rules):
        desk.watch.preparing(f"sizes of {placement.title}", number / (len(rules) + 1))
        spaces = [
            space_of(placement.name, pattern, base, desk.preset) for pattern in placement.patterns
        ]
        searches = [
            search_sizes(
                space,
                clock,
                limits,
                desk.step,
                desk.ask.seed,
                desk.path / "sizes" / f"{space.name}.jsonl",
            )
            for space in spaces
        ]
        tried[placement.name] = candidates(searches, limits)
        pictures[placement.name] = picture(searches)
    configs = {f"{name} {n}": c for name, many in tried.items() for n, c in enumerate(many)}
    readings = desk.meter({BASELINE: base, **configs}, desk.step, desk.watch.preparing)
    seconds = desk.result("size")["figures"]["latency"]
    rows = []
    for placement in rules:
        many = tried[placement.name]
        figures = [
            measured_figures(c, f"{placement.name} {n}", readings, desk.step, seconds)
            for n, c in enumerate(many)
        ]
        best = choose(many, figures, limits)
        if many[best] == base:
            continue
        rows.append(
            {
                "name": placement.name,
                "title": placement.title,
                "how": f"{placement.how}; sizes by a Pareto search within the limits",
                "config": many[best].to_dict(),
                "figures": figures[best],
                "eligible": excess(figures[best], limits) == 0,
            }
        )
    own = measured_figures(base, BASELINE, readings, desk.step, seconds)
    fits = all(keeps(desk, own, metric) for metric in limits)
    if not fits and not any(row["eligible"] for row in rows):
        raise nothing_fits(desk, rows)
    rows.insert(0, {
        "name": BASELINE, "title": "Interleaved Transformer",
        "how": "attention and feed-forward in turn, all alike, sized for the time there is",
        "config": base.to_dict(), "figures": own, "eligible": fits,
    })  # fmt: skip
    return {"models": rows, "pictures": pictures}


def keeps(desk: Desk, figures: Mapping[str, float], metric: str) -> bool:
    """Whether the baseline keeps a limit; one of its own figure it does by definition."""
    limit = next(bound for bound in desk.ask.bounds if bound.metric == metric)
    if limit.relative:
        return limit.most >= 1
    return figures[metric] <= limit.most


def nothing_fits(desk: Desk, rows: Sequence[Mapping[str, Any]]) -> ConfigError:
    limits = desk.limits
    nearest = min(rows, key=lambda row: excess(row["figures"], limits))
    broken = {n: nearest["figures"][n] for n in limits if nearest["figures"][n] > limits[n]}
    has = " and ".join(
        f"{in_words(n, v)} of {n} where {in_words(n, limits[n])} is allowed"
        for n, v in broken.items()
    )
    options = " ".join(f"--limit {as_option(n, v)}" for n, v in broken.items())
    pattern = nearest["config"]["pattern"]
    return ConfigError(
        f"no model is within the limits; the nearest, {pattern}, has {has}; try {options}"
    )
