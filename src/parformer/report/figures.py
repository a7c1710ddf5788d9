"""What do all pages draw: points, lines, bars, heat maps, and the marks around them?

A figure is plain data for plotly. Names come in as they are and are escaped here; whoever
writes hover texts escapes what came from outside.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import accumulate
from typing import TypeAlias, TypedDict

from parformer.search.limits import in_words

Value: TypeAlias = "str | float | Sequence[Value] | Mapping[str, Value] | None"
"""Whatever JSON can say."""

Trace: TypeAlias = dict[str, Value]
"""A trace, an axis, a shape or a layout of plotly's, as plain data."""

Points: TypeAlias = Iterable[tuple[Value, Value]]
"""Where things stand, across and upwards."""


class Marks(TypedDict):
    """What is drawn over a figure: its share of the layout."""

    shapes: list[Trace]
    annotations: list[Trace]


class Plot(TypedDict):
    """A whole figure."""

    data: list[Trace]
    layout: Trace


ACCENT = "#7c5cff"
GREY = "#868e96"
LIMIT = "#d9480f"
FAINT = "rgba(128, 132, 140, 0.16)"
"""Shades that show on white and on black alike."""
SHADES = (ACCENT, "#e8a200", "#0c8599", LIMIT, "#4c78a8", "#2f9e44", "#9c36b5")
"""Colours of several lines or groups, in this order."""
TITLE = 26
"""Pixels above each of several stacked figures, for its name."""


def plot(data: list[Trace], *, height: int, **layout: Value) -> Plot:
    """A figure in the page's manner; its colours of text and grid come when it is drawn."""
    shared: Trace = {
        "height": height,
        "margin": {"l": 8, "r": 12, "t": 8, "b": 44},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, -apple-system, Segoe UI, Roboto, sans-serif", "size": 13},
        "legend": {"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom"},
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": GREY, "activecolor": ACCENT},
        "dragmode": False,
        "hovermode": "closest",
    }
    return {"data": data, "layout": shared | layout}


def axis(title: str = "", unit: str = "", *, standoff: int | None = None, **more: Value) -> Trace:
    """An axis that stays put under a finger, so that a page of figures scrolls on a phone."""
    words: Trace = {"text": titled(title, unit), "font": {"size": 13}}
    if standoff is not None:
        words["standoff"] = standoff
    return {"title": words, "fixedrange": True, "automargin": True, "tickangle": 0, **more}


def titled(name: str, unit: str) -> str:
    """An axis by its name and unit."""
    return f"{escape(name)}, {unit}" if unit else escape(name)


def room_around(values: Sequence[float]) -> tuple[float, float]:
    """Ends of an axis with some room; from nought, unless that would squeeze the points."""
    low, high = min(values), max(values)
    room = 0.08 * (high - low) or 0.08 * abs(high) or 1.0
    return 0.0 if 0 <= low < 0.4 * high else low - room, high + room


def short(value: float) -> float:
    """Enough digits for a dot."""
    return float(f"{value:.4g}")


def scatter(
    points: Points,
    *,
    name: str = "",
    colour: Value = ACCENT,
    size: Value = 8,
    symbol: Value = "circle",
    marker: Mapping[str, Value] | None = None,
    hover: Sequence[str] | str | None = None,
    **more: Value,
) -> Trace:
    """Points; without hover texts they do not answer to a pointer."""
    trace = _trace("markers", points, name)
    trace["marker"] = {"size": size, "color": colour, "symbol": symbol, **(marker or {})}
    if hover is None:
        return trace | {"hoverinfo": "skip"} | more
    texts = hover if isinstance(hover, str) else list(hover)
    return trace | {"hovertext": texts, "hoverinfo": "text"} | more


def lines(
    points: Points,
    *,
    name: str = "",
    colour: str = ACCENT,
    width: float = 2,
    dash: str = "solid",
    hover: str | None = None,
    **more: Value,
) -> Trace:
    """A line; its hover text is a template with %{x} and %{y}."""
    trace = _trace("lines", points, name)
    trace["line"] = {"color": colour, "width": width, "dash": dash}
    if hover is None:
        return trace | {"hoverinfo": "skip"} | more
    return trace | {"hovertemplate": f"{hover}<extra></extra>"} | more


def _trace(mode: str, points: Points, name: str) -> Trace:
    places = list(points)
    trace: Trace = {"type": "scatter", "mode": mode}
    trace |= {"x": [x for x, _ in places], "y": [y for _, y in places]}
    return trace | ({"name": escape(name)} if name else {})


def bars(
    x: Sequence[str],
    heights: Sequence[float],
    *,
    name: str,
    colour: str,
    hover: str,
    hollow: bool = False,
    spread: Sequence[float] | None = None,
) -> Trace:
    """Bars of one kind; `spread` is drawn as thin lines at their ends."""
    trace: Trace = {"type": "bar", "x": list(x), "y": list(heights), "name": escape(name)}
    trace["hovertemplate"] = f"{hover}<extra></extra>"
    if spread is not None:
        trace["error_y"] = {"array": list(spread), "color": GREY}
    if hollow:
        return trace | {"marker": {"color": "rgba(0,0,0,0)", "line": {"color": colour, "width": 2}}}
    return trace | {"marker": {"color": colour}}


def heat_map(
    columns: Sequence[Sequence[float]],
    names: Sequence[str],
    picks: Sequence[int],
    hover: str,
    place: str = "y",
) -> list[Trace]:
    """Shares from 0 to 1, a column after the other, and a dot on the pick of each column."""
    x, y = list(range(1, len(columns) + 1)), [escape(name) for name in names]
    size, gap = (9, 2) if len(x) <= 12 else (6, 1) if len(x) <= 24 else (5, 1)
    rows = [list(row) for row in zip(*columns, strict=True)]
    heat: Trace = {"type": "heatmap", "x": x, "y": y, "z": rows, "xgap": gap, "ygap": 2}
    heat |= {"yaxis": place, "coloraxis": "coloraxis", "hovertemplate": f"{hover}<extra></extra>"}
    edge: Trace = {"line": {"color": "#1f2328", "width": size / 6}}
    chosen = zip(x, (y[pick] for pick in picks), strict=True)
    return [heat, scatter(chosen, colour="#ffffff", size=size, marker=edge, yaxis=place)]


def shares_scale(**more: Value) -> Trace:
    """The colours of a heat map; see-through at nought, so right on white and on black."""
    scale: list[Value] = [[0, "rgba(124, 92, 255, 0.05)"], [1, "rgba(124, 92, 255, 1)"]]
    return {"cmin": 0, "cmax": 1, "colorscale": scale, **more}


def error_bars(
    values: Sequence[float], ends: Sequence[tuple[float, float]], colour: str, thickness: float = 1
) -> Trace:
    """Thin lines from the lower to the upper ends."""
    bars: Trace = {"type": "data", "symmetric": False, "color": colour, "width": 0}
    bars["array"] = [high - value for value, (_, high) in zip(values, ends, strict=True)]
    bars["arrayminus"] = [value - low for value, (low, _) in zip(values, ends, strict=True)]
    return bars | {"thickness": thickness}


def limit_line(metric: str, limit: float | None, size: float) -> Marks:
    """A dashed line where what is allowed ends, and its name beside it."""
    if limit is None:
        return {"shapes": [], "annotations": []}
    line: Trace = {"type": "line", "yref": "paper", "y0": 0, "y1": 1}
    line |= {"x0": limit / size, "x1": limit / size}
    line["line"] = {"color": LIMIT, "width": 1.5, "dash": "dash"}
    sign: Trace = {"x": limit / size, "xanchor": "left", "yref": "paper", "y": 1, "xshift": 3}
    sign |= {"yanchor": "top", "text": f"limit {in_words(metric, limit)}", "showarrow": False}
    sign["font"] = {"color": LIMIT, "size": 12}
    return {"shapes": [line], "annotations": [sign]}


def reference_marks(heights: Mapping[str, float]) -> Marks:
    """A dotted line across a figure for each of some heights, and their names."""
    line: Trace = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "yref": "y", "layer": "below"}
    line["line"] = {"color": GREY, "width": 1.2, "dash": "dot"}
    sign: Trace = {"xref": "paper", "xanchor": "right", "yref": "y", "yanchor": "bottom"}
    sign |= {"showarrow": False, "font": {"size": 11, "color": GREY}}
    # names side by side, as two heights may lie close to each other
    names = [
        sign | {"x": 0.9 if number % 2 else 1.0, "y": y, "text": escape(name)}
        for number, (name, y) in enumerate(heights.items())
    ]
    across = [line | {"y0": y, "y1": y} for y in heights.values()]
    return {"shapes": across, "annotations": names}


def unbeaten(points: Sequence[tuple[float, float]], colour: str = ACCENT) -> Trace:
    """A thin line through the points that no other one beats: further left and higher is better."""
    front: list[tuple[float, float]] = []
    for x, y in sorted(points, key=lambda at: (at[0], -at[1])):
        if not front or y > front[-1][1]:
            front.append((x, y))
    return lines(front, colour=colour, width=1.5, opacity=0.55, showlegend=False)


def band(across: str, low: float, high: float) -> Trace:
    """A faint stripe behind a figure, from one place to another of the axis that it lies across."""
    along = "y" if across == "x" else "x"
    stripe: Trace = {"type": "rect", f"{along}ref": "paper", f"{along}0": 0, f"{along}1": 1}
    stripe |= {f"{across}ref": across, f"{across}0": low, f"{across}1": high}
    return stripe | {"fillcolor": FAINT, "line": {"width": 0}, "layer": "below"}


def stacked(heights: Sequence[int]) -> tuple[list[list[float]], int]:
    """Where figures of these heights lie under each other, each below its title; and in all."""
    total = sum(heights) + TITLE * len(heights)
    lows = [1 - below / total for below in accumulate(height + TITLE for height in heights)]
    return [[max(low, 0), low + h / total] for low, h in zip(lows, heights, strict=True)], total


def titles(words: Sequence[str], spans: Sequence[Sequence[float]]) -> list[Trace]:
    """The names of stacked figures, above each of them."""
    place: Trace = {"xref": "paper", "yref": "paper", "x": 0, "xanchor": "left"}
    place |= {"yanchor": "bottom", "showarrow": False}
    pairs = zip(words, spans, strict=True)
    return [place | {"text": escape(text), "y": span[1]} for text, span in pairs]


def nth(name: str, number: int) -> str:
    """An axis among several: y, y2, y3."""
    return name if number == 1 else f"{name}{number}"
