"""What are the models of a fit, and what do they write?

Tables and drawings, each with the sentence that says what to see in it, written from the same
numbers. What is missing gives nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from html import escape
from typing import Any

from parformer.report.fit_rows import (
    Distance,
    Found,
    Model,
    baseline_of,
    between,
    broken_by,
    chosen_of,
    distance_of,
    ends_of,
    figure_of,
    figure_words,
    find,
    labels_of,
    limits_here,
    limits_of,
    loss_of,
    models_of,
    name_of,
    outcome,
    quality_told,
    quality_words,
    references_of,
    signed,
    speed_words,
    unit_of_quality,
)
from parformer.report.page import Html, Part, listed, strips, table
from parformer.report.pareto_rows import NAMES, blocks_of, counted, finite, interval_words
from parformer.report.search import long_time, sentences_of
from parformer.report.search_figures import heat_map
from parformer.search.limits import in_words

TEXTS = {"valid": "validation", "test": "test"}
"""The splits that models are judged by, in words."""


def figures(found: Found) -> Part | None:
    """Everything that is known, model beside model."""
    models, unit = models_of(found), unit_of_quality(found)
    if not models:
        return None
    rows: dict[str, Callable[[Model], str]] = {
        "outcome": lambda m: outcome(found, m) or "–",
        f"validation, {unit}": lambda m: quality_words(found, loss_of(m)),
        "  against the baseline’s": lambda m: _gap(found, m, lambda gap: signed(gap.share)),
        "  95% interval": lambda m: _gap(found, m, lambda gap: gap.ends and between(gap.ends)),
        "  verdict": lambda m: _gap(found, m, lambda gap: gap.verdict),
        f"test, {unit}": lambda m: quality_words(found, loss_of(m, "test")),
        "latency of a step": lambda m: figure_words(m, "latency"),
        "  its 95% interval": _interval,
        "  than the baseline": lambda m: "–" if m is baseline_of(found) else speed_words(m),
        "peak memory": lambda m: figure_words(m, "memory"),
        "state": lambda m: figure_words(m, "state"),
        "parameters": lambda m: figure_words(m, "parameters"),
        "FLOPs of a step": lambda m: figure_words(m, "flops"),
        "width": lambda m: _number(m.get("d_model")),
        "learning rate": lambda m: _rate(m.get("rate")),
        "updates": lambda m: _number((m.get("dropped") or {}).get("step") or m.get("steps")),
        "time to train": lambda m: _time(m.get("seconds")),
    }
    body = [[name, *(cell(model) or "–" for model in models)] for name, cell in rows.items()]
    kept = [row for row in body if any(cell != "–" for cell in row[1:])]
    head = ["", *(_marked(found, model) for model in models)]
    wide = f'<div class="models" style="--models:{len(models)}">{table(head, kept)}</div>'
    return Part(Html(wide), _figures_words(found))


def _gap(found: Found, model: Model, tell: Callable[[Distance], str | None]) -> str:
    gap = distance_of(found, model)
    return "–" if gap is None else tell(gap) or "–"


def _marked(found: Found, model: Model) -> str:
    """The title, with a tick before that of the chosen one."""
    return f"{'✓ ' * (model is chosen_of(found))}{labels_of(found)[name_of(model)]}"


def _figures_words(found: Found) -> str:
    """The best on the text that nothing was chosen by, else on validation; and the quickest."""
    labels, models = labels_of(found), models_of(found)
    see = []
    for part in ("test", "valid"):
        known = {name_of(m): x for m in models if (x := loss_of(m, part)) is not None}
        if known:
            best = min(known, key=known.__getitem__)
            text = (
                "test text, which had no part in the choice"
                if part == "test"
                else "validation text"
            )
            see.append(f"{labels[best]} is best on {text}: {quality_told(found, known[best])}.")
            break
    quick = {name_of(m): x for m in models if (x := figure_of(m, "latency")) is not None}
    if len(quick) > 1:
        first = min(quick, key=quick.__getitem__)
        see.append(f"The shortest step is that of {labels[first]}.")
    see.append("A dash means not known, or nothing to compare with.")
    return " ".join(see)


def _interval(model: Model) -> str:
    ends = ends_of(model.get("latency"))
    return interval_words({"measured": {"latency_interval": ends}}) if ends else "–"


def _number(value: Any) -> str:
    known = finite(value)
    return "–" if known is None else f"{known:,.0f}"


def _rate(value: Any) -> str:
    known = finite(value)
    return "–" if known is None else f"{known:g}"


def _time(value: Any) -> str:
    known = finite(value)
    return "–" if known is None else long_time(known)


def stacks(found: Found) -> Part | None:
    """The models drawn, and below in full what they are."""
    models = models_of(found)
    drawn = {_marked(found, m): list(blocks) for m in models if (blocks := blocks_of(m))}
    if not drawn:
        return None
    notes = {_marked(found, m): words for m in models if (words := outcome(found, m))}
    counts = [
        f"{sum(b.letter == 's' for b in blocks)} of {len(blocks)} in {labels_of(found)[name_of(m)]}"
        for m in models
        if (blocks := blocks_of(m))
    ]
    rows = [(_marked(found, m), _full(m)) for m in models]
    more = f"<details><summary>how they came about, full patterns</summary>{table([], rows)}"
    see = f"The first block is at the left. Self-attention blocks: {listed(counts)}."
    return Part(Html(f"{strips(drawn, notes)}{more}</details>"), see)


def _full(model: Model) -> str:
    how = str(model.get("how") or "").rstrip(".")
    return ". ".join(filter(None, [how, str(model.get("pattern") or "")]))


def limits(found: Found) -> Part | None:
    """What was allowed, and what every model takes of it."""
    given, labels, models = limits_here(found), labels_of(found), models_of(found)
    if not given or not models:
        return None
    rows = [["at most", *(in_words(metric, most) for metric, most in given.items())]]
    for model in models:
        cells = [_kept(found, model, metric, most) for metric, most in given.items()]
        rows.append([_marked(found, model), *cells])
    bad = {labels[name_of(m)]: broken_by(m) for m in models if broken_by(m)}
    told = [f"{name} ({listed([NAMES[m] for m in metrics])})" for name, metrics in bad.items()]
    asked = listed([str(limit) for limit in (found.get("asked") or {}).get("limits") or ()])
    see = f"Asked for: {asked}. " if asked else ""
    if not bad:
        see += "Every model keeps to all limits."
    elif len(bad) == len(models):
        see += "No model keeps to all limits."
    else:
        breaks = "does" if len(bad) == 1 else "do"
        see += f"{len(models) - len(bad)} of {len(models)} models keep to all limits; "
        see += f"{listed(told)} {breaks} not."
    if any(cell.endswith("%") and "✗" not in cell for row in rows for cell in row):
        see += " What is over a limit without ✗ is so by less than can be told."
    settled, here = (in_words("latency", x.get("latency", 0)) for x in (limits_of(found), given))
    if settled != here:
        see += f" The limit of {settled} was settled early in the job; by the baseline’s speed in"
        see += f" the last measurement it is {here}."
    drawn = table(["", *(NAMES[metric] for metric in given)], rows)
    return Part(Html(f'<div class="narrow">{drawn}</div>'), see)


def _kept(found: Found, model: Model, metric: str, most: float) -> str:
    broken = finite((model.get("broken") or {}).get(metric))
    value = broken if figure_of(model, metric) is None else figure_of(model, metric)
    if value is None:
        return "–"
    if broken is not None:
        return f"{in_words(metric, value)} ✗ {signed(broken / limits_of(found)[metric] - 1, 0)}"
    return f"{in_words(metric, value)} {'✓' if value <= most else signed(value / most - 1)}"


def attention(found: Found) -> Part | None:
    """The picture of the differentiable search, if there was one."""
    search = found.get("search")
    if not search:
        return None
    part = heat_map(search)
    return Part(part.content, f"{sentences_of(search)[0]} {part.see}")


def counting(found: Found) -> Part | None:
    """What plain counting reaches, beside the model that is handed over."""
    splits = {s: words for s, words in TEXTS.items() if references_of(found, s)}
    if not splits:
        return None
    known = {split: references_of(found, split) for split in splits}
    names = list(dict.fromkeys(name for one in known.values() for name in one))
    rows = [[name, *(quality_words(found, known[s].get(name)) for s in splits)] for name in names]
    final: Mapping[str, Any] = found.get("final") or {}
    if final:
        cells = [quality_words(found, loss_of(final, split)) for split in splits]
        rows.append([f"{_final_name(found)}", *cells])
    see = (
        f"{unit_of_quality(found).capitalize()}, lower is better. Counts are of the training text "
    )
    see += (
        "(Witten-Bell, the order chosen on validation text) and frozen before they are judged, as "
    )
    see += "models are; xz has read the end of the training text before. Whoever loses to them "
    see += "does not need a network."
    return Part(table(["", *splits.values()], rows), see)


def sweep(found: Found) -> Part | None:
    """Which learning rates were tried, and which each model was given."""
    labels = labels_of(found)
    tried = {
        name_of(model): {
            rate: row.get("loss")
            for row in model.get("rates") or ()
            if (rate := finite(row.get("rate"))) is not None
        }
        for model in models_of(found)
    }
    rates = sorted({rate for losses in tried.values() for rate in losses})
    if not rates:
        return None
    stuck = {
        (name_of(model), row["rate"])
        for model in models_of(found)
        for row in model.get("rates") or ()
        if row.get("stuck")
    }
    rows, taken, edges = [], {}, []
    for name, losses in tried.items():
        best = finite((find(found, name) or {}).get("rate"))
        cells = []
        for rate in rates:
            told = quality_words(found, losses.get(rate)).replace("–", "diverged")
            told += " (learned nothing)" * ((name, rate) in stuck)
            cells.append(f"{told}{' ✓' * (rate == best)}" if rate in losses else "–")
        rows.append([labels[name], *cells])
        if best is not None:
            taken[name] = best
            edges += [labels[name]] * (len(losses) > 1 and best in (min(losses), max(losses)))
    chosen = sorted(set(taken.values()))
    see = f"{unit_of_quality(found).capitalize()} after a short training, lower is better."
    if chosen:
        same = (
            f"All were given {chosen[0]:g}." if len(taken) > 1 else f"It was given {chosen[0]:g}."
        )
        each = f"✓ is what each was given, from {chosen[0]:g} to {chosen[-1]:g}."
        see += f" {same if len(chosen) == 1 else each}"
    if edges:
        see += (
            f" At the edge of what was tried, so that a better one may lie beyond: {listed(edges)}."
        )
    return Part(table(["learning rate", *(f"{rate:g}" for rate in rates)], rows), see)


def samples(found: Found) -> Part | None:
    """Text from the models, side by side where there is room."""
    given, labels = found.get("samples") or [], labels_of(found)
    if not given:
        return None
    names = labels | {"final": _final_name(found)}
    cards = "".join(
        f"<div><h3>{escape(names.get(str(row.get('name')), str(row.get('name'))))}</h3>"
        f'<pre tabindex="0"><b>{escape(str(row.get("prompt") or ""))}</b>'
        f"{escape(str(row.get('text') or ''))}</pre></div>"
        for row in given
    )
    prompts = {str(row.get("prompt") or "") for row in given}
    see = "The bold beginning was given" + ", the same to all" * (len(prompts) == 1 < len(given))
    see += ". A sample shows what a model sounds like, not how good it is."
    steps = {
        "baseline": (baseline_of(found) or {}).get("steps"),
        "final": (found.get("final") or {}).get("steps"),
    }
    known = {name: step for name, step in steps.items() if finite(step) is not None}
    if len(known) == 2 and len(set(known.values())) == 2:
        see += f" The baseline learned for {counted(known['baseline'], 'update')}, the chosen"
        see += f" model for {counted(known['final'], 'update')}."
    return Part(Html(f'<div class="samples">{cards}</div>'), see)


def _final_name(found: Found) -> str:
    chosen = chosen_of(found)
    return f"{labels_of(found)[name_of(chosen)]}, handed over" if chosen else "handed over"
