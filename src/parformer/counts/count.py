"""Which n-grams of a text are worth their bytes, and how likely is what follows them?

Probabilities are those of Kneser and Ney (1995) as Chen and Goodman (1999) changed them: an order
trusts its counts less a discount, and what is discounted goes to the order below, which counts not
how often a token follows a context but after how many different longer contexts it does.
What a table has no room for is chosen by what would be lost without it (Stolcke, 1998): an n-gram
less is a token that takes what its context leaves to the shorter one, and a little less for all
others that do.
"""

# g n-grams, c contexts, n places of a text, v vocabulary

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parformer.counts.table import (
    CHANCES,
    LAST,
    LOGITS,
    Bytes,
    Layout,
    extend_hash,
    split_hash,
)
from parformer.grams import check_table, token_bits

MOST = 20_000_000
"""Tokens of a text that are counted; more would take gigabytes."""
NEVER_SEEN = 1e-7
"""The least frequency of a token."""
TRIES = 44
"""Halvings after which the least gain that fits is known."""
MENDED = 4
"""How often rounded probabilities of a context are put right."""
WORKERS = 2
"""Tables that are made at a time; each takes some hundred megabytes for a text of ten."""

Keys = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Level:
    """All n-grams of one length, sorted: the context, its nearest token first, then the token."""

    key_g: Keys
    count_g: NDArray[np.int64]
    """How often, or after how many longer contexts."""
    parent_g: NDArray[np.int64]
    """Which n-gram without the first token is meant; for the shortest, nothing."""


@dataclass(frozen=True, slots=True)
class Estimates:
    """What is known of all n-grams of one length."""

    key_g: Keys
    chance_g: NDArray[np.float32]
    gain_g: NDArray[np.float32]
    """Nats that would be lost without it, if all others stayed."""
    first_c: NDArray[np.int64]
    """Where the tokens of every context begin."""


def count(tokens: NDArray[Any], *, vocab_size: int, size: int, order: int = 0) -> Bytes:
    """A table of a text's n-grams in exactly `size` bytes; `order` 0 means as long as possible."""
    order = check_table(vocab_size, size, order)
    return pack(*estimated(Text(tokens), vocab_size, order), vocab_size, order, size)


def count_without(
    tokens: NDArray[Any], edges: Sequence[int], *, vocab_size: int, size: int, order: int = 0
) -> list[Bytes]:
    """Such a table for each part of a text between two edges, counted on all the others.

    Whoever learns beside a table must not see it know what it could only know from there.
    """
    order = check_table(vocab_size, size, order)
    key_g, count_g = grams(tokens, vocab_size, order)

    def without(part: int) -> Bytes:
        start, end = edges[part : part + 2]
        own_g, times_g = grams(tokens[max(start - order + 1, 0) : end], vocab_size, order)
        rest_g = count_g.copy()
        rest_g[np.searchsorted(key_g, own_g)] -= times_g
        left_g = rest_g > 0
        levels = all_levels(key_g[left_g], rest_g[left_g], vocab_size, order)
        return pack(*estimates(levels, vocab_size), vocab_size, order, size)

    # numpy sorts and computes without Python's lock
    with ThreadPoolExecutor(WORKERS) as pool:
        return list(pool.map(without, range(len(edges) - 1)))


class Text:
    """Tokens that are told apart by their digest."""

    def __init__(self, tokens: NDArray[Any]) -> None:
        self.tokens = tokens
        self.digest = hashlib.sha256(tokens.tobytes()).hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Text) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)


@lru_cache(maxsize=1)
def estimated(
    text: Text, vocab_size: int, order: int
) -> tuple[NDArray[np.float64], list[Estimates]]:
    """What is known of a text's n-grams; whoever tries several sizes counts once."""
    levels = all_levels(*grams(text.tokens, vocab_size, order), vocab_size, order)
    return estimates(levels, vocab_size)


def part_edges(length: int, parts: int) -> list[int]:
    """Where equal parts of a text begin, and where the last one ends; nothing for no parts."""
    return [length * part // parts for part in range(parts + 1)] if parts else []


def as_much_as_fits(
    tokens: NDArray[Any], parts: int, most: int = MOST
) -> tuple[NDArray[Any], list[int]]:
    """A text and the edges of its parts; of a longer one the beginning of every part.

    >>> text, edges = as_much_as_fits(np.arange(100), parts=2, most=6)
    >>> text.tolist(), edges
    ([0, 1, 2, 50, 51, 52], [0, 3, 6])
    """
    edges = part_edges(len(tokens), parts)
    if len(tokens) <= most:
        return tokens, edges
    each = most // parts
    kept = [tokens[start : min(start + each, end)] for start, end in pairwise(edges)]
    return np.concatenate(kept), part_edges(sum(map(len, kept)), parts)


def grams(tokens: NDArray[Any], vocab_size: int, order: int) -> tuple[Keys, NDArray[np.int64]]:
    """All n-grams of a text, sorted, and how often each occurs."""
    bits, count = np.uint64(token_bits(vocab_size)), max(len(tokens) - order + 1, 0)
    key_n = np.zeros(count, np.uint64)
    for back in range(1, order):
        start = order - 1 - back
        key_n = key_n << bits | tokens[start : start + count].astype(np.uint64)
    key_n = key_n << bits | tokens[order - 1 : order - 1 + count].astype(np.uint64)
    key_n.sort()
    first_g = firsts(key_n)
    return key_n[first_g], np.diff(first_g, append=count)


def firsts(sorted_n: NDArray[Any]) -> NDArray[np.int64]:
    """Where something new begins."""
    if not len(sorted_n):
        return np.zeros(0, np.int64)
    return np.flatnonzero(np.concatenate(([True], sorted_n[1:] != sorted_n[:-1])))


def all_levels(key_g: Keys, count_g: NDArray[np.int64], vocab_size: int, order: int) -> list[Level]:
    """The n-grams of every length, from single tokens on."""
    bits = np.uint64(token_bits(vocab_size))
    token = (np.uint64(1) << bits) - np.uint64(1)
    levels: list[Level] = []
    for _ in range(order - 1):
        # the farthest token of a context stands next to the token that follows
        shorter_g = key_g >> (bits + bits) << bits | key_g & token
        by_key = np.argsort(shorter_g, kind="stable")
        first = firsts(shorter_g[by_key])
        parent_g = np.empty(len(key_g), np.int64)
        parent_g[by_key] = np.repeat(np.arange(len(first)), np.diff(first, append=len(key_g)))
        levels.append(Level(key_g, count_g, parent_g))
        key_g, count_g = shorter_g[by_key][first], np.diff(first, append=len(key_g))
    levels.append(Level(key_g, count_g, np.zeros(0, np.int64)))
    return levels[::-1]


def estimates(
    levels: Sequence[Level], vocab_size: int
) -> tuple[NDArray[np.float64], list[Estimates]]:
    """How likely each token is without a context, and the n-grams that know better."""
    bits = np.uint64(token_bits(vocab_size))
    single = levels[0]
    frequency_v = np.full(vocab_size, 1 / vocab_size)
    if len(single.key_g):
        share_g, rest_c = discounted(single.count_g, np.zeros(1, np.int64))
        frequency_v *= rest_c[0]
        frequency_v[single.key_g.astype(np.int64)] += share_g
    frequency_v = np.maximum(frequency_v, NEVER_SEEN)
    frequency_v /= frequency_v.sum()
    shorter_g = frequency_v[single.key_g.astype(np.int64)].astype(np.float32)
    known = []
    for level in levels[1:]:
        first_c = firsts(level.key_g >> bits)
        share_g, rest_c = discounted(level.count_g, first_c)
        below_g = shorter_g[level.parent_g]
        lengths_c = np.diff(first_c, append=len(level.key_g))
        chance_g = share_g + np.repeat(rest_c, lengths_c) * below_g
        gain_g = gains(level.count_g, chance_g, below_g, first_c)
        known.append(Estimates(level.key_g, chance_g, gain_g, first_c))
        shorter_g = chance_g
    return frequency_v, known


def gains(
    count_g: NDArray[np.int64],
    chance_g: NDArray[np.float32],
    below_g: NDArray[np.float32],
    first_c: NDArray[np.int64],
) -> NDArray[np.float32]:
    """What would be lost without each n-gram, in nats of the text that was counted."""
    if not len(count_g):
        return np.zeros(0, np.float32)
    lengths_c = np.diff(first_c, append=len(count_g))

    def together(values_g: NDArray[Any]) -> NDArray[np.float32]:
        return np.repeat(np.add.reduceat(values_g, first_c).astype(np.float32), lengths_c)

    left_g = np.maximum(1 - together(chance_g), NEVER_SEEN)
    room_g = np.maximum(1 - together(below_g), NEVER_SEEN)
    factor_g, then_g = left_g / room_g, (left_g + chance_g) / (room_g + below_g)
    own_g = chance_g * np.log(chance_g / (then_g * below_g))
    nats_g: NDArray[np.float32] = together(count_g) * (own_g + left_g * np.log(factor_g / then_g))
    return nats_g


def discounted(
    count_g: NDArray[np.int64], first_c: NDArray[np.int64]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """What an order trusts its own counts with, and what it leaves to the order below."""
    if not len(count_g):
        return np.zeros(0, np.float32), np.zeros(0, np.float32)
    discount_g = discounts(count_g)[np.minimum(count_g, 3)].astype(np.float32)
    total_c = np.add.reduceat(count_g, first_c).astype(np.float32)
    lengths_c = np.diff(first_c, append=len(count_g))
    share_g = (count_g.astype(np.float32) - discount_g) / np.repeat(total_c, lengths_c)
    rest_c = np.add.reduceat(discount_g, first_c) / total_c
    return share_g.astype(np.float32), rest_c.astype(np.float32)


def discounts(count_g: NDArray[np.int64]) -> NDArray[np.float64]:
    """What is taken from a count of one, of two, and of more, by how many such counts there are."""
    often = np.bincount(np.minimum(count_g, 5), minlength=6)[:5].astype(float)
    ratio = often[1] / max(often[1] + 2 * often[2], 1)
    taken = [i - (i + 1) * ratio * often[i + 1] / max(often[i], 1) for i in (1, 2, 3)]
    # where there are few counts, the formula may leave the range that makes sense
    bounded = [min(max(value, 0.1 * i), 0.95 * i) for i, value in enumerate(taken, start=1)]
    return np.array([0.0, *bounded])


def prune(known: Sequence[Estimates], vocab_size: int, order: int, size: int) -> list[Estimates]:
    """The n-grams that are worth most, as many as there is room for."""
    every = [level.gain_g for level in known]
    best = [
        np.maximum.reduceat(level.gain_g, level.first_c) if len(level.gain_g) else level.gain_g
        for level in known
    ]

    def bytes_from(least: float) -> int:
        contexts, tokens = (
            tuple(int(np.count_nonzero(gain >= least)) for gain in gains) for gains in (best, every)
        )
        return Layout.of(order=order, vocab_size=vocab_size, contexts=contexts, tokens=tokens).size

    low, high = -math.inf, max((float(gain.max()) for gain in best if len(gain)), default=0.0) + 1
    if bytes_from(low) > size:
        low = min(float(gain.min()) for gain in every if len(gain))
        for _ in range(TRIES):
            middle = (low + high) / 2
            low, high = (middle, high) if bytes_from(middle) > size else (low, middle)
        low = high
    return [keep(level, level.gain_g >= low) for level in known]


def keep(level: Estimates, kept_g: NDArray[np.bool_]) -> Estimates:
    lengths_c = np.diff(level.first_c, append=len(kept_g))
    context_g = np.repeat(np.arange(len(lengths_c)), lengths_c)[kept_g]
    return Estimates(
        level.key_g[kept_g], level.chance_g[kept_g], level.gain_g[kept_g], firsts(context_g)
    )


def pack(
    frequency_v: NDArray[np.float64],
    known: Sequence[Estimates],
    vocab_size: int,
    order: int,
    size: int,
) -> Bytes:
    """The table itself, with the n-grams that it has room for."""
    known = prune(known, vocab_size, order, size)
    layout = Layout.of(
        order=order,
        vocab_size=vocab_size,
        contexts=tuple(len(level.first_c) for level in known),
        tokens=tuple(len(level.key_g) for level in known),
    )
    table = np.zeros(size, np.uint8)
    layout.write_head(table)
    layout.frequencies(table)[:] = frequency_v
    bits = token_bits(vocab_size)
    for length, (level, room) in enumerate(zip(known, layout.rooms, strict=True), start=1):
        context_c = level.key_g[level.first_c] >> np.uint64(bits)
        hash_c = hash_contexts(context_c, length, bits)
        by_hash = np.argsort(hash_c, kind="stable")
        bucket_c, mark_c = split_hash(hash_c[by_hash], room.bits)
        layout.marks(table, room)[:] = mark_c
        lengths_c = np.diff(level.first_c, append=len(level.key_g))[by_hash]
        end_c = np.cumsum(lengths_c)
        # the places of all tokens, context by context in the order of hashes
        place_g = np.arange(len(level.key_g)) + np.repeat(
            level.first_c[by_hash] - (end_c - lengths_c), lengths_c
        )
        token = np.uint64((1 << bits) - 1)
        layout.names(table, room)[:] = level.key_g[place_g] & token
        number_g = rounded(level.chance_g, level.first_c)[place_g]
        number_g[end_c - 1] |= LAST
        layout.chances(table, room)[:] = number_g
        edges = np.searchsorted(bucket_c, np.arange(2**room.bits + 1))
        layout.firsts(table, room)[0] = edges
        layout.firsts(table, room)[1] = np.concatenate(([0], end_c))[edges]
    return table


def hash_contexts(context_c: Keys, length: int, bits: int) -> Keys:
    hash_c = np.zeros(len(context_c), np.uint64)
    token = np.uint64((1 << bits) - 1)
    for back in range(length):
        shift = np.uint64(bits * (length - 1 - back))
        hash_c = extend_hash(hash_c, context_c >> shift & token)
    return hash_c


def rounded(chance_g: NDArray[np.float32], first_c: NDArray[np.int64]) -> Bytes:
    """Probabilities as numbers of seven bits, such that their sum in each context stays right.

    What a context leaves to the shorter one is one less that sum, often a small number.
    """
    if not len(chance_g):
        return np.zeros(0, np.uint8)
    step, most = LOGITS[1] - LOGITS[0], len(LOGITS) - 1
    bounded_g = np.clip(chance_g, CHANCES[0], CHANCES[-1]).astype(float)
    logit_g = np.log(bounded_g / (1 - bounded_g))
    number_g = np.clip(np.rint((logit_g - LOGITS[0]) / step), 0, most).astype(np.int64)
    lengths_c = np.diff(first_c, append=len(chance_g))
    table = CHANCES.astype(float)
    for _ in range(MENDED):
        surplus_c = np.add.reduceat(table[number_g] - chance_g, first_c)
        surplus_g = np.repeat(surplus_c, lengths_c)
        moved_g = np.clip(number_g - np.sign(surplus_g).astype(np.int64), 0, most)
        then_g = np.abs(surplus_g + table[moved_g] - table[number_g])
        best_c = np.minimum.reduceat(then_g, first_c)
        better_g = (then_g == np.repeat(best_c, lengths_c)) & (then_g < 0.8 * np.abs(surplus_g))
        # of several that would do, the first
        done_g = np.cumsum(better_g)
        before_c = done_g[first_c] - better_g[first_c]
        better_g &= done_g - np.repeat(before_c, lengths_c) == 1
        number_g[better_g] = moved_g[better_g]
    numbers: Bytes = number_g.astype(np.uint8)
    return numbers
