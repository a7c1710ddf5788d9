"""Which models enter the contest: every placement, in sizes that keep the limits?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

from parformer.config import ModelConfig
from parformer.costs import cost
from parformer.errors import ConfigError
from parformer.fitting import grid
from parformer.fitting.candidates import (
    Reckoned,
    candidates,
    choose,
    nearest,
    picture,
    search_sizes,
    seen,
    space_of,
    spaces_by_rule,
)
from parformer.fitting.ladder import CLOCKED, burden
from parformer.fitting.phases import BASELINE, Finalist, Finalists, Line, Placed, Profiled, Seen
from parformer.fitting.rules import Placement
from parformer.fitting.running import Running
from parformer.fitting.squeezing import BITS, SMALL, roomier, small
from parformer.measure.readings import Readings
from parformer.pattern import Pattern
from parformer.search.limits import as_option, excess, in_words
from parformer.search.sizes.objectives import Clock, Figures

TRIES = 3
"""How often models are measured in another runtime until those taken keep the limits."""


def measured_figures(fit: Running, config: ModelConfig, name: str, readings: Readings) -> Figures:
    """What a model costs; its latency by the baseline's, which was in the same rounds."""
    reading, seconds = readings[name], fit.baseline.figures["latency"]
    clocked = {"latency": reading.ratio * seconds, "memory": float(reading.peak_bytes)}
    return fit.counts(config) | clocked


def cheapest_models(fit: Running) -> list[ModelConfig]:
    """The smallest of every placement."""
    base = fit.baseline.recipe.model
    if not fit.kind.searches:
        sizes = [fit.kind.sizes(one, base) for one in fit.kind.placements(base, "")]
        return [min(some, key=lambda one: fit.counts(one)["flops"]) for some in sizes]
    spaces = [space for some in spaces_by_rule(fit).values() for space in some]
    if "i" in fit.request.letters:  # a search may leave blocks out, down to a single one
        single = [Pattern.parse(letter) for letter in fit.request.letters.replace("i", "")]
        spaces += [space_of("single", pattern, base, fit.request.preset) for pattern in single]
    return [space.config(space.smallest()) for space in spaces]


def refuse_unreachable(fit: Running) -> None:
    """Ask the cheapest models first: where none of them keeps the limits, no other does."""
    if fit.request.runtime != "torch":
        return  # the finalists are measured there before anything is trained
    base, cheapest = fit.baseline.recipe.model, cheapest_models(fit)
    figures = [{**fit.counts(config)} for config in cheapest]
    if set(fit.limits) & set(CLOCKED):
        asked = {str(number): config for number, config in enumerate(cheapest)}
        readings = fit.measure({BASELINE: base, **asked}, fit.step)
        for number, one in enumerate(figures):
            reading = readings[str(number)]
            # whichever is less: what a bad moment made slow is not refused for it
            took = min(reading.low, reading.ratio * fit.baseline.figures["latency"])
            took *= min(1.0, fit.in_bits)
            one |= {"latency": took, "memory": float(reading.peak_bytes)}
    best = min(range(len(figures)), key=lambda n: excess(figures[n], fit.limits))
    if excess(figures[best], fit.limits) and not keeps_all(fit, fit.baseline.figures):
        raise nothing_fits(cheapest[best].pattern, figures[best], fit.limits)


def clock_of(fit: Running) -> Clock:
    known, base = fit.progress.need(Profiled), fit.baseline.recipe.model
    figures = fit.baseline.figures
    if known.profile is not None:
        return known.profile
    if fit.kind.searches:
        return Reckoned(base, figures["latency"], int(figures["memory"]), fit.step)
    line = known.line or Line({"flops": figures["latency"] / figures["flops"]})
    return grid.Straight(line, fit.counts, base, figures["memory"])


def predicted(fit: Running, clock: Clock, config: ModelConfig) -> float | None:
    """Seconds of a step by what was measured of blocks; None where FLOPs only stand for time.

    In another runtime that says how sizes compare, not how long they take.
    """
    if isinstance(clock, Reckoned) or fit.request.runtime != "torch":
        return None
    return clock.latency(config)


def sizes_of(fit: Running, rule: Placement, clock: Clock) -> tuple[list[ModelConfig], Seen]:
    """The sizes of a placement that are worth building, and all that were looked at."""
    base, limits = fit.baseline.recipe.model, fit.limits
    if not fit.kind.searches:
        models = fit.kind.sizes(rule, base)
        if rule.name == SMALL:
            models = small_ones(models, limits.get("size", inf))
        times = fit.in_bits if fit.quicker and rule.name != SMALL else 1.0
        prices = [
            price | {
                "quality": price["decoder_parameters"],
                "latency": times * clock.latency(one),
                "memory": float(clock.peak_bytes(one)),
            }
            for one in models
            for price in [fit.counts(one)]
        ]  # fmt: skip
        return [models[n] for n in nearest(prices, limits)], seen(prices)
    folder = fit.path / "sizes"
    folder.mkdir(exist_ok=True)
    if fit.request.compress and rule.name != SMALL:
        limits = roomier(limits, base, fit.in_bits if fit.quicker else 1.0)
    searches = [
        search_sizes(
            space, clock, limits, fit.step, fit.request.seed, folder / f"{space.name}.jsonl"
        )
        for space in (space_of(rule.name, p, base, fit.request.preset) for p in rule.patterns)
    ]
    return candidates(searches, limits, burden(fit)), picture(searches)


def small_ones(models: list[ModelConfig], most: float) -> list[ModelConfig]:
    """Those within a size as they are; the smallest where none is."""
    sizes = {n: cost(one).size for n, one in enumerate(models)}
    kept = [models[n] for n, size in sizes.items() if size <= most]
    return kept or [models[min(sizes, key=sizes.__getitem__)]]


def find(fit: Running) -> Finalists:
    """The finalists: every placement with the sizes that fit, measured beside the baseline."""
    base, clock, limits = fit.baseline.recipe.model, clock_of(fit), fit.limits
    found = fit.progress.need(Placed).pattern
    rules = {one.name: one for one in fit.kind.placements(base, found)}
    if fit.request.compress:
        rules[SMALL] = small(rules["interleaved"])
    tried, pictures = dict[str, list[ModelConfig]](), dict[str, Seen]()
    for number, (name, rule) in enumerate(rules.items()):
        fit.watch.preparing(f"sizes of {rule.title}", number / (len(rules) + 1))
        tried[name], pictures[name] = sizes_of(fit, rule, clock)
    configs = {f"{name} {n}": c for name, many in tried.items() for n, c in enumerate(many)}
    readings = fit.measure({BASELINE: base, **configs}, fit.step, fit.watch.preparing, rough=True)
    figures = {
        name: [measured_figures(fit, c, f"{name} {n}", readings) for n, c in enumerate(many)]
        for name, many in tried.items()
    }
    squeezed = {name for name in tried if fit.quicker and name != SMALL}
    for figure in (one for name in squeezed for one in figures[name]):
        figure["latency"] *= fit.in_bits
    taken = {name: choose(many, figures[name], limits) for name, many in tried.items()}
    if squeezed:
        chosen = {name: taken[name] for name in squeezed}
        settle_there(fit, tried, figures, chosen, coded=True)
        taken |= chosen
    own = measured_figures(fit, base, BASELINE, readings)
    if fit.request.runtime != "torch":
        own |= settle_there(fit, tried, figures, taken)
    search, models = "a Pareto search" if fit.kind.searches else "a grid", list[Finalist]()
    for name, best in taken.items():
        config, known = tried[name][best], figures[name][best]
        if config not in (base, *(one.config for one in models)):
            how = f"{rules[name].how}; sizes by {search} within the limits"
            fits = excess(known, limits) == 0
            bits = BITS if name in squeezed else 0
            foretold = predicted(fit, clock, config)
            if foretold is not None and bits:
                foretold *= fit.in_bits
            models.append(
                Finalist(name, rules[name].title, how, config, dict(known), fits, bits, foretold)
            )
    fits = keeps_all(fit, own)
    if not fits and not any(one.eligible for one in models):
        least = min(models, key=lambda one: excess(one.figures, limits))
        raise nothing_fits(least.config.pattern, least.figures, limits)
    how = "attention and feed-forward in turn, all alike, sized for the time there is"
    first = Finalist(BASELINE, "Interleaved Transformer", how, base, dict(own), fits)
    return Finalists((first, *models), pictures)


def settle_there(
    fit: Running,
    tried: Mapping[str, Sequence[ModelConfig]],
    figures: Mapping[str, list[Figures]],
    taken: dict[str, int],
    *,
    coded: bool = False,
) -> Figures:
    """Measure those that were taken where they will run, and take others where that breaks a limit.

    What one of a placement takes there tells what the others of it would; the baseline's own
    latency is given back. `coded` means in 8 bits.
    """
    base, known = fit.baseline.recipe.model, set[tuple[str, int]]()
    seconds = fit.baseline.figures["latency"]
    for _ in range(TRIES):
        new = {name: n for name, n in taken.items() if (name, n) not in known}
        if not new:
            break
        asked = {name: tried[name][n] for name, n in new.items()}
        all_asked, some = {BASELINE: base, **asked}, set(asked.values()) if coded else ()
        readings = fit.measure(all_asked, fit.step, fit.watch.preparing, coded=some)
        for name, n in new.items():
            real = readings[name].ratio * seconds
            times = real / figures[name][n]["latency"]
            for place, one in enumerate(figures[name]):
                if (name, place) not in known:
                    one["latency"] = real if place == n else one["latency"] * times
            known.add((name, n))
            taken[name] = choose(tried[name], figures[name], fit.limits)
    for name in taken:  # what was never measured there is nobody's choice
        if (name, taken[name]) not in known:
            taken[name] = max(n for one, n in known if one == name)
    return {"latency": seconds}


def keeps_all(fit: Running, figures: Mapping[str, float]) -> bool:
    """Whether the baseline keeps all limits; one of its own figure it does by definition."""
    return all(
        limit.most >= 1 if limit.relative else figures[limit.metric] <= limit.most
        for limit in fit.request.bounds
    )


def nothing_fits(
    pattern: Pattern, figures: Mapping[str, float], limits: Mapping[str, float]
) -> ConfigError:
    broken = {name: figures[name] for name in limits if figures[name] > limits[name]}
    has = " and ".join(
        f"{in_words(n, v)} of {n} where {in_words(n, limits[n])} is allowed"
        for n, v in broken.items()
    )
    options = " ".join(f"--limit {as_option(n, v)}" for n, v in broken.items())
    return ConfigError(
        f"no model is within the limits; the nearest, {pattern}, has {has}; try {options}"
    )
