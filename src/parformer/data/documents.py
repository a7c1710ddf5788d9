"""How do documents become numbers that sentences can be found in again?

One row of whole numbers: how many sentences and documents there are, where each begins, which
tokens stand around texts, and then the tokens themselves, one after the other. A bit says of
each whether it goes on with a word.

>>> flat = written([[[5, 6 | GOES_ON], [7]], [[8]]], (1, 2, 3, 9))
>>> found = Documents(flat)
>>> found.sentences, found.sentence(0).tolist(), found.of_document(1)
(3, [5, 1073741830], (2, 3))
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parformer.data.corpora import Corpus
from parformer.data.reading import read_pieces
from parformer.data.sentences import Document, documents
from parformer.data.text import Count, place
from parformer.data.tokenizer import Tokenizer
from parformer.data.tokens import Prepared, Split
from parformer.errors import CorpusError
from parformer.events import Preparing
from parformer.store.cache import Facts, digest, keep

GOES_ON = 1 << 30
"""The bit of a token that goes on with the word before it."""
PLAIN = GOES_ON - 1
HEADER = 6
FORMAT = "parformer-documents-1"
TOGETHER = 256
"""Documents that are encoded at once."""

Numbers = NDArray[np.int32]


class Documents:
    """Documents as numbers, seen by sentence."""

    def __init__(self, flat: NDArray[Any]) -> None:
        self.sentences, count, self.start, self.end, self.mask, self.vocab_size = (
            int(one) for one in flat[:HEADER]
        )
        first = HEADER + self.sentences + 1
        self.edges = flat[HEADER:first]
        """Where sentences begin, and where the last one ends."""
        self.firsts = flat[first : first + count + 1]
        """The first sentence of every document, and one past the last."""
        self.tokens = flat[first + count + 1 :]
        self.count = count

    def sentence(self, number: int, last: int = -1) -> Numbers:
        """The tokens of a sentence, or of those up to `last`, with their bits."""
        last = number if last < 0 else last
        found: Numbers = self.tokens[self.edges[number] : self.edges[last + 1]]
        return found

    def of_document(self, number: int) -> tuple[int, int]:
        """Its first sentence, and one past its last."""
        return int(self.firsts[number]), int(self.firsts[number + 1])


def written(texts: Iterable[Sequence[Sequence[int]]], marks: tuple[int, int, int, int]) -> Numbers:
    """Documents of sentences of tokens as one row; marks are start, end, mask and vocabulary."""
    edges, firsts = [0], [0]
    parts: list[Numbers] = []
    for document in texts:
        for sentence in document:
            parts.append(np.array(sentence, np.int32))
            edges.append(edges[-1] + len(sentence))
        firsts.append(len(edges) - 1)
    head = [len(edges) - 1, len(firsts) - 1, *marks]
    numbers = [np.array(one, np.int32) for one in (head, edges, firsts)]
    return np.concatenate([*numbers, *parts])


def continuing(tokenizer: Tokenizer) -> NDArray[np.bool_]:
    """Which tokens of a vocabulary go on with a word: ##pieces, or those without a ▁."""
    names = tokenizer.names()
    found = np.zeros(tokenizer.size, bool)
    if any(name.startswith("##") for name in names.values()):
        for number, name in names.items():
            found[number] = name.startswith("##")
    elif any(name.startswith("▁") for name in names.values()):
        for number, name in names.items():
            found[number] = not name.startswith(("▁", "<", "["))
    return found


def prepare_documents(
    corpus: Corpus,
    tokenizer: Tokenizer,
    *,
    files: bool,
    field: str,
    cache: Path,
    progress: Preparing,
) -> Prepared:
    """The documents of a corpus, from the folder `tokens` of the cache if they are there.

    With `files` each file is a document of its own, whatever blank lines it has.
    """
    identity = corpus.identity()
    told = [FORMAT, identity, list(corpus.splits), tokenizer.to_json(), files, field]
    folder = cache / "tokens" / f"documents-{digest(told)[:20]}"
    marks = (
        tokenizer.special("cls"),
        tokenizer.special("sep"),
        tokenizer.special("mask"),
        tokenizer.size,
    )
    more = continuing(tokenizer)

    def make(beside: Path) -> Facts:
        facts: Facts = {}
        for split in corpus.splits:
            progress(f"reading documents of {split}", 0.0)
            flat = written(encoded(read(corpus, split, files, field), tokenizer, more), marks)
            if not flat[0]:
                raise CorpusError(f"{place(corpus, split)} has no sentences; put text there")
            flat.tofile(beside / f"{split}.documents")
            count = Count()
            for _ in count.watch(corpus.chunks(split)):
                pass
            facts[split] = {
                "bytes": count.bytes,
                "characters": count.characters,
                "words": count.words,
            }
        return facts

    def again(facts: Facts) -> dict[str, Split]:
        return {
            split: Split(np.memmap(folder / f"{split}.documents", "<i4", "r"), **facts[split])
            for split in corpus.splits
        }

    size = sum(corpus.size(split) or 0 for split in corpus.splits)
    splits = keep(folder, make, again, needed=size, progress=progress)
    return Prepared(corpus.name, identity, tokenizer, splits, folder)


def read(corpus: Corpus, split: str, files: bool, field: str) -> Iterator[Document]:
    """The documents of a split, in order."""
    where = place(corpus, split)
    if not files:
        yield from documents(lines_of(corpus.chunks(split)), field=field, where=where)
        return
    for piece in corpus.texts[split]:
        sentences = [
            one for found in documents(lines_of(read_pieces([piece])), where=where) for one in found
        ]
        if sentences:
            yield sentences


def lines_of(chunks: Iterable[bytes]) -> Iterator[str]:
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line.decode("utf-8", "replace")
    if rest:
        yield rest.decode("utf-8", "replace")


def encoded(
    texts: Iterator[Document], tokenizer: Tokenizer, more: NDArray[np.bool_]
) -> Iterator[list[list[int]]]:
    """Documents of tokens with their bits; sentences without a token are left out."""
    while some := list(islice(texts, TOGETHER)):
        flat = tokenizer.encode_all([sentence for document in some for sentence in document])
        rows = iter(flat)
        for document in some:
            tokens = [next(rows) for _ in document]
            marked = [[t | GOES_ON if more[t] else t for t in row] for row in tokens if row]
            if marked:
                yield marked
