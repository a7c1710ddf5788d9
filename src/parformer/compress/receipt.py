"""What did a step of compression gain, and what did it cost, on this very machine?

Before and after are measured side by side: bytes of the saved model, bytes at the worst moment of
a step, seconds of a step, and the loss on text that nobody trained on. What cannot be told apart
is called a tie; a step that gains nothing says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray

from parformer.blocks.base import Shape
from parformer.compress.coding import coded_maps
from parformer.compress.recall import Recalled, probe
from parformer.config import ModelConfig
from parformer.costs import step_shape
from parformer.data.batches import sample
from parformer.data.tokens import Prepared
from parformer.evaluate.stretches import stretch_losses
from parformer.events import Preparing
from parformer.measure.device import pinned_threads
from parformer.measure.latency import Comparison, measure_latency
from parformer.measure.memory import peak_memory
from parformer.measure.models import PLACEMENT, Reader, step_words
from parformer.measure.statistics import compare
from parformer.model import Model
from parformer.native.program import NoForm
from parformer.recipe import Recipe
from parformer.records import Record
from parformer.store.folder import WEIGHTS
from parformer.tasks import find_task

Verdict = Literal["less", "more", "tie"]
PIECE = 64
"""Tokens of a step that is not a single token's."""


@dataclass(frozen=True, kw_only=True)
class Change(Record):
    """A figure beside what it was before."""

    ratio: float
    low: float
    high: float
    """Where the ratio lies, with 95% confidence."""
    verdict: Verdict

    @classmethod
    def of(cls, after: NDArray[np.float64], before: NDArray[np.float64], smallest: float) -> Self:
        """From samples that were taken in the same rounds, or at the same places."""
        found = compare(after, before, smallest=smallest)
        told: dict[str, Verdict] = {"faster": "less", "slower": "more", "tie": "tie"}
        return cls(
            ratio=found.ratio,
            low=found.low,
            high=found.high,
            verdict=told[found.verdict],
        )


@dataclass(frozen=True, kw_only=True)
class Figures(Record):
    """One model as it was measured beside the others."""

    size: int
    """Bytes of its weights on disk."""
    parameters: int
    """Numbers that they stand for."""
    memory: int
    """Bytes of tensors at the worst moment of a step of many tokens."""
    token: float
    """Seconds of a step of one token, native where there is such a step; of many tokens where a
    model reads both sides."""
    piece: float
    """Seconds of a step of many tokens."""
    loss: float
    """On validation text."""
    token_change: Change | None = None
    piece_change: Change | None = None
    loss_change: Change | None = None
    """Beside the model that all began with."""
    recalled: Recalled | None = None
    """How well it finds again what it has just read, where it reads on and on."""


@dataclass(frozen=True)
class Bench:
    """The text and the steps that models are held against each other with."""

    recipe: Recipe
    prepared: Prepared
    tokens: int
    """Of validation text that is read to judge a model."""
    rounds: int = 12
    threads: int | None = None
    others: tuple[Bench, ...] = ()
    """The same text in other tokens, for models of other vocabularies."""
    longer: float = 1.0
    """Tokens of the text for each that the original reads, so that losses of both compare."""

    def of(self, model: Model) -> Bench:
        """The bench whose text is in a model's own tokens."""
        size = model.config.vocab_size
        fitting = (one for one in (self, *self.others) if one.recipe.model.vocab_size == size)
        return next(fitting, self)

    def in_tokens(self, prepared: Prepared, config: ModelConfig) -> Bench:
        """The same for a model that reads the text in other tokens."""
        both = [one.splits["valid"].tokens for one in (prepared, self.prepared)]
        longer = self.longer * len(both[0]) / len(both[1]) if self.reads_on else 1.0
        recipe = replace(self.recipe, model=config)
        alone = replace(self, others=())
        return replace(
            self, prepared=prepared, recipe=recipe, others=(*self.others, alone), longer=longer
        )

    def loss(self, model: Model) -> float:
        """On validation text."""
        return float(self.stretches(model).mean()) if self.reads_on else self._score(model)

    @property
    def reads_on(self) -> bool:
        """Whether losses are of a text that is read on and on, stretch by stretch."""
        config = self.recipe.model
        return config.causal and config.source is None and config.head == "lm"

    def stretches(self, model: Model) -> NDArray[np.float64]:
        """Mean losses of stretches of validation text."""
        if not self.reads_on:
            return np.array([self._score(model)])
        return self.longer * stretch_losses(model, self.valid)

    @property
    def valid(self) -> NDArray[Any]:
        return sample(self.prepared.splits["valid"].tokens, round(self.longer * self.tokens))

    def train_loss(self, model: Model, tokens: int) -> float:
        """On some of the training text, by which steps are chosen that validation text judges."""
        task = find_task(self.recipe)
        return task.score(model, self.prepared, "train", tokens).loss

    def recalled(self, model: Model) -> Recalled | None:
        """How well a model copies and recalls."""
        return probe(model, self.prepared.splits["train"].tokens) if self.reads_on else None

    def _score(self, model: Model) -> float:
        score = find_task(self.recipe).score(model, self.prepared, "valid", self.tokens)
        return score.loss


def weigh(
    models: Mapping[str, Model], sizes: Mapping[str, int], bench: Bench, say: Preparing
) -> dict[str, Figures]:
    """Figures of models, all measured in the same rounds; the first is what they began as."""
    first = next(iter(models))
    stretches = {}
    for number, (name, model) in enumerate(models.items()):
        say(f"reading validation text with {name}", 0.5 * number / len(models))
        stretches[name] = bench.of(model).stretches(model)
    token, _ = clock(models, bench, 1, lambda share: say("timing, in turns", 0.5 + share / 4))
    piece, memory = clock(
        models, bench, PIECE, lambda share: say("timing, in turns", 0.75 + share / 4)
    )
    found: dict[str, Figures] = {}
    for name, model in models.items():
        figures = Figures(
            size=sizes[name],
            parameters=numbers(model),
            memory=memory[name],
            token=token[name].median,
            piece=piece[name].median,
            loss=float(stretches[name].mean()),
            recalled=bench.of(model).recalled(model),
        )
        if name != first:
            figures = replace(
                figures,
                token_change=timed(token, name, first),
                piece_change=timed(piece, name, first),
                loss_change=lost(stretches[name], stretches[first]),
            )
        found[name] = figures
    return found


def clock(
    models: Mapping[str, Model], bench: Bench, time: int, progress: Callable[[float], None]
) -> tuple[Comparison, dict[str, int]]:
    """Seconds of a step of so many tokens, and bytes at its worst moment."""
    memory = {}
    with pinned_threads(bench.threads):  # a native step keeps the threads that it is made with
        readers = {name: step_of(model, time) for name, model in models.items()}
        for name, reader in readers.items():
            reader()
            if time > 1 or isinstance(reader, Reader):
                held = reader.resident() if isinstance(reader, Reader) else tensors(models[name])
                peak = peak_memory(reader, resident=list(held)).peak_bytes
                memory[name] = peak + sum(one.laid_out for _, one in coded_maps(models[name]))
    found = measure_latency(
        readers,
        rounds=bench.rounds,
        threads=bench.threads,
        warmup=1,
        what=f"a step of {step_words(time, 0)}",
        progress=progress,
    )
    return found, memory


def token_seconds(bench: Bench, model: Model) -> float:
    """Seconds of a step of one token, of one model by itself."""
    return clock({"it": model}, bench, 1, lambda _: None)[0]["it"].median


def step_of(model: Model, time: int) -> Reader | Callable[[], object]:
    """A step of so many tokens; whoever reads both sides reads many, and a source comes along."""
    config = model.config
    if config.source is None and config.head == "lm":
        reader = Reader(model, shape_of(config, time))
        return reader if time > 1 else writer(model, reader) or reader
    length = min(PIECE, config.max_len or PIECE)
    tokens = torch.randint(config.vocab_size, (1, min(time, length) if config.causal else length))
    source = None
    if config.source is not None:
        source = torch.randint(config.source_vocab or config.vocab_size, (1, 24))

    def step() -> object:
        with torch.inference_mode():
            return model(tokens, source=source)

    return step


def writer(model: Model, reader: Reader) -> Callable[[], object] | None:
    """The native step that writes a text token by token; None where the ordinary one does."""
    start = reader.start or model.initial_state()
    try:
        decoder = model.native(memory=start.memory)
    except NoForm:
        return None
    decoder.load(start)

    def write() -> object:
        if decoder.full:
            decoder.load(start)
        return decoder.step([[1]])

    return write


def shape_of(config: ModelConfig, time: int) -> Shape:
    return step_shape(config, min(time, config.max_len or time), None, 1)


def tensors(model: Model) -> list[torch.Tensor]:
    return [*model.parameters(), *model.buffers()]


def numbers(model: Model) -> int:
    """Numbers that a model's weights stand for, in whatever form they are kept."""
    from parformer.costs import cost

    return cost(model.config).parameters


def timed(found: Comparison, name: str, first: str) -> Change:
    samples = [np.array(found[one].samples_seconds) for one in (name, first)]
    return Change.of(samples[0], samples[1], PLACEMENT)


def lost(after: NDArray[np.float64], before: NDArray[np.float64]) -> Change | None:
    """How much a loss changed over the same stretches; None where there is one stretch alone.

    Other tokens may make other stretches of the text; then they are no pairs.
    """
    if min(len(after), len(before)) < 2:
        return None
    if len(after) == len(before):
        error = (after - before).std(ddof=1) / len(after) ** 0.5
    else:
        error = sum(one.var(ddof=1) / len(one) for one in (after, before)) ** 0.5
    wide = 1.96 * error / before.mean()
    ratio = float(after.mean() / before.mean())
    low, high = ratio - float(wide), ratio + float(wide)
    verdict: Verdict = "less" if high < 1 else "more" if low > 1 else "tie"
    return Change(ratio=ratio, low=low, high=high, verdict=verdict)


def bytes_of(folder: Path) -> int:
    """Bytes of a saved model's weights."""
    return (folder / WEIGHTS).stat().st_size
