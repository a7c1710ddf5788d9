"""How does a model physically become smaller: fewer heads, narrower middles, fewer blocks?

What is left is an ordinary model of another pattern, such as `s[heads=3]f[inner=208]`, and perhaps
of a narrower stream (`narrowing.py`), with nothing special to load or to export. What can go inside
of a block is its own affair: `cuts.py` knows each kind. Blocks inside of groups, and blocks that
share their weights, stay as they are.

>>> import torch, parformer as pf
>>> model = pf.build(pf.preset("gpt2-pocket", pattern="sfsf"))
>>> kept = {"blocks.0": torch.tensor([0, 2]), "blocks.1": torch.arange(100), "blocks.2": None}
>>> str(shrunk(model, kept).config.pattern)
's[heads=2]f[inner=100]f'
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from parformer.blocks.attention import SelfAttention
from parformer.blocks.base import Block
from parformer.compress.coding import coded_maps
from parformer.compress.cuts import BIASES, cut, units, written
from parformer.compress.narrowing import Axes, channel_changes, channel_sizes, narrowed
from parformer.errors import ConfigError
from parformer.model import Model, build_from
from parformer.pattern import BlockSpec, Pattern
from parformer.weights import named_tensors

Kept = Mapping[str, Tensor | None]
"""By block, such as `blocks.3`: which inner channels or key-value heads stay; None for a block that
goes altogether. By `stream`: which of its channels stay."""
STREAM = "stream"


def shrunk(model: Model, kept: Kept) -> Model:
    """A smaller model: what is not named stays as it is."""
    if list(coded_maps(model)):
        raise ConfigError("this model is quantized already; shrink first, then quantize")
    blocks = dict(places(model))
    for path in kept:
        if path not in (*blocks, STREAM):
            raise ConfigError(f"{path!r} cannot be shrunk; there are {', '.join(blocks)}")
    own = untied_biases(model, kept)
    tensors = {n: t.detach() for n, t in named_tensors(model).items()} | own
    if own:
        tensors = {n: t for n, t in tensors.items() if n not in BIASES}
    config, renamed = model.config, {}
    specs: dict[str, list[BlockSpec]] = {}
    for root, pattern in stacks(model):
        stack = config.source if root else config
        assert stack is not None
        specs[root] = []
        for number, spec in enumerate(pattern):
            path = f"{root}blocks.{number}"
            stays = kept.get(path, ...)
            if stays is None:
                renamed[path] = ""
                continue
            renamed[path] = f"{root}blocks.{len(specs[root])}"
            block = blocks.get(path)
            if isinstance(stays, Tensor) and block is not None:
                spec, less = cut(stack, spec, block, stays, tensors, path)
                tensors |= less
            specs[root].append(spec)
    changes: dict[str, Any] = {}
    if any("head" in spec.options for listed in specs.values() for spec in listed):
        changes["d_head"] = with_head_width(model, specs) or config.d_head
    encoder = Pattern(specs["encoder."]) if "encoder." in specs else None
    changes["pattern"] = Pattern(specs[""], encoder)
    if own:
        changes["position_bias"] = "per-layer"
    made = build_from(config.replaced(**changes), dict(moved(tensors, renamed)))
    channels = kept.get(STREAM)
    return made if channels is None else narrowed(made, channels)


def stacks(model: Model) -> Iterator[tuple[str, Pattern]]:
    """What stands before the names of a stack's blocks, and its pattern."""
    yield "", model.config.pattern
    if model.config.pattern.encoder is not None:
        yield "encoder.", model.config.pattern.encoder


def places(model: Model) -> Iterator[tuple[str, Block]]:
    """Blocks that can become smaller, or go: each with weights of its own."""
    for root, pattern in stacks(model):
        stack = model if not root else model.encoder
        assert stack is not None
        modules = list(stack.blocks)
        for number, spec in enumerate(pattern):
            block = modules[number]
            if isinstance(block, Block) and spec.inside is None and "share" not in spec.options:
                yield f"{root}blocks.{number}", block


def with_head_width(model: Model, specs: Mapping[str, list[BlockSpec]]) -> int:
    """The width of all heads, if it is one: then no block needs to say it."""
    attends = [m for m in model.modules() if isinstance(m, SelfAttention)]
    widths = {block.width for block in attends}
    told = any("head" in spec.options for _, pattern in stacks(model) for spec in pattern)
    if len(widths) != 1 or told:
        return 0
    for listed in specs.values():
        for number, spec in enumerate(listed):
            options = {name: value for name, value in spec.options.items() if name != "head"}
            if len(options) < len(spec.options):
                listed[number] = BlockSpec(spec.letter, options)
    return int(widths.pop())


def untied_biases(model: Model, kept: Kept) -> dict[str, Tensor]:
    """Position biases that all blocks share become every block's own, once one has fewer heads."""
    if not model.config.shared_biases:
        return {}
    attends = {path: block for path, block in places(model) if hasattr(block, "distance")}
    if not any(isinstance(kept.get(path), Tensor) for path in attends):
        return {}
    shared = {name: getattr(model, name).detach() for name in BIASES}
    every = [n for n, m in model.named_modules() if hasattr(m, "distance")]
    return {f"{path}.{name}": bias.clone() for path in every for name, bias in shared.items()}


def moved(
    tensors: Mapping[str, Tensor], renamed: Mapping[str, str]
) -> Iterator[tuple[str, Tensor]]:
    """Tensors under the numbers that their blocks have now; without those of blocks that went."""
    for name, tensor in tensors.items():
        parts = name.split(".")
        size = parts.index("blocks") + 2 if "blocks" in parts[:2] else 0
        path = ".".join(parts[:size])
        if not size or path not in renamed:
            yield name, tensor
        elif renamed[path]:
            yield ".".join([renamed[path], *parts[size:]]), tensor


def importance(
    model: Model, losses: Iterable[Tensor], axes: Axes | None = None
) -> dict[str, Tensor]:
    """What the loss would change by without each unit, to first order, by block.

    A unit writes through its columns of the output matrix alone, so that without it the loss
    changes by the sum of these weights times their gradients. With `axes` the stream's channels
    are told too, by all weights that lie along them.
    """
    found = {path: torch.zeros(units(block)) for path, block in places(model) if units(block)}
    if axes is not None:
        found[STREAM] = torch.zeros(model.config.d_model)
    count = 0
    for loss in losses:
        model.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        count += 1
        if axes is not None:
            found[STREAM] += channel_changes(model, axes).abs()
        for path, block in places(model):
            if path in found:
                weight = written(block)
                assert weight.grad is not None
                change_i = -(weight.detach() * weight.grad).sum(0)
                found[path] += torch.unflatten(change_i, 0, (units(block), -1)).sum(1).abs()
    model.zero_grad()
    if not count:
        raise ConfigError("there is no text to see what matters by; give some")
    return {path: total / count for path, total in found.items()}


def magnitude(model: Model, axes: Axes | None = None) -> dict[str, Tensor]:
    """The size of every unit's outgoing weights, by block; with `axes` that of channels as well."""
    found = {} if axes is None else {STREAM: channel_sizes(model, axes)}
    for path, block in places(model):
        if units(block):
            norms_i = written(block).detach().square().sum(0)
            found[path] = torch.unflatten(norms_i, 0, (units(block), -1)).sum(1).sqrt()
    return found
