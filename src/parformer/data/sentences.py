"""Where do sentences and documents end?

A sentence ends at the end of a line, and after a full stop, a question or an exclamation mark that
a capital letter, a digit or a quotation mark follows, unless it was an abbreviation. A document
ends at a blank line, with its file, with a line `</doc>` of WikiExtractor's, or with its JSON line.

>>> split_sentences('Dr. Ann left. "Why?" he asked. It was 5 p.m. in the U.S. then.')
['Dr. Ann left.', '"Why?" he asked.', 'It was 5 p.m. in the U.S. then.']
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator

from parformer.errors import CorpusError

_END = re.compile(r"""([.!?]["'”’)\]]*)\s+(?=["'“‘(\[]*[A-Z0-9À-ÖØ-Þ])""")
_SHORT = re.compile(
    r"(?:\b(?:Mr|Mrs|Ms|Dr|Prof|St|Jr|Sr|vs|etc|cf|al|No|Nos|Vol|Fig|Eq|Gen|Col|Lt|Capt|Rev|Hon|Inc|"
    r"Ltd|Co|Corp|e\.g|i\.e|Jan|Feb|Mar|Apr|Aug|Sept|Sep|Oct|Nov|Dec)|\b[A-Z]|\b[a-z]\.[a-z])\.$"
)
"""What ends in a full stop and seldom ends a sentence."""

Document = list[str]
"""Its sentences."""


def split_sentences(text: str) -> list[str]:
    """The sentences of a paragraph."""
    found, start = [], 0
    for end in _END.finditer(text):
        sentence = text[start : end.end(1)].strip()
        if _SHORT.search(sentence):
            continue
        found.append(sentence)
        start = end.end()
    rest = text[start:].strip()
    return [*found, rest] if rest else found


def documents(
    lines: Iterable[str], *, field: str = "", where: str = "the text"
) -> Iterator[Document]:
    """The documents of some lines; with `field`, each line is JSON that holds one by that name."""
    if field:
        yield from json_documents(lines, field, where)
        return
    found: Document = []
    tagged = False
    for line in lines:
        line = line.strip()
        if line.startswith("<doc ") or line == "</doc>":
            tagged = True
            if found:
                yield found
            found = []
        elif line:
            found += split_sentences(line)
        elif not tagged and found:
            yield found
            found = []
    if found:
        yield found


def json_documents(lines: Iterable[str], field: str, where: str) -> Iterator[Document]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            text = json.loads(line)[field]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise CorpusError(
                f"line {number:,} of {where} is no JSON with a text {field!r}; is data.field right?"
            ) from None
        if isinstance(text, str) and text.strip():
            yield [one for part in text.split("\n") for one in split_sentences(part)]
