"""What does a stack of blocks look like?

>>> draw(Pattern.parse("(sfff)x2 (f)x2")).plain, draw(Pattern.parse("sf | {cf}x2")).plain
('s f f f s f f f f f ', 's f | { c f c f } ')
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from xml.sax.saxutils import escape

from rich.text import Text

from parformer.pattern import ALPHABET, GROUPS, Pattern

COLOURS: Mapping[str, str] = {
    "s": "#d9480f",
    "c": "#c2255c",
    "f": "#4c78a8",
    "i": "#adb5bd",
    "r": "#2f9e44",
    "a": "#9c36b5",
    "n": "#1864ab",
    "l": "#0c8599",
    "y": "#e8a200",
    "<": "#7f5539",
    "{": "#5c940d",
    "|": "#212529",
}
GUEST = "#495057"
"""Of a block that somebody else brought."""


def colour(letter: str) -> str:
    """What a block is drawn in."""
    return COLOURS.get(letter, GUEST)


def cells(pattern: Pattern) -> Iterator[tuple[str, str]]:
    """Every block that runs, in order, as its letter and its text; groups with their brackets."""
    if pattern.encoder is not None:
        yield from cells(pattern.encoder)
        yield "|", "|"
    for block in pattern:
        if block.inside is None:
            yield block.letter, str(block)
            continue
        opening, closing = GROUPS[block.letter]
        yield block.letter, opening
        for _ in range(block.times):
            yield from cells(block.inside)
        yield block.letter, closing


def sign(letter: str, text: str) -> str:
    """The one character that stands for a cell: a block's letter, or the bracket itself."""
    return letter if letter in ALPHABET else text


def draw(pattern: Pattern) -> Text:
    """One coloured cell per block, from the first to the last, for a terminal."""
    drawing = Text(no_wrap=False)
    for letter, text in cells(pattern):
        drawing.append(f"{sign(letter, text)} ", style=f"bold white on {colour(letter)}")
    return drawing


def legend(patterns: list[Pattern]) -> Text:
    """Which colour is which block, of those that occur."""
    words = Text()
    for letter, name in names_of(patterns):
        words.append(f"{letter} ", style=f"bold white on {colour(letter)}")
        words.append(f" {name}  ")
    return words


def names_of(patterns: Iterable[Pattern]) -> list[tuple[str, str]]:
    """Letters and names of all that occurs."""
    used = {letter for pattern in patterns for letter, _ in cells(pattern)}
    known = (*ALPHABET.items(), ("<", "bottleneck"), ("{", "shared"), ("|", "encoder | decoder"))
    return [(letter, name) for letter, name in known if letter in used]


BLOCK, GAP, WIDE, APART, TOP = 14, 3, 150, 44, 58


def to_svg(patterns: Mapping[str, Pattern]) -> str:
    """Stacks side by side as a picture, input at the bottom as in the papers."""
    drawn = {name: list(cells(pattern)) for name, pattern in patterns.items()}
    tallest = max(map(len, drawn.values()))
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
        for depth, cell in enumerate(drawn[name]):
            top = floor - (depth + 1) * (BLOCK + GAP)
            parts.append(_cell(left, top, *cell))
    names = names_of(patterns.values())
    y = height - 28
    for i, (letter, words) in enumerate(names):
        x = (width - 150 * len(names)) / 2 + 20 + 150 * i
        parts.append(
            f'<rect x="{x:g}" y="{y}" width="14" height="14" rx="3" fill="{colour(letter)}"/>'
            f'<text x="{x + 21:g}" y="{y + 11.5}" font-size="12" fill="#495057">{words}</text>'
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


def _cell(left: float, top: float, letter: str, label: str) -> str:
    return (
        f'<rect x="{left}" y="{top}" width="{WIDE}" height="{BLOCK}" rx="4" '
        f'fill="{colour(letter)}"/>'
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
