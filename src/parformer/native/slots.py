"""Where does a decoder keep what each block remembers, and how does it go in and out?

The ordinary state and the decoder's own hold the same numbers in different orders. A slot knows
both: it takes a block's state in, and gives one back.
"""

# b batch, m memory, g key-value heads, k head width, d width, s source

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from parformer.blocks.convolution import Tail
from parformer.blocks.cross_attention import SourceMemory
from parformer.blocks.memory import KeyValueMemory
from parformer.blocks.ngrams import NOTHING, Recent
from parformer.blocks.sru import CellMemory
from parformer.blocks.sru_attention import AttentiveKeys, AttentiveMemory
from parformer.blocks.state import BlockState, GroupState, together
from parformer.errors import InputError
from parformer.kernels.decoder.library import Library


class Engine:
    """The decoder in C++, and the arrays that go in and out of it."""

    def __init__(self, functions: Library, handle: int, dtype: torch.dtype) -> None:
        self.functions, self.handle, self.dtype = functions, handle, dtype
        self.batch = 0

    def put(self, name: str, number: int, tensor: Tensor, *more: Any) -> None:
        self.functions.checked(name, self.handle, number, tensor.data_ptr(), *more)

    def ask(self, name: str, number: int) -> int:
        return int(self.functions.functions[name](self.handle, number))

    def take(self, name: str, number: int, tensor: Tensor, *more: Any) -> Tensor:
        self.functions.functions[name](self.handle, number, tensor.data_ptr(), *more)
        return tensor


class Slot(ABC):
    """What one block remembers."""

    @abstractmethod
    def load(self, engine: Engine, state: BlockState | None) -> None:
        """Take in what an ordinary step left; None before the first token."""

    @abstractmethod
    def take(self, engine: Engine) -> BlockState | None:
        """What an ordinary step goes on from."""


class Empty(Slot):
    """A block that remembers nothing."""

    def load(self, engine: Engine, state: BlockState | None) -> None:
        if state is not None:
            raise foreign(state)

    def take(self, engine: Engine) -> BlockState | None:
        return None


def foreign(state: BlockState) -> InputError:
    return InputError(
        f"a {type(state).__name__} cannot go on in a native decoder; let the model read a token "
        "in evaluation mode first"
    )


@dataclass(frozen=True, slots=True)
class KeyValues(Slot):
    """Keys and values, or values alone."""

    number: int
    heads: int
    width: int
    memory: int
    keys: bool = True

    @property
    def rows(self) -> int:
        return self.heads * (2 if self.keys else 1)

    def load(self, engine: Engine, state: BlockState | None) -> None:
        if not isinstance(state, KeyValueMemory | None):
            raise foreign(state)
        empty = torch.empty(engine.batch, self.rows, 0, self.width)
        kv_bgmk = empty if state is None else state.kv_bgmk
        kv_bgmk = kv_bgmk[:, :, max(0, kv_bgmk.shape[2] - self.memory) :].float().contiguous()
        wanted = (engine.batch, self.rows, kv_bgmk.shape[2], self.width)
        if tuple(kv_bgmk.shape) != wanted:
            raise InputError(f"a state of shape {tuple(kv_bgmk.shape)} is not {wanted}")
        places = kv_bgmk.shape[2]
        engine.put("cache_put", self.number, kv_bgmk, engine.batch, places, int(self.keys))

    def take(self, engine: Engine) -> KeyValueMemory | None:
        places = engine.ask("cache_length", self.number)
        if not places:
            return None
        kv_bgmk = torch.empty(engine.batch, self.rows, places, self.width)
        engine.take("cache_take", self.number, kv_bgmk, engine.batch, int(self.keys))
        return KeyValueMemory.of({"kv_bgmk": kv_bgmk.to(engine.dtype)})


@dataclass(frozen=True, slots=True)
class Cell(Slot):
    """A number for every channel, never in half precision."""

    number: int
    width: int

    def load(self, engine: Engine, state: BlockState | None) -> None:
        if not isinstance(state, CellMemory | None):
            raise foreign(state)
        self.put(engine, None if state is None else state.cell_bd)

    def put(self, engine: Engine, numbers: Tensor | None) -> None:
        shape = (engine.batch, self.width)
        own = torch.zeros(shape) if numbers is None else numbers.float().contiguous()
        if tuple(own.shape) != shape:
            raise InputError(f"a state of shape {tuple(own.shape)} is not {shape}")
        engine.put("cells_put", self.number, own, engine.batch)

    def numbers(self, engine: Engine) -> Tensor:
        return engine.take(
            "cells_take", self.number, torch.empty(engine.batch, self.width), engine.batch
        )

    def take(self, engine: Engine) -> CellMemory | None:
        return CellMemory(self.numbers(engine))


@dataclass(frozen=True, slots=True)
class CellAndKeys(Slot):
    """A recurrence that attends."""

    cell: Cell
    past: KeyValues
    source: SourceKeys | None = None

    def load(self, engine: Engine, state: BlockState | None) -> None:
        past = None
        if isinstance(state, AttentiveKeys):
            past = state.past
            if self.source is not None:
                self.source.load(engine, state.source)
        elif state is not None and getattr(state, "inputs_bmd", state) is not None:
            raise foreign(state)
        assert isinstance(state, AttentiveKeys | AttentiveMemory | None)
        self.cell.put(engine, None if state is None else state.cell_bd)
        self.past.load(engine, past)

    def take(self, engine: Engine) -> AttentiveKeys | AttentiveMemory:
        past, cell_bd = self.past.take(engine), self.cell.numbers(engine)
        source = None if self.source is None else self.source.take(engine)
        return AttentiveMemory(cell_bd) if past is None else AttentiveKeys(cell_bd, past, source)


@dataclass(frozen=True, slots=True)
class Tokens(Slot):
    """The last tokens, of which n-grams are looked up."""

    number: int
    count: int

    def load(self, engine: Engine, state: BlockState | None) -> None:
        if not isinstance(state, Recent | None):
            raise foreign(state)
        shape = (engine.batch, self.count)
        self.put(engine, torch.full(shape, NOTHING) if state is None else state.tokens_bk)

    def put(self, engine: Engine, tokens: Tensor) -> None:
        own = tokens.to(torch.int64).contiguous()
        assert own.dim() == 2
        assert len(own) == engine.batch
        own = own[:, max(0, own.shape[1] - self.count) :].contiguous()
        engine.put("recent_put", self.number, own, engine.batch, own.shape[1])

    def tokens(self, engine: Engine) -> Tensor:
        known = engine.ask("recent_known", self.number)
        tokens = torch.empty(engine.batch, known, dtype=torch.int64)
        return engine.take("recent_take", self.number, tokens, engine.batch)

    def take(self, engine: Engine) -> Recent | None:
        return Recent(self.tokens(engine))


@dataclass(frozen=True, slots=True)
class Neighbours(Slot):
    """The last inputs of a convolution; a decoder has room for one more."""

    cell: Cell
    taps: int
    channels: int

    def load(self, engine: Engine, state: BlockState | None) -> None:
        if not isinstance(state, Tail | None):
            raise foreign(state)
        numbers = torch.zeros(engine.batch, self.taps, self.channels)
        if state is not None:
            numbers[:, :-1] = state.inputs_bkc
        self.cell.put(engine, numbers.flatten(1))

    def take(self, engine: Engine) -> Tail | None:
        numbers = self.cell.numbers(engine).view(engine.batch, self.taps, self.channels)
        if self.taps == 1:
            return None
        return Tail(numbers[:, :-1].to(engine.dtype).contiguous())


@dataclass(frozen=True, slots=True)
class SourceKeys(Slot):
    """Keys and values of a source, the same in all steps."""

    number: int
    heads: int
    width: int

    def load(self, engine: Engine, state: BlockState | None) -> None:
        if not isinstance(state, SourceMemory):
            raise InputError("a decoder needs its source; let the model read the first token")
        kv_bgsk = state.kv_bgsk.float().contiguous()
        batch, rows, places, width = kv_bgsk.shape
        if (batch, rows, width) != (engine.batch, 2 * self.heads, self.width):
            raise InputError(f"a source of shape {tuple(kv_bgsk.shape)} is another model's")
        present = state.present_bs
        if present is not None:
            present = present.to(torch.uint8).contiguous()
            assert present.shape == (batch, places)
        address = None if present is None else present.data_ptr()
        engine.put("source_put", self.number, kv_bgsk, address, batch, places)

    def take(self, engine: Engine) -> SourceMemory | None:
        places = engine.ask("source_places", self.number)
        kv_bgsk = torch.empty(engine.batch, 2 * self.heads, places, self.width)
        present = torch.empty(engine.batch, places, dtype=torch.uint8)
        more = (present.data_ptr(), engine.batch)
        engine.take("source_take", self.number, kv_bgsk, *more)
        masked = engine.ask("source_masked", self.number)
        return SourceMemory(kv_bgsk.to(engine.dtype), present.bool() if masked else None)


@dataclass(frozen=True, slots=True)
class Several(Slot):
    """What the blocks of a group remember."""

    slots: Sequence[Slot]

    def load(self, engine: Engine, state: BlockState | None) -> None:
        if not isinstance(state, GroupState | None):
            raise foreign(state)
        blocks = [None] * len(self.slots) if state is None else state.blocks
        for slot, own in zip(self.slots, blocks, strict=True):
            slot.load(engine, own)

    def take(self, engine: Engine) -> GroupState | None:
        return together([slot.take(engine) for slot in self.slots])
