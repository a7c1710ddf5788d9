"""What does a busy reader of a fit see first?

What was asked, what was found, and the chosen model beside the baseline, a tile per figure.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from parformer.report.fit_rows import (
    Found,
    Model,
    baseline_of,
    between,
    change_words,
    chosen_of,
    distance_of,
    ends_of,
    figure_of,
    figure_words,
    interval_told,
    labels_of,
    limits_words,
    loss_of,
    margin_of,
    name_of,
    percent,
    quality_told,
    quality_words,
    signed,
    speed_words,
    unit_of_quality,
    updates_words,
)
from parformer.report.page import Html, listed, paragraph
from parformer.report.pareto import receipt
from parformer.report.pareto_rows import NAMES, counted, finite
from parformer.report.search import long_time

GAIN, LOSS, NEITHER = "gain", "loss", "neither"
"""Colours of a tile's mark; what cannot be told apart is neither."""


def lead(found: Found) -> Html:
    """All that stands above the first figure."""
    verdict = found.get("verdict") or {}
    stopped = found.get("finished") is False
    final = handed_over(found)
    return Html(
        "\n".join(
            [
                *[paragraph(stopped_words(found), "warning")] * stopped,
                paragraph(occasion(found), "soft"),
                *(paragraph(str(words), "verdict") for words in verdict.get("sentences") or ()),
                tiles(found),
                *[paragraph(final)] * bool(final),
                *(paragraph(str(warning), "warning") for warning in found.get("warnings") or ()),
            ]
        )
    )


def headline(found: Found) -> str:
    return str((found.get("verdict") or {}).get("headline") or "No verdict yet")


def occasion(found: Found) -> str:
    """What was asked."""
    words = f"Asked for: a language model of {found.get('corpus') or 'a text'}"
    words += f", {told}" if (told := limits_words(found)) else ", without limits"
    time = finite((found.get("asked") or {}).get("time"))
    words += f", all of the work within {long_time(time)}" if time else ""
    return f"{words}."


def title_of(phase: Mapping[str, Any]) -> str:
    return str(phase.get("title") or phase.get("name") or "?")


def stopped_words(found: Found) -> str:
    """That the job did not end, and what it did not come to."""
    planned = [phase for phase in found.get("phases") or () if finite(phase.get("planned"))]
    missing = [title_of(phase) for phase in planned if finite(phase.get("seconds")) is None]
    words = "The job was stopped before its end; this is the best so far."
    return f"{words} Not finished: {listed(missing)}." if missing else words


def tiles(found: Found) -> Html:
    """The chosen model beside the baseline; without a choice, the baseline alone."""
    base, labels = baseline_of(found), labels_of(found)
    model = chosen_of(found) or base
    if model is None:
        return Html("")
    other = None if base is model else base
    drawn = [_quality(found, model, other), _latency(model, other)]
    drawn += [_size(model, other, metric) for metric in ("memory", "state", "parameters")]
    who = labels[name_of(model)]
    if chosen_of(found) is None:
        words = f"No model was chosen; these are the figures of the baseline, {who}."
    elif other is None:
        words = f"The baseline itself was chosen: {who}."
    else:
        words = f"Large: the chosen model, {who}. Below it: the baseline, {labels[name_of(other)]}."
    if updates := updates_words(found):
        words += f" Quality (lower is better) is that on validation text after {updates}"
        words += ", the same for both." if other else "."
    if other is not None:
        words += f" At par: within {percent(margin_of(found))} of the baseline’s loss,"
        words += " a margin fixed beforehand. Memory, state and parameters are exact counts."
    words += f" Measured on: {receipt(found)}"
    return Html(f'<div class="tiles">{"".join(drawn)}</div>{paragraph(words, "soft fine")}')


def _tile(label: str, value: str, beside: str, mark: tuple[str, str], more: str) -> str:
    number, _, unit = value.partition(" ")
    parts = [
        f'<div class="label">{escape(label)}</div>',
        f'<div class="value">{escape(number)} <span>{escape(unit)}</span></div>',
        f'<div class="beside">baseline {escape(beside)}</div>' * bool(beside),
        f'<div class="mark {mark[1]}">{escape(mark[0])}</div>' * bool(mark[0]),
        f'<div class="between">{escape(more)}</div>' * bool(more),
    ]
    return f'<div class="tile">{"".join(parts)}</div>'


def _quality(found: Found, model: Model, other: Model | None) -> str:
    value = quality_words(found, loss_of(model))
    beside = "" if other is None else quality_words(found, loss_of(other))
    gap = None if other is None else distance_of(found, model)
    kinds = {"better": GAIN, "at par": GAIN, "worse": LOSS}
    words = f"{gap.verdict}, loss {signed(gap.share)}" if gap else ""
    mark = words, kinds.get(gap.verdict, NEITHER) if gap else NEITHER
    more = interval_told(gap) if gap else ""
    return _tile(f"quality: {unit_of_quality(found)}", value, beside, mark, more)


def _latency(model: Model, other: Model | None) -> str:
    beside = "" if other is None else figure_words(other, "latency")
    words = "" if other is None else speed_words(model)
    kind = {"faster": GAIN, "slower": LOSS}.get(words.rpartition(" ")[2], NEITHER)
    ends = ends_of(model.get("latency"), "ratio_")
    more = f"95%: {between((ends[0] - 1, ends[1] - 1), 0)}" if words and ends else ""
    return _tile("latency of a step", figure_words(model, "latency"), beside, (words, kind), more)


def _size(model: Model, other: Model | None, metric: str) -> str:
    """Counts are exact, so whatever differs is less or more."""
    mine, theirs = figure_of(model, metric), None if other is None else figure_of(other, metric)
    beside = "" if other is None else figure_words(other, metric)
    words = "" if mine is None or theirs is None else change_words(mine, theirs)
    kind = {"less": GAIN, "more": LOSS}.get(words.rpartition(" ")[2], NEITHER)
    # more parameters cost nothing by themselves: what they cost is in the other tiles
    kind = NEITHER if metric == "parameters" else kind
    return _tile(NAMES[metric], figure_words(model, metric), beside, (words, kind), "")


def handed_over(found: Found) -> str:
    """What is in the folder that the user takes home, or nothing."""
    final: Mapping[str, Any] = found.get("final") or {}
    if not final:
        return ""
    how = "trained anew" if final.get("retrained") else "trained further"
    words = f"Yours to use: the model in the folder {final.get('folder') or '?'}, {how} to"
    words += f" {counted(final.get('steps'), 'update')}"
    seconds = finite(final.get("seconds"))
    words += f" in {long_time(seconds)}" if seconds is not None else ""
    scores = {"validation": loss_of(final), "test": loss_of(final, "test")}
    told = [f"{quality_told(found, x)} on {name}" for name, x in scores.items() if x is not None]
    return words + (f"; it reaches {listed(told)} text." if told else ".")
