"""What does a Synthesizer do, as operations of a program?"""

# h heads, n places, k head width, r rank

from __future__ import annotations

from typing import cast

import torch

from parformer.blocks.base import Block
from parformer.blocks.coded import CodedLinear
from parformer.blocks.linear import HeadLinear, Linear, plain_weight
from parformer.blocks.synthesizer import Synthesizer
from parformer.blocks.synthetic import (
    VANILLA,
    Dense,
    FactoredDense,
    FactoredRandom,
    Fixed,
    Random,
    Sizes,
)
from parformer.native.forms import Where, form, read, write
from parformer.native.program import CACHE, NOWHERE, NoForm, Program, Span, bits
from parformer.native.slots import KeyValues, Slot

RANDOM, FACTORED_RANDOM, SAME_RANDOM, DENSE, TILED, CYCLED = range(6)


@form(Synthesizer)
def synthesizer(program: Program, block: Block, x: Span, where: Where) -> tuple[Span, Slot]:
    assert isinstance(block, Synthesizer)
    sizes = block.sizes
    seen = x if block.bare else read(program, block, x)
    asks, shares = VANILLA in sizes.kinds, shares_of(block)
    kv, out = program.linear(block.key_value, seen), program.take(sizes.inside)
    assert kv.width == sizes.remembered
    temporary, q, scale = [kv], NOWHERE, 0.0
    if asks and block.query is not None:
        asked = program.linear(block.query, seen)
        temporary.append(asked)
        q = asked.words
        scale = 1.0 if sizes.released else sizes.width**-0.5
    words: list[int] = []
    for kind, share in zip(sizes.kinds, shares, strict=True):
        if kind == VANILLA:
            scale *= share
        else:
            made, spans = part(program, block, kind, seen)
            words += [made[0], bits(share), *made[1:]]
            temporary += spans
    memory = min(program.memory, sizes.length - 1)
    slot = KeyValues(
        program.state(CACHE, sizes.heads, sizes.width, memory),
        *(sizes.heads, sizes.width, memory, asks),
    )
    count, place = len(words) // 11, program.pointers(words)
    numbers = (sizes.heads, sizes.width, slot.number, sizes.length, count, block.reach)
    program.add("synthesize", *q, *kv.words, *out.words, *numbers, bits(scale), place)
    program.give(*temporary, *([] if seen is x else [seen]))
    if block.bare:
        y = program.linear(block.out, out)
        program.give(x, out)
        return y, slot
    return write(program, block, x, block.out, out), slot


def shares_of(block: Synthesizer) -> list[float]:
    """How much each part of the sum weighs."""
    if block.alpha is None:
        return [1.0] * len(block.sizes.kinds)
    alpha = block.alpha.detach().float()
    return torch.softmax(torch.cat((alpha, alpha.new_zeros(1))), dim=0).tolist()


Made = tuple[int, int, int, int, int, int, int, int, int, int]
"""Kind, both addresses, how far heads lie apart, rank, both spans, the left one's heads."""


def part(program: Program, block: Synthesizer, kind: str, seen: Span) -> tuple[Made, list[Span]]:
    """The scores of one part, and the buffers that they are read from."""
    sizes, scores = block.sizes, block.scores[kind]
    heads, length, rank = sizes.heads, sizes.length, sizes.rank
    if isinstance(scores, Random | Fixed):
        table = program.address(scores.table_hnn, heads, length, length)
        return (RANDOM, table, 0, length * length, 0, *NOWHERE, *NOWHERE, 0), []
    if isinstance(scores, FactoredRandom):
        own = SAME_RANDOM if sizes.released else FACTORED_RANDOM
        a, b = (
            program.address(factor, heads, length, rank)
            for factor in (scores.rows_hnr, scores.columns_hnr)
        )
        return (own, a, b, length * rank, rank, *NOWHERE, *NOWHERE, 0), []
    if isinstance(scores, Dense):
        return dense(program, block, scores, seen)
    if isinstance(scores, FactoredDense):
        return factored_dense(program, scores, sizes, seen)
    raise NoForm(f"scores {type(scores).__name__} have no native form")


def dense(
    program: Program, block: Synthesizer, scores: Dense, seen: Span
) -> tuple[Made, list[Span]]:
    sizes = block.sizes
    length, width = sizes.length, sizes.width
    if scores.hidden is None or scores.table is None:
        assert block.query is not None
        hidden, found = program.linear(block.query, seen, activation="relu"), [scores.shared]
    else:
        hidden = by_head(program, scores.hidden, seen, activation="relu")
        found = [cast(Linear, each) for each in scores.table.maps]
    if not all(isinstance(each, CodedLinear) or plain_weight(each) for each in found):
        raise NoForm("a table of scores is no plain linear map")
    table = torch.stack([each.weight.detach() for each in found])
    address = program.address(table, len(found), length, width)
    apart = 0 if len(found) == 1 and sizes.heads > 1 else length * width
    return (DENSE, address, 0, apart, 0, *hidden.words, *NOWHERE, width), [hidden]


def factored_dense(
    program: Program, scores: FactoredDense, sizes: Sizes, seen: Span
) -> tuple[Made, list[Span]]:
    if scores.hidden is None:
        left, right = program.linear(scores.a, seen), program.linear(scores.b, seen)
        return (CYCLED, 0, 0, 0, sizes.b, *left.words, *right.words, sizes.a), [left, right]
    hidden = by_head(program, scores.hidden, seen, activation="relu")
    left, right = (by_head(program, cast(HeadLinear, m), hidden) for m in (scores.a, scores.b))
    made: Made = (TILED, 0, 0, 0, sizes.b, *left.words, *right.words, sizes.a)
    return made, [hidden, left, right]


def by_head(program: Program, maps: HeadLinear, x: Span, *, activation: str = "") -> Span:
    """A map of its own for every head's slice."""
    heads = len(maps.maps)
    each, out = x.width // heads, program.take(heads * maps.outputs)
    for h, own in enumerate(maps.maps):
        to = out.part(h * maps.outputs, maps.outputs)
        program.linear(own, x.part(h * each, each), activation=activation, out=to)
    return out
