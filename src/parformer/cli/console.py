"""What do the verbs share: options, JSON, the terminal, progress bars, files?"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from parformer.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress


def add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--device", default="auto", metavar="NAME", help="such as cpu or cuda:0 (default auto)"
    )


def write_text(path: Path, text: str) -> None:
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {str(path)!r}: {error.strerror}") from None


def print_json(value: object) -> None:
    print(json.dumps(value, indent=2))


def make_console(*, stderr: bool = False) -> Console:
    from rich.console import Console

    return Console(stderr=stderr, highlight=False)


def progress_bar() -> Progress:
    """A bar on the terminal's error side, which leaves nothing behind; none without a terminal.

    Use it as `with progress_bar() as bar`, add a task of total 1.0 and update its description.
    """
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    screen = make_console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TimeRemainingColumn(),
        console=screen,
        transient=True,
        disable=not screen.is_terminal,
    )
