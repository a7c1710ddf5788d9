"""Which token is each frequent piece of a word?

Byte pair encoding over bytes, so that no text is unknown and none is changed on its way
there and back. It is learnt here by Hugging Face's `tokenizers` from the train split; nothing
is downloaded. The result for a text does not depend on how it is cut: a cut before a blank
that follows a word is one that the encoding makes too.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from parformer.data.text import passages, place, read_utf8, to_utf8, watched
from parformer.data.tokenizer import Tokenizer, take
from parformer.errors import need
from parformer.events import Preparing

if TYPE_CHECKING:
    from parformer.data.corpora import Corpus

VOCAB_SIZE = 8192
"""Unless another size is asked for."""
BATCH = 16
"""Passages that are encoded at once, on as many cores as there are."""

_HOME = os.getpid()
_SWITCH, _OFF = "TOKENIZERS_PARALLELISM", "off"


class Bpe(Tokenizer):
    """Byte pair encoding, learnt from a corpus."""

    kind = "bpe"

    def __init__(self, library: Any) -> None:
        self._library = library

    @property
    def size(self) -> int:
        return int(self._library.get_vocab_size())

    def encode(self, text: str) -> list[int]:
        to_utf8(text)
        return [token for part in self._encode([text]) for token in part]

    def encode_chunks(
        self, chunks: Iterable[bytes], where: str = "the text"
    ) -> Iterator[NDArray[Any]]:
        for tokens in self._encode(read_utf8(chunks, where)):
            yield np.array(tokens, self.dtype)

    def _encode(self, texts: Iterable[str]) -> Iterator[list[int]]:
        cut = passages(texts)
        while batch := list(islice(cut, BATCH)):
            with many_threads():
                encoded = self._library.encode_batch_fast(batch)
            for part in encoded:
                yield part.ids

    def decode(self, tokens: Iterable[int]) -> str:
        return str(self._library.decode(self.numbers(tokens), skip_special_tokens=False))

    @classmethod
    def train(
        cls, corpus: Corpus, *, vocab_size: int, min_count: int, progress: Preparing | None
    ) -> Self:
        tokenizers = need("tokenizers", extra="bpe")
        split = "train" if "train" in corpus.splits else corpus.splits[0]
        trainer = tokenizers.trainers.BpeTrainer(
            vocab_size=vocab_size or VOCAB_SIZE,
            min_frequency=min_count or 2,
            initial_alphabet=sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        )
        chunks = watched(corpus, split, "learning pairs", progress)
        library = untrained(tokenizers)
        with many_threads():
            library.train_from_iterator(passages(read_utf8(chunks, place(corpus, split))), trainer)
        return cls(library)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        (given,) = take(values, library=dict)
        tokenizers = need("tokenizers", extra="bpe")
        check_library(given, json.loads(untrained(tokenizers).to_str()), tokenizers)
        vocab, merges = given["model"]["vocab"], given["model"]["merges"]
        try:
            return cls(untrained(tokenizers, vocab, [(left, right) for left, right in merges]))
        except Exception as error:  # the library raises nothing narrower
            raise ValueError(f"the tokenizers library refuses it: {error}") from None

    def to_dict(self) -> dict[str, Any]:
        return {"library": json.loads(self._library.to_str())}


def untrained(tokenizers: Any, *model: Any) -> Any:
    """Byte pair encoding as it is set up here: bytes are letters, and pairs stay inside words."""
    library = tokenizers.Tokenizer(tokenizers.models.BPE(*model))
    library.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = tokenizers.decoders.ByteLevel()
    return library


def check_library(given: dict[str, Any], empty: dict[str, Any], tokenizers: Any) -> None:
    """Refuse all but what `Bpe.train` can have written: the library would take much more."""
    model = given.get("model")
    if type(model) is not dict or type(model.get("vocab")) is not dict:
        raise ValueError("its library has no vocabulary")
    vocab, merges = model["vocab"], model.get("merges")
    expected = empty["model"] | {"vocab": vocab, "merges": merges}
    # Another version of the library may know more settings, as long as they are off.
    for found, ours in ((given, empty | {"model": model}), (model, expected)):
        if any(
            value != ours.get(name) and (name in ours or value) for name, value in found.items()
        ):
            raise ValueError("its library is set up otherwise than byte pair encoding is here")
    if not all(type(n) is int for n in vocab.values()):
        raise ValueError("its tokens are not all numbered")
    if sorted(vocab.values()) != list(range(len(vocab))):
        raise ValueError("its tokens are not numbered from 0 on, each once")
    letters = set(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    if not letters <= vocab.keys() or set("".join(vocab)) != letters:
        raise ValueError("its tokens do not cover all bytes, or are none of bytes")
    if type(merges) is not list or not all(
        type(pair) is list
        and len(pair) == 2
        and all(type(part) is str and part in vocab for part in pair)
        and "".join(pair) in vocab
        for pair in merges
    ):
        raise ValueError("its merges are not pairs of its tokens that make another")


@contextmanager
def many_threads() -> Iterator[None]:
    """Let the library use all cores here, without a word or a deadlock in forked processes.

    It warns in every process that is forked after its threads have run, unless the switch
    is set. A forked process has none of these threads and would wait for them forever, so
    there it stays with one. What the user has set the switch to is left alone.
    """
    before = os.environ.get(_SWITCH, _OFF)
    if before == _OFF and os.getpid() == _HOME:
        os.environ[_SWITCH] = "true"
    try:
        yield
    finally:
        os.environ[_SWITCH] = before
