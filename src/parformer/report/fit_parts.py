"""What are the models of a fit, and what do they write?

Tables and drawings, each with the sentence that says what to see in it, written from the same
numbers. What is missing gives nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from html import escape

from parformer.fitting.result import FitResult, ModelFacts
from parformer.fitting.scored import FINAL, told
from parformer.pattern import BlockSpec
from parformer.report import fit_rows as facts
from parformer.report import trials
from parformer.report.page import Html, Part, strips, table
from parformer.report.search import sentences_of
from parformer.report.search_figures import heat_map
from parformer.report.words import NAMES, between, counted, interval, listed, signed
from parformer.search.limits import in_words

TEXTS = {"valid": "validation", "test": "test"}
"""The splits that models are judged by, in words."""


def figures(found: FitResult) -> Part | None:
    """Everything that is known, model beside model."""
    models, unit = found.models, found.quality
    if not models:
        return None
    rows: dict[str, Callable[[ModelFacts], str]] = {
        "outcome": lambda m: facts.outcome(found, m),
        **_task_rows(found),
        f"validation, {unit.words}": lambda m: unit.number(m.loss),
        "  against the baseline’s": lambda m: _gap(found, m, lambda gap: signed(gap.share)),
        "  95% interval": lambda m: _gap(found, m, lambda gap: gap.ends and between(gap.ends)),
        "  verdict": lambda m: _gap(found, m, lambda gap: gap.verdict),
        f"latency of {facts.timed(found)}": lambda m: facts.figure_words(m, "latency"),
        "  its 95% interval": _interval,
        "  than the baseline": lambda m: "" if m is found.base else facts.speed_words(m),
        "peak memory": lambda m: facts.figure_words(m, "memory"),
        "state": lambda m: facts.figure_words(m, "state"),
        "parameters": lambda m: facts.figure_words(m, "parameters"),
        f"FLOPs of {facts.timed(found)}": lambda m: facts.figure_words(m, "flops"),
        "width": lambda m: f"{m.d_model:,}",
        "learning rate": lambda m: "" if m.rate is None else f"{m.rate:g}",
        "updates": _updates,
    }
    body = [[name, *(cell(model) or "–" for model in models)] for name, cell in rows.items()]
    kept = [row for row in body if any(cell != "–" for cell in row[1:])]
    head = ["", *(_marked(found, model) for model in models)]
    wide = f'<div class="models" style="--models:{len(models)}">{table(head, kept)}</div>'
    return Part(Html(wide), _figures_words(found))


def _task_rows(found: FitResult) -> dict[str, Callable[[ModelFacts], str]]:
    """The task's own figures on validation, where trainings tell them."""

    def tell(name: str) -> Callable[[ModelFacts], str]:
        return lambda m: "" if m.dropped or name not in m.metrics else f"{m.metrics[name]:.3f}"

    names = dict.fromkeys(name for model in found.models for name in model.metrics)
    return {f"validation, {told(name)}": tell(name) for name in names}


def _gap(found: FitResult, model: ModelFacts, tell: Callable[[facts.Distance], str | None]) -> str:
    gap = facts.distance_of(found, model)
    return "" if gap is None else tell(gap) or ""


def _interval(model: ModelFacts) -> str:
    return interval(model.latency.low, model.latency.high) if model.latency else ""


def _updates(model: ModelFacts) -> str:
    steps = model.dropped.step if model.dropped else model.steps
    return "" if steps is None else f"{steps:,}"


def _marked(found: FitResult, model: ModelFacts) -> str:
    """The title, with a tick before that of the chosen one."""
    return f"{'✓ ' * (model is found.choice)}{facts.labels_of(found)[model.name]}"


def _figures_words(found: FitResult) -> str:
    """The best on validation text, and the quickest."""
    labels, see = facts.labels_of(found), []
    if known := {m.name: m.loss for m in found.models if m.loss is not None}:
        best = min(known, key=known.__getitem__)
        told = found.quality.told(known[best])
        see.append(f"{labels[best]} is best on validation text: {told}.")
    quick = {m.name: m.latency.seconds for m in found.models if m.latency}
    if len(quick) > 1:
        first = min(quick, key=quick.__getitem__)
        see.append(f"The shortest step is that of {labels[first]}.")
    return " ".join([*see, "A dash means not known, or nothing to compare with."])


def stacks(found: FitResult) -> Part | None:
    """The models drawn, and below in full what they are."""
    models, labels = found.models, facts.labels_of(found)
    if not models:
        return None
    drawn = {name: blocks for m in models for name, blocks in _stacks(found, m)}
    notes = {_marked(found, m): words for m in models if (words := facts.outcome(found, m))}
    counts = [f"{m.pattern.count('s')} of {m.pattern.runs} in {labels[m.name]}" for m in models]
    rows = [(_marked(found, m), f"{m.how.rstrip('.')}. {m.pattern}") for m in models]
    more = f"<details><summary>how they came about, full patterns</summary>{table([], rows)}"
    see = f"The first block is at the left. Self-attention blocks: {listed(counts)}."
    return Part(Html(f"{strips(drawn, notes)}{more}</details>"), see)


def _stacks(found: FitResult, model: ModelFacts) -> list[tuple[str, list[BlockSpec]]]:
    """A model's blocks; those of an encoder in a row of their own."""
    name, encoder = _marked(found, model), model.pattern.encoder
    own = [(name, list(model.pattern))]
    return own if encoder is None else [(f"{name}: encoder", list(encoder)), *own]


def limits(found: FitResult) -> Part | None:
    """What was allowed, and what every model takes of it."""
    given, labels, models = facts.limits_here(found), facts.labels_of(found), found.models
    if not given or not models:
        return None
    rows = [["at most", *(in_words(metric, most) for metric, most in given.items())]]
    for model in models:
        cells = [_kept(model, metric, most) for metric, most in given.items()]
        rows.append([_marked(found, model), *cells])
    bad = {labels[m.name]: facts.broken_by(m) for m in models if m.broken}
    told = [f"{name} ({listed([NAMES[m] for m in metrics])})" for name, metrics in bad.items()]
    see = f"Asked for: {listed(found.asked.limits)}. "
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
    settled, here = (in_words("latency", x.get("latency", 0)) for x in (found.limits, given))
    if settled != here:
        see += f" The limit of {settled} was settled early in the job; by the baseline’s speed in"
        see += f" the last measurement it is {here}."
    drawn = table(["", *(NAMES[metric] for metric in given)], rows)
    return Part(Html(f'<div class="narrow">{drawn}</div>'), see)


def _kept(model: ModelFacts, metric: str, most: float) -> str:
    broken = model.broken.get(metric)
    value = model.figure(metric) if broken is None else broken
    if value is None:
        return "–"
    over = signed(value / most - 1, 0 if broken else 1)
    mark = f"✗ {over}" if broken is not None else "✓" if value <= most else over
    return f"{in_words(metric, value)} {mark}"


SEEN = (
    "Every line is a pattern of the baseline's size; after each look the better half went on. What "
    "came out takes part in the contest below if it is none of the usual ones."
)


def attention(found: FitResult) -> Part | None:
    """The picture of the search for placements, if there was one."""
    if found.trials is not None:
        return Part(trials.curves(found.trials), f"{found.trials.verdict()} {SEEN}")
    if not found.search:
        return None
    part = heat_map(found.search, found.search.stacks[-1])
    return Part(part.content, f"{sentences_of(found.search)[0]} {part.see}")


def counting(found: FitResult) -> Part | None:
    """What plain counting reaches, beside the model that is handed over."""
    known = {split: lines for split in TEXTS if (lines := facts.references_of(found, split))}
    if not known:
        return None
    unit, final = found.quality, found.final
    names = list(dict.fromkeys(name for one in known.values() for name in one))
    rows = [[name, *(unit.number(known[s].get(name)) for s in known)] for name in names]
    if final:
        rows.append([_final_name(found), *(unit.number(final.loss(split)) for split in known)])
    see = f"{unit.words.capitalize()}, lower is better. Counts are of the training text "
    see += (
        "(Witten-Bell, the order chosen on validation text) and frozen before they are judged, as "
    )
    see += "models are; xz has read the end of the training text before. Whoever loses to them "
    see += "does not need a network."
    return Part(table(["", *(TEXTS[split] for split in known)], rows), see)


def task(found: FitResult) -> Part | None:
    """The task's own scores of what is handed over, beside what needs no network."""
    scores = found.scores
    if scores is None:
        return None
    names = {FINAL: _final_name(found), "baseline": "interleaved Transformer, after the contest"}
    who = list(dict.fromkeys(name for some in scores.splits.values() for name in some))
    who.sort(key=lambda name: (name in names, name == FINAL))
    metrics = list(dict.fromkeys(
        name for some in scores.splits.values() for one in some.values() for name in one
    ))  # fmt: skip
    columns = [(split, name) for split in scores.splits for name in metrics]
    rows = []
    for one in who:
        known = {(s, n): scores.splits[s].get(one, {}).get(n) for s, n in columns}
        rows.append([names.get(one, one), *(scores.number(value) for value in known.values())])
    see = f"Higher is better; the task is told in {scores.words}. "
    for split, (low, high) in scores.intervals.items():
        see += f"On {TEXTS[split]} what is handed over lies between {scores.number(low)} and "
        see += f"{scores.number(high)} with 95% confidence, by drawing "
        see += f"{scores.examples.get(split, 0):,} examples again and again. "
    see += f"Answers are {scores.how}. " if scores.how else ""
    see += "Whoever loses to the first rows does not need a network."
    head = ["", *(f"{TEXTS[split]}, {told(name)}" for split, name in columns)]
    return Part(table(head, rows), see)


def sweep(found: FitResult) -> Part | None:
    """Which learning rates were tried, and which each model was given."""
    labels, unit = facts.labels_of(found), found.learning
    rates = sorted({tried.rate for model in found.models for tried in model.rates})
    if not rates:
        return None
    rows, taken, edges = [], set[float](), list[str]()
    for model in found.models:
        tried = {one.rate: one for one in model.rates}
        cells = []
        for rate in rates:
            one = tried.get(rate)
            told = "–" if one is None else unit.number(one.loss).replace("–", "diverged")
            told += " (learned nothing)" * bool(one and one.stuck)
            cells.append(f"{told}{' ✓' * bool(one and rate == model.rate)}")
        rows.append([labels[model.name], *cells])
        if model.rate is not None:
            taken.add(model.rate)
            edge = len(tried) > 1 and model.rate in (min(tried), max(tried))
            edges += [labels[model.name]] * edge
    see = f"{unit.words.capitalize()} after a short training, lower is better."
    if taken:
        low, high = min(taken), max(taken)
        who = "All were" if len(found.models) > 1 else "It was"
        each = f"✓ is what each was given, from {low:g} to {high:g}."
        see += f" {who} given {low:g}." if low == high else f" {each}"
    if edges:
        see += (
            f" At the edge of what was tried, so that a better one may lie beyond: {listed(edges)}."
        )
    return Part(table(["learning rate", *(f"{rate:g}" for rate in rates)], rows), see)


def samples(found: FitResult) -> Part | None:
    """Text from the models, side by side where there is room."""
    if not found.samples:
        return None
    names = facts.labels_of(found) | {"final": _final_name(found)}
    cards = "".join(
        f"<div><h3>{escape(names.get(one.name, one.name))}</h3>"
        f'<pre tabindex="0"><b>{escape(one.prompt)}</b>{escape(one.text)}</pre></div>'
        for one in found.samples
    )
    alike = len({one.prompt for one in found.samples}) == 1 < len(found.samples)
    see = "The bold beginning was given" + ", the same to all" * alike
    see += ". A sample shows what a model sounds like, not how good it is."
    if not any(one.prompt for one in found.samples):
        see = "Some examples that nothing was learned or chosen by, from all over the split."
    base, final = found.base, found.final
    if base and final and base.steps is not None and base.steps != final.steps:
        see += f" The baseline learned for {counted(base.steps, 'update')}, the chosen"
        see += f" model for {counted(final.steps, 'update')}."
    return Part(Html(f'<div class="samples">{cards}</div>'), see)


def _final_name(found: FitResult) -> str:
    chosen = found.choice
    return f"{facts.labels_of(found)[chosen.name]}, handed over" if chosen else "handed over"
