"""Which sizes did a fit look at, and which of them became models?

For every placement of blocks one search for sizes was made, so a figure holds several of what
a search for sizes alone draws one of.
"""

from __future__ import annotations

from html import escape

from parformer.fitting.result import FitResult, ModelFacts, SizesSeen
from parformer.report import figures as draw
from parformer.report.figures import Trace
from parformer.report.fit_rows import colours_of, figure_words, labels_of
from parformer.report.page import Part
from parformer.report.words import NAMES, Ends, counted, unit_of
from parformer.search.limits import METRICS, in_words

Spots = list[tuple[float, float]]
"""Costs as they are, and numbers of parameters."""


def sizes_pictures(found: FitResult) -> list[Part]:
    """Against the first cost of the search, and against what else was limited."""
    if found.pareto is None or not any(found.pareto.front.values()):
        return []
    costs = [metric for metric in found.pareto.objectives if metric in METRICS]
    wanted = [metric for metric in costs if metric == costs[0] or metric in found.limits]
    return [_picture(found, found.pareto, metric) for metric in wanted]


def _picture(found: FitResult, seen: SizesSeen, metric: str) -> Part:
    fronts: dict[str, Spots] = {
        name: [(row[metric], row["quality"]) for row in rows] for name, rows in seen.front.items()
    }
    made = {m.name: (x, float(m.decoder_parameters)) for m in found.models
            if (x := m.figure(metric)) is not None}  # fmt: skip
    spots = [at for front in fronts.values() for at in front]
    limit = found.limits.get(metric)
    across = [x for x, _ in [*spots, *made.values()]] + ([] if limit is None else [limit])
    upwards = [y for _, y in [*spots, *made.values()]]
    (unit, size), (unit_y, tall) = unit_of(metric, across), unit_of("parameters", upwards)
    ends = draw.room_around(across), draw.room_around(upwards)
    data, dots = list[Trace](), 0
    for name, front in fronts.items():
        pairs = zip(seen.visited[name][metric], seen.visited[name]["quality"], strict=True)
        cloud = [at for at in pairs if _inside(at, ends)]
        dots += len(cloud)
        data += _search(found, name, front, cloud, metric, (size, tall))
    for model in (model for model in found.models if model.name in made):
        x, y = made[model.name]
        data.append(_diamond(found, model, metric, (x / size, y / tall)))
    cost = f"predicted {NAMES[metric]}" if metric in ("latency", "memory") else NAMES[metric]
    wide = draw.axis(cost, unit, range=[end / size for end in ends[0]])
    high = draw.axis("decoder parameters", unit_y, range=[end / tall for end in ends[1]])
    marks = draw.limit_line(metric, limit, size)
    drawn = draw.plot(data, height=460, xaxis=wide, yaxis=high, **marks)
    return Part(drawn, _words(metric, spots, dots, marked=bool(made)))


def _inside(at: tuple[float, float], ends: tuple[Ends, Ends]) -> bool:
    return all(low <= value <= high for value, (low, high) in zip(at, ends, strict=True))


def _search(
    found: FitResult, name: str, front: Spots, cloud: Spots, metric: str, units: Ends
) -> list[Trace]:
    """What was looked at for one placement, and what nothing else of it beats.

    A line joins what counts for these two axes.
    """
    label, colour = labels_of(found).get(name, name), colours_of(found).get(name, draw.GREY)
    size, tall = units
    shared: Trace = {"legendgroup": name, "name": escape(label)}
    data = []
    if cloud:
        dots = [(draw.short(x / size), draw.short(y / tall)) for x, y in cloud]
        faint: Trace = {"opacity": 0.25}
        cloudy = draw.scatter(dots, colour=colour, size=4, marker=faint, showlegend=False)
        data.append(cloudy | shared)
    places = [(x / size, y / tall) for x, y in front]
    if places:
        hover = [
            f"<b>{escape(label)}</b><br>{in_words('parameters', y)} decoder parameters<br>"
            f"{NAMES[metric]} ~{in_words(metric, x)}"
            for x, y in front
        ]
        edge: Trace = {"line": {"width": 1.5}}
        rings = draw.scatter(places, colour=colour, symbol="circle-open", marker=edge, hover=hover)
        data += [draw.unbeaten(places, colour) | shared, rings | shared]
    return data


def _diamond(found: FitResult, model: ModelFacts, metric: str, at: Ends) -> Trace:
    label = labels_of(found)[model.name]
    how = "measured" if metric in ("latency", "memory") else ""
    told = f"<b>{escape(label)}</b><br>{NAMES[metric]} {figure_words(model, metric)} {how}"
    return draw.scatter(
        [at],
        name=label,
        colour=colours_of(found)[model.name],
        size=13,
        symbol="diamond",
        marker={"line": {"width": 1.5, "color": "#ffffff"}},
        hover=told.strip(),
        legendgroup=model.name,
        showlegend=found.pareto is None or model.name not in found.pareto.front,
        cliponaxis=False,
    )


def _words(metric: str, spots: Spots, seen: int, *, marked: bool) -> str:
    guessed = metric in ("latency", "memory")
    see = ["Nothing was trained for this picture"]
    see[0] += f", and {NAMES[metric]} is predicted for this device." if guessed else "."
    if seen:
        see.append(f"Dots are {counted(seen, 'set')} of sizes that the search looked at.")
    low, high = (in_words(metric, end(x for x, _ in spots)) for end in (min, max))
    many = f"the {len(spots)} of them" if len(spots) > 1 else "the one"
    reach = f"from {low} to {high}" if low != high else f"at {low}"
    see.append(f"Rings are {many} that nothing of the same placement of blocks beats, {reach}.")
    see.append("Further up promises quality only among points of one colour.")
    if marked:
        see.append(f"Diamonds are the models that were built{', as measured' * guessed}.")
    return " ".join(see)
