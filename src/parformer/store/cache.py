"""How is work kept so that nobody does it twice, and never trusted when it is damaged?

An entry is a folder with whatever files were made and `manifest.json`, which is written last
and holds a SHA-256 of each. It appears whole or not at all, also when two processes make it
at the same time. A damaged one is thrown away and made anew, with a notice.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import stat
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from parformer.errors import CorpusError, FolderError
from parformer.events import Preparing
from parformer.store import whole
from parformer.store.files import Json, sha256, sync, way_out
from parformer.store.lock import lock

FORMAT = "parformer-entry-1"
MANIFEST, CHECKED, PART = "manifest.json", "checked.json", ".part"
SMALL = 8 * 2**20
"""Files up to this many bytes are read and compared each time they are opened."""
EDGE = 2**16
"""Of a larger file, so many bytes at both ends are, as long as nobody has touched it."""

Facts: TypeAlias = Json
"""What an entry says of itself; anything that JSON can hold."""
Read = TypeVar("Read")

log = logging.getLogger(__name__)


class _Damaged(Exception):
    """An entry that must not be used."""


def keep(
    folder: Path,
    make: Callable[[Path], Facts],
    read: Callable[[Facts], Read],
    *,
    needed: int,
    progress: Preparing | None = None,
) -> Read:
    """What `read` finds in an entry, once `make` has filled it and told the facts.

    `needed` is about how many bytes it takes; an error tells them when there is no room.
    """
    try:
        with contextlib.suppress(_Damaged):
            if folder.exists():
                return _open(folder, read)
        folder.parent.mkdir(parents=True, exist_ok=True)
        gate = folder.parent / f".{folder.name}.lock"
        with lock(gate, waiting=partial(_wait, progress), leave=False) as locked:
            if locked:
                whole.sweep(folder.parent, f".{folder.name}.*{PART}")
            if folder.exists():
                try:
                    return _open(folder, read)
                except _Damaged as damage:
                    log.warning("%s: %s; it is made anew", folder, damage)
                    whole.discard(folder, PART)
            with whole.beside(folder, PART) as beside:
                _seal(beside, make(beside))
                whole.add(beside, folder)
        return _open(folder, read)
    except OSError as error:
        raise CorpusError(
            f"cannot write to {str(folder)!r} (about {needed:,} bytes needed): "
            f"{error.strerror or error}; {way_out(error)}"
        ) from None
    except _Damaged as damage:
        raise CorpusError(
            f"{str(folder)!r} was written and cannot be read back: {damage}; check the disk"
        ) from None


def _seal(beside: Path, facts: Facts) -> None:
    """Make everything durable, the manifest last."""
    files = {}
    for file in sorted(beside.iterdir()):
        sync(file)
        sums = {"sha256": sha256(file), "edges": _edges(file)}
        files[file.name] = {"bytes": file.stat().st_size, **sums}
    manifest = {"format": FORMAT, "facts": facts, "files": files}
    text = json.dumps(manifest | {"seal": digest(manifest)})
    (beside / MANIFEST).write_text(text, "utf-8")
    sync(beside / MANIFEST)
    _remember(beside, files)
    sync(beside)


def _open(folder: Path, read: Callable[[Facts], Read]) -> Read:
    """What an entry holds, once it has been found whole."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text("utf-8"))
        seal = manifest.pop("seal")
    except (OSError, ValueError, RecursionError, AttributeError, LookupError, TypeError):
        raise _Damaged("its manifest is missing or damaged") from None
    if seal != digest(manifest) or manifest.get("format") != FORMAT:
        raise _Damaged("its manifest is damaged")
    _check_files(folder, manifest["files"])
    try:
        return read(manifest["facts"])
    except (FolderError, LookupError, TypeError, ValueError) as error:
        raise _Damaged(f"its parts do not fit together: {error}") from None


def _check_files(folder: Path, files: Mapping[str, Json]) -> None:
    """Compare small files in full, and large ones too unless they are as they were then."""
    remembered = _remembered(folder)
    for name, expected in files.items():
        file = folder / name
        try:
            status = file.lstat()
            if not stat.S_ISREG(status.st_mode) or status.st_size != expected["bytes"]:
                raise _Damaged(f"{name} has {status.st_size:,} bytes, not {expected['bytes']:,}")
            untouched = remembered.get(name) == _traits(status)
            if _edges(file) != expected["edges"] or (
                (status.st_size <= SMALL or not untouched) and sha256(file) != expected["sha256"]
            ):
                raise _Damaged(f"{name} is damaged: its SHA-256 differs from the manifest's")
        except OSError as error:
            raise _Damaged(f"{name}: {error.strerror or error}") from None
    if any(remembered.get(name) != _traits((folder / name).lstat()) for name in files):
        # a cache that cannot be written to is still good for reading
        with contextlib.suppress(OSError):
            _remember(folder, files)


def _remember(folder: Path, files: Iterable[str]) -> None:
    """Note what the files looked like when their checksums were right."""
    traits = {name: _traits((folder / name).lstat()) for name in files}
    fresh = folder / f".{CHECKED}.{os.getpid()}"
    try:
        fresh.write_text(json.dumps(traits), "utf-8")
        fresh.replace(folder / CHECKED)
    finally:
        fresh.unlink(missing_ok=True)


def _remembered(folder: Path) -> Json:
    try:
        traits = json.loads((folder / CHECKED).read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return traits if isinstance(traits, dict) else {}


def _traits(status: os.stat_result) -> list[int]:
    """Numbers that change when a file is written to, replaced or copied."""
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def _wait(progress: Preparing | None) -> None:
    if progress is not None:
        progress("waiting for another process that does the same", 0.0)


def digest(value: Any) -> str:
    """SHA-256 of anything that JSON can hold."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _edges(file: Path) -> str:
    """SHA-256 of a file's first and last bytes."""
    with file.open("rb") as stream:
        head = stream.read(EDGE)
        stream.seek(-min(EDGE, file.stat().st_size), os.SEEK_END)
        return hashlib.sha256(head + stream.read(EDGE)).hexdigest()
