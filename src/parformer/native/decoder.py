"""How does a model write token by token without Python between its matrices?

A `Decoder` is a model's native form: the same maths in C++, with weights as they are or in fewer
bits, and a state of its own that goes to and from the ordinary one.

>>> import torch
>>> from parformer.config import preset
>>> from parformer.model import build
>>> model = build(preset("pocket"))
>>> out = model(torch.tensor([[100, 101, 102]]))
>>> decoder = model.native()
>>> decoder.load(out.state)
>>> logits = decoder.step([[103]])
>>> torch.allclose(logits, model(torch.tensor([[103]]), out.state).logits[:, 0], atol=1e-4)
True
"""

# b batch, t time, v vocabulary

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Sequence

import torch
from torch import Tensor

from parformer.blocks.stack import Stack
from parformer.config import ModelConfig
from parformer.counts.prior import Prior
from parformer.embedding import Embedding
from parformer.errors import InputError
from parformer.fields import need_at_least
from parformer.head import Head
from parformer.kernels.decoder.library import WORDS, Off, library
from parformer.kernels.extension import Unavailable
from parformer.native import attending, synthesizing  # noqa: F401 - they register forms
from parformer.native.ends import write_embedding, write_head
from parformer.native.forms import Where, write_stack
from parformer.native.program import MATRIX, NoForm, NotMeant, Program, Weights
from parformer.native.slots import Engine, Slot
from parformer.state import State

MOST_TEXTS, MOST_TOKENS = 160, 8
"""Texts side by side and tokens of a step; beyond them the ordinary step is as fast."""


class Decoder:
    """A model that was compiled, and what it remembers."""

    def __init__(
        self,
        config: ModelConfig,
        embedding: Embedding,
        stack: Stack,
        head: Head | None,
        prior: Prior | None,
        *,
        batch: int = 1,
        time: int = 1,
        memory: int | None = None,
        weights: Weights = "float32",
        threads: int = 0,
        level: str = "",
    ) -> None:
        """For at most `batch` texts and `time` tokens a step; `NoForm` says why there is none."""
        need_at_least("batch", batch, 1)
        need_at_least("time", time, 1)
        check_fit(config, stack, batch, time)
        self.config, self.most, self.time = config, batch, time
        self.memory = config.memory if memory is None else memory
        if config.numbered:
            self.memory = min(self.memory, config.max_len)
        self.dtype = next(stack.parameters()).dtype
        program = Program(batch, time, self.memory, weights)
        self.slots: list[Slot] = []
        x, self._pads = write_embedding(program, embedding, config)
        x = write_stack(program, stack, x, Where(), self.slots)
        logits, self._hints = write_head(program, head, prior, x, config)
        self.bytes = program.bytes
        """Of matrices that a step reads, the table of the embedding once."""
        self.engine = start(program, self.dtype, threads or torch.get_num_threads(), level)
        self._free = weakref.finalize(self, release, self.engine, os.getpid())
        self._logits = self.engine.arena[logits.offset :]
        self._logit_step = logits.step
        self._tokens = (ctypes.c_int64 * (batch * time))()
        self._chosen = (ctypes.c_int64 * batch)()
        self._views: dict[int, Tensor] = {}
        self.position = 0
        self._window: list[list[list[int]]] = []
        self._before: Tensor | None = None
        self._late: Tensor | None = None
        """Places before each text's first token, where they differ."""
        self.clear()

    @property
    def batch(self) -> int:
        """Texts that it has read."""
        return self.engine.batch

    @property
    def full(self) -> bool:
        """Whether a window of numbered places has no room for one more token."""
        return self.config.numbered and self.position + 1 > self.config.max_len

    def clear(self, batch: int = 0) -> None:
        """Forget everything; a model with a source has to `load` what it read of it."""
        batch = batch or self.most
        if self.config.pattern.encoder is None:
            self.load(State(batch, self.config, self.memory, 0, (None,) * len(self.slots)))

    def load(self, state: State) -> None:
        """Go on from what an ordinary step left."""
        if state.config is not self.config and state.config != self.config:
            raise InputError("the state belongs to another model; start with initial_state")
        if not 1 <= state.batch <= self.most:
            raise InputError(f"a state of {state.batch} texts; this decoder takes 1 to {self.most}")
        if state.memory != self.memory or not takes(state):
            raise InputError(
                f"a state with a memory of {state.memory} cannot go on with one of {self.memory}, "
                "nor one with padding between its tokens; make another decoder"
            )
        self.engine.batch, self._late = state.batch, state.starts_b
        late = torch.empty(0) if self._late is None else self._late
        late = late.to("cpu", torch.int64).contiguous()
        call = self.engine.functions.checked
        call("decoder_late", self.engine.handle, late.data_ptr(), len(late))
        for slot, own in zip(self.slots, state.blocks, strict=True):
            slot.load(self.engine, own)
        self.position, self._before, self._window = state.position, state.window_bt, []
        empty = torch.empty(state.batch, 0, dtype=torch.int64)
        if self._hints is not None:
            self._hints.put(self.engine, empty if state.recent_bk is None else state.recent_bk)
        if self._pads is not None:
            window = empty if state.window_bt is None else state.window_bt
            pads_b1 = (window == self.config.pad).sum(1, keepdim=True)
            self._pads.put(self.engine, pads_b1.float())

    def state(self) -> State:
        """What an ordinary step goes on from."""
        blocks = tuple(slot.take(self.engine) for slot in self.slots)
        window = recent = None
        if self.config.numbered and self.position:
            window = self._read_so_far()
        if self._hints is not None:
            recent = self._hints.tokens(self.engine)
        present = None
        if self._late is not None:
            remembered = min(self.position, self.memory)
            present = present_places(self._late, self.position, remembered)
        extras = (window, present, recent, self._late)
        return State(self.batch, self.config, self.memory, self.position, blocks, *extras)

    def _read_so_far(self) -> Tensor:
        steps = [torch.tensor(rows, dtype=torch.int64) for rows in self._window]
        before = [] if self._before is None else [self._before.to(torch.int64)]
        self._before, self._window = torch.cat([*before, *steps], dim=1), []
        return self._before

    def step(self, tokens: Sequence[Sequence[int]] | Tensor) -> Tensor:
        """Read tokens (batch, time); logits (batch, vocabulary) of what follows the last.

        They are the decoder's own and change with its next step.
        """
        rows: Sequence[Sequence[int]]
        rows = tokens.tolist() if isinstance(tokens, Tensor) else tokens
        time = len(rows[0]) if rows else 0
        self._check(rows, time)
        flat = [token for row in rows for token in row]
        self._tokens[: len(flat)] = flat
        engine = self.engine
        if engine.functions.step(engine.handle, self._tokens, len(rows), time, self.position):
            raise MemoryError("there is no memory left for what the decoder has to remember")
        self.position += time
        if self.config.numbered:
            self._window.append([list(row) for row in rows])
        return self._view(len(rows))

    def _check(self, rows: Sequence[Sequence[int]], time: int) -> None:
        if len(rows) != self.batch or any(len(row) != time for row in rows):
            raise InputError(f"tokens of {len(rows)} texts; the state belongs to {self.batch}")
        if not 1 <= time <= self.time:
            raise InputError(f"a step of {time} tokens; this decoder takes 1 to {self.time}")
        size = self.config.vocab_size
        for row in rows:
            for token in row:
                if not 0 <= token < size:
                    raise InputError(
                        f"tokens hold {token}, outside 0 … {size - 1}; is it another vocabulary?"
                    )
        if self.config.numbered and self.position + time > self.config.max_len:
            raise InputError(
                f"the window of {self.config.max_len} is full; go on with the ordinary step"
            )

    def _view(self, batch: int) -> Tensor:
        if batch not in self._views:
            shape, strides = (batch, self.config.vocab_size), (self._logit_step, 1)
            first = self._logits.storage_offset()
            self._views[batch] = self._logits.as_strided(shape, strides, first)
        return self._views[batch]

    def choose(
        self,
        rules: tuple[float, float, float, int],
        size: int,
        seen_bv: Tensor,
        uniforms: Sequence[float],
    ) -> list[int]:
        """The next token of each text, of the first `size` tokens, as `Sampling.choose` has it.

        `rules` are its repetition penalty, temperature, top-p and top-k; `seen_bv` says which
        tokens were there before.
        """
        batch, vocab = self.batch, self.config.vocab_size
        if seen_bv.shape != (batch, vocab) or seen_bv.dtype != torch.bool:
            raise InputError(f"seen_bv must be torch.bool of shape {(batch, vocab)}")
        if not 1 <= size <= vocab or len(uniforms) != batch or not seen_bv.is_contiguous():
            raise InputError(f"a choice among {size} tokens by {len(uniforms)} numbers")
        numbers = (ctypes.c_double * 3)(*rules[:3])
        points = (ctypes.c_double * batch)(*uniforms)
        failed = self.engine.functions.choose(
            *(self._logits.data_ptr(), self._logit_step, size, batch, seen_bv.data_ptr(), vocab),
            *(numbers, rules[3], points, self._chosen),
        )
        if failed == 2:
            raise InputError(
                "the model's numbers for the next token are not finite; its weights are broken"
            )
        if failed:
            raise MemoryError("there is no memory left to choose a token")
        return list(self._chosen[:batch])

    def rows(self, index: Sequence[int]) -> None:
        """Go on with these texts, in this order: beams."""
        if not 1 <= len(index) <= self.most or not all(0 <= i < self.batch for i in index):
            raise InputError(f"rows {list(index)} are not within a batch of {self.batch}")
        numbers = (ctypes.c_int64 * len(index))(*index)
        self.engine.functions.checked("decoder_rows", self.engine.handle, numbers, len(index))
        self.engine.batch = len(index)
        if self._late is not None:
            self._late = self._late[torch.tensor(list(index), device=self._late.device)]
        if self.config.numbered and self.position:
            self._before = self._read_so_far()[torch.tensor(list(index))]


def takes(state: State) -> bool:
    """Whether places are absent before a text's first token at most, and no block minds that."""
    late, present = state.starts_b, state.padding_bm
    if late is not None and state.config.pattern.count("y"):
        return False
    if late is None or present is None:
        return present is None
    return torch.equal(present_places(late, state.position, present.shape[1]), present)


def present_places(late_b: Tensor, position: int, count: int) -> Tensor:
    """Which of the last places before `position` hold a token, of texts that began late."""
    places_m = torch.arange(position - count, position, device=late_b.device)
    return places_m >= late_b[:, None]


def check_fit(config: ModelConfig, stack: Stack, batch: int, time: int) -> None:
    """Refuse what has no native form as a whole."""
    if not config.causal or config.head != "lm":
        raise NotMeant(f"a model with head {config.head!r}, causal={config.causal}, does not write")
    if batch > MOST_TEXTS or time > MOST_TOKENS:
        raise NotMeant(f"{batch} texts of {time} tokens are more than a native step is for")
    like = next(stack.parameters())
    if like.device.type != "cpu" or like.dtype not in (torch.float32, torch.bfloat16):
        raise NotMeant(f"weights are {like.dtype} on {like.device}")
    if stack._forward_hooks or stack._forward_pre_hooks:
        raise NoForm("something listens to the model")


class RunningEngine(Engine):
    """An engine with all that its addresses point to."""

    arena: Tensor
    kept: list[Tensor]


def start(program: Program, dtype: torch.dtype, threads: int, level: str) -> RunningEngine:
    """The decoder in C++ that runs a program."""
    try:
        functions = library(level)
    except Unavailable as error:
        kind = NotMeant if isinstance(error, Off) else NoForm
        raise kind(str(error)) from None
    arena = torch.zeros(program.size + 64)
    words = [
        torch.tensor(numbers, dtype=torch.int64)
        for numbers in (program.ops, program.matrices, program.states)
    ]
    sizes = [len(program.ops) // WORDS, len(program.matrices) // MATRIX, len(program.states) // 4]
    given = [x for pair in zip(words, sizes, strict=True) for x in (pair[0].data_ptr(), pair[1])]
    handle = functions.functions["decoder_new"](*given, arena.data_ptr(), threads)
    if not handle:
        raise MemoryError("there is no memory left for a native decoder")
    engine = RunningEngine(functions, handle, dtype)
    engine.arena, engine.kept = arena, program.kept
    return engine


def release(engine: Engine, process: int) -> None:
    """Free a decoder; not in a fork, which has its memory but none of its threads."""
    if os.getpid() != process:
        return
    engine.functions.functions["decoder_free"](engine.handle)
