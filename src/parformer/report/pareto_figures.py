"""What does a search for sizes look like, figure by figure?

Every figure comes with the sentence under it, written from the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from parformer.report import figures as draw
from parformer.report import pareto_rows as facts
from parformer.report.figures import Trace, Value
from parformer.report.page import Part
from parformer.report.words import NAMES, counted, listed, unit_of, went
from parformer.search.limits import CLOCKED, SEARCHED, in_words
from parformer.search.sizes.result import Member, SizesResult

SCALE: list[Value] = [[0, "#15aabf"], [0.35, "#4c6ef5"], [0.7, "#be4bdb"], [1, "#f76707"]]
CLOUD = "rgba(134, 142, 150, 0.28)"
LIMITED = "limited"
"""Marks the traces whose points fade when they break a limit: `customdata` numbers the points,
`uid` finds the trace in the page."""


@dataclass(frozen=True, slots=True)
class Point:
    """Where an architecture stands in a picture: its cost and its quality as drawn."""

    number: int
    member: Member
    x: float
    y: float


@dataclass(frozen=True, slots=True)
class Frame:
    """What a picture of quality against one cost is drawn in."""

    cost: str
    size: float
    """Of the unit of the cost."""
    tall: float
    """Of the unit of quality."""
    x_ends: tuple[float, float]
    y_ends: tuple[float, float]

    def places(self, members: Sequence[Member], first: int) -> list[Point]:
        return [
            Point(number, one, x / self.size, one.quality / self.tall)
            for number, one in enumerate(members, start=first)
            if (x := one.figure(self.cost)) is not None
        ]


def pictures(found: SizesResult) -> list[Part]:
    """Quality against every cost that the search kept small; what the marks mean is told once."""
    costs = facts.costs_of(found)
    return [_picture(found, cost, explain=cost == costs[0]) for cost in costs]


def _picture(found: SizesResult, cost: str, *, explain: bool) -> Part:
    everyone = [*found.front, *found.baseline]
    qualities = [one.quality for one in everyone]
    unit_y, tall = unit_of("parameters", qualities) if found.proxy in facts.COUNTS else ("", 1.0)
    known = [x for one in everyone if (x := one.figure(cost)) is not None]
    unit, size = unit_of(cost, known)
    across = draw.room_around([x / size for x in known])
    upwards = draw.room_around([quality / tall for quality in qualities])
    frame = Frame(cost, size, tall, across, upwards)
    points = frame.places(found.front, 0)
    scaled = frame.places(found.baseline, len(found.front))
    cloud, cloud_words = _cloud(found, frame)
    shade, quality = _shade(found, cost), facts.quality_name(found.proxy)
    line = draw.unbeaten([(at.x, at.y) for at in points])
    data = [*cloud, line, *_members(found, points, cost, shade)]
    data += [_scaled(found, scaled)] if scaled else []
    layout: Trace = {
        "xaxis": draw.axis(NAMES[cost], unit, range=across),
        "yaxis": draw.axis(f"quality: {quality}", unit_y, range=upwards),
        "meta": {"metric": cost, "size": size},
    }
    best = max(points, key=lambda at: at.y)
    see = (
        f"Higher and further left is better. The best quality, "
        f"{facts.quality_told(found.proxy, best.member.quality)}, costs "
        f"{in_words(cost, best.x * size)}; the least {NAMES[cost]} is "
        f"{in_words(cost, min(at.x for at in points) * size)}."
    )
    if shade:
        layout |= {"margin": {"l": 8, "r": 12, "t": 8, "b": 112}, "coloraxis": _bar(found, shade)}
        see += f" The colour is {NAMES[shade]}."
    if explain and len(points) > 2:
        see += " The thin line joins what nothing else on the front beats on these two alone."
    if explain and scaled:
        see += f" Grey squares are the layer-scaled {facts.family_of(found)}."
    return Part(draw.plot(data, height=500, **layout), see + cloud_words * explain)


def _shade(found: SizesResult, cost: str) -> str | None:
    """The cost that colours a picture of another, if all of the front have it."""
    others = [other for other in facts.costs_of(found) if other != cost]
    full = [o for o in others if all(one.figure(o) is not None for one in found.front)]
    return full[0] if full else None


def _shades(found: SizesResult, metric: str) -> tuple[str, float, list[float]]:
    """The unit that colours are told in, its size, and the values of the front."""
    values = [one.figure(metric) or 0.0 for one in found.front]
    return *unit_of(metric, values), values


def _bar(found: SizesResult, metric: str) -> Trace:
    """The scale of colours, below the axis: beside it, a phone would have little room left."""
    unit, size, values = _shades(found, metric)
    low, high = min(values) / size, max(values) / size
    bar: Trace = {"orientation": "h", "thickness": 9, "outlinewidth": 0, "len": 0.7}
    bar |= {"x": 0.5, "yref": "container", "y": 0.01, "yanchor": "bottom", "ypad": 0}
    words = draw.titled(NAMES[metric], unit)
    bar["title"] = {"text": words, "side": "bottom", "font": {"size": 13}}
    ends = {"cmin": low, "cmax": high if high > low else low + 1}
    return {"colorscale": SCALE, "colorbar": bar, **ends}


def _cloud(found: SizesResult, frame: Frame) -> tuple[list[Trace], str]:
    """Whatever the search looked at, as far as it lies in the frame."""
    pairs = zip(found.visited.get(frame.cost, ()), found.visited.get("quality", ()), strict=False)
    known = [(x / frame.size, y / frame.tall) for x, y in pairs]
    (left, right), (low, high) = frame.x_ends, frame.y_ends
    seen = [(x, y) for x, y in known if left <= x <= right and low <= y <= high]
    if not seen:
        return [], ""
    words = f" Faint dots are {counted(len(seen), 'candidate')} that the search visited"
    if frame.cost in CLOCKED:
        how = "measured" if found.latency_by == "measuring" else "predicted"
        words += f", where they were {how}"
    if len(seen) < len(known):
        words += f"; {len(known) - len(seen):,} more lie outside the frame"
    dots = [(draw.short(x), draw.short(y)) for x, y in seen]
    return [draw.scatter(dots, name="visited", colour=CLOUD, size=4)], f"{words}."


def _members(
    found: SizesResult, points: Sequence[Point], cost: str, shade: str | None
) -> list[Trace]:
    """The front; what was measured is filled, what was only predicted is hollow."""
    made: list[Trace] = []
    for measured in (True, False):
        some = [at for at in points if at.member.is_measured(cost) is measured]
        if not some:
            continue
        how = ", measured" if measured else ", predicted"
        name = f"front{how if cost in CLOCKED else ''}"
        marker: Trace = {"size": 10, "symbol": "circle" if measured else "circle-open"}
        colour: Trace = {"color": draw.ACCENT}
        if shade:
            _, size, _ = _shades(found, shade)
            colour = {"color": [(at.member.figure(shade) or 0.0) / size for at in some]}
            colour["coloraxis"] = "coloraxis"
        group: Trace = {"mode": "markers", "legendgroup": name}
        trace = _hoverable(found, some) | group | {"showlegend": False}
        # the sign of a trace of many colours would be black, so an empty one stands in the legend
        sign: Trace = {"type": "scatter", "name": name, "x": [None], "y": [None], **group}
        sign["marker"] = marker | {"color": draw.ACCENT}
        made += [trace | {"marker": marker | colour}, sign]
    return made


def _scaled(found: SizesResult, points: Sequence[Point]) -> Trace:
    """The layer-scaled models, as a line of their own."""
    trace = _hoverable(found, points) | {"mode": "lines+markers", "name": "layer-scaled"}
    trace |= {"line": {"color": draw.GREY, "width": 1.5, "dash": "dot"}}
    return trace | {"marker": {"symbol": "square", "size": 7, "color": draw.GREY}}


def _hoverable(found: SizesResult, points: Sequence[Point]) -> Trace:
    numbers = [at.number for at in points]
    hover = [hover_words(found, at.member) for at in points]
    trace = draw.scatter([(at.x, at.y) for at in points], hover=hover)
    trace |= {"meta": LIMITED, "uid": f"{LIMITED}-{numbers[0]}", "customdata": numbers}
    return trace | {"cliponaxis": False}


def hover_words(found: SizesResult, member: Member) -> str:
    """All figures of an architecture, as the box beside its point shows them."""
    told = [f"<b>{escape(member.name)}</b>", escape(facts.sizes(member, found))]
    told.append(escape(facts.quality_told(found.proxy, member.quality)))
    for metric in SEARCHED:
        if metric in CLOCKED:
            ways = (("predicted", member.predicted), ("measured", member.measured))
            known = [f"{in_words(metric, getattr(one, metric))} {way}" for way, one in ways if one]
            if metric == "latency" and known and (ends := facts.interval_words(member)):
                known[-1] += f" ({ends})"
        else:
            known = [in_words(metric, member.figure(metric) or 0.0)]
        told += [f"{NAMES[metric]} {', '.join(known)}"] if known else []
    return "<br>".join(told)


def settling(found: SizesResult) -> Part | None:
    """How the front grew, iteration by iteration."""
    values = found.hypervolume.by_iteration
    if not values:
        return None
    line = draw.lines(enumerate(values, start=1), hover="iteration %{x}: %{y:.4g}")
    line |= {"mode": "lines+markers", "marker": {"size": 5}}
    see = "The hypervolume is the room between the front and a reference point that is worse in "
    see += f"everything; larger is better. It {_went(values)}."
    steps = (1, 2, 5, 10, 50, 100, 1000)
    step = next((step for step in steps if len(values) <= 10 * step), steps[-1])
    x, y = draw.axis("iteration", dtick=step), draw.axis("hypervolume", rangemode="tozero")
    return Part(draw.plot([line], height=300, xaxis=x, yaxis=y, showlegend=False), see)


def _went(values: Sequence[float]) -> str:
    first, last = values[0], values[-1]
    words, third = went(first, last), len(values) // 3
    if third and words.startswith("rose"):
        late = (last - values[-1 - third]) / (last - first)
        words += f"; {late:.1%} of that came in the last third of the iterations"
    return words


def predictions(found: SizesResult) -> list[Part]:
    """Predicted against measured, where both are known."""
    both = [one for one in found.front if one.predicted and one.measured]
    return [_prediction(found, both, metric) for metric in CLOCKED] if both else []


def _prediction(found: SizesResult, members: Sequence[Member], metric: str) -> Part:
    pairs = [(getattr(m.predicted, metric), getattr(m.measured, metric)) for m in members]
    unit, size = unit_of(metric, [value for pair in pairs for value in pair])
    low, high = draw.room_around([value / size for pair in pairs for value in pair])
    hover = [
        f"<b>{escape(one.name)}</b><br>predicted {in_words(metric, a)}<br>"
        f"measured {in_words(metric, b)}<br>off by {abs(a / b - 1):.1%}"
        for one, (a, b) in zip(members, pairs, strict=True)
    ]
    places = [(a / size, b / size) for a, b in pairs]
    dots = draw.scatter(places, name="front", hover=hover)
    ends = [one.measured.latency_interval for one in members if one.measured]
    if metric == "latency" and None not in ends:
        scaled = [(end[0] / size, end[1] / size) for end in ends if end]
        dots["error_y"] = draw.error_bars([y for _, y in places], scaled, draw.ACCENT)
    diagonal = [(low, low), (high, high)]
    line = draw.lines(diagonal, name="as predicted", colour=draw.GREY, width=1.5, dash="dot")
    names = [f"{way} {NAMES[metric]}" for way in ("predicted", "measured")]
    across, up = (draw.axis(name, unit, range=[low, high]) for name in names)
    drawn = draw.plot([line | {"showlegend": True}, dots], height=380, xaxis=across, yaxis=up)
    see = "On the dotted line a prediction is right; above it the measurement was larger."
    return Part(drawn, f"{see} {error_words(found, metric)}".strip())


def error_words(found: SizesResult, metric: str) -> str:
    """How far the predictions of the front were off."""
    if found.errors is None:
        return ""
    off = getattr(found.errors, metric)
    if off.worst < 0.0005:
        return "All predictions for the front came true."
    parts = [
        f"half of them are within {off.median:.1%}",
        f"nine in ten within {off.p90:.1%}",
        f"the worst is off by {off.worst:.1%}",
    ]
    return f"Of the predictions for the front, {listed(parts)}."
