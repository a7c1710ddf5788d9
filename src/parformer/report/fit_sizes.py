"""Which sizes did a fit look at, and which of them became models?

For every placement of blocks one search for sizes was made, so a figure holds several of what
`pareto_figures` draws one of.
"""

from __future__ import annotations

from html import escape
from typing import Any

from parformer.report.fit_figures import limit_line
from parformer.report.fit_rows import (
    Found,
    Model,
    colours_of,
    figure_of,
    figure_words,
    labels_of,
    limits_of,
    models_of,
    name_of,
)
from parformer.report.page import Part, axis, plot
from parformer.report.pareto_figures import (
    GREY,
    Point,
    cloud_of,
    places,
    quality_unit,
    room_around,
    titled,
    unbeaten,
)
from parformer.report.pareto_rows import (
    NAMES,
    counted,
    finite,
    quality_name,
    quality_told,
    unit_of,
    words_of,
)
from parformer.search.limits import METRICS, in_words

Trace = dict[str, Any]

COUNTED = "decoder-parameters"
"""The proxy of quality that is known of every model, trained or not."""


def sizes_pictures(found: Found) -> list[Part]:
    """Against the first cost of the search, and against what else was limited."""
    objectives = (found.get("pareto") or {}).get("objectives") or ()
    costs = [metric for metric in objectives if metric in METRICS]
    wanted = [metric for metric in costs if metric == costs[0] or metric in limits_of(found)]
    return [part for metric in wanted if (part := _picture(found, metric))]


def _picture(found: Found, metric: str) -> Part | None:
    searches = _searches(found)
    rows = [row for one in searches.values() for row in one["front"]]
    together = {"proxy": _proxy(found), "front": rows}
    unit_y, tall = quality_unit(together)
    fronts = {name: places(one["front"], metric, tall, 0) for name, one in searches.items()}
    spots = [at for front in fronts.values() for at in front]
    if not spots:
        return None
    made = _finalists(found, metric)
    limit = limits_of(found).get(metric)
    across = [at.x for at in spots] + [x for _, x, _ in made]
    across += [] if limit is None else [limit]
    unit, size = unit_of(metric, across)
    ends = room_around(across), room_around([at.y for at in spots] + [y / tall for *_, y in made])
    data: list[Trace] = []
    seen = 0
    for name, one in searches.items():
        for dots in cloud_of(one, metric, size, tall, ends)[0]:
            seen += len(dots["x"])
            data.append(dots | _shared(found, name) | {"showlegend": False})
            data[-1]["marker"] = {"size": 4, "color": _colour(found, name), "opacity": 0.25}
        data += _front(found, name, fronts[name], size) if fronts[name] else []
    data += [_diamond(found, model, metric, x / size, y / tall) for model, x, y in made]
    line, sign = limit_line(metric, limit, size)
    drawn = plot(
        data,
        height=460,
        xaxis=axis(titled(_cost_title(metric), unit), range=[end / size for end in ends[0]]),
        yaxis=axis(titled(quality_name(together), unit_y), range=ends[1]),
        shapes=line,
        annotations=sign,
    )
    return Part(drawn, _words(found, metric, spots, seen, bool(made)))


def _proxy(found: Found) -> str:
    return str(found["pareto"].get("proxy") or COUNTED)


def _searches(found: Found) -> dict[str, dict[str, Any]]:
    """One for every placement, as a search for sizes alone would write it down."""
    visited, fronts = (found["pareto"].get(name) or {} for name in ("visited", "front"))
    return {
        name: {
            "proxy": _proxy(found),
            "visited": visited.get(name),
            "front": [{**row, "predicted": row} for row in fronts.get(name) or ()],
        }
        for name in dict.fromkeys([*visited, *fronts])
    }


def _finalists(found: Found, metric: str) -> list[tuple[Model, float, float]]:
    """The models that were built, where the figure has a place for them."""
    made = []
    for model in models_of(found) if _proxy(found) == COUNTED else ():
        x, y = figure_of(model, metric), finite(model.get("decoder_parameters"))
        if x is not None and y is not None:
            made.append((model, x, y))
    return made


def _cost_title(metric: str) -> str:
    return f"predicted {NAMES[metric]}" if metric in ("latency", "memory") else NAMES[metric]


def _label(found: Found, name: str) -> str:
    return escape(labels_of(found).get(name, name))


def _colour(found: Found, name: str) -> str:
    return colours_of(found).get(name, GREY)


def _shared(found: Found, name: str) -> Trace:
    return {"type": "scatter", "legendgroup": name, "name": _label(found, name)}


def _front(found: Found, name: str, points: list[Point], size: float) -> list[Trace]:
    """What nothing else of its placement beats; a line joins what counts for these two axes."""
    colour, shared = _colour(found, name), _shared(found, name)
    search = {"proxy": _proxy(found)}
    line = unbeaten(points, size) | shared | {"line": {"color": colour, "width": 1.5}}
    rings = shared | {"mode": "markers", "hoverinfo": "text", "hovertext": []}
    rings |= {"x": [at.x / size for at in points], "y": [at.y for at in points]}
    rings["marker"] = {"size": 8, "symbol": "circle-open", "color": colour, "line": {"width": 1.5}}
    for at in points:
        lines = [f"<b>{shared['name']}</b>", quality_told(search, at.row.get("quality"))]
        known = {metric: words_of(at.row, metric) for metric in METRICS}
        lines += [f"{NAMES[metric]} {words}" for metric, words in known.items() if words != "–"]
        rings["hovertext"].append("<br>".join(lines))
    return [line, rings]


def _diamond(found: Found, model: Model, metric: str, x: float, y: float) -> Trace:
    mark = _shared(found, name_of(model)) | {"mode": "markers", "x": [x], "y": [y]}
    mark["showlegend"] = name_of(model) not in _searches(found)
    mark["marker"] = {
        "symbol": "diamond",
        "size": 13,
        "color": _colour(found, name_of(model)),
        "line": {"width": 1.5, "color": "#ffffff"},
    }
    how = "measured" if metric in ("latency", "memory") else ""
    told = f"<b>{mark['name']}</b><br>{NAMES[metric]} {figure_words(model, metric)} {how}"
    return mark | {"hoverinfo": "text", "hovertext": told.strip(), "cliponaxis": False}


def _words(found: Found, metric: str, spots: list[Point], seen: int, marked: bool) -> str:
    guessed = metric in ("latency", "memory")
    see = ["Nothing was trained for this picture"]
    see[0] += f", and {NAMES[metric]} is predicted for this device." if guessed else "."
    if seen:
        see.append(f"Dots are {counted(seen, 'set')} of sizes that the search looked at.")
    low, high = (in_words(metric, end(at.x for at in spots)) for end in (min, max))
    many = f"the {len(spots)} of them" if len(spots) > 1 else "the one"
    reach = f"from {low} to {high}" if low != high else f"at {low}"
    see.append(f"Rings are {many} that nothing of the same placement of blocks beats, {reach}.")
    see.append("Further up promises quality only among points of one colour.")
    if marked:
        see.append(f"Diamonds are the models that were built{', as measured' * guessed}.")
    return " ".join(see)
