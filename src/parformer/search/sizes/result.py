"""What did a Pareto search find, is it true, and what is it worth?

The front is thinned to what people can look at, built and measured, beside the model that is
merely scaled in layers. Predicted and measured stand side by side.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parformer import __version__
from parformer.config import ModelConfig
from parformer.costs import cost
from parformer.events import Watch
from parformer.measure.device import Receipt
from parformer.measure.models import step_words
from parformer.measure.readings import Meter, Series, in_batches, measure_here
from parformer.measure.remembered import Remembered
from parformer.pattern import Pattern
from parformer.search.front import front, hypervolume, thin
from parformer.search.sizes.evolution import Plan
from parformer.search.sizes.job import Ended, Wanted, nothing_within
from parformer.search.sizes.objectives import Figures, countable
from parformer.search.sizes.picking import Row, figure
from parformer.search.sizes.quality import make_quality

FORMAT = "parformer-pareto-1"
MEASURED = "measured.jsonl"
SHOWN = 20
"""Architectures of the front that are measured and shown."""
ROUNDS = 8
"""How often each of them is timed: the fewest that can tell two apart."""
MOVED = 0.1
"""The share by which a device's pace may move before that is worth a warning."""
DOTS = 3000
"""Visited candidates that a picture has behind them."""


def showcase(
    ended: Ended,
    *,
    command: str = "",
    meter: Meter | None = measure_here,
    shown: int = SHOWN,
    watch: Watch | None = None,
    folder: Path | None = None,
) -> dict[str, Any]:
    """What pareto.json says; without a meter nothing is measured.

    What was measured is kept in `folder`, and not measured again.
    """
    wanted = ended.wanted
    fine = [i for i, one in enumerate(ended.scored) if one.values is not None and not one.excess]
    if not fine:
        raise nearest_error(ended)
    values = np.array([ended.scored[i].values for i in fine])
    # of candidates that are alike in every objective, the first
    kept = {tuple(row): i for i, row in reversed([*zip(fine, values.tolist(), strict=True)])}
    firsts = set(kept.values())
    best = [i for i, flag in zip(fine, front(values), strict=True) if flag and i in firsts]
    baseline = within_reach(baseline_rows(wanted), max(ended.figures[i]["quality"] for i in best))
    picked = choose(ended, best, baseline, shown)
    rows = [front_row(ended, i) for i in picked]
    receipt, measuring, pace = None, 0.0, 1.0
    if meter is not None and wanted.clocked:
        began = time.monotonic()
        with ExitStack() as stack:
            if folder is not None:
                meter = stack.enter_context(Remembered(meter, folder / MEASURED))
            series = measure_rows(ended, rows, baseline, meter, watch)
            receipt, pace = series.receipt, follow_pace(ended, rows, series)
        measuring = time.monotonic() - began
    name_rows(rows)
    return {
        "format": FORMAT,
        "space": about_space(wanted),
        "objectives": list(wanted.objectives),
        "proxy": wanted.grading.proxy,
        "limits": dict(ended.limits),
        "step": about_step(wanted),
        "plan": {"sampler": wanted.sampler, **wanted.plan.to_dict()},
        "latency_by": wanted.latency_by,
        "pace": pace,
        "evaluated": len(ended.scored),
        "visited": visited(ended.figures, wanted.objectives),
        "front_size": len(best),
        "front": rows,
        "baseline": baseline,
        "savings": savings(rows, baseline),
        "hypervolume": volumes(ended),
        "errors": errors(rows),
        "profile": about_profile(ended),
        "seconds": {**ended.seconds, "measure": measuring},
        "receipt": None if receipt is None else receipt.to_dict(),
        "device": about_device(receipt, wanted),
        "warnings": pace_words(pace),
        "command": command,
        "version": __version__,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def nearest_error(ended: Ended) -> Exception:
    usable = [i for i, one in enumerate(ended.scored) if one.values is not None]
    nearest = min(usable, key=lambda i: ended.scored[i].excess)
    genome, figures = ended.scored[nearest].genome, ended.figures[nearest]
    return nothing_within(ended.limits, genome, figures, ended.wanted.space)


def choose(ended: Ended, best: Sequence[int], baseline: Sequence[Row], most: int) -> list[int]:
    """Well-spread members of the front, those among them that the baseline is compared with."""
    objectives = ended.wanted.objectives
    matches = []
    for row in baseline:
        equal = [i for i in best if ended.figures[i]["quality"] >= row["quality"]]
        for metric in ("latency", "memory"):
            if equal and metric in objectives:
                matches.append(min(equal, key=lambda i: ended.figures[i][metric]))
    first = [best.index(i) for i in dict.fromkeys(matches)]
    values = np.array([ended.scored[i].values for i in best])
    places = thin(in_ratios(values), most, first=first[: most // 2])
    order = "latency" if "latency" in ended.figures[best[0]] else "quality"
    return sorted((best[place] for place in places), key=lambda i: ended.figures[i][order])


def in_ratios(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The same order on a scale on which twice as much is equally far everywhere.

    >>> in_ratios(np.array([[1.0, -8.0], [2.0, -4.0], [4.0, -2.0]])).round(2).tolist()
    [[0.0, -2.08], [0.69, -1.39], [1.39, -0.69]]
    """
    signs = np.sign(values)
    one_sign = (signs == signs[:1]).all(axis=0) & (signs != 0).all(axis=0)
    size = np.where(one_sign, np.abs(values), 1.0)
    return np.where(one_sign, signs * np.log(size), values)


def front_row(ended: Ended, number: int) -> Row:
    genome, figures = ended.scored[number].genome, ended.figures[number]
    config = ended.wanted.space.config(genome)
    row = model_row(config, figures)
    row |= {"digest": genome.digest, "genome": genome.text, "layers": len(genome.layers)}
    if ended.wanted.clocked:
        by = "predicted" if ended.wanted.latency_by == "profile" else "measured"
        row[by] = {"latency": figures["latency"], "memory": figures["memory"]}
    return row


def model_row(config: ModelConfig, figures: Mapping[str, float]) -> Row:
    return {
        "name": "",
        "pattern": str(config.pattern),
        "fields": {name: getattr(config, name) for name in ("d_model", "d_embed", "div_val")},
        "quality": figures["quality"],
        "parameters": int(figures["parameters"]),
        "decoder_parameters": int(figures["decoder_parameters"]),
        "flops": int(figures["flops"]),
        "state_bytes": int(figures["state"]),
        "predicted": None,
        "measured": None,
        "tie": False,
    }


def baseline_rows(wanted: Wanted) -> list[Row]:
    """The model that the space is like, with one layer, two, and so on."""
    like, unit = wanted.space.like, len(wanted.space.unit)
    first = like.pattern[:unit]
    repeats = len(like.pattern) // unit
    scaled = repeats * unit == len(like.pattern) and first * repeats == like.pattern
    depths = range(1, int(wanted.space.layers.values[-1]) + 1)
    patterns: dict[int, Pattern] = {repeats: like.pattern}
    if scaled and not wanted.grading.expensive and depths.stop <= 33:
        patterns = {depth: first * depth for depth in depths}
    quality = make_quality(wanted.grading, like)
    rows = []
    for depth, pattern in patterns.items():
        config = like.replaced(pattern=pattern)
        shape = wanted.step.shape(config)
        price = cost(config, tgt_len=shape.tgt_len, mem_len=shape.mem_len, batch=wanted.step.batch)
        figures: Figures = {"quality": quality(config, price), **countable(price)}
        row = model_row(config, figures)
        row |= {"layers": depth, "name": f"{depth} layer{'s' * (depth > 1)}"}
        rows.append(row)
    return rows


def within_reach(baseline: list[Row], quality: float) -> list[Row]:
    """Baselines that the front can be compared with, and the first one beyond."""
    beyond = [i for i, row in enumerate(baseline) if row["quality"] > quality]
    return baseline[: beyond[0] + 1] if beyond else baseline


def measure_rows(
    ended: Ended,
    rows: Sequence[Row],
    baseline: Sequence[Row],
    meter: Meter,
    watch: Watch | None,
) -> Series:
    """Measure front and baseline in one series, and write it into the rows."""
    wanted, like = ended.wanted, ended.wanted.space.like
    configs = {f"front {i}": row_config(like, row) for i, row in enumerate(rows)}
    configs |= {f"baseline {i}": row_config(like, row) for i, row in enumerate(baseline)}
    progress = None if watch is None else watch.preparing
    step = replace(wanted.step, rounds=ROUNDS)
    # every batch has it: the one that the profile was made beside, else one that is timed quickly
    light = sorted(rows, key=lambda row: float(row["flops"]))[len(rows) // 4]
    reference = row_config(like, light) if ended.profile is None else ended.profile.reference
    series = in_batches(configs, step, meter, reference=reference, progress=progress)
    for row, reading in zip([*rows, *baseline], series.readings, strict=True):
        row["measured"] = {
            "latency": reading.median,
            "latency_interval": [reading.low, reading.high],
            "memory": reading.peak_bytes,
        }
    for row, tie in zip(rows[:-1], series.ties, strict=False):
        row["tie"] = tie
    return series


def follow_pace(ended: Ended, rows: Sequence[Row], series: Series) -> float:
    """How much slower the device is than when it was profiled; predictions follow it.

    The model that the profile was made beside is timed again with the front: a device whose
    pace moved, by heat or by its neighbours, moved it too.
    """
    if ended.profile is None:
        return 1.0
    pace = series.reference_seconds / ended.profile.reference_seconds
    for row in rows:
        if row["predicted"]:
            row["predicted"] = {**row["predicted"], "latency": pace * row["predicted"]["latency"]}
    return pace


def pace_words(pace: float) -> list[str]:
    """A warning where the device is no longer what it was."""
    if abs(pace - 1) <= MOVED:
        return []
    return [
        f"Steps take {pace:.2f} times as long as when this device was profiled. Predictions follow "
        "that; limits of latency were kept at the profile's pace. --again profiles anew."
    ]


def row_config(like: ModelConfig, row: Row) -> ModelConfig:
    return like.replaced(pattern=row["pattern"], **row["fields"])


def name_rows(rows: Sequence[Row]) -> None:
    for number, row in enumerate(rows, start=1):
        row["name"] = f"g{number}"


def savings(rows: Sequence[Row], baseline: Sequence[Row]) -> dict[str, Any] | None:
    """At equal quality, how much faster and smaller: LiteTransformerSearch's section 4.4.

    For every baseline whose quality the front reaches: the fastest and the smallest model that
    is no worse, for the averages; and one model that is better in both, for the two ratios.
    """
    compared = []
    for base in baseline:
        latency, memory = figure(base, "latency"), figure(base, "memory")
        equal = [row for row in rows if row["quality"] >= base["quality"]]
        if latency is None or memory is None or not equal:
            continue
        costs = [(figure(row, "latency") or 0.0, figure(row, "memory") or 0.0) for row in equal]
        both = min(
            range(len(equal)), key=lambda i: (costs[i][0] / latency) * (costs[i][1] / memory)
        )
        compared.append(
            {
                "layers": base["layers"],
                "quality": base["quality"],
                "latency": latency,
                "memory": memory,
                "found": equal[both]["name"],
                "found_latency": costs[both][0],
                "found_memory": costs[both][1],
                "speedup": latency / costs[both][0],
                "memory_ratio": memory / costs[both][1],
                "fastest": min(cost[0] for cost in costs) / latency,
                "smallest": min(cost[1] for cost in costs) / memory,
            }
        )
    if not compared:
        return None
    return {
        "rows": compared,
        "latency_saved": 1 - float(np.mean([row["fastest"] for row in compared])),
        "memory_saved": 1 - float(np.mean([row["smallest"] for row in compared])),
        "largest": compared[-1],
    }


def errors(rows: Sequence[Row]) -> dict[str, Any] | None:
    """How far predictions are from what was measured, over the front."""
    both = [row for row in rows if row["predicted"] and row["measured"]]
    if not both:
        return None
    return {metric: error_of(both, metric) for metric in ("latency", "memory")}


def error_of(rows: Sequence[Row], metric: str) -> dict[str, float]:
    off = [abs(row["predicted"][metric] / row["measured"][metric] - 1) for row in rows]
    median, high, worst = np.quantile(off, [0.5, 0.9, 1.0])
    return {"median": float(median), "p90": float(high), "worst": float(worst)}


def volumes(ended: Ended) -> dict[str, Any]:
    """How much of the space between the best and the first generation's worst is dominated."""
    plan: Plan = ended.wanted.plan
    usable = [i for i, one in enumerate(ended.scored) if one.values is not None and not one.excess]
    values = np.array([ended.scored[i].values for i in usable])
    start = values[: sum(i < plan.population for i in usable)]
    corner = (start if len(start) else values).max(axis=0)
    ideal = values.min(axis=0)
    scaled = (values - ideal) / np.where(corner > ideal, corner - ideal, 1.0)
    by_iteration = []
    for iteration in range(1, plan.iterations + 1):
        some = scaled[: sum(i < plan.start(iteration) for i in usable)]
        by_iteration.append(hypervolume(some, np.ones(len(ideal))) if len(some) else 0.0)
    return {"reference": corner.tolist(), "ideal": ideal.tolist(), "by_iteration": by_iteration}


def visited(figures: Sequence[Figures], objectives: Sequence[str]) -> dict[str, list[float]]:
    some = [one for one in figures if one]
    some = some[:: max(1, -(-len(some) // DOTS))]
    return {name: [one[name] for one in some] for name in objectives}


def about_space(wanted: Wanted) -> dict[str, Any]:
    space = wanted.space
    return {
        "name": space.name,
        "title": space.title,
        "size": float(space.size),
        "like": str(space.like.pattern),
        "recipe": space.recipe,
        "family": space.like.family,
        "model": space.like.to_dict(),
    }


def about_step(wanted: Wanted) -> dict[str, Any]:
    shape = wanted.step.shape(wanted.space.like)
    words = f"{step_words(shape.tgt_len, shape.mem_len)}, batch {shape.batch}"
    return wanted.step.to_dict() | {
        "tgt_len": shape.tgt_len,
        "mem_len": shape.mem_len,
        "words": f"{words}, {wanted.step.precision}",
    }


def about_profile(ended: Ended) -> dict[str, Any] | None:
    if ended.profile is None:
        return None
    error = ended.profile.error
    return {
        "seconds": ended.seconds["profile"],
        "measured": ended.profile.receipt.date,
        "held_out": None if error is None else asdict(error),
    }


def about_device(receipt: Receipt | None, wanted: Wanted) -> dict[str, Any]:
    receipt = receipt or Receipt.issue("a search", threads=wanted.step.threads)
    device = receipt.device
    return {"cpu": device.cpu, "threads": receipt.threads, "torch": device.torch}
