"""How does a folder appear whole or not at all?

It is filled beside its place and moved there in one step. Whatever a killed process leaves has a
name that begins with a dot and is swept away by whoever comes next.
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from parformer.store.files import sync


@contextlib.contextmanager
def beside(path: Path, suffix: str = "") -> Iterator[Path]:
    """A new folder next to a path, which is gone afterwards unless it was moved there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = path.with_name(f".{path.name}.{secrets.token_hex(4)}{suffix}")
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def add(folder: Path, path: Path) -> None:
    """Put a finished folder in its place, unless another process was there first."""
    try:
        folder.rename(path)
    except OSError:
        if not path.exists():
            raise
    sync(path.parent)


def replace(folder: Path, path: Path) -> None:
    """Put a finished folder in its place; whatever goes wrong, the old one is there again."""
    if not path.exists():
        folder.rename(path)
        return
    with beside(path, ".old") as old:
        path.rename(old / "model")
        try:
            folder.rename(path)
        except BaseException:
            (old / "model").rename(path)
            raise


def discard(path: Path, suffix: str) -> None:
    """Take a folder away at once, then delete it."""
    with beside(path, suffix) as away:
        path.rename(away / "damaged")


def set_aside(path: Path) -> None:
    """Keep what is damaged for whoever wants to look, out of the way of something new."""
    if path.exists():
        target = path.with_name(f"damaged-{path.name}")
        if target.is_dir() and not target.is_symlink():
            shutil.rmtree(target, ignore_errors=True)
        path.rename(target)


def sweep(parent: Path, pattern: str) -> None:
    """Remove folders that a killed process left half written or half removed."""
    for left in parent.glob(pattern):
        shutil.rmtree(left, ignore_errors=True)
