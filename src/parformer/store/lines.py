"""How does a file of lines survive whoever writes it?

One process owns it at a time, half a line that a dead one left is cut off, and a sealed line
tells whether it is what was written.

>>> unseal(seal('{"a": 1}').rstrip())
{'a': 1}
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from parformer.errors import FolderError
from parformer.store.files import reason, sync
from parformer.store.lock import Held, take


class Lines:
    """A file of whole lines that one process owns for as long as it has it open.

    A process that died while it wrote leaves half a line: it is cut off at opening, so that
    nothing is ever added to it. A damaged line before the last one is an error, and so is a
    file without a whole line that does not at least begin with `start`: it is not ours to cut.
    """

    def __init__(self, path: Path, start: bytes, read: Callable[[bytes], Any]) -> None:
        self.path, self.start = path, start
        try:
            self.handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise FolderError(f"cannot write {str(path)!r}: {reason(error)}") from None
        try:
            take(self.handle)
        except Held:
            os.close(self.handle)
            raise FolderError(
                f"another process is working on {str(path)!r}, which takes one at a time; "
                "wait for it"
            ) from None
        try:
            self.found = self.read_all(read)
        except BaseException:
            os.close(self.handle)
            raise

    def read_all(self, read: Callable[[bytes], Any]) -> list[Any]:
        data = self.path.read_bytes()
        lines = data.split(b"\n")[:-1]
        found = []
        for number, line in enumerate(lines, 1):
            try:
                found.append(read(line))
            except ValueError:
                if number < len(lines):
                    raise FolderError(
                        f"line {number} of {str(self.path)!r} is damaged; "
                        "copy the file back, or choose another"
                    ) from None
        begun = data[: len(self.start)]
        if not found and not self.start.startswith(begun):
            raise FolderError(f"{str(self.path)!r} holds something else; choose another path")
        whole = sum(len(line) + 1 for line in lines[: len(found)])
        if whole < len(data):
            os.ftruncate(self.handle, whole)
            os.fsync(self.handle)
        if not whole:
            sync(self.path.parent)
        self.length = whole
        return found

    def add(self, data: bytes) -> None:
        """More lines; they outlive this process now, and the machine after `settle`."""
        try:
            left = data
            while left:
                left = left[os.write(self.handle, left) :]
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self.handle, self.length)
            raise FolderError(
                f"cannot write {str(self.path)!r} ({len(data):,} bytes needed): {reason(error)}"
            ) from None
        self.length += len(data)

    def settle(self) -> None:
        try:
            os.fsync(self.handle)
        except OSError as error:
            raise FolderError(f"cannot write {str(self.path)!r}: {reason(error)}") from None

    def close(self) -> None:
        if self.handle >= 0:
            os.close(self.handle)
            self.handle = -1


SEAL = b'{"sha256":"'


def seal(body: str) -> bytes:
    """A JSON line with the checksum of its body."""
    return b'%s%s","body":%s}\n' % (SEAL, checksum(body.encode()), body.encode())


def unseal(line: bytes) -> Any:
    """The body of a sealed line; ValueError if one bit of it is wrong."""
    start, body = line[:84], line[84:-1]
    if start != b'%s%s","body":' % (SEAL, checksum(body)) or line[-1:] != b"}":
        raise ValueError("not the line that was written")
    return json.loads(body)


def checksum(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest().encode()
