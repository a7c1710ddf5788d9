"""Which token is each piece of a pair, where tab and line end are none of the vocabulary's own?

Lines are `source, tab, target`. Each side has a vocabulary of its own, or both share one; either
way numbers 0 to 2 mean the same on both sides: no token, the tab that a decoder starts with, and
the line end. What was learned is numbered after them.

>>> known = Sides((Characters("ab ", unknown=False), Characters("xyz ", unknown=False)))
>>> known.encode("ab\\tyx\\n"), known.decode([3, 4, 1, 4, 3, 2])
([3, 4, 1, 4, 3, 2], 'ab\\tyx\\n')
>>> known.source.encode("ba"), known.target.decode([5, 3])
([4, 3], 'zx')
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

import numpy as np

from parformer.data.bpe import Bpe
from parformer.data.characters import Bytes, Characters, UsedBytes
from parformer.data.library import BYTES, Library, Unigram, Wordpiece
from parformer.data.reading import Piece
from parformer.data.text import place, read_utf8
from parformer.data.tokenizer import Encoded, Settings, Tokenizer, take
from parformer.data.words import Words
from parformer.errors import ConfigError
from parformer.events import Preparing
from parformer.store.files import Json

if TYPE_CHECKING:
    from parformer.data.corpora import Corpus

PLAIN: dict[str, type[Tokenizer]] = {
    cls.kind: cls for cls in (Bytes, UsedBytes, Characters, Words, Bpe, Wordpiece, Unigram, Library)
}
"""The kinds of a single text."""
MARKED = ("bpe", "character", "byte", "used-bytes")
"""Those among them that have tokens of their own for tab and line end."""
PAIRED = (*MARKED, "unigram")
"""Those that give a text back as it was, so that references stay what they are."""
NONE, START, END = range(3)
"""What has the same number on both sides."""
MARKS = 3
SMALLEST = 32
"""Pieces of a unigram model beside its bytes and special tokens."""


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """The vocabulary of one side, numbered after the marks."""

    tokenizer: Tokenizer

    @property
    def size(self) -> int:
        return MARKS + self.tokenizer.size

    def encode(self, text: str) -> list[int]:
        return [MARKS + token for token in self.tokenizer.encode(text)]

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        return [[MARKS + token for token in row] for row in self.tokenizer.encode_all(texts)]

    def decode(self, tokens: Iterable[int]) -> str:
        return self.tokenizer.decode(token - MARKS for token in tokens if token >= MARKS)


class Sides(Tokenizer):
    """The vocabularies of pairs: one for each side, or one that both share."""

    kind = "sides"

    def __init__(self, tokenizers: Sequence[Tokenizer]) -> None:
        self.tokenizers = tuple(tokenizers)
        self._sides = tuple(map(Side, self.tokenizers))

    @property
    def kinds(self) -> tuple[str, ...]:
        return (self.kind, self.tokenizers[0].kind)

    @property
    def source(self) -> Side:
        return self._sides[0]

    @property
    def target(self) -> Side:
        return self._sides[-1]

    @property
    def separate(self) -> bool:
        """Whether a number means another piece on the other side."""
        return len(self.tokenizers) > 1

    @property
    def size(self) -> int:
        return max(side.size for side in self._sides)

    def encode(self, text: str) -> list[int]:
        return [token for part in self._encode([text]) for token in part]

    def encode_chunks(self, chunks: Iterable[bytes], where: str = "the text") -> Encoded:
        for tokens in self._encode(read_utf8(chunks, where)):
            yield np.array(tokens, self.dtype)

    def _encode(self, texts: Iterable[str]) -> Iterator[list[int]]:
        rest = ""
        for text in texts:
            *lines, rest = (rest + text).split("\n")
            if lines:
                yield self._lines(lines)
        if rest:
            yield self._lines([rest])[:-1]

    def _lines(self, lines: Sequence[str]) -> list[int]:
        """Lines as tokens, each with its end."""
        cells = [line.split("\t") for line in lines]
        sources = self.source.encode_all([row[0] for row in cells])
        targets = iter(self.target.encode_all([cell for row in cells for cell in row[1:]]))
        found: list[int] = []
        for row, source in zip(cells, sources, strict=True):
            found += source
            for _ in row[1:]:
                found += [START, *next(targets)]
            found.append(END)
        return found

    def decode(self, tokens: Iterable[int]) -> str:
        cells, marks = [list[int]()], list[int]()
        for token in self.numbers(tokens):
            if token in (START, END):
                marks.append(token)
                cells.append([])
            else:
                cells[-1].append(token)
        text, side = "", self.source
        for cell, mark in zip(cells, [*marks, NONE], strict=True):
            text += side.decode(cell) + {START: "\t", END: "\n", NONE: ""}[mark]
            side = self.target if mark == START else self.source
        return text

    @classmethod
    def train(cls, corpus: Corpus, wanted: Settings, progress: Preparing | None) -> Self:
        """`wanted.sides` vocabularies of pairs, the marks counted in the size of each."""
        if wanted.kind not in PAIRED:
            raise ConfigError(
                f"a {wanted.kind} tokenizer does not give pairs back as they were; take one of "
                f"{', '.join(PAIRED)}"
            )
        taken = MARKS + (len(BYTES) if wanted.kind == "unigram" else 0)
        least = taken + {"bpe": len(BYTES), "unigram": SMALLEST}.get(wanted.kind, 0)
        if wanted.vocab_size and wanted.vocab_size < least:
            raise ConfigError(
                f"vocab_size {wanted.vocab_size} is too small for pairs in pieces of the kind "
                f"{wanted.kind!r}; take {least} at least"
            )
        inside = replace(wanted, vocab_size=max(0, wanted.vocab_size - taken), sides=0)
        between, found = "\n" if wanted.kind == "bpe" else " ", []
        for one in side_corpora(corpus, wanted.sides, between):
            learned = PLAIN[wanted.kind].train(one, inside, progress)
            found.append(learned.with_bytes() if isinstance(learned, Unigram) else learned)
        return cls(found)

    @classmethod
    def from_dict(cls, values: Json) -> Self:
        (given,) = take(values, sides=list)
        if len(given) not in (1, 2):
            raise ValueError(f"it must have one or two sides, not {len(given)}")
        found = []
        for side in given:
            told: Json = dict(side) if isinstance(side, dict) else {}
            kind = told.pop("kind", None)
            if kind not in PLAIN:
                raise ValueError(f"a side is of no kind known here: {', '.join(PLAIN)}")
            found.append(PLAIN[kind].from_dict(told))
        return cls(found)

    def to_dict(self) -> Json:
        return {"sides": [{"kind": one.kind, **one.to_dict()} for one in self.tokenizers]}


def side_corpora(corpus: Corpus, sides: int, between: str) -> list[Corpus]:
    """What vocabularies are learned from: sources and targets apart, or all in one text."""
    texts: list[dict[str, str]] = [{}, {}]
    for split in corpus.splits:
        text = "".join(read_utf8(corpus.chunks(split), place(corpus, split)))
        cells = [line.partition("\t")[::2] for line in text.split("\n")[:-1]]
        for side in (0, 1):
            texts[side][split] = "".join(row[side] + between for row in cells)
    if sides == 1:
        texts = [{split: text + texts[1][split] for split, text in texts[0].items()}]
    return [
        replace(corpus, texts={split: (Piece(text.encode()),) for split, text in one.items()})
        for one in texts
    ]


def has_marks(tokenizer: Tokenizer) -> bool:
    """Whether tab and line end are tokens of their own."""
    marks = [tokenizer.encode(sign) for sign in "\t\n"]
    whole = all(len(mark) == 1 for mark in marks)
    return whole and tokenizer.decode([*marks[0], *marks[1]]) == "\t\n"


def vocabulary_of(tokenizer: Tokenizer) -> dict[str, int]:
    """What a model with an encoder is told of its vocabulary."""
    if not has_marks(tokenizer):
        raise ConfigError(
            f"a {tokenizer.kind} tokenizer has no tokens of their own for tab and line end, which "
            f"keep pairs apart; take one of {', '.join(PAIRED)}"
        )
    if isinstance(tokenizer, Sides):
        source = tokenizer.source.size if tokenizer.separate else 0
        sizes = {"vocab_size": tokenizer.target.size, "source_vocab": source}
        return {**sizes, "pad": NONE, "start": START, "end": END}
    (start,), (end,) = (tokenizer.encode(sign) for sign in "\t\n")
    sizes = {"vocab_size": tokenizer.size + 1, "source_vocab": 0}
    return {**sizes, "pad": tokenizer.size, "start": start, "end": end}
