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
from dataclasses import asdict, dataclass
from statistics import NormalDist, fmean
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from parformer.search.limits import in_words

Losses = Mapping[int, NDArray[np.float64]]
"""Mean losses of the segments of a text, by seed."""

Quality = Literal["better", "at par", "worse", "unclear"]

SEED_SPREAD = 0.01
"""By how much of the loss the difference between two models varies from seed to seed: 0.8% on
English and 1.9% on Python where it was measured (docs/experiments/attention-count.md)."""

EXPERIENCE = 4
"""Seeds that this experience counts for, beside those that were trained."""

CONFIDENCE = 0.95

NOISY = 0.3
"""An interval of two latencies' ratio so wide that a tie says nothing."""


@dataclass(frozen=True, slots=True)
class Compared:
    """How much worse a model is than the baseline, as a share of the baseline's loss."""

    difference: float
    low: float
    high: float
    seeds: int
    segments: int
    verdict: Quality

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def compare(baseline: Losses, model: Losses, *, margin: float) -> Compared:
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
    squares = EXPERIENCE * SEED_SPREAD**2 + sum((m - mean) ** 2 for m in means)
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


def choose(losses: Mapping[str, float], latencies: Mapping[str, float], close: float) -> str:
    """The lowest loss; of those that are as good as the best, the fastest."""
    best = min(losses.values())
    near = [name for name, loss in losses.items() if loss <= best * (1 + close)]
    return min(near, key=lambda name: (latencies.get(name, 0.0), losses[name]))


@dataclass(frozen=True, slots=True)
class Counted:
    """What the model that is handed over has, and what plain counting has, on the same text."""

    loss: float
    bigram: float
    ngram: float
    order: int
    text: str
    """Which text that is: test or validation."""
    told: Callable[[float], str]
    """A loss in words."""


def judge(
    baseline: Mapping[str, Any],
    chosen: Mapping[str, Any] | None,
    limits: Mapping[str, float],
    multiples: Mapping[str, float] | None = None,
    counted: Counted | None = None,
) -> dict[str, Any]:
    """The verdict in words, from the two rows of the report.

    `multiples` are the limits that were given as such, of the baseline's own figures. What
    counting reaches comes first where it is ahead.
    """
    if chosen is None or chosen.get("valid") is None:
        return {
            "kind": "stopped",
            "headline": "Stopped before a model was trained.",
            "sentences": ["The same command goes on where it stopped."],
        }
    if counted is not None and counted.loss >= counted.bigram:
        return _nothing_learned(counted)
    said = _among_models(baseline, chosen, limits, multiples or {})
    if counted is None:
        return said
    ahead = counted.loss / counted.ngram - 1
    both = (
        f"{counted.told(counted.loss)} on {counted.text} text, a counted {counted.order}-gram "
        f"{counted.told(counted.ngram)}"
    )
    if ahead > 0:
        first = f"Counting is {ahead:.1%} ahead of it: {both}."
        return said | {"headline": f"{first} {said['headline']}"}
    sentence = f"It is {-ahead:.1%} ahead of plain counting: {both}."
    return said | {"sentences": [sentence, *said["sentences"]]}


def _nothing_learned(counted: Counted) -> dict[str, Any]:
    return {
        "kind": "nothing learned",
        "headline": "Nothing was learned in this time.",
        "sentences": [
            f"The best model has {counted.told(counted.loss)} on {counted.text} text; whoever "
            f"counts pairs of tokens has {counted.told(counted.bigram)}, a {counted.order}-gram "
            f"{counted.told(counted.ngram)}. So no model is chosen and none is compared.",
            "More --time trains longer; a longer text has more to learn from.",
        ],
    }


def _among_models(
    baseline: Mapping[str, Any],
    chosen: Mapping[str, Any],
    limits: Mapping[str, float],
    multiples: Mapping[str, float],
) -> dict[str, Any]:
    """The chosen model beside the baseline."""
    if chosen["name"] == baseline["name"]:
        return _kept(limits, multiples)
    if chosen.get("against") is None:
        return {
            "kind": "no baseline",
            "headline": "There is no baseline to compare with: the interleaved Transformer learned "
            "nothing in this time.",
            "sentences": [
                "It was tried at lower rates too. The model that is handed over is the best of the "
                "others; how it stands beside a Transformer is not known.",
                *_fit_sentences(baseline, chosen, limits, multiples),
            ],
        }
    quality, against = _quality_words(chosen)
    faster = _speed_words(chosen)
    smaller = _memory_words(baseline, chosen)
    gain = chosen["latency"] is not None and chosen["latency"]["verdict"] == "faster"
    gain = gain or smaller != "" or against == "better"
    sentences = [*_fit_sentences(baseline, chosen, limits, multiples), _interval_sentence(chosen)]
    if not gain and against != "better":
        return {
            "kind": "no gain",
            "headline": f"No gain: {quality}, and {faster}.",
            "sentences": [
                "Attention is cheap on this device at this length: take the interleaved "
                "Transformer.",
                *sentences,
            ],
        }
    words = [quality, faster, *([smaller] if smaller else [])]
    headline = f"{quality[0].upper()}{quality[1:]}; {', '.join(words[1:])}."
    return {"kind": against, "headline": headline, "sentences": sentences}


def _kept(limits: Mapping[str, float], multiples: Mapping[str, float]) -> dict[str, Any]:
    within = f" within {_limits_words(limits, multiples)}" if limits else ""
    return {
        "kind": "no gain",
        "headline": f"Nothing beats the interleaved Transformer{within}.",
        "sentences": [
            "Every other placement of the contest was worse, or no better and no faster: the table "
            "has the evidence. The interleaved model was trained on and is the result."
        ],
    }


def _quality_words(chosen: Mapping[str, Any]) -> tuple[str, Quality]:
    against = chosen["against"]
    size = f"{abs(against['difference']):.1%}"
    kind: Quality = against["verdict"]
    direction = "better" if against["difference"] < 0 else "worse"
    words = {
        "better": f"{size} better than the interleaved Transformer",
        "at par": "at par with the interleaved Transformer",
        "worse": f"{size} worse than the interleaved Transformer",
        "unclear": f"not told apart from the interleaved Transformer ({size} {direction})",
    }
    return words[kind], kind


def _interval_sentence(chosen: Mapping[str, Any]) -> str:
    against = chosen["against"]
    seeds = against["seeds"]
    words = (
        f"With equal training its loss differs by {signed(against['difference'])} "
        f"({signed(against['low'])} to {signed(against['high'])} with 95% confidence), over "
        f"{against['segments']} stretches of validation text and {seeds} "
        f"seed{'s' * (seeds > 1)}"
    )
    return f"{words}; more --time would train more seeds." if seeds < 3 else f"{words}."


def signed(share: float) -> str:
    """A difference in percent.

    >>> signed(-0.021), signed(0.0)
    ('−2.1%', '+0.0%')
    """
    return f"{share:+.1%}".replace("-", "−")


def _speed_words(chosen: Mapping[str, Any]) -> str:
    latency = chosen["latency"]
    if latency is None:
        return "its latency was not measured"
    if latency["verdict"] == "tie":
        wide = latency["ratio_high"] - latency["ratio_low"] > NOISY
        return (
            "too noisy here to tell which is faster" if wide else "as fast, as far as can be told"
        )
    share = abs(1 - latency["ratio"])
    return f"{share:.0%} {latency['verdict']}"


def _memory_words(baseline: Mapping[str, Any], chosen: Mapping[str, Any]) -> str:
    words = []
    for name, what in (("memory", "peak memory"), ("state_bytes", "state")):
        old, new = baseline.get(name), chosen.get(name)
        if old and new is not None and new < 0.97 * old:
            words.append(f"{1 - new / old:.0%} less {what}")
    return ", ".join(words)


def _fit_sentences(
    baseline: Mapping[str, Any],
    chosen: Mapping[str, Any],
    limits: Mapping[str, float],
    multiples: Mapping[str, float],
) -> list[str]:
    if not limits:
        return []
    if chosen["broken"]:
        over = " and ".join(
            f"{in_words(name, value)} of {name} where {in_words(name, limits[name])} was asked"
            for name, value in chosen["broken"].items()
        )
        return [f"Nothing that was found keeps the limits: the nearest has {over}."]
    latency, told = chosen["latency"], ""
    if latency is not None and "latency" in multiples:
        low, high = latency["ratio_low"], latency["ratio_high"]
        told = f" ({latency['ratio']:.2f}×, {low:.2f}× to {high:.2f}×)"
    words = [f"It keeps to {_limits_words(limits, multiples)}{told}"]
    absolute = {n: v for n, v in baseline["broken"].items() if n not in multiples}
    if absolute:
        over = " and ".join(f"{in_words(n, v)} of {n}" for n, v in absolute.items())
        words.append(f"the interleaved model has {over}")
    return ["; ".join(words) + "."]


def _limits_words(limits: Mapping[str, float], multiples: Mapping[str, float]) -> str:
    return " and ".join(
        f"{multiples[name]:g}× the baseline's {name}"
        if name in multiples
        else f"{name} {in_words(name, most)}"
        for name, most in limits.items()
    )


def segment_means(
    places: Sequence[NDArray[np.int64]], losses: Sequence[NDArray[np.float64]], length: int
) -> NDArray[np.float64]:
    """Mean losses of stretches of so many tokens, from losses at places in any order.

    >>> where, what = np.array([1, 2, 3, 4]), np.array([1.0, 3.0, 5.0, 7.0])
    >>> segment_means([where], [what], 2).tolist()
    [2.0, 6.0]
    """
    where = (np.concatenate(places) - 1) // length
    sums = np.bincount(where, weights=np.concatenate(losses))
    counts = np.bincount(where)
    whole: NDArray[np.float64] = sums[counts > 0] / counts[counts > 0]
    return whole
