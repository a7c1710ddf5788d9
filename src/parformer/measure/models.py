"""What does a step of each model take on this machine, side by side?

Every model reads on, step after step, with its memory full: the way a server or a long
evaluation runs it. Costs are exact, times are medians of interleaved rounds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from parformer.blocks.base import Shape
from parformer.config import ModelConfig
from parformer.costs import ModelCost, cost, step_shape
from parformer.counts import count
from parformer.embedding import token_shares
from parformer.errors import ConfigError
from parformer.events import Preparing
from parformer.measure.device import pinned_threads
from parformer.measure.latency import Comparison, Work, measure_latency
from parformer.measure.memory import PeakMemory, peak_memory
from parformer.measure.statistics import Difference
from parformer.model import Model, build, refill
from parformer.state import State
from parformer.store.files import Json

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16}

PLACEMENT = 0.03
"""The smallest difference between models worth naming. Where its weights happen to lie in memory
makes one copy of a small model a few percent faster than another for as long as both live."""

LONG = 0.05
"""Seconds of a step that is long enough for the clock, whatever else the machine did meanwhile."""

COUNTED = 100_000
"""Tokens of the text that a model with counts is measured on."""

PIECE = 1 << 18
"""Random weights that a stand-in repeats."""


@dataclass(frozen=True, slots=True)
class MeasuredModel:
    """One model's price and what its step really needs."""

    config: ModelConfig
    cost: ModelCost
    memory: PeakMemory


@dataclass(frozen=True, slots=True)
class MeasuredModels:
    """Models measured side by side; the first is what the others are compared with."""

    models: Mapping[str, MeasuredModel]
    latency: Comparison

    def difference(self, a: str, b: str) -> Difference:
        """Is model a faster than b, slower, or is it a tie?"""
        return self.latency.difference(a, b, smallest=PLACEMENT)

    def to_dict(self) -> Json:
        """Plain values, ready for JSON."""
        baseline = next(iter(self.models))
        rows = []
        for name, measured in self.models.items():
            timing = self.latency[name]
            rows.append(
                {
                    "name": name,
                    "pattern": str(measured.config.pattern),
                    "parameters": measured.cost.parameters,
                    "flops_cached": measured.cost.flops_cached,
                    "state_bytes": measured.cost.state_bytes,
                    "latency_seconds": timing.median,
                    "latency_interval": [timing.low, timing.high],
                    "peak_bytes": measured.memory.peak_bytes,
                    "against_first": self.difference(name, baseline).to_dict(),
                }
            )
        return {"models": rows, "receipt": self.latency.receipt.to_dict()}


Runtime: TypeAlias = Callable[[Model, Shape, int | None], Work]
"""Makes a step of a model, of a shape, with so many threads."""


class Reader:
    """A model that reads on: each call is one step with the memory full."""

    def __init__(self, model: Model, shape: Shape, *, seed: int = 0) -> None:
        self.model, self.shape = model, shape
        generator = torch.Generator().manual_seed(seed)
        self.tokens = typical_tokens(model.config, shape.batch, shape.tgt_len, generator)
        self.targets = typical_tokens(model.config, shape.batch, shape.tgt_len, generator)
        self.start = self._fill_memory(generator) if shape.mem_len else None
        self.state = self.start

    def __call__(self) -> None:
        if self._past_window():
            self.state = self.start
        with torch.inference_mode():
            targets = None if self.model.head is None else self.targets
            out = self.model(self.tokens, self.state, targets)
        # without a memory every step starts afresh
        self.state = out.state if self.shape.mem_len else None

    def resident(self) -> Iterator[Tensor]:
        """What stays in memory between steps: weights, and keys and values."""
        yield from self.model.parameters()
        yield from self.model.buffers()
        if self.state is not None:
            for block in self.state.blocks:
                yield from () if block is None else block.tensors().values()

    def _past_window(self) -> bool:
        window = self.model.config.max_len if self.model.config.numbered else 0
        return bool(window and self.state and self.state.position + self.shape.tgt_len > window)

    @torch.inference_mode()
    def _fill_memory(self, generator: torch.Generator) -> State:
        config, shape = self.model.config, self.shape
        state = self.model.initial_state(shape.batch, shape.memory)
        left = max(shape.mem_len, config.recall)
        while left:
            piece = min(left, 512)
            tokens = typical_tokens(config, shape.batch, piece, generator)
            new = self.model(tokens, state, last_only=True).state
            assert new is not None
            state, left = new, left - piece
        return state


def step_words(tgt_len: int, mem_len: int) -> str:
    """A step in words.

    >>> step_words(1, 640), step_words(64, 0)
    ('1 token after 640', '64 tokens')
    """
    words = f"{tgt_len} token{'s' * (tgt_len > 1)}"
    return f"{words} after {mem_len}" if mem_len else words


def typical_tokens(
    config: ModelConfig, batch: int, time: int, generator: torch.Generator
) -> Tensor:
    """Random tokens; of an adaptive vocabulary's rare clusters, as many as costs assume."""
    count = batch * time
    first, *rare = config.clusters
    if config.counts or config.recall:
        start = int(torch.randint(COUNTED, (), generator=generator))
        places_n = np.arange(start, start + count)
        text_n = counted_text(config.vocab_size).take(places_n, mode="wrap")
        return torch.from_numpy(text_n).view(batch, time)
    tokens = torch.randint(first.low, first.high, (count,), generator=generator)
    places = torch.randperm(count, generator=generator)
    for cluster, share in zip(rare, token_shares(config)[1:], strict=True):
        some = round(count * share)
        drawn = torch.randint(cluster.low, cluster.high, (some,), generator=generator)
        tokens[places[:some]] = drawn
        places = places[some:]
    return tokens.view(batch, time)


def stand_in(config: ModelConfig, *, dtype: torch.dtype = torch.float32, seed: int = 0) -> Model:
    """A model that takes as long as `build`'s and is there ten times as soon.

    Its matrices repeat one random piece instead of being drawn number by number.
    """
    piece = torch.randn(PIECE, generator=torch.Generator().manual_seed(seed))
    piece = (config.init_std * piece).to(dtype)
    with torch.device("meta"):
        outline = Model(config)
    weights = {n: _standing(n, weight.shape, piece) for n, weight in outline.named_parameters()}
    for name, buffer in outline.named_buffers():
        weights[name] = torch.zeros(buffer.shape, dtype=buffer.dtype)
    return refill(outline, weights)


def with_counts(model: Model) -> Model:
    """The same model with counts of some text, which takes as long to look up as any."""
    if model.prior is not None and model.prior.table is not None:
        table = counted_table(**model.prior.wanted)
        model.prior.table.copy_(torch.from_numpy(table))
    return model


@lru_cache(maxsize=4)
def counted_table(vocab_size: int, size: int, order: int) -> NDArray[np.uint8]:
    text = counted_text(vocab_size)
    return count(text, vocab_size=vocab_size, size=size, order=order)


@lru_cache(maxsize=4)
def counted_text(vocab_size: int) -> NDArray[np.int64]:
    """Tokens some of which are much more frequent than others, as in a text."""
    return np.random.default_rng(0).zipf(1.3, COUNTED) % vocab_size


def _standing(name: str, shape: torch.Size, piece: Tensor) -> Tensor:
    if len(shape) < 2:
        start = torch.ones if "norm" in name and name.endswith("weight") else torch.zeros
        return start(shape, dtype=piece.dtype)
    count = shape.numel()
    return piece.repeat(-(-count // len(piece)))[:count].view(shape)


def count_memory(
    readers: Mapping[str, Reader], say: Preparing
) -> tuple[dict[str, PeakMemory], set[str]]:
    """Bytes at the worst moment of every step, and which steps are long."""
    memories: dict[str, PeakMemory] = {}
    long: set[str] = set()
    for i, (name, reader) in enumerate(readers.items()):
        say(f"counting the memory of {name}", 0.4 + 0.1 * i / len(readers))
        began = time.perf_counter()
        reader()
        first = time.perf_counter() - began
        memories[name] = peak_memory(reader, resident=list(reader.resident()))
        if min(first, time.perf_counter() - began - first) > LONG:
            long.add(name)
    return memories, long


def measure_models(
    configs: Mapping[str, ModelConfig],
    *,
    tgt_len: int | None = None,
    mem_len: int | None = None,
    batch: int = 1,
    rounds: int = 30,
    threads: int | None = None,
    precision: str = "fp32",
    packed: bool = False,
    standing: bool = False,
    seed: int = 0,
    progress: Preparing | None = None,
    runtime: Runtime | None = None,
) -> MeasuredModels:
    """Build every model with random weights and measure one step of each, interleaved.

    standing: take stand-ins, which are built sooner and as fast.
    runtime: makes the step that is timed, where another one than torch is to run it.
    """
    if precision not in PRECISIONS:
        raise ConfigError(f"unknown precision {precision!r}; known: {', '.join(PRECISIONS)}")
    say = progress or (lambda what, share: None)
    readers, prices = {}, {}
    for i, (name, config) in enumerate(configs.items()):
        say(f"building {name}", 0.4 * i / len(configs))
        shape = step_shape(config, tgt_len, mem_len, batch)
        prices[name] = cost(config, tgt_len=tgt_len, mem_len=mem_len, batch=batch)
        make = stand_in if standing else build
        model = with_counts(make(config, seed=seed, dtype=PRECISIONS[precision]))
        if packed and not model.pack(shape.batch * shape.tgt_len):
            raise ConfigError(
                f"weights cannot be packed for {shape.batch * shape.tgt_len} rows in {precision} "
                "here: that takes MKL, fp32 and at least 8 rows"
            )
        readers[name] = Reader(model, shape, seed=seed)
    with pinned_threads(threads):
        memories, long = count_memory(readers, say)
    shape = next(iter(readers.values())).shape
    works: Mapping[str, Work] = readers
    if runtime is not None:
        say("making the steps of the other runtime", 0.5)
        works, long = {n: runtime(r.model, r.shape, threads) for n, r in readers.items()}, set()
    latency = measure_latency(
        works,
        rounds=rounds,
        warmup=1,  # their memory was counted, so all have run
        threads=threads,
        seed=seed,
        long=long,
        what=f"one step of {step_words(shape.tgt_len, shape.mem_len)}, "
        f"batch {batch}, {precision}{', weights packed' if packed else ''}"
        f"{', in another runtime' if runtime else ''}",
        progress=lambda share: say("timing, in turns", 0.5 + 0.5 * share),
    )
    models = {n: MeasuredModel(c, prices[n], memories[n]) for n, c in configs.items()}
    return MeasuredModels(models, latency)
