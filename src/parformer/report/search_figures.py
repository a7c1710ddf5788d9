"""What does a differentiable search look like, figure by figure?

Every figure comes with the sentence under it, written from the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from itertools import accumulate
from statistics import fmean, stdev
from typing import Any

from parformer.evaluate.counting import References
from parformer.pattern import BlockSpec, Pattern
from parformer.report.page import ACCENT, FAINT, Part, axis, letter_name, listed, plot
from parformer.report.stack import COLOURS

Found = Mapping[str, Any]
"""What `search.json` holds."""

Trace = dict[str, Any]

THIRDS = ("first", "second", "last")
SHADES = (ACCENT, "#e8a200", "#0c8599", "#d9480f", "#4c78a8", "#2f9e44", "#9c36b5")
DOTTED = "#868e96"
"""The colour of what is no model: plain counting."""
TITLE = 26
"""Pixels above each of several stacked figures, for its name."""


def blocks_of(found: Found, picks: Sequence[int]) -> list[BlockSpec]:
    """One block per layer, identities included, so that every layer keeps its place."""
    choices = [Pattern.parse(choice)[0] for choice in found["choices"]]
    return [choices[pick] for pick in picks]


def choice_label(choice: str) -> str:
    """A choice in words, unless its options have to be told."""
    block = Pattern.parse(choice)[0]
    return str(block) if block.options or block.inside else letter_name(block.letter)


def row_of(found: Found, name: str) -> Mapping[str, Any] | None:
    """What was compared under this name."""
    return next((row for row in found["compared"] if row["name"] == name), None)


def heat_map(found: Found) -> Part:
    """PAR Transformer's picture of a search: how likely is which block in which layer?"""
    rows, count = found["probabilities"], len(found["seeds"])
    best = [max(row) for row in rows]
    see = "The stronger the colour, the likelier the block; dots mark what was chosen"
    see += f" (mean of {count} seeds)." if count > 1 else "."
    if max(best) == min(best):
        see += f" All layers are equally sure: the likeliest block has {best[0]:.0%}."
    else:
        surest, shakiest = best.index(max(best)), best.index(min(best))
        see += (
            f" No layer is surer than layer {surest + 1} ({_likeliest(found, surest)}),"
            f" and none less sure than layer {shakiest + 1} ({_likeliest(found, shakiest)})."
        )
    passed = sum(row[pick] < max(row) for row, pick in zip(rows, found["picks"], strict=True))
    if passed:
        why = ", to keep to the limit" if "limit" in (found["target"] or {}) else ""
        see += f" In {passed} layer{'s' * (passed > 1)} another than the likeliest was chosen{why}."
    bar = {"orientation": "h", "x": 1, "xanchor": "right", "y": 1.0, "yanchor": "bottom"}
    bar |= {"lenmode": "pixels", "len": 150, "thickness": 8, "outlinewidth": 0, "ypad": 4}
    bar |= {"tickvals": [0, 0.5, 1], "tickformat": ".0%", "ticklabelposition": "outside top"}
    drawn = plot(
        _cells(found, rows, found["picks"], "y"),
        height=110 + 36 * len(found["choices"]),
        xaxis=_layers_axis(found),
        yaxis=_choices_axis(),
        coloraxis=_sureness() | {"colorbar": bar},
        showlegend=False,
    )
    return Part(drawn, see)


def heat_maps_by_seed(found: Found) -> Part:
    """The same, seed under seed."""
    seeds, layers = found["seeds"], found["layers"]
    spans, height = _stacked([20 * len(found["choices"])] * len(seeds))
    data: list[Trace] = []
    layout: dict[str, Any] = {"xaxis": _layers_axis(found, anchor=_nth("y", len(seeds)))}
    for number, (seed, span) in enumerate(zip(seeds, spans, strict=True), start=1):
        data += _cells(found, seed["probabilities"], seed["picks"], _nth("y", number))
        layout[_nth("yaxis", number)] = _choices_axis(domain=span)
    alike = sum(len(set(picks)) == 1 for picks in zip(*(s["picks"] for s in seeds), strict=True))
    which = "all" if alike == layers else str(alike) if alike else "none"
    who = "Both" if len(seeds) == 2 else f"All {len(seeds)}"
    see = f"{who} seeds chose the same block in {which} of the {layers} layers"
    if alike < layers and len(seeds) > 2 and found["agreement"] is not None:
        see += f"; two of them agree on {found['agreement']:.0%} of the layers on average"
    drawn = plot(
        data,
        height=height + 60,
        coloraxis=_sureness() | {"showscale": False},
        annotations=_titles([f"seed {seed['seed']}" for seed in seeds], spans),
        showlegend=False,
        **layout,
    )
    return Part(drawn, f"{see}.")


def thirds(letters: Sequence[str], letter: str) -> list[int]:
    """How often a letter occurs in each third of the depth.

    >>> thirds("ssfsff", "s")
    [2, 1, 0]
    """
    found = [3 * place // len(letters) for place, other in enumerate(letters) if other == letter]
    return [found.count(third) for third in range(3)]


def thirds_figure(found: Found) -> Part:
    """Where in the depth is which block? Beside it, where the interleaved Transformer has it."""
    seeds = found["seeds"]
    stacks = [[block.letter for block in blocks_of(found, seed["picks"])] for seed in seeds]
    offered = [Pattern.parse(choice)[0].letter for choice in found["choices"]]
    baseline = row_of(found, "interleaved")
    usual = Pattern.parse(baseline["pattern"]).letters if baseline else ""
    data: list[Trace] = []
    for letter, colour in COLOURS.items():
        if letter in offered and letter != "i":
            counts = [*zip(*(thirds(stack, letter) for stack in stacks), strict=True)]
            bar = _bar(found, f"{letter_name(letter)}, found", [fmean(count) for count in counts])
            if len(seeds) > 1:
                bar["error_y"] = {"array": [stdev(count) for count in counts], "color": "#868e96"}
            data.append(bar | {"marker": {"color": colour}})
        if letter in usual:
            bar = _bar(found, f"{letter_name(letter)}, interleaved", thirds(usual, letter))
            hollow = {"color": "rgba(0,0,0,0)", "line": {"color": colour, "width": 2}}
            data.append(bar | {"marker": hollow})
    letter = "s" if "s" in offered else next((x for x in offered if x != "i"), "i")
    counts = [*zip(*(thirds(stack, letter) for stack in stacks), strict=True)]
    see = third_sentence(letter_name(letter), [fmean(count) for count in counts])
    if letter in usual:
        see += f" The interleaved Transformer has {listed([*map(str, thirds(usual, letter))])}."
    if len(seeds) > 1:
        see += f" Means of {len(seeds)} seeds; thin lines show one standard deviation."
    drawn = plot(
        data,
        height=380,
        xaxis=axis(),
        yaxis=axis("blocks", rangemode="nonnegative", dtick=1 if found["layers"] <= 24 else None),
    )
    return Part(drawn, see)


def third_sentence(name: str, places: Sequence[float]) -> str:
    """Where most of it is.

    >>> third_sentence("feed-forward", [3.0, 1.0, 0.0])
    'Most feed-forward is in the first third: 3 of 4 blocks.'
    """
    total, most = sum(places), max(places)
    where = [third for third, place in zip(THIRDS, places, strict=True) if place > most - 1e-9]
    if not total:
        return f"No layer became {name}."
    of = f"{_plain(most)} of {_plain(total)} block{'s' * (total != 1)}"
    if len(where) == 3:
        return f"The {name} is spread evenly: {of} in each third."
    if len(where) == 2:
        return f"The {listed(where)} third have the most {name}: {of} each."
    if 2 * most <= total:
        return f"The {where[0]} third has the most {name}: {of}."
    share = "All" if most > total - 1e-9 else "Most"
    return f"{share} {name} is in the {where[0]} third: {of}."


def convergence(found: Found) -> Part:
    """Did the search settle, and when?"""
    seeds = [seed for seed in found["seeds"] if seed["history"]["step"]]
    costs = [seed for seed in seeds if seed["history"]["cost"]]
    titles = ["training loss", "layers whose likeliest block is final"]
    titles += ["expected cost, interleaved = 1"] * bool(costs)
    spans, height = _stacked([190, 110, 110][: len(titles)])
    data = [line for number, seed in enumerate(seeds) for line in _curves(seed, number)]
    shade = {"type": "rect", "xref": "x", "yref": "paper", "x0": 0, "x1": found["warmup_steps"]}
    shade |= {"y0": 0, "y1": 1, "fillcolor": FAINT, "line": {"width": 0}, "layer": "below"}
    layout: dict[str, Any] = {
        "xaxis": axis("step", anchor=_nth("y", len(titles)), rangemode="tozero"),
        "yaxis": axis(domain=spans[0]),
        "yaxis2": axis(domain=spans[1], tickformat=".0%", range=[-0.05, 1.05]),
        "annotations": [*_titles(titles, spans), *_counted(found)[1]],
        "shapes": [*[shade] * bool(found["warmup_steps"]), *_counted(found)[0]],
    }
    if costs:
        layout["yaxis3"] = axis(domain=spans[2])
    see = " ".join(
        [
            *_went("The training loss", [seed["history"]["loss"] for seed in seeds]),
            *_went("The expected cost", [seed["history"]["cost"] for seed in costs]),
            _settled(found),
            *["Shaded: warm-up, in which only weights are trained."] * bool(found["warmup_steps"]),
            *["Dotted: what plain counting reaches on validation text."] * bool(_counted(found)[0]),
        ]
    )
    return Part(plot(data, height=height + 80, showlegend=len(seeds) > 1, **layout), see)


def _counted(found: Found) -> tuple[list[Trace], list[Trace]]:
    """Lines at the losses of plain counting, and their names; uniform guesses lie far above."""
    known = found.get("references")
    return reference_marks(dict(References.from_dict(known).lines()[1:]) if known else {})


def reference_marks(counted: Mapping[str, float]) -> tuple[list[Trace], list[Trace]]:
    """A dotted line across a figure for each of some heights, and their names."""
    line: Trace = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "yref": "y", "layer": "below"}
    line["line"] = {"color": DOTTED, "width": 1.2, "dash": "dot"}
    sign: Trace = {"xref": "paper", "xanchor": "right", "yref": "y", "yanchor": "bottom"}
    sign |= {"showarrow": False, "font": {"size": 11, "color": DOTTED}}
    return (
        [line | {"y0": y, "y1": y} for y in counted.values()],
        # side by side, as two may lie close to each other
        [
            sign | {"x": 0.9 if number % 2 else 1.0, "y": y, "text": escape(name)}
            for number, (name, y) in enumerate(counted.items())
        ],
    )


def _curves(seed: Mapping[str, Any], number: int) -> list[Trace]:
    """The loss of one seed, how much of its pattern is there already, and what it would cost."""
    history, name = seed["history"], f"seed {seed['seed']}"
    last = [_leaders(row) for row in history["probabilities"][-1]]
    there = [
        fmean(_leaders(row) == end for row, end in zip(rows, last, strict=True))
        for rows in history["probabilities"]
    ]
    sure = [fmean(max(row) for row in rows) for rows in history["probabilities"]]
    shared: Trace = {"type": "scatter", "mode": "lines", "x": history["step"], "name": name}
    shared |= {"legendgroup": name, "line": {"color": SHADES[number % len(SHADES)], "width": 2}}

    def curve(place: str, y: Sequence[float], note: Sequence[float], words: str) -> Trace:
        hover = f"{name}, step %{{x}}<br>{words}<extra></extra>"
        more = {"yaxis": place, "y": y, "customdata": note, "hovertemplate": hover}
        return shared | more | {"showlegend": place == "y"}

    loss = "loss %{y:.3f}<br>temperature %{customdata:.3g}"
    share = "%{y:.0%} of the layers<br>likeliest block: %{customdata:.0%} on average"
    lines = [
        curve("y", history["loss"], history["temperature"], loss),
        curve("y2", there, sure, share),
    ]
    if history["cost"]:
        weights = history["lambda"]
        words = "cost %{y:.3f}" + "<br>λ %{customdata:.3g}" * bool(weights)
        lines.append(curve("y3", history["cost"], weights or [], words))
    return lines


def _leaders(row: Sequence[float]) -> list[int]:
    """The likeliest choices; several where they tie, as all do before the search starts."""
    return [choice for choice, probability in enumerate(row) if probability == max(row)]


def _went(what: str, series: Sequence[Sequence[float | None]]) -> list[str]:
    """From where to where a curve went, as the mean over seeds; nothing without numbers."""
    kept = [[y for y in ys if y is not None and math.isfinite(y)] for ys in series]
    ends = [(ys[0], ys[-1]) for ys in kept if ys]
    if not ends:
        return []
    first, last = (fmean(values) for values in zip(*ends, strict=True))
    if f"{first:.3g}" == f"{last:.3g}":
        return [f"{what} stayed at {first:.3g}."]
    return [f"{what} {'fell' if last < first else 'rose'} from {first:.3g} to {last:.3g}."]


def _settled(found: Found) -> str:
    seeds = found["seeds"]
    early = sum(seed["early"] for seed in seeds)
    last = max(seeds, key=lambda seed: seed["changed"] or 0)
    see = "The chosen blocks never changed"
    if last["changed"]:
        see = f"The chosen blocks last changed at step {last['changed']:,} of {last['steps']:,}"
        see += f" (seed {last['seed']})" if len(seeds) > 1 else ""
    if early:
        who = f"{early} of the {len(seeds)} seeds" if len(seeds) > 1 else "the search"
        see += f"; {who} stopped early, having settled"
    return f"{see}."


def _likeliest(found: Found, layer: int) -> str:
    row = found["probabilities"][layer]
    return f"{choice_label(found['choices'][row.index(max(row))])} {max(row):.0%}"


def _cells(
    found: Found, rows: Sequence[Sequence[float]], picks: Sequence[int], place: str
) -> list[Trace]:
    """A heat map of one set of probabilities, and a dot on every chosen block."""
    x = list(range(1, len(rows) + 1))
    y = [escape(choice_label(choice)) for choice in found["choices"]]
    size, gap = (9, 2) if len(rows) <= 12 else (6, 1) if len(rows) <= 24 else (5, 1)
    heat: Trace = {"type": "heatmap", "x": x, "y": y, "z": [*map(list, zip(*rows, strict=True))]}
    heat |= {"yaxis": place, "coloraxis": "coloraxis", "xgap": gap, "ygap": 2}
    heat["hovertemplate"] = "layer %{x}<br>%{y}: %{z:.1%}<extra></extra>"
    dots: Trace = {"type": "scatter", "mode": "markers", "x": x, "y": [y[pick] for pick in picks]}
    dots["marker"] = {"size": size, "color": "#ffffff"}
    dots["marker"]["line"] = {"color": "#1f2328", "width": size / 6}
    return [heat, dots | {"yaxis": place, "hoverinfo": "skip"}]


def _sureness() -> dict[str, Any]:
    # see-through at nought, so that it is right on white and on black
    scale = [[0, "rgba(124, 92, 255, 0.05)"], [1, "rgba(124, 92, 255, 1)"]]
    return {"cmin": 0, "cmax": 1, "colorscale": scale}


def _layers_axis(found: Found, **more: Any) -> dict[str, Any]:
    step = next(step for step in (1, 2, 3, 4, 6, 8, 16, 64, 512) if found["layers"] <= 8 * step)
    ticks = {"tick0": step, "dtick": step, "showgrid": False, "zeroline": False}
    return axis("layer", range=[0.5, found["layers"] + 0.5], **ticks, **more)


def _choices_axis(**more: Any) -> dict[str, Any]:
    return axis(type="category", autorange="reversed", showgrid=False, **more)


def _bar(found: Found, name: str, heights: Sequence[float]) -> Trace:
    x = [_third_label(third, found["layers"]) for third in range(3)]
    hover = f"%{{y:.1f}} {name}<extra></extra>"
    return {"type": "bar", "x": x, "y": heights, "name": name, "hovertemplate": hover}


def _third_label(third: int, layers: int) -> str:
    inside = [layer + 1 for layer in range(layers) if 3 * layer // layers == third]
    words = f"layers {inside[0]}–{inside[-1]}" if inside else "no layer"
    words = words if len(inside) != 1 else f"layer {inside[0]}"
    return f"{THIRDS[third]} third<br>{words}"


def _plain(number: float) -> str:
    return f"{number:.0f}" if abs(number - round(number)) < 1e-9 else f"{number:.1f}"


def _nth(name: str, number: int) -> str:
    return name if number == 1 else f"{name}{number}"


def _stacked(heights: Sequence[int]) -> tuple[list[list[float]], int]:
    """Where figures of these heights lie under each other, each below its title."""
    total = sum(heights) + TITLE * len(heights)
    lows = [1 - below / total for below in accumulate(height + TITLE for height in heights)]
    return [[max(low, 0), low + h / total] for low, h in zip(lows, heights, strict=True)], total


def _titles(words: Sequence[str], spans: Sequence[Sequence[float]]) -> list[dict[str, Any]]:
    place = {"xref": "paper", "yref": "paper", "x": 0, "xanchor": "left", "yanchor": "bottom"}
    return [
        {"text": escape(text), "y": span[1], "showarrow": False, **place}
        for text, span in zip(words, spans, strict=True)
    ]
