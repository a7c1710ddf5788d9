"""May a model be larger than its limit, if it is brought into it in the end?

With `--compress` the models of a contest have the size that they will have in 8 bits, and are
judged so; one that is within the limit as it is takes part beside them. The verdict says which of
the two ways was the better one.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import torch

from parformer.compress.coding import coded
from parformer.compress.steps import overhead
from parformer.config import ModelConfig
from parformer.costs import cost
from parformer.fitting.rules import Placement
from parformer.model import Model
from parformer.weights import matrices, named_tensors

BITS = 8
SCALES = 1.1
"""Bytes of a weight in 8 bits, about, with its share of the scales and of what stays as it is."""
SMALL = "small"
"""The name of the model that needs no compression."""


@lru_cache(maxsize=4096)
def squeezed_bytes(config: ModelConfig) -> float:
    """What a model takes on disk in 8 bits: codes, a scale for each row, and what stays."""
    with torch.device("meta"):
        outline = Model(config)
    tensors, places = named_tensors(outline), matrices(outline)
    whole = sum(one.numel() * one.element_size() for one in tensors.values())
    coded_ones = sum(one.numel() for one in places.values())
    rows = sum(one.shape[0] for one in places.values())
    return float(whole - 3 * coded_ones + 4 * rows + overhead(outline))


def roomier(limits: dict[str, float], config: ModelConfig) -> dict[str, float]:
    """Limits by which models are looked for that will be brought into those given."""
    if "size" not in limits:
        return limits
    counts = config.counts
    return limits | {"size": counts + 4 / SCALES * max(0.0, limits["size"] - counts)}


def bring_within(model: Model, most: float) -> Model:
    """The same model, in 8 bits if it is larger than that."""
    if cost(model.config).size <= most or not matrices(model):
        return model
    return coded(model, BITS)


def small(rule: Placement) -> Placement:
    """A placement whose models are within the limit as they are."""
    how = f"{rule.how}; small enough without compression"
    return replace(rule, name=SMALL, title="Small from the start", how=how)
