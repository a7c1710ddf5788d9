"""Which architecture is the best that keeps to my limits?

A slider for every figure, and a script that fades what breaks a limit in the pictures and in
the table. All words and amounts are written here; the script only compares numbers, so what a
slider says is exactly what the command line reads.

>>> stops("latency", [0.0195, 0.095])[:2]
[(0.02, '20 ms', 'latency=20ms'), (0.021, '21 ms', 'latency=21ms')]
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Sequence
from html import escape
from itertools import pairwise

from parformer.report.page import Html
from parformer.report.pareto_rows import costs_of, quality_told, sizes, words_of
from parformer.report.words import NAMES, listed
from parformer.search.limits import SEARCHED, as_option, in_words, read_limit
from parformer.search.sizes.result import Member, SizesResult

FEW, MANY = 25, 160
"""Places where a slider may stop: at least, if two digits are too coarse, and at most."""

Stop = tuple[float, str, str]
"""A limit as a number, in words, and as the command line takes it."""


def stops(metric: str, values: Sequence[float]) -> list[Stop]:
    """Round limits from one that lets the cheapest pass to one that rules out the dearest."""
    low, high = min(values), max(values)
    if not 0 < low < high:
        low = min((value for value in values if value > 0), default=high)
    found: list[Stop] = []
    for digits in (2, 3):
        found = [_stop(metric, amount) for amount in _round_amounts(low, high, digits)]
        found = [stop for stop in found if stop[0] >= low]
        if len(found) >= FEW:
            break
    return found[:: math.ceil(len(found) / MANY) or 1]


def _round_amounts(low: float, high: float, digits: int) -> list[float]:
    """Every number of so many digits from low on, below high."""
    if not 0 < low < high:
        return []
    powers = range(math.floor(math.log10(low)), math.floor(math.log10(high)) + 1)
    heads = range(10 ** (digits - 1), 10**digits)
    amounts = (float(f"{head}e{power - digits + 1}") for power in powers for head in heads)
    return [amount for amount in amounts if low <= amount < high]


def _stop(metric: str, amount: float) -> Stop:
    # rounding up, a last binary digit would make it a little larger
    options = [as_option(metric, amount * share) for share in (1, 1 - 1e-9)]
    most, _, option = min((read_limit(option).most, len(option), option) for option in options)
    return most, in_words(metric, most), option


def run_of(command: str) -> str:
    """The run's folder as it was given, ready for a shell; `RUN` where that is not known.

    >>> run_of("parformer search pareto --run 'my runs/a' --seed 1"), run_of("parformer")
    ("'my runs/a'", 'RUN')
    """
    try:
        words = shlex.split(command)
    except ValueError:
        return "RUN"
    for word, after in pairwise([*words, ""]):
        given = after if word == "--run" else word.removeprefix("--run=")
        if word.startswith("--run") and given not in ("", word):
            return shlex.quote(given)
    return "RUN"


def best_words(found: SizesResult, member: Member) -> str:
    """The best that is left, with its figures."""
    figures = [f"{words_of(member, metric)} {NAMES[metric]}" for metric in costs_of(found)]
    told = listed([quality_told(found.proxy, member.quality), *figures])
    return f"{member.name}: {told} ({sizes(member, found)})"


def sliders(found: SizesResult) -> Html | None:
    """The limits, the best that keeps to them, and the line that picks it, if any can be set."""
    front, costs = found.front, costs_of(found)
    offered: dict[str, list[Stop]] = {}
    for metric in [*costs, *(m for m in SEARCHED if m not in costs)]:
        values = [value for one in front if (value := one.figure(metric)) is not None]
        if values and (places := stops(metric, values)):
            offered[metric] = places
    if not offered:
        return None
    best = max(front, key=lambda one: one.quality)
    everyone = [*front, *found.baseline]
    pick = f"parformer pick {run_of(found.command)}"
    known = {
        "quality": [one.quality for one in front],
        "words": [best_words(found, one) for one in front],
        "figures": {m: [one.figure(m) for one in everyone] for m in offered},
        "stops": offered,
        "pick": pick,
    }
    main = [metric for metric in offered if metric in costs] or list(offered)
    rest = [metric for metric in offered if metric not in main]
    more = "".join(_slider(metric, offered[metric]) for metric in rest)
    if more:
        more = f'<details><summary>more limits</summary><div class="ranges">{more}</div></details>'
    return Html(
        '<div class="limits" role="group" aria-label="limits" '
        f'data-known="{escape(json.dumps(known))}"><div class="ranges">'
        f"{''.join(_slider(metric, offered[metric]) for metric in main)}</div>{more}"
        f'<p class="answer" role="status"><b>{len(front)} of {len(front)} left; best quality:</b> '
        f"<span>{escape(best_words(found, best))}</span></p>"
        f'<p class="line"><code>{escape(pick)}</code>'
        '<button type="button" class="copy">copy</button>'
        '<button type="button" class="clear">no limits</button></p></div>'
    )


def _slider(metric: str, places: Sequence[Stop]) -> str:
    name = f"limit-{metric}"
    return (
        f'<div><label for="{name}">{NAMES[metric]}</label><output for="{name}">no limit</output>'
        f'<input type="range" id="{name}" name="{metric}" min="0" max="{len(places)}" step="1" '
        f'value="{len(places)}" aria-valuetext="no limit" autocomplete="off"/></div>'
    )
