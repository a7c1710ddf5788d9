"""What do blocks that attend do, as operations of a program?"""

# b batch, h heads, n distances, k head width, s source

from __future__ import annotations

from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from parformer.blocks.attention import RotaryAttention, SelfAttention
from parformer.blocks.base import Block
from parformer.blocks.convolution import Convolution, tap_weights
from parformer.blocks.cross_attention import CrossAttention
from parformer.blocks.linear import FedProjection
from parformer.blocks.lsra import LSRA
from parformer.blocks.places import Places
from parformer.blocks.relative import RelativeAttention
from parformer.blocks.sru_attention import SRUAttention
from parformer.native.forms import Where, form, gate, mix, read, recur, write
from parformer.native.program import CACHE, CELLS, NOWHERE, SOURCE, NoForm, Program, Span, bits
from parformer.native.slots import (
    Cell,
    CellAndKeys,
    KeyValues,
    Neighbours,
    Several,
    Slot,
    SourceKeys,
)

KINDS = (SelfAttention, RotaryAttention, RelativeAttention)


@form(*KINDS)
def self_attention(program: Program, block: Block, x: Span, where: Where) -> tuple[Span, Slot]:
    assert isinstance(block, SelfAttention)
    if block.fed:
        y, slot = answer(program, block, where.feed, where)
    else:
        seen = read(program, block, x)
        y, slot = answer(program, block, (seen,), where)
        if seen is not x:
            program.give(seen)
    return write(program, block, x, block.out, y), slot


def answer(
    program: Program, block: SelfAttention, seen: tuple[Span, ...], where: Where
) -> tuple[Span, KeyValues]:
    """What is taken from the tokens that are seen, before the last map."""
    inside, half = block.heads * block.width, block.kv_heads * block.width
    qkv = program.take(inside + 2 * half)
    if isinstance(block.qkv, FedProjection):
        program.linear(block.qkv.qk, seen[0], out=qkv.part(0, inside + half))
        program.linear(block.qkv.v, seen[1], out=qkv.part(inside + half, half))
    else:
        program.linear(block.qkv, seen[0], out=qkv)
    q, kv = qkv.part(0, inside), qkv.part(inside, 2 * half)
    out = program.take(inside)
    turns, relative = NOWHERE, (0, 0, 0, 0)
    if isinstance(block, RotaryAttention):
        turns = program.turns(block.width, block.base).words
    elif isinstance(block, RelativeAttention):
        relative = relative_parts(program, block, where)
    slot = attend(program, block, (q, kv, out), (turns, relative))
    program.give(qkv)
    return out, slot


def attend(
    program: Program,
    block: SelfAttention | SRUAttention,
    spans: tuple[Span, Span, Span],
    placed: tuple[tuple[int, int], tuple[int, int, int, int]],
    source: int = -1,
) -> KeyValues:
    """One query of every head, all of its keys; perhaps those of a source before them."""
    q, kv, out = spans
    groups = block.kv_heads if isinstance(block, SelfAttention) else block.heads
    assert q.width == out.width == block.heads * block.width
    assert kv.width == 2 * groups * block.width
    number = program.state(CACHE, groups, block.width, program.memory)
    turns, relative = placed
    words = (*q.words, *kv.words, *out.words, block.heads, number, block.reach)
    program.add("attend", *words, bits(block.width**-0.5), *turns, *relative, source)
    return KeyValues(number, groups, block.width, program.memory)


def relative_parts(
    program: Program, block: RelativeAttention, where: Where
) -> tuple[int, int, int, int]:
    """Projected distances, nearest first, how many there are, and both biases."""
    places = where.places
    if places is None:
        raise NoForm("relative attention has no distances")
    count, inside = program.memory + program.time, block.heads * block.width
    with torch.no_grad():
        table: Tensor = block.distance(places.distances(count)).flip(0)
    content, position = places.biases or (block.content_bias, block.position_bias)
    r_hnk = table.view(count, block.heads, block.width).transpose(0, 1)
    where_r = program.address(r_hnk, block.heads, count, block.width)
    return where_r, count, program.vector(content, inside), program.vector(position, inside)


@form(SRUAttention)
def sru_attention(program: Program, block: Block, x: Span, where: Where) -> tuple[Span, Slot]:
    assert isinstance(block, SRUAttention)
    source = None
    if block.reads_source:
        sizes = (block.heads, block.width)
        source = SourceKeys(program.state(SOURCE, *sizes), *sizes)
    z = program.linear(block.project, x)
    seen = program.norm(block.inner_norm, z) if block.place == "pre" else z
    q = seen if block.query is None else program.linear(block.query, seen)
    kv, out = program.linear(block.key_value, seen), program.take(z.width)
    seen_too = -1 if source is None else source.number
    slot = attend(program, block, (q, kv, out), (NOWHERE, (0, 0, 0, 0)), seen_too)
    inside = mix(program, z, out, block.alpha)
    if block.place == "post":
        program.norm(block.inner_norm, inside, out=inside)
    program.give(z, kv, out, *([] if seen is z else [seen]), *([] if q is seen else [q]))
    y, cell = recur(program, block, x, inside)
    program.give(inside)
    return y, CellAndKeys(cell, slot, source)


@form(CrossAttention)
def cross_attention(program: Program, block: Block, x: Span, where: Where) -> tuple[Span, Slot]:
    assert isinstance(block, CrossAttention)
    seen = read(program, block, x)
    q = program.linear(block.query, seen)
    out = program.take(q.width)
    assert q.width == block.heads * block.width
    slot = SourceKeys(
        program.state(SOURCE, block.kv_heads, block.width), block.kv_heads, block.width
    )
    scale = bits(block.width**-0.5)
    program.add("cross", *q.words, *out.words, block.heads, slot.number, scale)
    program.give(q, *([] if seen is x else [seen]))
    return write(program, block, x, block.out, out), slot


@form(LSRA)
def lsra(program: Program, block: Block, x: Span, where: Where) -> tuple[Span, Slot]:
    """Branches write side by side into what is added to the stream."""
    assert isinstance(block, LSRA)
    if where.places is not None:  # attention of fewer channels has biases of its own
        where = replace(where, places=Places(where.places.distances))
    seen, total = read(program, block, x), program.take(x.width)
    first, slots = 0, list[Slot]()
    for branch, size in zip(block.branches, block.sizes, strict=True):
        own, out = seen.part(first, size), total.part(first, size)
        plus = x.part(first, size)
        if isinstance(branch, SelfAttention):
            y, slot = answer(program, branch, (own,), where)
            program.linear(branch.out, y, plus=plus, out=out)
            slots.append(slot)
        else:
            y, tail = convolution(program, cast(Convolution, branch), own)
            program.linear(cast(Convolution, branch).out, y, plus=plus, out=out)
            slots.append(tail)
        program.give(y)
        first += size
    if not block.pre_norm:
        program.norm(block.norm, total, out=total)
    program.give(x, *([] if seen is x else [seen]))
    return total, Several(slots)


def convolution(program: Program, branch: Convolution, x: Span) -> tuple[Span, Neighbours]:
    """What is seen near each place, before the last map."""
    u = program.linear(branch.inner, x)
    if branch.gated:
        both, u = u, gate(program, u, "sigmoid", last=True)
        program.give(both)
    kernel, weights, temporary = NOWHERE, 0, [u]
    if branch.kernel is not None:
        made = program.linear(branch.kernel, u)
        temporary.append(made)
        kernel = made.words
    else:
        assert branch.scores is not None
        scores = tap_weights(branch.scores.detach().float())
        weights = program.address(scores, branch.heads, branch.taps)
    out = program.take(branch.channels)
    cell = Cell(program.state(CELLS, branch.taps * branch.channels), branch.taps * branch.channels)
    sizes = (branch.channels, branch.heads, branch.taps, cell.number)
    program.add("convolve", *u.words, *kernel, *out.words, weights, *sizes)
    program.give(*temporary)
    return out, Neighbours(cell, branch.taps, branch.channels)
