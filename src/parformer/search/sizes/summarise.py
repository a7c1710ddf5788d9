"""What did a search for sizes find, is it true, and what is it worth?

The front is thinned to what people can look at, built and measured, beside the model that is
merely scaled in layers. Predicted and measured stand side by side.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from parformer import __version__
from parformer.config import ModelConfig
from parformer.events import Watch
from parformer.measure.device import Receipt
from parformer.measure.models import step_words
from parformer.measure.prediction import Spread
from parformer.measure.readings import Meter, Series, in_batches
from parformer.measure.remembered import Remembered
from parformer.pattern import Pattern
from parformer.search.front import front, hypervolume, thin
from parformer.search.limits import CLOCKED
from parformer.search.machine import Machine
from parformer.search.sentences import measure_any
from parformer.search.sizes.engine import MEASURED, Ended
from parformer.search.sizes.objectives import Candidate, count, counted, make_quality
from parformer.search.sizes.result import (
    Errors,
    Hypervolume,
    Measured,
    Member,
    Predicted,
    Profiled,
    Sampling,
    Saving,
    Savings,
    SizesResult,
    SpaceSummary,
    StepSummary,
)
from parformer.search.sizes.wanted import Wanted, nothing_within

SHOWN = 20
"""Architectures of the front that are measured and shown."""
ROUNDS = 8
"""How often each of them is timed: the fewest that can tell two apart."""
MOVED = 0.1
"""The share by which a device's pace may move before that is worth a warning."""
DOTS = 3000
"""Visited candidates that a picture has behind them."""


@dataclass(frozen=True)
class Beheld:
    """Front and baseline as they are shown, and what measuring them told."""

    front: tuple[Member, ...]
    baseline: tuple[Member, ...]
    receipt: Receipt | None = None
    pace: float = 1.0
    seconds: float = 0.0


def summarise(
    ended: Ended,
    *,
    command: str = "",
    meter: Meter | None = measure_any,
    shown: int = SHOWN,
    watch: Watch | None = None,
    folder: Path | None = None,
) -> SizesResult:
    """What pareto.json says; without a meter nothing is measured.

    What was measured is kept in `folder`, and not measured again.
    """
    wanted = ended.wanted
    best = unbeaten(ended)
    baseline = within_reach(baseline_of(wanted), max(one.figures["quality"] for one in best))
    picked = choose(wanted, best, baseline, shown)
    beheld = Beheld(
        tuple(member_of(wanted, one, f"g{i}") for i, one in enumerate(picked, start=1)), baseline
    )
    if meter is not None and wanted.clocked:
        beheld = measure_all(ended, beheld, meter, watch or Watch(), folder)
    receipt = beheld.receipt or Receipt.issue("a search", threads=wanted.step.threads)
    return SizesResult(
        space=about_space(wanted),
        objectives=wanted.objectives,
        proxy=wanted.grading.proxy,
        limits=dict(ended.limits),
        step=about_step(wanted),
        plan=Sampling(sampler=wanted.sampler, **wanted.plan.to_dict()),
        latency_by=wanted.latency_by,
        pace=beheld.pace,
        evaluated=len(ended.candidates),
        visited=visited(ended.candidates, wanted.objectives),
        front_size=len(best),
        front=beheld.front,
        baseline=beheld.baseline,
        savings=savings(beheld.front, beheld.baseline),
        hypervolume=volumes(ended),
        errors=errors(beheld.front),
        profile=about_profile(ended),
        seconds={**ended.seconds, "measure": beheld.seconds},
        receipt=beheld.receipt,
        device=Machine.of(receipt.device, receipt.threads),
        warnings=pace_words(beheld.pace),
        command=command,
        version=__version__,
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
    )


def unbeaten(ended: Ended) -> list[Candidate]:
    """The front; of candidates that are alike in every objective, the first."""
    fine = [one for one in ended.candidates if one.fits]
    if not fine:
        usable = [one for one in ended.candidates if one.values is not None]
        raise nothing_within(ended.limits, usable, ended.wanted.space)
    flags = front(np.array([one.values for one in fine]))
    best = [one for one, flag in zip(fine, flags, strict=True) if flag]
    return list({one.values: one for one in reversed(best)}.values())[::-1]


def choose(
    wanted: Wanted, best: Sequence[Candidate], baseline: Sequence[Member], most: int
) -> list[Candidate]:
    """Well-spread members of the front, those among them that the baseline is compared with."""
    matches = []
    for base in baseline:
        equal = [i for i, one in enumerate(best) if one.figures["quality"] >= base.quality]
        for metric in CLOCKED:
            if equal and metric in wanted.objectives:
                matches.append(min(equal, key=lambda i: best[i].figures[metric]))
    values = np.array([one.values for one in best])
    first = list(dict.fromkeys(matches))
    places = thin(in_ratios(values), most, first=first[: most // 2])
    order = "latency" if "latency" in best[0].figures else "quality"
    return sorted((best[place] for place in places), key=lambda one: one.figures[order])


def in_ratios(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The same order on a scale on which twice as much is equally far everywhere.

    >>> in_ratios(np.array([[1.0, -8.0], [2.0, -4.0], [4.0, -2.0]])).round(2).tolist()
    [[0.0, -2.08], [0.69, -1.39], [1.39, -0.69]]
    """
    signs = np.sign(values)
    one_sign = (signs == signs[:1]).all(axis=0) & (signs != 0).all(axis=0)
    size = np.where(one_sign, np.abs(values), 1.0)
    return np.where(one_sign, signs * np.log(size), values)


def member_of(wanted: Wanted, one: Candidate, name: str) -> Member:
    """A candidate as the result shows it."""
    genome, figures = one.genome, one.figures
    member = make_member(name, wanted.space.config(genome), figures, len(genome.layers))
    member = replace(member, encoder_layers=len(genome.encoder))
    member = replace(member, digest=genome.digest, genome=genome.text)
    if not wanted.clocked:
        return member
    latency, memory = figures["latency"], figures["memory"]
    if wanted.latency_by == "profile":
        return replace(member, predicted=Predicted(latency=latency, memory=memory))
    return replace(member, measured=Measured(latency=latency, memory=memory))


def make_member(
    name: str, config: ModelConfig, figures: Mapping[str, float], layers: int
) -> Member:
    return Member(
        name=name,
        pattern=config.pattern,
        fields={name: getattr(config, name) for name in ("d_model", "d_embed", "div_val")},
        layers=layers,
        quality=figures["quality"],
        parameters=int(figures["parameters"]),
        decoder_parameters=int(figures["decoder_parameters"]),
        flops=int(figures["flops"]),
        state_bytes=int(figures["state"]),
    )


def baseline_of(wanted: Wanted) -> tuple[Member, ...]:
    """The model that the space is like, with one layer, two, and so on."""
    like, space = wanted.space.like, wanted.space
    first, repeats = unit_of(like.pattern, len(space.unit))
    before, scaled = None, first is not None
    if like.pattern.encoder is not None and space.encoder:
        before, own = unit_of(like.pattern.encoder, len(space.encoder))
        scaled = scaled and before is not None and own == repeats
    depths = range(1, int(space.layers.values[-1]) + 1)
    patterns: dict[int, Pattern] = {repeats: like.pattern}
    if first is not None and scaled and not wanted.grading.expensive and depths.stop <= 33:
        patterns = {
            depth: Pattern((first * depth).blocks, None if before is None else before * depth)
            for depth in depths
        }
    quality = make_quality(wanted.grading, like)
    members = []
    for depth, pattern in patterns.items():
        config = like.replaced(pattern=pattern)
        price = count(config, wanted.step)
        figures = {"quality": quality(config, price), **counted(config, wanted.step)}
        member = make_member(f"{depth} layer{'s' * (depth > 1)}", config, figures, depth)
        members.append(replace(member, encoder_layers=depth if before is not None else 0))
    return tuple(members)


def unit_of(pattern: Pattern, size: int) -> tuple[Pattern | None, int]:
    """What a stack repeats in units of so many blocks, None if it does not, and how often.

    >>> unit_of(Pattern.parse("(sf)x3"), 2), unit_of(Pattern.parse("sfff"), 2)
    ((Pattern('sf'), 3), (None, 2))
    """
    blocks, repeats = Pattern(pattern.blocks), len(pattern) // size
    first = Pattern(pattern.blocks[:size])
    return (first if first * repeats == blocks else None), repeats


def within_reach(baseline: tuple[Member, ...], quality: float) -> tuple[Member, ...]:
    """Baselines that the front can be compared with, and the first one beyond."""
    beyond = [i for i, base in enumerate(baseline) if base.quality > quality]
    return baseline[: beyond[0] + 1] if beyond else baseline


def measure_all(
    ended: Ended, beheld: Beheld, meter: Meter, watch: Watch, folder: Path | None
) -> Beheld:
    """Measure front and baseline in one series; predictions follow the device's pace."""
    began = time.monotonic()
    with ExitStack() as stack:
        if folder is not None:
            meter = stack.enter_context(Remembered(meter, folder / MEASURED))
        series = measure_series(ended, beheld, meter, watch)
    pace = 1.0
    if ended.profile is not None:
        # the model that the profile was made beside was timed again: a device whose pace moved,
        # by heat or by its neighbours, moved it too
        pace = series.reference_seconds / ended.profile.reference_seconds
    read = [
        replace(
            member,
            measured=Measured(
                latency=reading.median,
                memory=reading.peak_bytes,
                latency_interval=(reading.low, reading.high),
            ),
            predicted=at_pace(member.predicted, pace),
        )
        for member, reading in zip((*beheld.front, *beheld.baseline), series.readings, strict=True)
    ]
    count = len(beheld.front)
    ties = (*series.ties[: count - 1], False)
    shown = tuple(replace(one, tie=tie) for one, tie in zip(read[:count], ties, strict=True))
    seconds = time.monotonic() - began
    return Beheld(shown, tuple(read[count:]), series.receipt, pace, seconds)


def measure_series(ended: Ended, beheld: Beheld, meter: Meter, watch: Watch) -> Series:
    like = ended.wanted.space.like
    configs = {f"front {i}": one.config(like) for i, one in enumerate(beheld.front)}
    configs |= {f"baseline {i}": one.config(like) for i, one in enumerate(beheld.baseline)}
    step = replace(ended.wanted.step, rounds=ROUNDS)
    # every batch has it: the one that the profile was made beside, else one that is timed quickly
    light = sorted(beheld.front, key=lambda one: one.flops)[len(beheld.front) // 4]
    reference = light.config(like) if ended.profile is None else ended.profile.reference
    return in_batches(configs, step, meter, reference=reference, progress=watch.preparing)


def at_pace(predicted: Predicted | None, pace: float) -> Predicted | None:
    return None if predicted is None else replace(predicted, latency=pace * predicted.latency)


def pace_words(pace: float) -> tuple[str, ...]:
    """A warning where the device is no longer what it was."""
    if abs(pace - 1) <= MOVED:
        return ()
    return (
        f"Steps take {pace:.2f} times as long as when this device was profiled. Predictions follow "
        "that; limits of latency were kept at the profile's pace. --again profiles anew.",
    )


class Costed(Protocol):
    """A model of known quality and costs."""

    @property
    def name(self) -> str: ...
    @property
    def layers(self) -> int: ...
    @property
    def quality(self) -> float: ...
    def figure(self, metric: str) -> float | None: ...


def savings(members: Sequence[Costed], baseline: Sequence[Costed]) -> Savings | None:
    """At equal quality, how much faster and smaller: LiteTransformerSearch's section 4.4.

    For every baseline whose quality the front reaches: the fastest and the smallest model that
    is no worse, for the averages; and one model that is better in both, for the two ratios.
    """
    found = [saving_of(members, base) for base in baseline]
    rows = tuple(saving for saving in found if saving is not None)
    if not rows:
        return None
    return Savings(
        rows=rows,
        latency_saved=1 - float(np.mean([row.fastest for row in rows])),
        memory_saved=1 - float(np.mean([row.smallest for row in rows])),
        largest=rows[-1],
    )


def saving_of(members: Sequence[Costed], base: Costed) -> Saving | None:
    latency, memory = base.figure("latency"), base.figure("memory")
    equal = [one for one in members if one.quality >= base.quality]
    if latency is None or memory is None or not equal:
        return None
    costs = [(one.figure("latency") or 0.0, one.figure("memory") or 0.0) for one in equal]
    both = min(range(len(equal)), key=lambda i: (costs[i][0] / latency) * (costs[i][1] / memory))
    return Saving(
        layers=base.layers,
        quality=base.quality,
        latency=latency,
        memory=memory,
        found=equal[both].name,
        found_latency=costs[both][0],
        found_memory=costs[both][1],
        speedup=latency / costs[both][0],
        memory_ratio=memory / costs[both][1],
        fastest=min(seconds for seconds, _ in costs) / latency,
        smallest=min(peak for _, peak in costs) / memory,
    )


def errors(members: Sequence[Member]) -> Errors | None:
    """How far predictions are from what was measured, over the front."""
    both = [(one.predicted, one.measured) for one in members if one.predicted and one.measured]
    if not both:
        return None
    return Errors(
        latency=Spread.of([p.latency for p, _ in both], [m.latency for _, m in both]),
        memory=Spread.of([p.memory for p, _ in both], [m.memory for _, m in both]),
    )


def volumes(ended: Ended) -> Hypervolume:
    """How much of the space between the best and the first generation's worst is dominated."""
    plan = ended.wanted.plan
    usable = [i for i, one in enumerate(ended.candidates) if one.fits]
    values = np.array([ended.candidates[i].values for i in usable])
    start = values[: sum(i < plan.population for i in usable)]
    corner = (start if len(start) else values).max(axis=0)
    ideal = values.min(axis=0)
    scaled = (values - ideal) / np.where(corner > ideal, corner - ideal, 1.0)
    by_iteration = []
    for iteration in range(1, plan.iterations + 1):
        some = scaled[: sum(i < plan.start(iteration) for i in usable)]
        by_iteration.append(hypervolume(some, np.ones(len(ideal))) if len(some) else 0.0)
    return Hypervolume(
        reference=tuple(corner.tolist()),
        ideal=tuple(ideal.tolist()),
        by_iteration=tuple(by_iteration),
    )


def visited(
    candidates: Sequence[Candidate], objectives: Sequence[str]
) -> dict[str, tuple[float, ...]]:
    some = [one.figures for one in candidates if one.figures]
    some = some[:: max(1, -(-len(some) // DOTS))]
    return {name: tuple(figures[name] for figures in some) for name in objectives}


def about_space(wanted: Wanted) -> SpaceSummary:
    space = wanted.space
    return SpaceSummary(
        name=space.name,
        title=space.title,
        size=float(space.size),
        like=space.like.pattern,
        recipe=space.recipe,
        family=space.like.family,
        model=space.like,
    )


def about_step(wanted: Wanted) -> StepSummary:
    shape = wanted.step.shape(wanted.space.like)
    step = replace(wanted.step, tgt_len=shape.tgt_len, mem_len=shape.mem_len)
    words = f"{step_words(shape.tgt_len, shape.mem_len)}, batch {shape.batch}, {step.precision}"
    if step.source:
        how = f"{step.beam} beams" if step.beam > 1 else "greedy"
        words = f"a whole text of {step.tgt_len} tokens from {step.source}, {how}, {step.precision}"
    return StepSummary(**step.to_dict(), words=words)


def about_profile(ended: Ended) -> Profiled | None:
    if ended.profile is None:
        return None
    return Profiled(
        seconds=ended.seconds["profile"],
        measured=ended.profile.receipt.date,
        held_out=ended.profile.error,
    )
