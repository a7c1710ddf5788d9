"""What would a model take on a device, without building it?

Block costs were measured over the sizes of a search space; the time and the peak memory of any
candidate follow from those of its blocks:

    latency = constant + ends + Σ blocks, each with a weight near one
    peak    = weights + memory of the step before + the worst moment, which is what earlier
              blocks keep for the next step, what blocks share, and what this one works with
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from typing import Self

import numpy as np

from parformer.config import ModelConfig
from parformer.costs import cost
from parformer.measure.cache import refuse_elsewhere
from parformer.measure.device import Device, Receipt, describe_device
from parformer.measure.grid import Grid, Surface
from parformer.measure.readings import Step, Stored
from parformer.measure.tables import (
    IDENTITY,
    Table,
    block_features,
    ends_features,
    find_place,
    fixed_fields,
    refuse_another_kind,
)
from parformer.pattern import BlockSpec
from parformer.records import Record

CONSTANT = "constant"
"""The weight of what is the same for all models."""


@dataclass(frozen=True, slots=True)
class Spread(Record):
    """Relative errors of predictions, without their sign."""

    median: float
    p90: float
    worst: float

    @classmethod
    def of(cls, predicted: Iterable[float], measured: Iterable[float]) -> Self:
        off = np.array([abs(p / m - 1) for p, m in zip(predicted, measured, strict=True)])
        return cls(float(np.median(off)), float(np.quantile(off, 0.9)), float(off.max()))


@dataclass(frozen=True, slots=True)
class Accuracy(Record):
    """How far predictions were from whole models that had no part in them."""

    models: int
    latency: Spread
    memory: Spread


@dataclass(frozen=True, slots=True)
class Priced(Record):
    """A kind of block over its sizes, or the ends: what its step takes."""

    table: Table
    seconds: Surface
    old: Grid
    """Bytes that it remembers from the step before."""
    new: Grid
    """Bytes that it keeps for the next step."""
    working: Grid
    """Bytes at its worst moment as the only block of a model, those that it keeps included."""
    shared: int = 0
    """Bytes that it leaves to later blocks of the step, such as a mask."""


@dataclass(frozen=True, slots=True)
class Part:
    """One block, or the ends, of one size."""

    letter: str
    seconds: float
    weights: int
    old: int
    new: int
    working: int
    shared: int


@dataclass(frozen=True, kw_only=True)
class Profile(Stored):
    """What blocks take on one device; knows every model whose sizes lie within its own."""

    base: ModelConfig
    """What the models have in common."""
    step: Step
    varied: tuple[str, ...]
    """Fields of the model that may differ from the base, besides its pattern."""
    priced: tuple[Priced, ...]
    weights: Mapping[str, float]
    """By letter, for the ends, and for the constant, which is in seconds."""
    reference: ModelConfig
    """The model that all others were timed beside."""
    reference_seconds: float
    receipt: Receipt
    error: Accuracy | None = None
    """On whole models; None where none was given to check with."""
    _parts: dict[tuple[object, ...], Part] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def latency(self, config: ModelConfig) -> float:
        """Seconds of a step."""
        weights = self.weights
        seconds = sum([weights[part.letter] * part.seconds for part in self.parts(config)])
        return weights[CONSTANT] + seconds

    def peak_bytes(self, config: ModelConfig) -> int:
        """The most tensor bytes alive at once in a step, as `peak_memory` counts them."""
        ends, *blocks = self.parts(config)
        resident = ends.weights
        kept = shared = worst = 0
        for part in blocks:
            resident += part.weights + part.old
            shared = max(shared, part.shared)
            worst = max(worst, kept + part.working - part.shared + shared)
            kept += part.new
        return resident + max(worst, kept + shared + ends.working)

    def parts(self, config: ModelConfig) -> list[Part]:
        """The ends of a model and its blocks in order, those that do nothing left out."""
        if self._kind(config) != self._own_kind:
            refuse_another_kind(config, self.base, self._fixed)
        known = self._parts
        sizes = config.d_model, config.n_head, config.d_inner
        ends = (*sizes, config.d_embed, config.div_val)
        found = [known.get(ends) or self._price(ends, config, None)]
        for spec in config.pattern.blocks:
            if spec.letter != IDENTITY:
                key = (spec, sizes)
                found.append(known.get(key) or self._price(key, config, spec))
        return found

    def _price(self, key: tuple[object, ...], config: ModelConfig, spec: BlockSpec | None) -> Part:
        i, point = find_place(self._tables, config, spec)
        priced, step = self.priced[i], self.step
        if spec is None:
            alone = config.replaced(pattern=IDENTITY)
            features, parameters = ends_features(alone, step), cost(alone).parameters
        else:
            price, features = block_features(config, spec, step)
            parameters = price.parameters
        part = self._parts[key] = Part(
            letter=priced.table.letter,
            seconds=priced.seconds.at(point, features),
            weights=parameters * step.weight_bytes,
            old=round(priced.old.at(point)),
            new=round(priced.new.at(point)),
            working=round(priced.working.at(point)),
            shared=priced.shared,
        )
        return part

    @cached_property
    def _tables(self) -> tuple[Table, ...]:
        return tuple(priced.table for priced in self.priced)

    @cached_property
    def _fixed(self) -> tuple[str, ...]:
        return fixed_fields(self.step, self.varied)

    @cached_property
    def _kind(self) -> Callable[[ModelConfig], tuple[object, ...]]:
        return attrgetter(*self._fixed)

    @cached_property
    def _own_kind(self) -> tuple[object, ...]:
        return self._kind(self.base)

    def refuse_elsewhere(self, device: Device | None = None) -> None:
        """Refuse to speak for another machine than this one, or than the one given."""
        here = describe_device(self.step.threads) if device is None else device
        refuse_elsewhere(self.receipt.device, here)
