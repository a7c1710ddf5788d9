"""How does one process keep the others out, for as long as it lives?

A lock goes with the process that holds it, however that ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path


class Held(Exception):
    """Another process has the lock."""


def take(handle: int, *, waiting: Callable[[], None] | None = None) -> bool:
    """Lock an open file; False where files cannot be locked.

    Where another process has it, `waiting` is called and then waited; without it, Held is raised.
    """
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if waiting is None:
                raise Held from None
            waiting()
            fcntl.flock(handle, fcntl.LOCK_EX)
    except OSError:
        return False
    return True


@contextlib.contextmanager
def lock(
    file: Path, *, waiting: Callable[[], None] | None = None, leave: bool = True
) -> Iterator[bool]:
    """Hold a file of its own inside; it is removed afterwards unless it may be left."""
    while True:
        handle = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            held = take(handle, waiting=waiting)
        except BaseException:
            os.close(handle)
            raise
        # whoever held the lock may have removed its file; one that is gone protects nothing
        with contextlib.suppress(FileNotFoundError):
            if not held or os.path.samestat(os.fstat(handle), file.stat()):
                break
        os.close(handle)
    try:
        yield held
    finally:
        if not leave:
            file.unlink(missing_ok=True)
        os.close(handle)
