"""How large a model does a time pay for?

A model that is too large has seen too little text when its time is over, one that is too small
has nothing left to learn. In between, an equal training ends best.

>>> from parformer.config import preset
>>> [str(rung(preset("pocket"), *size).pattern) for size in LADDER[:3]]
['(sf)x2', '(sf)x3', '(sf)x4']
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from parformer.config import ModelConfig
from parformer.costs import cost
from parformer.pattern import interleaved
from parformer.search.limits import excess

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

PROBE = 3
"""The rung whose update is timed; the others are reckoned from it."""

HEAVIER = 0.85
"""An update of twice the FLOPs takes less than twice as long: larger matrices multiply faster."""

TOKENS_PER_PARAMETER = 2.0
"""Tokens that a finalist reads at least for each of its parameters."""


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
