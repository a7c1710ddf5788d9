"""What makes a file survive a crash, how do we know it again, and where does it lie?"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import stat
from pathlib import Path
from typing import Any, TypeAlias

from parformer.errors import FolderError

Json: TypeAlias = dict[str, Any]
"""A table of plain values, as JSON has it."""
JSON_LIMIT = 4 * 2**20
"""No configuration, manifest or result of ours is larger."""


def sync(path: Path) -> None:
    """Make a file or folder durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def cache_folder() -> Path:
    """What can be made again: $PARFORMER_CACHE, else the user's cache folder."""
    if own := os.environ.get("PARFORMER_CACHE"):
        return Path(own).expanduser()
    caches = os.environ.get("XDG_CACHE_HOME")
    return (Path(caches) if caches else Path.home() / ".cache") / "parformer"


def replace_file(path: Path, content: str | bytes, *, mode: int = 0o666) -> None:
    """Write a small file whole or not at all, whoever else writes it too."""
    data = content.encode() if isinstance(content, str) else content
    beside = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        sync(beside)
        beside.rename(path)
        sync(path.parent)
    except OSError as error:
        raise FolderError(
            f"could not write {str(path)!r} ({len(data):,} bytes needed): {reason(error)}"
        ) from None
    finally:
        with contextlib.suppress(OSError):
            beside.unlink()


def read_plain(file: Path, limit: int) -> str:
    """The text of a small plain file: neither a device nor a pipe, which need not end."""
    status = file.stat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is no plain file")
    if status.st_size > limit:
        raise OSError(errno.EFBIG, f"too large, {status.st_size:,} bytes")
    return file.read_text("utf-8")


def read_json(file: Path) -> Json:
    """What a small file of ours holds; links, other files and broken ones are refused."""
    try:
        if not stat.S_ISREG(file.lstat().st_mode):
            raise FolderError(f"{str(file)!r} is no plain file; copy the whole folder again")
        value = json.loads(read_plain(file, JSON_LIMIT))
    except OSError as error:
        raise FolderError(f"cannot read {str(file)!r}: {reason(error)}") from None
    except (ValueError, RecursionError) as error:
        raise FolderError(f"{str(file)!r} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise FolderError(f"{str(file)!r} must hold a JSON object")
    return value


def refuse_link(path: Path) -> None:
    """What lies elsewhere is not ours to write to."""
    if path.is_symlink():
        raise FolderError(
            f"{str(path)!r} is a link; nothing is written through it: put the file itself there"
        )


def reason(error: Exception) -> str:
    """What an error of the operating system says, without the path that stands beside it."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def way_out(error: OSError) -> str:
    """What helps where a cache cannot be written."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    other = "name another folder in PARFORMER_CACHE"
    return f"make room, or {other}" if full else other
