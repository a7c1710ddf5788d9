"""What do we get, beside what was published?

A study computes ours for a table or figure of a paper, by the keys of its rows, and knows nothing
of what the paper printed. Here the two are put side by side.

>>> from parformer.reproduce.published import Line, read_number
>>> line = Line(key="size", what="parameters", unit="M", number=read_number({"value": "192"}))
>>> row = side_by_side(line, Ours(191.95, "exact count"), "exact count")
>>> row.verdict, round(row.difference, 3)
('within rounding', -0.026)
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from parformer.reproduce.published import Line
from parformer.reproduce.result import Printed, ReproducedRow

EXACTLY, ROUNDING, NOISE = "exactly", "within rounding", "within the noise"
HOLDS, FAILS, DIFFERS = "holds", "does not hold", "differs"
KNOWN, UNSURE = "differs, as is known", "too noisy to tell"
VERDICTS = (EXACTLY, ROUNDING, NOISE, HOLDS, FAILS, DIFFERS, KNOWN, UNSURE)
SCALES = ("%", "points")
"""Units whose whole is a hundred."""
WIDE = 0.25
"""The share of a figure that its interval may span: a wider one agrees with nearly everything."""


@dataclass(frozen=True, slots=True)
class Ours:
    """A figure that this run computed or measured."""

    value: float
    how: str
    interval: tuple[float, float] | None = None
    """Where it lies, for what was measured or trained with several seeds."""
    note: str = ""
    single: bool = False
    """One noisy training: shown beside the published figure, and not judged."""


Found: TypeAlias = Mapping[str, Ours]
"""Ours by the key of the row."""


def side_by_side(line: Line, ours: Ours | None, how: str, command: str = "") -> ReproducedRow:
    """Published and ours; JSON knows neither infinity nor nan."""
    number, agreement, (difference, unit) = line.number, judge(line, ours), distance(line, ours)
    notes = [line.known if agreement == KNOWN else "", ours.note if ours else ""]
    interval = ours.interval if ours else None
    return ReproducedRow(
        key=line.key,
        what=line.what,
        unit=line.unit,
        published=Printed(number.text, number.value, number.bound) if number else None,
        says=line.says,
        ours=finite(ours.value) if ours else None,
        interval=interval if interval and all(map(math.isfinite, interval)) else None,
        difference=difference,
        difference_unit=unit,
        verdict=agreement,
        how=how,
        note="; ".join(filter(None, notes)),
        command=command,
    )


def finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def distance(line: Line, ours: Ours | None) -> tuple[float | None, str]:
    """Ours against the published figure in percent; in points where both are percent or points."""
    number = line.number
    plain = line.unit in SCALES or (number is not None and number.value == 0)
    unit = "%" if not plain else "points" if line.unit in SCALES else line.unit
    if number is None or number.bound or ours is None:
        return None, unit
    apart = ours.value - number.value if plain else 100 * (ours.value / number.value - 1)
    return finite(apart), unit


def judge(line: Line, ours: Ours | None) -> str:
    """How the two agree; empty where there is nothing to compare."""
    number = line.number
    if number is None or ours is None or ours.single or not math.isfinite(ours.value):
        return ""
    low, high = ours.interval or (ours.value, ours.value)
    # what is a percentage already is wide in points
    whole = 100.0 if line.unit in SCALES else abs(ours.value)
    noise = NOISE if high - low <= WIDE * whole else UNSURE
    if number.bound:
        if ours.interval is not None and low <= number.value <= high:
            return noise
        holds = (ours.value < number.value) == (number.bound == "below")
        return HOLDS if holds else KNOWN if line.known else FAILS
    if ours.interval is None and ours.value == number.value:
        return EXACTLY
    # 1e-9: a half is a half, however it is stored
    slack = 1e-9 * max(1.0, abs(number.value))
    if low <= number.range[1] + slack and high >= number.range[0] - slack:
        return ROUNDING if ours.interval is None else noise
    return KNOWN if line.known else DIFFERS


def in_words(rows: Sequence[ReproducedRow], found: Found) -> str:
    """How published and ours agree, in a sentence."""
    counts = Counter(row.verdict for row in rows)
    told = [counted(counts[verdict], verdict) for verdict in VERDICTS if counts[verdict]]
    unjudged = [found[row.key].single for row in rows if row.key in found and not row.verdict]
    if single := sum(unjudged):
        told.append(f"{single} with one training each, which is shown and not judged")
    if alone := len(unjudged) - single:
        told.append(f"{alone} where the paper's text has no number")
    if missing := sum(row.key not in found for row in rows):
        told.append(f"{missing} without ours")
    count = f"{len(rows)} row{'s' * (len(rows) != 1)}"
    return f"{count}: {'; '.join(told)}."


def counted(count: int, verdict: str) -> str:
    """So many of a verdict.

    >>> counted(1, "differs"), counted(2, "differs"), counted(2, "does not hold")
    ('1 differs', '2 differ', '2 do not hold')
    """
    if count > 1:
        for one, many in (("differs", "differ"), ("holds", "hold"), ("does not", "do not")):
            verdict = verdict.replace(one, many)
    return f"{count} {verdict}"
