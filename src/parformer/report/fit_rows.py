"""What is known of one model of a fit, and how is it told?

>>> found = {"unit": "bits", "unit_words": "bits per byte"}
>>> quality_told(found, 1.52)
'2.193 bits per byte'
>>> signed(-0.0131), signed(0.004), signed(0.0001)
('−1.3%', '+0.4%', '0.0%')
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

from parformer.errors import ConfigError
from parformer.evaluate.counting import References
from parformer.report.page import ACCENT, listed
from parformer.report.pareto_figures import GREY
from parformer.report.pareto_rows import NAMES, counted, finite, span
from parformer.report.search_figures import SHADES
from parformer.search.limits import METRICS, in_words, read_limits

Found = Mapping[str, Any]
"""What `fit.json` holds."""

Model = Mapping[str, Any]
"""The baseline or a finalist."""

FIELDS = {"state": "state_bytes"}


@dataclass(frozen=True, slots=True)
class Distance:
    """How far a model's loss lies from the baseline's, as a share of it; above 0 is worse."""

    share: float
    ends: tuple[float, float] | None
    """95% interval, where the models were compared segment by segment."""

    verdict: str


def models_of(found: Found) -> Sequence[Model]:
    return found.get("models") or []


def name_of(model: Model) -> str:
    return str(model.get("name") or "?")


def find(found: Found, name: Any) -> Model | None:
    return next((model for model in models_of(found) if model.get("name") == name), None)


def baseline_of(found: Found) -> Model | None:
    return find(found, found.get("baseline"))


def chosen_of(found: Found) -> Model | None:
    return find(found, found.get("chosen")) if found.get("chosen") is not None else None


def labels_of(found: Found) -> dict[str, str]:
    """Every model's title; where two have the same, their names tell them apart."""
    titles = {name_of(m): str(m.get("title") or name_of(m)) for m in models_of(found)}
    several = [title for title in titles.values() if [*titles.values()].count(title) > 1]
    return {n: f"{title} ({n})" if title in several else title for n, title in titles.items()}


def colours_of(found: Found) -> dict[str, str]:
    """One colour per model in all figures: the baseline grey, the chosen one bright."""
    fixed = {found.get("chosen"): ACCENT, found.get("baseline"): GREY}
    others = cycle(SHADES[1:])
    return {name: fixed.get(name) or next(others) for name in map(name_of, models_of(found))}


def unit_of_quality(found: Found) -> str:
    if found.get("unit") == "perplexity":
        return "perplexity"
    return str(found.get("unit_words") or "bits per token")


def quality_of(found: Found, loss: Any) -> float | None:
    """A loss in the unit that people know; lower is better."""
    value = finite(loss)
    if value is None or found.get("unit") != "perplexity":
        return None if value is None else value / math.log(2)
    return math.exp(value) if value < 100 else None


def quality_words(found: Found, loss: Any) -> str:
    value = quality_of(found, loss)
    if value is None:
        return "–"
    return f"{value:,.4g}" if found.get("unit") == "perplexity" else f"{value:.3f}"


def quality_told(found: Found, loss: Any) -> str:
    words = [quality_words(found, loss), unit_of_quality(found)]
    return " ".join(words[::-1] if found.get("unit") == "perplexity" else words)


def loss_of(model: Model, part: str = "valid") -> float | None:
    """The loss on validation or test text after the equal budget; a dropped model had none."""
    if model.get("dropped"):
        return None
    return finite((model.get(part) or {}).get("loss"))


def figure_of(model: Model, metric: str) -> float | None:
    """What a model costs, measured or counted."""
    if metric == "latency":
        return finite((model.get("latency") or {}).get("seconds"))
    return finite(model.get(FIELDS.get(metric, metric)))


def figure_words(model: Model, metric: str) -> str:
    value = figure_of(model, metric)
    return "–" if value is None else in_words(metric, value)


def ends_of(row: Mapping[str, Any] | None, prefix: str = "") -> tuple[float, float] | None:
    low, high = (finite((row or {}).get(f"{prefix}{end}")) for end in ("low", "high"))
    return None if low is None or high is None else (low, high)


def distance_of(found: Found, model: Model) -> Distance | None:
    """From the paired comparison; failing that, from the two losses, and then nothing is sure."""
    against = {} if model.get("dropped") else model.get("against") or {}
    share = finite(against.get("difference"))
    if share is not None:
        return Distance(share, ends_of(against), str(against.get("verdict") or "unclear"))
    base = baseline_of(found)
    mine, theirs = loss_of(model), None if base is None else loss_of(base)
    if base is None or mine is None or not theirs or model is base:
        return None
    if False in (model.get("learned"), base.get("learned")):
        return None  # what learned nothing is no measure for others
    return Distance(mine / theirs - 1, None, "unclear")


def references_of(found: Found, split: str = "valid") -> dict[str, float]:
    """What plain counting reaches on a split, the plainest first, by name; nothing if unknown."""
    known = (found.get("references") or {}).get(split)
    if not known:
        return {}
    lines = References.from_dict(known).lines(letters=found.get("unit") != "perplexity")
    return dict(lines)


def signed(share: float, digits: int = 1) -> str:
    """A difference in percent that shows its sign."""
    words = f"{share:+.{digits}%}".replace("-", "−")
    return words if float(f"{share:.{digits + 2}f}") else words[1:]


def between(ends: tuple[float, float], digits: int = 1) -> str:
    """An interval of differences.

    >>> between((-0.004, 0.022)), between((-0.32, 0.001), 0)
    ('−0.4% to +2.2%', '−32% to 0%')
    """
    return " to ".join(signed(end, digits) for end in ends)


def interval_told(gap: Distance) -> str:
    """In brackets, how sure a difference is."""
    return f"95%: {between(gap.ends)}" if gap.ends else "no interval"


def worse_words(share: float) -> str:
    """A difference of losses in a sentence.

    >>> worse_words(0.013), worse_words(-0.02), worse_words(0.0002)
    ('1.3% worse', '2.0% better', 'equally good')
    """
    if f"{abs(share):.1%}" == "0.0%":
        return "equally good"
    return f"{abs(share):.1%} {'worse' if share > 0 else 'better'}"


def speed_words(model: Model) -> str:
    """How the time of a step compares; a tie is called one."""
    latency = model.get("latency") or {}
    ratio = finite(latency.get("ratio"))
    if ratio is None:
        return ""
    if latency.get("verdict") not in ("faster", "slower"):
        return "a tie"
    return f"{abs(1 - ratio):.0%} {latency['verdict']}"


def change_words(mine: float, theirs: float) -> str:
    """How an exact figure compares.

    >>> change_words(620, 1000), change_words(1000, 1000), change_words(999, 1000)
    ('38% less', 'the same', '0.1% less')
    """
    if mine == theirs:
        return "the same"
    if not theirs:
        return "more"
    share = abs(mine / theirs - 1)
    digits = f"{share:.0%}" if share >= 0.01 else f"{share:.1%}" if share >= 0.001 else "under 0.1%"
    return f"{digits} {'less' if mine < theirs else 'more'}"


def margin_of(found: Found) -> float:
    """Up to what difference a loss counts as equal, as a share; it was fixed beforehand."""
    margin = finite((found.get("asked") or {}).get("margin"))
    return 0.01 if margin is None else margin


def percent(share: float) -> str:
    """A round share, without digits that say nothing.

    >>> percent(0.01), percent(0.025)
    ('1%', '2.5%')
    """
    return f"{100 * share:.2g}%"


def limits_of(found: Found) -> dict[str, float]:
    given = found.get("limits") or {}
    return {m: most for m in METRICS if (most := finite(given.get(m))) is not None}


def limits_here(found: Found) -> dict[str, float]:
    """The limits as the last measurement has to be read.

    A multiple of the baseline's latency follows the baseline: a device is not equally quick all
    day, and all models were measured in the same rounds.
    """
    given, base = limits_of(found), baseline_of(found)
    took = None if base is None else figure_of(base, "latency")
    multiple = multiples_of(found).get("latency")
    if multiple and "latency" in given and took:
        given["latency"] = multiple * took
    return given


def multiples_of(found: Found) -> dict[str, float]:
    """The limits that were asked for as multiples of the baseline's figures."""
    try:
        asked = read_limits((found.get("asked") or {}).get("limits") or ())
    except ConfigError:  # words that no run was asked with cannot say more than the figures do
        return {}
    return {limit.metric: limit.most for limit in asked if limit.relative}


def limit_words(found: Found, metric: str) -> str:
    """One limit as it was asked for."""
    multiple = multiples_of(found).get(metric)
    if multiple is not None:
        return f"{multiple:g}× the baseline's"
    return in_words(metric, limits_of(found)[metric])


def limits_words(found: Found) -> str:
    """All limits in a sentence, or nothing."""
    return listed([f"{NAMES[m]} at most {limit_words(found, m)}" for m in limits_of(found)])


def broken_by(model: Model) -> list[str]:
    """The limits that a model does not keep."""
    return [metric for metric in METRICS if metric in (model.get("broken") or {})]


def fails(model: Model) -> bool:
    """Whether it could not be chosen, however good."""
    return bool(broken_by(model)) or model.get("eligible") is False


def outcome(found: Found, model: Model) -> str:
    """What became of a model, in a few words."""
    words = ["baseline"] * (model is baseline_of(found)) + ["chosen"] * (model is chosen_of(found))
    if broken := broken_by(model):
        words.append(f"breaks {listed([NAMES[metric] for metric in broken])}")
    elif fails(model):
        words.append("does not keep the limits")
    if model.get("learned") is False:
        words.append("learned nothing")
    if dropped := model.get("dropped"):
        words.append(f"dropped after {counted(dropped.get('step'), 'update')}")
    elif loss_of(model) is None:
        words.append("not trained to the end")
    return ", ".join(words)


def updates_words(found: Found) -> str:
    """How long the models that were not dropped were trained, with the same budget each."""
    done = [m for m in models_of(found) if loss_of(m) is not None and not m.get("dropped")]
    steps = sorted({int(n) for m in done if (n := finite(m.get("steps"))) is not None})
    if not steps:
        return ""
    return f"{span(steps)} update{'s' * (steps != [1])}"
