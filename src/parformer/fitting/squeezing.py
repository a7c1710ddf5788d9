"""May a model be larger or slower than its limit, if it is brought into it in the end?

With `--compress` the models of a contest have the size that they will have in 8 bits, and where
that is quicker on this machine the latency too, and are judged so; one that is within the limits as
it is takes part beside them. The verdict says which of the two ways was the better one.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import lru_cache, partial

import torch
from torch import Tensor

from parformer.blocks.base import Shape
from parformer.compress.coding import coded
from parformer.compress.steps import overhead
from parformer.config import ModelConfig
from parformer.costs import cost
from parformer.errors import ConfigError
from parformer.fitting.rules import Placement
from parformer.measure.models import Reader
from parformer.measure.readings import Meter, measure_here
from parformer.model import Model
from parformer.search.sentences import Sentence, in_torch, sentence_meter
from parformer.weights import matrices, named_tensors

BITS = 8
SCALES = 1.1
"""Bytes of a weight in 8 bits, about, with its share of the scales and of what stays as it is."""
SMALL = "small"
"""The name of the model that needs no compression."""
QUICKER = 0.97
"""Of its time, what a model takes in 8 bits at most for that to be called quicker."""


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


def roomier(limits: dict[str, float], config: ModelConfig, times: float = 1.0) -> dict[str, float]:
    """Limits by which models are looked for that will be brought into those given.

    In 8 bits a model takes so many times as long as it does as it was trained.
    """
    found = dict(limits)
    if "size" in limits:
        counts = config.counts
        found["size"] = counts + 4 / SCALES * max(0.0, limits["size"] - counts)
    if "latency" in limits:
        found["latency"] = limits["latency"] / times
    return found


def bring_within(model: Model, most: float) -> Model:
    """The same model, in 8 bits if it is larger than that."""
    if cost(model.config).size <= most or not matrices(model):
        return model
    return coded(model, BITS)


def bits_meter(usual: Meter, some: Collection[ModelConfig], source: int = 0) -> Meter:
    """Who measures models, some of them in 8 bits; of whole sentences where there is a source."""
    if usual is not measure_here:
        raise ConfigError(
            "8 bits are timed on this machine, and this fit measures elsewhere; leave out "
            "--compress, or limit the size alone"
        )

    def shown(model: Model) -> Model:
        return coded(model, BITS) if model.config in some and matrices(model) else model

    def step(model: Model, shape: Shape, threads: int | None) -> Reader:
        return Reader(shown(model), shape)

    def sentence(model: Model, source_bs: Tensor, length: int, threads: int) -> Sentence:
        return in_torch(shown(model), source_bs, length, threads)

    return sentence_meter(source, sentence) if source else partial(measure_here, runtime=step)


def small(rule: Placement) -> Placement:
    """A placement whose models are within the limit as they are."""
    how = f"{rule.how}; small enough without compression"
    return replace(rule, name=SMALL, title="Small from the start", how=how)
