"""Which token is each word?

Words as Transformer-XL reads WikiText: whatever stands between blanks, an `<eos>` after
every line, the vocabulary in order of falling frequency, with `<eos>` before all others.
It differs from that in four ways. Words are counted in the train split alone, where
Transformer-XL counts all splits of WikiText-2 and the Penn Treebank; there is always an
`<unk>`, where an unknown word would stop it; nothing is put into lower case, as it does for
the Penn Treebank; and a carriage return is a blank, never the end of a line by itself.

>>> Words(["<eos>", "the", "<unk>", "cat"]).encode("the black cat\\n")
[1, 2, 3, 0]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Self

import numpy as np

from parformer.data.text import passages, place, read_utf8, to_utf8, watched
from parformer.data.tokenizer import Encoded, Settings, Tokenizer, cutoffs_for, need_utf8, take
from parformer.errors import CorpusError
from parformer.events import Preparing
from parformer.store.files import Json

if TYPE_CHECKING:
    from parformer.data.corpora import Corpus

EOS, UNK = "<eos>", "<unk>"
LINE_END = f" {EOS} "


class Words(Tokenizer):
    """Words between blanks, the most frequent first, and `<eos>` at the end of each line."""

    kind = "word"

    def __init__(self, words: Sequence[str]) -> None:
        self.words = tuple(words)
        self._numbers = _Numbers(zip(self.words, range(len(self.words)), strict=True))
        self._numbers.unknown = self._numbers[UNK]

    @property
    def size(self) -> int:
        return len(self.words)

    def number(self, token: str) -> int | None:
        # other words that look special may come from the text itself
        return self._numbers[token] if token in (EOS, UNK) else None

    @property
    def cutoffs(self) -> tuple[int, ...]:
        return cutoffs_for(self.size)

    def encode(self, text: str) -> list[int]:
        """Without `<eos>` after a last line that has no end, so that a prompt can go on."""
        to_utf8(text)
        return list(map(self._numbers.__getitem__, _split(text)))

    def encode_chunks(self, chunks: Iterable[bytes], where: str = "the text") -> Encoded:
        """As `encode`, but a last line that has no end gets its `<eos>` too: it is a line."""
        last = "\n"
        for passage in passages(read_utf8(chunks, where)):
            yield np.array(list(map(self._numbers.__getitem__, _split(passage))), self.dtype)
            last = passage[-1]
        if last != "\n":
            yield np.array([self._numbers[EOS]], self.dtype)

    def decode(self, tokens: Iterable[int]) -> str:
        shown = ("\n", *self.words[1:])
        text = " ".join(shown[t] for t in self.numbers(tokens))
        return text.replace(" \n", "\n").replace("\n ", "\n")

    @classmethod
    def train(cls, corpus: Corpus, wanted: Settings, progress: Preparing | None) -> Self:
        split = "train" if "train" in corpus.splits else corpus.splits[0]
        counts: Counter[str] = Counter()
        chunks = watched(corpus, split, "counting words", progress)
        for passage in passages(read_utf8(chunks, place(corpus, split))):
            counts.update(passage.split())
        counts.pop(EOS, None)
        # most_common is stable: words that are equally frequent stay in the order of first sight
        ranked = [word for word, count in counts.most_common() if count >= wanted.min_count]
        if counts and not set(ranked) - {UNK}:
            raise CorpusError(
                f"no word of {corpus.name!r} occurs {wanted.min_count:,} times; lower min_count"
            )
        room = wanted.vocab_size - 1 if wanted.vocab_size else len(ranked) + 1
        kept = ranked[:room]
        if UNK not in kept:
            kept = [*ranked[: room - 1], UNK]
        return cls([EOS, *kept])

    @classmethod
    def from_dict(cls, values: Json) -> Self:
        (words,) = take(values, words=list)
        if not all(type(word) is str for word in words):
            raise ValueError("its words are not all texts")
        if words[:1] != [EOS] or UNK not in words or len(set(words)) != len(words):
            raise ValueError(f"its words do not start with {EOS}, lack {UNK}, or one comes twice")
        together = " ".join(words)
        need_utf8(together)
        if together.split() != words:
            raise ValueError("one of its words is empty or has a blank inside")
        return cls(words)

    def to_dict(self) -> Json:
        return {"words": list(self.words)}


class _Numbers(dict[str, int]):
    """Looks words up, and finds those it does not know to be `<unk>`."""

    unknown = 0

    def __missing__(self, word: str) -> int:
        return self.unknown


def _split(text: str) -> list[str]:
    return text.replace("\n", LINE_END).split()
