"""How do labelled texts become numbers, and batches?

[CLS] text [SEP], or [CLS] text [SEP] other [SEP] with token types 0 and 1, cut to the window as
Hugging Face's tokenizers do: one token at a time off the end of the longer. A split is one row of
whole numbers, example after example, so that whatever reads tokens reads these too.

>>> fitted([1, 2, 3, 4], [5, 6, 7], 5)
([1, 2, 3], [5, 6])
>>> flat = packed([Feature(rows=(((7, 8, 9), 2),), targets=(1, 0), number=4)], np.dtype("<i4"))
>>> flat.tolist(), unpacked(flat)[0].number
([1, 1, 0, 4, 3, 2, 7, 8, 9], 4)
"""

# b batch, k choices, t time

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from parformer.data.batches import Batch, Batches, number_for
from parformer.data.bucketed import in_pools
from parformer.data.tables import Example
from parformer.data.tokenizer import Tokenizer
from parformer.data.tokens import Prepared
from parformer.errors import CorpusError

Sequence_ = tuple[Sequence[int] | NDArray[Any], int]
"""Tokens, and how many of them belong to the first text with its marks."""
HEADER, ROW = 4, 2
"""Numbers before an example, and before each of its rows."""


@dataclass(frozen=True, slots=True)
class Feature:
    """What a model reads of an example: a row of tokens, or one for each choice."""

    rows: tuple[Sequence_, ...]
    targets: tuple[int, int]
    """A class, a choice, the bits of a score, or the first and last token of an answer."""
    number: int
    """The example's place in its split."""

    @property
    def length(self) -> int:
        return max(len(tokens) for tokens, _ in self.rows)


@dataclass(frozen=True, eq=False)
class Labelled(Prepared):
    """Labelled examples as tokens."""

    examples: Mapping[str, Sequence[Example]] = field(default_factory=dict)
    """The examples themselves, by split."""
    notes: tuple[str, ...] = ()
    """What was cut or left out, in words."""
    counted: dict[str, Mapping[str, Mapping[str, float]]] = field(default_factory=dict)
    """What counting reaches on each split, once somebody asked: it is the same for all models."""


class Marks:
    """The tokens that stand around texts."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.start, self.end = tokenizer.special("cls"), tokenizer.special("sep")

    def around(self, first: Sequence[int], second: Sequence[int] | None, window: int) -> Sequence_:
        """One or two texts with their marks, cut to the window."""
        if second is None:
            kept = list(first)[: window - 2]
            return [self.start, *kept, self.end], len(kept) + 2
        one, two = fitted(first, second, window - 3)
        return [self.start, *one, self.end, *two, self.end], len(one) + 2


def fitted(
    first: Sequence[int], second: Sequence[int], room: int
) -> tuple[Sequence[int], Sequence[int]]:
    """Two texts cut to `room` tokens, always the longer of the two at its end."""
    one, two = len(first), len(second)
    while one + two > room:
        if one > two:
            one -= 1
        else:
            two -= 1
    return first[:one], second[:two]


def packed(features: Sequence[Feature], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Examples as one row of numbers."""
    parts: list[int] = []
    for one in features:
        parts += (len(one.rows), *one.targets, one.number)
        for tokens, first in one.rows:
            parts += (len(tokens), first)
            parts += tokens
    return np.array(parts, dtype)


def unpacked(flat: NDArray[Any]) -> list[Feature]:
    """What `packed` was given."""
    found, at = [], 0
    while at < len(flat):
        count, first, last, number = (int(one) for one in flat[at : at + HEADER])
        at += HEADER
        rows = []
        for _ in range(count):
            length, own = int(flat[at]), int(flat[at + 1])
            rows.append((flat[at + ROW : at + ROW + length], own))
            at += ROW + length
        found.append(Feature(tuple(rows), (first, last), number))
    return found


def bits_of(score: float) -> int:
    """A number as a whole one that has its bits in single precision."""
    return int(struct.unpack("<i", struct.pack("<f", score))[0])


def scores_of(bits_b: torch.Tensor) -> torch.Tensor:
    """The numbers that `bits_of` was given."""
    return bits_b.to(torch.int32).view(torch.float32)


def identity_of(examples: Mapping[str, Sequence[Example]]) -> str:
    """SHA-256 of labelled examples."""
    whole = hashlib.sha256(b"parformer-examples-1\n")
    for split, rows in examples.items():
        whole.update(f"{split} {len(rows)}\n".encode())
        for row in rows:
            told = (row.texts, row.label, row.choices, row.answers, row.name, row.group)
            whole.update(repr(told).encode("utf-8", "surrogatepass"))
    return whole.hexdigest()


class Examples(Batches):
    """Batches of examples, each with others that are about as long."""

    def __init__(
        self, features: Sequence[Feature], *, batch: int, seed: int, pad: int, pool: int = 50
    ) -> None:
        """`pool` batches are sorted together: more of them mean less padding and less chance."""
        if len(features) < batch:
            raise CorpusError(
                f"there are {len(features):,} examples to train on, but a batch has {batch}; lower "
                "train.batch"
            )
        self.features, self.batch, self.seed, self.pad, self.pool = (
            features, batch, seed, pad, pool,
        )  # fmt: skip
        self.lengths_n = np.array([one.length for one in features])
        self.per_epoch = len(features) // batch
        self._kept: tuple[int, NDArray[np.int64]] = (-1, np.empty((0, 0), np.int64))

    def at(self, index: int, rows: slice = slice(None)) -> Batch:
        return batch_of([self.features[n] for n in self.chosen(index)], self.pad, rows)

    def chosen(self, index: int) -> NDArray[np.int64]:
        """The places of the features in batch number `index`."""
        epoch, place = divmod(index, self.per_epoch)
        if self._kept[0] != epoch:
            rng = np.random.Generator(np.random.PCG64(number_for(self.seed, "bucket", epoch)))
            self._kept = (epoch, in_pools(rng, self.lengths_n, self.batch, self.pool))
        found: NDArray[np.int64] = self._kept[1][place]
        return found


def batch_of(chosen: Sequence[Feature], pad: int, rows: slice = slice(None)) -> Batch:
    """Examples side by side, as wide as the longest; choices get a dimension of their own."""
    time, count = max(one.length for one in chosen), len(chosen[0].rows)
    tokens_bkt = np.full((len(chosen), count, time), pad, np.int64)
    sizes_bk2 = np.zeros((len(chosen), count, 2), np.int64)
    for b, one in enumerate(chosen):
        for k, (tokens, first) in enumerate(one.rows):
            tokens_bkt[b, k, : len(tokens)] = tokens
            sizes_bk2[b, k] = len(tokens), first
    place_t = np.arange(time)
    inputs = {
        "tokens": tokens_bkt,
        "padding": place_t < sizes_bk2[..., :1],
        "types": ((place_t >= sizes_bk2[..., 1:]) & (place_t < sizes_bk2[..., :1])).astype(
            np.int64
        ),
    }
    squeezed = {n: torch.from_numpy(x if count > 1 else x[:, 0])[rows] for n, x in inputs.items()}
    return Batch(squeezed, torch.tensor([one.targets for one in chosen])[rows])


def in_order(features: Sequence[Feature], pad: int, most: int) -> Iterator[tuple[list[int], Batch]]:
    """Every example once, the longest first: their places, and batches of about `most` tokens."""
    order = sorted(range(len(features)), key=lambda n: -features[n].length)
    start = 0
    while start < len(order):
        widest = features[order[start]]
        count = max(1, most // (widest.length * len(widest.rows)))
        numbers = order[start : start + count]
        yield numbers, batch_of([features[n] for n in numbers], pad)
        start += count
