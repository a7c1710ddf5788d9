"""Which pattern came through the trials, and what did the others do?"""

from __future__ import annotations

from html import escape

from rich.table import Table

from parformer.pattern import BlockSpec, Pattern
from parformer.report import figures as draw
from parformer.report.page import Html, Part, page, paragraph, strips, table
from parformer.report.tables import right, slim
from parformer.report.words import duration
from parformer.search.trials.result import Trial, TrialsResult

WHAT = (
    "Patterns were trained a little; after each look the better half went on from where it was, "
    "and the last one is what was found. “Usual” patterns are those one would try without a "
    "search, “random” ones were drawn, and “expected” ones are those that a regression on what had "
    "been seen so far took for the most promising."
)
LINES = (
    "Every line is a pattern, and ends where the pattern did not go on; the thick one was found. "
    "Dotted: what plain counting reaches."
)
SHOWN = 12
"""Patterns in a terminal's table."""


def trials_page(found: TrialsResult) -> str:
    """The report as one self-contained HTML page."""
    best = {"found": blocks_of(found.pattern)}
    for number, one in enumerate(found.trials[1:4], start=2):
        best[f"{number}."] = blocks_of(one.pattern)
    lead = [
        paragraph(found.verdict(), "verdict"),
        Html(f"<figure>{strips(best)}</figure>"),
        paragraph(WHAT, "soft"),
    ]
    effort = (
        f"{len(found.trials)} patterns, {found.updates:,} updates altogether, "
        f"{duration(found.seconds)}; one training of full length has {found.steps:,}."
    )
    sections = [
        ("Who went on, and who did not?", [Part(curves(found), LINES)]),
        ("Which patterns were tried?", [Part(all_trials(found), "The best first.")]),
        ("What did the search take?", [Part(Html(f"<p>{escape(effort)}</p>"), "")]),
    ]
    return page(
        title=f"Which blocks suit {found.corpus}?", lead=lead, sections=sections, made=found
    )


def blocks_of(pattern: Pattern) -> list[BlockSpec]:
    """All blocks, those of an encoder first."""
    return [*(pattern.encoder or ()), *pattern]


def curves(found: TrialsResult) -> draw.Plot:
    """Losses by look, the pattern that was found thick; what counting reaches beside them."""
    data = []
    for number, one in reversed(list(enumerate(found.trials))):
        values = (found.unit.value(loss) for loss in one.losses)
        points = [(x, y) for x, y in zip(found.looks, values, strict=False) if y is not None]
        label = f"{one.pattern}, {one.how}"
        data.append(
            draw.lines(
                points,
                name=label,
                colour=draw.ACCENT if number == 0 else draw.GREY,
                width=3 if number == 0 else 1,
                hover=f"{escape(label)}<br>update %{{x:,}}: %{{y:.3f}}",
                showlegend=False,
                mode="lines+markers",
            )
        )
    marks: draw.Marks = {"shapes": [], "annotations": []}
    if found.references is not None:
        known = {
            "bigram": found.references.bigram,
            found.references.best[0]: found.references.best[1],
        }
        heights = {name: found.unit.value(loss) for name, loss in known.items()}
        marks = draw.reference_marks({n: y for n, y in heights.items() if y is not None})
    x = draw.axis("updates", rangemode="tozero")
    y = draw.axis(f"{found.unit.words}, lower is better")
    return draw.plot(data, height=420, xaxis=x, yaxis=y, **marks)


def heads_of(found: TrialsResult) -> list[str]:
    return [f"{found.unit.words} after {look:,}" for look in found.looks]


def cells(found: TrialsResult, one: Trial) -> list[str]:
    told = [found.unit.number(loss) for loss in one.losses]
    return told + [""] * (len(found.looks) - len(told))


def all_trials(found: TrialsResult) -> Html:
    limited = found.target is not None
    price = [f"{found.target.metric}"] if found.target else []
    rows = []
    for one in found.trials:
        cost = [f"{one.cost:.2f}×" if one.cost is not None else ""] if limited else []
        rows.append([str(one.pattern), one.how, *cost, *cells(found, one)])
    return table(["pattern", "from", *price, *heads_of(found)], rows, region="all patterns")


def trials_table(found: TrialsResult) -> Table:
    """The best of them, for a terminal."""
    made = slim("pattern", "from", *right(f"after {look:,}" for look in found.looks))
    for number, one in enumerate(found.trials[:SHOWN]):
        style = "bold" if number == 0 else ""
        made.add_row(str(one.pattern), one.how, *cells(found, one), style=style)
    return made
