"""Which pairs does update number n see?

Pairs are sorted by length, those of equal lengths in an order of their own in every epoch, and cut
where a batch has enough tokens; the order of the batches is shuffled. As the lengths stand alike in
every epoch, so do the cuts, and batch number n follows from the seed and n alone.

>>> rows = [(np.arange(n), np.arange(n)) for n in (3, 9, 4, 8)]
>>> batches = Paired(rows, start=0, end=1, pad=20, tokens=20, seed=0)
>>> batches.per_epoch, sorted(batches.at(n).targets.shape for n in range(2))
(2, [torch.Size([2, 5]), torch.Size([2, 10])])
"""

# b batch, s source, t time

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parformer.data.batches import Batch, Batches, number_for
from parformer.data.bucketed import padded
from parformer.embedding import IGNORE
from parformer.errors import CorpusError

Row = tuple[NDArray[Any], NDArray[Any]]


class Paired(Batches):
    """Batches of pairs that are about as long as each other."""

    def __init__(
        self,
        pairs: Sequence[Row],
        *,
        start: int,
        end: int,
        pad: int,
        seed: int,
        tokens: int = 0,
        batch: int = 0,
    ) -> None:
        """With `tokens`, a batch has as many pairs as fit, their padding counted; else `batch`.

        Who asks for some of `batch` rows gets that share of them.
        """
        if not pairs or (not tokens and len(pairs) < batch):
            raise CorpusError(
                f"there are {len(pairs):,} pairs, but a batch has {batch}; lower train.batch"
            )
        self.pairs, self.start, self.end, self.pad, self.seed = pairs, start, end, pad, seed
        self.batch = batch
        # both sides have one token more than words: the end, and the target its start
        self.sizes_n2 = np.array([(len(source) + 1, len(target) + 1) for source, target in pairs])
        order = np.lexsort((self.sizes_n2[:, 0], self.sizes_n2[:, 1]))
        self.cuts = cut(self.sizes_n2[order].max(axis=1), tokens, batch)
        self.per_epoch = len(self.cuts) - 1
        self._order = lru_cache(maxsize=2)(self._make_order)

    def at(self, index: int, rows: slice = slice(None)) -> Batch:
        epoch, place = divmod(index, self.per_epoch)
        order_n, turns = self._order(epoch)
        turn = turns[place]
        chosen = [self.pairs[n] for n in order_n[self.cuts[turn] : self.cuts[turn + 1]]]
        return self.made(chosen, rows)

    def in_order(self) -> list[tuple[list[int], Batch]]:
        """Every pair once, the shortest first: their numbers, and batches of them."""
        order_n = np.lexsort((self.sizes_n2[:, 0], self.sizes_n2[:, 1]))
        found = []
        for low, high in zip(self.cuts[:-1], self.cuts[1:], strict=True):
            numbers = order_n[low:high].tolist()
            found.append((numbers, self.made([self.pairs[n] for n in numbers], slice(None))))
        return found

    def made(self, chosen: Sequence[Row], rows: slice) -> Batch:
        """A batch as wide as its longest pair, or some of its rows."""
        sources = [np.append(source, self.end) for source, _ in chosen]
        tokens = [np.insert(target, 0, self.start) for _, target in chosen]
        targets = [np.append(target, self.end) for _, target in chosen]
        if self.batch and rows.stop is not None:
            # batches of tokens have any number of rows: those asked for are a share of them
            share = [len(chosen) * edge // self.batch for edge in (rows.start or 0, rows.stop)]
            rows = slice(*share)
        inputs = {
            "tokens": padded([wide.astype(np.int64) for wide in tokens], self.pad)[rows],
            "source": padded([wide.astype(np.int64) for wide in sources], self.pad)[rows],
        }
        return Batch(inputs, padded([wide.astype(np.int64) for wide in targets], IGNORE)[rows])

    def _make_order(self, epoch: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The pairs by length, and the order of the batches of an epoch."""
        rng = np.random.Generator(np.random.PCG64(number_for(self.seed, "pairs", epoch)))
        chance_n = rng.permutation(len(self.pairs))
        order_n = np.lexsort((chance_n, self.sizes_n2[:, 0], self.sizes_n2[:, 1]))
        return order_n, rng.permutation(self.per_epoch)


def cut(sizes_n: NDArray[np.int64], tokens: int, batch: int) -> list[int]:
    """Where batches begin, and where the last one ends.

    >>> cut(np.array([2, 2, 3, 9]), tokens=6, batch=0), cut(np.array([2, 2, 3]), tokens=0, batch=2)
    ([0, 2, 3, 4], [0, 2, 3])
    """
    cuts, widest = [0], 0
    for n, size in enumerate(sizes_n.tolist()):
        rows, widest = n - cuts[-1], max(widest, size)
        full = widest * (rows + 1) > tokens if tokens else rows == batch
        if rows and full:
            cuts.append(n)
            widest = size
    return [*cuts, len(sizes_n)]
