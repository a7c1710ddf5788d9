"""Where does the text come from?

From Python itself, from any file, folder or pattern, or from a published corpus that is
fetched once. Whatever it is, it comes as three splits of bytes, and its identity tells the
same text again wherever it lies.

>>> corpus = find_corpus("python-docs")
>>> corpus.splits
('train', 'valid', 'test')
"""

from __future__ import annotations

import difflib
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from parformer.data import builtin
from parformer.data.digests import Digests
from parformer.data.files import is_pattern, is_text, matching_files, split_files, text_files
from parformer.data.published import PUBLISHED, is_present, local_texts, published_texts
from parformer.data.reading import (
    Piece,
    is_compressed,
    plain_name,
    read_pieces,
    unreadable,
)
from parformer.data.splits import SPLITS, cut_points, share
from parformer.data.translated import TRANSLATED, is_here
from parformer.errors import CorpusError
from parformer.events import Preparing
from parformer.store.files import cache_folder


@dataclass(frozen=True, kw_only=True, slots=True)
class Corpus:
    """Text in splits, read as a stream."""

    name: str
    """What it is called, or what the user gave."""
    about: str
    """What it is, in a line."""
    texts: Mapping[str, tuple[Piece, ...]] = field(repr=False)
    """The pieces of every split, in order."""
    cache: Path = field(repr=False)
    """Where its digests are remembered."""
    left_out: int = 0
    """Files of a folder that are no text."""
    note: str = ""
    """What whoever reads it should know."""

    @property
    def splits(self) -> tuple[str, ...]:
        return tuple(self.texts)

    def chunks(self, split: str) -> Iterator[bytes]:
        """The bytes of a split in order, at most a mebibyte at a time, cut anywhere."""
        return read_pieces(self._pieces(split))

    def size(self, split: str) -> int | None:
        """How many bytes a split has, where that needs no reading."""
        pieces = self._pieces(split)
        sizes = [_size(piece) for piece in pieces]
        if None in sizes:
            known = Digests(self.cache).known(pieces)
            return None if known is None else known.size
        return sum(size for size in sizes if size is not None)

    def identity(self) -> str:
        """SHA-256 over the splits' names, lengths and bytes; remembered for unchanged files."""
        digests = Digests(self.cache)
        whole = hashlib.sha256(b"parformer-corpus-1\n")
        for split in self.splits:
            facts = digests.facts(self._pieces(split), f"{self.name} {split}")
            whole.update(f"{split} {facts.size} {facts.sha256}\n".encode())
        digests.save()
        return whole.hexdigest()

    def _pieces(self, split: str) -> tuple[Piece, ...]:
        if split not in self.texts:
            raise CorpusError(
                f"{self.name!r} has no split {split!r}; it has {', '.join(self.splits)}"
            )
        return self.texts[split]


@dataclass(frozen=True, kw_only=True, slots=True)
class Listing:
    """A corpus that has a name, for people who look for one."""

    name: str
    about: str
    licence: str
    bytes: int | None
    """Of all splits together, where known."""
    address: str = ""
    """Where it is downloaded from; nothing for what is built in."""
    download_bytes: int = 0
    built_in: bool = False
    present: bool = True
    """Whether it can be read without a download."""


def corpora(cache: Path | None = None) -> list[Listing]:
    """All corpora that have a name, built in or published."""
    cache = cache_folder() if cache is None else cache
    listed = []
    for name, about in ((name, builtin.about(name)) for name in builtin.ABOUT):
        corpus = find_corpus(name, cache=cache)
        size = sum(corpus.size(split) or 0 for split in corpus.splits)
        listed.append(
            Listing(name=name, about=about, licence=builtin.LICENCE, bytes=size, built_in=True)
        )
    for published in PUBLISHED.values():
        listed.append(
            Listing(
                name=published.name,
                about=published.about,
                licence=published.licence,
                bytes=published.text_size,
                address=published.addresses[0],
                download_bytes=published.size,
                present=is_present(published, cache),
            )
        )
    for pairs in TRANSLATED.values():
        listed.append(
            Listing(
                name=pairs.name,
                about=f"pairs {pairs.pair}: {pairs.about}",
                licence=pairs.licence,
                bytes=None,
                address=pairs.address,
                download_bytes=pairs.size,
                present=is_here(pairs, cache),
            )
        )
    return listed


def find_corpus(
    source: str,
    *,
    local: str | Path | None = None,
    cache: Path | None = None,
    progress: Preparing | None = None,
    identity: str = "",
) -> Corpus:
    """The corpus of that name, or the text in that file, folder or pattern.

    `local` is the user's own copy of a published corpus: archive, text or folder. A name goes
    before a file of the same name, which `./name` reaches. `identity` tells which text is
    meant where a built-in name once stood for another one; any other text is left to the
    caller to refuse.
    """
    corpus = _find(source, local, cache, progress)
    if identity and source in builtin.ABOUT and corpus.identity() != identity:
        for name in builtin.older(source):
            before = _find(name, local, cache, progress)
            if before.identity() == identity:
                return before
    return corpus


def _find(
    source: str, local: str | Path | None, cache: Path | None, progress: Preparing | None
) -> Corpus:
    if not source:
        raise CorpusError(f"name a corpus, file or folder; {_known()}")
    if not is_utf8(source):
        raise CorpusError(f"the name {source!r} is not UTF-8, which is what runs keep; rename it")
    cache = (cache_folder() if cache is None else Path(cache)).absolute()
    if source in TRANSLATED:
        raise CorpusError(
            f"{source!r} holds pairs of texts, for a model that translates; say which side is the "
            f"source: --data {source} --pair {TRANSLATED[source].pair}"
        )
    if local is not None and source not in PUBLISHED:
        raise CorpusError(
            f"--from is for the published corpora {', '.join(PUBLISHED)}; {source!r} is none"
        )
    digests, left = Digests(cache, progress), 0
    try:
        if builtin.is_builtin(source):
            about = builtin.about(source)
            texts = _whole_files(*builtin.builtin_files(source), digests)
        elif source in PUBLISHED:
            about = f"{PUBLISHED[source].about}; {PUBLISHED[source].licence}"
            if local is None:
                texts = published_texts(PUBLISHED[source], cache, progress)
            else:
                texts = local_texts(PUBLISHED[source], Path(local), cache, digests, progress)
        else:
            about, texts, left = _own_text(source, digests)
            about += left_out(left)
    finally:
        digests.save()
    if all(_size(piece) == 0 for pieces in texts.values() for piece in pieces):
        raise CorpusError(f"{source!r} holds no text")
    return Corpus(name=source, about=about, texts=texts, cache=cache, left_out=left)


def _own_text(source: str, digests: Digests) -> tuple[str, dict[str, tuple[Piece, ...]], int]:
    """What a user's file, folder or pattern holds, and how many files of it are no text."""
    path = Path(source).expanduser()
    try:
        if path.is_dir():
            splits = split_files(path)
            if set(splits) == set(SPLITS):
                return "a folder with its splits", {s: (Piece(splits[s]),) for s in SPLITS}, 0
            files, left = text_files(path)
            about = f"a folder of {len(files):,} text files"
            return about, _whole_files(files, (), digests), left
        if path.is_file():
            file = path.resolve()
            if not is_text(file):
                raise CorpusError(
                    f"{source!r} is no text: it has NUL bytes at its start, as UTF-16 has; "
                    "convert it to UTF-8"
                )
            return "a file", _whole_files({file.name: file}, (), digests), 0
        if path.exists():
            raise CorpusError(f"{source!r} is neither a plain file nor a folder")
        if is_pattern(source):
            files, left = matching_files(source)
            if not files:
                raise CorpusError(f"no text file matches {source!r}{left_out(left)}")
            return f"{len(files):,} text files", _whole_files(files, (), digests), left
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from None
    near = difflib.get_close_matches(source, [*builtin.ABOUT, *PUBLISHED], n=1)
    way_out = f"did you mean {near[0]!r}?" if near else _known()
    raise CorpusError(f"no corpus, file or folder {source!r}; {way_out}")


def left_out(files: int) -> str:
    """How many files of a folder are no text, and why."""
    why = "left out for NUL bytes at the start, as binary files and UTF-16 have them"
    return f"; {files:,} {why}" if files else ""


def is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _known() -> str:
    return f"known by name: {', '.join([*builtin.ABOUT, *PUBLISHED])}"


def _whole_files(
    files: Mapping[str, Path | bytes], families: Iterable[Sequence[str]], digests: Digests
) -> dict[str, tuple[Piece, ...]]:
    """Whole files to every split, or one text cut into them where there are fewer than three."""
    rows = {}
    for name, source in files.items():
        row = _row(name, source, digests, joined=len(files) > 1)
        if row:
            rows[name] = row
    if len(rows) < len(SPLITS):
        return _cut([piece for row in rows.values() for piece in row])
    # Compressing a file must not move it to another split.
    plain = {plain_name(name): name for name in rows}
    names = plain if len(plain) == len(rows) else {name: name for name in rows}
    shares = share({plain: _length(rows[name]) for plain, name in names.items()}, families)
    return {
        split: tuple(piece for plain in shares[split] for piece in rows[names[plain]])
        for split in SPLITS
    }


def _row(name: str, source: Path | bytes, digests: Digests, *, joined: bool) -> list[Piece]:
    """A file as pieces of known length, with a line end after it where others follow."""
    if isinstance(source, bytes):
        size, whole = len(source), source.endswith(b"\n")
    elif is_compressed(source):
        facts = digests.facts([Piece(source)], name)
        size, whole = facts.size, facts.whole
    else:
        try:
            with source.open("rb") as stream:
                size = stream.seek(0, os.SEEK_END)
                stream.seek(max(size - 1, 0))
                whole = stream.read(1) == b"\n"
        except OSError as error:
            raise unreadable(source, error) from None
    if size == 0:
        return []
    return [Piece(source, 0, size)] + ([Piece(b"\n", 0, 1)] if joined and not whole else [])


def _cut(pieces: Sequence[Piece]) -> dict[str, tuple[Piece, ...]]:
    """One text, its last lines kept back."""
    size = _length(pieces)
    valid, test = cut_points(
        size, lambda start, stop: b"".join(read_pieces(_between(pieces, start, stop)))
    )
    bounds = ((0, valid), (valid, test), (test, size))
    return {s: _between(pieces, *bound) for s, bound in zip(SPLITS, bounds, strict=True)}


def _between(pieces: Sequence[Piece], start: int, stop: int) -> tuple[Piece, ...]:
    """The part of a row of pieces from one byte to another."""
    found, position = [], 0
    for piece in pieces:
        length = _length([piece])
        low, high = max(start - position, 0), min(stop - position, length)
        if low < high:
            found.append(Piece(piece.source, piece.start + low, piece.start + high))
        position += length
    return tuple(found)


def _length(pieces: Sequence[Piece]) -> int:
    """Bytes of pieces whose ends are known."""
    return sum(piece.stop - piece.start for piece in pieces if piece.stop is not None)


def _size(piece: Piece) -> int | None:
    """Bytes of a piece, where that needs no decompressing."""
    if piece.stop is not None:
        return piece.stop - piece.start
    if isinstance(piece.source, bytes):
        return len(piece.source) - piece.start
    if is_compressed(piece.source):
        return None
    try:
        return max(piece.source.stat().st_size - piece.start, 0)
    except OSError as error:
        raise unreadable(piece.source, error) from None
