"""What does a masked model read of documents: which sentences, which of their tokens hidden?

Pairs of segments as BERT (next sentence) and ALBERT (sentence order) make them, or one segment.
Sentences of a document are added until a length is reached; the length is that of the window, and
of one document in ten a shorter one. Of a next-sentence pair the second half is from elsewhere in
one case of two, and the sentences that it would have had come again in the next one; of an ordered
pair the halves change places in one case of two. A chunk of a single sentence gets a second segment
from elsewhere in both. Packed rows have no pairs: they are full of sentences, document after
document, each with its mark behind it (RoBERTa's full sentences). Which documents, cuts and masks
update number n sees follows from the seed and n.
"""

# b batch, t time

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from random import Random
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from parformer.data.batches import Batch, Batches, Tokens, number_for
from parformer.data.documents import GOES_ON, PLAIN, Documents, Numbers
from parformer.data.masking import HIDDEN, REPLACED
from parformer.embedding import IGNORE
from parformer.errors import CorpusError

SHORT = 0.1
"""Of so many documents the pairs are shorter than the window."""
GRAMS = 3
"""Words of a hidden n-gram at most (ALBERT)."""

Pairing = Literal["none", "next", "order"]
Unit = Literal["piece", "word", "n-gram"]


Span = tuple[int, int]
"""The first and the last sentence of a segment."""


class Cut(NamedTuple):
    """The segments of a row."""

    first: Span
    second: Span | None
    label: int
    """1 where the second does not follow the first."""
    others: tuple[Span, ...] = ()
    """Of further documents, in a packed row."""


def cuts_of(texts: Documents, number: int, window: int, pairing: Pairing, rng: Random) -> list[Cut]:
    """The pairs of a document for one epoch."""
    low, high = texts.of_document(number)
    room = window - (2 if pairing == "none" else 3)
    target = rng.randint(2, room) if rng.random() < SHORT else room
    found, chunk, length, at = [], [], 0, low
    while at < high:
        chunk.append(at)
        length += int(texts.edges[at + 1] - texts.edges[at])
        if at == high - 1 or length >= target:
            if pairing == "none":
                found.append(Cut((chunk[0], chunk[-1]), None, 0))
            else:
                cut, left = paired(texts, number, chunk, target, pairing, rng)
                found.append(cut)
                at -= left
            chunk, length = [], 0
        at += 1
    return found


def packed(texts: Documents, order: Iterable[int], window: int) -> list[Cut]:
    """Whole sentences of one document after the other, as many to a row as it has room for."""
    found, row, length = [], list[Span](), 0
    for number in order:
        goes_on = False
        for at in range(*texts.of_document(number)):
            size = int(texts.edges[at + 1] - texts.edges[at])
            if row and length + size + (not goes_on) > window - 1:
                found.append(Cut(row[0], None, 0, tuple(row[1:])))
                row, length, goes_on = [], 0, False
            if goes_on:
                row[-1] = (row[-1][0], at)
            else:
                row.append((at, at))
            length += size + (not goes_on)  # with the mark behind a segment
            goes_on = True
    return [*found, Cut(row[0], None, 0, tuple(row[1:]))] if row else found


def paired(
    texts: Documents, number: int, chunk: Sequence[int], target: int, pairing: Pairing, rng: Random
) -> tuple[Cut, int]:
    """A chunk as two segments, and how many of its sentences were not used."""
    end = rng.randint(1, len(chunk) - 1) if len(chunk) > 1 else 1
    first = (chunk[0], chunk[end - 1])
    alone = len(chunk) == 1
    if alone or (pairing == "next" and rng.random() < 0.5):
        used = int(texts.edges[first[1] + 1] - texts.edges[first[0]])
        return Cut(first, elsewhere(texts, number, target - used, rng), 1), len(chunk) - end
    second = (chunk[end], chunk[-1])
    if pairing == "order" and rng.random() < 0.5:
        return Cut(second, first, 1), 0
    return Cut(first, second, 0), 0


def elsewhere(texts: Documents, number: int, room: int, rng: Random) -> Span:
    """Sentences of another document, as many as fit, one at least."""
    other = number
    while other == number and texts.count > 1:
        other = rng.randrange(texts.count)
    low, high = texts.of_document(other)
    first = last = rng.randrange(low, high)
    while last + 1 < high and texts.edges[last + 1] - texts.edges[first] < room:
        last += 1
    return first, last


def trimmed(first: Numbers, second: Numbers, room: int, rng: Random) -> tuple[Numbers, Numbers]:
    """Two segments cut to a length, a token at a time off the longer, at either end."""
    while len(first) + len(second) > room:
        front = rng.random() < 0.5
        if len(first) > len(second):
            first = first[1:] if front else first[:-1]
        else:
            second = second[1:] if front else second[:-1]
    return first, second


def words_of(row: Numbers, candidates: Sequence[int], unit: Unit) -> list[list[int]]:
    """The places that are hidden together: pieces, or whole words."""
    found: list[list[int]] = []
    for place in candidates:
        goes_on = bool(row[place] & GOES_ON) and unit != "piece"
        if goes_on and found and found[-1][-1] == place - 1:
            found[-1].append(place)
        else:
            found.append([place])
    return found


def hidden_places(words: list[list[int]], budget: int, unit: Unit, rng: Random) -> list[int]:
    """Places to guess: words in random order, or n-grams with P(n) ∝ 1/n, within a budget.

    What is too long for what is left becomes shorter, or is passed over; so is what overlaps.
    """
    order = list(range(len(words)))
    rng.shuffle(order)
    taken: set[int] = set()
    lengths = range(1, GRAMS + 1)
    for start in order:
        if len(taken) >= budget:
            break
        size = 1
        if unit == "n-gram":
            size = rng.choices(lengths, [1 / n for n in lengths])[0]
        size = min(size, len(words) - start)
        while size:
            places = [place for word in words[start : start + size] for place in word]
            if len(taken) + len(places) <= budget:
                if not taken.intersection(places):
                    taken.update(places)
                break
            size -= 1
    if not taken and words:
        taken.update(words[order[0]][:1])  # every word is longer than the budget
    return sorted(taken)


class Pretraining(Batches):
    """Batches of segments with some of their tokens hidden."""

    def __init__(
        self,
        tokens: Tokens,
        *,
        batch: int,
        window: int,
        seed: int,
        share: float,
        unit: Unit,
        pairing: Pairing,
        most: int = 0,
        packed: bool = False,
    ) -> None:
        """`most` tokens of a row are hidden, whatever its share; 0 means any."""
        self.texts = Documents(tokens)
        if self.texts.count < 2 and pairing != "none":
            raise CorpusError(
                "pairs of segments need two documents at least; put blank lines between documents"
            )
        self.batch, self.window, self.seed, self.share = batch, window, seed, share
        self.unit, self.pairing, self.most, self.packed = unit, pairing, most, packed
        self._plan = lru_cache(maxsize=2)(self._make_plan)
        # epochs differ by a few pairs: every one is as long as the first, come what may
        self.per_epoch = len(self._plan(0)) // batch
        if not self.per_epoch:
            raise CorpusError(
                f"the text gives {len(self._plan(0)):,} segments of {window} tokens, but a batch "
                f"has {batch}; lower train.batch"
            )

    def _make_plan(self, epoch: int) -> list[Cut]:
        """All pairs of an epoch, in random order."""
        found: list[Cut] = []
        if self.packed:
            order = list(range(self.texts.count))
            Random(number_for(self.seed, "order", epoch)).shuffle(order)
            found = packed(self.texts, order, self.window)
        for number in range(0 if self.packed else self.texts.count):
            rng = Random(number_for(self.seed, "documents", epoch, number))
            found += cuts_of(self.texts, number, self.window, self.pairing, rng)
        Random(number_for(self.seed, "segments", epoch)).shuffle(found)
        return found

    def at(self, index: int, rows: slice = slice(None)) -> Batch:
        epoch, place = divmod(index, self.per_epoch)
        plan = self._plan(epoch)
        numbers = range(place * self.batch, (place + 1) * self.batch)[rows]
        made = []
        for number in numbers:
            rng = Random(number_for(self.seed, "mask", epoch, number))
            made.append(self.row(plan[number % len(plan)], rng))
        return self.together(made)

    def row(self, cut: Cut, rng: Random) -> tuple[Numbers, Numbers, int, int]:
        """What is read, what is to be said, where the second of a pair begins, and the label."""
        texts = self.texts
        segments = [texts.sentence(*span) for span in (cut.first, *cut.others)]
        if cut.second is None:
            # only a sentence by itself can be too long
            segments[0] = segments[0][: self.window - 2]
        else:
            second = texts.sentence(*cut.second)
            segments = list(trimmed(segments[0], second, self.window - 3, rng))
        ends = np.cumsum([len(one) + 1 for one in segments])
        parts = [[texts.start], *(part for one in segments for part in (one, [texts.end]))]
        row = np.concatenate([np.asarray(part, np.int32) for part in parts])
        marks = {0, *ends.tolist()}
        candidates = [place for place in range(len(row)) if place not in marks]
        budget = max(1, round(self.share * len(row)))
        budget = min(budget, self.most) if self.most else budget
        words = words_of(row, candidates, self.unit)
        targets = np.full(len(row), IGNORE, np.int32)
        plain = row & PLAIN
        read = plain.copy()
        for hidden in hidden_places(words, budget, self.unit, rng):
            targets[hidden] = plain[hidden]
            fate = rng.random()
            if fate < HIDDEN:
                read[hidden] = texts.mask
            elif fate < HIDDEN + REPLACED:
                read[hidden] = rng.randrange(texts.vocab_size)
        begins = len(row) if cut.second is None else int(ends[0]) + 1
        return read, targets, begins, cut.label

    def together(self, made: Sequence[tuple[Numbers, Numbers, int, int]]) -> Batch:
        """Rows side by side, as wide as the window: all batches have one shape."""
        shape = (len(made), self.window)
        tokens_bt, targets_bt = np.zeros(shape, np.int64), np.full(shape, IGNORE, np.int64)
        types_bt, there_bt = np.zeros(shape, np.int64), np.zeros(shape, bool)
        for b, (read, targets, first, _) in enumerate(made):
            tokens_bt[b, : len(read)], targets_bt[b, : len(read)] = read, targets
            types_bt[b, first : len(read)] = 1
            there_bt[b, : len(read)] = True
        inputs: dict[str, NDArray[np.int64] | NDArray[np.bool_]] = {
            "tokens": tokens_bt, "types": types_bt, "padding": there_bt,
            "pair": np.array([label for *_, label in made], np.int64),
        }  # fmt: skip
        return Batch(
            {n: torch.from_numpy(x) for n, x in inputs.items()}, torch.from_numpy(targets_bt)
        )
