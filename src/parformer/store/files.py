"""What makes a file survive a crash, how do we know it again, and where does it lie?"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from pathlib import Path
from typing import Any

from parformer.errors import FolderError

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


def replace_file(path: Path, text: str) -> None:
    """Write a small file whole or not at all."""
    beside = path.with_name(f".{path.name}.new")
    try:
        beside.write_text(text, "utf-8")
        sync(beside)
        beside.rename(path)
        sync(path.parent)
    except OSError as error:
        beside.unlink(missing_ok=True)
        needed = len(text.encode())
        raise FolderError(
            f"could not write {str(path)!r} ({needed:,} bytes needed): {reason(error)}"
        ) from None


def read_json(file: Path) -> dict[str, Any]:
    """What a small file of ours holds; links, other files and broken ones are refused."""
    try:
        status = file.lstat()
        if not stat.S_ISREG(status.st_mode):
            raise FolderError(f"{str(file)!r} is no plain file; copy the whole folder again")
        if status.st_size > JSON_LIMIT:
            raise FolderError(f"{str(file)!r} is too large to be a {file.name} of ours")
        value = json.loads(file.read_text("utf-8"))
    except OSError as error:
        raise FolderError(f"cannot read {str(file)!r}: {reason(error)}") from None
    except (ValueError, RecursionError) as error:
        raise FolderError(f"{str(file)!r} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise FolderError(f"{str(file)!r} must hold a JSON object")
    return value


def reason(error: Exception) -> str:
    """What an error of the operating system says, without the path that stands beside it."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
