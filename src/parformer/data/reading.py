"""Which bytes of which file, and how are they read?

A text is a row of pieces: ranges of files, or of bytes at hand. Compressed files are read as
streams, a mebibyte at a time, so that no text has to fit into memory.

>>> list(read_pieces([Piece(b"to be or not", stop=5), Piece(b"\\n")]))
[b'to be', b'\\n']
"""

from __future__ import annotations

import gzip
import lzma
import zlib
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from parformer.errors import CorpusError

CHUNK = 2**20
"""No chunk is longer."""

COMPRESSED = (".gz", ".xz", ".zst")


@dataclass(frozen=True, slots=True)
class Piece:
    """Some bytes of a file, counted after decompression, or of what is in memory."""

    source: Path | bytes
    start: int = 0
    stop: int | None = None
    """Where the piece ends; None is the end of the source."""


def read_pieces(pieces: Iterable[Piece]) -> Iterator[bytes]:
    """The bytes of all pieces in order, in chunks of at most a mebibyte."""
    for piece in pieces:
        if isinstance(piece.source, bytes):
            stop = len(piece.source) if piece.stop is None else piece.stop
            for start in range(piece.start, stop, CHUNK):
                yield piece.source[start : min(start + CHUNK, stop)]
        else:
            with closing(_read_file(piece.source, piece.start, piece.stop)) as blocks:
                yield from blocks


def plain_name(name: str) -> str:
    """A file's name without the ending its compression gave it.

    >>> plain_name("train.txt.xz"), plain_name("train.txt")
    ('train.txt', 'train.txt')
    """
    ending = Path(name).suffix
    return name.removesuffix(ending) if ending in COMPRESSED else name


def is_compressed(path: Path) -> bool:
    return path.suffix in COMPRESSED


def unreadable(path: Path, error: Exception) -> CorpusError:
    """What to say when the operating system keeps a file from us."""
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return CorpusError(f"cannot read {str(path)!r}: {reason}")


def _read_file(path: Path, start: int, stop: int | None) -> Generator[bytes, None, None]:
    """The bytes from start to stop, and an error if the file ends before."""
    position = start
    try:
        with path.open("rb") as file:
            if is_compressed(path):
                blocks = _skip(_decompress(path, file), start)
            else:
                file.seek(start)
                blocks = _blocks(file)
            for block in blocks:
                if stop is not None:
                    block = block[: stop - position]
                if not block:
                    return
                position += len(block)
                yield block
    except (gzip.BadGzipFile, EOFError, zlib.error, lzma.LZMAError) as error:
        raise CorpusError(
            f"{str(path)!r} is damaged or no {path.suffix[1:]} file: {error}; fetch it again"
        ) from None
    except OSError as error:
        raise unreadable(path, error) from None
    if stop is not None and position < stop:
        raise CorpusError(
            f"{str(path)!r} ends at byte {position:,}, not at {stop:,}: it has changed meanwhile"
        )


def _blocks(file: BinaryIO | gzip.GzipFile | lzma.LZMAFile) -> Iterator[bytes]:
    while block := file.read(CHUNK):
        yield block


def _skip(blocks: Iterator[bytes], count: int) -> Iterator[bytes]:
    for block in blocks:
        if count < len(block):
            yield block[count:]
        count = max(count - len(block), 0)


def _decompress(path: Path, file: BinaryIO) -> Iterator[bytes]:
    if path.suffix == ".gz":
        with gzip.GzipFile(fileobj=file, mode="rb") as gzipped:
            yield from _blocks(gzipped)
    elif path.suffix == ".xz":
        with lzma.LZMAFile(file) as xz:
            yield from _blocks(xz)
    else:
        yield from _unzstd(file)


class _Sealed:
    """A file with something more after its end."""

    def __init__(self, file: BinaryIO, seal: bytes) -> None:
        self.file, self.seal = file, seal

    def read(self, size: int) -> bytes:
        if block := self.file.read(size):
            return block
        # A byte at a time: a whole frame would be read as one even in the middle of a header.
        block, self.seal = self.seal[:1], self.seal[1:]
        return block


SEAL = b"\0end of the text\0"


def _unzstd(file: BinaryIO) -> Iterator[bytes]:
    """Zstandard's reader takes a file that was cut off for a whole one; a seal tells them apart.

    One more frame is put behind the file. Where its text does not come out last, the file's
    own last frame had not ended.
    """
    import zstandard

    # The checksum stands last, so that the seal's own bytes cannot pass for its text.
    sealed = _Sealed(file, zstandard.ZstdCompressor(write_checksum=True).compress(SEAL))
    reader = zstandard.ZstdDecompressor().stream_reader(sealed, read_across_frames=True)  # type: ignore[arg-type]
    held = b""
    try:
        while block := reader.read(CHUNK - len(SEAL)):
            held += block
            if len(held) > len(SEAL):
                yield held[: -len(SEAL)]
                held = held[-len(SEAL) :]
    except zstandard.ZstdError as error:
        raise EOFError(str(error)) from None
    if held != SEAL:
        raise EOFError("it ends in the middle of a frame")
