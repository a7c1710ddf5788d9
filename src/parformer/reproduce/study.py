"""What do we get, beside what was published?

A study computes ours for a table or figure of a paper, by the keys of its rows, and knows nothing
of what the paper printed. Here the two are put side by side.

>>> from parformer.reproduce.published import Line, read_number
>>> line = Line(key="size", what="parameters", unit="M", number=read_number({"value": "192"}))
>>> row = Row(line, Ours(191.95, "exact count"), "exact count")
>>> row.verdict, round(row.difference, 3)
('within rounding', -0.026)
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from parformer.fields import check_names
from parformer.reproduce.published import PAPERS, Line, Page
from parformer.reproduce.result import Printed, ReproducedRow, ReproducedStudy

EXACTLY, ROUNDING, NOISE = "exactly", "within rounding", "within the noise"
HOLDS, FAILS, DIFFERS = "holds", "does not hold", "differs"
KNOWN, UNSURE = "differs, as is known", "too noisy to tell"
VERDICTS = (EXACTLY, ROUNDING, NOISE, HOLDS, FAILS, DIFFERS, KNOWN, UNSURE)
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


@dataclass(frozen=True, slots=True)
class Row:
    """Published and ours, side by side."""

    line: Line
    ours: Ours | None
    how: str
    command: str = ""

    @property
    def difference(self) -> float | None:
        """Ours against the published figure in percent; in points where both are percent."""
        number = self.line.number
        if number is None or number.bound or self.ours is None:
            return None
        if self.line.unit == "%" or number.value == 0:
            return self.ours.value - number.value
        return 100 * (self.ours.value / number.value - 1)

    @property
    def difference_unit(self) -> str:
        if self.line.unit == "%":
            return "points"
        number = self.line.number
        return self.line.unit if number is not None and number.value == 0 else "%"

    @property
    def verdict(self) -> str:
        """How the two agree; empty where there is nothing to compare."""
        number, ours = self.line.number, self.ours
        if number is None or ours is None or not math.isfinite(ours.value):
            return ""
        if ours.single:
            return ""
        low, high = ours.interval or (ours.value, ours.value)
        if number.bound:
            if ours.interval is not None and low <= number.value <= high:
                return self._noise(low, high)
            below = ours.value < number.value
            return HOLDS if below == (number.bound == "below") else self._differs(FAILS)
        if ours.interval is None and ours.value == number.value:
            return EXACTLY
        # 1e-9: a half is a half, however it is stored
        slack = 1e-9 * max(1.0, abs(number.value))
        if low <= number.range[1] + slack and high >= number.range[0] - slack:
            return ROUNDING if ours.interval is None else self._noise(low, high)
        return self._differs(DIFFERS)

    def _noise(self, low: float, high: float) -> str:
        assert self.ours is not None
        # what is a percentage already is wide in points
        whole = 100.0 if self.line.unit == "%" else abs(self.ours.value)
        return NOISE if high - low <= WIDE * whole else UNSURE

    def _differs(self, verdict: str) -> str:
        return KNOWN if self.line.known else verdict

    def told(self) -> ReproducedRow:
        """As the result says it; JSON knows neither infinity nor nan."""
        number, ours, difference = self.line.number, self.ours, self.difference
        notes = [self.line.known if self.verdict == KNOWN else "", ours.note if ours else ""]
        interval = ours.interval if ours else None
        return ReproducedRow(
            key=self.line.key,
            what=self.line.what,
            unit=self.line.unit,
            published=None if number is None else Printed(number.text, number.value, number.bound),
            says=self.line.says,
            ours=None if ours is None else finite(ours.value),
            interval=interval if interval and all(map(math.isfinite, interval)) else None,
            difference=None if difference is None else finite(difference),
            difference_unit=self.difference_unit,
            verdict=self.verdict,
            how=self.how,
            note="; ".join(filter(None, notes)),
            command=self.command,
        )


def finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


@dataclass(frozen=True, slots=True)
class StudyRun:
    """A study that was run."""

    page: Page
    rows: Sequence[Row]
    seconds: float
    receipt: str = ""
    skipped: str = ""
    """Why it was left out, if it was."""

    @property
    def summary(self) -> str:
        return self.skipped or in_words(self.rows)

    def told(self) -> ReproducedStudy:
        """As the result says it."""
        page = self.page
        return ReproducedStudy(
            name=page.name,
            paper=PAPERS[page.paper],
            place=page.place,
            title=page.title,
            note=page.note,
            rows=tuple(row.told() for row in self.rows),
            summary=self.summary,
            seconds=round(self.seconds, 3),
            receipt=self.receipt,
        )


def in_words(rows: Sequence[Row]) -> str:
    """How published and ours agree, in a sentence."""
    counts = Counter(row.verdict for row in rows)
    told = [counted(counts[verdict], verdict) for verdict in VERDICTS if counts[verdict]]
    single = sum(row.ours is not None and row.ours.single and not row.verdict for row in rows)
    alone = sum(row.ours is not None and not row.verdict for row in rows) - single
    if single:
        told.append(f"{single} with one training each, which is shown and not judged")
    if alone:
        told.append(f"{alone} where the paper's text has no number")
    if missing := sum(row.ours is None for row in rows):
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


def side_by_side(page: Page, found: Found, missing: Callable[[Line], tuple[str, str]]) -> list[Row]:
    """Every published row with ours; `missing` says for the others what it takes, and how to."""
    check_names(found, [line.key for line in page.lines], f"row of {page.name}")
    rows = []
    for line in page.lines:
        ours = found.get(line.key)
        if ours is not None:
            rows.append(Row(line, ours, ours.how))
        else:
            rows.append(Row(line, None, *missing(line)))
    return rows
