"""What does a fit look like, figure by figure?

Every figure comes with the sentence under it, written from the same numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from parformer.report.fit_rows import (
    Found,
    Model,
    baseline_of,
    chosen_of,
    colours_of,
    distance_of,
    ends_of,
    fails,
    figure_of,
    figure_words,
    interval_told,
    labels_of,
    limits_here,
    loss_of,
    margin_of,
    models_of,
    name_of,
    outcome,
    percent,
    quality_of,
    quality_told,
    quality_words,
    references_of,
    signed,
    unit_of_quality,
    worse_words,
)
from parformer.report.page import FAINT, Part, axis, listed, plot
from parformer.report.pareto_figures import room_around
from parformer.report.pareto_rows import NAMES, counted, finite, span, unit_of
from parformer.report.search_figures import reference_marks
from parformer.search.limits import METRICS, in_words

Trace = dict[str, Any]

LIMIT = "#d9480f"
LATE = 0.3
"""The share of the updates after which a curve has to be in the frame."""

_CURVES = ("curve", "valid_curve")


def answer(found: Found) -> Part | None:
    """Which model is as good as the baseline, and how quick is it?"""
    shown = []
    for model in models_of(found):
        x, y = figure_of(model, "latency"), _height(found, model)
        if x is not None and y is not None:
            shown.append((model, x, y))
    if not shown:
        return None
    models = [model for model, _, _ in shown]
    limit, margin = limits_here(found).get("latency"), 100 * margin_of(found)
    unit, size = unit_of("latency", [x for _, x, _ in shown])
    wide = [end for model, x, _ in shown for end in (ends_of(model.get("latency")) or (x,))]
    wide += [] if limit is None else [limit]
    ends = room_around([x / size for x in wide])
    middle = sum(ends) / 2
    gaps = [gap for model in models if (gap := distance_of(found, model))]
    tall = [100 * end for gap in gaps for end in (gap.ends or (gap.share,))] + [-margin, margin]
    band: Trace = {"type": "rect", "xref": "paper", "x0": 0, "x1": 1, "layer": "below"}
    band |= {"y0": -margin, "y1": margin, "fillcolor": FAINT, "line": {"width": 0}}
    words: Trace = {"xref": "paper", "x": 0.99, "xanchor": "right", "showarrow": False}
    words |= {"text": f"at par: within {percent(margin_of(found))}", "font": {"size": 12}}
    height = axis("loss against the baseline’s", range=room_around(tall), ticksuffix="%")
    height["title"]["standoff"] = 14  # ticks with a suffix take more room than is left for them
    line, sign = limit_line("latency", limit, size)
    drawn = plot(
        [_point(found, m, x / size, 100 * y, size=size, middle=middle) for m, x, y in shown],
        height=480,
        xaxis=axis(f"latency of a step, {unit}", range=ends),
        yaxis=height,
        shapes=[band, *line],
        annotations=[words | {"y": -margin, "yanchor": "bottom"}, *sign],
    )
    return Part(drawn, _answer_words(found, models))


def _height(found: Found, model: Model) -> float | None:
    if model is baseline_of(found):
        return None if loss_of(model) is None else 0.0
    gap = distance_of(found, model)
    return None if gap is None else gap.share


def limit_line(metric: str, limit: float | None, size: float) -> tuple[list[Trace], list[Trace]]:
    """A dashed line where what is allowed ends, and its name beside it."""
    if limit is None:
        return [], []
    line: Trace = {"type": "line", "yref": "paper", "y0": 0, "y1": 1}
    line |= {"x0": limit / size, "x1": limit / size}
    line["line"] = {"color": LIMIT, "width": 1.5, "dash": "dash"}
    sign: Trace = {"x": limit / size, "xanchor": "left", "yref": "paper", "y": 1, "xshift": 3}
    sign |= {"yanchor": "top", "text": f"limit {in_words(metric, limit)}", "showarrow": False}
    return [line], [sign | {"font": {"color": LIMIT, "size": 12}}]


def _point(found: Found, model: Model, x: float, y: float, *, size: float, middle: float) -> Trace:
    """One trained model; the chosen one is large, one that breaks a limit hollow."""
    colour, chosen = colours_of(found)[name_of(model)], model is chosen_of(found)
    name = escape(labels_of(found)[name_of(model)])
    trace: Trace = {"type": "scatter", "mode": "markers", "x": [x], "y": [y], "cliponaxis": False}
    trace["name"] = f"<b>{name}</b>" if chosen else name
    trace["marker"] = {
        "size": 17 if chosen else 11,
        "color": colour,
        "symbol": "circle-open" if fails(model) else "circle",
        "line": {"width": 2.5 if fails(model) else 0},
    }
    words = ", ".join(["baseline"] * (model is baseline_of(found)) + ["chosen"] * chosen)
    if words:
        # towards the middle, where there is room
        side = "left" if x > middle else "right"
        trace |= {"mode": "markers+text", "text": [f"<b>{words}</b>" if chosen else words]}
        trace["textposition"] = f"top {side}"
    bars: Trace = {"type": "data", "symmetric": False, "color": colour, "thickness": 1.5}
    if ends := ends_of(model.get("latency")):
        low, high = (end / size for end in ends)
        trace["error_x"] = bars | {"array": [high - x], "arrayminus": [x - low], "width": 0}
    gap = distance_of(found, model)
    if gap and gap.ends:
        low, high = (100 * end for end in gap.ends)
        trace["error_y"] = bars | {"array": [high - y], "arrayminus": [y - low], "width": 0}
    lines = [f"<b>{name}</b>", outcome(found, model), escape(quality_told(found, loss_of(model)))]
    lines += [f"loss {signed(gap.share)} ({interval_told(gap)})"] if gap else []
    lines += [f"{NAMES[metric]} {figure_words(model, metric)}" for metric in METRICS]
    trace["hovertext"] = "<br>".join(filter(None, lines))
    return trace | {"hoverinfo": "text"}


def _answer_words(found: Found, shown: Sequence[Model]) -> str:
    labels, limit, chosen = labels_of(found), limits_here(found).get("latency"), chosen_of(found)
    see = ["Every point is a trained model: further left is quicker, further down is better."]
    band = f"In the grey band the loss is within {percent(margin_of(found))} of the baseline’s"
    if limit is not None:
        band += f"; left of the dashed line a step takes less than {in_words('latency', limit)}"
    see.append(f"{band}.")
    if any(map(fails, shown)):
        see.append("Hollow points break a limit.")
    if chosen is not None and chosen in shown:
        words = f"{labels[name_of(chosen)]} was chosen: {figure_words(chosen, 'latency')}"
        if gap := distance_of(found, chosen):
            words += f", {worse_words(gap.share)} than the baseline ({interval_told(gap)})"
        see.append(f"{words}.")
    if left := [labels[name_of(model)] for model in models_of(found) if model not in shown]:
        see.append(f"Not trained to the end, or not measured, so not shown: {listed(left)}.")
    pairs = [against for model in shown if (against := model.get("against"))]
    seeds, segments = (
        sorted({int(n) for row in pairs if (n := finite(row.get(what))) is not None})
        for what in ("seeds", "segments")
    )
    if seeds and segments:
        see.append(
            f"Thin lines are 95% intervals: of the latency, and of the difference in loss over "
            f"{span(segments)} paired segments and {span(seeds)} seed{'s' * (seeds != [1])}."
        )
    return " ".join(see)


def curves(found: Found) -> Part | None:
    """How the models learned, and which were dropped on the way."""
    labels, colours = labels_of(found), colours_of(found)
    data: list[Trace] = []
    early: list[float] = []
    late: list[float] = []
    longest = _last_step(found)
    for model in models_of(found):
        kinds = {kind: _line(found, model.get(kind)) for kind in _CURVES}
        name, chosen = name_of(model), model is chosen_of(found)
        for kind, line in kinds.items():
            if not line:
                continue
            trace: Trace = {"type": "scatter", "x": [x for x, _ in line], "legendgroup": name}
            trace |= {"y": [y for _, y in line], "name": escape(labels[name])}
            words = "training" if kind == "curve" else "validation"
            hover = f"{escape(labels[name])}, {words}<br>update %{{x:,}}: %{{y:.3f}}"
            trace |= {"hovertemplate": f"{hover}<extra></extra>", "mode": "lines"}
            if kind == "curve" and kinds["valid_curve"]:
                thin = {"line": {"color": colours[name], "width": 1}, "opacity": 0.3}
                data.append(trace | thin | {"showlegend": False})
            else:
                ends = ["circle"] * (len(line) - 1) + ["x" if model.get("dropped") else "circle"]
                marks = {"size": [4] * (len(line) - 1) + [10], "symbol": ends}
                trace["line"] = {"color": colours[name], "width": 3 if chosen else 2}
                marker = {"marker": marks | {"color": colours[name]}}
                data.append(trace | {"mode": "lines+markers"} | marker)
            for x, y in line:
                (late if x >= LATE * longest or x == line[-1][0] else early).append(y)
    if not data:
        return None
    counted = _counted(found)
    low, high = room_around(late + list(counted.values()))
    low = max(low, min(early + late + [*counted.values()]) - 0.08 * (high - min(early + late)))
    drawn = plot(
        data,
        height=420,
        xaxis=axis("updates", rangemode="tozero"),
        yaxis=axis(f"{escape(unit_of_quality(found))}, lower is better", range=[low, high]),
        **_marks(counted),
    )
    return Part(drawn, _curve_words(found, clipped=max(early, default=low) > high))


def _counted(found: Found) -> dict[str, float]:
    """What counting reaches on validation text, but for uniform guesses, which lie far above."""
    known = {name: quality_of(found, loss) for name, loss in references_of(found).items()}
    return {n: value for n, value in known.items() if value is not None and n != "uniform"}


def _marks(counted: Mapping[str, float]) -> dict[str, list[Trace]]:
    lines, names = reference_marks(counted)
    return {"shapes": lines, "annotations": names}


def rate_curves(found: Found) -> Part | None:
    """How the short trainings went whose losses chose the learning rates."""
    labels, colours, data = labels_of(found), colours_of(found), []
    for model in models_of(found):
        name = name_of(model)
        tried = [row for row in model.get("rates") or () if row.get("curve")]
        for number, row in enumerate(tried):
            line = _line(found, row["curve"])
            taken = row.get("rate") == model.get("rate")
            words = f"{escape(labels[name])} at {row['rate']:g}"
            trace: Trace = {"type": "scatter", "mode": "lines", "name": escape(labels[name])}
            trace |= {"x": [x for x, _ in line], "y": [y for _, y in line]}
            trace |= {"legendgroup": name, "showlegend": number == 0}
            trace["hovertemplate"] = f"{words}<br>update %{{x:,}}: %{{y:.3f}}<extra></extra>"
            trace["line"] = {"color": colours[name], "width": 2.5 if taken else 1}
            trace["line"]["dash"] = "dot" if row.get("stuck") else "solid"
            data.append(trace)
    if not data:
        return None
    drawn = plot(
        data,
        height=380,
        xaxis=axis("updates", rangemode="tozero"),
        yaxis=axis(f"{escape(unit_of_quality(found))} on the text trained on"),
        **_marks(_counted(found)),
    )
    see = "Every line is a short training at one rate, thick where that rate was taken. "
    see += "Of rates that are about as good the lowest is taken, and a line that does not leave "
    see += "the letter frequencies (dotted) decides nothing."
    return Part(drawn, see)


def _last_step(found: Found) -> float:
    lines = [_line(found, m.get(kind)) for m in models_of(found) for kind in _CURVES]
    return max((x for line in lines for x, _ in line), default=0.0)


def _line(found: Found, points: Any) -> list[tuple[float, float]]:
    line = []
    for step, loss in points or ():
        x, y = finite(step), quality_of(found, loss)
        if x is not None and y is not None:
            line.append((x, y))
    return line


def _curve_words(found: Found, *, clipped: bool) -> str:
    labels = labels_of(found)
    see = ["Lines are the loss on the text trained on."]
    if any(model.get("valid_curve") for model in models_of(found)):
        see = ["Thick lines are the loss on validation text, thin ones on the text trained on."]
    see += ["The first updates lie above the frame."] * clipped
    see += ["Dotted lines are what plain counting reaches."] * bool(references_of(found))
    done = {name_of(m): x for m in models_of(found) if (x := loss_of(m)) is not None}
    if len(done) > 1:
        best, last = (labels[pick(done, key=done.__getitem__)] for pick in (min, max))
        ends = [quality_words(found, pick(done.values())) for pick in (min, max)]
        see.append(f"In the end {best} is lowest ({ends[0]}) and {last} highest ({ends[1]}).")
    for model in models_of(found):
        if dropped := model.get("dropped"):
            words = f"{labels[name_of(model)]} was dropped after "
            words += counted(dropped.get("step"), "update")
            see.append(f"{words}: {str(dropped.get('why') or 'too far behind').rstrip('.')}.")
    return " ".join(see)
