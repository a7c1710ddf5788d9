"""What does a Pareto search look like, figure by figure?

Every figure comes with the sentence under it, written from the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from parformer.report.page import ACCENT, Part, axis, listed, plot
from parformer.report.pareto_rows import (
    COUNTS,
    NAMES,
    Found,
    Row,
    baseline_of,
    costs_of,
    counted,
    family_of,
    finite,
    front_of,
    interval_of,
    interval_words,
    is_measured,
    name_of,
    quality_name,
    quality_told,
    sizes,
    unit_of,
    value_from,
    value_of,
)
from parformer.search.limits import METRICS, in_words

Trace = dict[str, Any]

SCALE = [[0, "#15aabf"], [0.35, "#4c6ef5"], [0.7, "#be4bdb"], [1, "#f76707"]]
GREY, CLOUD = "#868e96", "rgba(134, 142, 150, 0.28)"
LIMITED = "limited"
"""Marks the traces whose points fade when they break a limit: `customdata` numbers the points,
`uid` finds the trace in the page."""


@dataclass(frozen=True, slots=True)
class Point:
    """Where an architecture stands in a picture: its cost as it is, its quality as drawn."""

    number: int
    row: Row
    x: float
    y: float


def pictures(found: Found) -> list[Part]:
    """Quality against every cost that the search kept small; what the marks mean is told once."""
    drawn: list[Part] = []
    for cost in costs_of(found):
        drawn += _picture(found, cost, explain=not drawn)
    return drawn


def _picture(found: Found, cost: str, *, explain: bool) -> list[Part]:
    front = front_of(found)
    unit_y, tall = quality_unit(found)
    points = places(front, cost, tall, 0)
    scaled = places(baseline_of(found), cost, tall, len(front))
    if not points:
        return []
    everyone = points + scaled
    unit, size = unit_of(cost, [at.x for at in everyone])
    ends = room_around([at.x for at in everyone]), room_around([at.y for at in everyone])
    cloud, cloud_words = cloud_of(found, cost, size, tall, ends)
    shade = _shade(found, cost)
    data = [*cloud, unbeaten(points, size), *_members(found, points, cost, size, shade)]
    data += [_scaled(found, scaled, size)] if scaled else []
    layout: dict[str, Any] = {
        "xaxis": axis(titled(NAMES[cost], unit), range=[end / size for end in ends[0]]),
        "yaxis": axis(titled(f"quality: {quality_name(found)}", unit_y), range=ends[1]),
        "meta": {"metric": cost, "size": size},
    }
    best = max(points, key=lambda at: at.y)
    see = (
        f"Higher and further left is better. The best quality, "
        f"{quality_told(found, best.y * tall)}, costs "
        f"{in_words(cost, best.x)}; the least {NAMES[cost]} is "
        f"{in_words(cost, min(at.x for at in points))}."
    )
    if shade:
        layout |= {"margin": {"l": 8, "r": 12, "t": 8, "b": 112}, "coloraxis": _bar(found, shade)}
        see += f" The colour is {NAMES[shade]}."
    if explain and len(points) > 2:
        see += " The thin line joins what nothing else on the front beats on these two alone."
    if explain and scaled:
        see += f" Grey squares are the layer-scaled {family_of(found)}."
    return [Part(plot(data, height=500, **layout), see + cloud_words * explain)]


def quality_unit(found: Found) -> tuple[str, float]:
    everyone = [*front_of(found), *baseline_of(found)]
    values = [v for row in everyone if (v := finite(row.get("quality"))) is not None]
    return unit_of("parameters", values) if found.get("proxy") in COUNTS else ("", 1.0)


def titled(name: str, unit: str) -> str:
    return f"{escape(name)}, {unit}" if unit else escape(name)


def places(rows: Sequence[Row], cost: str, tall: float, first: int) -> list[Point]:
    points = []
    for number, row in enumerate(rows, start=first):
        x, y = value_of(row, cost), finite(row.get("quality"))
        if x is not None and y is not None:
            points.append(Point(number, row, x, y / tall))
    return points


def room_around(values: Sequence[float]) -> tuple[float, float]:
    """Ends of an axis with some room; from nought, unless that would squeeze the points."""
    low, high = min(values), max(values)
    room = 0.08 * (high - low) or 0.08 * abs(high) or 1.0
    return 0.0 if 0 <= low < 0.4 * high else low - room, high + room


def _shade(found: Found, cost: str) -> str | None:
    """The cost that colours a picture of another, if all of the front have it."""
    others = [other for other in costs_of(found) if other != cost]
    full = [o for o in others if all(value_of(row, o) is not None for row in front_of(found))]
    return full[0] if full else None


def _bar(found: Found, metric: str) -> dict[str, Any]:
    """The scale of colours, below the axis: beside it, a phone would have little room left."""
    values = [value_of(row, metric) or 0.0 for row in front_of(found)]
    unit, size = unit_of(metric, values)
    low, high = min(values) / size, max(values) / size
    bar: dict[str, Any] = {"orientation": "h", "thickness": 9, "outlinewidth": 0, "len": 0.7}
    bar |= {"x": 0.5, "yref": "container", "y": 0.01, "yanchor": "bottom", "ypad": 0}
    bar["title"] = {"text": titled(NAMES[metric], unit), "side": "bottom", "font": {"size": 13}}
    ends = {"cmin": low, "cmax": high if high > low else low + 1}
    return {"colorscale": SCALE, "colorbar": bar, **ends}


def cloud_of(
    found: Found, cost: str, size: float, tall: float, ends: Sequence[Sequence[float]]
) -> tuple[list[Trace], str]:
    """Whatever the search looked at, as far as it lies in the frame."""
    visited = found.get("visited") or {}
    pairs = zip(visited.get(cost) or (), visited.get("quality") or (), strict=False)
    known = [(x, y / tall) for x, y in pairs if finite(x) is not None and finite(y) is not None]
    (left, right), (low, high) = ends
    seen = [(x, y) for x, y in known if left <= x <= right and low <= y <= high]
    if not seen:
        return [], ""
    words = f" Faint dots are {counted(len(seen), 'candidate')} that the search visited"
    if cost in ("latency", "memory"):
        how = "measured" if found.get("latency_by") == "measuring" else "predicted"
        words += f", where they were {how}"
    if len(seen) < len(known):
        words += f"; {len(known) - len(seen):,} more lie outside the frame"
    dots: Trace = {"type": "scatter", "mode": "markers", "name": "visited", "hoverinfo": "skip"}
    dots |= {"x": [short(x / size) for x, _ in seen], "y": [short(y) for _, y in seen]}
    return [dots | {"marker": {"size": 4, "color": CLOUD}}], f"{words}."


def short(value: float) -> float:
    """Enough digits for a dot."""
    return float(f"{value:.4g}")


def unbeaten(points: Sequence[Point], size: float) -> Trace:
    """A line through what nothing else drawn beats on these two alone."""
    line: list[Point] = []
    for at in sorted(points, key=lambda at: (at.x, -at.y)):
        if not line or at.y > line[-1].y:
            line.append(at)
    trace: Trace = {"type": "scatter", "mode": "lines", "hoverinfo": "skip", "showlegend": False}
    trace |= {"x": [at.x / size for at in line], "y": [at.y for at in line]}
    return trace | {"line": {"color": ACCENT, "width": 1.5}, "opacity": 0.55}


def _members(
    found: Found, points: Sequence[Point], cost: str, size: float, shade: str | None
) -> list[Trace]:
    """The front; what was measured is filled, what was only predicted is hollow."""
    made = []
    for measured in (True, False):
        some = [at for at in points if is_measured(at.row, cost) is measured]
        if not some:
            continue
        exact = cost not in ("latency", "memory")
        name = "front" if exact else f"front, {'measured' if measured else 'predicted'}"
        marker: dict[str, Any] = {"size": 10, "symbol": "circle" if measured else "circle-open"}
        colour: dict[str, Any] = {"color": ACCENT}
        if shade:
            _, worth = unit_of(shade, [value_of(row, shade) or 0.0 for row in front_of(found)])
            colour = {"color": [(value_of(at.row, shade) or 0.0) / worth for at in some]}
            colour["coloraxis"] = "coloraxis"
        shared: Trace = {"type": "scatter", "mode": "markers", "legendgroup": name}
        trace = _hoverable(found, some, size) | shared | {"showlegend": False}
        # the sign of a trace of many colours would be black, so an empty one stands in the legend
        sign: Trace = shared | {"name": name, "x": [None], "y": [None]}
        made += [trace | {"marker": marker | colour}, sign | {"marker": marker | {"color": ACCENT}}]
    return made


def _scaled(found: Found, points: Sequence[Point], size: float) -> Trace:
    """The layer-scaled models, as a line of their own."""
    trace = _hoverable(found, points, size) | {"mode": "lines+markers", "name": "layer-scaled"}
    trace |= {"line": {"color": GREY, "width": 1.5, "dash": "dot"}}
    return trace | {"marker": {"symbol": "square", "size": 7, "color": GREY}}


def _hoverable(found: Found, points: Sequence[Point], size: float) -> Trace:
    numbers = [at.number for at in points]
    trace: Trace = {"type": "scatter", "meta": LIMITED, "uid": f"{LIMITED}-{numbers[0]}"}
    trace |= {"customdata": numbers, "x": [at.x / size for at in points]}
    trace |= {"y": [at.y for at in points]}
    trace["hovertext"] = [hover_words(found, at.row) for at in points]
    return trace | {"hoverinfo": "text", "cliponaxis": False}


def hover_words(found: Found, row: Row) -> str:
    """All figures of an architecture, as the box beside its point shows them."""
    lines = [f"<b>{escape(name_of(row))}</b>", escape(sizes(row, found))]
    lines.append(escape(quality_told(found, row.get("quality"))))
    for metric in METRICS:
        ways = ("predicted", "measured") if metric in ("latency", "memory") else ()
        known = {way: value_from(row, way, metric) for way in ways} or {"": value_of(row, metric)}
        told = [f"{in_words(metric, v)} {way}".strip() for way, v in known.items() if v is not None]
        if metric == "latency" and told and (ends := interval_words(row)):
            told[-1] += f" ({ends})"
        lines += [f"{NAMES[metric]} {', '.join(told)}"] if told else []
    return "<br>".join(lines)


def settling(found: Found) -> Part | None:
    """How the front grew, iteration by iteration."""
    volume = found.get("hypervolume") or {}
    values = [finite(value) for value in volume.get("by_iteration") or ()]
    known = [value for value in values if value is not None]
    if not known:
        return None
    planned = (found.get("plan") or {}).get("iterations")
    first = 0 if planned is not None and len(values) == planned + 1 else 1
    line: Trace = {"type": "scatter", "mode": "lines+markers", "y": values, "marker": {"size": 5}}
    line |= {"x": list(range(first, first + len(values))), "line": {"color": ACCENT, "width": 2}}
    line["hovertemplate"] = "iteration %{x}: %{y:.4g}<extra></extra>"
    see = "The hypervolume is the room between the front and a reference point that is worse in "
    see += f"everything; larger is better. It {_went(known)}."
    share = finite(volume.get("share"))
    if share is not None:
        see += f" Measured, the front has {share:.0%} of the hypervolume that was predicted."
    y = axis("hypervolume", rangemode="tozero")
    steps = (1, 2, 5, 10, 50, 100, 1000)
    step = next((step for step in steps if len(values) <= 10 * step), steps[-1])
    x = axis("iteration", dtick=step)
    drawn = plot([line], height=300, xaxis=x, yaxis=y, showlegend=False)
    return Part(drawn, see)


def _went(values: Sequence[float]) -> str:
    first, last = values[0], values[-1]
    if f"{first:.3g}" == f"{last:.3g}":
        return f"stayed at {last:.3g}"
    words = f"{'rose' if last > first else 'fell'} from {first:.3g} to {last:.3g}"
    third = len(values) // 3
    if third and last > first:
        late = (last - values[-1 - third]) / (last - first)
        words += f"; {late:.1%} of that came in the last third of the iterations"
    return words


def predictions(found: Found) -> list[Part]:
    """Predicted against measured, where both are known."""
    return [part for metric in ("latency", "memory") if (part := _prediction(found, metric))]


def _prediction(found: Found, metric: str) -> Part | None:
    groups = {"front": front_of(found), "layer-scaled": baseline_of(found)}
    both = {name: _both(rows, metric) for name, rows in groups.items()}
    values = [value for group in both.values() for _, *pair in group for value in pair]
    if not values:
        return None
    unit, size = unit_of(metric, values)
    low, high = room_around([value / size for value in values])
    line: Trace = {"type": "scatter", "mode": "lines", "x": [low, high], "y": [low, high]}
    line |= {"line": {"color": GREY, "width": 1.5, "dash": "dot"}, "hoverinfo": "skip"}
    data: list[Trace] = [line | {"name": "as predicted", "showlegend": True}]
    for (name, group), colour in zip(both.items(), (ACCENT, GREY), strict=True):
        if group:
            data.append(_dots(name, group, colour, metric, size))
    names = [titled(f"{way} {NAMES[metric]}", unit) for way in ("predicted", "measured")]
    x, y = (axis(name, range=[low, high]) for name in names)
    see = "On the dotted line a prediction is right; above it the measurement was larger."
    return Part(
        plot(data, height=380, xaxis=x, yaxis=y), f"{see} {error_words(found, metric)}".strip()
    )


def _both(rows: Sequence[Row], metric: str) -> list[tuple[Row, float, float]]:
    pairs = [
        (r, value_from(r, "predicted", metric), value_from(r, "measured", metric)) for r in rows
    ]
    return [(row, a, b) for row, a, b in pairs if a is not None and b is not None]


def _dots(
    name: str, group: Sequence[tuple[Row, float, float]], colour: str, metric: str, size: float
) -> Trace:
    trace: Trace = {"type": "scatter", "mode": "markers", "name": name, "hoverinfo": "text"}
    trace |= {"x": [a / size for _, a, _ in group], "y": [b / size for *_, b in group]}
    trace["marker"] = {
        "size": 8,
        "color": colour,
        "symbol": "circle" if name == "front" else "square",
    }
    trace["hovertext"] = [
        f"<b>{escape(name_of(row))}</b><br>predicted {in_words(metric, a)}<br>"
        f"measured {in_words(metric, b)}" + (f"<br>off by {abs(a / b - 1):.1%}" if b else "")
        for row, a, b in group
    ]
    ends = [interval_of(row) for row, _, _ in group] if metric == "latency" else []
    if ends and None not in ends:
        above = [(e[1] - b) / size for e, (_, _, b) in zip(ends, group, strict=True) if e]
        below = [(b - e[0]) / size for e, (_, _, b) in zip(ends, group, strict=True) if e]
        bars = {"type": "data", "symmetric": False, "array": above, "arrayminus": below}
        trace["error_y"] = bars | {"color": colour, "thickness": 1, "width": 0}
    return trace


def error_words(found: Found, metric: str) -> str:
    """How far the predictions of the front were off."""
    errors = (found.get("errors") or {}).get(metric) or {}
    median, tail, worst = (finite(errors.get(name)) for name in ("median", "p90", "worst"))
    if worst is not None and worst < 0.0005:
        return "All predictions for the front came true."
    parts = [f"half of them are within {median:.1%}"] if median is not None else []
    parts += [f"nine in ten within {tail:.1%}"] if tail is not None else []
    parts += [f"the worst is off by {worst:.1%}"] if worst is not None else []
    return f"Of the predictions for the front, {listed(parts)}." if parts else ""
