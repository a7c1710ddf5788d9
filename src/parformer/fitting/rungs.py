"""Which sizes does an interleaved model have, step by step?

>>> from parformer.config import preset
>>> [str(rung(preset("pocket"), *size).pattern) for size in LADDER[:3]]
['(sf)x2', '(sf)x3', '(sf)x4']
"""

from __future__ import annotations

from parformer.config import ModelConfig
from parformer.pattern import interleaved

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
