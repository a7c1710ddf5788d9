"""How do counted n-grams lie in so many bytes?

A table knows, for every context that it kept, the probabilities of the tokens it kept there; all
others have what the shorter context says. A context is known by a hash: its upper bits name a
bucket, sixteen more tell the few contexts of a bucket apart. Its tokens follow those of the
context before it, a byte or two each, and a byte for the probability, whose upper bit
marks the context's last token.

    head        64 whole numbers: what, for which vocabulary, and per length of context how
                many bits name a bucket, how many contexts and how many tokens there are
    frequencies one number of 4 bytes for every token of the vocabulary, without a context
    buckets     where the contexts of each bucket begin, and where their tokens begin
    marks       two bytes for every context
    tokens      one, two or four bytes each
    chances     one byte each

>>> Layout.of(order=3, vocab_size=256, contexts=(10, 40), tokens=(20, 50)).size
1620
"""

# c contexts, e tokens in contexts (entries), k buckets

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from parformer.errors import FolderError
from parformer.grams import TABLE_HEAD as HEAD

Bytes = NDArray[np.uint8]

MARK = 0x31464E50
"""The first four bytes of a table."""
FULL = 8
"""Contexts that share a bucket, about."""
LAST = 0x80
"""The bit that marks the last token of a context."""
LOGITS = np.linspace(-11.5, 9.0, 128)
"""What the other bits mean: the logarithm of a probability over its opposite's."""
CHANCES = (1 / (1 + np.exp(-LOGITS))).astype(np.float32)


class Room(NamedTuple):
    """Where the parts of one length of context begin, in bytes."""

    bits: int
    """Bits of a hash that name a bucket."""
    contexts: int
    """How many there are."""
    tokens: int
    """How many there are in all contexts."""
    firsts: int
    """Numbers of the first context of each bucket, and then of the first token of each."""
    marks: int
    names: int
    """The tokens themselves."""
    chances: int


@dataclass(frozen=True, slots=True)
class Layout:
    """Where everything is in a table."""

    order: int
    """A token is predicted from at most so many less one."""
    vocab_size: int
    width: int
    """Bytes of a token."""
    rooms: tuple[Room, ...]
    """Those of contexts of one token, of two, and so on."""
    size: int

    @classmethod
    def of(
        cls, *, order: int, vocab_size: int, contexts: tuple[int, ...], tokens: tuple[int, ...]
    ) -> Layout:
        """The layout for so many contexts of each length, with so many tokens in them."""
        width = 1 if vocab_size <= 2**8 else 2 if vocab_size <= 2**16 else 4
        bits = [bucket_bits(count) for count in contexts]
        place = 4 * (HEAD + vocab_size)

        def make_room(size: int, counts: Sequence[int]) -> list[int]:
            """Where so many numbers of this size begin, all of them aligned."""
            nonlocal place
            starts = []
            for count in counts:
                starts.append(place)
                place += size * count
            place += -place % 4
            return starts

        firsts = make_room(8, [2**few + 1 for few in bits])
        names = make_room(width, tokens) if width > 1 else []
        marks = make_room(2, contexts)
        names = names or make_room(width, tokens)
        chances = make_room(1, tokens)
        rooms = map(Room, bits, contexts, tokens, firsts, marks, names, chances)
        return cls(order, vocab_size, width, tuple(rooms), place)

    @classmethod
    def read(cls, table: Bytes) -> Layout | None:
        """The layout of a table; None where there is nothing in it yet."""
        if len(table) < 4 * HEAD:
            raise FolderError(f"a table of counts takes {4 * HEAD} bytes at least")
        head = table[: 4 * HEAD].view("<u4").astype(np.int64)
        if not head.any():
            return None
        mark, order, vocab_size, depth = head[:4].tolist()
        if mark != MARK or depth != order - 1 or not 0 <= depth <= (HEAD - 4) // 2:
            raise FolderError("these bytes are no table of counts")
        contexts, tokens = head[4 : 4 + 2 * depth].reshape(2, depth).tolist()
        layout = cls.of(
            order=order, vocab_size=vocab_size, contexts=tuple(contexts), tokens=tuple(tokens)
        )
        if layout.size > len(table):
            raise FolderError(
                f"a table of counts has {len(table):,} bytes and should have {layout.size:,}"
            )
        return layout

    def check(self, table: Bytes) -> None:
        """Refuse a table that would send a reader elsewhere."""
        fine = bool(np.isfinite(self.frequencies(table)).all())
        for room in self.rooms:
            contexts, entries = self.firsts(table, room).astype(np.int64)
            last = np.flatnonzero(self.chances(table, room) & LAST)
            begins = np.concatenate(([0], last + 1))
            fine = (
                fine
                and len(last) == room.contexts
                and (room.tokens == 0 or last[-1] == room.tokens - 1)
                and contexts[0] == 0
                and contexts[-1] == room.contexts
                and bool((np.diff(contexts) >= 0).all())
                and bool((begins[contexts] == entries).all())
                and int(self.names(table, room).max(initial=0)) < self.vocab_size
            )
            if not fine:
                raise FolderError("a table of counts is damaged; fetch or train the model again")

    def write_head(self, table: Bytes) -> None:
        rooms = self.rooms
        numbers = [MARK, self.order, self.vocab_size, len(rooms)]
        numbers += [room.contexts for room in rooms] + [room.tokens for room in rooms]
        table[: 4 * len(numbers)] = np.array(numbers, "<u4").view(np.uint8)

    def part(self, table: Bytes, start: int, count: int, kind: str) -> NDArray[Any]:
        size = np.dtype(kind).itemsize
        return table[start : start + size * count].view(kind)

    def frequencies(self, table: Bytes) -> NDArray[np.float32]:
        return self.part(table, 4 * HEAD, self.vocab_size, "<f4")

    def firsts(self, table: Bytes, room: Room) -> NDArray[np.uint32]:
        """(2, buckets + 1): the first context and the first token of every bucket."""
        return self.part(table, room.firsts, 2 * (2**room.bits + 1), "<u4").reshape(2, -1)

    def marks(self, table: Bytes, room: Room) -> NDArray[np.uint16]:
        return self.part(table, room.marks, room.contexts, "<u2")

    def names(self, table: Bytes, room: Room) -> NDArray[Any]:
        return self.part(table, room.names, room.tokens, f"<u{self.width}")

    def chances(self, table: Bytes, room: Room) -> Bytes:
        return self.part(table, room.chances, room.tokens, "u1")

    def addresses(self) -> NDArray[np.int64]:
        """All that a compiled reader has to know, as numbers."""
        head = [self.order, self.vocab_size, self.width, 4 * HEAD]
        rooms = [
            [room.bits, room.firsts, room.marks, room.names, room.chances] for room in self.rooms
        ]
        return np.array(sum(rooms, head), np.int64)


def bucket_bits(contexts: int) -> int:
    """Bits such that about `FULL` contexts share a bucket; one at least."""
    return max(1, (max(contexts, 1) // FULL).bit_length())


def extend_hash(hash_n: NDArray[np.uint64], tokens_n: NDArray[Any]) -> NDArray[np.uint64]:
    """The hash of a context with one more token before it; that of no token is 0."""
    mixed = (hash_n ^ (tokens_n.astype(np.uint64) + np.uint64(1))) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(29)
    return mixed * np.uint64(0xBF58476D1CE4E5B9)


def split_hash(
    hash_n: NDArray[np.uint64], bits: int
) -> tuple[NDArray[np.int64], NDArray[np.uint16]]:
    """The bucket of a context and the mark it has there."""
    bucket = (hash_n >> np.uint64(64 - bits)).astype(np.int64)
    return bucket, (hash_n >> np.uint64(48 - bits)).astype(np.uint16)
