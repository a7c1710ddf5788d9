"""What does every block of a search space cost on this device?

Measured once: stacks of each block at a few of its sizes, embedding and head at theirs, and a
few whole models. The first half of those calibrates, as the whole is not quite the sum of its
parts (caches, Python between kernels); the other half tells how far predictions can be trusted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from random import Random

import numpy as np

import parformer
from parformer.config import ModelConfig
from parformer.costs import cost
from parformer.events import Preparing
from parformer.measure.cache import Logbook, digest, facts, model_key
from parformer.measure.device import Device, describe_device
from parformer.measure.grid import Grid, Place, Surface, fit
from parformer.measure.models import step_words
from parformer.measure.prediction import CONSTANT, Accuracy, Priced, Profile, Spread
from parformer.measure.readings import (
    REFERENCE,
    Meter,
    Reading,
    Step,
    cut,
    measure_here,
    part_of,
    weights_bytes,
)
from parformer.measure.tables import (
    ENDS,
    IDENTITY,
    BlockRange,
    Sizes,
    Table,
    block_features,
    deep,
    ends_at,
    ends_features,
    find_place,
    fixed_fields,
    reference_of,
    refuse_another_kind,
    stack,
    tables_of,
)
from parformer.pattern import BlockSpec, Pattern
from parformer.store.files import cache_folder

__all__ = ["Accuracy", "BlockRange", "Profile", "Sizes", "Spread", "profile_device"]

BATCH_BYTES = 1 << 30
"""Weights of models that are timed in the same rounds: the more, the better they compare, but a
profile that is stopped goes on after the last whole batch."""

RUNS = 3
"""Times that a model runs besides its rounds, before and while it is known how fast it is."""

DRAWING = 600
"""FLOPs that take as long as giving one weight its random value."""

TRUST, TRUST_CONSTANT = (0.03 / 0.15) ** 2, 0.03**2
"""How strongly weights are held at one, and the constant at nought: a whole model's time is known
to 3%, a weight to 15%, and the constant to the unit that it is counted in."""

SHORT = 0.02
"""That unit, as a share of a typical time."""

FREE = (ENDS, "f")
"""What leaves nothing to later blocks of a step."""

PROBE = 32 << 20
"""Bytes of weights that a probe for memory may have."""

SHORTEST = 1e-9
"""Seconds of a block that no clock could tell from none."""


def profile_device(
    sizes: Sizes,
    *,
    meter: Meter = measure_here,
    device: Device | None = None,
    folder: Path | None = None,
    whole: Sequence[ModelConfig] = (),
    progress: Preparing | None = None,
    again: bool = False,
) -> Profile:
    """Measure block costs, or take them from where an earlier call left them.

    meter: who measures; for another machine than this one, give its `device` too.
    folder: where readings are kept; the user's cache folder unless given.
    whole: whole candidates: the first half calibrates, the second half tells the error.
    again: measure everything anew.
    """
    tables = tables_of(sizes)
    fixed = fixed_fields(sizes.step, tuple(sizes.fields))
    for config in whole:
        refuse_another_kind(config, sizes.base, fixed)
        for spec in (None, *config.pattern):
            if spec is None or spec.letter != IDENTITY:
                find_place(tables, config, spec)
    reference = reference_of(sizes, tables)
    device = describe_device(sizes.step.threads) if device is None else device
    folder = cache_folder() / "profiles" if folder is None else folder
    name = digest(facts(device), parformer.__version__, model_key(reference, sizes.step))
    survey = Survey(
        sizes=sizes,
        tables=tables,
        reference=reference,
        meter=meter,
        log=Logbook(folder / f"{name}.jsonl", device, again=again),
        whole=whole,
        progress=progress,
    )
    return survey.run()


@dataclass(frozen=True, kw_only=True)
class Survey:
    """The work of measuring: what is still missing, in batches, then tables of what it cost."""

    sizes: Sizes
    tables: tuple[Table, ...]
    reference: ModelConfig
    meter: Meter
    log: Logbook
    whole: Sequence[ModelConfig]
    progress: Preparing | None

    @property
    def step(self) -> Step:
        return self.sizes.step

    @cached_property
    def counting(self) -> Step:
        """A step whose memory matters, and not its time."""
        return replace(self.step, rounds=1)

    def run(self) -> Profile:
        stages = [
            (self.timed(), self.step),
            (self.shallow(), self.counting),
            (self.whole, self.step),
        ]
        efforts = [sum(effort(config, step) for config in configs) for configs, step in stages]
        done = 0.0
        for (configs, step), work in zip(stages, efforts, strict=True):
            share = work / sum(efforts)
            self.measure(configs, step, done, share)
            done += share
        self.measure(self.probes(), self.counting, 1.0, 0.0)
        return self.checked(self.calibrated(self.profile()))

    def measure(
        self, configs: Iterable[ModelConfig], step: Step, done: float, share: float
    ) -> None:
        """What the log lacks; in random order, so that a slow minute hits no part of a grid."""
        keys = {model_key(config, step): config for config in configs}
        names = [key for key in keys if key not in self.log.readings]
        Random(0).shuffle(names)
        batches = cut({name: keys[name] for name in names}, step, most_bytes=BATCH_BYTES)
        beside = {} if step is self.counting else {REFERENCE: self.reference}
        for i, batch in enumerate(batches):
            models = beside | {name: keys[name] for name in batch}
            part = part_of(self.progress, done + share * i / len(batches), share / len(batches))
            readings = self.meter(models, step, part)
            for name in models:
                readings[name]  # a meter that left one out is refused here
            self.log.add(readings)

    def timed(self) -> list[ModelConfig]:
        """Stacks of every block, the same models without blocks, and the ends."""
        found = []
        for table in self.tables:
            for point in map(table.point, table.places):
                found.append(ends_at(self.sizes.base, table, point))
                if table.letter != ENDS:
                    found.append(deep(self.sizes, point[0], table.spec(point)))
        return found

    def shallow(self) -> list[ModelConfig]:
        """Every block by itself: beside a stack it tells what a block keeps."""
        return [
            stack(self.sizes.base, point[0], table.spec(point), 1)
            for table in self.tables
            if table.letter != ENDS
            for point in map(table.point, table.places)
        ]

    def probes(self) -> list[ModelConfig]:
        return [c for table in self.tables if table.letter not in FREE for c in self.probe(table)]

    def probe(self, table: Table) -> tuple[ModelConfig, ModelConfig]:
        """A block before a feed-forward that needs more memory, and the latter alone."""
        width, *_ = point = table.point(table.places[0])
        alone = stack(self.sizes.base, width, table.spec(point), 1)
        shape = self.step.shape(alone)
        bytes_each = self.step.weight_bytes
        wanted = 2 * self.reading(alone, self.counting).working_bytes
        inner = math.ceil(wanted / (shape.batch * shape.tgt_len * bytes_each))
        # where a step is short that would be a huge block, and then little is shared
        wide = BlockSpec("f", {"inner": min(inner, PROBE // (2 * width * bytes_each))})
        return (
            alone.replaced(pattern=alone.pattern + Pattern([wide])),
            alone.replaced(pattern=Pattern([wide])),
        )

    def reading(self, config: ModelConfig, step: Step) -> Reading:
        return self.log.readings[model_key(config, step)]

    def seconds(self, config: ModelConfig) -> float:
        multiple, _ = self.log.levels[model_key(config, self.step)]
        return multiple * self.log.pace()

    def noise(self, config: ModelConfig) -> float:
        return self.log.levels[model_key(config, self.step)][1]

    def profile(self) -> Profile:
        receipt = self.log.receipt
        assert receipt is not None, "something was measured"
        shape = self.step.shape(self.reference)
        words = step_words(shape.tgt_len, shape.mem_len)
        letters = {table.letter for table in self.tables}
        return Profile(
            base=self.sizes.base,
            step=self.step,
            varied=tuple(self.sizes.fields),
            priced=tuple(map(self.price, self.tables)),
            weights={CONSTANT: 0.0, **dict.fromkeys(sorted(letters), 1.0)},
            reference=self.reference,
            reference_seconds=self.log.pace(),
            receipt=replace(receipt, what=f"costs of blocks: one step of {words}"),
        )

    def price(self, table: Table) -> Priced:
        """What a table's block takes, from the readings of its nodes."""
        base = self.sizes.base
        seconds: dict[Place, float] = {}
        noise: dict[Place, float] = {}
        features: dict[Place, list[float]] = {}
        old, new, working = (dict.fromkeys(table.places, 0.0) for _ in range(3))
        for place in table.places:
            point = table.point(place)
            ends = ends_at(base, table, point)
            if table.letter == ENDS:
                seconds[place] = self.seconds(ends)
                noise[place] = self.noise(ends)
                features[place] = ends_features(ends, self.step)
                working[place] = self.reading(ends, self.step).working_bytes
                continue
            spec = table.spec(point)
            many, one = deep(self.sizes, point[0], spec), stack(base, point[0], spec, 1)
            copies = len(many.pattern)
            taken = (self.seconds(many) - self.seconds(ends)) / copies
            seconds[place] = max(taken, SHORTEST)
            noise[place] = self.noise(many)
            _, features[place] = block_features(one, spec, self.step)
            stacked, alone = self.reading(many, self.step), self.reading(one, self.counting)
            old[place] = (stacked.resident_bytes - weights_bytes(many, self.step)) / copies
            new[place] = (stacked.working_bytes - alone.working_bytes) / (copies - 1)
            working[place] = alone.working_bytes
        return Priced(
            table=table,
            seconds=Surface.through(table.axes, seconds, features, noise),
            old=Grid.filled(table.axes, old),
            new=Grid.filled(table.axes, new),
            working=Grid.filled(table.axes, working),
            shared=self.shared(table, new),
        )

    def shared(self, table: Table, new: Mapping[Place, float]) -> int:
        """Bytes that a block leaves to those after it, other than what it keeps."""
        if table.letter in FREE:
            return 0
        width, *_ = point = table.point(table.places[0])
        alone = self.reading(stack(self.sizes.base, width, table.spec(point), 1), self.counting)
        both, wide = (self.reading(c, self.counting).working_bytes for c in self.probe(table))
        if both <= alone.working_bytes:
            return 0  # the block's own moment is the worst, so nothing was seen of the other's
        return max(0, round(both - wide - new[table.places[0]]))

    def calibrated(self, profile: Profile) -> Profile:
        """Weights that fit the first half of the whole models, held near one."""
        models = self.whole[: len(self.whole) // 2]
        if not models:
            return profile
        measured = [self.seconds(config) for config in models]
        unit = SHORT * float(np.median(measured))
        letters = [name for name in profile.weights if name != CONSTANT]
        rows = []
        for config in models:
            parts = profile.parts(config)
            sums = [sum(p.seconds for p in parts if p.letter == letter) for letter in letters]
            rows.append([unit, *sums])
        others = len(letters)
        found = fit(
            rows, measured, centre=[0, *[1] * others], pull=[TRUST_CONSTANT, *[TRUST] * others]
        )
        weights = dict(zip(letters, found[1:].tolist(), strict=True))
        return replace(profile, weights={CONSTANT: unit * float(found[0]), **weights})

    def checked(self, profile: Profile) -> Profile:
        """The profile with its errors on the second half of the whole models."""
        models = self.whole[len(self.whole) // 2 :]
        if not models:
            return profile
        peaks = [self.reading(config, self.step).peak_bytes for config in models]
        error = Accuracy(
            models=len(models),
            latency=Spread.of(map(profile.latency, models), map(self.seconds, models)),
            memory=Spread.of(map(profile.peak_bytes, models), peaks),
        )
        return replace(profile, error=error)


def effort(config: ModelConfig, step: Step) -> float:
    """About how long it takes to build and measure a model, in FLOPs."""
    price = cost(config, tgt_len=step.tgt_len, mem_len=step.mem_len, batch=step.batch)
    return DRAWING * price.parameters + (RUNS + 2 * step.rounds) * price.flops_cached
