"""How large a model does a time pay for?

A model that is too large has seen too little text when its time is over, one that is too small
has nothing left to learn. In between, an equal training ends best.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from parformer.config import ModelConfig
from parformer.costs import cost
from parformer.fitting.phases import BASELINE, Baseline
from parformer.fitting.rungs import LADDER as LADDER
from parformer.fitting.rungs import ladder as ladder
from parformer.fitting.rungs import rung as rung
from parformer.fitting.running import Running
from parformer.search.limits import Limit, excess
from parformer.tasks import find_task
from parformer.train.distributed import Workers
from parformer.train.plan import decide, step_seconds
from parformer.train.session import refuse_misfits

RECALL = 2048
"""Tokens of recent text in which repeats are looked for."""

PROBE = 3
"""The rung whose update is timed; the others are reckoned from it."""

HEAVIER = 0.85
"""An update of twice the FLOPs takes less than twice as long: larger matrices multiply faster."""

FINALISTS = 5
"""Models that a size is reckoned for."""

SURVIVE = 0.8
"""The share of all updates that is trained when losers are dropped."""

Burden = Callable[[ModelConfig], float]
"""How many times what a model reads in its time it is to read."""

CLOCKED = ("latency", "memory")
"""What has to be measured; everything else is counted."""


def size(fit: Running) -> Baseline:
    """The baseline, as large as the time and the limits allow, and what it costs."""
    tokens, workers = fit.prepared.splits["train"].tokens, Workers()
    recipe, facts = fit.reading[0], fit.facts
    known = {"model.counts": facts.counts, "model.recall": RECALL if facts.counts else 0}
    recipe = recipe.replaced({"data.identity": fit.prepared.identity, **known})
    rungs = fit.kind.rungs(recipe.model, facts)
    probe = rungs[min(PROBE, len(rungs) - 1)]
    recipe = replace(recipe, model=probe)
    refuse_misfits(recipe, tokens, workers)
    recipe = decide(recipe, tokens, workers, fit.watch.notice)
    if fit.by_clock:
        paces = reckon(rungs, probe, step_seconds(recipe, tokens, workers))
        seconds = fit.seconds_for("contest") / FINALISTS / SURVIVE
    else:
        paces, seconds = [1.0] * len(rungs), float(fit.request.steps or 0)
    task = find_task(recipe)
    if not task.steady:
        task.batches(tokens)  # which tell the task how long its texts are
    most = fit.kind.largest(rungs, facts)
    wanted = [fit.kind.wanted(config, facts) for config in rungs]
    largest = min(most, affordable(wanted, paces, seconds, task.tokens_per_update))
    place = _within_absolute(fit, rungs, largest)
    config, read = rungs[place], seconds / paces[place] * task.tokens_per_update
    reading = fit.measure({BASELINE: config}, fit.step)[BASELINE]
    figures = {**fit.counts(config), "latency": reading.median, "memory": float(reading.peak_bytes)}
    limits = {b.metric: b.of(figures[b.metric]).most for b in fit.request.bounds}
    fit.watch.notice(
        f"Baseline: {config.pattern}, width {config.d_model}, {cost(config).parameters:,} "
        f"parameters, {1000 * reading.median:.3g} ms a step."
    )
    return Baseline(replace(recipe, model=config), figures, limits, read)


def burden(fit: Running) -> Burden | None:
    """Tells how many times what a finalist reads in the contest it is to read: at most once.

    The rule that sizes the baseline; where not even that one reads enough, its measure. None where
    a limit sees to that, and in what older versions began.
    """
    base = fit.baseline
    if not base.tokens or in_step(fit.request.bounds):
        return None

    def share(config: ModelConfig) -> float:
        slower = reckon([config], base.recipe.model, 1.0)[0] if fit.by_clock else 1.0
        return fit.kind.wanted(config, fit.facts) * slower / base.tokens

    most = max(1.0, share(base.recipe.model))
    return lambda config: share(config) / most


def in_step(bounds: Sequence[Limit]) -> bool:
    """Whether a limit holds all models to the baseline's own pace, which the time has decided."""
    return any(b.relative and b.metric in ("latency", "flops") and b.most <= 1 for b in bounds)


def _within_absolute(fit: Running, rungs: Sequence[ModelConfig], largest: int) -> int:
    """The largest rung that keeps limits which are no multiples of the baseline's."""
    limits = {b.metric: b.most for b in fit.request.bounds if not b.relative}
    if not limits:
        return largest
    figures = [{**fit.counts(config)} for config in rungs[: largest + 1]]
    if set(limits) & set(CLOCKED):
        asked = {str(n): config for n, config in enumerate(rungs[: largest + 1])}
        readings = fit.measure(asked, fit.step, rough=True)
        for number, one in enumerate(figures):
            reading = readings[str(number)]
            one |= {"latency": reading.median, "memory": float(reading.peak_bytes)}
    return within(figures, limits, largest)


def reckon(configs: Sequence[ModelConfig], probe: ModelConfig, seconds: float) -> list[float]:
    """About how long an update of each takes, from how long the probe's took."""
    known = cost(probe).flops
    return [seconds * (cost(config).flops / known) ** HEAVIER for config in configs]


def affordable(
    wanted: Sequence[float], paces: Sequence[float], seconds: float, tokens_per_update: int
) -> int:
    """The largest model that reads as much as it is to in so many seconds; else the smallest.

    >>> affordable([1e3, 1e4, 1e5], [0.1, 0.2, 0.3], seconds=2.0, tokens_per_update=1000)
    1
    """
    read = [seconds / pace * tokens_per_update for pace in paces]
    enough = [n for n, tokens in enumerate(read) if tokens >= wanted[n]]
    return max(enough, default=0)


def within(
    figures: Sequence[Mapping[str, float]], limits: Mapping[str, float], largest: int
) -> int:
    """The largest model, up to one, that keeps absolute limits; the smallest if none does."""
    fits = [n for n in range(largest + 1) if excess(figures[n], limits) == 0]
    return fits[-1] if fits else 0
