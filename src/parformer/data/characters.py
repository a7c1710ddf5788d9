"""Which token is each byte, and which each character?

Characters are ordered as Transformer-XL orders text8's: by falling frequency over all
splits. Unlike its preparation of enwik8, which drops the line ends and so has 204 symbols,
nothing is left out here.

>>> Bytes().encode("né")
[110, 195, 169]
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from parformer.data.text import place, read_utf8, to_utf8, watched
from parformer.data.tokenizer import Encoded, Settings, Tokenizer, cutoffs_for, need_utf8, take
from parformer.errors import CorpusError, InputError
from parformer.events import Preparing
from parformer.store.files import Json

if TYPE_CHECKING:
    from parformer.data.corpora import Corpus

CODE_POINTS = 0x110000


class Bytes(Tokenizer):
    """All 256 bytes; takes text in any encoding."""

    kind = "byte"
    made_of = "bytes"

    @property
    def size(self) -> int:
        return 256

    def encode(self, text: str) -> list[int]:
        return list(to_utf8(text))

    def encode_chunks(self, chunks: Iterable[bytes], where: str = "the text") -> Encoded:
        for chunk in chunks:
            yield np.frombuffer(chunk, np.uint8)

    def decode(self, tokens: Iterable[int]) -> str:
        return bytes(self.numbers(tokens)).decode("utf-8", "replace")

    @classmethod
    def train(cls, corpus: Corpus, wanted: Settings, progress: Preparing | None) -> Self:
        return cls()

    @classmethod
    def from_dict(cls, values: Json) -> Self:
        take(values)
        return cls()

    def to_dict(self) -> Json:
        return {}


class UsedBytes(Tokenizer):
    """Only the bytes that occur somewhere in a corpus, in ascending order; 205 for enwik8."""

    kind = "used-bytes"
    made_of = "bytes"

    def __init__(self, used: bytes) -> None:
        self.used = used
        self._table = np.full(256, -1, np.int16)
        self._table[list(used)] = np.arange(len(used))

    @property
    def size(self) -> int:
        return len(self.used)

    def encode(self, text: str) -> list[int]:
        return [int(t) for part in self.encode_chunks([to_utf8(text)]) for t in part]

    def encode_chunks(self, chunks: Iterable[bytes], where: str = "the text") -> Encoded:
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
    def train(cls, corpus: Corpus, wanted: Settings, progress: Preparing | None) -> Self:
        seen = np.zeros(256, bool)
        for split in corpus.splits:
            for chunk in watched(corpus, split, "looking for bytes", progress):
                seen[np.frombuffer(chunk, np.uint8)] = True
        if not seen.any():
            raise CorpusError(f"{corpus.name!r} is empty; there are no bytes to number")
        return cls(bytes(np.flatnonzero(seen).tolist()))

    @classmethod
    def from_dict(cls, values: Json) -> Self:
        (used,) = take(values, bytes=list)
        if not all(type(byte) is int and 0 <= byte < 256 for byte in used):
            raise ValueError("its bytes are not all numbers from 0 to 255")
        if not used or used != sorted(set(used)):
            raise ValueError("its bytes do not ascend")
        return cls(bytes(used))

    def to_dict(self) -> Json:
        return {"bytes": list(self.used)}


class Characters(Tokenizer):
    """Unicode characters, the most frequent first, and perhaps an `<unk>` for the rest."""

    kind = "character"
    made_of = "characters"

    def __init__(self, characters: str, *, unknown: bool) -> None:
        self.characters = characters
        self.unknown = unknown
        table = np.full(CODE_POINTS, len(characters) if unknown else -1, np.int32)
        table[code_points(characters)] = np.arange(len(characters), dtype=np.int32)
        self._table = table

    @property
    def size(self) -> int:
        return len(self.characters) + self.unknown

    def number(self, token: str) -> int | None:
        return len(self.characters) if self.unknown and token == "<unk>" else None

    @property
    def cutoffs(self) -> tuple[int, ...]:
        return cutoffs_for(self.size)

    def encode(self, text: str) -> list[int]:
        to_utf8(text)
        return [int(token) for token in self._encode(text, "the text", 0)]

    def encode_chunks(self, chunks: Iterable[bytes], where: str = "the text") -> Encoded:
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
    def train(cls, corpus: Corpus, wanted: Settings, progress: Preparing | None) -> Self:
        counts = np.zeros(CODE_POINTS, np.int64)
        for split in corpus.splits:
            chunks = watched(corpus, split, "counting characters", progress)
            for text in read_utf8(chunks, place(corpus, split)):
                times = np.bincount(code_points(text))
                counts[: len(times)] += times
        found = np.flatnonzero(counts >= max(wanted.min_count, 1))
        # stable: characters that are equally frequent stay in the order of their code points
        ranked = found[np.argsort(-counts[found], kind="stable")]
        unknown = wanted.vocab_size > 0 or wanted.min_count > 1
        if wanted.vocab_size:
            ranked = ranked[: wanted.vocab_size - 1]
        if not len(ranked):
            raise CorpusError(f"{corpus.name!r} has no characters to number; lower min_count")
        return cls("".join(map(chr, ranked.tolist())), unknown=unknown)

    @classmethod
    def from_dict(cls, values: Json) -> Self:
        characters, unknown = take(values, characters=str, unknown=bool)
        if not characters or len(set(characters)) != len(characters):
            raise ValueError("its characters are none, or one comes twice")
        need_utf8(characters)
        return cls(characters, unknown=unknown)

    def to_dict(self) -> Json:
        return {"characters": self.characters, "unknown": self.unknown}


def code_points(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le"), "<u4")
