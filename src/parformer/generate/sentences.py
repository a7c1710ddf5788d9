"""How are many sentences translated, and texts rather than tokens?

Those of about one length together, so that little is padding; the answers come in the order of
the questions.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from parformer.errors import InputError
from parformer.fields import need_at_least
from parformer.generate.translating import translate
from parformer.model import Model
from parformer.train.allocator import keep_memory

if TYPE_CHECKING:
    from parformer.data.tokenizers import Tokenizer

TOGETHER = 32
"""Sentences that are translated at once."""


@dataclass(frozen=True, slots=True)
class Option:
    """A text for a source, and what the search scored it by."""

    tokens: list[int]
    """Without start and end."""
    score: float


def translate_all(model: Model, sources: Sequence[Sequence[int]], **search: Any) -> list[list[int]]:
    """The best text for each source, as tokens without start and end; `search` as for `options`."""
    return [found[0].tokens for found in options(model, sources, **search)]


def options(
    model: Model,
    sources: Sequence[Sequence[int]],
    *,
    n_best: int = 1,
    prefix: Sequence[Sequence[int]] = (),
    batch: int = TOGETHER,
    progress: Callable[[float], None] | None = None,
    **search: Any,
) -> list[list[Option]]:
    """The `n_best` texts for each source, best first; `search` as in `translate`.

    There are fewer where no more could be found. The model's configuration says which token ends a
    source.
    """
    config = model.config
    if config.end < 0 or config.pad < 0:
        raise InputError(
            f"the model says neither how texts end nor what stands for no token (end {config.end}, "
            f"pad {config.pad}); it was not trained by the task 'translate'"
        )
    need_at_least("n_best", n_best, 1)
    keep_memory()
    order = sorted(range(len(sources)), key=lambda n: len(sources[n]))
    found: list[list[Option]] = [[] for _ in sources]
    device = next(model.parameters()).device
    for first in range(0, len(order), batch):
        numbers = order[first : first + batch]
        width = max(len(sources[n]) for n in numbers) + 1
        rows = [[*sources[n], config.end] for n in numbers]
        table = [row + [config.pad] * (width - len(row)) for row in rows]
        begun = [prefix[n] for n in numbers] if prefix else []
        told = search | {"n_best": n_best, "prefix": begun}
        told.setdefault("max_len", longest(model, width, begun, search.get("min_len") or 0))
        texts = translate(model, torch.tensor(table, device=device), **told)
        for row, number in enumerate(numbers):
            scores = enumerate(texts.scores[row].tolist())
            every = [Option(texts.plain(row, k), score) for k, score in scores]
            found[number] = [every[0], *(one for one in every[1:] if math.isfinite(one.score))]
        if progress is not None:
            progress((first + len(numbers)) / len(order))
    return found


def longest(model: Model, width: int, prefix: Sequence[Sequence[int]], least: int) -> int:
    """Translations are not much longer than twice their sources, unless they have to be."""
    begun = max(map(len, prefix), default=0)
    limit = max(2 * width + 10 + begun, least)
    return min(limit, model.config.max_len - 1) if model.config.numbered else limit


def as_trained(sources: Sequence[str], *, lower: bool, words: int) -> list[str]:
    """Sources as a model knows them: in small letters, and no longer than it was to read.

    >>> as_trained(["Ein  Hund läuft"], lower=True, words=2)
    ['ein hund']
    """
    cut = [" ".join(source.split()[: words or None]) for source in sources]
    return [source.lower() for source in cut] if lower else cut


def translate_text(
    model: Model, tokenizer: Tokenizer, sources: Sequence[str], **search: Any
) -> list[str]:
    """The best translation of each text; with `cut` of as much as the model has places for."""
    found = text_options(model, tokenizer, sources, **search)
    return [texts[0].text for texts in found]


@dataclass(frozen=True, slots=True)
class Said:
    """An option in words."""

    text: str
    score: float


def text_options(
    model: Model,
    tokenizer: Tokenizer,
    sources: Sequence[str],
    *,
    prefix: Sequence[str] = (),
    cut: bool = False,
    **search: Any,
) -> list[list[Said]]:
    """The best translations of each text, each of which begins with its `prefix`."""
    for number, source in enumerate(sources, 1):
        if not source.strip():
            raise InputError(f"source {number} is empty; give it words, or leave it out")
    if prefix and len(prefix) != len(sources):
        raise InputError(
            f"there are {len(prefix)} prefixes for {len(sources)} sources; give one for all of "
            "them, or one for each"
        )
    tokens = [tokenizer.source.encode(" ".join(source.split())) for source in sources]
    limit = model.config.max_len - 1 if model.config.numbered else sys.maxsize
    if cut:
        tokens = [row[:limit] for row in tokens]
    for number, row in enumerate(tokens, 1):
        if len(row) > limit:
            raise InputError(
                f"source {number} has {len(row):,} tokens, and the model places for {limit:,}; cut "
                "it into sentences, or train with a larger model.max_len"
            )
    begun = [tokenizer.target.encode(" ".join(text.split())) for text in prefix]
    found = options(model, tokens, prefix=begun, **search)
    decode = tokenizer.target.decode
    return [[Said(decode(one.tokens), one.score) for one in texts] for texts in found]
