"""Which model was found for this text and this budget, and why should one believe it?

One page, or a screenful of terminal, from what `fit.json` holds.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

from parformer import events
from parformer.fitting.result import FitResult, ModelFacts
from parformer.fitting.scored import TaskScores
from parformer.report import fit_effort, fit_parts
from parformer.report import fit_rows as facts
from parformer.report.attention import SCRIPT, STYLE, maps_beside
from parformer.report.fit_figures import answer, curves, rate_curves
from parformer.report.fit_glance import handed_over, lead, stopped_words
from parformer.report.fit_sizes import sizes_pictures
from parformer.report.page import Section, page, template
from parformer.report.stack import draw, legend
from parformer.report.tables import right, slim
from parformer.report.words import NAMES, limit_words, long_time, signed


def fit_page(found: FitResult) -> str:
    """The report as one self-contained HTML page."""
    worth = [answer(found), fit_parts.figures(found), fit_parts.counting(found)]
    sections: list[Section] = [
        ("How good is it at its task?", [fit_parts.task(found)]),
        ("Which model is worth it?", worth),
        ("What do the models look like?", [fit_parts.stacks(found)]),
        ("Which models keep to the limits?", [fit_parts.limits(found)]),
        ("Where is attention required?", [fit_parts.attention(found)]),
        ("What does the model look at?", [maps_beside(found.looks)]),
        ("Which sizes were looked at?", sizes_pictures(found)),
        ("How did the models learn?", [curves(found), fit_parts.sweep(found), rate_curves(found)]),
        (
            "What do they say?" if found.asked.task else "What do they write?",
            [fit_parts.samples(found)],
        ),
        ("What did the job take?", [fit_effort.phases(found), fit_effort.energy(found)]),
        ("What was measured, and on what?", [fit_effort.receipts(found)]),
        ("How can it be repeated?", [fit_effort.repeat(found)]),
        ("Take it away", [fit_effort.take_away(found)]),
    ]
    return page(
        title=found.verdict.headline,
        lead=lead(found),
        sections=sections,
        made=found,
        script=template(SCRIPT) if found.looks else "",
        style=template("fit.css") + template(STYLE),
    )


def fit_table(found: FitResult) -> RenderableType:
    """The verdict in a terminal: stacks, figures, words."""
    final = handed_over(found)
    return Group(
        *[Text(stopped_words(found), style="yellow")] * (not found.finished),
        *([*_drawn(found), _rows(found), *_notes(found), Text()] if found.models else []),
        Text(found.verdict.headline, style="bold"),
        *(Text(sentence) for sentence in found.verdict.sentences),
        *[Text(final)] * bool(final),
        *(Text(f"Warning: {warning}", style="yellow") for warning in found.warnings),
    )


def _drawn(found: FitResult) -> list[RenderableType]:
    """One stack under the other, and what the colours mean."""
    parts: list[RenderableType] = []
    for model in found.models:
        title = Text.assemble((model.name, "bold"), f"  {facts.labels_of(found)[model.name]}")
        title.append(f"  {facts.outcome(found, model)}", "dim")
        parts += [title, draw(model.pattern), Text()]
    return [*parts, legend([model.pattern for model in found.models]), Text()]


def _rows(found: FitResult) -> Table:
    """A line for each model that fits 80 columns."""
    unit, first = found.quality, Column("", overflow="ellipsis", no_wrap=True, max_width=14)
    scores = found.scores if any(model.metrics for model in found.models) else None
    words = unit.words if scores is None else scores.words.replace("mean of ", "")
    heads = right((words, "loss", "latency", "", "peak memory", "state"))
    last = Column("parameters", justify="right", no_wrap=True)
    drawn = slim("", first, *heads, last, padding=0, show_edge=False)
    for model in found.models:
        base = model is found.base
        gap = None if base else facts.distance_of(found, model)
        cells = [
            _mark(found, model),
            model.name,
            unit.number(model.loss) if scores is None else _figure(scores, model),
            f"{signed(gap.share)} {_SIGNS.get(gap.verdict, '?')}" if gap else "",
            facts.figure_words(model, "latency"),
            "" if base else _pace(model),
            *(facts.figure_words(model, metric) for metric in ("memory", "state", "parameters")),
        ]
        style = "bold" if model is found.choice else "dim" if model.dropped else ""
        drawn.add_row(*(Text(cell) for cell in cells), style=style)
    counted = facts.references_of(found)
    if counted or scores:
        drawn.add_section()
    if scores:
        for name, metrics in facts.plain_of(found).items():
            drawn.add_row("", Text(name), scores.number(scores.figure(metrics)))
    for name, loss in counted.items():
        drawn.add_row("", Text(name.replace(" frequencies", "s")), unit.number(loss))
    return drawn


def _figure(scores: TaskScores, model: ModelFacts) -> str:
    return "–" if model.dropped else scores.number(scores.figure(model.metrics))


_SIGNS = {"at par": "≈", "better": "✓", "worse": " "}


def _pace(model: ModelFacts) -> str:
    took = model.latency
    return f"{took.ratio:.2f}×{' ≈' if took.verdict == 'tie' else '  '}" if took else ""


def _mark(found: FitResult, model: ModelFacts) -> str:
    return "✓" * (model is found.choice) + "✗" * model.fails + "–" * bool(model.dropped)


def _notes(found: FitResult) -> list[Text]:
    """What the marks stand for, of those that occur."""
    models = found.models
    gaps = [gap.verdict for model in models if (gap := facts.distance_of(found, model))]
    notes = ["✓ chosen"] * (found.choice is not None)
    broken = {metric for model in models for metric in facts.broken_by(model)}
    given = {m: limit_words(found.limits, found.asked.multiples, m) for m in found.limits}
    told = [f"{NAMES[m]} {words}" for m, words in given.items() if m in broken]
    limit = f" ({', '.join(told)})" if told else ""
    notes += [f"✗ over a limit{limit}"] * any(model.fails for model in models)
    notes += ["– dropped early"] * any(model.dropped for model in models)
    ties = [model.latency.verdict for model in models[1:] if model.latency]
    equal = ["at par"] * ("at par" in gaps) + ["a tie"] * ("tie" in ties)
    notes += [f"≈ {' or '.join(equal)}"] * bool(equal) + ["? unclear"] * ("unclear" in gaps)
    scored = any(model.metrics for model in models)
    plain = bool(facts.references_of(found) or (scored and facts.plain_of(found)))
    notes += ["last rows: plain counting, on the same text"] * plain
    return [Text("   ".join(notes), style="dim")] if notes else []


def plan_table(parts: Sequence[events.Part]) -> RenderableType:
    """What will be done and how long it may take, before it is begun."""
    total = long_time(sum(part.planned for part in parts))
    drawn = slim(
        Column("phase", footer="all in all", no_wrap=True),
        Column("time", justify="right", footer=total, no_wrap=True),
        "note",
        show_edge=False,
        show_footer=True,
    )
    for part in parts:
        time = long_time(part.planned) if part.planned else "left out"
        style = "" if part.planned else "dim"
        drawn.add_row(Text(part.title), Text(time), Text(part.note), style=style)
    return drawn
