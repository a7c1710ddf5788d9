"""Which model was found for this text and this budget, and why should one believe it?

One page, or a screenful of terminal, from what `fit.json` holds.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from parformer import events
from parformer.pattern import Pattern
from parformer.report import fit_effort, fit_parts
from parformer.report.fit_figures import answer, curves, rate_curves
from parformer.report.fit_glance import handed_over, headline, lead, stopped_words
from parformer.report.fit_rows import (
    Found,
    Model,
    baseline_of,
    broken_by,
    chosen_of,
    distance_of,
    fails,
    figure_words,
    labels_of,
    limit_words,
    limits_of,
    loss_of,
    models_of,
    name_of,
    outcome,
    quality_words,
    references_of,
    signed,
    unit_of_quality,
)
from parformer.report.fit_sizes import sizes_pictures
from parformer.report.page import Made, Part, Section, page, template
from parformer.report.pareto_rows import NAMES, blocks_of, finite
from parformer.report.search import long_time
from parformer.report.stack import draw, legend


def fit_page(found: Found) -> str:
    """The report as one self-contained HTML page."""
    given: list[tuple[str, list[Part | None]]] = [
        (
            "Which model is worth it?",
            [answer(found), fit_parts.figures(found), fit_parts.counting(found)],
        ),
        ("What do the models look like?", [fit_parts.stacks(found)]),
        ("Which models keep to the limits?", [fit_parts.limits(found)]),
        ("Where is attention required?", [fit_parts.attention(found)]),
        ("Which sizes were looked at?", [*sizes_pictures(found)]),
        ("How did the models learn?", [curves(found), fit_parts.sweep(found), rate_curves(found)]),
        ("What do they write?", [fit_parts.samples(found)]),
        ("What did the job take?", [fit_effort.phases(found), fit_effort.energy(found)]),
        ("What was measured, and on what?", [fit_effort.receipts(found)]),
        ("How can it be repeated?", [fit_effort.repeat(found)]),
    ]
    sections = [(heading, [part for part in parts if part]) for heading, parts in given]
    return page(
        title=headline(found),
        lead=lead(found),
        sections=[Section(heading, parts) for heading, parts in sections if parts],
        made=Made(
            command=str(found.get("command") or "parformer fit"),
            date=str(found.get("date") or "an unknown day"),
            version=str(found.get("version") or "?"),
        ),
        style=template("fit.css"),
    )


def fit_table(found: Found) -> RenderableType:
    """The verdict in a terminal: stacks, figures, words."""
    sentences = (found.get("verdict") or {}).get("sentences") or ()
    final = handed_over(found)
    figures: list[RenderableType] = []
    if models_of(found):
        figures = [_rows(found), *_notes(found), Text()]
    return Group(
        *[Text(stopped_words(found), style="yellow")] * (found.get("finished") is False),
        *_drawn(found),
        *figures,
        Text(headline(found), style="bold"),
        *(Text(str(sentence)) for sentence in sentences),
        *[Text(final)] * bool(final),
        *(Text(f"Warning: {warning}", style="yellow") for warning in found.get("warnings") or ()),
    )


def _drawn(found: Found) -> list[RenderableType]:
    """One stack under the other, and what the colours mean."""
    parts: list[RenderableType] = []
    patterns = []
    for model in models_of(found):
        if blocks := blocks_of(model):
            patterns.append(Pattern(blocks))
            title = Text.assemble((name_of(model), "bold"), f"  {labels_of(found)[name_of(model)]}")
            title.append(f"  {outcome(found, model)}", "dim")
            parts += [title, draw(patterns[-1]), Text()]
    return [*parts, legend(patterns), Text()] if patterns else []


def _rows(found: Found) -> Table:
    """A line for each model that fits 80 columns."""
    drawn = Table(box=SIMPLE_HEAD, header_style="bold", padding=0, show_edge=False)
    drawn.add_column("")
    drawn.add_column("", overflow="ellipsis", no_wrap=True, max_width=14)
    unit = unit_of_quality(found)
    for head in (unit, "loss", "latency", "", "peak memory", "state", "parameters"):
        drawn.add_column(head, justify="right", no_wrap=head == "parameters")
    for model in models_of(found):
        base = model is baseline_of(found)
        gap = None if base else distance_of(found, model)
        cells = [
            _mark(found, model),
            name_of(model),
            quality_words(found, loss_of(model)),
            f"{signed(gap.share)} {_SIGNS.get(gap.verdict, '?')}" if gap else "",
            figure_words(model, "latency"),
            "" if base else _pace(model),
            *(figure_words(model, metric) for metric in ("memory", "state", "parameters")),
        ]
        style = "bold" if model is chosen_of(found) else "dim" if model.get("dropped") else ""
        drawn.add_row(*(Text(cell) for cell in cells), style=style)
    if counted := references_of(found):
        drawn.add_section()
    for name, loss in counted.items():
        drawn.add_row("", Text(name.replace(" frequencies", "s")), quality_words(found, loss))
    return drawn


_SIGNS = {"at par": "≈", "better": "✓", "worse": " "}


def _pace(model: Model) -> str:
    latency = model.get("latency") or {}
    ratio = finite(latency.get("ratio"))
    if ratio is None:
        return ""
    return f"{ratio:.2f}×{' ≈' if latency.get('verdict') == 'tie' else '  '}"


def _mark(found: Found, model: Model) -> str:
    marks = "✓" * (model is chosen_of(found)) + "✗" * fails(model)
    return marks + "–" * bool(model.get("dropped"))


def _notes(found: Found) -> list[Text]:
    """What the marks stand for, of those that occur."""
    models, given = models_of(found), limits_of(found)
    gaps = [gap.verdict for model in models if (gap := distance_of(found, model))]
    notes = ["✓ chosen"] * (chosen_of(found) is not None)
    broken = {metric for model in models for metric in broken_by(model)}
    told = [f"{NAMES[m]} {limit_words(found, m)}" for m in given if m in broken]
    limit = f" ({', '.join(told)})" if told else ""
    notes += [f"✗ over a limit{limit}"] * any(map(fails, models))
    notes += ["– dropped early"] * any(model.get("dropped") for model in models)
    ties = [(model.get("latency") or {}).get("verdict") for model in models[1:]]
    equal = ["at par"] * ("at par" in gaps) + ["a tie"] * ("tie" in ties)
    notes += [f"≈ {' or '.join(equal)}"] * bool(equal) + ["? unclear"] * ("unclear" in gaps)
    notes += ["last rows: plain counting, on the same text"] * bool(references_of(found))
    return [Text("   ".join(notes), style="dim")] if notes else []


def plan_table(parts: Sequence[events.Part]) -> RenderableType:
    """What will be done and how long it may take, before it is begun."""
    drawn = Table(box=SIMPLE_HEAD, header_style="bold", padding=(0, 1, 0, 0), show_edge=False)
    drawn.show_footer = True
    drawn.add_column("phase", footer="all in all", no_wrap=True)
    total = sum(part.planned for part in parts)
    drawn.add_column("time", justify="right", footer=long_time(total), no_wrap=True)
    drawn.add_column("note")
    for part in parts:
        time = long_time(part.planned) if part.planned else "left out"
        style = "" if part.planned else "dim"
        drawn.add_row(Text(part.title), Text(time), Text(part.note), style=style)
    return drawn
