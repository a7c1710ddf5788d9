"""What does attention look at, drawn for people?

A page with a map for every head, or a table that fits a terminal.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape

from rich.console import Group, RenderableType
from rich.table import Column
from rich.text import Text

from parformer.evaluate.attention import AttentionResult, Head, Looks
from parformer.pattern import ALPHABET, Pattern
from parformer.report.page import Html, Part, Section, page, paragraph, table, template
from parformer.report.stack import draw, legend
from parformer.report.tables import right, slim
from parformer.report.words import counted, listed

SCRIPT, STYLE = "attention.js", "attention.css"


def attention_page(found: AttentionResult) -> str:
    """The maps as one self-contained HTML page."""
    sections: list[Section] = [
        ("What does each head look at?", [maps(found)]),
        ("Near or far?", [summary(found)]),
        ("What have the Synthesizers learned, whatever the text?", [learned(found)]),
    ]
    return page(
        title="What attention looks at",
        lead=lead(found),
        sections=sections,
        made=found,
        script=template(SCRIPT),
        style=template(STYLE),
    )


def lead(found: AttentionResult) -> list[Html]:
    text = f"“{shortened(''.join(found.tokens))}”"
    source = f" after “{shortened(''.join(found.source))}”" if found.source else ""
    many = f"{counted(len(found.tokens), 'token')}: {text}{source}."
    what = f"{found.model}, {found.pattern}, reads {many}"
    return [paragraph(headline(found), "verdict"), paragraph(what, "soft")]


def shortened(text: str, most: int = 160) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def headline(found: AttentionResult) -> str:
    """Which block looks nearest, and which farthest."""
    within = sorted(
        ((one.near, n) for n, one in enumerate(found.blocks) if one.near is not None), reverse=True
    )
    if not within:
        return "Only cross-attention attends here: its maps show which of the source is read."
    (most, nearest), (least, farthest) = within[0], within[-1]
    first, last = found.blocks[nearest], found.blocks[farthest]
    reach = f"±{found.near} tokens"
    if len(within) == 1:
        told = f"{title_of(first)} has {most:.0%} of its weight within {reach}"
        return f"{told}; {first.even or 0:.0%} if it were spread evenly."
    return (
        f"{title_of(first)} looks nearest, with {most:.0%} of its weight within {reach}; "
        f"{title_of(last, start=False)} farthest, with {least:.0%}."
    )


def title_of(one: Looks, *, start: bool = True) -> str:
    """A block by its place, counted from one as people do, and its letter's name."""
    *before, last = one.place.split(".")
    numbers = ".".join(str(int(n) + 1) for n in (*before, last) if n.isdigit())
    side = "encoder block" if before and before[0] == "encoder" else "block"
    named = f"{side} {numbers}"
    return f"{named[0].upper()}{named[1:]}" if start else named


def words_of(one: Looks, near: int) -> str:
    """What a block's weights are like, in a line."""
    told = [] if one.keys == "places" else [ALPHABET.get(one.block[0], one.block)]
    if one.near is not None:
        told.append(f"{one.near:.0%} within ±{near} (evenly: {one.even or 0:.0%})")
    return ", ".join([*told, *shares_words(one)])


def shares_words(one: Looks) -> list[str]:
    return [f"{name} {value:.3g}" for name, value in one.shares.items()]


def head_words(head: Head, near: int) -> str:
    told = []
    if head.near is not None:
        told.append(f"{head.near:.0%} of its weight within ±{near}")
        told.append(f"{head.itself or 0:.0%} on the token itself")
    told.append(f"{head.first:.0%} on the first")
    return f"{listed(told)}."


def drawing(found: AttentionResult, blocks: Sequence[Looks], name: str) -> Html:
    """Maps of all heads for the script to draw; whatever came from outside is data, not markup."""
    data = {
        "tokens": list(found.tokens),
        "source": list(found.source),
        "blocks": [
            {
                "place": one.place,
                "title": f"{title_of(one)}, {one.block}",
                "words": words_of(one, found.near),
                "rows": one.rows,
                "columns": one.columns,
                "keys": one.keys,
                "heads": [
                    {"map": head.map, "words": head_words(head, found.near)} for head in one.heads
                ],
            }
            for one in blocks
        ],
    }
    text = json.dumps(data, ensure_ascii=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Html(
        f'<div class="maps" id="{escape(name)}"></div>'
        f'<script type="application/json" id="{escape(name)}-data">{text}</script>'
    )


def maps(found: AttentionResult) -> Part | None:
    """Every head of every block that attends."""
    if not found.blocks:
        return None
    see = "Each row is a token and shows how it divides its attention over the columns; the "
    see += "stronger the colour, the more (it follows the square root, so that little shows). "
    see += "Choose a head at the side, point at a cell for its value."
    return Part(drawing(found, found.blocks, "maps"), see)


def maps_beside(found: AttentionResult | None) -> Part | None:
    """The maps on a page about something else, with what they show in a sentence."""
    part = maps(found) if found else None
    return Part(part.content, f"{headline(found)} {part.see}") if found and part else None


def learned(found: AttentionResult) -> Part | None:
    """The tables of Synthesizers."""
    if not found.tables:
        return None
    places = max(one.rows for one in found.tables)
    see = f"Tables of the first {places} places, each as weights by itself: what a token at one "
    see += "place takes from other places, whatever stands there."
    return Part(drawing(found, found.tables, "tables"), see)


def summary(found: AttentionResult) -> Part | None:
    """Where weight lies, block beside block."""
    if not found.blocks:
        return None
    head = ["", "", f"within ±{found.near}", "evenly", "itself", "first", "each head, near"]
    rows = []
    for one in found.blocks:
        learned = ", ".join(shares_words(one))
        rows.append([title_of(one), f"{one.block}\n{learned}", *cells(one)])
    see = "Shares of all weight, the mean over tokens and heads. “Evenly” is what the same tokens "
    see += "would give their neighbours if they looked at all they see alike; the first token is "
    see += "where weight often goes that no token needs."
    return Part(Html(f'<div class="near">{table(head, rows)}</div>'), see)


def cells(one: Looks) -> list[str]:
    """Shares near, evenly, on itself, on the first, and near of each head."""
    dash = "–"
    each = [dash if head.near is None else f"{head.near:.0%}" for head in one.heads]
    return [
        dash if one.near is None else f"{one.near:.0%}",
        dash if one.even is None else f"{one.even:.0%}",
        dash if one.itself is None else f"{one.itself:.0%}",
        f"{one.first:.0%}",
        " ".join(each),
    ]


def attention_table(found: AttentionResult) -> RenderableType:
    """The same in a terminal."""
    pattern = Pattern.parse(found.pattern)
    heads = right((f"±{found.near}", "evenly", "itself", "first"))
    name = Column("block", overflow="fold")
    drawn = slim(Column("", no_wrap=True), name, *heads, "heads", show_edge=False)
    for one in found.blocks:
        named = "\n".join([one.block, *shares_words(one)])
        drawn.add_row(*map(Text, [title_of(one).removeprefix("Block "), named, *cells(one)]))
    notes = [headline(found)]
    if found.tables:
        notes.append(f"{counted(len(found.tables), 'learned table')}: see the page (--output).")
    return Group(
        draw(pattern), legend([pattern]), Text(), drawn, Text(), *(Text(note) for note in notes)
    )
