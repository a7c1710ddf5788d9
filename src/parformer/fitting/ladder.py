"""How large a model does a time pay for?

A model that is too large has seen too little text when its time is over, one that is too small
has nothing left to learn. In between, an equal training ends best.

>>> from parformer.config import preset
>>> [str(rung(preset("pocket"), *size).pattern) for size in LADDER[:3]]
['(sf)x2', '(sf)x3', '(sf)x4']
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from parformer.config import ModelConfig
from parformer.costs import cost
from parformer.fitting.phases import BASELINE, Baseline, TextFacts
from parformer.fitting.running import Running
from parformer.pattern import interleaved
from parformer.search.limits import excess
from parformer.tasks.base import train_length
from parformer.train.distributed import Workers
from parformer.train.plan import decide, fit_vocabulary, step_seconds
from parformer.train.session import refuse_misfits

LADDER = (
    (32, 2),
    (48, 3),
    (64, 4),
    (96, 5),
    (128, 6),
    (192, 6),
    (256, 8),
    (384, 8),
    (512, 12),
    (768, 12),
    (1024, 16),
)
"""Widths, and pairs of attention and feed-forward."""

RECALL = 2048
"""Tokens of recent text in which repeats are looked for."""

PROBE = 3
"""The rung whose update is timed; the others are reckoned from it."""

HEAVIER = 0.85
"""An update of twice the FLOPs takes less than twice as long: larger matrices multiply faster."""

TOKENS_PER_PARAMETER = 2.0
"""Tokens that a finalist reads at least for each of its parameters."""

FINALISTS = 5
"""Models that a size is reckoned for."""

SURVIVE = 0.8
"""The share of all updates that is trained when losers are dropped."""

CLOCKED = ("latency", "memory")
"""What has to be measured; everything else is counted."""


def size(fit: Running) -> Baseline:
    """The baseline, as large as the time and the limits allow, and what it costs."""
    tokens, workers = fit.prepared.splits["train"].tokens, Workers()
    recipe = fit_vocabulary(fit.request.recipe(), fit.prepared.tokenizer, lambda _: None)
    counts = fit.progress.need(TextFacts).counts
    known = {"model.counts": counts, "model.recall": RECALL if counts else 0}
    recipe = recipe.replaced({"data.identity": fit.prepared.identity, **known})
    rungs = ladder(recipe.model)
    recipe = replace(recipe, model=rungs[PROBE])
    refuse_misfits(recipe, tokens, workers)
    recipe = decide(recipe, tokens, workers, fit.watch.notice)
    if fit.by_clock:
        paces = reckon(rungs, rungs[PROBE], step_seconds(recipe, tokens, workers))
        seconds = fit.seconds_for("contest") / FINALISTS / SURVIVE
    else:
        paces, seconds = [1.0] * len(rungs), float(fit.request.steps or 0)
    largest = affordable(rungs, paces, seconds, recipe.train.batch * train_length(recipe))
    config = rungs[_within_absolute(fit, rungs, largest)]
    reading = fit.meter({BASELINE: config}, fit.step)[BASELINE]
    figures = {**fit.counts(config), "latency": reading.median, "memory": float(reading.peak_bytes)}
    limits = {b.metric: b.of(figures[b.metric]).most for b in fit.request.bounds}
    fit.watch.notice(
        f"Baseline: {config.pattern}, width {config.d_model}, {cost(config).parameters:,} "
        f"parameters, {1000 * reading.median:.3g} ms a step."
    )
    return Baseline(replace(recipe, model=config), figures, limits)


def _within_absolute(fit: Running, rungs: Sequence[ModelConfig], largest: int) -> int:
    """The largest rung that keeps limits which are no multiples of the baseline's."""
    limits = {b.metric: b.most for b in fit.request.bounds if not b.relative}
    if not limits:
        return largest
    figures = [{**fit.counts(config)} for config in rungs[: largest + 1]]
    if set(limits) & set(CLOCKED):
        readings = fit.meter({str(n): c for n, c in enumerate(rungs[: largest + 1])}, fit.step)
        for number, one in enumerate(figures):
            reading = readings[str(number)]
            one |= {"latency": reading.median, "memory": float(reading.peak_bytes)}
    return within(figures, limits, largest)


def rung(like: ModelConfig, width: int, pairs: int) -> ModelConfig:
    """The interleaved model of this size, otherwise like the one given."""
    heads = 2 if width < 64 else 4 if width < 256 else 8
    sizes: dict[str, object] = {
        "d_model": width,
        "n_head": heads,
        "d_inner": round(like.d_inner / like.d_model * width / 16) * 16,
        "pattern": interleaved(2 * pairs),
    }
    if like.n_kv_head:
        sizes["n_kv_head"] = max(1, heads // 2)
    return like.replaced(**sizes)


def ladder(like: ModelConfig) -> list[ModelConfig]:
    return [rung(like, *size) for size in LADDER]


def reckon(configs: Sequence[ModelConfig], probe: ModelConfig, seconds: float) -> list[float]:
    """About how long an update of each takes, from how long the probe's took."""
    known = cost(probe).flops
    return [seconds * (cost(config).flops / known) ** HEAVIER for config in configs]


def affordable(
    configs: Sequence[ModelConfig], paces: Sequence[float], seconds: float, tokens_per_update: int
) -> int:
    """The largest model that reads enough in so many seconds; the smallest if none does."""
    best = 0
    for number, (config, pace) in enumerate(zip(configs, paces, strict=True)):
        read = seconds / pace * tokens_per_update
        if read >= TOKENS_PER_PARAMETER * cost(config).parameters:
            best = number
    return best


def within(
    figures: Sequence[Mapping[str, float]], limits: Mapping[str, float], largest: int
) -> int:
    """The largest model, up to one, that keeps absolute limits; the smallest if none does."""
    fits = [n for n in range(largest + 1) if excess(figures[n], limits) == 0]
    return fits[-1] if fits else 0
