"""What does a table of counts say comes next?

Compiled where there is a compiler, in a microsecond or two per token; the same in numpy
elsewhere. Both give the logarithms of probabilities that add up to 1.
"""

# b batch, t time, n = b × t places, v vocabulary, g tokens in the contexts that were found

from __future__ import annotations

import ctypes
import logging
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from parformer.counts.table import CHANCES, LAST, Bytes, Layout, Room, extend_hash, split_hash
from parformer.kernels import extension

log = logging.getLogger(__name__)

SOURCE = Path(__file__).with_name("look.cpp")
LEAST = 1e-5
"""What a context leaves at least to all that it does not name."""


class Readable:
    """A table that was looked at once, with what both readers need of it."""

    def __init__(self, table: Bytes | Tensor) -> None:
        array = table.cpu().numpy() if isinstance(table, Tensor) else table
        self.table: Bytes = np.ascontiguousarray(array)
        self.layout = Layout.read(self.table)
        self.addresses = np.zeros(0, np.int64)
        if self.layout is not None:
            self.layout.check(self.table)
            self.addresses = self.layout.addresses()
        self._starts: dict[Room, NDArray[np.int64]] = {}

    def starts(self, room: Room) -> NDArray[np.int64]:
        """Where the tokens of every context begin, and where the last ones end."""
        if room not in self._starts:
            assert self.layout is not None
            last = np.flatnonzero(self.layout.chances(self.table, room) & LAST)
            self._starts[room] = np.concatenate(([0], last + 1))
        return self._starts[room]


def look(table: Bytes, tokens_bt: NDArray[Any]) -> NDArray[np.float32]:
    """The logarithm of every token's chance to come next, after each of these."""
    tokens = torch.from_numpy(tokens_bt.astype(np.int64))
    return log_chances([Readable(table)], tokens, tokens.shape[1]).numpy()


def log_chances(
    tables: Sequence[Readable], tokens_br: Tensor, time: int, which_bt: Tensor | None = None
) -> Tensor:
    """Logarithms of chances (batch, time, vocabulary) after the last `time` tokens of each row.

    What stands before those is context too. With several tables `which_bt` says which is asked.
    """
    layout = tables[0].layout
    assert layout is not None
    batch, read = tokens_br.shape
    out = torch.empty(batch, time, layout.vocab_size)
    tokens = tokens_br.detach().cpu().contiguous().to(torch.int64)
    which = None
    if which_bt is not None:
        which = which_bt.detach().cpu().contiguous().to(torch.int64)
    readers = compiled()
    if readers is not None:
        bases = np.array([t.table.ctypes.data for t in tables], np.int64)
        plans = np.array([t.addresses.ctypes.data for t in tables], np.int64)
        readers.look(
            *(bases.ctypes.data, plans.ctypes.data, tokens.data_ptr()),
            None if which is None else which.data_ptr(),
            *(CHANCES.ctypes.data, out.data_ptr(), batch, read, time, torch.get_num_threads()),
        )
        return out.to(tokens_br.device)
    array = tokens.numpy()
    for number, table in enumerate(tables):
        asked = np.ones((batch, time), bool) if which is None else (which == number).numpy()
        out[torch.from_numpy(asked)] = torch.from_numpy(look_plainly(table, array, time, asked))
    return out.to(tokens_br.device)


class Library:
    """The compiled functions; tensors are given as their addresses."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.look = extension.typed(library.look, 10)
        self.repeats = extension.typed(library.repeats, 10)


@cache
def compiled() -> Library | None:
    """The compiled readers, or None where they cannot be made."""
    try:
        return Library(extension.load(SOURCE, seconds=2))
    except extension.Unavailable as error:
        log.warning("counts are looked up in numpy, ten times slower: %s", error)
        return None


def look_plainly(
    readable: Readable, tokens_br: NDArray[np.int64], time: int, asked_bt: NDArray[np.bool_]
) -> NDArray[np.float32]:
    """What the compiled reader gives for the places that are asked for, in numpy."""
    layout, table = readable.layout, readable.table
    assert layout is not None
    row_n, place_n = np.nonzero(asked_bt)
    place_n = place_n + tokens_br.shape[1] - time
    chance_nv = np.tile(layout.frequencies(table), (len(row_n), 1)).astype(np.float64)
    hash_n = np.zeros(len(row_n), np.uint64)
    for back, room in enumerate(layout.rooms):
        there_n = place_n >= back
        hash_n = extend_hash(hash_n, tokens_br[row_n, np.maximum(place_n - back, 0)])
        found_n, context_n = find(layout, readable, room, hash_n)
        at_n = np.flatnonzero(found_n & there_n)
        starts = readable.starts(room)
        first, count = starts[context_n[at_n]], np.diff(starts)[context_n[at_n]]
        row_g = np.repeat(at_n, count)
        entry_g = np.arange(len(row_g)) + np.repeat(first - (np.cumsum(count) - count), count)
        name_g = layout.names(table, room)[entry_g].astype(np.int64)
        told_g = CHANCES[layout.chances(table, room)[entry_g] & (LAST - 1)].astype(np.float64)
        named_n = np.bincount(row_g, told_g, len(row_n))[at_n]
        below_n = np.bincount(row_g, chance_nv[row_g, name_g], len(row_n))[at_n]
        left_n = np.maximum(1 - named_n, LEAST) / np.maximum(1 - below_n, LEAST)
        chance_nv[at_n] *= left_n[:, None]
        chance_nv[row_g, name_g] = told_g
        total_n = chance_nv[at_n].sum(1)
        chance_nv[at_n] /= total_n[:, None]
    log_nv: NDArray[np.float32] = np.log(chance_nv / chance_nv.sum(1, keepdims=True))
    return log_nv.astype(np.float32)


def find(
    layout: Layout, readable: Readable, room: Room, hash_n: NDArray[np.uint64]
) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Whether a context is in the table, and which one it is."""
    bucket_n, mark_n = split_hash(hash_n, room.bits)
    edges = layout.firsts(readable.table, room)[0].astype(np.int64)
    marks = layout.marks(readable.table, room)
    place_n, end_n = edges[bucket_n], edges[bucket_n + 1]
    context_n = np.full(len(hash_n), -1)
    while len(open_n := np.flatnonzero((place_n < end_n) & (context_n < 0))):
        same = marks[place_n[open_n]] == mark_n[open_n]
        context_n[open_n[same]] = place_n[open_n[same]]
        place_n[open_n] += 1
    return context_n >= 0, context_n
