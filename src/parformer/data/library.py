"""How are the tokenizers of Hugging Face's `tokenizers` read and learned?

`hf` is any `tokenizer.json` of theirs; `wordpiece` and `unigram` are learned here from the train
split, as BERT's and SentencePiece's were, with the special tokens first. Nothing is downloaded,
and the same text gives the same vocabulary: the library's own answer depends on the order of its
hash tables, so it is put in order here.
"""

from __future__ import annotations

import json
import os
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from parformer.data.text import passages, place, read_utf8, to_utf8, watched
from parformer.data.tokenizer import SPECIAL, Encoded, Settings, Tokenizer, take
from parformer.errors import ConfigError, need
from parformer.events import Preparing
from parformer.store.files import Json

if TYPE_CHECKING:
    from parformer.data.corpora import Corpus

VOCAB_SIZE = 8192
"""Unless another size is asked for."""
BATCH = 16
"""Passages that are encoded at once, on as many cores as there are."""
TOGETHER = 4096
"""Texts of their own that are encoded at once."""
OWN = tuple(f"<{name}>" for name in SPECIAL)
"""The special tokens of vocabularies that are learned here, numbered from 0."""
UNK = "<unk>"
BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))
"""Pieces that letters are spelled with which are in no other."""
STEP = 1e-4
"""How far apart the library puts the scores of letters that it has to keep."""
NEVER = -100.0
"""The score of a piece that no text is cut into."""

_HOME = os.getpid()
_SWITCH, _OFF = "TOKENIZERS_PARALLELISM", "off"


class Library(Tokenizer):
    """Any tokenizer of the library."""

    kind = "hf"

    def __init__(self, library: Any) -> None:
        self._library = library
        numbers = library.get_vocab(with_added_tokens=True).values()
        self._size = max(numbers, default=-1) + 1

    @property
    def size(self) -> int:
        return self._size

    def number(self, token: str) -> int | None:
        found: int | None = self._library.token_to_id(token)
        return found

    def encode(self, text: str) -> list[int]:
        to_utf8(text)
        return [token for part in self._encode([text]) for token in part]

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        for text in texts:
            to_utf8(text)
        found: list[list[int]] = []
        for start in range(0, len(texts), TOGETHER):
            with many_threads():
                some = list(texts[start : start + TOGETHER])
                encoded = self._library.encode_batch_fast(some, add_special_tokens=False)
            found += [part.ids for part in encoded]
        return found

    def names(self) -> dict[int, str]:
        return {n: name for name, n in self._library.get_vocab(with_added_tokens=True).items()}

    def pieces(self, text: str) -> list[tuple[int, int, int]]:
        to_utf8(text)
        part = self._library.encode(text, add_special_tokens=False)
        return [(token, *span) for token, span in zip(part.ids, part.offsets, strict=True)]

    def encode_chunks(self, chunks: Iterable[bytes], where: str = "the text") -> Encoded:
        for tokens in self._encode(read_utf8(chunks, where)):
            yield np.array(tokens, self.dtype)

    def _encode(self, texts: Iterable[str]) -> Iterator[list[int]]:
        cut = passages(texts)
        while batch := list(islice(cut, BATCH)):
            with many_threads():
                encoded = self._library.encode_batch_fast(batch, add_special_tokens=False)
            for part in encoded:
                yield part.ids

    def decode(self, tokens: Iterable[int]) -> str:
        return str(self._library.decode(self.numbers(tokens), skip_special_tokens=False))

    @classmethod
    def train(cls, corpus: Corpus, wanted: Settings, progress: Preparing | None) -> Self:
        raise ConfigError("a tokenizer of the kind 'hf' is read, not learned; name its .json file")

    @classmethod
    def from_dict(cls, values: Json) -> Self:
        (given,) = take(values, library=dict)
        return cls(read_library(json.dumps(given)))

    def to_dict(self) -> Json:
        return {"library": json.loads(self._library.to_str())}


def read_library(text: str) -> Any:
    """A tokenizer.json as the library reads it; it runs no code."""
    tokenizers = need("tokenizers", extra="bpe")
    try:
        library = tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # the library raises nothing narrower
        raise ValueError(f"the tokenizers library refuses it: {error}") from None
    # what was fitted to batches of somebody's model has no place in a stream
    library.no_padding()
    library.no_truncation()
    return library


class Learned(Library):
    """A vocabulary of pieces that is learned from the train split."""

    @classmethod
    def train(cls, corpus: Corpus, wanted: Settings, progress: Preparing | None) -> Self:
        tokenizers = need("tokenizers", extra="bpe")
        split = "train" if "train" in corpus.splits else corpus.splits[0]

        def read() -> Iterator[str]:
            chunks = watched(corpus, split, "learning pieces", progress)
            return passages(read_utf8(chunks, place(corpus, split)))

        most, least = wanted.vocab_size or VOCAB_SIZE, wanted.min_count or 2
        with many_threads():
            return cls(cls.learn(tokenizers, read, most, least))

    @classmethod
    @abstractmethod
    def learn(cls, tokenizers: Any, read: Any, vocab_size: int, min_count: int) -> Any:
        """A tokenizer of the library, from passages that `read` gives as often as it is asked."""

    @classmethod
    def from_dict(cls, values: Json) -> Self:
        found = super().from_dict(values)
        model = values["library"].get("model")
        if not isinstance(model, dict) or str(model.get("type")).lower() != cls.kind:
            raise ValueError(f"its model is no {cls.kind}")
        if [found.number(token) for token in OWN] != list(range(len(OWN))):
            raise ValueError("its special tokens are not the first ones")
        return found


class Wordpiece(Learned):
    """The longest known piece of a word first, the others marked with ## (BERT)."""

    kind = "wordpiece"

    @classmethod
    def learn(cls, tokenizers: Any, read: Any, vocab_size: int, min_count: int) -> Any:
        library = cls.empty(tokenizers, {})
        counts: Counter[str] = Counter()
        for passage in read():
            counts.update(library.normalizer.normalize_str(passage))
        seen = [letter for letter, _ in counts.most_common() if not letter.isspace()]
        letters = sorted(seen[: max((vocab_size - len(OWN)) // 4, 1)])
        # Numbered before the pairs are counted: of equal ones the lower numbers win.
        known = [*OWN, *letters, *(f"##{letter}" for letter in letters)]
        trainer = tokenizers.trainers.WordPieceTrainer(
            vocab_size=vocab_size,
            min_frequency=min_count,
            special_tokens=known,
            limit_alphabet=len(letters),
            initial_alphabet=letters,
            show_progress=False,
        )
        library.train_from_iterator(read(), trainer)
        return cls.empty(tokenizers, json.loads(library.to_str())["model"]["vocab"])

    @staticmethod
    def empty(tokenizers: Any, vocabulary: dict[str, int]) -> Any:
        library = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocabulary, unk_token=UNK))
        library.normalizer = tokenizers.normalizers.BertNormalizer(
            lowercase=False, strip_accents=False
        )
        library.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
        library.decoder = tokenizers.decoders.WordPiece()
        return library


class Unigram(Learned):
    """The likeliest way to cut a word into pieces (SentencePiece's unigram model)."""

    kind = "unigram"

    @classmethod
    def learn(cls, tokenizers: Any, read: Any, vocab_size: int, min_count: int) -> Any:
        library = cls.around(tokenizers, tokenizers.models.Unigram())
        trainer = tokenizers.trainers.UnigramTrainer(
            vocab_size=vocab_size - len(OWN) + 1,
            special_tokens=[UNK],
            unk_token=UNK,
            show_progress=False,
        )
        library.train_from_iterator(read(), trainer)
        vocabulary = [(token, NEVER) for token in OWN]
        vocabulary += in_order([pair for pair in pieces_of(library) if pair[0] != UNK])
        return cls.around(tokenizers, tokenizers.models.Unigram(vocabulary, OWN.index(UNK), False))

    @staticmethod
    def around(tokenizers: Any, model: Any) -> Any:
        library = tokenizers.Tokenizer(model)
        kinds = tokenizers.pre_tokenizers
        # what looks like a special token in a text is cut, so that it never becomes one
        cut = kinds.Split("<", behavior="isolated")
        library.pre_tokenizer = kinds.Sequence([kinds.Metaspace(), cut])
        library.decoder = tokenizers.decoders.Metaspace()
        return library

    def with_bytes(self) -> Self:
        """The same pieces, and bytes for letters that none of them has: no text is unknown."""
        tokenizers = need("tokenizers", extra="bpe")
        known = pieces_of(self._library)
        spelled = [*known[: len(OWN)], *((byte, NEVER) for byte in BYTES), *known[len(OWN) :]]
        model = tokenizers.models.Unigram(spelled, OWN.index(UNK), True)
        library = self.around(tokenizers, model)
        kinds = tokenizers.decoders
        blanks, first = kinds.Replace("▁", " "), kinds.Strip(" ", 1, 0)
        library.decoder = kinds.Sequence([blanks, kinds.ByteFallback(), kinds.Fuse(), first])
        return type(self)(library)


def in_order(pieces: list[tuple[str, float]]) -> list[tuple[str, float]]:
    """Pieces by falling score, without what luck decided about them.

    Threads add up in any order, which shows in the tenth digit. And letters that are no likely
    piece get the lowest score in turn, each a ten thousandth more than the one before.
    """
    letters = [score for piece, score in pieces if len(piece) == 1]
    low = min(letters, default=0.0)
    high = low + STEP * len(letters)
    same = [
        (piece, round(low if len(piece) == 1 and score < high else score, 6))
        for piece, score in pieces
    ]
    return sorted(same, key=lambda pair: (-pair[1], pair[0]))


def pieces_of(library: Any) -> list[tuple[str, float]]:
    return [(piece, score) for piece, score in json.loads(library.to_str())["model"]["vocab"]]


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
