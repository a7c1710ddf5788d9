"""How much of a held-out text stands in the training text word for word?

What was copied can be recited: on a split that shares much with train, a model that remembers
looks better than it is. Windows of 50 bytes are compared by 64-bit hashes, of which the split's
are kept and train's are streamed past, so that a text of any size needs little memory.

>>> overlap([b"the cat sat on the mat"], b"a cat sat on the roof", window=4)
Overlap(windows=18, shared=0.7222222222222222, longest=16)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from parformer.data.corpora import Corpus
from parformer.data.text import watched
from parformer.errors import CorpusError
from parformer.events import Preparing
from parformer.records import Record
from parformer.store.cache import keep

WINDOW = 50
"""Bytes that are the same by chance only in what everybody writes."""
WARN = 0.05
"""A split that shares more of its windows with train is crowded."""
LOOKED_AT = 5 * 2**20
"""Of a longer split, so many bytes at its start are looked at; those of enwik8 still fit."""
BLOCK = 2**20
"""About so many bytes of train are compared at a time."""
FORMAT = 1
"""Counted up when the same text would give other numbers."""

# One number per byte, and an odd base, whose powers can be undone in arithmetic modulo 2**64.
_NUMBERS = np.random.default_rng(50).integers(0, 2**64, 256, np.uint64)
_BASE = 0x9E3779B97F4A7C15
_UNBASE = pow(_BASE, -1, 2**64)

_Numbers = NDArray[np.uint64]
_Places = NDArray[np.intp]
_Marks = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Overlap(Record):
    """What a held-out split has in common with train."""

    windows: int
    """Places of the split at which 50 bytes were looked at."""
    shared: float
    """Share of them whose bytes stand in train too."""
    longest: int
    """Bytes of the longest stretch that stands in both; 0 where it has fewer than 50."""

    @property
    def crowded(self) -> bool:
        """Whether so much is shared that scores on this split flatter."""
        return self.shared > WARN


def overlaps(corpus: Corpus, progress: Preparing | None = None) -> dict[str, Overlap]:
    """How much of valid and test stands in train; nothing where there is no train.

    It is worked out once for a text and kept in the cache beside its tokens.
    """
    held_out = [s for s in corpus.splits if s != "train"] if "train" in corpus.splits else []
    if not held_out:
        return {}

    def measured() -> dict[str, Overlap]:
        return {split: _measure(corpus, split, progress) for split in held_out}

    try:
        return keep(
            corpus.cache / "overlap" / f"{corpus.identity()}-{FORMAT}",
            lambda _: {split: asdict(found) for split, found in measured().items()},
            lambda facts: {split: Overlap(**facts[split]) for split in held_out},
            needed=4096,
            progress=progress,
        )
    except CorpusError:
        # A cache that cannot be written to is fine; a text that cannot be read is told again.
        return measured()


def _measure(corpus: Corpus, split: str, progress: Preparing | None) -> Overlap:
    held_out, chunks = bytearray(), corpus.chunks(split)
    while len(held_out) < LOOKED_AT and (chunk := next(chunks, b"")):
        held_out += chunk
    train = watched(corpus, "train", f"looking for {split}", progress)
    return overlap(train, bytes(held_out[:LOOKED_AT]))


def overlap(
    train: Iterable[bytes], split: bytes, *, window: int = WINDOW, block: int = BLOCK
) -> Overlap:
    """Compare a text with another one that comes in chunks, cut anywhere."""
    if len(split) < window:
        return Overlap(0, 0.0, 0)
    search = _Search(split, window)
    for part in _blocks(train, block):
        search.compare(part)
    return Overlap(len(split) - window + 1, search.shared, search.longest)


class _Search:
    """The windows of a held-out text, and which of them were found."""

    def __init__(self, split: bytes, window: int) -> None:
        self.split, self.window = split, window
        self.powers = _Powers()
        self.hashes = _Hashes(split, self.powers)
        self.known, order = np.unique(self.hashes.all(window), return_inverse=True)
        self.which = order.astype(np.int32)
        """The place of every window's hash among the known ones."""
        self.found: _Marks = np.zeros(len(self.known), np.bool_)
        self.longest = 0
        self.rest = b""
        """The end of what was looked at, with which the next part is to begin."""
        self.rest_known: _Places = np.zeros(0, np.intp)
        """Which windows stand in it one after the other, where a match may go on."""
        # Most hashes of train are unknown, and a look at a few of their bits shows it.
        bits = max(len(self.known) * 4, 256).bit_length()
        self.shift = np.uint64(64 - bits)
        self.hints: _Marks = np.zeros(2**bits, np.bool_)
        self.hints[self.known >> self.shift] = True

    @property
    def shared(self) -> float:
        return float(self.found[self.which].mean())

    def compare(self, part: bytes) -> None:
        """Look at the next part of train."""
        text, before = self.rest + part, self.rest_known
        if len(text) < self.window:
            self.rest = text
            return
        hashes = _Hashes(text, self.powers)
        starts, known = self._look_up(hashes.all(self.window)[len(before) :])
        self.found[known] = True
        starts = np.concatenate([np.arange(len(before)), starts + len(before)])
        known = np.concatenate([before, known])
        rows = _rows(starts)
        if len(starts):
            self._lengthen(text, hashes, starts, known, rows)
        tail = len(text) - self.window + 1
        self.rest, self.rest_known = text[tail:], known[:0]
        if len(starts) and starts[-1] == tail - 1:
            # A match at the end may go on in the next part; none is longer than the split.
            count = min(int(rows[-1]), len(self.split) - self.window)
            self.rest, self.rest_known = text[tail - count :], known[len(known) - count :]

    def _look_up(self, hashes: _Numbers) -> tuple[_Places, _Places]:
        """The windows of train that are known, and which ones they are."""
        starts = np.flatnonzero(self.hints[hashes >> self.shift])
        hashes = hashes[starts]
        which = np.minimum(np.searchsorted(self.known, hashes), len(self.known) - 1)
        same = self.known[which] == hashes
        return starts[same], which[same]

    def _lengthen(
        self, text: bytes, hashes: _Hashes, starts: _Places, known: _Places, rows: _Places
    ) -> None:
        """Find the longest match in a part of train, where it beats the longest so far.

        A match of n bytes is a row of n - 49 known windows in both texts. Not every such row
        is a match, since its windows may come from many places; so the length is bisected.
        """
        self.longest = max(self.longest, self.window)
        long = np.repeat(rows, rows) > self.longest - self.window + 1
        if not long.any():
            return
        marks: _Marks = np.zeros(len(self.known), np.bool_)
        marks[known[long]] = True
        places = np.flatnonzero(marks[self.which])
        starts_left, places_left = _left(rows), _left(_rows(places))

        def occurs(length: int) -> bool:
            more = length - self.window + 1
            ours, theirs = starts[starts_left >= more], places[places_left >= more]
            same, i, j = np.intersect1d(
                hashes.at(ours, length), self.hashes.at(theirs, length), return_indices=True
            )
            if not len(same):
                return False
            a, b = ours[i[0]], theirs[j[0]]
            return text[a : a + length] == self.split[b : b + length]

        low, high = self.longest, int(min(starts_left.max(), places_left.max())) + self.window - 1
        if high > low and occurs(high):  # mostly the longest row is a match
            low = high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if occurs(middle) else (low, middle)
        self.longest = low


class _Powers:
    """The powers of the base and of its inverse modulo 2**64, as many as were needed so far."""

    def __init__(self) -> None:
        self.up = self.down = np.ones(1, np.uint64)

    def reach(self, count: int) -> None:
        if len(self.up) < count:
            count += count // 8
            self.up, self.down = (_powers(base, count) for base in (_BASE, _UNBASE))


def _powers(base: int, count: int) -> _Numbers:
    factors = np.full(count, base, np.uint64)
    factors[0] = 1
    return np.multiply.accumulate(factors)


class _Hashes:
    """The hash of any stretch of a text: the sum of its bytes' numbers times powers of a base."""

    def __init__(self, text: bytes, powers: _Powers) -> None:
        powers.reach(len(text))
        numbers = _NUMBERS[np.frombuffer(text, np.uint8)]
        numbers *= powers.up[: len(text)]
        self.sums = np.zeros(len(text) + 1, np.uint64)
        np.cumsum(numbers, out=self.sums[1:])
        self.down = powers.down

    def all(self, length: int) -> _Numbers:
        """Of every stretch of a length."""
        sums: _Numbers = self.sums[length:] - self.sums[:-length]
        sums *= self.down[: len(sums)]
        return sums

    def at(self, starts: _Places, length: int) -> _Numbers:
        """Of the stretches of a length that begin at some places."""
        sums: _Numbers = self.sums[starts + length] - self.sums[starts]
        sums *= self.down[starts]
        return sums


def _rows(places: _Places) -> _Places:
    """How long the rows of neighbours among ascending numbers are.

    >>> _rows(np.array([3, 4, 5, 8, 9]))
    array([3, 2])
    """
    firsts = np.flatnonzero(np.diff(places, prepend=-2) > 1)
    return np.diff(firsts, append=len(places))


def _left(rows: _Places) -> _Places:
    """How many of its row are left at each number, itself included.

    >>> _left(np.array([3, 2]))
    array([3, 2, 1, 2, 1])
    """
    return np.repeat(np.cumsum(rows), rows) - np.arange(rows.sum())


def _blocks(chunks: Iterable[bytes], size: int) -> Iterator[bytes]:
    """The same bytes in parts of one size; files are often small and parts should not be."""
    held = bytearray()
    for chunk in chunks:
        held += chunk
        while len(held) >= size:
            yield bytes(held[:size])
            del held[:size]
    if held:
        yield bytes(held)
