"""What does a fit look like, figure by figure?

Every figure comes with the sentence under it, written from the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from parformer.fitting.phases import Curve
from parformer.fitting.result import FitResult, ModelFacts
from parformer.report import figures as draw
from parformer.report import fit_rows as facts
from parformer.report import words as say
from parformer.report.figures import Trace
from parformer.report.page import Part
from parformer.search.limits import METRICS, in_words

LATE = 0.3
"""The share of the updates after which a curve has to be in the frame."""

Line = list[tuple[int, float]]


def answer(found: FitResult) -> Part | None:
    """Which model is as good as the baseline, and how quick is it?"""
    heights = {m.name: y for m in found.models if (y := _height(found, m)) is not None}
    shown = [m for m in found.models if m.latency and m.name in heights]
    times = [m.latency for m in shown if m.latency]
    if not times:
        return None
    limit, margin = facts.limits_here(found).get("latency"), 100 * found.asked.margin
    unit, size = say.unit_of("latency", [took.seconds for took in times])
    wide = [end for took in times for end in (took.low, took.high)]
    ends = draw.room_around([x / size for x in (*wide, limit) if x is not None])
    gaps = [gap for model in shown if (gap := facts.distance_of(found, model))]
    tall = [100 * end for gap in gaps for end in (gap.ends or (gap.share,))] + [-margin, margin]
    words: Trace = {"xref": "paper", "x": 0.99, "xanchor": "right", "showarrow": False}
    words |= {"text": f"at par: within {say.percent(found.asked.margin)}", "font": {"size": 12}}
    # ticks with a suffix take more room than is left for them
    up = draw.axis("loss against the baseline’s", standoff=14, ticksuffix="%")
    marks = draw.limit_line("latency", limit, size)
    drawn = draw.plot(
        [_point(found, m, 100 * heights[m.name], size, sum(ends) / 2) for m in shown],
        height=480,
        xaxis=draw.axis(f"latency of {facts.timed(found)}", unit, range=ends),
        yaxis=up | {"range": draw.room_around(tall)},
        shapes=[draw.band("y", -margin, margin), *marks["shapes"]],
        annotations=[words | {"y": -margin, "yanchor": "bottom"}, *marks["annotations"]],
    )
    return Part(drawn, _answer_words(found, shown))


def _height(found: FitResult, model: ModelFacts) -> float | None:
    if model is found.base:
        return None if model.loss is None else 0.0
    gap = facts.distance_of(found, model)
    return None if gap is None else gap.share


def _point(found: FitResult, model: ModelFacts, y: float, size: float, middle: float) -> Trace:
    """One trained model; the chosen one is large, one that breaks a limit hollow."""
    took, gap, chosen = model.latency, facts.distance_of(found, model), model is found.choice
    assert took is not None
    x, colour = took.seconds / size, facts.colours_of(found)[model.name]
    name = escape(facts.labels_of(found)[model.name])
    told = [f"<b>{name}</b>", facts.outcome(found, model), escape(found.quality.told(model.loss))]
    told += [f"loss {say.signed(gap.share)} ({gap.interval})"] if gap else []
    told += [f"{say.NAMES[metric]} {facts.figure_words(model, metric)}" for metric in METRICS]
    trace = draw.scatter(
        [(x, y)],
        colour=colour,
        size=17 if chosen else 11,
        symbol="circle-open" if model.fails else "circle",
        marker={"line": {"width": 2.5 if model.fails else 0}},
        hover="<br>".join(filter(None, told)),
        cliponaxis=False,
        error_x=draw.error_bars([x], [(took.low / size, took.high / size)], colour, 1.5),
    )
    trace["name"] = f"<b>{name}</b>" if chosen else name
    if words := ", ".join(["baseline"] * (model is found.base) + ["chosen"] * chosen):
        # towards the middle, where there is room
        side = "left" if x > middle else "right"
        trace |= {"mode": "markers+text", "text": [f"<b>{words}</b>" if chosen else words]}
        trace["textposition"] = f"top {side}"
    if gap and gap.ends:
        low, high = (100 * end for end in gap.ends)
        trace["error_y"] = draw.error_bars([y], [(low, high)], colour, 1.5)
    return trace


def _answer_words(found: FitResult, shown: Sequence[ModelFacts]) -> str:
    labels, chosen = facts.labels_of(found), found.choice
    limit, margin = facts.limits_here(found).get("latency"), say.percent(found.asked.margin)
    see = ["Every point is a trained model: further left is quicker, further down is better."]
    band = f"In the grey band the loss is within {margin} of the baseline’s"
    if limit is not None:
        band += f"; left of the dashed line {facts.timed(found)} takes less than "
        band += in_words("latency", limit)
    see.append(f"{band}.")
    if any(model.fails for model in shown):
        see.append("Hollow points break a limit.")
    if chosen is not None and chosen in shown:
        words = f"{labels[chosen.name]} was chosen: {facts.figure_words(chosen, 'latency')}"
        if gap := facts.distance_of(found, chosen):
            words += f", {say.worse_words(gap.share)} than the baseline ({gap.interval})"
        see.append(f"{words}.")
    if left := [labels[model.name] for model in found.models if model not in shown]:
        see.append(f"Not trained to the end, or not measured, so not shown: {say.listed(left)}.")
    if pairs := [model.against for model in shown if model.against]:
        seeds = {pair.seeds for pair in pairs}
        see.append(
            f"Thin lines are 95% intervals: of the latency, and of the difference in loss over "
            f"{say.span(pair.segments for pair in pairs)} paired segments and {say.span(seeds)} "
            f"seed{'s' * (seeds != {1})}."
        )
    return " ".join(see)


def curves(found: FitResult) -> Part | None:
    """How the models learned, and which were dropped on the way."""
    data: list[Trace] = []
    drawn: list[tuple[int, float, bool]] = []
    """Update, height, and whether the line ends there."""
    for model in found.models:
        known = {"training": model.curve, "validation": model.valid_curve}
        ways = {words: _line(found, curve) for words, curve in known.items()}
        for words, line in ways.items():
            if line:
                thin = words == "training" and bool(ways["validation"])
                data.append(_curve(found, model, line, words, thin=thin))
                drawn += [(x, y, x == line[-1][0]) for x, y in line]
    if not data:
        return None
    longest = max(x for x, *_ in drawn)
    late = [y for x, y, last in drawn if last or x >= LATE * longest]
    early = [y for x, y, last in drawn if not last and x < LATE * longest]
    counted = _counted(found)
    low, high = draw.room_around(late + list(counted.values()))
    lowest = min(early + late)
    low = max(low, min([lowest, *counted.values()]) - 0.08 * (high - lowest))
    x = draw.axis("updates", rangemode="tozero")
    y = draw.axis(f"{found.learning.words}, lower is better", range=[low, high])
    figure = draw.plot(data, height=420, xaxis=x, yaxis=y, **draw.reference_marks(counted))
    return Part(figure, _curve_words(found, clipped=max(early, default=low) > high))


def _curve(found: FitResult, model: ModelFacts, line: Line, words: str, *, thin: bool) -> Trace:
    label, colour = facts.labels_of(found)[model.name], facts.colours_of(found)[model.name]
    trace = draw.lines(
        line,
        name=label,
        colour=colour,
        width=1 if thin else 3 if model is found.choice else 2,
        hover=f"{escape(label)}, {words}<br>update %{{x:,}}: %{{y:.3f}}",
        legendgroup=model.name,
    )
    if thin:
        return trace | {"opacity": 0.3, "showlegend": False}
    symbols = ["circle"] * (len(line) - 1) + ["x" if model.dropped else "circle"]
    marker: Trace = {"size": [4] * (len(line) - 1) + [10], "symbol": symbols, "color": colour}
    return trace | {"mode": "lines+markers", "marker": marker}


def _counted(found: FitResult) -> dict[str, float]:
    """What counting reaches on validation text, but for uniform guesses, which lie far above."""
    known = {name: found.quality.value(loss) for name, loss in facts.references_of(found).items()}
    return {n: value for n, value in known.items() if value is not None and n != "uniform"}


def rate_curves(found: FitResult) -> Part | None:
    """How the short trainings went whose losses chose the learning rates."""
    labels, colours, data = facts.labels_of(found), facts.colours_of(found), []
    for model in found.models:
        for number, tried in enumerate(tried for tried in model.rates if tried.curve):
            line, label = _line(found, tried.curve), labels[model.name]
            data.append(
                draw.lines(
                    line,
                    name=label,
                    colour=colours[model.name],
                    width=2.5 if tried.rate == model.rate else 1,
                    dash="dot" if tried.stuck else "solid",
                    hover=f"{escape(label)} at {tried.rate:g}<br>update %{{x:,}}: %{{y:.3f}}",
                    legendgroup=model.name,
                    showlegend=number == 0,
                )
            )
    if not data:
        return None
    x = draw.axis("updates", rangemode="tozero")
    y = draw.axis(f"{found.learning.words} on the text trained on")
    drawn = draw.plot(data, height=380, xaxis=x, yaxis=y, **draw.reference_marks(_counted(found)))
    see = "Every line is a short training at one rate, thick where that rate was taken. "
    see += "Of rates that are about as good the lowest is taken, and a line that does not leave "
    see += "the letter frequencies (dotted) decides nothing."
    return Part(drawn, see)


def _line(found: FitResult, curve: Curve) -> Line:
    known = [(step, found.learning.value(loss)) for step, loss in curve]
    return [(x, y) for x, y in known if y is not None]


def _curve_words(found: FitResult, *, clipped: bool) -> str:
    labels, unit = facts.labels_of(found), found.learning
    see = ["Lines are the loss on the text trained on."]
    if any(model.valid_curve for model in found.models):
        see = ["Thick lines are the loss on validation text, thin ones on the text trained on."]
    see += ["The first updates lie above the frame."] * clipped
    see += ["Dotted lines are what plain counting reaches."] * bool(facts.references_of(found))
    done = {m.name: m.loss for m in found.models if m.loss is not None}
    if len(done) > 1 and not found.lesson:
        best, last = (labels[pick(done, key=done.__getitem__)] for pick in (min, max))
        ends = [unit.number(pick(done.values())) for pick in (min, max)]
        see.append(f"In the end {best} is lowest ({ends[0]}) and {last} highest ({ends[1]}).")
    for model in found.models:
        if model.dropped:
            when, why = say.counted(model.dropped.step, "update"), model.dropped.why.rstrip(".")
            see.append(f"{labels[model.name]} was dropped after {when}: {why}.")
    return " ".join(see)
