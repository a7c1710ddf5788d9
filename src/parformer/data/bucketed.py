"""How are texts of different lengths read side by side, with little padding?

In every epoch all texts are shuffled, cut into pools of some batches, sorted by length within
their pool and shared out to batches, whose order is shuffled again. What batch number n holds
depends on the seed and on n alone.

>>> rows = [{"tokens": np.arange(n), "targets": np.arange(n)} for n in (3, 9, 4, 8)]
>>> batch = Bucketed(rows, batch=2, seed=0, pool=2).at(0)
>>> batch.inputs["tokens"].shape, batch.inputs["padding"].sum(1).tolist()
(torch.Size([2, 9]), [8, 9])
"""

# b batch, t time

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from parformer.data.batches import Batch, Batches, number_for
from parformer.embedding import IGNORE
from parformer.errors import CorpusError

Example = Mapping[str, NDArray[Any]]
"""Inputs by name, one dimension each, and `targets`: as long as the tokens, or a single one."""


class Bucketed(Batches):
    """Batches of whole texts, each with others that are about as long."""

    def __init__(
        self,
        examples: Sequence[Example],
        *,
        batch: int,
        seed: int,
        pad: int = 0,
        pool: int = 50,
    ) -> None:
        """`pool` batches are sorted together: more of them mean less padding and less chance."""
        if len(examples) < batch:
            raise CorpusError(
                f"there are {len(examples):,} texts, but a batch has {batch}; lower train.batch"
            )
        self.examples, self.batch, self.seed, self.pad, self.pool = (
            examples, batch, seed, pad, pool,
        )  # fmt: skip
        self.lengths = np.array([len(example["tokens"]) for example in examples])
        self.per_epoch = len(examples) // batch
        self._order = lru_cache(maxsize=2)(self._make_order)

    def at(self, index: int, rows: slice = slice(None)) -> Batch:
        epoch, place = divmod(index, self.per_epoch)
        chosen = [self.examples[number] for number in self._order(epoch)[place]]
        # as wide as the whole batch needs, whichever rows are asked for
        inputs = {
            name: padded([example[name] for example in chosen], self.pad)[rows]
            for name in chosen[0]
            if name != "targets"
        }
        lengths_b = torch.tensor([len(example["tokens"]) for example in chosen])[rows]
        time = inputs["tokens"].shape[1]
        inputs["padding"] = torch.arange(time)[None] < lengths_b[:, None]
        targets = padded([example["targets"] for example in chosen], IGNORE)[rows]
        return Batch(inputs, targets)

    def _make_order(self, epoch: int) -> NDArray[np.int64]:
        """The numbers of the texts of every batch of an epoch."""
        rng = np.random.Generator(np.random.PCG64(number_for(self.seed, "bucket", epoch)))
        return in_pools(rng, self.lengths, self.batch, self.pool)


def in_pools(
    rng: np.random.Generator, lengths_n: NDArray[np.int64], batch: int, pool: int
) -> NDArray[np.int64]:
    """The numbers of the texts of every batch of an epoch: sorted by length within pools."""
    count = len(lengths_n) // batch
    order = rng.permutation(len(lengths_n))[: count * batch]
    size = pool * batch
    pools = [order[start : start + size] for start in range(0, len(order), size)]
    by_length = [some[np.argsort(lengths_n[some], kind="stable")] for some in pools]
    return np.concatenate(by_length).reshape(count, batch)[rng.permutation(count)]


def padded(rows: Sequence[NDArray[Any]], value: int) -> torch.Tensor:
    """Rows of different lengths as one table, filled up at the end."""
    table = np.full((len(rows), max(map(len, rows))), value, dtype=np.int64)
    for line, row in zip(table, rows, strict=True):
        line[: len(row)] = row
    return torch.from_numpy(table)
