"""Is the chosen model as good as the baseline, and is it worth having?

Both read the same segments of text, and with the same seed the same batches in the same order, so
differences are taken segment by segment and seed by seed. What is within the margin is at par.

>>> import numpy as np
>>> base = np.full(64, 2.0)
>>> compare({0: base}, {0: base * 1.1}, margin=0.01).verdict
'worse'
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean

import numpy as np
from numpy.typing import NDArray

from parformer.fitting.phases import BASELINE
from parformer.fitting.result import Compared, Held, ModelFacts, Quality, Verdict
from parformer.fitting.scored import FINAL, TaskScores
from parformer.report.words import signed
from parformer.search.limits import in_words

Losses = Mapping[int, NDArray[np.float64]]
"""Mean losses of the segments of a text, by seed."""

SEED_SPREAD = 0.01
"""By how much of the loss the difference between two models varies from seed to seed: 0.8% on
English and 1.9% on Python where it was measured (docs/experiments/attention-count.md)."""

EXPERIENCE = 4
"""Seeds that this experience counts for, beside those that were trained."""

CONFIDENCE = 0.95

TRANSFORMER = "the interleaved Transformer"
RIVAL = "the best plain Transformer within the limits"

NOISY = 0.3
"""An interval of two latencies' ratio so wide that a tie says nothing."""
KEEPS = "It keeps to"
"""A limit, surely."""
MATTERS = 0.03
"""Memory that differs by less is as good as equal."""


def compare(
    baseline: Losses, model: Losses, *, margin: float, spread: float = SEED_SPREAD
) -> Compared:
    """The mean difference over segments and seeds, with its 95% interval.

    Two things make it uncertain: which text was looked at, known from how the differences
    vary over segments, and which seed was trained, known from how they vary over seeds, and
    from experience where there are few.
    """
    seeds = sorted(set(baseline) & set(model))
    apart = [(model[s] - baseline[s]) / float(baseline[s].mean()) for s in seeds]
    means = [float(each.mean()) for each in apart]
    mean, segments = fmean(means), len(apart[0])
    # seeds share their text: more of them do not make it more
    over_text = fmean(float(each.var(ddof=1)) / segments for each in apart) if segments > 1 else 0.0
    freedom = EXPERIENCE + len(seeds) - 1
    squares = EXPERIENCE * spread**2 + sum((m - mean) ** 2 for m in means)
    over_seeds = squares / freedom / len(seeds)
    half = student(freedom) * math.sqrt(over_text + over_seeds)
    low, high = mean - half, mean + half
    verdict: Quality = "unclear"
    if high < 0:
        verdict = "better"
    elif high <= margin:
        verdict = "at par"
    elif low > 0:
        verdict = "worse"
    return Compared(mean, low, high, len(seeds), segments, verdict)


def student(freedom: int, confidence: float = CONFIDENCE) -> float:
    """The two-sided quantile of Student's t, by its expansion around the normal one.

    >>> round(student(4), 2), round(student(10), 2)
    (2.77, 2.23)
    """
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3


@dataclass(frozen=True, slots=True)
class Counted:
    """What the model that is handed over has, and what plain counting has, on the same text."""

    loss: float
    bigram: float
    to_beat: float
    """Whoever does not learned nothing."""
    best: tuple[str, float]
    """What counts best, and the loss that it reaches."""
    text: str
    """Which text that is: test or validation."""
    told: Callable[[float], str]
    """A loss in words."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What was allowed, in seconds, bytes and counts; and which of it as a multiple."""

    most: Mapping[str, float]
    multiples: Mapping[str, float]
    """Of the baseline's own figures."""

    def broken_by(self, model: ModelFacts) -> dict[str, float]:
        """The limits that a model surely breaks, and what it has of each.

        A latency is judged by the interval that is shown beside it: of the ratio to the baseline
        in the same rounds where a multiple was asked for, else of the seconds.
        """
        broken = {}
        for metric, most in self.most.items():
            low, value = self._measured(model, metric)[0], model.figure(metric)
            if low is not None and value is not None and low > self._bound(metric, most):
                broken[metric] = value
        return broken

    def keeping(self, model: ModelFacts) -> str:
        """How sure it is that a model keeps them: an interval may cross its limit."""
        latency, most = model.latency, self.most.get("latency")
        if latency is None or most is None:
            return KEEPS
        bound, (_, high) = self._bound("latency", most), self._measured(model, "latency")
        value = latency.ratio if "latency" in self.multiples else latency.seconds
        if high is not None and high <= bound:
            return KEEPS
        return "It probably keeps to" if value <= bound else "Too noisy to tell whether it keeps to"

    def over(self, model: ModelFacts, metric: str) -> str:
        """What a model has where less was asked."""
        if metric == "latency" and metric in self.multiples and model.latency is not None:
            times = f"{model.latency.ratio:.2f}× the baseline's latency"
            return f"{times} where {self.multiples[metric]:g}× was asked"
        has, most = in_words(metric, model.broken[metric]), in_words(metric, self.most[metric])
        return f"{has} of {metric} where {most} was asked"

    def _bound(self, metric: str, most: float) -> float:
        return self.multiples[metric] if metric == "latency" and metric in self.multiples else most

    def _measured(self, model: ModelFacts, metric: str) -> tuple[float | None, float | None]:
        """The ends of what is held against a limit; a count is exact."""
        if metric != "latency":
            return model.figure(metric), model.figure(metric)
        if model.latency is None:
            return None, None
        if metric in self.multiples:
            return model.latency.ratio_low, model.latency.ratio_high
        return model.latency.low, model.latency.high

    def __str__(self) -> str:
        return " and ".join(
            f"{self.multiples[name]:g}× the baseline's {name}"
            if name in self.multiples
            else f"{name} {in_words(name, most)}"
            for name, most in self.most.items()
        )


def judge(
    baseline: ModelFacts | None,
    chosen: ModelFacts | None,
    limits: Limits,
    counted: Counted | None = None,
    *,
    held: Held | None = None,
    finished: bool = True,
    scores: TaskScores | None = None,
) -> Verdict:
    """The verdict in words, from the two rows of the report.

    What counting reaches comes first where it is ahead.
    """
    if baseline is None or chosen is None or chosen.loss is None:
        return Verdict(
            "stopped",
            "Stopped before a model was trained.",
            ("The same command goes on where it stopped.",),
        )
    if counted is not None and counted.loss >= counted.to_beat:
        return _nothing_learned(counted)
    said = _among_models(baseline, chosen, limits, held, finished)
    if scores is not None:
        return at_task(said, chosen, scores)
    if counted is None:
        return said
    who, reached = counted.best
    ahead = counted.loss / reached - 1
    both = f"{counted.told(counted.loss)} on {counted.text} text, {who} {counted.told(reached)}"
    if ahead > 0:
        first = f"Counting is {ahead:.1%} ahead of it: {both}."
        return Verdict(said.kind, f"{first} {said.headline}", said.sentences)
    sentence = f"It is {-ahead:.1%} ahead of plain counting: {both}."
    return Verdict(said.kind, said.headline, (sentence, *said.sentences))


def at_task(said: Verdict, chosen: ModelFacts, scores: TaskScores) -> Verdict:
    """The same with what the task's own score says, first where no network is needed for it."""
    split = scores.judged
    own, plain = scores.of(FINAL, split), scores.best_plain(split)
    text = "test" if split == "test" else "validation"
    if own is None or plain is None:
        return said
    who, reached = plain
    least = min(
        value for name in scores.splits[split]
        if name not in (FINAL, BASELINE) and (value := scores.of(name, split)) is not None
    )  # fmt: skip
    between = scores.intervals.get(split)
    sure = f" ({scores.number(between[0])} to {scores.number(between[1])})" if between else ""
    mine = f"{scores.words} {scores.number(own)}{sure} on {text}"
    both = f"{mine}, {who} {scores.number(reached)}"
    if chosen.learned is False or own <= least:
        return Verdict(
            "nothing learned",
            "Nothing was learned in this time.",
            (
                f"The best model has {both}: {_no_more(scores)}. So no model is chosen and none is "
                "compared.",
                "More --time trains longer; more examples have more to learn from.",
            ),
        )
    if own < reached:
        article = who[:1].upper() + who[1:]
        first = f"{article} is ahead of it without a network: {both}."
        return Verdict(said.kind, f"{first} {said.headline}", said.sentences)
    close = between is not None and reached >= between[0]
    sentence = f"It is ahead of {who}: {both}."
    if close:
        sentence = f"It is not told apart from {who}: {both}."
    return Verdict(said.kind, said.headline, (sentence, *said.sentences))


def _no_more(scores: TaskScores) -> str:
    if scores.task == "translate":
        return "it is no better than the source as it is, or than pairs of tokens"
    return "it tells no more than whoever answers every example alike"


def _nothing_learned(counted: Counted) -> Verdict:
    return Verdict(
        "nothing learned",
        "Nothing was learned in this time.",
        (
            f"The best model has {counted.told(counted.loss)} on {counted.text} text; whoever "
            f"counts pairs of tokens has {counted.told(counted.bigram)}, {counted.best[0]} "
            f"{counted.told(counted.best[1])}. So no model is chosen and none is compared.",
            "More --time trains longer; a longer text has more to learn from.",
        ),
    )


def _among_models(
    baseline: ModelFacts, chosen: ModelFacts, limits: Limits, held: Held | None, finished: bool
) -> Verdict:
    """The chosen model beside the plain Transformer."""
    fits = _fit_sentences(baseline, chosen, limits)
    if chosen.against is None and not finished:
        return Verdict(
            "stopped",
            "Stopped before the models could be compared.",
            ("The same command goes on where it stopped.", *fits),
        )
    if chosen.name == baseline.name:
        return _kept(baseline, chosen, limits)
    if held is None or held.against is None:
        held = Held(BASELINE, chosen.against, None, 0)
    if held.against is None:
        return _without_baseline(baseline, fits)
    other = held.name != BASELINE
    quality, faster = (
        _quality_words(held.against, RIVAL if other else TRANSFORMER),
        _speed_words(chosen),
    )
    smaller, larger = _memory_words(baseline, chosen)
    kind = held.against.verdict
    gain = chosen.latency is not None and chosen.latency.verdict == "faster"
    sentences = (*fits, _interval_sentence(held.against), *_time_sentence(held, chosen))
    if not gain and not smaller and kind != "better":
        cheap = (
            "Attention is cheap on this device at this length: take the interleaved Transformer."
        )
        return Verdict("no gain", f"No gain: {quality}, and {faster}.", (cheap, *sentences))
    words = ", ".join([faster, *smaller])
    if larger:
        words += f", but {' and '.join(larger)}"
    if other:
        words = f"beside the interleaved one without limits: {words}"
    return Verdict(kind, f"{quality[0].upper()}{quality[1:]}; {words}.", sentences)


def _kept(baseline: ModelFacts, chosen: ModelFacts, limits: Limits) -> Verdict:
    """The baseline itself; it keeps to multiples of itself, but not surely to a number."""
    surely = not chosen.broken and limits.keeping(chosen) == KEEPS
    within = f" within {limits}" if limits.most and surely else ""
    absolute = set(limits.most) - set(limits.multiples)
    fits = _fit_sentences(baseline, chosen, limits) if absolute or not surely else []
    return Verdict(
        "no gain",
        f"Nothing beats the interleaved Transformer{within}.",
        (
            "Every other placement of the contest was worse, or no better and no faster: the table "
            "has the evidence. The interleaved model was trained on and is the result.",
            *fits,
        ),
    )


def _without_baseline(baseline: ModelFacts, fits: Sequence[str]) -> Verdict:
    if baseline.learned is False:
        return Verdict(
            "no baseline",
            "There is no baseline to compare with: the interleaved Transformer learned nothing in "
            "this time.",
            (
                "It was tried at lower rates too. The model that is handed over is the best of the "
                "others; how it stands beside a Transformer is not known.",
                *fits,
            ),
        )
    return Verdict(
        "not compared",
        "There was no time to train this model and the interleaved Transformer alike.",
        ("So how it stands beside a Transformer is not known; more --time would tell.", *fits),
    )


def _quality_words(against: Compared, rival: str) -> str:
    size = f"{abs(against.difference):.1%}"
    direction = "better" if against.difference < 0 else "worse"
    words: dict[Quality, str] = {
        "better": f"{size} better than {rival}",
        "at par": f"at par with {rival}",
        "worse": f"{size} worse than {rival}",
        "unclear": f"not told apart from {rival} ({size} {direction})",
    }
    return words[against.verdict]


def _interval_sentence(against: Compared) -> str:
    words = (
        f"With equally many updates its loss differs by {signed(against.difference)} "
        f"({signed(against.low)} to {signed(against.high)} with 95% confidence), over "
        f"{against.segments} stretches of validation text and {against.seeds} "
        f"seed{'s' * (against.seeds > 1)}"
    )
    return f"{words}; more --time would train more seeds." if against.seeds < 3 else f"{words}."


def _time_sentence(held: Held, chosen: ModelFacts) -> list[str]:
    """The same for equal time, where that is not the same as equal updates."""
    if held.in_time is None or not held.steps:
        return [f"In equal time they were not compared: {held.untold}."] * bool(held.untold)
    found = held.in_time
    words = f"{signed(found.difference)} ({signed(found.low)} to {signed(found.high)})"
    if held.steps == chosen.steps:
        return [f"In equal time it is the same: {words}; updates of both take as long."]
    updates = f"{held.steps:,} updates beside {chosen.steps or 0:,} of its own"
    return [f"In equal time its loss differs by {words}: the plain one then has {updates}."]


def _speed_words(chosen: ModelFacts) -> str:
    latency = chosen.latency
    if latency is None:
        return "its latency was not measured"
    if latency.verdict == "tie":
        wide = latency.ratio_high - latency.ratio_low > NOISY
        return (
            "too noisy here to tell which is faster" if wide else "as fast, as far as can be told"
        )
    return f"{abs(1 - latency.ratio):.0%} {latency.verdict}"


def _memory_words(baseline: ModelFacts, chosen: ModelFacts) -> tuple[list[str], list[str]]:
    """What is smaller by a few percent or more, and what is larger."""
    pairs = {
        "peak memory": (baseline.memory, chosen.memory),
        "state": (baseline.state_bytes, chosen.state_bytes),
    }
    shares = {what: new / old for what, (old, new) in pairs.items() if old}
    less = [f"{1 - s:.0%} less {what}" for what, s in shares.items() if s < 1 - MATTERS]
    more = [f"{s - 1:.0%} more {what}" for what, s in shares.items() if s > 1 + MATTERS]
    return less, more


def _fit_sentences(baseline: ModelFacts, chosen: ModelFacts, limits: Limits) -> list[str]:
    if not limits.most:
        return []
    if chosen.broken:
        over = " and ".join(limits.over(chosen, name) for name in chosen.broken)
        return [f"Nothing that was found keeps the limits: the nearest has {over}."]
    latency, told = chosen.latency, ""
    if latency is not None and "latency" in limits.multiples:
        told = f" ({latency.ratio:.2f}×, {latency.ratio_low:.2f}× to {latency.ratio_high:.2f}×)"
    elif latency is not None and "latency" in limits.most:
        has, low, high = (
            in_words("latency", one) for one in (latency.seconds, latency.low, latency.high)
        )
        told = f" ({has}, {low} to {high})"
    words = [f"{limits.keeping(chosen)} {limits}{told}"]
    absolute = {n: v for n, v in baseline.broken.items() if n not in limits.multiples}
    if absolute and chosen.name != baseline.name:
        over = " and ".join(f"{in_words(n, v)} of {n}" for n, v in absolute.items())
        words.append(f"the interleaved model has {over}")
    return ["; ".join(words) + "."]
