"""How do the verbs speak to people: JSON, the terminal, files?"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parformer.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""What could move a terminal's cursor or change its colours."""
LONGEST = 2000
"""Characters of a message; what it quotes may have millions."""


def harmless(text: str) -> str:
    """A text that a terminal can do nothing but show."""
    return CONTROLS.sub("\ufffd", text)


def shown(message: str) -> str:
    """A message for people, however long or strange what it quotes is."""
    text = harmless(message)
    half = LONGEST // 2
    return text if len(text) <= LONGEST else f"{text[:half]} … {text[-half:]}"


def write_text(path: Path, text: str) -> None:
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {str(path)!r}: {error.strerror}") from None


def print_json(value: object) -> None:
    print(json.dumps(value, indent=2))


def make_console(*, stderr: bool = False) -> Console:
    from rich.console import Console

    console = Console(stderr=stderr, highlight=False)
    console.push_render_hook(Washing())  # type: ignore[arg-type]
    return console


def print_lines(*lines: str) -> None:
    """Lines that nobody's brackets colour, for copying: a path or a command is not broken."""
    console = make_console()
    for line in lines:
        console.print(line, soft_wrap=True, markup=False)


class Washing:
    """Takes control codes out of whatever is printed; those of rich itself stay."""

    def process_renderables(self, renderables: list[Any]) -> list[Any]:
        return [Washed(each) for each in renderables]


class Washed:
    def __init__(self, content: Any) -> None:
        self.content = content

    def __rich_console__(self, console: Console, options: Any) -> Iterator[Any]:
        from rich.segment import Segment

        for segment in console.render(self.content, options):
            text = segment.text if segment.control else harmless(segment.text)
            yield Segment(text, segment.style, segment.control)
