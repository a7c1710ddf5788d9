"""Which tokens does update number n see?

The answer depends on n alone, never on what was read before: a run that was interrupted
reads on exactly where it stopped, and every process of many finds its own rows by itself.

>>> import numpy as np
>>> streams = Streams(np.arange(100), batch=2, length=4, seed=0, roll=False)
>>> streams.at(1).tokens_bt.tolist()
[[4, 5, 6, 7], [54, 55, 56, 57]]
>>> streams.at(1).targets_bt.tolist()
[[5, 6, 7, 8], [55, 56, 57, 58]]
"""

# b batch, t time

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from parformer.counts.count import part_edges
from parformer.data.masking import mask_tokens
from parformer.errors import CorpusError

Tokens = NDArray[Any]

PLACES = 64
"""Stretches that a sample of a text is taken in."""


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """What one update reads."""

    inputs: Mapping[str, Tensor]
    """What goes into the model, by name, all with the batch first; `tokens` at least."""
    targets: Tensor
    fresh: bool = True
    """The streams begin anew, so that there is nothing to remember."""

    @property
    def tokens_bt(self) -> Tensor:
        return self.inputs["tokens"]

    @property
    def targets_bt(self) -> Tensor:
        return self.targets

    def pieces(self, count: int) -> Iterator[Batch]:
        """The same rows in so many parts."""
        inputs = {name: tensor.chunk(count) for name, tensor in self.inputs.items()}
        for place, targets in enumerate(self.targets.chunk(count)):
            yield Batch({n: parts[place] for n, parts in inputs.items()}, targets, self.fresh)

    def to(self, device: torch.device) -> Batch:
        moved = {name: t.to(device, non_blocking=True) for name, t in self.inputs.items()}
        return Batch(moved, self.targets.to(device, non_blocking=True), self.fresh)


class Batches(ABC):
    """Batches by number, epoch after epoch without an end."""

    per_epoch: int
    """Batches until every token was seen, save for a remainder that differs with each epoch."""
    carries: ClassVar[bool] = False
    """Whether a batch goes on where the one before it ended."""

    @abstractmethod
    def at(self, index: int, rows: slice = slice(None)) -> Batch:
        """Batch number `index`, or some of its rows."""


class Streams(Batches):
    """The text cut into rows, one beside the other, each read on and on (Transformer-XL).

    Each epoch every row is rolled: it begins elsewhere and comes round to there again.
    """

    carries = True

    def __init__(
        self,
        tokens: Tokens,
        *,
        batch: int,
        length: int,
        seed: int,
        roll: bool = True,
        parts: int = 0,
    ) -> None:
        self.edges = part_edges(len(tokens), parts)
        self.row = len(tokens) // batch
        if self.row < length + 1:
            raise CorpusError(
                f"the train split has {len(tokens):,} tokens, but {batch} texts of {length} "
                f"and one more need {batch * (length + 1):,}; lower train.batch or train.tgt_len"
            )
        self.tokens_br = tokens[: batch * self.row].reshape(batch, self.row)
        self.length, self.seed, self.roll = length, seed, roll
        self.per_epoch = (self.row - 1) // length

    def at(self, index: int, rows: slice = slice(None)) -> Batch:
        epoch, place = divmod(index, self.per_epoch)
        numbers = range(len(self.tokens_br))[rows]
        read = np.empty((len(numbers), self.length + 1), dtype=np.int64)
        firsts = [place * self.length + self._shift(epoch, number) for number in numbers]
        for line, number, first in zip(read, numbers, firsts, strict=True):
            fill_round(line, self.tokens_br[number], first % self.row)
        both_bt = torch.from_numpy(read)
        inputs = {"tokens": both_bt[:, :-1]}
        if self.edges:
            steps = np.add.outer(np.array(firsts, np.int64), np.arange(1, self.length + 1))
            places_bt = steps % self.row + np.array(numbers)[:, None] * self.row
            inputs["part"] = part_of(places_bt, self.edges)
        return Batch(inputs, both_bt[:, 1:], fresh=place == 0)

    def _shift(self, epoch: int, row: int) -> int:
        return number_for(self.seed, "roll", epoch, row) % self.row if self.roll else 0


def fill_round(line: Tokens, ring: Tokens, first: int) -> None:
    """Copy what follows `first` on a ring, round its end."""
    straight = min(len(line), len(ring) - first)
    line[:straight] = ring[first : first + straight]
    line[straight:] = ring[: len(line) - straight]


class Windows(Batches):
    """Windows of the text in random order, for models that remember nothing between them.

    Each epoch shifts all windows by another amount and shuffles them anew.
    """

    def __init__(
        self, tokens: Tokens, *, batch: int, length: int, seed: int, parts: int = 0
    ) -> None:
        self.edges = part_edges(len(tokens), parts)
        self.windows = (len(tokens) - 1) // length
        if self.windows < batch:
            raise CorpusError(
                f"the train split has {len(tokens):,} tokens, but {batch} windows of {length} "
                f"need {batch * length + 1:,}; lower train.batch or train.tgt_len"
            )
        self.tokens, self.batch, self.length, self.seed = tokens, batch, length, seed
        self.per_epoch = self.windows // batch

    def at(self, index: int, rows: slice = slice(None)) -> Batch:
        starts = self._starts(index, rows)
        read = self._read(starts, 1)
        inputs = {"tokens": read[:, :-1]}
        if self.edges:
            places_bt = np.add.outer(np.array(starts), np.arange(1, self.length + 1))
            inputs["part"] = part_of(places_bt, self.edges)
        return Batch(inputs, read[:, 1:])

    def _starts(self, index: int, rows: slice) -> list[int]:
        """Where the windows of a batch begin."""
        epoch, place = divmod(index, self.per_epoch)
        spare = len(self.tokens) - 1 - self.windows * self.length
        shift = number_for(self.seed, "shift", epoch) % (spare + 1)
        key = number_for(self.seed, "shuffle", epoch)
        numbers = range(place * self.batch, (place + 1) * self.batch)[rows]
        return [shift + self.length * shuffled(n, self.windows, key) for n in numbers]

    def _read(self, starts: list[int], more: int) -> Tensor:
        read = [self.tokens[s : s + self.length + more].astype(np.int64) for s in starts]
        return torch.from_numpy(np.stack(read))


class MaskedWindows(Windows):
    """Windows with some tokens hidden, which a model that sees both sides has to guess."""

    def __init__(
        self,
        tokens: Tokens,
        *,
        batch: int,
        length: int,
        seed: int,
        vocab_size: int,
        mask_id: int,
        share: float,
    ) -> None:
        super().__init__(tokens, batch=batch, length=length, seed=seed)
        self.vocab_size, self.mask_id, self.share = vocab_size, mask_id, share

    def at(self, index: int, rows: slice = slice(None)) -> Batch:
        # The whole batch is masked, whichever rows are asked for, so that all agree.
        generator = torch.Generator().manual_seed(number_for(self.seed, "mask", index))
        inputs_bt, targets_bt = mask_tokens(
            self._read(self._starts(index, slice(None)), 0),
            generator,
            self.mask_id,
            self.vocab_size,
            self.share,
        )
        return Batch({"tokens": inputs_bt[rows]}, targets_bt[rows])


def part_of(places: Tokens, edges: list[int]) -> Tensor:
    """The part that each place of a text is in."""
    return torch.from_numpy(np.searchsorted(edges, places, side="right") - 1)


def sample(tokens: Tokens, limit: int) -> Tokens:
    """At most so many tokens, in stretches from all over the text; 0 means all of it.

    A text is not the same everywhere, least of all where it is made of files: its beginning
    alone would say little.
    """
    if not limit or limit >= len(tokens):
        return tokens
    limit = max(limit, 2)  # a single token predicts nothing
    stretches = max(1, min(PLACES, limit // 1024))
    each = limit // stretches
    starts = [i * len(tokens) // stretches for i in range(stretches)]
    return np.concatenate([tokens[start : start + each] for start in starts])


def number_for(*parts: int | str) -> int:
    """A number of 63 bits that depends on these alone, today and in any later version."""
    text = " ".join(map(str, parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def shuffled(index: int, count: int, key: int) -> int:
    """Where `index` stands in a random order of `count` things, without making the order.

    A Feistel network permutes the smallest square of a power of two that holds `count`;
    whoever lands outside walks on until inside again.
    """
    half = max(1, ((count - 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1
    while True:
        left, right = index >> half, index & mask
        for turn in range(4):
            mixed = (right * 0x9E3779B97F4A7C15 + key + turn * 0xD1B54A32D192ED03) & (2**64 - 1)
            mixed ^= mixed >> 29
            mixed = (mixed * 0xBF58476D1CE4E5B9) & (2**64 - 1)
            left, right = right, left ^ ((mixed >> 32) & mask)
        index = left << half | right
        if index < count:
            return index
