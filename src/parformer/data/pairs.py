"""How do pairs of texts come in, a source and what is to be written for it?

As two files for each split (`train.de`, `train.en`), as one of lines with a tab between
(`train.tsv`), or as JSON lines that name the languages (`train.jsonl`), compressed or not. A
folder says by its files' names which split they are; of a single file every twentieth pair is for
the test and the one before it for validation. What is too long or too uneven to learn from is
left out of train, and counted.

>>> read_lines([("a b", "c"), ("", "d"), ("e", "f g h i")], "here", Filters(ratio=3.0))
(b'a b\\tc\\n', {'with an empty side': 1, 'more uneven than 3 to 1': 1})
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parformer.data.corpora import Corpus
from parformer.data.reading import Piece, plain_name, read_pieces, unreadable
from parformer.data.sides import MARKED, PAIRED
from parformer.data.splits import SPLITS, split_word
from parformer.data.text import read_utf8
from parformer.data.translated import TRANSLATED, differences, find_folder
from parformer.errors import ConfigError, CorpusError
from parformer.events import Preparing
from parformer.store.files import cache_folder

EVERY = 20
"""Of so many pairs of a single file one is for the test, and one for validation."""

Pair = tuple[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Filters:
    """What is left out of training."""

    longest: int = 0
    """Words of either side at most; 0 means any."""
    ratio: float = 0.0
    """One side has at most so many times the words of the other; 0 means any."""
    lower: bool = False
    """Everything in small letters."""
    source_words: int = 0
    """Words of a source that are read, from its beginning; 0 means all."""

    def fault(self, source: str, target: str) -> str:
        """Why a pair is left out; empty if it stays."""
        counts = sorted((len(source.split()), len(target.split())))
        if not counts[0]:
            return "with an empty side"
        if self.longest and counts[1] > self.longest:
            return f"longer than {self.longest} words"
        if self.ratio and counts[1] > self.ratio * counts[0]:
            return f"more uneven than {self.ratio:g} to 1"
        return ""


def find_pairs(
    source: str,
    pair: str,
    filters: Filters,
    *,
    local: str | Path | None = None,
    progress: Preparing | None = None,
    training: bool = True,
) -> Corpus:
    """The pairs of a folder, file or published corpus, source and target named as in de-en.

    `local` is the user's own copy of a published one. Without `training` a folder may hold any
    split alone.
    """
    names = tuple(pair.split("-"))
    if len(names) != 2 or not all(names) or names[0] == names[1]:
        raise ConfigError(f"a pair is two different names such as de-en, got {pair!r:.40}")
    cache, known = cache_folder().absolute(), TRANSLATED.get(source)
    if known is None and local:
        raise CorpusError(
            f"--from is for the published pairs {', '.join(TRANSLATED)}; {source!r} is none"
        )
    if known is not None:
        place = find_folder(known, Path(local) if local else None, cache, progress)
        found = folder_pairs(place, names, training)
    else:
        found = own_pairs(source, names, training)
    texts: dict[str, tuple[Piece, ...]] = {}
    out: Counter[str] = Counter()
    for split in SPLITS:
        if split in found:
            text, dropped = kept_lines(found[split], split, source, filters)
            texts[split] = (Piece(text),)
            out.update(dropped)
    total = sum(len(pairs) for pairs in found.values())
    about, note = f"{total:,} pairs {pair}", ""
    if known is not None:
        about = f"{known.about}, {about}"
        note = differences(known, {split: len(pairs) for split, pairs in found.items()})
    if out:
        about += "; left out of train: " + ", ".join(f"{n:,} {why}" for why, n in out.items())
    left = sum(out.values())
    return Corpus(name=source, about=about, texts=texts, cache=cache, left_out=left, note=note)


def own_pairs(source: str, names: Sequence[str], training: bool) -> dict[str, list[Pair]]:
    """The pairs of a folder, or of a file, which are dealt out."""
    path = Path(source).expanduser()
    if path.is_dir():
        return folder_pairs(path, names, training)
    if path.is_file():
        return shared_out(list(file_pairs(path, names)))
    raise CorpusError(
        f"there is no folder or file {source!r}; name the place of pairs, or one of "
        f"{', '.join(TRANSLATED)}"
    )


def kept_lines(
    pairs: Sequence[Pair], split: str, source: str, filters: Filters
) -> tuple[bytes, dict[str, int]]:
    """A split as lines; what is left out of train would count in scores elsewhere."""
    kept = filters if split == "train" else replace(filters, longest=0, ratio=0.0)
    text, dropped = read_lines(pairs, f"{split} of {source!r}", kept)
    if dropped and split != "train":
        first = next(n for n, pair in enumerate(pairs, 1) if kept.fault(*pair))
        raise CorpusError(
            f"{sum(dropped.values()):,} pairs in {split} of {source!r} have an empty side, "
            f"the first in line {first:,}, and would count in scores; remove them from "
            "both sides"
        )
    if not text:
        raise CorpusError(f"{split} of {source!r} has no pairs left")
    return text, dropped


def read_lines(pairs: Iterable[Pair], where: str, filters: Filters) -> tuple[bytes, dict[str, int]]:
    """Pairs as lines with a tab between, and how many were left out for which reason."""
    lines, out = [], Counter[str]()
    for source, target in pairs:
        source, target = first_words(source, filters.source_words), " ".join(target.split())
        if fault := filters.fault(source, target):
            out[fault] += 1
            continue
        line = f"{source}\t{target}\n"
        lines.append(line.lower() if filters.lower else line)
    return "".join(lines).encode(), dict(out)


def first_words(text: str, count: int) -> str:
    """So many words of a text, or all for 0, with single blanks between them."""
    return " ".join(text.split()[: count or None])


def folder_pairs(root: Path, names: Sequence[str], training: bool = True) -> dict[str, list[Pair]]:
    """The pairs of every split that a folder has files for."""
    try:
        files = sorted(path for path in root.iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise unreadable(root, error) from None
    sides: dict[str, dict[str, Path]] = {}
    for file in files:
        split, ending = split_word(plain_name(file.name)), Path(plain_name(file.name)).suffix[1:]
        if split is None or ending not in (*names, "tsv", "jsonl"):
            continue
        known = sides.setdefault(split, {})
        if ending in known:
            raise CorpusError(
                f"{str(root)!r} has two files for {split}: {known[ending].name} and {file.name}; "
                "leave one"
            )
        known[ending] = file
    found = {}
    for split, known in sides.items():
        if all(name in known for name in names):
            found[split] = beside(known[names[0]], known[names[1]])
        elif whole := known.get("tsv") or known.get("jsonl"):
            found[split] = list(file_pairs(whole, names))
    if "train" not in found and (training or not found):
        raise CorpusError(
            f"{str(root)!r} has no pair {'-'.join(names)}: it needs train.{names[0]} and "
            f"train.{names[1]}, or train.tsv or train.jsonl"
        )
    return found


def beside(one: Path, two: Path) -> list[Pair]:
    """Two files line by line."""
    sides = [list(lines_of(path)) for path in (one, two)]
    if len(sides[0]) != len(sides[1]):
        raise CorpusError(
            f"{str(one)!r} has {len(sides[0]):,} lines and {str(two)!r} has {len(sides[1]):,}; "
            "line n of one must be the translation of line n of the other"
        )
    return list(zip(*sides, strict=True))


def file_pairs(path: Path, names: Sequence[str]) -> Iterator[Pair]:
    """The pairs of a file of tabs or of JSON lines."""
    as_json = Path(plain_name(path.name)).suffix == ".jsonl"
    for number, line in enumerate(lines_of(path), 1):
        if as_json:
            yield json_pair(line, names, f"line {number:,} of {str(path)!r}")
            continue
        parts = line.split("\t")
        if len(parts) != 2:
            raise CorpusError(
                f"line {number:,} of {str(path)!r} has {len(parts) - 1} tabs; a pair is source, "
                "tab, target"
            )
        yield parts[0], parts[1]


def json_pair(line: str, names: Sequence[str], where: str) -> Pair:
    try:
        values: Any = json.loads(line)
    except ValueError:
        raise CorpusError(f"{where} is not JSON") from None
    if isinstance(values, Mapping) and isinstance(values.get("translation"), Mapping):
        values = values["translation"]
    texts = [values.get(name) if isinstance(values, Mapping) else None for name in names]
    if isinstance(texts[0], list):  # sentences
        texts[0] = " ".join(map(str, texts[0]))
    if isinstance(texts[1], list) and texts[1]:  # several references
        texts[1] = texts[1][0]
    found = [text for text in texts if isinstance(text, str)]
    if len(found) < 2:
        raise CorpusError(f"{where} has no texts {names[0]!r} and {names[1]!r}")
    return found[0], found[1]


def lines_of(path: Path) -> Iterator[str]:
    """The lines of a file, compressed or not; only a line feed ends one."""
    rest = ""
    try:
        for text in read_utf8(read_pieces([Piece(path.resolve())]), repr(str(path))):
            *whole, rest = (rest + text).split("\n")
            yield from whole
    except OSError as error:
        raise unreadable(path, error) from None
    if rest:
        yield rest


def shared_out(pairs: list[Pair]) -> dict[str, list[Pair]]:
    """The splits of a single file."""
    found: dict[str, list[Pair]] = {split: [] for split in SPLITS}
    for number, pair in enumerate(pairs, 1):
        place = {0: "test", EVERY - 1: "valid"}.get(number % EVERY, "train")
        found[place].append(pair)
    return {split: some for split, some in found.items() if some}


def sides_of(kind: str, vocabularies: str) -> int:
    """How many vocabularies pairs get that are learned beside marks; 0 for one that has its own.

    >>> sides_of("bpe", "joint"), sides_of("bpe", "separate"), sides_of("unigram", "joint")
    (0, 2, 1)
    """
    if vocabularies == "separate":
        return 2
    return 1 if kind in PAIRED and kind not in MARKED else 0


def pairs_in(tokens: NDArray[Any], start: int, end: int) -> list[tuple[NDArray[Any], NDArray[Any]]]:
    """Sources and targets, as the tokens of their lines have them, without tab and line end."""
    found = []
    for line in np.split(tokens, np.flatnonzero(tokens == end) + 1)[:-1]:
        middle = int(np.argmax(line == start))
        found.append((line[:middle], line[middle + 1 : -1]))
    return found
