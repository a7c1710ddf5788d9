"""Which models are worth training?

Placements come from rules and from the search; each gets the sizes that hold the most
parameters within the limits, as in LiteTransformerSearch. Parameters rank models of one mix of
blocks, never models of different mixes: across placements the contest decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from parformer.config import ModelConfig
from parformer.costs import cost
from parformer.events import Watch
from parformer.measure.readings import Readings, Step
from parformer.pattern import BlockSpec, Pattern, par
from parformer.search.front import front
from parformer.search.limits import excess
from parformer.search.sizes.evolution import Plan
from parformer.search.sizes.job import Ended, Wanted, ending, work_off
from parformer.search.sizes.objectives import Clock, Figures, countable
from parformer.search.sizes.space import SearchSpace, read_space
from parformer.search.sizes.study import open_study

POPULATION, ITERATIONS = 60, 12
SMALL = 20_000
"""Architectures of a space that is sampled at random."""
DEPTHS = (1, 0.75, 0.5)
"""Blocks of a placement by rule, in multiples of the baseline's."""
INNER = (1, 2, 3, 4, 6)
"""Inner widths of a feed-forward, in multiples of the baseline's width."""
INSIDE = (0.5, 1, 1.5)
"""Widths inside a recurrence, likewise."""
WIDTHS = (0.5, 0.75, 1, 1.25, 1.5)
"""Widths of the model, likewise."""
NEARNESS = (1.0, 0.94, 0.88, 0.8, 0.65)
"""Shares of the clocked limits, for each of which the best candidate is built and measured: a
prediction may be off, and then the next one fits."""
NEAREST = 0.5
"""The share of all limits that the last candidate comes nearest to."""
CLOCKED = ("latency", "memory")


@dataclass(frozen=True, slots=True)
class Placement:
    """Which blocks in which order, and where that came from."""

    name: str
    title: str
    how: str
    patterns: tuple[Pattern, ...]
    """Of one depth or several, the deepest first."""


def placements(layers: int, letters: str, found: str) -> list[Placement]:
    """What may be compared: by rule, and found by a search if there was one.

    >>> [(one.name, str(one.patterns[-1])) for one in placements(12, "rsf", "")]
    [('interleaved', '(sf)x3'), ('par', 's (f)x5'), ('recurrent', '(rf)x3')]
    """
    depths = list(dict.fromkeys(max(2, 2 * round(share * layers / 2)) for share in DEPTHS))
    rule = "one block in five is attention, in the first two thirds"
    turns = "attention and feed-forward in turn"
    known = [
        Placement("interleaved", "Interleaved, resized", turns, in_turn("sf", depths)),
        Placement("par", "PAR's rule", rule, tuple(map(par, depths))),
    ]
    if "r" in letters:
        place = "recurrence in the place of attention"
        known.append(Placement("recurrent", "Recurrence", place, in_turn("rf", depths)))
    seen = {pattern for placement in known for pattern in placement.patterns}
    if found and (pattern := Pattern.parse(found)) not in seen and pattern.letters.strip("i"):
        known.append(Placement("found", "Found", "where the search put the blocks", (pattern,)))
    return known


def in_turn(letters: str, depths: Sequence[int]) -> tuple[Pattern, ...]:
    return tuple(Pattern.parse(letters * (depth // len(letters))) for depth in depths)


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
    slots = {"f": f"f[inner={inner}]", "r": f"r[width={inside}]"}

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
    with open_study(f"notebook:{file}", space.name, settings, slots=plan.slots) as study:
        pricing = work_off(study, wanted, {}, clock, Watch(), lambda: False)
        return ending(study, wanted, limits, pricing, None, {})


def candidates(searches: Sequence[Ended], limits: Mapping[str, float]) -> list[ModelConfig]:
    """The most parameters within the limits, and within less and less of what is predicted.

    The last one is what comes nearest, which is all there is where nothing fits.
    """
    found = [
        (figures, ended.wanted.space, scored.genome)
        for ended in searches
        for figures, scored in zip(ended.figures, ended.scored, strict=True)
        if figures
    ]
    picked: list[int] = []
    for share in NEARNESS:
        less = {name: most * (share if name in CLOCKED else 1) for name, most in limits.items()}
        fits = [i for i, (figures, *_) in enumerate(found) if excess(figures, less) == 0]
        if fits:
            picked.append(max(fits, key=lambda i: found[i][0]["quality"]))
    tight = {name: NEAREST * most for name, most in limits.items()}
    picked.append(min(range(len(found)), key=lambda i: excess(found[i][0], tight)))
    return [found[i][1].config(found[i][2]) for i in dict.fromkeys(picked)]


def choose(
    configs: Sequence[ModelConfig],
    figures: Sequence[Figures],
    limits: Mapping[str, float],
) -> int:
    """Of measured candidates the one with the most parameters within limits, else the nearest."""
    fits = [n for n, one in enumerate(figures) if excess(one, limits) == 0]
    if fits:
        return max(fits, key=lambda n: cost(configs[n]).decoder_parameters)
    return min(range(len(configs)), key=lambda n: excess(figures[n], limits))


def measured_figures(
    config: ModelConfig, name: str, readings: Readings, step: Step, seconds: float
) -> Figures:
    """What a model costs; its latency by the baseline's, which was in the same rounds."""
    shape = step.shape(config)
    price = cost(config, tgt_len=shape.tgt_len, mem_len=shape.mem_len, batch=shape.batch)
    reading = readings[name]
    return {
        **countable(price),
        "latency": reading.ratio * seconds,
        "memory": float(reading.peak_bytes),
    }


def picture(searches: Sequence[Ended], dots: int = 400) -> dict[str, Any]:
    """What was looked at and what is unbeaten, for a figure."""
    names = ("quality", "latency", "memory")
    some = [one for ended in searches for one in ended.figures if one]
    values = np.array([[-one["quality"], one["latency"], one["memory"]] for one in some])
    best = [one for one, flag in zip(some, front(values), strict=True) if flag]
    kept = some[:: max(1, -(-len(some) // dots))]
    return {
        "visited": {name: [one[name] for one in kept] for name in names},
        "front": [{name: one[name] for name in names} for one in best],
    }
