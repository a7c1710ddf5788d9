"""What makes a file survive a crash, how do we know it again, and where does it lie?"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from parformer.errors import FolderError


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


def reason(error: Exception) -> str:
    """What an error of the operating system says, without the path that stands beside it."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
