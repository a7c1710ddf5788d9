"""What is a candidate worth, and what does it cost?

Counts are exact. Latency and peak memory come from a profile of the device, which predicts them
at once, or from measuring every candidate. Quality is a proxy's score, higher is better.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol

from parformer.config import ModelConfig
from parformer.costs import ModelCost, cost
from parformer.errors import ConfigError
from parformer.fields import check_names
from parformer.measure.readings import Step
from parformer.search.sizes.space import Genome, SearchSpace

CLOCKED = ("latency", "memory")
"""What only a clock knows, or a profile of the device."""
OBJECTIVES = ("quality", "latency", "memory", "flops", "parameters", "state")
DEFAULT = ("quality", "latency", "memory")

Figures = dict[str, float]
"""What is known of a candidate, by objective; quality as its proxy scores it."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """An architecture and what is to be minimised of it."""

    genome: Genome
    values: tuple[float, ...] | None
    """None for what could not be evaluated."""
    excess: float = 0.0
    """How far it breaks limits."""
    figures: Mapping[str, float] = field(default_factory=dict)
    """Everything known of it; empty for what could not be evaluated."""

    @property
    def fits(self) -> bool:
        """Whether it was evaluated and keeps to the limits."""
        return self.values is not None and not self.excess


Quality = Callable[[ModelConfig, ModelCost], float]
"""A score, higher is better."""


class Clock(Protocol):
    """What tells how long a model's step takes and how much memory it needs."""

    def latency(self, config: ModelConfig) -> float: ...
    def peak_bytes(self, config: ModelConfig) -> int: ...


@dataclass(frozen=True)
class Pricing:
    """Prices the candidates of one space."""

    space: SearchSpace
    step: Step
    quality: Quality
    clock: Clock | None
    """None where neither latency nor memory matters."""

    def allowed(self, genome: Genome) -> bool:
        """Whether it is within the space's own bounds."""
        return not self.space.bounds or self.space.within_bounds(
            count(self.space.config(genome), self.step)
        )

    def figures(self, genome: Genome) -> Figures:
        """Everything known of a candidate."""
        config = self.space.config(genome)
        counted = count(config, self.step)
        found = {"quality": self.quality(config, counted), **countable(counted)}
        if self.clock is not None:
            found["latency"] = self.clock.latency(config)
            found["memory"] = float(self.clock.peak_bytes(config))
        return found


@lru_cache(maxsize=4096)
def count(config: ModelConfig, step: Step) -> ModelCost:
    """What can be counted of a model's step."""
    shape = step.shape(config)
    return cost(config, tgt_len=shape.tgt_len, mem_len=shape.mem_len, batch=step.batch)


def countable(price: ModelCost) -> Figures:
    """The objectives that need no clock."""
    return {
        "flops": float(price.flops),
        "parameters": float(price.parameters),
        "decoder_parameters": float(price.decoder_parameters),
        "state": float(price.state_bytes),
    }


def read_objectives(names: Sequence[str]) -> tuple[str, ...]:
    """Two or more different objectives, quality among them."""
    check_names(names, OBJECTIVES, "objective")
    if len(set(names)) < len(names):
        raise ConfigError(f"an objective is given twice in {', '.join(names)}; give each once")
    if "quality" not in names or len(names) < 2:
        raise ConfigError(
            f"a search weighs quality against something else, got {', '.join(names) or 'nothing'}; "
            "give quality and one or more of " + ", ".join(OBJECTIVES[1:])
        )
    return tuple(names)


def minimised(figures: Mapping[str, float], objectives: Sequence[str]) -> tuple[float, ...]:
    """What a search makes small: costs as they are, quality with its sign turned.

    >>> minimised({"quality": 3.0, "latency": 0.5}, ("quality", "latency"))
    (-3.0, 0.5)
    """
    return tuple(-figures[name] if name == "quality" else figures[name] for name in objectives)
