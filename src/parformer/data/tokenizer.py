"""What is a tokenizer?

The common shape of all of them; each kind is a file of its own.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from parformer.errors import ConfigError, InputError
from parformer.events import Preparing
from parformer.fields import check_names
from parformer.records import Record
from parformer.store.files import Json

if TYPE_CHECKING:
    from parformer.data.corpora import Corpus

FORMAT = "parformer-tokenizer-1"
ADAPTIVE = ((25_000, 19_997), (50_000, 39_997), (200_000, 199_997))
"""From how many words on a cutoff is worth its cluster; all three are NVIDIA's for WikiText-103."""


SPECIAL: Mapping[str, tuple[str, ...]] = {
    "pad": ("<pad>", "[PAD]", "<|pad|>"),
    "unk": ("<unk>", "[UNK]"),
    "bos": ("<bos>", "[BOS]", "<s>", "<|begin_of_text|>"),
    "eos": ("<eos>", "[EOS]", "</s>", "<|end_of_text|>", "<|endoftext|>"),
    "sep": ("<sep>", "[SEP]", "</s>"),
    "cls": ("<cls>", "[CLS]", "<s>"),
    "mask": ("<mask>", "[MASK]"),
}
"""How tokens that stand for no text are written, here and elsewhere."""


Encoded: TypeAlias = Iterator[NDArray[Any]]
"""Tokens, part by part."""


@dataclass(frozen=True, slots=True)
class Settings(Record):
    """What decides which tokenizer a corpus gets."""

    kind: str
    vocab_size: int = 0
    """All tokens together; 0 where the text decides."""
    min_count: int = 0
    """What is rarer is left out."""
    sides: int = 0
    """Vocabularies of pairs: one for each side, or one for both; 0 for a text as it is."""

    def told(self) -> Json:
        """As plain values, with nothing about pairs where there are none."""
        return {name: value for name, value in self.to_dict().items() if name != "sides" or value}


class Coder(Protocol):
    """Texts to tokens and back, for one side of pairs."""

    @property
    def size(self) -> int: ...
    def encode(self, text: str) -> list[int]: ...
    def decode(self, tokens: Iterable[int]) -> str: ...


class Tokenizer(ABC):
    """Text to tokens and back; two are equal if they are written alike."""

    kind: ClassVar[str]
    """Its name on the command line and in `tokenizer.json`."""
    made_of: ClassVar[Literal["bytes", "characters", "words"]] = "words"
    """What scores are told per: bits of a byte or character, perplexity of a word."""

    @property
    @abstractmethod
    def size(self) -> int:
        """How many tokens there are; they are numbered from 0."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """What it answers to: its kind, and that of the vocabularies inside."""
        return (self.kind,)

    @property
    def source(self) -> Coder:
        """The vocabulary of sources, where texts are pairs."""
        return self

    @property
    def target(self) -> Coder:
        """The vocabulary of what is written for them."""
        return self

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """A text as tokens, nothing added at its end."""

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """Many texts, each by itself."""
        return [self.encode(text) for text in texts]

    def names(self) -> dict[int, str]:
        """How tokens are written, by number, where pieces of words tell themselves apart."""
        return {}

    def pieces(self, text: str) -> list[tuple[int, int, int]]:
        """Every token with the places in the text where it starts and ends."""
        raise ConfigError(
            f"a {self.kind} tokenizer does not tell which characters a token stands for; take "
            "wordpiece or unigram"
        )

    @abstractmethod
    def encode_chunks(self, chunks: Iterable[bytes], where: str = "the text") -> Encoded:
        """A stream as tokens; where its chunks are cut, even inside a character, has no effect."""

    @abstractmethod
    def decode(self, tokens: Iterable[int]) -> str:
        """Tokens as text; bytes that are no UTF-8 become U+FFFD."""

    @classmethod
    @abstractmethod
    def train(cls, corpus: Corpus, wanted: Settings, progress: Preparing | None) -> Self:
        """The tokenizer of a corpus."""

    @classmethod
    @abstractmethod
    def from_dict(cls, values: Json) -> Self:
        """Read `to_dict`'s answer back; a ValueError says what is wrong with it."""

    @abstractmethod
    def to_dict(self) -> Json:
        """All that this tokenizer was taught."""

    def number(self, token: str) -> int | None:
        """The number of a special token by how it is written, where there is one."""
        return None

    def has(self, name: str) -> bool:
        """Whether there is a special token of this name: pad, unk, bos, eos, sep, cls or mask."""
        check_names([name], SPECIAL, "special token")
        return any(self.number(token) is not None for token in SPECIAL[name])

    def special(self, name: str) -> int:
        """The number of a special token.

        A mask is always there: a masked model's vocabulary has one more number for it, after all
        others, where the tokenizer has none of its own.
        """
        if not self.has(name):
            if name == "mask":
                return self.size
            raise ConfigError(
                f"a {self.kind} tokenizer has no <{name}>; take one that has, such as wordpiece"
            )
        numbers = map(self.number, SPECIAL[name])
        return next(number for number in numbers if number is not None)

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


def cutoffs_for(size: int) -> tuple[int, ...]:
    """Cutoffs for a vocabulary in order of falling frequency; none below 25,000 tokens.

    >>> cutoffs_for(267_735), cutoffs_for(33_278), cutoffs_for(10_000)
    ((19997, 39997, 199997), (19997,), ())
    """
    return tuple(cutoff for least, cutoff in ADAPTIVE if size > least)


def take(values: Json, **types: type) -> list[Any]:
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
