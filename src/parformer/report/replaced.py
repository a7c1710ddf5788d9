"""Which blocks could go, which did, and how does one see it?"""

from __future__ import annotations

from parformer.compress.replacing.result import Candidate, Replacement
from parformer.report import figures as draw
from parformer.report.figures import Trace
from parformer.report.page import Part, Section, table
from parformer.report.search_figures import choice_label
from parformer.report.stack import COLOURS
from parformer.report.words import Unit, signed

HOVER = "block %{x}<br>%{y}: %{z:.1%}"


def replaced_sections(found: Replacement, unit: Unit) -> list[Section]:
    """What was learned of every block, what was tried, and what other limits would lead to."""
    return [
        ("Which blocks can go?", [gates(found), alone(found)]),
        ("What was taught before one was chosen?", [tried(found, unit)]),
        ("What would other limits lead to?", [ladder(found)]),
    ]


def names_of(found: Replacement) -> list[str]:
    """Places, by their numbers in the pattern from 1 on."""
    told = []
    for path in found.paths:
        stack, _, number = path.rpartition("blocks.")
        told.append(f"{stack.replace('.', ' ')}{int(number) + 1}")
    return told


def options_of(found: Replacement) -> list[str]:
    """All choices that any place has, those that were there first."""
    first = [choices[0] for choices in found.choices]
    others = [choice for choices in found.choices for choice in choices[1:]]
    return list(dict.fromkeys((*first, *others)))


def gates(found: Replacement) -> Part:
    """How sure the gates are of every choice, all places being free at once."""
    options = options_of(found)
    columns = [
        [dict(zip(choices, row, strict=True)).get(one, 0.0) for one in options]
        for choices, row in zip(found.choices, found.learned.chances, strict=True)
    ]
    picks = [
        options.index(choices[pick])
        for choices, pick in zip(found.choices, found.picks, strict=True)
    ]
    names = names_of(found)
    drawn = draw.plot(
        draw.heat_map(columns, [choice_label(one) for one in options], picks, HOVER),
        height=110 + 36 * len(options),
        xaxis=draw.axis(
            "block", tickvals=list(range(1, len(names) + 1)), ticktext=names, showgrid=False
        ),
        yaxis=draw.axis(autorange="reversed", showgrid=False),
        coloraxis=draw.shares_scale(showscale=False),
        showlegend=False,
    )
    see = (
        "All gates open at once, weights frozen, a penalty for cost: the stronger the colour, the "
        f"surer the gates after {found.plan.updates:,} updates; dots mark what was chosen."
    )
    return Part(drawn, see)


def alone(found: Replacement) -> Part:
    """What each replacement loses by itself."""
    names, data = names_of(found), list[Trace]()
    shades = iter(draw.SHADES)
    for option in options_of(found):
        x, y = [], []
        for name, choices, row in zip(names, found.choices, found.learned.alone, strict=True):
            if option in choices[1:]:
                x.append(name)
                y.append(100 * row[choices.index(option)])
        if x:
            known = COLOURS.get(option) if option in COLOURS else None
            label = choice_label(option)
            hover = f"block %{{x}}<br>{label}: loss %{{y:+.2f}}%"
            data.append(draw.bars(x, y, name=label, colour=known or next(shades), hover=hover))
    drawn = draw.plot(
        data,
        height=300,
        barmode="group",
        xaxis=draw.axis("block", type="category"),
        yaxis=draw.axis("the loss grows by", "%"),
    )
    see = (
        f"Each block replaced alone, after {found.plan.passes:,} passes of the teacher, on some "
        "training text. Single losses do not add up: several replacements together cost more."
    )
    return Part(drawn, see)


def tried(found: Replacement, unit: Unit) -> Part:
    """The choices that were taught."""
    heads = ["pattern", "found by", "cost", "as soon as replaced", "taught"]

    def cells(one: Candidate, number: int) -> list[str]:
        told = f"{one.cost:.2f}×" + ("" if one.time is None else f", by the clock {one.time:.2f}×")
        after = "" if one.after is None else unit.number(one.after)
        mark = "✓ " if number == found.chosen else ""
        return [f"{mark}{one.pattern}", one.by, told, unit.number(one.before), after]

    rows = [cells(one, number) for number, one in enumerate(found.candidates)]
    what = "time" if found.prices.metric == "latency" else "parameters"
    see = (
        f"Cost is a share of the {what} of the model as it was; {found.limit:.2f}× was allowed. "
        f"{unit.words[:1].upper()}{unit.words[1:]}: as soon as replaced on training text, taught "
        "on validation text, by which one was chosen."
    )
    return Part(table(heads, rows), see)


def ladder(found: Replacement) -> Part | None:
    """Other limits, solved for without training anything."""
    if not found.ladder:
        return None
    rows = [
        [f"{rung.limit:.1f}×", f"{rung.cost:.2f}×", rung.pattern, signed(rung.alone, 1)]
        for rung in found.ladder
    ]
    heads = ["limit", "cost", "pattern", "losses one by one, added up"]
    return Part(
        table(heads, rows),
        "The least loss within each limit, nothing taught. The same command with another limit "
        "finds all that was fitted again.",
    )
