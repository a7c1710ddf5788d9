"""What can one ask of a text, and what is there to know about it?"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from parformer.events import Listener, Watch, nobody
from parformer.records import Record
from parformer.store.files import Json
from parformer.verbs import requested

if TYPE_CHECKING:
    from parformer.data.corpora import Corpus
    from parformer.data.overlap import Overlap
    from parformer.data.tokens import Prepared, Split

COMMON = 12
"""So many of the most frequent tokens are told."""
EXCERPT = 240
"""So many characters of the text are told."""
BLOCK = 2**22


@dataclass(frozen=True, kw_only=True)
class PrepareRequest:
    """A text, and what its tokens are to be."""

    corpus: str
    """A corpus by name, or a file, folder or glob of text, such as 'notes/*.txt'."""
    local: str = ""
    """A local copy of a published corpus, which is then not downloaded."""
    tokenizer: str = "byte"
    """What a token is: byte, used-bytes, character, word, bpe, wordpiece, unigram, or a
    tokenizer.json of Hugging Face's."""
    vocab_size: int = 0
    """Most tokens that a vocabulary may have; all, or 8192 where it is learned from pieces."""
    min_count: int = 0
    """Rarer characters and words become <unk>."""


@dataclass(frozen=True, slots=True)
class Common(Record):
    """A frequent token."""

    token: int
    text: str
    count: int


@dataclass(frozen=True, kw_only=True)
class PrepareResult:
    """A text as tokens, and what is to be known about it."""

    prepared: Prepared
    about: str
    overlap: dict[str, Overlap]
    """How much of each held-out split stands in train."""
    common: tuple[Common, ...]
    excerpt: str

    def to_dict(self) -> Json:
        """Plain values, ready for JSON."""
        prepared, tokenizer = self.prepared, self.prepared.tokenizer
        return {
            "corpus": prepared.corpus,
            "about": self.about,
            "identity": prepared.identity,
            "tokenizer": tokenizer.kind,
            "vocab_size": tokenizer.size,
            "cutoffs": list(tokenizer.cutoffs),
            "splits": {name: split.measured() for name, split in prepared.splits.items()},
            "overlap": {n: asdict(o) | {"crowded": o.crowded} for n, o in self.overlap.items()},
            "common": [one.to_dict() for one in self.common],
            "excerpt": self.excerpt,
            "cache": str(prepared.folder),
        }


def prepare(
    request: PrepareRequest | None = None, *, watch: Listener = nobody, **given: Any
) -> PrepareResult:
    """Fetch, tokenize, compare and describe a text; what was done before is not done again."""
    asked, preparing = requested(PrepareRequest, request, given), Watch(watch).preparing
    from parformer.data.corpora import find_corpus
    from parformer.data.overlap import overlaps
    from parformer.data.tokenizers import settings
    from parformer.data.tokens import prepare as tokenize
    from parformer.store.files import cache_folder

    # a mistake should be told before anything is fetched
    settings(asked.tokenizer, vocab_size=asked.vocab_size, min_count=asked.min_count)
    corpus = find_corpus(asked.corpus, local=asked.local or None, progress=preparing)
    prepared = tokenize(
        corpus,
        asked.tokenizer,
        vocab_size=asked.vocab_size,
        min_count=asked.min_count,
        cache=cache_folder(),
        progress=preparing,
    )
    return describe(corpus, prepared, overlaps(corpus, preparing))


def describe(corpus: Corpus, prepared: Prepared, overlap: dict[str, Overlap]) -> PrepareResult:
    tokenizer, splits = prepared.tokenizer, prepared.splits
    main = splits["train" if "train" in splits else next(iter(splits))]
    return PrepareResult(
        prepared=prepared,
        about=corpus.about,
        overlap=overlap,
        common=tuple(
            Common(token, tokenizer.decode([token]), count)
            for token, count in most_frequent(main, tokenizer.size)
        ),
        # a character has at most four bytes, so four times as many tokens are always enough
        excerpt=tokenizer.decode(main.tokens[: 4 * EXCERPT])[:EXCERPT],
    )


def most_frequent(split: Split, size: int) -> list[tuple[int, int]]:
    """The most frequent tokens with their counts; of equally frequent ones, the lower first."""
    import numpy as np

    counts = np.zeros(size, np.int64)
    for start in range(0, len(split.tokens), BLOCK):  # counting copies what it counts
        counts += np.bincount(split.tokens[start : start + BLOCK], minlength=size)
    order = np.argsort(-counts, kind="stable")[:COMMON]
    return [(int(token), int(counts[token])) for token in order if counts[token]]
