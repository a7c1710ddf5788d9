"""What can a block do without, and what is left of its weights then?

Every kind of block has units of its own: a feed-forward its inner channels, attention its key-value
heads, a recurrence the channels of its projection, LSRA the heads of its convolution. A unit writes
through its own columns of one matrix, so without it these columns count for nothing.

>>> import torch
>>> wide(torch.tensor([0, 2]), 2).tolist()
[0, 1, 4, 5]
"""

# m inner channels, h heads, g key-value heads, p channels of a projection

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from parformer.blocks.attention import SelfAttention
from parformer.blocks.base import Block
from parformer.blocks.convolution import Convolution
from parformer.blocks.feed_forward import FeedForward
from parformer.blocks.lsra import LSRA, branches_of
from parformer.blocks.sru import SRU
from parformer.blocks.sru_attention import SRUAttention
from parformer.errors import ConfigError
from parformer.parts import StackConfig
from parformer.pattern import BlockSpec

BIASES = ("content_bias", "position_bias")
Named = Mapping[str, Tensor]
"""The tensors of one block, by their names in it."""
Cut = tuple[BlockSpec, dict[str, Tensor]]
"""A block's new options, and those of its tensors that become smaller."""


def units(block: Block) -> int:
    """How many parts there are that a block could do without; 0 if it has no such."""
    if isinstance(block, FeedForward):
        return int(block.out.in_features)
    if isinstance(block, SelfAttention) and isinstance(block.out, nn.Linear) and not block.fed:
        return int(block.kv_heads)
    if isinstance(block, SRUAttention):
        return int(block.heads if block.heads > 1 else block.out.in_features)
    if isinstance(block, SRU) and block.project is not None:
        return int(block.out.in_features)
    if isinstance(block, LSRA) and len(found := list(convolutions(block))) == 1:
        return found[0][1].heads
    return 0


def written(block: Block) -> Tensor:
    """The matrix that a block's units write through, each by columns of its own."""
    out = block.out if not isinstance(block, LSRA) else next(convolutions(block))[1].out
    assert isinstance(out, nn.Linear)
    return out.weight


def convolutions(block: LSRA) -> Iterator[tuple[int, Convolution]]:
    """The branches that convolve, by their places."""
    for number, branch in enumerate(block.branches):
        if isinstance(branch, Convolution):
            yield number, branch


def cut(
    config: StackConfig,
    spec: BlockSpec,
    block: Block,
    stays: Tensor,
    tensors: Named,
    path: str,
) -> Cut:
    """What a block becomes of which these units stay; tensors have the names of the whole model."""
    if not len(stays):
        raise ConfigError(f"nothing of {path!r} would stay; let the whole block go")
    start = f"{path}."
    own = {name.removeprefix(start): t for name, t in tensors.items() if name.startswith(start)}
    if isinstance(block, FeedForward):
        made, less = cut_middle(spec, block, stays, own)
    elif isinstance(block, SelfAttention):
        made, less = cut_heads(config, spec, block, stays, own)
    elif isinstance(block, SRUAttention):
        made, less = cut_attentive(spec, block, stays, own)
    elif isinstance(block, SRU):
        made, less = cut_projection(spec, stays, own)
    else:
        assert isinstance(block, LSRA)
        made, less = cut_convolution(config, spec, block, stays, own)
    return made, {start + name: tensor for name, tensor in less.items()}


def cut_middle(spec: BlockSpec, block: FeedForward, stays_m: Tensor, own: Named) -> Cut:
    """Fewer inner channels."""
    inner = block.out.in_features
    rows = torch.cat((stays_m, stays_m + inner)) if block.gated else stays_m
    less = rows_of(own, ("inner.weight", "inner.bias"), rows)
    less["out.weight"] = own["out.weight"][:, stays_m]
    return with_options(spec, inner=len(stays_m)), less


def cut_heads(
    config: StackConfig, spec: BlockSpec, block: SelfAttention, stays_g: Tensor, own: Named
) -> Cut:
    """Fewer key-value heads, and with each the queries that read it."""
    each = block.heads // block.kv_heads
    heads_h = (stays_g[:, None] * each + torch.arange(each)).flatten()
    queries, keys = wide(heads_h, block.width), wide(stays_g, block.width)
    first = block.heads * block.width
    values = first + block.kv_heads * block.width
    rows = torch.cat((queries, first + keys, values + keys))
    less = rows_of(own, ("qkv.weight", "qkv.bias"), rows)
    less |= rows_of(own, ("distance.weight", *BIASES), queries)
    less["out.weight"] = own["out.weight"][:, queries]
    sizes = {"heads": len(heads_h), "head": block.width}
    if each > 1 or config.n_kv_head:
        sizes["kv_heads"] = len(stays_g)
    return with_options(spec, **sizes), less


def cut_projection(spec: BlockSpec, stays_p: Tensor, own: Named) -> Cut:
    """Fewer channels between the stream and the gates of a recurrence."""
    less = rows_of(own, ("project.weight", "inner_norm.weight", "inner_norm.bias"), stays_p)
    less["out.weight"] = own["out.weight"][:, stays_p]
    return with_options(spec, width=len(stays_p)), less


def cut_attentive(spec: BlockSpec, block: SRUAttention, stays: Tensor, own: Named) -> Cut:
    """The same where attention looks in between: whole heads, or channels of the only one."""
    inside, several = block.out.in_features, block.heads > 1
    stays_p = wide(stays, block.width) if several else stays
    made, less = cut_projection(spec, stays_p, own)
    rows = torch.cat((stays_p, inside + stays_p))
    less["key_value.weight"] = own["key_value.weight"][rows][:, stays_p]
    if "query.weight" in own:
        less["query.weight"] = own["query.weight"][stays_p][:, stays_p]
    if several:
        return with_options(made, heads=len(stays)), less
    # what is asked is divided by the root of the width, which is another one now
    keys, values = less["key_value.weight"].chunk(2)
    less["key_value.weight"] = torch.cat((keys * math.sqrt(len(stays_p) / inside), values))
    return made, less


def cut_convolution(
    config: StackConfig, spec: BlockSpec, block: LSRA, stays_h: Tensor, own: Named
) -> Cut:
    """Fewer heads of the convolution beside attention, each with its channels and its taps."""
    ((number, branch),) = convolutions(block)
    stays_c = wide(stays_h, branch.channels // branch.heads)
    taps = wide(stays_h, branch.taps)
    rows = torch.cat((stays_c, branch.channels + stays_c)) if branch.gated else stays_c
    start = f"branches.{number}."
    less = rows_of(own, (f"{start}inner.weight", f"{start}inner.bias"), rows)
    less |= rows_of(own, (f"{start}scores",), stays_h)
    less[f"{start}out.weight"] = own[f"{start}out.weight"][:, stays_c]
    if (name := f"{start}kernel.weight") in own:
        less[name] = own[name][taps][:, stays_c]
    found = branches_of(config, spec)
    found[number] = replace(found[number], heads=len(stays_h), inner=len(stays_c))
    kept = {n: v for n, v in spec.options.items() if n in ("glu", "leaky")}
    return BlockSpec(spec.letter, {**kept, "branches": "+".join(map(str, found))}), less


def with_options(spec: BlockSpec, **sizes: int) -> BlockSpec:
    return BlockSpec(spec.letter, {**spec.options, **sizes})


def rows_of(own: Named, names: tuple[str, ...], rows: Tensor) -> dict[str, Tensor]:
    """Some rows of those tensors that there are."""
    return {name: own[name][rows] for name in names if name in own}


def wide(chosen: Tensor, width: int) -> Tensor:
    """Rows of the chosen heads."""
    return (chosen[:, None] * width + torch.arange(width)).flatten()
