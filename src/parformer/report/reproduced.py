"""How do published figures and ours look side by side, in a terminal and on a page?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from rich.console import Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

from parformer.report.figures import GREY, axis, plot, scatter
from parformer.report.page import Html, Part, Section, page, paragraph, table, template
from parformer.report.tables import right, slim
from parformer.reproduce.published import Page, work_words
from parformer.reproduce.result import ReproducedRow, ReproducedStudy, ReproduceResult

HEADS = ("", "published", "ours", "difference", "", "how")
NOTHING = "−"
STYLES = {"exactly": "green", "within rounding": "green", "holds": "green"}
STYLES |= {"within the noise": "green", "differs": "yellow", "does not hold": "yellow"}
COLOURS = {"exact count": "#2f9e44", "measured here": "#7c5cff", "pocket": "#e8a200"}
SOURCE = (
    "Nothing in the column “ours” is taken from a paper: it was counted, measured or trained in "
    "this run, and the last column says which."
)
FAR = 60.0
"""Percent beyond which a point of the picture stands at its edge."""


def number(value: float, *, unit: str = "", signed: bool = False) -> str:
    """Three to five digits, whole numbers whole, percent with one after the point.

    >>> number(267735), number(191.950298), number(0.0003), number(-1.25, signed=True)
    ('267,735', '191.95', '0.0003', '-1.2')
    """
    if signed:
        return f"{value:+.1f}"
    if unit == "%":
        return f"{value:.1f}"
    if value == int(value) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.{5 if abs(value) >= 100 else 4 if abs(value) >= 10 else 3}g}"


def is_signed(row: ReproducedRow) -> bool:
    """Whether a row is about how much more or less there is of something."""
    return row.unit == "%" and "against" in row.what


def published_words(row: ReproducedRow) -> str:
    """As printed, or what the text says where it gives no number."""
    if row.published is None:
        return str(row.says)
    words = with_unit(row.published.text, row.unit)
    return f"{words}, {row.says}" if row.says else words


def ours_words(row: ReproducedRow) -> str:
    if row.ours is None:
        return NOTHING
    signed = is_signed(row)
    words = number(row.ours, unit=row.unit, signed=signed)
    if row.interval is not None:
        low, high = (number(end, unit=row.unit, signed=signed) for end in row.interval)
        words += f" ({low} to {high})" if low[0] in "+-" else f" ({low}–{high})"
    return with_unit(words, row.unit)


def with_unit(words: str, unit: str) -> str:
    """The unit stands after the figure, before what follows in brackets.

    >>> with_unit("0.93 (0.91–0.95)", "×"), with_unit("192", "M"), with_unit("12.8", "%")
    ('0.93× (0.91–0.95)', '192 M', '12.8%')
    """
    head, blank, rest = words.partition(" (")
    unit = unit if unit in ("%", "×", "") else f" {unit}"
    return f"{head}{unit}{blank}{rest}"


def difference_words(row: ReproducedRow) -> str:
    """How far ours is from the published figure, with a sign, such as -0.03%."""
    value = row.difference
    if value is None:
        return ""
    if value == 0:
        return "none"
    unit = row.difference_unit
    digits = 2 if abs(value) < 1 else 1
    return f"{value:+.{digits}f}{unit if unit == '%' else ' ' + unit if unit else ''}"


def letters(rows: Sequence[ReproducedRow]) -> dict[str, str]:
    """Every way that figures came about gets a letter, in the order of the rows."""
    ways = dict.fromkeys(row.how for row in rows)
    return {way: letter(place) for place, way in enumerate(ways)}


def letter(place: int) -> str:
    """Letters as spreadsheets count: a to z, then aa.

    >>> letter(0), letter(25), letter(26)
    ('a', 'z', 'aa')
    """
    name = chr(ord("a") + place % 26)
    return name if place < 26 else letter(place // 26 - 1) + name


def cells(row: ReproducedRow, ways: Mapping[str, str]) -> list[str]:
    return [
        row.what,
        published_words(row),
        ours_words(row),
        difference_words(row),
        row.verdict,
        ways[row.how],
    ]


def study_table(study: ReproducedStudy) -> RenderableType:
    """One study: its rows, how ours came about, and what that comes to in words."""
    rows, ways = study.rows, letters(study.rows)
    shown = slim(Column(Text(study.name)), *right(HEADS[1:4]), *HEADS[4:])
    for row in rows:
        texts = [Text(cell) for cell in cells(row, ways)]
        texts[4].stylize(STYLES.get(row.verdict, ""))
        shown.add_row(*texts)
    return Group(
        Text(f"{study.paper}, {study.place}: {study.title}"),
        *[shown] * bool(rows),
        *(Text(f"{name}  {way}") for way, name in ways.items()),
        *(Text(words) for words in notes(study)),
        *[Text(f"Receipt: {study.receipt}", style="dim")] * bool(study.receipt),
        Text(study.summary, style="bold"),
        Text(),
    )


def notes(study: ReproducedStudy) -> list[str]:
    """What one should know of the table, and of some of its rows."""
    words = [study.note] if study.note else []
    return words + [f"{row.what}: {row.note}." for row in study.rows if row.note]


def list_table(pages: Iterable[Page]) -> Table:
    """Every study: its name, what it is, how ours comes about, about how long."""
    name, time = (Column(head, no_wrap=True) for head in ("name", "takes about"))
    shown = slim(name, "what it is", "ours", time)
    for one in pages:
        shown.add_row(one.name, one.title, work_words(one), time_words(one.minutes))
    return shown


def time_words(minutes: float) -> str:
    """Minutes for a list.

    >>> time_words(0), time_words(1), time_words(6)
    ('no time', '1 minute', '6 minutes')
    """
    return f"{minutes:g} minute{'s' * (minutes != 1)}" if minutes else "no time"


def reproduced_page(result: ReproduceResult) -> str:
    """All studies of a run on one page."""
    studies = result.studies
    one = f"{studies[0].place}: {studies[0].title}" if len(studies) == 1 else ""
    away = ("How far is ours from what was published?", [picture(studies)])
    return page(
        title=one or "Published and ours",
        lead=[paragraph(opening(studies), "verdict"), paragraph(SOURCE, "soft")],
        sections=[away, *map(study_section, studies)],
        made=result,
        style=template("reproduced.css"),
    )


def opening(studies: Sequence[ReproducedStudy]) -> str:
    if len(studies) == 1:
        return f"{studies[0].paper}. {studies[0].summary}"
    rows = [row for study in studies for row in study.rows]
    judged = [row for row in rows if row.verdict not in ("", "too noisy to tell")]
    fine = sum(row.verdict not in ("differs", "does not hold") for row in judged)
    return (
        f"{len(studies)} tables and figures, {len(rows)} rows: {len(judged)} can be judged here, "
        f"and {fine} of them agree or differ for a known reason."
    )


def study_section(study: ReproducedStudy) -> Section:
    rows, ways, content = study.rows, letters(study.rows), ""
    if rows:
        heads = (*HEADS[:4], "agreement", "how")
        sides = table(heads, (cells(row, ways) for row in rows))
        legend = table([], ([name, way] for way, name in ways.items()))
        content = f'<div class="sides">{sides}</div><div class="ways">{legend}</div>'
    said = [*notes(study), *[f"Receipt: {study.receipt}"] * bool(study.receipt)]
    content += "".join(f"<p class=soft>{escape(words)}</p>" for words in said)
    where = f"{study.name}, {study.paper}. {study.summary}"
    return f"{study.place}: {study.title}", [Part(Html(content), where)]


def picture(studies: Sequence[ReproducedStudy]) -> Part | None:
    """Every figure that has a difference in percent, as a point."""
    groups: dict[str, list[tuple[float, str, str]]] = {}
    for study in studies:
        for row in study.rows:
            if row.difference is not None and row.difference_unit == "%":
                kind = next((kind for kind in COLOURS if kind in row.how), "otherwise")
                words = f"{escape(study.name)}: {escape(row.what)}<br>ours against published "
                point = (row.difference, study.name, f"{words}{row.difference:+.2f}%")
                groups.setdefault(kind, []).append(point)
    if sum(map(len, groups.values())) < 2:
        return None
    traces = [
        scatter(
            [(max(-FAR, min(FAR, away)), name) for away, name, _ in points],
            name=kind,
            colour=COLOURS.get(kind, GREY),
            size=9,
            hover=[words for *_, words in points],
            opacity=0.75,
        )
        for kind, points in groups.items()
    ]
    names = {name for points in groups.values() for _, name, _ in points}
    drawn = plot(
        traces,
        height=110 + 22 * len(names),
        xaxis=axis("ours against published, %", range=[-FAR - 3, FAR + 3], zeroline=True),
        yaxis=axis(type="category", autorange="reversed"),
    )
    see = (
        "Each point is a row with a published figure. On the line in the middle both are the same; "
        f"what is farther than {FAR:.0f}% stands at the edge."
    )
    return Part(drawn, see)
