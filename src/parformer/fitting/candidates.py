"""Which models are worth training?

Placements come from rules and from the search; each gets the sizes that hold the most
parameters within the limits, as in LiteTransformerSearch, and that there is time to train.
Parameters rank models of one mix of blocks, never models of different mixes: across placements the
contest decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import TypeVar

import numpy as np

from parformer.config import ModelConfig
from parformer.costs import cost
from parformer.events import Watch
from parformer.fitting import grid
from parformer.fitting.ladder import CLOCKED, Burden
from parformer.fitting.phases import Profiled, Seen
from parformer.fitting.running import ROUNDS, OutOfTime, Running
from parformer.measure.profile import BlockRange, Sizes, profile_device
from parformer.measure.readings import Step
from parformer.pattern import BlockSpec, Pattern
from parformer.search.front import front
from parformer.search.limits import excess
from parformer.search.sizes.engine import Ended, ending, work_off
from parformer.search.sizes.evolution import Plan
from parformer.search.sizes.objectives import Clock, Figures
from parformer.search.sizes.space import SearchSpace, read_space
from parformer.search.sizes.study import open_study
from parformer.search.sizes.wanted import Wanted, as_today

Model = TypeVar("Model")

POPULATION, ITERATIONS = 60, 12
SMALL = 20_000
"""Architectures of a space that is sampled at random."""
INNER = (1, 2, 3, 4, 6)
"""Inner widths of a feed-forward, in multiples of the baseline's width."""
INSIDE = (0.5, 1, 1.5)
"""Widths inside a recurrence, likewise."""
KERNELS = (3, 7, 15, 31)
"""Taps of a convolution."""
WIDTHS = (0.5, 0.75, 1, 1.25, 1.5)
"""Widths of the model, likewise."""
NEARNESS = (1.0, 0.94, 0.88, 0.8, 0.65)
"""Shares of the clocked limits, for each of which the best candidate is built and measured: a
prediction may be off, and then the next one fits."""
SURELY = 0.96
"""The share of a clocked limit that a finalist should take: measured again in the end, it is a few
percent slower or faster."""
NEAREST = 0.5
"""The share of all limits that the last candidate comes nearest to."""
LITTLE = 60.0
"""Seconds of a profile in which fewer models are measured, less often."""


def widths_of(base: ModelConfig) -> list[int]:
    """Widths that a model may have; heads divide each of them."""
    step = 16 if base.n_head <= 4 else 64
    return sorted({step * max(1, round(share * base.d_model / step)) for share in WIDTHS})


def inner_widths(base: ModelConfig) -> list[int]:
    return sorted({16 * max(1, round(share * base.d_model / 16)) for share in INNER})


def inside_widths(base: ModelConfig) -> list[int]:
    return sorted({8 * max(1, round(share * base.d_model / 8)) for share in INSIDE})


def space_of(name: str, pattern: Pattern, base: ModelConfig, recipe: str) -> SearchSpace:
    """The sizes that a pattern may have."""
    inner, inside = ("|".join(map(str, f(base))) for f in (inner_widths, inside_widths))
    kernels = "|".join(map(str, KERNELS))
    slots = {"f": f"f[inner={inner}]", "r": f"r[width={inside}]", "l": f"l[kernel={kernels}]"}

    def slot(spec: BlockSpec) -> str:
        return str(spec) if spec.options else slots.get(spec.letter, str(spec))

    return read_space(
        {
            "name": f"fit-{name}-{len(pattern)}",
            "like": recipe,
            "model": base.to_dict(),
            "layers": "1",
            "unit": [slot(spec) for spec in pattern],
            "fields": {"d_model": "|".join(map(str, widths_of(base)))},
        }
    )


@dataclass(frozen=True, slots=True)
class Reckoned:
    """A clock for when there is no time to measure: FLOPs and weights, from one known model."""

    known: ModelConfig
    seconds: float
    bytes: int
    step: Step

    def latency(self, config: ModelConfig) -> float:
        return self.seconds * self._flops(config) / self._flops(self.known)

    def peak_bytes(self, config: ModelConfig) -> int:
        beyond = self.bytes - 4 * cost(self.known).parameters
        share = config.d_model / self.known.d_model
        return round(4 * cost(config).parameters + max(0.0, beyond * share))

    def _flops(self, config: ModelConfig) -> float:
        shape = self.step.shape(config)
        return float(
            cost(
                config, tgt_len=shape.tgt_len, mem_len=shape.mem_len, batch=shape.batch
            ).flops_cached
        )


def search_sizes(
    space: SearchSpace,
    clock: Clock,
    limits: Mapping[str, float],
    step: Step,
    seed: int,
    file: Path,
) -> Ended:
    """The Pareto search over one placement's sizes; what is stored already is not done again."""
    # in a small space what is new soon becomes rare, and children of a small front rarer still
    population = max(5, min(POPULATION, space.size // 16))
    plan = Plan.sized(population, ITERATIONS, seed=seed)
    sampler = "lts" if space.size > SMALL else "random"
    wanted = Wanted(space=space, plan=plan, step=step, sampler=sampler)
    settings = wanted.to_settings() | {"limits_here": dict(limits)}
    place = f"notebook:{file}"
    with open_study(place, space.name, settings, slots=plan.slots, today=as_today) as study:
        work_off(study, wanted, {}, clock, Watch())
        return ending(study, wanted, limits, None, {})


def candidates(
    searches: Sequence[Ended], limits: Mapping[str, float], burden: Burden | None = None
) -> list[ModelConfig]:
    """The most parameters within the limits, and within less and less of what is predicted.

    The last one is what comes nearest, which is all there is where nothing fits. With `burden`
    they are no larger than the time allows either.
    """
    found = [
        (one.figures, ended.wanted.space, one.genome)
        for ended in searches
        for one in ended.candidates
        if one.figures
    ]
    if burden is not None:
        kept = [one for one in found if excess(one[0], limits) == 0]
        found = in_time(kept, [burden(space.config(genome)) for _, space, genome in kept]) or found
    picked = nearest([figures for figures, *_ in found], limits)
    return [found[i][1].config(found[i][2]) for i in picked]


def in_time(models: Sequence[Model], burdens: Sequence[float]) -> list[Model]:
    """Those that there is time for, else the least of them.

    >>> in_time("abc", [0.5, 1.5, 1.0]), in_time("ab", [3.0, 2.0]), in_time("", [])
    (['a', 'c'], ['b'], [])
    """
    most = max(1.0, min(burdens, default=1.0))
    return [one for one, share in zip(models, burdens, strict=True) if share <= most]


def nearest(found: Sequence[Mapping[str, float]], limits: Mapping[str, float]) -> list[int]:
    """Which of some models are worth building, by what is predicted of them."""
    picked: list[int] = []
    for share in NEARNESS:
        less = within(share, limits)
        fits = [i for i, figures in enumerate(found) if excess(figures, less) == 0]
        if fits:
            picked.append(max(fits, key=lambda i: found[i]["quality"]))
    tight = {name: NEAREST * most for name, most in limits.items()}
    picked.append(min(range(len(found)), key=lambda i: excess(found[i], tight)))
    return list(dict.fromkeys(picked))


def within(share: float, limits: Mapping[str, float]) -> dict[str, float]:
    """A share of what a clock judges, and all of what is counted."""
    return {name: most * (share if name in CLOCKED else 1) for name, most in limits.items()}


def choose(
    configs: Sequence[ModelConfig],
    figures: Sequence[Figures],
    limits: Mapping[str, float],
) -> int:
    """Of measured candidates the one with the most parameters within limits, else the nearest."""
    for share in (SURELY, 1.0):
        less = within(share, limits)
        fits = [n for n, one in enumerate(figures) if excess(one, less) == 0]
        if fits:
            return max(fits, key=lambda n: cost(configs[n]).decoder_parameters)
    return min(range(len(configs)), key=lambda n: excess(figures[n], limits))


def picture(searches: Sequence[Ended], dots: int = 400) -> Seen:
    """What was looked at and what is unbeaten, for a figure."""
    return seen([one.figures for ended in searches for one in ended.candidates], dots)


def seen(figures: Sequence[Mapping[str, float]], dots: int = 400) -> Seen:
    names, some = ("quality", "latency", "memory"), [one for one in figures if one]
    values = np.array([[-one["quality"], one["latency"], one["memory"]] for one in some])
    best = [one for one, flag in zip(some, front(values), strict=True) if flag]
    kept = some[:: max(1, -(-len(some) // dots))]
    return Seen(
        {name: tuple(one[name] for one in kept) for name in names},
        tuple({name: one[name] for name in names} for one in best),
    )


def profile(fit: Running) -> Profiled:
    """Block costs on this device; nothing where that is left out."""
    seconds = fit.seconds_for("profile")
    if not seconds:
        return Profiled()
    if not fit.kind.searches:
        return straight_line(fit)
    base, little = fit.baseline.recipe.model, seconds < LITTLE
    options: dict[str, dict[str, Sequence[int]]] = {
        "f": {"inner": inner_widths(base)},
        "r": {"width": inside_widths(base)},
        "l": {"kernel": KERNELS},
    }
    sizes = Sizes(
        base=base,
        fields={"d_model": tuple(widths_of(base))},
        blocks=tuple(
            BlockRange(letter=letter, options=options.get(letter, {}))
            for letter in fit.request.letters
            if letter != "i"
        ),
        typical_bytes=4 * cost(base).decoder_parameters,
        step=replace(fit.step, rounds=6 if little else ROUNDS),
    )
    try:
        found = profile_device(
            sizes,
            meter=fit.meter,
            folder=fit.cache,
            whole=whole_models(fit, 8 if little else 24),
            progress=fit.impatient().preparing,
        )
    except OutOfTime:
        fit.leave_out(Profiled.PHASE)
        return Profiled()
    if found.error is None:
        return Profiled(found)
    off = found.error.latency
    fit.watch.notice(
        f"Latency of any size is predicted from now on, off by {off.median:.0%} in the median."
    )
    return Profiled(found, off.median, off.p90)


def straight_line(fit: Running) -> Profiled:
    """What blocks cost, from a dozen models of all placements."""
    base = fit.baseline.recipe.model
    rules = fit.kind.placements(base, "")
    sizes = {one.name: fit.kind.sizes(one, base) for one in rules}
    models = [base, *grid.drawn_from(sizes, grid.MODELS)]
    try:
        readings = fit.measure(
            {str(n): one for n, one in enumerate(models)},
            fit.step,
            fit.impatient().preparing,
            rough=True,
        )
    except OutOfTime:
        fit.leave_out(Profiled.PHASE)
        return Profiled()
    parts = [grid.parts_of(one, fit.counts(one)["flops"]) for one in models]
    seconds = [readings[str(n)].median for n in range(len(models))]
    line, off = grid.tried(parts, seconds)
    middle = grid.quantile(off, 0.5)
    fit.watch.notice(f"Latency of any size is predicted from now on, off by {middle:.0%}.")
    return Profiled(None, middle, grid.quantile(off, 0.9), line)


def spaces_by_rule(fit: Running, found: str = "") -> dict[str, list[SearchSpace]]:
    """The sizes that every placement may have, depth by depth."""
    base = fit.baseline.recipe.model
    rules = fit.kind.placements(base, found)
    return {
        one.name: [space_of(one.name, p, base, fit.request.preset) for p in one.patterns]
        for one in rules
    }


def whole_models(fit: Running, count: int) -> list[ModelConfig]:
    """Models from all placements by rule, to calibrate the profile and to tell its error."""
    rng = Random("whole models of a fit")
    spaces = [space for some in spaces_by_rule(fit).values() for space in some]
    return [
        (space := spaces[number % len(spaces)]).config(space.draw(rng)) for number in range(count)
    ]
