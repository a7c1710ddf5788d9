"""How does a text come out of an archive, and nothing else with it?

Members are looked up by the very names we expect and written under names of our own, so it does
not matter what other names an archive holds. The folder appears whole or not at all.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

from parformer.data.reading import CHUNK, unreadable
from parformer.errors import CorpusError
from parformer.events import Preparing
from parformer.store import whole
from parformer.store.files import reason, sync, way_out


def check_archive(archive: Path, name: str, size: int, sha256: str) -> None:
    """Refuse an archive that is not the published one."""
    try:
        with archive.open("rb") as stream:
            has = os.fstat(stream.fileno()).st_size
            # A wrong length is said at once, not after minutes of reading.
            found = hashlib.file_digest(stream, "sha256").hexdigest() if has == size else ""
    except OSError as error:
        raise unreadable(archive, error) from None
    if has != size:
        wrong = f"it has {has:,} bytes, not {size:,}"
    elif found != sha256:
        wrong = f"its SHA-256 is {found}, not {sha256}"
    else:
        return
    raise CorpusError(
        f"{str(archive)!r} is not the published {name}: {wrong}; unpack it and give the folder"
    )


def unpack(
    archive: Path, members: Mapping[str, str], folder: Path, progress: Preparing | None
) -> None:
    """Copy the expected members, under the names given for them, into a new folder."""
    try:
        with whole.beside(folder) as beside:
            missing, done = set(members), 0
            for member, stream in _streams(archive, members):
                missing.discard(member)
                with (beside / members[member]).open("wb") as out:
                    while block := stream.read(CHUNK):
                        out.write(block)
                        done += len(block)
                        if progress is not None:
                            progress(f"unpacking {archive.name}, {done / 1e6:,.0f} MB", 0.0)
                sync(beside / members[member])
            if missing:
                raise CorpusError(f"{str(archive)!r} lacks {min(missing)}; fetch it again")
            _move(beside, folder, members)
    except (zipfile.BadZipFile, tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise CorpusError(f"{str(archive)!r} is damaged: {error}; fetch it again") from None
    except OSError as error:
        raise CorpusError(
            f"cannot unpack {str(archive)!r} to {str(folder)!r}: {reason(error)}; {way_out(error)}"
        ) from None


def _move(beside: Path, folder: Path, members: Mapping[str, str]) -> None:
    """Put a finished folder in its place, unless another process was quicker."""

    def is_whole() -> bool:
        return all((folder / name).is_file() for name in members.values())

    if not is_whole():
        shutil.rmtree(folder, ignore_errors=True)
        try:
            beside.rename(folder)
        except OSError:
            if not is_whole():
                raise


def _streams(archive: Path, wanted: Mapping[str, str]) -> Iterator[tuple[str, IO[bytes]]]:
    """The wanted members; whatever else an archive holds is not looked at."""
    if archive.name.endswith(".zip"):
        with zipfile.ZipFile(archive) as zipped:
            for name in sorted(set(wanted) & set(zipped.namelist())):
                with zipped.open(name) as stream:
                    yield name, stream
        return
    with gzip.open(archive) as plain, tarfile.open(fileobj=plain, mode="r|") as tarred:
        for entry in tarred:
            if entry.name in wanted and entry.isreg():
                opened = tarred.extractfile(entry)
                assert opened is not None, "regular members can be read"
                yield entry.name, opened
        while plain.read(CHUNK):
            pass  # the checksum stands at the very end
