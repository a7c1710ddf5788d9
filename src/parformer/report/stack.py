"""What does a stack of blocks look like?

>>> print(draw_plain("(sfff)x2 (f)x2"))
s f f f s f f f f f
"""

from __future__ import annotations

from collections.abc import Mapping
from xml.sax.saxutils import escape

from rich.text import Text

from parformer.pattern import ALPHABET, BlockSpec, Pattern

COLOURS: Mapping[str, str] = {
    "s": "#d9480f",
    "c": "#c2255c",
    "f": "#4c78a8",
    "i": "#adb5bd",
    "r": "#2f9e44",
    "a": "#9c36b5",
    "l": "#0c8599",
    "y": "#e8a200",
    "<": "#7f5539",
    "{": "#5c940d",
}
GUEST = "#495057"
"""Of a block that somebody else brought."""


def colour(letter: str) -> str:
    """What a block is drawn in."""
    return COLOURS.get(letter, GUEST)


def draw_plain(pattern: Pattern | str) -> str:
    """One letter per block."""
    return " ".join(Pattern.parse(pattern).letters)


def draw(pattern: Pattern) -> Text:
    """One coloured cell per block, from the first to the last, for a terminal."""
    drawing = Text(no_wrap=False)
    for block in pattern:
        drawing.append(f"{block.letter} ", style=f"bold white on {colour(block.letter)}")
    return drawing


def legend(patterns: list[Pattern]) -> Text:
    """Which colour is which block, of those that occur."""
    used = {letter for pattern in patterns for letter in pattern.letters}
    words = Text()
    for letter, name in (*ALPHABET.items(), ("<", "bottleneck")):
        if letter in used:
            words.append(f"{letter} ", style=f"bold white on {colour(letter)}")
            words.append(f" {name}  ")
    return words


BLOCK, GAP, WIDE, APART, TOP = 14, 3, 150, 44, 58


def to_svg(patterns: Mapping[str, Pattern]) -> str:
    """Stacks side by side as a picture, input at the bottom as in the papers."""
    tallest = max(len(pattern) for pattern in patterns.values())
    height = TOP + tallest * (BLOCK + GAP) + 64
    width = APART + len(patterns) * (WIDE + APART)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="system-ui, sans-serif">',
        f'<rect width="{width}" height="{height}" rx="10" fill="#ffffff"/>',
    ]
    floor = height - 52
    for column, (name, pattern) in enumerate(patterns.items()):
        left = APART + column * (WIDE + APART)
        middle = left + WIDE / 2
        parts.append(_words(middle, 24, name, "#212529", 12, "600"))
        parts.append(_words(middle, 43, _short(str(pattern)), "#868e96", 11, "400"))
        for depth, block in enumerate(pattern):
            top = floor - (depth + 1) * (BLOCK + GAP)
            parts.append(_cell(left, top, block))
    used = {letter for pattern in patterns.values() for letter in pattern.letters}
    names = [(x, n) for x, n in (*ALPHABET.items(), ("<", "bottleneck")) if x in used]
    y = height - 28
    for i, (letter, words) in enumerate(names):
        x = (width - 150 * len(names)) / 2 + 20 + 150 * i
        parts.append(
            f'<rect x="{x:g}" y="{y}" width="14" height="14" rx="3" fill="{colour(letter)}"/>'
            f'<text x="{x + 21:g}" y="{y + 11.5}" font-size="12" fill="#495057">{words}</text>'
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


def _cell(left: float, top: float, block: BlockSpec) -> str:
    label = "< >" if block.inside is not None else str(block)
    return (
        f'<rect x="{left}" y="{top}" width="{WIDE}" height="{BLOCK}" rx="4" '
        f'fill="{colour(block.letter)}"/>'
        f'<text x="{left + WIDE / 2}" y="{top + 11.5}" font-size="10.5" fill="#ffffff" '
        f'text-anchor="middle">{escape(_short(label))}</text>'
    )


def _words(x: float, y: float, text: str, colour: str, size: int, weight: str) -> str:
    return (
        f'<text x="{x}" y="{y}" font-size="{size}" font-weight="{weight}" fill="{colour}" '
        f'text-anchor="middle">{escape(text)}</text>'
    )


def _short(text: str, most: int = 26) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
