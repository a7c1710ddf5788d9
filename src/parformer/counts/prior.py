"""What is known of the next token before a model has learned anything?

Two things: what a table of the training text's n-grams says, and what followed the last time that
the text repeated itself. A model that is given both learns only what they do not tell. While it
learns, the table must not know the very text that is read, so each part of it has a table counted
on all the other parts; afterwards the one of the whole text serves.
"""

# b batch, t time, k tokens before this step, v vocabulary

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from parformer.counts.count import Text, as_much_as_fits, count, count_without, estimated
from parformer.counts.look import Readable, log_chances
from parformer.counts.recall import find_repeats
from parformer.ends import HeadConfig
from parformer.errors import FolderError
from parformer.grams import largest_order
from parformer.kernels.operator import Operator

PARTS = 6
"""Parts of a text that are each left out of the table that stands beside them."""


class Wanted(TypedDict):
    """What `count` is told."""

    vocab_size: int
    size: int
    order: int


class Hints(NamedTuple):
    """What is known of every next token."""

    counted: Tensor | None
    """Logarithms of chances (batch, time, vocabulary), from a table of counts."""
    expected: Tensor | None
    """(batch, time), what followed the longest repeat of the text so far."""
    length: Tensor | None
    """(batch, time), tokens of that repeat; 0 where there is none."""

    def at(self, places: Any) -> Hints:
        """Those of some places."""
        return Hints(*(None if t is None else t[places] for t in tuple(self)))

    def in_a_row(self) -> Hints:
        return Hints(*(None if t is None else t.flatten(0, 1) for t in tuple(self)))


class Prior(nn.Module):
    """A table of counts with those that leave out a part of the text, and the recent text."""

    table: Tensor | None

    def __init__(self, config: HeadConfig, vocab_size: int) -> None:
        super().__init__()
        self.vocab_size, self.recall = vocab_size, config.recall
        self.order = config.count_order or largest_order(vocab_size)
        self.sight = config.sight(vocab_size)
        table = torch.zeros(config.counts, dtype=torch.uint8) if config.counts else None
        self.register_buffer("table", table)
        self.parts: Sequence[Readable] = ()
        self._read: tuple[tuple[int, int], Readable] | None = None

    def forward(
        self, tokens_bt: Tensor, recent_bk: Tensor | None, part_bt: Tensor | None
    ) -> tuple[Hints, Tensor]:
        """What is known of the tokens after these, and the tokens to remember."""
        known_br = tokens_bt if recent_bk is None else torch.cat((recent_bk, tokens_bt), dim=1)
        time = tokens_bt.shape[1]
        counted, expected, length = None, None, None
        if self.table is not None:
            sight = min(known_br.shape[1], time + self.order - 2)
            counted = self._count(self.table, known_br[:, -sight:], time, part_bt)
        if self.recall:
            expected, length = find_repeats(known_br, time, self.recall)
        return Hints(counted, expected, length), known_br[:, -self.sight :].clone()

    def _count(self, table: Tensor, known_br: Tensor, time: int, part_bt: Tensor | None) -> Tensor:
        if part_bt is not None and self.parts:
            return log_chances(self.parts, known_br, time, part_bt)
        if torch.compiler.is_compiling():
            looked_up: Tensor = look_up(table, known_br, time, self.vocab_size)
            return looked_up
        return look_in(self.readable(table), known_br, time, self.vocab_size)

    def readable(self, table: Tensor) -> Readable:
        """The table, looked at anew where it was changed; one of another vocabulary is refused."""
        seen = (table.data_ptr(), 0 if table.is_inference() else table._version)
        if self._read is None or self._read[0] != seen:
            found = Readable(table)
            if found.layout is not None and found.layout.vocab_size != self.vocab_size:
                raise FolderError(
                    f"a table of counts is for {found.layout.vocab_size:,} tokens, the model for "
                    f"{self.vocab_size:,}; it belongs to another model"
                )
            self._read = (seen, found)
        return self._read[1]

    @property
    def wanted(self) -> Wanted:
        """What a table of its own is to be like."""
        size = 0 if self.table is None else len(self.table)
        return {"vocab_size": self.vocab_size, "size": size, "order": self.order}

    def learn(self, tokens: NDArray[Any], *, fresh: bool) -> None:
        """Count a text that is to be trained on; the table itself too if it is `fresh`."""
        if self.table is None:
            return
        given = (self.vocab_size, len(self.table), self.order)
        whole, self.parts = counted(Text(tokens), *given)
        if fresh:
            with torch.no_grad():
                self.table.copy_(torch.from_numpy(whole.table))


@lru_cache(maxsize=2)
def counted(
    text: Text, vocab_size: int, size: int, order: int
) -> tuple[Readable, tuple[Readable, ...]]:
    """The table of a text, and one for each part without it."""
    wanted = Wanted(vocab_size=vocab_size, size=size, order=order)
    tokens, edges = as_much_as_fits(text.tokens, PARTS)
    whole, parts = count(tokens, **wanted), count_without(tokens, edges, **wanted)
    estimated.cache_clear()  # hundreds of megabytes, of which the tables are all that is needed
    return Readable(whole), tuple(map(Readable, parts))


def look_in(table: Readable, tokens_br: Tensor, time: int, vocab_size: int) -> Tensor:
    """Chances from a table; all alike where nothing was counted yet."""
    if table.layout is None:
        shape = (len(tokens_br), time, vocab_size)
        return torch.full(shape, -float(np.log(vocab_size)), device=tokens_br.device)
    return log_chances([table], tokens_br, time)


def run_look(table: Tensor, tokens_br: Tensor, time: int, vocab_size: int) -> Tensor:
    return look_in(Readable(table), tokens_br, time, vocab_size)


def outline_look(table: Tensor, tokens_br: Tensor, time: int, vocab_size: int) -> Tensor:
    return table.new_empty((len(tokens_br), time, vocab_size), dtype=torch.float32)


look_up = Operator("look_up_counts", run_look, outline_look)
