"""Stair by stair: how much smaller and faster did a model become, and what did it lose?"""

from __future__ import annotations

from html import escape

from rich.table import Table

from parformer.compress.planning import Plan
from parformer.compress.receipt import Change, Figures
from parformer.compress.result import CompressResult, Stair
from parformer.report import figures as draw
from parformer.report.page import Html, Part, Section, page, paragraph, table
from parformer.report.replaced import replaced_sections
from parformer.report.tables import right, slim
from parformer.report.words import between, duration, megabytes, signed

WHAT = (
    "Every stair builds on the last one that was taken. All models were timed in turns, in the "
    "same rounds, and read the same validation text; where a difference lies with 95% confidence "
    "stands behind it, and one that may be noise is marked ≈. "
    "A stair that gained nothing, or lost more than it may, was left out."
)
RECALL = (
    "Copying and recall: how often a model finds again what it has just read, among common tokens "
    "in an order that means nothing; whoever guesses reaches {copying:.0%} and {recall:.0%}."
)
PLANNED = (
    "Losses are of some training text, without teaching; of words it is the share of the text that "
    "is spelled otherwise."
)
HEADS = ("size", "one token", "64 tokens", "memory")


def compressed_page(found: CompressResult) -> str:
    """The receipts as one self-contained HTML page."""
    lead = [paragraph(found.verdict(), "verdict"), paragraph(WHAT, "soft")]
    first = found.first.figures.recalled
    if first is not None:
        told = RECALL.format(copying=first.copying_chance, recall=first.recall_chance)
        lead.append(paragraph(told, "soft"))
    rows = [[stair.name, *cells(found, stair)] for stair in found.stairs]
    done = [
        [stair.name, stair.done, judged(stair), duration(stair.seconds) if stair.seconds else ""]
        for stair in found.stairs
    ]
    sections: list[Section] = [
        (
            "What does every stair gain, and what does it cost?",
            [Part(table(["", *heads_of(found)], rows), "")],
        ),
        (
            "Size against quality",
            [Part(staircase(found, "size"), "Left and low is better; grey: left out.")],
        ),
        (
            "Time against quality",
            [Part(staircase(found, "token"), "Left and low is better; grey: left out.")],
        ),
        ("What was done?", [Part(table(["", "what", "judged", "took"], done), "")]),
    ]
    if found.plan is not None:
        sections.append(planned_section(found.plan))
    for stair in found.stairs:
        if stair.replacement is not None:
            sections += replaced_sections(stair.replacement, found.unit)
    samples = [stair for stair in found.stairs if stair.sample]
    if samples:
        told = "".join(
            f"<h3>{escape(stair.name)}</h3><pre>{escape(found.prompt + stair.sample)}</pre>"
            for stair in samples
        )
        sections.append(
            ("What do they write?", [Part(Html(told), "The same words to go on from.")])
        )
    return page(
        title=f"{found.source}, compressed",
        lead=lead,
        sections=sections,
        made=found,
        style="pre { white-space: pre-wrap }",
    )


def judged(stair: Stair) -> str:
    """Why a stair was left out, or stayed although it lost more than it may."""
    if not stair.taken:
        return f"left out: {stair.why}"
    if stair.judged_with:
        return f"lost more than it may, and was judged with {stair.judged_with}"
    return "taken"


def planned_section(plan: Plan) -> Section:
    """What was tried on the original alone, and what was decided by it."""
    rows = [
        [
            one.step,
            one.what,
            f"{one.size:.0%}",
            f"{one.time:.0%}" if one.time != 1 else "",
            f"{signed(one.loses, 2)}",
        ]
        for one in plan.tried
    ]
    shown = table(["", "what was tried", "bytes left", "time left", "loss"], rows)
    return ("What was planned, and why?", [Part(shown, f"{plan.words()} {PLANNED}")])


def staircase(found: CompressResult, what: str) -> draw.Plot:
    """Loss against bytes or seconds."""
    scale, unit = (1e6, "MB") if what == "size" else (1e-3, "ms")
    taken = [stair for stair in found.stairs if stair.taken]
    data = [
        draw.lines(
            [point(found, stair, what, scale) for stair in taken],
            name="taken",
            colour=draw.ACCENT,
            width=2,
            hover=f"%{{x:.3g}} {unit}, %{{y:.4f}}",
            showlegend=False,
            mode="lines+markers",
        )
    ]
    for stair in found.stairs:
        x, y = point(found, stair, what, scale)
        data.append(
            draw.scatter(
                [(x, y)],
                name=stair.name,
                colour=draw.ACCENT if stair.taken else draw.GREY,
                hover=f"{escape(stair.name)}<br>{x:.3g} {unit}, {y:.4f}",
                showlegend=False,
            )
        )
    marks: list[draw.Trace] = [
        {"x": x, "y": y, "text": escape(stair.name), "showarrow": False, "yshift": 14}
        for stair in found.stairs
        for x, y in [point(found, stair, what, scale)]
    ]
    title = "size on disk" if what == "size" else "a step of one token"
    return draw.plot(
        data,
        height=380,
        xaxis=draw.axis(title, unit, rangemode="tozero"),
        yaxis=draw.axis(f"{found.unit.words}, lower is better"),
        annotations=marks,
    )


def point(found: CompressResult, stair: Stair, what: str, scale: float) -> tuple[float, float]:
    loss = found.unit.value(stair.figures.loss)
    return getattr(stair.figures, what) / scale, float("nan") if loss is None else loss


def heads_of(found: CompressResult) -> list[str]:
    probed = ["copying, recall"] if found.first.figures.recalled is not None else []
    return [*HEADS, found.unit.words, *probed]


def cells(found: CompressResult, stair: Stair) -> list[str]:
    """A stair's receipt."""
    figures, first = stair.figures, found.first.figures
    less = "" if stair is found.first else f" ÷{first.size / figures.size:.1f}"
    return [
        f"{megabytes(figures.size)}{less}",
        f"{duration(figures.token)}{times(figures.token_change)}",
        f"{duration(figures.piece)}{times(figures.piece_change)}",
        megabytes(figures.memory),
        f"{found.unit.number(figures.loss)}{lost(figures)}",
        *remembered(found, figures),
    ]


def remembered(found: CompressResult, figures: Figures) -> list[str]:
    """What is found again of what was just read, in percent."""
    if found.first.figures.recalled is None:
        return []
    told = figures.recalled
    return [""] if told is None else [f"{told.copying:.0%}, {told.recall:.0%}"]


def times(change: Change | None) -> str:
    """How a time changed, and within what; ≈ where that may be noise."""
    if change is None:
        return ""
    mark = " ≈" if change.verdict == "tie" else ""
    return f" ×{change.ratio:.2f}{mark} ({change.low:.2f} to {change.high:.2f})"


def lost(figures: Figures) -> str:
    """How a loss changed, and within what; ≈ where that may be noise."""
    change = figures.loss_change
    if change is None:
        return ""
    tie = " ≈" if change.verdict == "tie" else ""
    ends = between((change.low - 1, change.high - 1), 2)
    return f" (loss {signed(change.ratio - 1, 2)}{tie}, {ends})"


def compressed_table(found: CompressResult) -> Table:
    """The receipts for a terminal."""
    made = slim("", *right(heads_of(found)))
    for stair in found.stairs:
        name = f"{'✓' if stair.taken else '–'} {stair.name}"
        made.add_row(name, *cells(found, stair), style="bold" if stair is found.last else "")
    return made
