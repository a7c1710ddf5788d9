"""IB-BERT, MobileBERT's teacher, by the conventions of Google's code."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from parformer.convert.checkpoint import Foreign, activation
from parformer.convert.mobilebert import convert
from parformer.errors import ConfigError
from parformer.model import Model

SOFT = "score*mask - 6*(1-mask)"
MASKS = {"-inf": 0.0, SOFT: -6.0}
"""What `mask` of a configuration may say, and what a place without a token scores then."""


def from_ib_bert(weights: Mapping[str, Tensor], config: Foreign) -> Model:
    """IB-BERT, under the names that Hugging Face gives to MobileBERT's weights.

    Hugging Face cannot build it, so there are none of its checkpoints; `gelu` is the tanh form, as
    in Google's code. Padding is not seen, unless the configuration says
    `"mask": "score*mask - 6*(1-mask)"` as that code does: it is seen a little then.
    """
    mask = config.get("mask", "-inf")
    if mask not in MASKS:
        raise ConfigError(f"unknown mask {mask!r}; known: {', '.join(map(repr, MASKS))}")
    name = config.get("hidden_act", "gelu")
    return convert(
        weights,
        config,
        activation=activation("gelu_new" if name == "gelu" else name),
        absent_score=MASKS[mask],
    )
