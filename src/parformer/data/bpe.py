"""Which token is each frequent piece of a word?

Byte pair encoding over bytes, so that no text is unknown and none is changed on its way
there and back. It is learnt here by Hugging Face's `tokenizers` from the train split; nothing
is downloaded. The result for a text does not depend on how it is cut: a cut before a blank
that follows a word is one that the encoding makes too.
"""

from __future__ import annotations

import json
from typing import Any, Self

from parformer.data.library import Learned
from parformer.data.tokenizer import take
from parformer.errors import need
from parformer.store.files import Json


class Bpe(Learned):
    """Byte pair encoding, learnt from a corpus."""

    kind = "bpe"

    @classmethod
    def learn(cls, tokenizers: Any, read: Any, vocab_size: int, min_count: int) -> Any:
        trainer = tokenizers.trainers.BpeTrainer(
            vocab_size=vocab_size,
            min_frequency=min_count,
            initial_alphabet=sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        )
        library = untrained(tokenizers)
        library.train_from_iterator(read(), trainer)
        return library

    @classmethod
    def from_dict(cls, values: Json) -> Self:
        (given,) = take(values, library=dict)
        tokenizers = need("tokenizers", extra="bpe")
        check_library(given, json.loads(untrained(tokenizers).to_str()), tokenizers)
        vocab, merges = given["model"]["vocab"], given["model"]["merges"]
        try:
            return cls(untrained(tokenizers, vocab, [(left, right) for left, right in merges]))
        except Exception as error:  # the library raises nothing narrower
            raise ValueError(f"the tokenizers library refuses it: {error}") from None


def untrained(tokenizers: Any, *model: Any) -> Any:
    """Byte pair encoding as it is set up here: bytes are letters, and pairs stay inside words."""
    library = tokenizers.Tokenizer(tokenizers.models.BPE(*model))
    library.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = tokenizers.decoders.ByteLevel()
    return library


def check_library(given: Json, empty: Json, tokenizers: Any) -> None:
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
