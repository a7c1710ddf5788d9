"""Which token is each byte, and which each character?

The common shape of all tokenizers, and those whose tokens are as small as text gets.
Characters are ordered as Transformer-XL orders text8's: by falling frequency over all
splits. Unlike its preparation of enwik8, which drops the line ends and so has 204 symbols,
nothing is left out here.

>>> Bytes().encode("né")
[110, 195, 169]
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from parformer.data.text import Progress, place, read_utf8, to_utf8, watched
from parformer.errors import CorpusError, InputError

if TYPE_CHECKING:
    from parformer.data.corpora import Corpus

FORMAT = "parformer-tokenizer-1"
CODE_POINTS = 0x110000
ADAPTIVE = ((25_000, 19_997), (50_000, 39_997), (200_000, 199_997))
"""From how many words on a cutoff is worth its cluster; all three are NVIDIA's for WikiText-103."""


class Tokenizer(ABC):
    """Text to tokens and back; two are equal if they are written alike."""

    kind: ClassVar[str]
    """Its name on the command line and in `tokenizer.json`."""

    @property
    @abstractmethod
    def size(self) -> int:
        """How many tokens there are; they are numbered from 0."""

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """A text as tokens, nothing added at its end."""

    @abstractmethod
    def encode_chunks(
        self, chunks: Iterable[bytes], where: str = "the text"
    ) -> Iterator[NDArray[Any]]:
        """A stream as tokens; where its chunks are cut, even inside a character, has no effect."""

    @abstractmethod
    def decode(self, tokens: Iterable[int]) -> str:
        """Tokens as text; bytes that are no UTF-8 become U+FFFD."""

    @classmethod
    @abstractmethod
    def train(
        cls, corpus: Corpus, *, vocab_size: int, min_count: int, progress: Progress | None
    ) -> Self:
        """The tokenizer of a corpus."""

    @classmethod
    @abstractmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Read `to_dict`'s answer back; a ValueError says what is wrong with it."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """All that this tokenizer was taught."""

    @property
    def cutoffs(self) -> tuple[int, ...]:
        """Where an adaptive vocabulary would be cut; none unless common tokens come first."""
        return ()

    @property
    def dtype(self) -> np.dtype[Any]:
        """The smallest type that all tokens fit into."""
        return np.dtype("u1" if self.size <= 2**8 else "<u2" if self.size <= 2**16 else "<i4")

    def to_json(self) -> str:
        values = {"format": FORMAT, "kind": self.kind, **self.to_dict()}
        return json.dumps(values, ensure_ascii=False)

    def numbers(self, tokens: Iterable[int]) -> list[int]:
        """The tokens as plain numbers, once all are known to be in the vocabulary."""
        numbers = [int(token) for token in tokens]
        for number in numbers:
            if not 0 <= number < self.size:
                raise InputError(f"token {number} is outside the vocabulary of {self.size:,}")
        return numbers

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tokenizer) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash(self.to_json())

    def __repr__(self) -> str:
        return f"<{self.kind} tokenizer of {self.size:,}>"


class Bytes(Tokenizer):
    """All 256 bytes; takes any file."""

    kind = "byte"

    @property
    def size(self) -> int:
        return 256

    def encode(self, text: str) -> list[int]:
        return list(to_utf8(text))

    def encode_chunks(
        self, chunks: Iterable[bytes], where: str = "the text"
    ) -> Iterator[NDArray[Any]]:
        for chunk in chunks:
            yield np.frombuffer(chunk, np.uint8)

    def decode(self, tokens: Iterable[int]) -> str:
        return bytes(self.numbers(tokens)).decode("utf-8", "replace")

    @classmethod
    def train(
        cls, corpus: Corpus, *, vocab_size: int, min_count: int, progress: Progress | None
    ) -> Self:
        return cls()

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        take(values)
        return cls()

    def to_dict(self) -> dict[str, Any]:
        return {}


class UsedBytes(Tokenizer):
    """Only the bytes that occur somewhere in a corpus, in ascending order; 205 for enwik8."""

    kind = "used-bytes"

    def __init__(self, used: bytes) -> None:
        self.used = used
        self._table = np.full(256, -1, np.int16)
        self._table[list(used)] = np.arange(len(used))

    @property
    def size(self) -> int:
        return len(self.used)

    def encode(self, text: str) -> list[int]:
        return [int(t) for part in self.encode_chunks([to_utf8(text)]) for t in part]

    def encode_chunks(
        self, chunks: Iterable[bytes], where: str = "the text"
    ) -> Iterator[NDArray[Any]]:
        before = 0
        for chunk in chunks:
            tokens = self._table[np.frombuffer(chunk, np.uint8)]
            if len(tokens) and tokens.min() < 0:
                at = int(np.argmin(tokens))
                raise CorpusError(
                    f"byte 0x{chunk[at]:02x} at offset {before + at:,} of {where} is not among "
                    f"the {self.size} of this vocabulary; the tokenizer 'byte' takes every one"
                )
            before += len(chunk)
            yield tokens.astype(self.dtype)

    def decode(self, tokens: Iterable[int]) -> str:
        return bytes(self.used[t] for t in self.numbers(tokens)).decode("utf-8", "replace")

    @classmethod
    def train(
        cls, corpus: Corpus, *, vocab_size: int, min_count: int, progress: Progress | None
    ) -> Self:
        seen = np.zeros(256, bool)
        for split in corpus.splits:
            for chunk in watched(corpus, split, "looking for bytes", progress):
                seen[np.frombuffer(chunk, np.uint8)] = True
        if not seen.any():
            raise CorpusError(f"{corpus.name!r} is empty; there are no bytes to number")
        return cls(bytes(np.flatnonzero(seen).tolist()))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        (used,) = take(values, bytes=list)
        if not all(type(byte) is int and 0 <= byte < 256 for byte in used):
            raise ValueError("its bytes are not all numbers from 0 to 255")
        if not used or used != sorted(set(used)):
            raise ValueError("its bytes do not ascend")
        return cls(bytes(used))

    def to_dict(self) -> dict[str, Any]:
        return {"bytes": list(self.used)}


class Characters(Tokenizer):
    """Unicode characters, the most frequent first, and perhaps an `<unk>` for the rest."""

    kind = "character"

    def __init__(self, characters: str, *, unknown: bool) -> None:
        self.characters = characters
        self.unknown = unknown
        table = np.full(CODE_POINTS, len(characters) if unknown else -1, np.int32)
        table[code_points(characters)] = np.arange(len(characters), dtype=np.int32)
        self._table = table

    @property
    def size(self) -> int:
        return len(self.characters) + self.unknown

    @property
    def cutoffs(self) -> tuple[int, ...]:
        return cutoffs_for(self.size)

    def encode(self, text: str) -> list[int]:
        to_utf8(text)
        return [int(token) for token in self._encode(text, "the text", 0)]

    def encode_chunks(
        self, chunks: Iterable[bytes], where: str = "the text"
    ) -> Iterator[NDArray[Any]]:
        before = 0
        for text in read_utf8(chunks, where):
            yield self._encode(text, where, before)
            before += len(text)

    def _encode(self, text: str, where: str, before: int) -> NDArray[Any]:
        tokens = self._table[code_points(text)]
        if len(tokens) and tokens.min() < 0:
            at = int(np.argmin(tokens))
            raise InputError(
                f"character {text[at]!r} (U+{ord(text[at]):04X}, number {before + at:,} of "
                f"{where}) is not among the {self.size} of this vocabulary; leave it out, or use "
                "the tokenizer 'byte', or give a vocab_size to have an <unk>"
            )
        return tokens.astype(self.dtype)

    def decode(self, tokens: Iterable[int]) -> str:
        letters = self.characters + "\ufffd" * self.unknown
        return "".join(letters[t] for t in self.numbers(tokens))

    @classmethod
    def train(
        cls, corpus: Corpus, *, vocab_size: int, min_count: int, progress: Progress | None
    ) -> Self:
        counts = np.zeros(CODE_POINTS, np.int64)
        for split in corpus.splits:
            chunks = watched(corpus, split, "counting characters", progress)
            for text in read_utf8(chunks, place(corpus, split)):
                times = np.bincount(code_points(text))
                counts[: len(times)] += times
        found = np.flatnonzero(counts >= max(min_count, 1))
        # stable: characters that are equally frequent stay in the order of their code points
        ranked = found[np.argsort(-counts[found], kind="stable")]
        unknown = vocab_size > 0 or min_count > 1
        if vocab_size:
            ranked = ranked[: vocab_size - 1]
        if not len(ranked):
            raise CorpusError(f"{corpus.name!r} has no characters to number; lower min_count")
        return cls("".join(map(chr, ranked.tolist())), unknown=unknown)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        characters, unknown = take(values, characters=str, unknown=bool)
        if not characters or len(set(characters)) != len(characters):
            raise ValueError("its characters are none, or one comes twice")
        need_utf8(characters)
        return cls(characters, unknown=unknown)

    def to_dict(self) -> dict[str, Any]:
        return {"characters": self.characters, "unknown": self.unknown}


def cutoffs_for(size: int) -> tuple[int, ...]:
    """Cutoffs for a vocabulary in order of falling frequency; none below 25,000 tokens.

    >>> cutoffs_for(267_735), cutoffs_for(33_278), cutoffs_for(10_000)
    ((19997, 39997, 199997), (19997,), ())
    """
    return tuple(cutoff for least, cutoff in ADAPTIVE if size > least)


def code_points(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le"), "<u4")


def take(values: Mapping[str, Any], **types: type) -> list[Any]:
    """The values of exactly these names and types."""
    if set(values) != set(types):
        raise ValueError(f"it must have {', '.join(sorted(types)) or 'nothing more'}")
    for name, kind in types.items():
        if type(values[name]) is not kind:
            raise ValueError(f"its {name} must be a {kind.__name__}")
    return [values[name] for name in types]


def need_utf8(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError("it has half of a surrogate pair, which is no text") from None
