"""What exactly is a search for sizes asked for?

A study keeps it, so workers on other machines need the study's address and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random

from parformer.config import ModelConfig
from parformer.costs import cost
from parformer.errors import ConfigError, ParformerError
from parformer.measure.profile import BlockRange, Profile, Sizes
from parformer.measure.readings import Meter, Step
from parformer.records import Json, Record
from parformer.search.limits import CLOCKED, Limit, as_option, in_words
from parformer.search.sizes.evolution import Plan
from parformer.search.sizes.objectives import Candidate, Figures, Grading, counted
from parformer.search.sizes.space import SearchSpace

WHOLE = 24
"""Whole models measured for the profile: half of them calibrate it, half report its error."""
SURELY = 1.05
"""How far the least of everything must break a limit before nothing else is asked."""


@dataclass(frozen=True, kw_only=True)
class Wanted(Record):
    """What a search is asked for; a run writes it down and goes on with nothing else."""

    space: SearchSpace
    objectives: tuple[str, ...] = ("quality", "latency", "memory")
    limits: tuple[Limit, ...] = ()
    grading: Grading = field(default_factory=Grading)
    sampler: str = "lts"
    plan: Plan
    step: Step
    latency_by: str = "profile"
    """Whether latency and memory of candidates come from a profile or from measuring each."""

    def __post_init__(self) -> None:
        self.grading.check(self.space)

    @property
    def clocked(self) -> bool:
        """Whether anything has to be measured on the device."""
        return bool({*self.objectives, *(limit.metric for limit in self.limits)} & {*CLOCKED})

    def to_settings(self) -> Json:
        """What makes a study this one; its length may grow."""
        values = self.to_dict()
        del values["plan"]["iterations"]
        return {"proxy" if name == "grading" else name: values[name] for name in values}

    @classmethod
    def from_settings(cls, settings: Json, slots: int) -> Wanted:
        """What `to_settings` gave; how long it is to be follows from the slots."""
        shortest = Plan(**settings["plan"], iterations=1)
        plan = replace(shortest, iterations=shortest.generation(slots - 1) + 1)
        return cls.from_dict({**settings, "grading": settings["proxy"], "plan": plan.to_dict()})


def as_today(settings: Json) -> Json:
    """The settings of a study as this version writes them; models have more fields by now."""
    try:
        known = Wanted.from_settings(settings, 1).to_settings()
        if settings.get("profile") is not None:
            known["profile"] = Profile.from_dict(settings["profile"]).to_dict()
    except (ParformerError, KeyError, TypeError, ValueError):
        return settings  # of something else, which is told by whoever compares them
    plain: Json = json.loads(json.dumps(known))
    return settings | plain


def settle_limits(wanted: Wanted, meter: Meter) -> dict[str, float]:
    """Limits in seconds, bytes and counts; a multiple is of the model that the space is like.

    The cheapest models of the space are asked first: what even those exceed is refused at once.
    """
    space, metrics = wanted.space, [limit.metric for limit in wanted.limits]
    base, least = Figures(), Figures()
    if any(limit.relative for limit in wanted.limits):
        base = counted(space.like, wanted.step)
    if {*metrics} & {*CLOCKED}:
        models = {"baseline": space.like} if base else {}
        readings = meter(models | {"smallest": space.config(space.smallest())}, wanted.step)
        if base:
            own = readings["baseline"]
            base |= {"latency": own.median, "memory": float(own.peak_bytes)}
        # the lower end of its interval, for a busy machine must not rule anything out
        own = readings["smallest"]
        least = {"latency": own.low, "memory": float(own.peak_bytes)}
    limits = {
        limit.metric: limit.of(base[limit.metric] if limit.relative else 1.0).most
        for limit in wanted.limits
    }
    for metric, most in limits.items():
        genome = space.smallest("parameters" if metric in CLOCKED else metric)
        figures = counted(space.config(genome), wanted.step) | least
        if figures[metric] > SURELY * most:
            raise nothing_within({metric: most}, [Candidate(genome, None, figures=figures)], space)
    return limits


def nothing_within(
    limits: Mapping[str, float], candidates: Sequence[Candidate], space: SearchSpace
) -> ConfigError:
    """Which limits the nearest candidate breaks, and what would let it in."""
    nearest = min(candidates, key=lambda one: one.excess)
    figures = nearest.figures
    broken = [name for name, most in limits.items() if figures[name] > most]
    has = " and ".join(
        f"{in_words(name, figures[name])} of {name} where {in_words(name, limits[name])} is allowed"
        for name in broken
    )
    options = " ".join(f"--limit {as_option(name, figures[name])}" for name in broken)
    pattern = space.config(nearest.genome).pattern
    return ConfigError(
        f"nothing in the space {space.name!r} is within the limits; the nearest, {pattern} with "
        f"d_model {nearest.genome.fields['d_model']}, has {has}; try {options}"
    )


def sizes_of(wanted: Wanted) -> Sizes:
    """What a profile has to know of the space."""
    space = wanted.space
    return Sizes(
        base=space.like,
        fields={name: tuple(map(int, r.values)) for name, r in space.fields},
        blocks=tuple(
            BlockRange(letter=block.kind, options={name: r.values for name, r in block.options})
            for block in space.ranged_blocks()
            if block.kind != "i"
        ),
        typical_bytes=typical_bytes(wanted),
        step=wanted.step,
        inner_ratio=space.inner_ratio,
    )


def typical_bytes(wanted: Wanted) -> int:
    """Weights of the blocks of a candidate in the middle of the space."""
    prices = [cost(config, tgt_len=1, mem_len=0) for config in whole_models(wanted)]
    counts = sorted(price.decoder_parameters for price in prices)
    return counts[len(counts) // 2] * wanted.step.weight_bytes


def whole_models(wanted: Wanted) -> list[ModelConfig]:
    """Candidates from all over the space, the same for everybody who asks."""
    space, found = wanted.space, []
    rng = Random(f"whole models of {space.name}")
    for _ in range(100 * WHOLE):
        config = space.config(space.draw(rng))
        if not space.bounds or space.within_bounds(cost(config)):
            found.append(config)
        if len(found) == WHOLE:
            break
    return found
