"""How does a stream of bytes become text, and text become passages of bounded length?

Whatever reads a corpus holds a few passages of it at a time, so that its size does not matter,
and comes to the same result wherever the stream happens to be cut.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING

from parformer.errors import CorpusError, InputError
from parformer.events import Preparing

if TYPE_CHECKING:
    from parformer.data.corpora import Corpus


PASSAGE = 2**16
"""A passage has no more characters."""

_LAST_BLANK = re.compile(r".*\S(?=[ \n])", re.DOTALL)


def to_utf8(text: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(
            f"character {text[error.start]!r} at {error.start:,} of the text is half of a "
            "surrogate pair and no text; decode the input as UTF-8 first"
        ) from None


def read_utf8(chunks: Iterable[bytes], where: str) -> Iterator[str]:
    """Bytes as text, wherever they are cut; the first byte that is no UTF-8 is named."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    read = 0
    for chunk in chain(chunks, [None]):
        held = len(decoder.getstate()[0])
        try:
            text = decoder.decode(chunk or b"", final=chunk is None)
        except UnicodeDecodeError as error:
            raise CorpusError(
                f"byte 0x{error.object[error.start]:02x} at offset "
                f"{read - held + error.start:,} of {where} is no UTF-8; convert the text, or use "
                "the tokenizer 'byte', which takes text in any encoding"
            ) from None
        read += len(chunk or b"")
        if text:
            yield text


def passages(texts: Iterable[str]) -> Iterator[str]:
    """The same text in passages that end where a word does, each as long as can be.

    Only where there is no blank among 65,536 characters is a passage cut after that many.

    >>> [len(passage) for passage in passages(["tick " * 13_108])]
    [65534, 6]
    >>> [len(passage) for passage in passages(["tick" * 17_500])]
    [65536, 4464]
    """
    rest = ""
    for text in texts:
        rest += text
        start = 0
        while len(rest) - start > PASSAGE:
            found = _LAST_BLANK.match(rest, start, start + PASSAGE)
            end = found.end() if found else start + PASSAGE
            yield rest[start:end]
            start = end
        rest = rest[start:]
    if rest:
        yield rest


class Count:
    """Bytes, characters and words of the chunks that passed through.

    Words are counted as WikiText's are: whatever stands between blanks, and one more for
    the end of each line, whether or not the last line has one. Bytes that are no UTF-8
    count as the characters they would be shown as.
    """

    def __init__(self) -> None:
        self.bytes = self.characters = self.words = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._last = "\n"

    def watch(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            self.bytes += len(chunk)
            self._add(self._decoder.decode(chunk))
            yield chunk
        self._add(self._decoder.decode(b"", final=True))
        self.words += self._last != "\n"

    def _add(self, text: str) -> None:
        if not text:
            return
        self.characters += len(text)
        goes_on = not self._last.isspace() and not text[0].isspace()
        self.words += len(text.split()) + text.count("\n") - goes_on
        self._last = text[-1]


def watched(corpus: Corpus, split: str, doing: str, progress: Preparing | None) -> Iterator[bytes]:
    """A split's chunks, while `progress` hears how far they have been read."""
    size, read = corpus.size(split), 0
    try:
        for chunk in corpus.chunks(split):
            yield chunk
            read += len(chunk)
            if progress is not None:
                progress(f"{doing} in {split}", min(read / size, 1.0) if size else 0.0)
    except OSError as error:
        raise CorpusError(f"cannot read {place(corpus, split)}: {error}") from None


def place(corpus: Corpus, split: str) -> str:
    """How errors call a split."""
    return f"{split!r} of {corpus.name!r}"
