"""What does each choice cost, beside the interleaved model?

Parameters, FLOPs and bytes of state are exact; latency is measured on this device, block by
block. All of it is told as a share of what the interleaved model of as many layers costs.
"""

# l layer, c choice

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from parformer.blocks.base import find_block
from parformer.config import ModelConfig
from parformer.costs import cost, step_shape
from parformer.errors import ConfigError, FolderError
from parformer.fields import check_names
from parformer.measure.latency import measure_latency
from parformer.measure.models import Reader
from parformer.model import build
from parformer.pattern import Pattern
from parformer.search.space import SearchSpace

METRICS = ("flops", "parameters", "state", "latency")

ROUNDS = 20
"""Rounds of measuring; every candidate is timed in each."""


@dataclass(frozen=True, slots=True)
class Target:
    """What a search has to save, and how it is told so."""

    metric: str
    penalty: float | None = None
    """So much of the loss for one baseline's cost."""
    limit: float | None = None
    """The share of the baseline's cost that the pattern may have."""


@dataclass(frozen=True, slots=True)
class Prices:
    """What every choice of every layer costs, in the metric's own unit."""

    metric: str
    choices: tuple[tuple[float, ...], ...]
    fixed: float
    """What no choice changes: embedding, head."""
    baseline: float
    """The interleaved model, its fixed parts included."""
    error: float = 0.0
    """How far the sum of the parts is off the interleaved model as a whole, where both were
    measured."""

    def relative_lc(self) -> Tensor:
        """Shares of the baseline; 0 where a layer has fewer choices than others."""
        most = max(map(len, self.choices))
        rows = [[*row, *[0.0] * (most - len(row))] for row in self.choices]
        return torch.tensor(rows, dtype=torch.float64) / self.baseline

    @property
    def relative_fixed(self) -> float:
        return self.fixed / self.baseline

    def total(self, picks: Sequence[int]) -> float:
        """A whole architecture, as a share of the baseline."""
        blocks = sum(row[pick] for row, pick in zip(self.choices, picks, strict=True))
        return (blocks + self.fixed) / self.baseline

    def to_dict(self) -> dict[str, Any]:
        return {
            "metric": self.metric,
            "choices": [list(row) for row in self.choices],
            "fixed": self.fixed,
            "baseline": self.baseline,
            "error": self.error,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Read what `to_dict` gave."""
        try:
            return cls(
                str(values["metric"]),
                tuple(tuple(map(float, row)) for row in values["choices"]),
                float(values["fixed"]),
                float(values["baseline"]),
                float(values["error"]),
            )
        except (KeyError, TypeError, ValueError) as problem:
            raise FolderError(f"the stored prices are broken: {problem!r}") from None


def baseline_pattern(layers: int) -> Pattern:
    """Attention and feed-forward in turn; with an odd number of layers attention is one ahead."""
    return Pattern.parse(("sf" * layers)[:layers])


def exact(metric: str, config: ModelConfig, space: SearchSpace) -> Prices:
    """Prices that follow from the configuration, for one step as the model says."""
    field = {"flops": "flops", "parameters": "parameters", "state": "state_bytes"}[metric]
    shape = step_shape(config, None, None, 1)
    whole = cost(config.replaced(pattern=baseline_pattern(len(space.layers))))
    total = float(getattr(whole, field))
    if total == 0:
        raise ConfigError(
            f"this {config.family} model has no {metric} to save, it is 0; "
            "choose flops, parameters or latency"
        )
    rows = tuple(
        tuple(
            float(getattr(find_block(spec).cost(config, spec.options, shape), field))
            for spec in choices
        )
        for choices in space.layers
    )
    fixed = total - sum(getattr(row.cost, field) for row in whole.blocks)
    return Prices(metric, rows, fixed, total)


def measured(
    config: ModelConfig,
    space: SearchSpace,
    *,
    threads: int | None = None,
    rounds: int = ROUNDS,
    progress: Callable[[str, float], None] | None = None,
) -> Prices:
    """Latency of one step on this device: what a stack of each choice takes beyond none.

    Everything is timed in turn. The baseline is the sum of its parts, like everything that is
    compared with it; how far that is off the measured whole is kept as `error`.
    """
    say = progress or (lambda what, share: None)
    layers = len(space.layers)
    names = {str(spec) for choices in space.layers for spec in choices} | {"s", "f"}
    stacks = {name: f"({name})x{layers}" for name in sorted(names - {"i"})}
    stacks |= {"none": "i", "baseline": str(baseline_pattern(layers))}
    readers = {}
    for name, pattern in stacks.items():
        model = build(config.replaced(pattern=pattern))
        readers[name] = Reader(model, step_shape(model.config, None, None, 1))
    timed = measure_latency(
        readers,
        rounds=rounds,
        threads=threads,
        what="one block's share of a step",
        progress=lambda share: say("measuring blocks", share),
    )
    fixed = timed["none"].median
    each = {
        name: max(0.0, (timed[name].median - fixed) / layers)
        for name in stacks
        if name not in ("none", "baseline")
    } | {"i": 0.0}
    parts = fixed + sum(each[str(spec)] for spec in baseline_pattern(layers))
    rows = tuple(tuple(each[str(spec)] for spec in choices) for choices in space.layers)
    return Prices("latency", rows, fixed, parts, parts / timed["baseline"].median - 1)


def read_target(penalty: str, limit: str) -> Target | None:
    """What `flops=0.1` as a penalty or `latency=0.7x` as a limit asks for."""
    if penalty and limit:
        raise ConfigError(
            f"the penalty {penalty!r} and the limit {limit!r} are two ways to the same end; "
            "give one of them"
        )
    if penalty:
        metric, text = split_target(penalty, "penalty", "flops=0.1")
        return Target(metric, penalty=read_share(text, penalty, "flops=0.1"))
    if limit:
        metric, text = split_target(limit, "limit", "latency=0.7x")
        if not text.endswith("x"):
            raise ConfigError(
                f"the limit {limit!r} is no share of the interleaved model's {metric}; "
                f"write it as {metric}=0.7x"
            )
        return Target(metric, limit=read_share(text[:-1], limit, "latency=0.7x"))
    return None


def split_target(text: str, what: str, example: str) -> tuple[str, str]:
    metric, equals, value = (part.strip() for part in text.partition("="))
    if not equals or not value:
        raise ConfigError(f"cannot read the {what} {text!r}; write it as {example}")
    check_names([metric], METRICS, f"metric of a {what}")
    return metric, value


def read_share(text: str, whole: str, example: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise ConfigError(f"{whole!r} needs a number above 0; write it as {example}")
    return value


def refuse_unreachable(prices: Prices, space: SearchSpace, limit: float) -> None:
    """A limit that no pattern of the space can meet ends the search before it begins."""
    cheapest = [min(range(len(row)), key=row.__getitem__) for row in prices.choices]
    least = prices.total(cheapest)
    if least > limit:
        raise ConfigError(
            f"no pattern of this space costs {limit:g}x of the interleaved model's "
            f"{prices.metric}; the nearest, {space.pattern(cheapest)}, costs {least:.3f}x; "
            "raise the limit or add a cheaper choice"
        )
