"""How does a model's stream become narrower?

Whoever reads or writes the stream loses the same channels: the table of words, every block, norms
and heads. Which axes of which weights lie along the stream is found out by drawing the model once
more, a little narrower. What is left is an ordinary model of another `d_model`.

>>> import torch, parformer as pf
>>> model = pf.build(pf.preset("gpt2-pocket", pattern="sf"))
>>> narrowed(model, torch.arange(0, 128, 2)).config.d_model
64
"""

# c channels of the stream, o outputs, n distances

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from parformer.blocks.places import sinusoids
from parformer.compress.coding import coded_maps
from parformer.config import ModelConfig
from parformer.embedding import has_cluster_tables, projected_width
from parformer.errors import ConfigError
from parformer.model import Model, build_from
from parformer.parts import StackConfig
from parformer.pattern import BlockSpec, Pattern
from parformer.weights import named_tensors

KNOWN = set("sfcrai")
"""Blocks that treat all channels of the stream alike."""
LESS = 2
"""Channels by which the second drawing is narrower."""
RIDGE = 1e-3
"""Keeps what is fitted to distances from growing where waves are nearly the same."""

Axes = Mapping[str, tuple[int, ...]]
"""By weight, and for each of its axes: how many streams lie along it, one after another."""


@dataclass(frozen=True)
class Heads:
    """The width of heads, written down so that it does not follow the stream's."""

    usual: int
    pattern: Pattern


def obstacle(model: Model) -> str:
    """Why a model's stream cannot become narrower; empty if it can."""
    config = model.config
    if list(coded_maps(model)):
        return "this model is quantized already; shrink first, then quantize"
    if config.sinusoidal:
        return "sinusoidal positions are as wide as the stream, so its width stays"
    patterns = [config.pattern, *filter(None, [config.pattern.encoder])]
    strange = {spec.letter for pattern in patterns for spec in pattern} - KNOWN
    if strange:
        return f"{' '.join(sorted(strange))} cuts the stream in pieces, so its width stays"
    if config.d_model <= LESS or along(model) is None:
        return "not every weight follows the stream's width, so it stays"
    return ""


def narrowed(model: Model, stays_c: Tensor) -> Model:
    """A model of these channels of the stream alone."""
    if told := obstacle(model):
        raise ConfigError(told)
    whole, left = model.config.d_model, len(stays_c)
    if not left or int(stays_c.max()) >= whole:
        raise ConfigError(
            f"some of the {whole} channels have to stay, got {stays_c.tolist()!r:.60}"
        )
    axes = along(model)
    assert axes is not None
    tensors = {name: tensor.detach() for name, tensor in named_tensors(model).items()}
    for name, times in axes.items():
        for axis, count in enumerate(times):
            if count:
                rows = torch.cat([stays_c + number * whole for number in range(count)])
                tensors[name] = tensors[name].index_select(axis, rows)
    for name in distances(tensors):
        tensors[name] = refitted(tensors[name], model.config, left)
    if model.config.scale_embedding:
        rescale(model, tensors, math.sqrt(whole / left))
    return build_from(of_width(model.config, left), tensors)


def along(model: Model) -> Axes | None:
    """Where the stream lies in every weight; None where some weight follows it otherwise."""
    config = model.config
    with torch.device("meta"):
        wide = named_tensors(Model(of_width(config, config.d_model)))
        less = named_tensors(Model(of_width(config, config.d_model - LESS)))
    found = {}
    given = named_tensors(model)
    if wide.keys() != given.keys() or less.keys() != given.keys():
        return None
    fitted = set(distances(given))
    for name, tensor in given.items():
        if wide[name].shape != tensor.shape:
            return None
        times = []
        for size, smaller in zip(tensor.shape, less[name].shape, strict=True):
            count, rest = divmod(size - smaller, LESS)
            if rest or (count and size != count * config.d_model):
                return None
            times.append(count)
        found[name] = (0,) * len(times) if name in fitted else tuple(times)
    return found


def of_width(config: ModelConfig, width: int) -> ModelConfig:
    """The same with another stream: whatever else would follow its width is written down."""
    heads = with_heads(config, config.pattern)
    pattern = heads.pattern
    if config.pattern.encoder is not None:
        assert config.source is not None
        encoder = with_heads(config.source, config.pattern.encoder, heads.usual)
        pattern = Pattern(pattern, encoder.pattern)
    changes: dict[str, object] = {"d_model": width, "d_head": heads.usual, "pattern": pattern}
    if config.pattern.count("r") or config.pattern.count("a"):
        changes["d_attention"] = config.d_attention or max(1, config.d_model // 4)
    if config.d_source == config.d_model:
        changes["d_source"] = width
    projected = has_cluster_tables(config) or projected_width(config) > 0
    changes["d_embed"] = config.embed_width if projected else 0
    if projected and config.embedding == "plain":  # trigrams are projected at any width
        changes["embedding"] = "factorized"
    return config.replaced(**changes)


def with_heads(config: StackConfig, pattern: Pattern, usual: int = 0) -> Heads:
    """Every attention with the width that its heads have; what is usual needs no word."""
    usual = usual or config.d_head or config.head_width(config.n_head)
    specs = []
    for spec in pattern:
        if spec.letter in "sc" and "head" not in spec.options:
            heads = spec.options.get("heads", config.n_head)
            assert isinstance(heads, int)
            if (width := config.head_width(heads)) != usual:
                spec = BlockSpec(spec.letter, {**spec.options, "head": width})
        specs.append(spec)
    return Heads(usual, Pattern(specs))


def distances(tensors: Mapping[str, Tensor]) -> Iterator[str]:
    """Projections of distances, whose waves are as wide as the stream and are not part of it."""
    return (name for name in tensors if name.endswith(".distance.weight"))


def refitted(weight_oc: Tensor, config: ModelConfig, width: int) -> Tensor:
    """What gives nearly the same of every distance, from waves of another width.

    Waves of other lengths cannot say just the same, so near places count more than far ones.
    """
    reach = max(64, config.memory + config.step_len)
    if config.clamp_len >= 0:
        reach = min(reach, config.clamp_len + 1)
    ahead = 0 if config.causal else reach - 1
    old_nc, new_nc = (
        sinusoids(reach, many, config.clamp_len, ahead).double()
        for many in (weight_oc.shape[1], width)
    )
    far_n = torch.arange(reach - 1, -1 - ahead, -1, dtype=torch.float64).abs()
    near_n1 = (1 / (1 + far_n))[:, None]
    square = new_nc.T @ (near_n1 * new_nc)
    square += RIDGE * float(near_n1.sum()) * torch.eye(width, dtype=torch.float64)
    fit_co: Tensor = torch.linalg.solve(
        square, new_nc.T @ (near_n1 * (old_nc @ weight_oc.double().T))
    )
    return fit_co.T.to(weight_oc.dtype)


def rescale(model: Model, tensors: dict[str, Tensor], times: float) -> None:
    """Keep embeddings as large as they were: they are multiplied by the width's square root.

    Where the head has the same table, what it reads becomes smaller by as much, in the last norm.
    """
    last = last_norm(model)
    if model.config.tie_weights and model.config.head != "none" and not last:
        return
    for name in tensors:
        if name.startswith("embedding.words.tables."):
            tensors[name] = tensors[name] * times
        elif not model.config.tie_weights:
            continue
        elif name == "head.cluster_weight":
            tensors[name] = tensors[name] * times
        elif name.rpartition(".")[0] == last:
            tensors[name] = tensors[name] / times


def last_norm(model: Model) -> str:
    """The path of the norm that a head for words reads; empty where there is none to change."""
    config = model.config
    name = "final_norm" if config.final_norm else f"blocks.{len(config.pattern) - 1}.norm"
    if config.head != "lm" or not (config.final_norm or config.norm == "post"):
        return ""
    try:
        found = model.get_submodule(name)
    except AttributeError:
        return ""
    return name if isinstance(getattr(found, "weight", None), nn.Parameter) else ""


def slices(tensor: Tensor, times: tuple[int, ...]) -> Iterator[Tensor]:
    """What of a weight belongs to each channel, summed, once for every axis along the stream."""
    for axis, count in enumerate(times):
        if count:
            flat = tensor.movedim(axis, 0).flatten(1) if tensor.dim() > 1 else tensor[:, None]
            yield torch.unflatten(flat.sum(1), 0, (count, -1)).sum(0)


def channel_changes(model: Model, axes: Axes) -> Tensor:
    """What the loss whose gradients a model holds changes by as all weights of a channel fade."""
    total_c = torch.zeros(model.config.d_model)
    for name, weight in named_tensors(model).items():
        if weight.grad is not None:
            for part_c in slices(weight.detach() * weight.grad, axes[name]):
                total_c -= part_c
    return total_c


def channel_sizes(model: Model, axes: Axes) -> Tensor:
    """The size of all weights of each channel together."""
    total_c = torch.zeros(model.config.d_model)
    for name, weight in named_tensors(model).items():
        for part_c in slices(weight.detach().float().square(), axes[name]):
            total_c += part_c
    return total_c.sqrt()
