"""What does a search for placements look like, figure by figure?

Every figure comes with the sentence under it, written from the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev

from parformer.pattern import Pattern
from parformer.report import figures as draw
from parformer.report.figures import Trace, Value
from parformer.report.page import Part, letter_name
from parformer.report.stack import COLOURS
from parformer.report.words import listed, went
from parformer.search.placement.result import PlacementResult, Seed, Stack

THIRDS = ("first", "second", "last")
HOVER = "layer %{x}<br>%{y}: %{z:.1%}"


def choice_label(choice: str) -> str:
    """A choice in words, unless its options have to be told."""
    block = Pattern.parse(choice)[0]
    return str(block) if block.options or block.inside else letter_name(block.letter)


def labels(stack: Stack) -> list[str]:
    return [choice_label(choice) for choice in stack.choices]


def heat_map(found: PlacementResult, stack: Stack) -> Part:
    """PAR Transformer's picture of a search: how likely is which block in which layer?"""
    rows, picks, count = stack.of(found.probabilities), stack.of(found.picks), len(found.seeds)
    best = [max(row) for row in rows]
    see = f"The {stack.name}. " * bool(stack.name)
    see += "The stronger the colour, the likelier the block; dots mark what was chosen"
    see += f" (mean of {count} seeds)." if count > 1 else "."
    if max(best) == min(best):
        see += f" All layers are equally sure: the likeliest block has {best[0]:.0%}."
    else:
        surest, shakiest = best.index(max(best)), best.index(min(best))
        see += (
            f" No layer is surer than layer {surest + 1} ({_likeliest(stack, rows[surest])}),"
            f" and none less sure than layer {shakiest + 1} ({_likeliest(stack, rows[shakiest])})."
        )
    passed = sum(row[pick] < max(row) for row, pick in zip(rows, picks, strict=True))
    if passed:
        limited = found.target is not None and found.target.limit is not None
        why = ", to keep to the limit" if limited else ""
        see += f" In {passed} layer{'s' * (passed > 1)} another than the likeliest was chosen{why}."
    bar: Trace = {
        "orientation": "h",
        "x": 1,
        "xanchor": "right",
        "y": 1.0,
        "yanchor": "bottom",
    }
    bar |= {"lenmode": "pixels", "len": 150, "thickness": 8, "outlinewidth": 0, "ypad": 4}
    bar |= {"tickvals": [0, 0.5, 1], "tickformat": ".0%", "ticklabelposition": "outside top"}
    drawn = draw.plot(
        draw.heat_map(rows, labels(stack), picks, HOVER),
        height=110 + 36 * len(stack.choices),
        xaxis=_layers_axis(stack),
        yaxis=_choices_axis(),
        coloraxis=draw.shares_scale(colorbar=bar),
        showlegend=False,
    )
    return Part(drawn, see)


def heat_maps_by_seed(found: PlacementResult, stack: Stack) -> Part:
    """The same, seed under seed."""
    seeds, layers = found.seeds, stack.layers
    spans, height = draw.stacked([20 * len(stack.choices)] * len(seeds))
    data: list[Trace] = []
    layout: Trace = {"xaxis": _layers_axis(stack, anchor=draw.nth("y", len(seeds)))}
    for number, (seed, span) in enumerate(zip(seeds, spans, strict=True), start=1):
        data += draw.heat_map(
            stack.of(seed.probabilities),
            labels(stack),
            stack.of(seed.picks),
            HOVER,
            draw.nth("y", number),
        )
        layout[draw.nth("yaxis", number)] = _choices_axis(domain=span)
    alike = sum(len({*own}) == 1 for own in zip(*(stack.of(s.picks) for s in seeds), strict=True))
    which = "all" if alike == layers else str(alike) if alike else "none"
    who = "Both" if len(seeds) == 2 else f"All {len(seeds)}"
    see = f"{who} seeds chose the same block in {which} of the {layers} {_own(stack)}layers"
    if alike < layers and len(seeds) > 2 and found.agreement is not None:
        see += f"; two of them agree on {found.agreement:.0%} of the layers on average"
    drawn = draw.plot(
        data,
        height=height + 60,
        coloraxis=draw.shares_scale(showscale=False),
        annotations=draw.titles([f"seed {seed.seed}" for seed in seeds], spans),
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


def thirds_figure(found: PlacementResult, stack: Stack) -> Part:
    """Where in the depth is which block? Beside it, where the interleaved Transformer has it."""
    seeds = found.seeds
    chosen = [[block.letter for block in stack.blocks(seed.picks)] for seed in seeds]
    offered = [Pattern.parse(choice)[0].letter for choice in stack.choices]
    baseline = found.row("interleaved")
    usual = stack.side(baseline.pattern).letters if baseline else ""
    x = [_third_label(third, stack.layers) for third in range(3)]

    def counts(letter: str) -> list[tuple[int, ...]]:
        """By third, of every seed."""
        return [*zip(*(thirds(own, letter) for own in chosen), strict=True)]

    def drawn(letter: str, colour: str, *, usually: bool) -> Trace:
        name = f"{letter_name(letter)}, {'interleaved' if usually else 'found'}"
        hover = f"%{{y:.1f}} {name}"
        if usually:
            heights: Sequence[float] = thirds(usual, letter)
            return draw.bars(x, heights, name=name, colour=colour, hover=hover, hollow=True)
        own = counts(letter)
        spread = [stdev(count) for count in own] if len(seeds) > 1 else None
        heights = [fmean(count) for count in own]
        return draw.bars(x, heights, name=name, colour=colour, hover=hover, spread=spread)

    data: list[Trace] = []
    for letter, colour in COLOURS.items():
        if letter in offered and letter != "i":
            data.append(drawn(letter, colour, usually=False))
        if letter in usual:
            data.append(drawn(letter, colour, usually=True))
    letter = "s" if "s" in offered else next((x for x in offered if x != "i"), "i")
    see = f"The {stack.name}. " * bool(stack.name)
    see += third_sentence(letter_name(letter), [fmean(count) for count in counts(letter)])
    if letter in usual:
        see += f" The interleaved Transformer has {listed([*map(str, thirds(usual, letter))])}."
    if len(seeds) > 1:
        see += f" Means of {len(seeds)} seeds; thin lines show one standard deviation."
    y = draw.axis("blocks", rangemode="nonnegative", dtick=1 if stack.layers <= 24 else None)
    return Part(draw.plot(data, height=380, xaxis=draw.axis(), yaxis=y), see)


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


def convergence(found: PlacementResult) -> Part:
    """Did the search settle, and when?"""
    seeds = [seed for seed in found.seeds if seed.history.step]
    priced = [seed for seed in seeds if seed.history.cost]
    names = ["training loss", "layers whose likeliest block is final"]
    names += ["expected cost, interleaved = 1"] * bool(priced)
    spans, height = draw.stacked([190, 110, 110][: len(names)])
    data = [line for number, seed in enumerate(seeds) for line in _curves(seed, number)]
    # lines at the losses of plain counting; uniform guesses lie far above
    counted = dict(found.references.lines()[1:]) if found.references else {}
    marks = draw.reference_marks(counted)
    warm_up = [draw.band("x", 0, found.warmup_steps)] * bool(found.warmup_steps)
    layout: Trace = {
        "xaxis": draw.axis("step", anchor=draw.nth("y", len(names)), rangemode="tozero"),
        "yaxis": draw.axis(domain=spans[0]),
        "yaxis2": draw.axis(domain=spans[1], tickformat=".0%", range=[-0.05, 1.05]),
        "annotations": [*draw.titles(names, spans), *marks["annotations"]],
        "shapes": [*warm_up, *marks["shapes"]],
    }
    if priced:
        layout["yaxis3"] = draw.axis(domain=spans[2])
    see = " ".join(
        [
            *_went("The training loss", [seed.history.loss for seed in seeds]),
            *_went("The expected cost", [seed.history.cost or () for seed in priced]),
            _settled(found),
            *["Shaded: warm-up, in which only weights are trained."] * bool(warm_up),
            *["Dotted: what plain counting reaches on validation text."] * bool(counted),
        ]
    )
    return Part(draw.plot(data, height=height + 80, showlegend=len(seeds) > 1, **layout), see)


def _curves(seed: Seed, number: int) -> list[Trace]:
    """The loss of one seed, how much of its pattern is there already, and what it would cost."""
    history, name = seed.history, f"seed {seed.seed}"
    last = [_leaders(row) for row in history.probabilities[-1]]
    there = [
        fmean(_leaders(row) == end for row, end in zip(rows, last, strict=True))
        for rows in history.probabilities
    ]
    sure = [fmean(max(row) for row in rows) for rows in history.probabilities]

    def curve(place: str, y: Sequence[float], note: Sequence[float], words: str) -> Trace:
        hover = f"{name}, step %{{x}}<br>{words}"
        colour, points = draw.SHADES[number % len(draw.SHADES)], zip(history.step, y, strict=False)
        line = draw.lines(points, name=name, colour=colour, hover=hover, showlegend=place == "y")
        return line | {"yaxis": place, "customdata": list(note), "legendgroup": name}

    loss = "loss %{y:.3f}<br>temperature %{customdata:.3g}"
    share = "%{y:.0%} of the layers<br>likeliest block: %{customdata:.0%} on average"
    drawn = [
        curve("y", history.loss, history.temperature, loss),
        curve("y2", there, sure, share),
    ]
    if history.cost:
        weights = history.penalty or ()
        words = "cost %{y:.3f}" + "<br>λ %{customdata:.3g}" * bool(weights)
        drawn.append(curve("y3", history.cost, weights, words))
    return drawn


def _leaders(row: Sequence[float]) -> list[int]:
    """The likeliest choices; several where they tie, as all do before the search starts."""
    return [choice for choice, probability in enumerate(row) if probability == max(row)]


def _went(what: str, series: Sequence[Sequence[float]]) -> list[str]:
    """From where to where a curve went, as the mean over seeds; nothing without numbers."""
    kept = [[y for y in ys if math.isfinite(y)] for ys in series]
    ends = [(ys[0], ys[-1]) for ys in kept if ys]
    if not ends:
        return []
    return [f"{what} {went(*(fmean(values) for values in zip(*ends, strict=True)))}."]


def _settled(found: PlacementResult) -> str:
    seeds = found.seeds
    early = sum(seed.early for seed in seeds)
    last = max(seeds, key=lambda seed: seed.changed)
    see = "The chosen blocks never changed"
    if last.changed:
        see = f"The chosen blocks last changed at step {last.changed:,} of {last.steps:,}"
        see += f" (seed {last.seed})" if len(seeds) > 1 else ""
    if early:
        who = f"{early} of the {len(seeds)} seeds" if len(seeds) > 1 else "the search"
        see += f"; {who} stopped early, having settled"
    return f"{see}."


def _own(stack: Stack) -> str:
    return f"{stack.name} " * bool(stack.name)


def _likeliest(stack: Stack, row: Sequence[float]) -> str:
    return f"{choice_label(stack.choices[row.index(max(row))])} {max(row):.0%}"


def _layers_axis(stack: Stack, **more: Value) -> Trace:
    step = next(step for step in (1, 2, 3, 4, 6, 8, 16, 64, 512) if stack.layers <= 8 * step)
    ticks: Trace = {"tick0": step, "dtick": step, "showgrid": False, "zeroline": False}
    return draw.axis(f"{_own(stack)}layer", range=[0.5, stack.layers + 0.5]) | ticks | more


def _choices_axis(**more: Value) -> Trace:
    return draw.axis(type="category", autorange="reversed", showgrid=False) | more


def _third_label(third: int, layers: int) -> str:
    inside = [layer + 1 for layer in range(layers) if 3 * layer // layers == third]
    words = f"layers {inside[0]}–{inside[-1]}" if inside else "no layer"
    words = words if len(inside) != 1 else f"layer {inside[0]}"
    return f"{THIRDS[third]} third<br>{words}"


def _plain(number: float) -> str:
    return f"{number:.0f}" if abs(number - round(number)) < 1e-9 else f"{number:.1f}"
