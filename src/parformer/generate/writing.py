"""How does a model write on?

Token by token: the model gives numbers for all that could come next, `Sampling` says how
one of them is drawn. Every prompt has its own stream of random numbers, which follows from
the seed and the prompt's place, so that what it becomes does not depend on its neighbours.

>>> from parformer.config import preset
>>> from parformer.model import build
>>> model = build(preset("pocket"))
>>> one, two = generate(model, [b"def ", b"class "], 3, seed=7)
>>> len(one), one == generate(model, [b"def "], 3, seed=7)[0]
(3, True)
"""

# b batch, t time, v vocabulary

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor

from parformer.embedding import check_tokens
from parformer.errors import ConfigError, InputError
from parformer.evaluate.perplexity import at_rest
from parformer.fields import need_at_least
from parformer.generate.copies import shun_copies
from parformer.head import widen
from parformer.model import Model
from parformer.native.decoder import Decoder
from parformer.native.lending import lent
from parformer.native.program import Weights

if TYPE_CHECKING:
    from parformer.data.tokenizers import Tokenizer

PIECE = 512
"""Tokens of a prompt to read at once at most: attention's scores grow with their square."""

Stop: TypeAlias = Callable[[int, list[int]], bool]
"""Takes a prompt's place and what was written after it so far; true to end it there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """How the next token is drawn, in the order of the fields."""

    longest_copy: int = 0
    """Tokens that would make a copy of earlier text longer than this become less likely, the longer
    the less; 0 means never."""
    repetition_penalty: float = 1.0
    """Tokens seen before get this much less likely, as in CTRL; 1 means not at all."""
    temperature: float = 1.0
    """Below 1 likely tokens get likelier still; 0 always takes the likeliest."""
    top_k: int = 0
    """Draw among this many likeliest tokens; 0 means all."""
    top_p: float = 1.0
    """Draw among the likeliest tokens that together have this probability; 1 means all."""

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < math.inf:
            raise ConfigError(f"temperature must be 0 or above, got {self.temperature:g}")
        if not 0 < self.repetition_penalty < math.inf:
            raise ConfigError(
                f"repetition_penalty must be above 0, got {self.repetition_penalty:g}; 1 means none"
            )
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"top_p is a share above 0 and up to 1, got {self.top_p:g}")
        need_at_least("top_k", self.top_k, 0)
        need_at_least("longest_copy", self.longest_copy, 0)

    def choose(self, logits_bv: Tensor, seen_bv: Tensor, uniforms: Sequence[float]) -> list[int]:
        """One token per row; its place among the probabilities is the row's uniform number.

        Copies are shunned before, by who knows the texts.
        """
        if not bool(logits_bv.max(dim=-1).values.isfinite().all()):
            raise InputError(
                "the model's numbers for the next token are not finite; its weights are broken"
            )
        if self.repetition_penalty != 1:
            logits_bv = penalise(logits_bv, seen_bv, self.repetition_penalty)
        if self.temperature == 0:
            return [int(token) for token in logits_bv.argmax(dim=-1)]
        logits_bv = logits_bv / self.temperature
        if self.top_k:
            logits_bv = keep_top_k(logits_bv, self.top_k)
        if self.top_p < 1:
            logits_bv = keep_top_p(logits_bv, self.top_p)
        return draw(logits_bv, uniforms)


PLAIN = Sampling()
"""Every token as likely as the model says."""


def penalise(logits_bv: Tensor, seen_bv: Tensor, penalty: float) -> Tensor:
    """Positive numbers of seen tokens are divided by the penalty, negative ones multiplied."""
    less_bv = torch.where(logits_bv > 0, logits_bv / penalty, logits_bv * penalty)
    return torch.where(seen_bv, less_bv, logits_bv)


def keep_top_k(logits_bv: Tensor, k: int) -> Tensor:
    """All but the k largest become impossible; what equals the smallest of these stays too."""
    least_b1 = logits_bv.topk(min(k, logits_bv.shape[-1]), dim=-1).values[:, -1:]
    return logits_bv.masked_fill(logits_bv < least_b1, -math.inf)


def keep_top_p(logits_bv: Tensor, p: float) -> Tensor:
    """Only the fewest likeliest tokens that reach probability p together stay possible."""
    sorted_bv, order_bv = logits_bv.sort(dim=-1, descending=True)
    shares_bv = sorted_bv.softmax(dim=-1)
    before_bv = shares_bv.cumsum(dim=-1) - shares_bv
    drop_bv = before_bv >= p  # never the likeliest: before it there is nothing
    return logits_bv.masked_fill(drop_bv.scatter(1, order_bv, drop_bv), -math.inf)


def draw(logits_bv: Tensor, uniforms: Sequence[float]) -> list[int]:
    """In each row the token at whose stretch of the probabilities the uniform number points."""
    # float64: a hundred thousand small probabilities must not add up to less than they are
    sums_bv = logits_bv.double().softmax(dim=-1).cumsum(dim=-1)
    at_b1 = torch.tensor(uniforms, dtype=torch.float64)[:, None] * sums_bv[:, -1:]
    return [int(token) for token in torch.searchsorted(sums_bv, at_b1, right=True)[:, 0]]


def generate(
    model: Model,
    prompts: Sequence[Sequence[int]],
    tokens: int,
    *,
    sampling: Sampling = PLAIN,
    seed: int = 0,
    stop: Stop | None = None,
    use_state: bool = True,
    size: int = 0,
    weights: Weights = "float32",
    on_token: Callable[[int, int], None] | None = None,
) -> list[list[int]]:
    """What the model writes after each prompt, at most `tokens` tokens each.

    Prompts of one length are read together. `on_token` is told a prompt's place and its next
    token at once; `stop` may end a text early. Without `use_state` the text is read again for
    every token: slow, and within the memory the same. Only tokens below `size` are written,
    for a model whose vocabulary is larger than its tokenizer's. `weights` says in how many bits a
    native decoder keeps its matrices.
    """
    check_writer(model, tokens, size)
    written: list[list[int]] = [[] for _ in prompts]
    by_length: dict[int, list[int]] = {}
    for place, prompt in enumerate(prompts):
        if not len(prompt):
            raise InputError(f"prompt {place + 1} has no tokens; start from a line end at least")
        by_length.setdefault(len(prompt), []).append(place)

    def hand_out(place: int, token: int) -> bool:
        """Add a token to a text; whether the text goes on."""
        written[place].append(token)
        if on_token is not None:
            on_token(place, token)
        stopped = stop is not None and stop(place, written[place])
        return not stopped and len(written[place]) < tokens

    size = size or model.config.vocab_size
    with at_rest(model):
        for places in by_length.values():
            group = Group(model, [prompts[place] for place in places], size, use_state)
            randoms = [Random(f"{seed} {place}") for place in places]
            going = [True] * len(places)
            with group.natively(tokens, weights):
                while any(going):
                    uniforms = [random.random() for random in randoms]
                    chosen = group.choose(sampling, uniforms)
                    for i, place in enumerate(places):
                        going[i] = going[i] and hand_out(place, chosen[i])
                    if any(going):
                        group.read_on(chosen)
    return written


def check_writer(model: Model, tokens: int, size: int) -> None:
    config = model.config
    need_at_least("tokens", tokens, 1)
    if not config.causal or config.head != "lm":
        kind = "sees both sides" if not config.causal else "has no head"
        raise InputError(
            f"a model that {kind} cannot write on (family {config.family!r}, "
            f"head {config.head!r}); take a causal one with head 'lm'"
        )
    if not 0 <= size <= config.vocab_size:
        raise InputError(
            f"size {size:,} is not within the model's vocabulary of {config.vocab_size:,}; "
            "the tokenizer belongs to another model"
        )


class Group:
    """Texts of one length that grow together, and what the model says comes next in each."""

    def __init__(
        self, model: Model, prompts: Sequence[Sequence[int]], size: int, use_state: bool
    ) -> None:
        self.model, self.size, self.use_state = model, size, use_state
        self.device = next(model.parameters()).device
        config = model.config
        # A model trained without memory still needs to see the text it goes on with.
        memory = config.memory or config.step_len
        self.state = model.initial_state(len(prompts), memory)
        numbered = config.numbered
        self.span = config.max_len if numbered else memory + 1
        self.text_bt = torch.tensor([list(prompt) for prompt in prompts])
        check_tokens(self.text_bt, config.vocab_size, "prompts")
        self.seen_bv = torch.zeros(len(prompts), config.vocab_size, dtype=torch.bool)
        self.seen_bv.scatter_(1, self.text_bt, True)
        self.seen, self.handed_over = self.seen_bv.numpy(), False
        self.logits_bv = torch.empty(0)
        self.texts = [list(prompt) for prompt in prompts]
        self.decoder: Decoder | None = None
        """Who reads on after the prompt, where the model has a native form."""
        if not use_state:
            self._read_again()
            return
        # numbered places end with the window, so what lies before its last tokens is lost
        text_bt = self.text_bt[:, -self.span :] if numbered else self.text_bt
        for piece_bt in torch.split(text_bt, self.span if numbered else PIECE, dim=1):
            self._read(piece_bt)

    @contextmanager
    def natively(self, tokens: int, weights: Weights) -> Iterator[None]:
        """Inside, tokens after the prompt are read without Python between the matrices."""
        batch, memory = self.state.batch, self.state.memory
        if not self.use_state or tokens < 2:
            yield
            return
        make = partial(self.model.native, batch=batch, memory=memory, weights=weights)
        with lent(self.model, make, batch, memory, weights) as decoder:
            self.decoder, self.handed_over = decoder, False
            yield
            self.decoder = None

    def choose(self, sampling: Sampling, uniforms: Sequence[float]) -> list[int]:
        """The next token of each text."""
        if sampling.longest_copy:
            shun_copies(self.logits_bv, self.texts, sampling.longest_copy)
        if self.decoder is not None and self.handed_over:
            rules = (sampling.repetition_penalty, sampling.temperature, sampling.top_p)
            return self.decoder.choose((*rules, sampling.top_k), self.size, self.seen_bv, uniforms)
        return sampling.choose(self.logits_bv, self.seen_bv[:, : self.size], uniforms)

    def read_on(self, chosen: list[int]) -> None:
        """Add a token to each text."""
        for text, token in zip(self.texts, chosen, strict=True):
            text.append(token)
        if self.decoder is not None and self._read_natively(self.decoder, chosen):
            return
        next_b1 = torch.tensor(chosen)[:, None]
        self.seen_bv.scatter_(1, next_b1, True)
        if self.use_state:
            self._read(next_b1)
        else:
            self.text_bt = torch.cat((self.text_bt, next_b1), dim=1)
            self._read_again()

    def _read_natively(self, decoder: Decoder, chosen: list[int]) -> bool:
        """Let the decoder read on; not where its window is full, which has to slide."""
        if not self.handed_over:
            decoder.load(self.state)
            self.handed_over = True
        if decoder.full:
            self.state, self.decoder = decoder.state(), None
            return False
        for row, token in enumerate(chosen):
            self.seen[row, token] = True
        self.logits_bv = decoder.step([[token] for token in chosen])
        return True

    def _read(self, tokens_bt: Tensor) -> None:
        out = self.model(tokens_bt.to(self.device), state=self.state, last_only=True)
        self.state = out.state
        # the choice is made on the CPU: the same number means the same token on every device
        self.logits_bv = widen(out.logits[:, 0, : self.size].cpu())

    def _read_again(self) -> None:
        self.state = self.model.initial_state(self.text_bt.shape[0], self.state.memory)
        self._read(self.text_bt[:, -self.span :])


def generate_text(
    model: Model,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    tokens: int,
    *,
    sampling: Sampling = PLAIN,
    seed: int = 0,
    stop: Sequence[str] = (),
    use_state: bool = True,
    weights: Weights = "float32",
    on_text: Callable[[int, str], None] | None = None,
) -> list[str]:
    """What the model writes after each prompt, up to the first stop string and without it.

    `on_text` is told a prompt's place and the next piece of its text as soon as that is
    certain: neither half a character nor what may become a stop string. An empty prompt
    starts from a line end.
    """
    ids = [tokenizer.encode(prompt) or tokenizer.encode("\n") or [0] for prompt in prompts]
    streams = [TextStream(tokenizer, prompt, stop) for prompt in ids]
    texts = [""] * len(prompts)

    def say(place: int, piece: str) -> None:
        texts[place] += piece
        if piece and on_text is not None:
            on_text(place, piece)

    def hear(place: int, written: list[int]) -> bool:
        say(place, streams[place].feed(written[-1]))
        return streams[place].stopped

    generate(
        model,
        ids,
        tokens,
        sampling=sampling,
        seed=seed,
        stop=hear,
        use_state=use_state,
        size=tokenizer.size,
        weights=weights,
    )
    for place, stream in enumerate(streams):
        say(place, stream.finish())
    return texts


HALF = "\ufffd"
"""What a decoder writes for bytes that make no character, or none yet."""


class TextStream:
    """Tokens in, text out as soon as it is certain."""

    def __init__(self, tokenizer: Tokenizer, before: Sequence[int], stop: Sequence[str]) -> None:
        if not all(stop):
            raise InputError("a stop string is empty, so nothing would be written; leave it out")
        self.tokenizer, self.stop = tokenizer, tuple(stop)
        self.stopped = False
        # A token's text may depend on the one before it (a space, a line end), hence the overlap.
        self.ids = list(before[-OVERLAP:])
        self.known = tokenizer.decode(self.ids)
        self.told = 0
        """Characters after the known text that were handed on already."""
        self.held = ""
        """Text that may be the beginning of a stop string."""

    def feed(self, token: int) -> str:
        """The text that has become certain with this token."""
        self.ids.append(token)
        text = self.tokenizer.decode(self.ids)[len(self.known) :]
        certain = text.removesuffix(HALF)
        piece, self.told = certain[self.told :], max(self.told, len(certain))
        if not text.endswith(HALF):
            self.ids = self.ids[-OVERLAP:]
            self.known, self.told = self.tokenizer.decode(self.ids), 0
        return self._pass(piece)

    def finish(self) -> str:
        """What was held back, once nothing more comes; half a character is left out."""
        rest, self.held = self.held, ""
        return rest

    def _pass(self, piece: str) -> str:
        """Hand text on up to where a stop string is, or may be about to come."""
        text = self.held + piece
        ends = [(text.find(s) + len(s), text.find(s)) for s in self.stop if s in text]
        if ends:
            # whichever is complete first, so that it matters not how the text came in pieces
            self.stopped, self.held = True, ""
            return text[: min(ends)[1]]
        keep = max(
            (n for s in self.stop for n in range(1, len(s)) if text.endswith(s[:n])), default=0
        )
        self.held = text[len(text) - keep :]
        return text[: len(text) - keep]


OVERLAP = 8
"""Tokens that are decoded again with those that follow."""
