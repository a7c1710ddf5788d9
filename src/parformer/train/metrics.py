"""What happened, step by step?

`metrics.jsonl` holds one JSON object per line. It is flushed to disk before every checkpoint,
which remembers its length; a run that goes on cuts off whatever came later, so that no step
stands there twice. Nothing depends on it: where it is gone, a new one begins.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from parformer.errors import FolderError
from parformer.store.files import Json, reason, refuse_link
from parformer.store.whole import set_aside


class Metrics:
    """The file of one run, open for writing at its end."""

    def __init__(
        self,
        path: Path,
        length: int,
        *,
        tensorboard: Path | None = None,
        step: int = 0,
        notice: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.path = path
        refuse_link(path)
        try:
            size = path.stat().st_size if path.exists() else 0
            if size < length:
                notice(
                    f"{path.name} has {size:,} bytes, but the checkpoint was written after "
                    f"{length:,}: a new log begins here; what is left of the old one is "
                    f"damaged-{path.name}."
                )
                set_aside(path)
                length = 0
            self.file: BinaryIO = path.open("ab")
            self.file.truncate(length)
            self.file.seek(0, os.SEEK_END)
        except OSError as error:
            raise FolderError(f"cannot write {str(path)!r}: {reason(error)}") from None
        self.board = None if tensorboard is None else open_board(tensorboard, step)

    def add(self, step: int, values: Mapping[str, object]) -> None:
        """One line; numbers also go to TensorBoard where it is installed."""
        line = json.dumps({"step": step, **values}) + "\n"
        try:
            self.file.write(line.encode())
            self.file.flush()
        except OSError as error:
            raise FolderError(
                f"cannot write {str(self.path)!r} ({len(line):,} bytes needed): {reason(error)}"
            ) from None
        if self.board is not None:
            for name, value in values.items():
                if isinstance(value, int | float):
                    self.board.add_scalar(name, value, step)

    def settle(self) -> int:
        """Make everything durable; the length of the file."""
        try:
            self.file.flush()
            os.fsync(self.file.fileno())
        except OSError as error:
            raise FolderError(f"cannot write {str(self.path)!r}: {reason(error)}") from None
        return self.file.tell()

    def close(self) -> None:
        with contextlib.suppress(OSError):  # what could not be written was reported by then
            self.file.close()
        if self.board is not None:
            self.board.close()


def open_board(path: Path, step: int) -> Any:
    """TensorBoard's writer, if the package is there; it forgets what came after `step`."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(path), purge_step=step + 1)


def read_metrics(path: Path) -> list[Json]:
    """All lines that are whole."""
    rows = []
    for line in path.read_text("utf-8").splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:
            break  # a line that was being written when the process died
    return rows
