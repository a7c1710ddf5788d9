"""Where are a corpus's tokens, so that nothing is tokenized twice?

In a folder of the cache whose name is decided by the contents of the corpus and by the
tokenizer, with one file of plain numbers per split. Tokenizers that were trained here are
kept in the same way, so that the tokens of a run are found again by its `tokenizer.json`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from parformer.data.text import Count, place, watched
from parformer.data.tokenizer import Settings
from parformer.data.tokenizers import (
    TOKENIZER,
    Tokenizer,
    is_file,
    load_tokenizer,
    settings,
    train_tokenizer,
)
from parformer.errors import ConfigError, CorpusError, FolderError
from parformer.events import Preparing
from parformer.store.cache import Facts, digest, keep

if TYPE_CHECKING:
    from parformer.data.corpora import Corpus

FORMAT = "parformer-tokens-1"
BUFFER = 2**20


@dataclass(frozen=True, eq=False)
class Split:
    """One part of a corpus as tokens, with the measure of the text it came from."""

    tokens: NDArray[Any]
    """Mapped from the file and read-only; uint8, uint16 or int32."""
    bytes: int
    characters: int
    words: int
    """What stands between blanks, and one per line, as WikiText's words are counted."""

    def measured(self) -> dict[str, float]:
        """Counts and their ratios, as JSON and tables have them."""
        tokens = len(self.tokens)
        return {
            "bytes": self.bytes,
            "characters": self.characters,
            "words": self.words,
            "tokens": tokens,
            "bytes_per_token": self.bytes / tokens,
            "tokens_per_word": tokens / self.words,
        }


@dataclass(frozen=True, eq=False)
class Prepared:
    """A corpus as tokens."""

    corpus: str
    identity: str
    """SHA-256 of the corpus's contents."""
    tokenizer: Tokenizer
    splits: Mapping[str, Split]
    folder: Path


def prepare(
    corpus: Corpus,
    kind: str,
    *,
    vocab_size: int = 0,
    min_count: int = 0,
    sides: int = 0,
    tokenizer: Tokenizer | None = None,
    cache: Path,
    progress: Preparing | None = None,
) -> Prepared:
    """The tokens of a corpus, from the folder `tokens` of the cache if they are there.

    With `tokenizer`, that one encodes, as when a model is tried on another corpus or a run
    goes on; otherwise one of this kind and size is trained on the corpus first, for pairs with
    so many vocabularies as there are `sides`.
    """
    if tokenizer is not None and not is_file(kind) and kind not in tokenizer.kinds:
        raise ConfigError(f"a {tokenizer.kind} tokenizer was given where {kind!r} was asked for")
    identity, cache = corpus.identity(), cache / "tokens"
    if tokenizer is None:
        chosen = settings(kind, vocab_size=vocab_size, min_count=min_count, sides=sides)
        tokenizer = _trained(corpus, identity, chosen, cache, progress)
    key = digest([FORMAT, identity, list(corpus.splits), tokenizer.to_json()])
    folder = cache / f"{tokenizer.kind}-{key[:20]}"
    known: Tokenizer = tokenizer

    def read(facts: Facts) -> Mapping[str, Split]:
        splits = {name: _map(folder, name, facts[name], known) for name in corpus.splits}
        return MappingProxyType(splits)

    splits = keep(
        folder,
        lambda beside: {
            name: _write(beside, corpus, name, known, progress) for name in corpus.splits
        },
        read,
        needed=_size(corpus),
        progress=progress,
    )
    return Prepared(corpus.name, identity, known, splits, folder)


def _trained(
    corpus: Corpus, identity: str, chosen: Settings, cache: Path, progress: Preparing | None
) -> Tokenizer:
    """The corpus's own tokenizer, from the cache if it is there."""
    told = chosen.told()
    if chosen.kind == "byte" or is_file(chosen.kind):
        return train_tokenizer(**told, corpus=corpus)
    folder = cache / f"{chosen.kind}-tokenizer-{digest([FORMAT, identity, told])[:20]}"

    def make(beside: Path) -> Facts:
        made = train_tokenizer(**told, corpus=corpus, progress=progress)
        (beside / TOKENIZER).write_text(made.to_json(), "utf-8")
        return {"corpus": corpus.name, "identity": identity, **told}

    def read(facts: Facts) -> Tokenizer:
        found = load_tokenizer(folder)
        if found is None:
            raise FolderError(f"{TOKENIZER} is missing")
        return found

    return keep(folder, make, read, needed=_size(corpus), progress=progress)


def _write(
    beside: Path, corpus: Corpus, split: str, tokenizer: Tokenizer, progress: Preparing | None
) -> Facts:
    """One split's file, and the measure of its text."""
    count, total = Count(), 0
    chunks = count.watch(watched(corpus, split, "tokenizing", progress))
    with (beside / _file_of(split)).open("wb", buffering=BUFFER) as stream:
        for tokens in tokenizer.encode_chunks(chunks, place(corpus, split)):
            stream.write(tokens.data)
            total += len(tokens)
    if not total:
        raise CorpusError(
            f"{place(corpus, split)} has no tokens; put text there, or leave the split out"
        )
    return {
        "tokens": total,
        "bytes": count.bytes,
        "characters": count.characters,
        "words": count.words,
    }


def _map(folder: Path, split: str, measure: Mapping[str, int], tokenizer: Tokenizer) -> Split:
    """One split's file, mapped into memory for reading alone."""
    mapped = np.memmap(folder / _file_of(split), tokenizer.dtype, "r")
    counts = {name: measure[name] for name in ("bytes", "characters", "words")}
    if len(mapped) != measure["tokens"]:
        raise ValueError(f"{split} has {len(mapped):,} tokens, not {measure['tokens']:,}")
    return Split(tokens=mapped.view(np.ndarray), **counts)


def _size(corpus: Corpus) -> int:
    """Bytes of the text; its tokens and its vocabulary seldom take more."""
    return sum(corpus.size(split) or 0 for split in corpus.splits)


def _file_of(split: str) -> str:
    """A name that stays inside its folder, whatever the split is called."""
    return f"{re.sub(r'[^A-Za-z0-9_-]+', '-', split)}.tokens"
