"""What does each block do, as operations of a program?

A form says it for one kind of block: it takes the stream, writes operations, and gives the new
stream and the slot of what the block remembers. Blocks of a kind that is not in `FORMS` (one that
somebody registered, say) have none, and the ordinary step runs instead.
"""

# b batch, t time, d width, h heads, n inner width

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias, cast

import torch
from torch import nn

from parformer.blocks.base import Block
from parformer.blocks.feed_forward import FeedForward
from parformer.blocks.groups import Bottleneck, Repeated
from parformer.blocks.identity import Identity
from parformer.blocks.linear import ACTIVATIONS, Activation
from parformer.blocks.ngrams import NGramMemory
from parformer.blocks.places import Places
from parformer.blocks.sru import SRU, Recurrent
from parformer.blocks.stack import Stack
from parformer.native.program import ACTIVATIONS as KNOWN
from parformer.native.program import CELLS, RECENT, NoForm, Program, Span
from parformer.native.slots import Cell, Empty, Several, Slot, Tokens


@dataclass(frozen=True, slots=True)
class Where:
    """What blocks of a stack share."""

    places: Places | None = None
    """Distances and biases of relative attention."""
    feed: tuple[Span, ...] = ()
    """What a bottleneck has its attention read instead of the stream inside."""


Form: TypeAlias = Callable[[Program, Block, Span, Where], tuple[Span, Slot]]

FORMS: dict[type[Block], Form] = {}


def form(*kinds: type[Block]) -> Callable[[Form], Form]:
    """Register the form of some kinds of blocks."""

    def register(function: Form) -> Form:
        FORMS.update(dict.fromkeys(kinds, function))
        return function

    return register


def write_stack(program: Program, stack: Stack, x: Span, where: Where, slots: list[Slot]) -> Span:
    """All blocks of a stack, and what each remembers."""
    if not stack.inherits:
        relative = stack.config.positions == "relative"
        where = replace(where, places=stack.places() if relative else None)
    for block in stack.blocks:
        x, slot = write_block(program, cast(Block, block), x, where)
        slots.append(slot)
    if stack.final_norm is not None:
        x = program.norm(stack.final_norm, x, out=x)
    return x


def write_block(program: Program, block: Block, x: Span, where: Where) -> tuple[Span, Slot]:
    found = FORMS.get(type(block))
    if found is None:
        raise NoForm(f"block {block.letter!r} ({type(block).__name__}) has no native form")
    if block.hooked:
        raise NoForm(f"something listens to block {block.letter!r}")
    return found(program, block, x, where)


def read(program: Program, block: Block, x: Span) -> Span:
    """What a block's maths sees of the stream."""
    return program.norm(block.norm, x) if block.pre_norm else x


def write(program: Program, block: Block, x: Span, out: nn.Module, y: Span) -> Span:
    """The stream with the block's answer added, and normed if that comes last."""
    total = program.linear(out, y, plus=x)
    if not block.pre_norm:
        program.norm(block.norm, total, out=total)
    program.give(x, y)
    return total


def activation_name(activation: Activation) -> str:
    for name, known in ACTIVATIONS.items():
        if known is activation and name in KNOWN:
            return name
    raise NoForm(f"activation {activation} has no native form")


@form(Identity)
def identity(program: Program, block: Block, x: Span, where: Where) -> tuple[Span, Slot]:
    return x, Empty()


@form(FeedForward)
def feed_forward(program: Program, block: Block, x: Span, where: Where) -> tuple[Span, Slot]:
    assert isinstance(block, FeedForward)
    seen, name = read(program, block, x), activation_name(block.activation)
    if block.gated:
        both = program.linear(block.inner, seen)
        inner = gate(program, both, name)
        program.give(both)
    else:
        inner = program.linear(block.inner, seen, activation=name)
    if seen is not x:
        program.give(seen)
    return write(program, block, x, block.out, inner), Empty()


def gate(program: Program, both: Span, name: str, *, last: bool = False) -> Span:
    """The product of two halves, of which one is activated."""
    out = program.take(both.width // 2)
    program.add("gate", *both.words, *out.words, out.width, KNOWN.index(name), int(last))
    return out


def recur(program: Program, block: Recurrent, x: Span, inside: Span) -> tuple[Span, Cell]:
    """The recurrence of what was projected; the stream goes through its highway."""
    u, out = program.linear(block.out, inside), program.take(x.width)
    width = x.width
    assert u.width == 3 * width
    cell = Cell(program.state(CELLS, width), width)
    gates = (block.gate_weight, block.gate_bias)
    places = [program.address(gate, 2 * width) for gate in gates]
    program.add("recur", *u.words, *x.words, *out.words, width, cell.number, *places)
    program.give(u, x)
    return out, cell


@form(SRU)
def sru(program: Program, block: Block, x: Span, where: Where) -> tuple[Span, Slot]:
    assert isinstance(block, SRU)
    if block.project is None:
        return recur(program, block, x, x)
    inside = program.linear(block.project, x)
    if block.inner_norm is not None:
        program.norm(block.inner_norm, inside, out=inside)
    out, cell = recur(program, block, x, inside)
    program.give(inside)
    return out, cell


@form(NGramMemory)
def ngrams(program: Program, block: Block, x: Span, where: Where) -> tuple[Span, Slot]:
    assert isinstance(block, NGramMemory)
    sizes, orders = block.sizes, len(block.sizes.orders)
    seen, found = read(program, block, x), program.take(x.width)
    slot = Tokens(program.state(RECENT, sizes.last - 1), sizes.last - 1)
    tables = [program.address(table, sizes.rows, sizes.width) for table in block.rows]
    grams = (
        *(sizes.first, sizes.last, sizes.rows, sizes.width, x.width, math.isqrt(sizes.rows)),
        program.pointers(tables),
        *(program.address(gate, orders) for gate in (block.gate_scale, block.gate_bias)),
    )
    program.add("grams", *seen.words, *found.words, *grams, slot.number)
    total = mix(program, x, found, 1.0)
    if not block.pre_norm:
        program.norm(block.norm, total, out=total)
    program.give(x, found, *([] if seen is x else [seen]))
    return total, slot


def mix(program: Program, a: Span, b: Span, factor: float | nn.Parameter) -> Span:
    """One buffer and another times a factor."""
    out, given = program.take(a.width), factor
    scale = given if isinstance(given, nn.Parameter) else torch.tensor([given])
    assert a.width == b.width
    where = program.address(scale, 1)
    program.add("mix", *a.words, *b.words, *out.words, a.width, where)
    return out


@form(Bottleneck)
def bottleneck(program: Program, block: Block, x: Span, where: Where) -> tuple[Span, Slot]:
    assert isinstance(block, Bottleneck)
    seen = read(program, block, x)
    narrow = program.linear(block.down, seen)
    if block.down_norm is not None:
        program.norm(block.down_norm, narrow, out=narrow)
    feed: tuple[Span, ...] = ()
    if block.shared is not None and block.shared_norm is not None:
        own = program.linear(block.shared, seen)
        feed = (program.norm(block.shared_norm, own, out=own), seen)
    elif block.feed == "outside":
        feed = (seen,)
    slots: list[Slot] = []
    inside = Where(feed=feed or where.feed)
    narrow = write_stack(program, block.inside, narrow, inside, slots)
    temporary: Sequence[Span] = [*feed[:-1], *([] if seen is x else [seen])]
    total = write(program, block, x, block.out, narrow)
    program.give(*temporary)
    return total, Several(slots)


@form(Repeated)
def repeated(program: Program, block: Block, x: Span, where: Where) -> tuple[Span, Slot]:
    assert isinstance(block, Repeated)
    slots: list[Slot] = []
    for _ in range(block.times):
        x = write_stack(program, block.inside, x, where, slots)
    return x, Several(slots)
