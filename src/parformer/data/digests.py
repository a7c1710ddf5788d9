"""How long is a text and what is its SHA-256, without reading it a second time?

What was counted once is remembered in `digests.json` in the cache folder, under the path,
size, time of change and inode of every file involved. A damaged index is built anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from parformer.data.reading import Piece, read_pieces, unreadable
from parformer.errors import FolderError
from parformer.events import Preparing
from parformer.store.files import replace_file

INDEX = "digests.json"
FORMAT = "parformer-digests-1"
LIMIT = 20_000
"""The oldest records beyond this many are forgotten."""

SETTLED_NS = 10**9
"""Files changed within the last second may change once more without a new time of change."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What one pass over a text brings."""

    size: int
    lines: int
    whole: bool
    """Whether the last line has its line end; so has an empty text."""
    sha256: str


class Digests:
    """The index of one cache folder, read when it is first asked."""

    def __init__(self, cache: Path, progress: Preparing | None = None) -> None:
        self._file = cache / INDEX
        self._progress = progress
        self._records: dict[str, Facts] | None = None
        self._new: dict[str, Facts] = {}

    def known(self, pieces: Sequence[Piece]) -> Facts | None:
        """What is remembered about a text."""
        if self._records is None:
            self._records = _read(self._file)
        return self._records.get(_key(pieces))

    def facts(self, pieces: Sequence[Piece], name: str) -> Facts:
        """What is remembered about a text, or what reading it brings."""
        if (known := self.known(pieces)) is not None:
            return known
        key, newest = _key(pieces), _newest(pieces)
        found = self._count(pieces, name)
        if _key(pieces) == key and time.time_ns() - newest > SETTLED_NS:
            self._new[key] = found
        return found

    def save(self) -> None:
        """Add what is new to the index, whole or not at all; a cache we cannot write to is fine."""
        if not self._new:
            return
        records = list((_read(self._file) | self._new).items())[-LIMIT:]
        text = json.dumps({"format": FORMAT, "texts": {key: astuple(f) for key, f in records}})
        with contextlib.suppress(OSError, FolderError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self._file, text)
        self._records, self._new = None, {}

    def _count(self, pieces: Sequence[Piece], name: str) -> Facts:
        digest, size, lines, last = hashlib.sha256(), 0, 0, b"\n"
        ends = [piece.stop for piece in pieces]
        total = 0 if None in ends else sum((p.stop or 0) - p.start for p in pieces)
        for chunk in read_pieces(pieces):
            digest.update(chunk)
            size, lines, last = size + len(chunk), lines + chunk.count(b"\n"), chunk[-1:]
            if self._progress is not None:
                # How much a compressed file holds shows only at its end.
                self._progress(
                    f"reading {name}, {size / 1e6:,.0f} MB", size / total if total else 0.0
                )
        return Facts(size, lines, last == b"\n", digest.hexdigest())


def _key(pieces: Sequence[Piece]) -> str:
    parts: list[list[Any]] = []
    for piece in pieces:
        if isinstance(piece.source, bytes):
            parts.append([hashlib.sha256(piece.source).hexdigest(), piece.start, piece.stop])
        else:
            found = _stat(piece.source)
            state = [found.st_size, found.st_mtime_ns, found.st_ino]
            parts.append([str(piece.source), *state, piece.start, piece.stop])
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _newest(pieces: Sequence[Piece]) -> int:
    files = (piece.source for piece in pieces if isinstance(piece.source, Path))
    return max((_stat(file).st_mtime_ns for file in files), default=0)


def _stat(path: Path) -> os.stat_result:
    try:
        return path.stat()
    except OSError as error:
        raise unreadable(path, error) from None


def _read(file: Path) -> dict[str, Facts]:
    """All records that make sense."""
    try:
        value = json.loads(file.read_text("ascii"))
        if value["format"] != FORMAT:
            return {}
        return {key: _fact(*record) for key, record in value["texts"].items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return {}


def _fact(size: Any, lines: Any, whole: Any, sha256: Any) -> Facts:
    if not (type(size) is type(lines) is int and type(whole) is bool and len(sha256) == 64):
        raise ValueError("no record of ours")
    return Facts(size, lines, whole, sha256)
