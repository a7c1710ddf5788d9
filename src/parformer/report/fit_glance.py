"""What does a busy reader of a fit see first?

What was asked, what was found, and the chosen model beside the baseline, a tile per figure.
"""

from __future__ import annotations

from html import escape

from parformer.fitting.result import FitResult, ModelFacts
from parformer.fitting.scored import FINAL
from parformer.report import fit_rows as facts
from parformer.report import words as say
from parformer.report.page import Html, paragraph

GAIN, LOSS, NEITHER = "gain", "loss", "neither"
"""Colours of a tile's mark; what cannot be told apart is neither."""


def lead(found: FitResult) -> list[Html]:
    """All that stands above the first figure."""
    final = handed_over(found)
    return [
        *[paragraph(stopped_words(found), "warning")] * (not found.finished),
        paragraph(occasion(found), "soft"),
        *(paragraph(words, "verdict") for words in found.verdict.sentences),
        tiles(found),
        *[paragraph(final)] * bool(final),
        *(paragraph(warning, "warning") for warning in found.warnings),
    ]


def occasion(found: FitResult) -> str:
    """What was asked."""
    limits = say.listed(say.limits_words(found.limits, found.asked.multiples))
    what = found.what or f"a language model of {found.corpus}"
    words = f"Asked for: {what}, {limits or 'without limits'}"
    time = found.asked.time
    words += f", all of the work within {say.long_time(time)}" if time else ""
    return f"{words}."


def stopped_words(found: FitResult) -> str:
    """That the job did not end, and what it did not come to."""
    missing = [phase.title for phase in found.phases if phase.planned and phase.seconds is None]
    words = "The job was stopped before its end; this is the best so far."
    return f"{words} Not finished: {say.listed(missing)}." if missing else words


def tiles(found: FitResult) -> Html:
    """The chosen model beside the baseline; without a choice, the baseline alone."""
    base, labels = found.base, facts.labels_of(found)
    model = found.choice or base
    if model is None:
        return Html("")
    other = None if base is model else base
    drawn = [_quality(found, model, other), _latency(model, other, facts.timed(found))]
    drawn += [_size(model, other, metric) for metric in ("memory", "state", "parameters")]
    who = labels[model.name]
    if found.choice is None:
        words = f"No model was chosen; these are the figures of the baseline, {who}."
    elif other is None:
        words = f"The baseline itself was chosen: {who}."
    else:
        words = f"Large: the chosen model, {who}. Below it: the baseline, {labels[other.name]}."
    if updates := facts.updates_words(found):
        lower = "lower" if found.scores is None or not model.metrics else "higher"
        words += f" Quality ({lower} is better) is that on validation text after {updates}"
        words += ", the same for both." if other and other.steps == model.steps else "."
    if other is not None:
        words += f" At par: within {say.percent(found.asked.margin)} of the baseline’s loss,"
        words += " a margin fixed beforehand. Memory, state and parameters are exact counts."
    words += f" Measured on: {receipt(found)}"
    return Html(f'<div class="tiles">{"".join(drawn)}</div>{paragraph(words, "soft fine")}')


def receipt(found: FitResult) -> str:
    """Where, how and when it was measured."""
    what = "" if found.asked.task else "a step of "
    step = [f"{what}{found.step.words}"] if found.step else []
    return f"{'; '.join([device_words(found), *step, found.date])}."


def device_words(found: FitResult) -> str:
    """The machine, its threads and the version of torch."""
    device = found.device
    torch = device.torch.partition("+")[0]
    return f"{device.cpu}, {say.counted(device.threads, 'thread')}, torch {torch}"


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


def _quality(found: FitResult, model: ModelFacts, other: ModelFacts | None) -> str:
    unit, scores = found.quality, found.scores
    if scores is not None and scores.figure(model.metrics) is not None:
        return _score(found, model, other)
    beside = "" if other is None else unit.number(other.loss)
    gap = None if other is None else facts.distance_of(found, model)
    kinds = {"better": GAIN, "at par": GAIN, "worse": LOSS}
    words = f"{gap.verdict}, loss {say.signed(gap.share)}" if gap else ""
    mark = words, kinds.get(gap.verdict, NEITHER) if gap else NEITHER
    more = gap.interval if gap else ""
    return _tile(f"quality: {unit.words}", unit.number(model.loss), beside, mark, more)


def _score(found: FitResult, model: ModelFacts, other: ModelFacts | None) -> str:
    """The task's own figure; whether it differs is known of what models are compared by."""
    scores = found.scores
    assert scores is not None
    mine, gap = scores.number(scores.figure(model.metrics)), None
    beside = "" if other is None else scores.number(scores.figure(other.metrics))
    gap = None if other is None else facts.distance_of(found, model)
    kinds = {"better": GAIN, "at par": GAIN, "worse": LOSS}
    words = f"{gap.verdict}, {found.quality.words} {say.signed(gap.share)}" if gap else ""
    mark = words, kinds.get(gap.verdict, NEITHER) if gap else NEITHER
    return _tile(f"quality: {scores.words}", mine, beside, mark, gap.interval if gap else "")


def _latency(model: ModelFacts, other: ModelFacts | None, what: str) -> str:
    beside = "" if other is None else facts.figure_words(other, "latency")
    words = "" if other is None else facts.speed_words(model)
    kind = {"faster": GAIN, "slower": LOSS}.get(words.rpartition(" ")[2], NEITHER)
    took, more = model.latency, ""
    if words and took:
        more = f"95%: {say.between((took.ratio_low - 1, took.ratio_high - 1), 0)}"
    return _tile(
        f"latency of {what}", facts.figure_words(model, "latency"), beside, (words, kind), more
    )


def _size(model: ModelFacts, other: ModelFacts | None, metric: str) -> str:
    """Counts are exact, so whatever differs is less or more."""
    mine, theirs = model.figure(metric), None if other is None else other.figure(metric)
    beside = "" if other is None else facts.figure_words(other, metric)
    words = "" if mine is None or theirs is None else say.change_words(mine, theirs)
    kind = {"less": GAIN, "more": LOSS}.get(words.rpartition(" ")[2], NEITHER)
    # more parameters cost nothing by themselves: what they cost is in the other tiles
    kind = NEITHER if metric == "parameters" else kind
    return _tile(say.NAMES[metric], facts.figure_words(model, metric), beside, (words, kind), "")


def handed_over(found: FitResult) -> str:
    """What is in the folder that the user takes home, or nothing."""
    final = found.final
    if final is None:
        return ""
    how = "trained on to" if final.retrained else "as trained in the contest, for"
    words = f"Yours to use: the model in the folder {final.folder}, {how}"
    words += f" {say.counted(final.steps, 'update')}"
    scores = {"validation": final.loss("valid"), "test": final.loss("test")}
    told = [
        f"{found.quality.told(loss)} on {name}" for name, loss in scores.items() if loss is not None
    ]
    if (task := found.scores) is not None:
        known = {"validation": task.of(FINAL, "valid"), "test": task.of(FINAL, "test")}
        told = [f"{task.words} {task.number(x)} on {n}" for n, x in known.items() if x is not None]
    return words + (f"; it reaches {say.listed(told)} text." if told else ".")
