"""What is a piece of work in the engine, and what does it tell whoever waits for it?"""

# v vocabulary

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import TypeAlias

import torch
from torch import Tensor

from parformer.data.tokenizer import Tokenizer
from parformer.generate.writing import HALF, TextStream
from parformer.serve.wishes import Wish


@dataclass(frozen=True, slots=True)
class Token:
    """A token that was written or read, and how likely it was."""

    number: int
    text: str
    offset: int
    """Characters before it."""
    logprob: float | None
    """None for the first token of a text: nothing stands before it."""
    top: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that has become certain, and the tokens that came with it."""

    index: int
    text: str
    tokens: tuple[Token, ...] = ()


@dataclass(frozen=True, slots=True)
class Ended:
    """One of the texts is complete."""

    index: int
    reason: str
    written: int
    """Tokens."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The work cannot be done, or not in time."""

    message: str
    status: int = 500


Happened: TypeAlias = Piece | Ended | Failed


@dataclass(eq=False)
class Job:
    """A prompt, and the texts that are to follow it."""

    wish: Wish
    prompt: tuple[int, ...]
    first: int
    """The number of its first text among those of its request."""
    tell: Callable[[Happened], None]
    deadline: float = field(default_factory=lambda: time.monotonic() + 3600)
    cancelled: bool = False
    """Set by whoever no longer waits."""

    @property
    def over(self) -> bool:
        """Whether nobody waits any longer, or it took too long."""
        return self.cancelled or time.monotonic() > self.deadline

    def give_up(self) -> None:
        if not self.cancelled:
            self.tell(Failed("the answer took too long; ask for fewer tokens", 504))
        self.cancelled = True


class Row:
    """One text on its way."""

    def __init__(self, job: Job, number: int, tokenizer: Tokenizer) -> None:
        wish = job.wish
        self.job, self.index, self.tokenizer = job, job.first + number, tokenizer
        self.sampling = wish.sampling
        self.random = Random() if wish.seed is None else Random(f"{wish.seed} {self.index}")
        self.stream = TextStream(tokenizer, job.prompt, wish.stop)
        self.offsets = Offsets(tokenizer, job.prompt, told=wish.echo)
        self.written = 0
        self.counts: dict[int, int] = {}

    def adjust(self, logits_v: Tensor) -> Tensor:
        """What penalties and biases make of the model's numbers."""
        wish = self.job.wish
        if not wish.bias and not ((wish.frequency or wish.presence) and self.counts):
            return logits_v
        logits_v = logits_v.clone()
        for token, value in wish.bias:
            logits_v[token] += value
        for token, times in self.counts.items():
            logits_v[token] -= wish.frequency * times + wish.presence
        return logits_v

    def take(self, token: int, logs_v: Tensor | None) -> bool:
        """Hand a token out; whether the text goes on."""
        self.written += 1
        self.counts[token] = self.counts.get(token, 0) + 1
        tokens: tuple[Token, ...] = ()
        if logs_v is not None:
            tokens = (told_token(self.offsets, token, logs_v, self.job.wish.logprobs or 0),)
        text = self.stream.feed(token)
        last = self.written >= self.job.wish.tokens
        if last and not self.stream.stopped:
            text += self.stream.finish()
        if text or tokens:
            self.job.tell(Piece(self.index, text, tokens))
        if self.stream.stopped or last:
            reason = "stop" if self.stream.stopped else "length"
            self.job.tell(Ended(self.index, reason, self.written))
            return False
        return True


class Offsets:
    """How many characters stand before each token."""

    def __init__(self, tokenizer: Tokenizer, before: tuple[int, ...], *, told: bool) -> None:
        self.tokenizer = tokenizer
        self.stream = TextStream(tokenizer, before, ())
        self.count = len(tokenizer.decode(before)) if told else 0

    def before(self, token: int) -> int:
        count = self.count
        self.count += len(self.stream.feed(token))
        return count


def told_token(offsets: Offsets, token: int, logs_v: Tensor | None, top: int) -> Token:
    """A token with its log-probability and the likeliest others."""
    text, offset = name_token(offsets.tokenizer, token), offsets.before(token)
    if logs_v is None:
        return Token(token, text, offset, None)
    best = torch.topk(logs_v, min(top, len(logs_v))) if top else None
    likeliest = (
        ()
        if best is None
        else tuple(
            (name_token(offsets.tokenizer, int(number)), float(value))
            for number, value in zip(best.indices, best.values, strict=True)
        )
    )
    return Token(token, text, offset, float(logs_v[token]), likeliest)


def name_token(tokenizer: Tokenizer, token: int) -> str:
    """A token's text; by its number where it is but a part of a character."""
    text = tokenizer.decode([token])
    return f"<token {token}>" if HALF in text or not text else text
