"""How surprised is a model by a text?

The text is one stream. It is read from its first token to its last with the memory carried
along, and every token but the first is predicted exactly once.

>>> from parformer.config import preset
>>> from parformer.model import build
>>> score = evaluate(build(preset("pocket")), np.arange(200) % 7)
>>> score.tokens, score.perplexity > 200  # it learned nothing yet
(199, True)
"""

# b batch, t time

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from parformer.costs import cost
from parformer.data.masking import mask_token, mask_tokens
from parformer.embedding import IGNORE
from parformer.errors import InputError
from parformer.fields import need_at_least
from parformer.model import Model
from parformer.native.lending import lent
from parformer.state import State

Tokens: TypeAlias = NDArray[Any] | Tensor
"""One dimension of whole numbers; it may be mapped into memory."""

Each: TypeAlias = Callable[[NDArray[np.int64], NDArray[np.float64]], None]
"""Takes places in the text and the losses of the tokens there, step by step."""

Progress: TypeAlias = Callable[[float], None]
"""Takes the share that is done."""

WINDOWED = ("learned", "rotary", "sinusoidal", "sinusoidal-halves")
"""Positions that a model knows within a window."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """How well a text was predicted."""

    loss: float
    """Mean negative log-probability of a token, in nats; inf or nan if one of them was."""
    tokens: int
    """Tokens that were predicted."""
    characters: int = 0
    """Characters that these tokens stand for, or bytes where those are counted; 0 if unknown."""
    words: int = 0
    """Words that these tokens stand for; 0 if unknown."""
    kind: str = "perplexity"
    """`pseudo-perplexity` for a masked model, which knows both sides of what it guesses."""

    @property
    def nats(self) -> float:
        """Of the whole text."""
        return self.loss * self.tokens

    @property
    def perplexity(self) -> float:
        return exp(self.loss)

    @property
    def bits_per_character(self) -> float | None:
        return self.nats / self.characters / math.log(2) if self.characters else None

    @property
    def word_perplexity(self) -> float | None:
        return exp(self.nats / self.words) if self.words else None

    def to_dict(self) -> dict[str, object]:
        """Plain values, ready for JSON, which knows neither inf nor nan: they become null."""
        measured = {
            "loss": self.loss,
            "perplexity": self.perplexity,
            "bits_per_character": self.bits_per_character,
            "word_perplexity": self.word_perplexity,
        }
        values: dict[str, object] = {"kind": self.kind}
        values |= {name: finite_or_none(value) for name, value in measured.items()}
        values |= {"tokens": self.tokens, "characters": self.characters, "words": self.words}
        if not math.isfinite(self.loss):
            values["note"] = f"the loss is {self.loss}: some token got no finite probability"
        return values


def exp(nats: float) -> float:
    """Euler's number to this power, infinite where Python's own function would fail."""
    try:
        return math.exp(nats)
    except OverflowError:
        return math.inf


def finite_or_none(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def evaluate(
    model: Model,
    tokens: Tokens,
    *,
    tgt_len: int = 0,
    batch: int = 1,
    limit: int = 0,
    characters: int = 0,
    words: int = 0,
    mask_id: int = -1,
    seed: int = 0,
    progress: Progress | None = None,
    each: Each | None = None,
) -> Score:
    """Read a text in steps of `tgt_len` tokens and say how well each token was predicted.

    0 for `tgt_len` means the configuration's step, or half the window where there is one
    (learned, rotary and sinusoidal positions): such a model sees at least the other half before
    each token, and never farther than its window, which is what it was trained on. With a `batch`
    the text is read in that many places at once, each after enough of what precedes it to fill
    the memory. `limit` stops after so many tokens. `characters` and `words` are those of the
    whole text; the tokens that were predicted stand for their share of them. A masked model
    guesses the places that `seed` draws, window by window, with `mask_id` (the vocabulary's
    last token by default) in their stead.
    """
    for name, value, least in (("tgt_len", tgt_len, 0), ("batch", batch, 1), ("limit", limit, 0)):
        need_at_least(name, value, least)
    stream = as_stream(tokens)[: limit or None]
    if len(stream) < 2:
        raise InputError(
            f"a text of {len(stream)} tokens has nothing to predict; give at least 2 tokens"
        )
    step = step_length(model, tgt_len)
    if model.config.causal:
        steps = read_stream(model, stream, step, batch)
    else:
        if mask_id < 0:
            mask_id = mask_token(model.config.vocab_size)
        steps = read_windows(model, stream, step, batch, mask_id, seed)
        characters = words = 0
    nats, counted = 0.0, 0
    with at_rest(model):
        for places, losses, share in steps:
            nats += float(losses.sum())
            counted += len(losses)
            if each is not None:
                each(places, losses)
            if progress is not None:
                progress(share)
    return Score(
        loss=nats / counted,
        tokens=counted,
        characters=round(characters * counted / len(tokens)),
        words=round(words * counted / len(tokens)),
        kind="perplexity" if model.config.causal else "pseudo-perplexity",
    )


Steps: TypeAlias = Iterator[tuple[NDArray[np.int64], NDArray[np.float64], float]]
"""Places in the text, the losses of the tokens there, and the share that is done."""


def as_stream(tokens: Tokens) -> NDArray[Any]:
    stream = tokens.cpu().numpy() if isinstance(tokens, Tensor) else np.asarray(tokens)
    if stream.ndim != 1 or stream.dtype.kind not in "iu":
        raise InputError(
            "a text is one dimension of whole numbers, "
            f"got {stream.dtype} of shape {stream.shape}; give one split of a corpus"
        )
    return stream


def step_length(model: Model, tgt_len: int) -> int:
    config = model.config
    if config.positions not in WINDOWED:
        return tgt_len or config.step_len
    if tgt_len > config.max_len:
        raise InputError(f"tgt_len {tgt_len} exceeds the window of {config.max_len}; lower it")
    return tgt_len or (max(1, config.max_len // 2) if config.causal else config.max_len)


def first_state(model: Model, batch: int, step: int) -> State | None:
    """What to begin with: with rotary positions, room for what a step leaves of the window.

    A model that was trained on windows knows no distances beyond them.
    """
    if model.config.positions != "rotary":
        return None
    return model.initial_state(batch, model.config.max_len - step)


def warm_up_steps(model: Model, step: int) -> int:
    """Steps to read before one that counts, so that its memory is full."""
    config = model.config
    if config.numbered:
        return math.ceil((config.max_len - step) / step)
    if cost(config, tgt_len=1).state_bytes == 0:
        return 0
    memory = config.max_len - step if config.positions in WINDOWED else config.memory
    memory = max(memory, config.recall)
    # a recurrence remembers something even where attention has no memory
    return math.ceil(max(memory, 1) / step)


def row_edges(steps: int, warm_up: int, batch: int) -> list[tuple[int, int, int]]:
    """For every row: the step it begins to read at, the first that counts, and the last's end.

    All rows read equally many steps. The first has nothing before it to warm up on, so it
    counts more of them than the others.

    >>> row_edges(steps=10, warm_up=2, batch=3)
    [(0, 0, 5), (3, 5, 8), (6, 8, 10)]
    """
    if steps <= warm_up:
        batch = 1
    reads = math.ceil((steps + (batch - 1) * warm_up) / batch)
    edges = [(0, 0, reads)]
    while edges[-1][2] < steps:
        first = edges[-1][2]
        edges.append((first - warm_up, first, min(first + reads - warm_up, steps)))
    return edges


def read_stream(model: Model, stream: NDArray[Any], step: int, batch: int) -> Steps:
    """Rows of the text side by side, each with its memory."""
    predictions = len(stream) - 1
    step = min(step, predictions)
    rows = row_edges(math.ceil(predictions / step), warm_up_steps(model, step), batch)
    reads = rows[0][2]
    state = first_state(model, len(rows), step)
    with losses_of(model, state, len(rows), step) as read:
        for i in range(reads):
            inputs_bt = np.zeros((len(rows), step), np.int64)
            targets_bt = np.full((len(rows), step), IGNORE, np.int64)
            places_bt = np.zeros((len(rows), step), np.int64)
            for b, (begin, first, end) in enumerate(rows):
                start = (begin + i) * step
                # a row that came to its end, or to the text's, reads on in zeros that nobody sees
                piece = stream[start : start + step + 1]
                inputs_bt[b, : len(piece[:step])] = piece[:step]
                places_bt[b] = np.arange(start + 1, start + 1 + step)
                if first <= begin + i < end:
                    targets_bt[b, : len(piece) - 1] = piece[1:]
            losses_bt = read(torch.from_numpy(inputs_bt), torch.from_numpy(targets_bt))
            counted_bt = targets_bt != IGNORE
            losses = losses_bt.to("cpu", torch.float64).numpy()
            yield places_bt[counted_bt], losses[counted_bt], (i + 1) / reads


@contextmanager
def losses_of(
    model: Model, state: State | None, batch: int, step: int
) -> Iterator[Callable[[Tensor, Tensor], Tensor]]:
    """Who reads on from a state and gives losses: in C++ where tokens come one by one."""
    device, state_now = next(model.parameters()).device, state

    def ordinarily(tokens_bt: Tensor, targets_bt: Tensor) -> Tensor:
        nonlocal state_now
        out = model(tokens_bt.to(device), state=state_now, targets=targets_bt.to(device))
        state_now = out.state
        losses: Tensor = out.losses
        return losses

    if step > 1:
        yield ordinarily
        return
    state = model.initial_state(batch) if state is None else state
    sizes = {"batch": batch, "memory": state.memory}
    with lent(model, partial(model.native, **sizes), *sizes.values()) as decoder:
        if decoder is None:
            yield ordinarily
            return
        decoder.load(state)
        handed_back = False

        def natively(tokens_b1: Tensor, targets_b1: Tensor) -> Tensor:
            nonlocal state_now, handed_back
            if not handed_back and decoder.full:  # a window that slides is read again
                state_now, handed_back = decoder.state(), True
            if handed_back:
                return ordinarily(tokens_b1, targets_b1)
            logits_bv = decoder.step(tokens_b1)
            targets_b = targets_b1[:, 0]
            losses_b = F.cross_entropy(logits_bv, targets_b, reduction="none", ignore_index=IGNORE)
            return losses_b[:, None]

        yield natively


def read_windows(
    model: Model, stream: NDArray[Any], step: int, batch: int, mask_id: int, seed: int
) -> Steps:
    """Windows of the text, each for itself, with some of its tokens to guess."""
    generator = torch.Generator().manual_seed(seed)
    device = next(model.parameters()).device
    windows = [(start, min(start + step, len(stream))) for start in range(0, len(stream), step)]
    whole = len(stream) // step
    # the last window, where it is shorter, goes alone
    groups = [windows[i : min(i + batch, whole)] for i in range(0, whole, batch)]
    for group in [*groups, windows[whole:]]:
        if not group:
            continue
        masked = []
        for start, end in group:
            # one by one, so that what is masked does not depend on the batch
            window_1t = torch.from_numpy(stream[None, start:end].astype(np.int64))
            masked.append(mask_tokens(window_1t, generator, mask_id, model.config.vocab_size))
        inputs_bt, targets_bt = (torch.cat(part) for part in zip(*masked, strict=True))
        losses_bt = model(inputs_bt.to(device), targets=targets_bt.to(device)).losses
        counted_bt = (targets_bt != IGNORE).numpy()
        places_bt = np.stack([np.arange(start, end) for start, end in group])
        losses = losses_bt.to("cpu", torch.float64).numpy()[counted_bt]
        yield places_bt[counted_bt], losses, group[-1][1] / len(stream)


@contextmanager
def at_rest(model: Model) -> Iterator[None]:
    """No gradients and no dropout inside; afterwards every part is in the mode it was in."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        for module, training in modes:
            module.training = training
