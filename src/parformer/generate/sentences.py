"""How are many sentences translated, and texts rather than tokens?

Those of about one length together, so that little is padding; the answers come in the order of
the questions.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from parformer.errors import InputError
from parformer.generate.translating import translate
from parformer.model import Model
from parformer.train.allocator import keep_memory

if TYPE_CHECKING:
    from parformer.data.tokenizers import Tokenizer

TOGETHER = 32
"""Sentences that are translated at once."""


def translate_all(
    model: Model,
    sources: Sequence[Sequence[int]],
    *,
    batch: int = TOGETHER,
    progress: Callable[[float], None] | None = None,
    **search: Any,
) -> list[list[int]]:
    """The best text for each source, as tokens without start and end; `search` as in `translate`.

    The model's configuration says which token ends a source.
    """
    config = model.config
    if config.end < 0 or config.pad < 0:
        raise InputError(
            f"the model says neither how texts end nor what stands for no token (end {config.end}, "
            f"pad {config.pad}); it was not trained by the task 'translate'"
        )
    keep_memory()
    order = sorted(range(len(sources)), key=lambda n: len(sources[n]))
    found: list[list[int]] = [[] for _ in sources]
    device = next(model.parameters()).device
    for first in range(0, len(order), batch):
        numbers = order[first : first + batch]
        width = max(len(sources[n]) for n in numbers) + 1
        rows = [[*sources[n], config.end] for n in numbers]
        table = [row + [config.pad] * (width - len(row)) for row in rows]
        told = longest(model, width) | search
        texts = translate(model, torch.tensor(table, device=device), n_best=1, **told)
        for row, number in enumerate(numbers):
            found[number] = texts.plain(row, 0)
        if progress is not None:
            progress((first + len(numbers)) / len(order))
    return found


def longest(model: Model, width: int) -> dict[str, Any]:
    """Translations are not much longer than twice their sources."""
    limit = 2 * width + 10
    return {"max_len": min(limit, model.config.max_len - 1) if model.config.numbered else limit}


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
    for number, source in enumerate(sources, 1):
        if not source.strip():
            raise InputError(f"source {number} is empty; give it words, or leave it out")
    tokens = [tokenizer.source.encode(" ".join(source.split())) for source in sources]
    limit = model.config.max_len - 1 if model.config.numbered else sys.maxsize
    if search.pop("cut", False):
        tokens = [row[:limit] for row in tokens]
    for number, row in enumerate(tokens, 1):
        if len(row) > limit:
            raise InputError(
                f"source {number} has {len(row):,} tokens, and the model places for {limit:,}; cut "
                "it into sentences, or train with a larger model.max_len"
            )
    return [tokenizer.target.decode(text) for text in translate_all(model, tokens, **search)]
