"""What is known of one model of a fit, and how is it told?"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import cycle

from parformer.fitting.result import FitResult, ModelFacts
from parformer.fitting.scored import BASELINE, FINAL, Metrics
from parformer.report import words as say
from parformer.report.figures import ACCENT, GREY, SHADES
from parformer.search.limits import METRICS


@dataclass(frozen=True, slots=True)
class Distance:
    """How far a model's loss lies from the baseline's, as a share of it; above 0 is worse."""

    share: float
    ends: say.Ends | None
    """95% interval, where the models were compared segment by segment."""

    verdict: str

    @property
    def interval(self) -> str:
        """How sure the difference is."""
        return f"95%: {say.between(self.ends)}" if self.ends else "no interval"


def labels_of(found: FitResult) -> dict[str, str]:
    """Every model's title; where two have the same, their names tell them apart."""
    titles = {model.name: model.title or model.name for model in found.models}
    several = [title for title in titles.values() if [*titles.values()].count(title) > 1]
    return {n: f"{title} ({n})" if title in several else title for n, title in titles.items()}


def colours_of(found: FitResult) -> dict[str, str]:
    """One colour per model in all figures: the baseline grey, the chosen one bright."""
    fixed = {found.baseline: GREY} | ({found.chosen: ACCENT} if found.chosen else {})
    others = cycle(SHADES[1:])
    return {model.name: fixed.get(model.name) or next(others) for model in found.models}


def figure_words(model: ModelFacts, metric: str) -> str:
    return say.amount(metric, model.figure(metric))


def distance_of(found: FitResult, model: ModelFacts) -> Distance | None:
    """From the paired comparison; failing that, from the two losses, and then nothing is sure."""
    against, base = model.against, found.base
    if against is not None and not model.dropped:
        return Distance(against.difference, (against.low, against.high), against.verdict)
    if base is None or model is base or model.loss is None or not base.loss:
        return None
    if False in (model.learned, base.learned) or model.steps != base.steps:
        return None  # what learned nothing, or for longer, is no measure for others
    return Distance(model.loss / base.loss - 1, None, "unclear")


def references_of(found: FitResult, split: str = "valid") -> dict[str, float]:
    """What plain counting reaches on a split, the plainest first, by name; nothing if unknown."""
    known = found.references.get(split)
    return dict(known.lines(letters=found.unit != "perplexity")) if known else {}


def plain_of(found: FitResult, split: str = "valid") -> dict[str, Metrics]:
    """What needs no network at a task, by name without its article."""
    known = found.scores.splits.get(split, {}) if found.scores else {}
    return {
        name.removeprefix("a ").removeprefix("the "): metrics
        for name, metrics in known.items()
        if name not in (FINAL, BASELINE)
    }


def timed(found: FitResult) -> str:
    """What the latency is of: a step, a text or a sentence."""
    if not found.asked.task:
        return "a step"
    return "a sentence" if found.asked.task == "translate" else "a text"


def speed_words(model: ModelFacts) -> str:
    """How the time of a step compares; a tie is called one."""
    latency = model.latency
    if latency is None:
        return ""
    if latency.verdict not in ("faster", "slower"):
        return "a tie"
    return f"{abs(1 - latency.ratio):.0%} {latency.verdict}"


def limits_here(found: FitResult) -> dict[str, float]:
    """The limits as the last measurement has to be read.

    A multiple of the baseline's latency follows the baseline: a device is not equally quick all
    day, and all models were measured in the same rounds.
    """
    given, took = dict(found.limits), found.base.figure("latency") if found.base else None
    multiple = found.asked.multiples.get("latency")
    if multiple and "latency" in given and took:
        given["latency"] = multiple * took
    return given


def broken_by(model: ModelFacts) -> list[str]:
    """The limits that a model does not keep."""
    return [metric for metric in METRICS if metric in model.broken]


def outcome(found: FitResult, model: ModelFacts) -> str:
    """What became of a model, in a few words."""
    words = ["baseline"] * (model is found.base) + ["chosen"] * (model is found.choice)
    if broken := broken_by(model):
        words.append(f"breaks {say.listed([say.NAMES[metric] for metric in broken])}")
    elif model.fails:
        words.append("over a limit when the finalists were measured")
    if model.learned is False:
        words.append("learned nothing")
    if model.dropped and not model.dropped.step:
        words.append("not trained")
    elif model.dropped:
        words.append(f"dropped after {say.counted(model.dropped.step, 'update')}")
    elif model.loss is None:
        words.append("not trained to the end")
    return ", ".join(words)


def updates_words(found: FitResult) -> str:
    """How long the models that were not dropped were trained, with the same budget each."""
    steps = {m.steps for m in found.models if m.loss is not None and m.steps is not None}
    return f"{say.span(steps)} update{'s' * (steps != {1})}" if steps else ""
