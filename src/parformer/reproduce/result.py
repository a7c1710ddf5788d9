"""What does a reproduction say: `reproduced.json`?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from parformer.records import Record, Result

REPORT = "report.html"


@dataclass(frozen=True)
class Printed(Record):
    """A published figure."""

    text: str
    value: float
    bound: str = ""
    """Whether the paper only says that it is below or above the value."""


@dataclass(frozen=True)
class ReproducedRow(Record):
    """Published and ours, side by side."""

    key: str
    what: str
    unit: str
    published: Printed | None
    says: str
    """What the text says where it gives no number, or beside it."""
    ours: float | None
    interval: tuple[float, float] | None
    difference: float | None
    difference_unit: str
    verdict: str
    how: str
    note: str = ""
    command: str = ""


@dataclass(frozen=True)
class ReproducedStudy(Record):
    """A table or figure that was gone through."""

    name: str
    paper: str
    place: str
    title: str
    note: str
    rows: tuple[ReproducedRow, ...]
    summary: str
    seconds: float
    receipt: str = ""


@dataclass(frozen=True, kw_only=True)
class ReproduceResult(Result):
    """All studies of a run."""

    FILE: ClassVar[str] = "reproduced.json"
    FORMAT: ClassVar[str] = "parformer-reproduced-1"

    command: str
    date: str
    version: str
    studies: tuple[ReproducedStudy, ...]
    report: str | None = None
    """The page about it, where a folder was given."""
