"""How does a report become one page that opens anywhere?

Everything is inside: text, tables, figures and the script that draws them. The page asks no
server for anything, and its policy forbids it to; it follows the reader's light or dark.

>>> from types import SimpleNamespace
>>> made = SimpleNamespace(command="parformer search", date="2026-11-16", version="0.1.0")
>>> "<script>alert" in page(title="<script>alert(1)", lead=[], sections=[], made=made)
False
"""

from __future__ import annotations

import json
import math
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from html import escape
from importlib.resources import files
from itertools import count
from string import Template
from typing import Protocol

from parformer.pattern import ALPHABET, BlockSpec
from parformer.report.figures import Plot
from parformer.report.stack import COLOURS, colour


class Html(str):
    """Text that is markup already; whatever else comes in is escaped."""

    __slots__ = ()


class Made(Protocol):
    """A result that says how it came about."""

    @property
    def command(self) -> str: ...
    @property
    def date(self) -> str: ...
    @property
    def version(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Part:
    """A figure, drawing or table, and the sentence that says what to see in it."""

    content: Plot | Html
    see: str


NOTHING = "'none'"
"""What a policy allows where nothing runs."""

Section = tuple[str, Sequence[Part | None]]
"""A question, and what answers it; without an answer it is not asked."""


def page(
    *,
    title: str,
    lead: Sequence[Html],
    sections: Sequence[Section],
    made: Made,
    script: str = "",
    style: str = "",
) -> str:
    """The whole page, ready to be written to a file.

    A script of the report's own runs once the figures are there. Script and style are code of
    ours and go in as they are: whatever comes from outside belongs into the other arguments.
    """
    answers = [(heading, [part for part in parts if part]) for heading, parts in sections]
    scripts = [*painting(answers), *[script] * bool(script)]
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; img-src data: blob:; "
        f"script-src {' '.join(map(_fingerprint, scripts)) or NOTHING}"
    )
    numbers, themes = count(1), json.loads(template("colours.json"))
    body = "\n".join(
        f"<section><h2>{escape(heading)}</h2>"
        + "\n".join(_figure(part, next(numbers)) for part in parts)
        + "</section>"
        for heading, parts in answers
        if parts
    )
    return Template(template("page.html")).substitute(
        title=escape(title),
        lead="\n".join(lead),
        body=body,
        policy=policy,
        colours=escape(json.dumps(themes)),
        light=_variables(themes["light"]),
        dark=_variables(themes["dark"]),
        style=template("page.css") + style,
        version=escape(made.version),
        date=escape(made.date),
        command=escape(made.command),
        scripts="".join(f"<script>{text}</script>" for text in scripts),
    )


def painting(sections: Iterable[tuple[str, Sequence[Part]]]) -> list[str]:
    """What draws the figures; of megabytes, so only where there are any."""
    if all(isinstance(part.content, str) for _, parts in sections for part in parts):
        return []
    from plotly.offline import get_plotlyjs

    return [get_plotlyjs(), template("painter.js")]


@cache
def template(name: str) -> str:
    """A file of the folder `templates`: markup, style or script of ours."""
    return (files("parformer.report") / "templates" / name).read_text("utf-8")


def paragraph(text: str, kind: str = "") -> Html:
    """A paragraph of plain text; the kinds are `verdict`, `soft` and `warning`."""
    return Html(f'<p class="{kind}">{escape(text)}</p>')


def table(head: Sequence[str], rows: Iterable[Sequence[str]], region: str = "") -> Html:
    """A table whose first column names the rows; without a head, of words.

    A row whose name is indented tells more about the row above it. A region scrolls by itself
    under its name, and scripts find its rows by their numbers.
    """
    top = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)
    body = ""
    for number, (name, *cells) in enumerate(rows):
        more = " class=more" * name.startswith(" ") + f' data-row="{number}"' * bool(region)
        body += f'<tr{more}><th scope="row">{escape(name.strip())}</th>'
        body += f"{''.join(map(_data, cells))}</tr>\n"
    kind, above = ("", f"<thead><tr>{top}</tr></thead>") if head else (' class="facts"', "")
    tall = f' tall" tabindex="0" role="region" aria-label="{escape(region)}' if region else ""
    inside = f"<table{kind}>{above}<tbody>\n{body}</tbody></table>"
    return Html(f'<div class="scroll{tall}">{inside}</div>')


def _data(cell: str) -> str:
    """A cell as it is, if it is markup; of plain text a second line is smaller."""
    if isinstance(cell, Html):
        return f"<td>{cell}</td>"
    first, _, more = cell.partition("\n")
    return f"<td>{escape(first)}{f'<small>{escape(more)}</small>' if more else ''}</td>"


def strips(
    stacks: Mapping[str, Sequence[BlockSpec]], notes: Mapping[str, str] | None = None
) -> Html:
    """Stacks as rows of coloured cells under each other, first block at the left.

    Unlike the picture of `to_svg` they take the page's colours and shrink to a phone. A note
    stands small under the name of its stack.
    """
    longest = max(len(blocks) for blocks in stacks.values())
    small = {name: f"<small>{escape(note)}</small>" for name, note in (notes or {}).items()}
    rows = "".join(
        f'<div class="name">{escape(name)}{small.get(name, "")}</div>'
        f'<div class="strip" style="--cells:{longest}" role="img" '
        f'aria-label="{escape(" ".join(map(str, blocks)))}">'
        + "".join(_cell(number, block) for number, block in enumerate(blocks, start=1))
        + "</div>\n"
        for name, blocks in stacks.items()
    )
    used = {block.letter for blocks in stacks.values() for block in blocks}
    key = "".join(
        f'<span><i style="background:{colour(letter)}"></i>{letter_name(letter)}</span>'
        for letter in dict.fromkeys([*COLOURS, *sorted(used)])
        if letter in used
    )
    dense = " dense" if longest > 26 else ""
    return Html(f'<div class="strips{dense}">{rows}</div><div class="key">{key}</div>')


def letter_name(letter: str) -> str:
    """What a block letter stands for."""
    return ALPHABET.get(letter, "bottleneck")


def _figure(part: Part, number: int) -> str:
    """One part with its sentence; a figure's data stands beside it, where no markup can end it."""
    content = part.content
    if not isinstance(content, str):
        data = json.dumps(_finite(content), ensure_ascii=False)
        for character in "<>&":
            data = data.replace(character, f"\\u{ord(character):04x}")
        content = Html(
            f'<div class="plot" id="plot-{number}" role="img" aria-label="{escape(part.see)}" '
            f'style="height:{content["layout"]["height"]:d}px"></div>'
            f'<script type="application/json" id="plot-{number}-data">{data}</script>'
        )
    return f"<figure>{content}<figcaption>{escape(part.see)}</figcaption></figure>"


def _finite(value: object) -> object:
    """JSON knows no infinities; a gap in the curve shows where one was."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _finite(inside) for name, inside in value.items()}
    return [_finite(inside) for inside in value] if isinstance(value, list | tuple) else value


def _cell(number: int, block: BlockSpec) -> str:
    ink = "#1f2328" if block.letter in "iy" else "#ffffff"  # the two pale ones
    return (
        f'<span style="background:{colour(block.letter)};color:{ink}" '
        f'title="{number}: {letter_name(block.letter)} {escape(str(block))}">'
        f"{escape(block.letter)}</span>"
    )


def _fingerprint(script: str) -> str:
    return f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'"


def _variables(colours: Mapping[str, str]) -> str:
    return " ".join(f"--{name}: {colour};" for name, colour in colours.items())
