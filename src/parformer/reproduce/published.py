"""What did the papers print?

Published figures are data, one TOML file for each paper in `papers/`. They are kept apart from the
code that computes ours, which never sees them: the two meet in `study.py`.

>>> read_number({"value": "192"}).range
(191.5, 192.5)
>>> read_number({"ratio": ["9.9", "15.2"]}).text
'0.651 (9.9 / 15.2)'
"""

from __future__ import annotations

import csv
import difflib
import itertools
import math
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Literal, NoReturn

from parformer.errors import ConfigError
from parformer.fields import check_names, field_types
from parformer.records import Record, typed

Bound = Literal["", "below", "above"]
Work = Literal["count", "measure", "train", "pairs", "models"]

WORK: Mapping[Work, str] = {
    "count": "exact count",
    "measure": "measured here",
    "train": "pocket training here",
    "pairs": "pocket training on --pairs",
    "models": "a table of trained models",
}
"""How ours comes about, in words."""

PAPERS: Mapping[str, str] = {
    "par": "PAR Transformer (Mandava et al. 2020, later version)",
    "par-first": "PAR Transformer (Mandava et al. 2020, first version)",
    "lts": "LiteTransformerSearch (Javaheripi et al. 2022)",
    "srupp": "SRU++ (Lei 2021)",
    "albert": "ALBERT (Lan et al. 2019)",
    "mobilebert": "MobileBERT (Sun et al. 2020)",
    "lite": "Lite Transformer (Wu et al. 2020)",
    "synthesizer": "Synthesizer (Tay et al. 2020)",
    "efficient": "Efficient Transformers: A Survey (Tay et al. 2020)",
}
FOLDER = resources.files("parformer.reproduce") / "papers"


@dataclass(frozen=True, slots=True)
class Number(Record):
    """A published figure, or what follows from two of them."""

    text: str
    """As printed, for people."""
    value: float
    range: tuple[float, float]
    """What its printed digits leave open."""
    bound: Bound = ""
    """Whether the paper only says that it is below or above the value."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Training(Record):
    """The training of the paper that a row is about, and where its score is found."""

    preset: str
    pattern: str = ""
    changes: tuple[str, ...] = ()
    """Fields that differ from the preset's, as the command line sets them."""
    score: str = "test.perplexity"
    """Where in a run's result.json."""
    name: str = ""
    """The run's folder; the preset's name where it is empty."""

    @property
    def folder(self) -> str:
        return self.name or self.preset


@dataclass(frozen=True, kw_only=True, slots=True)
class Line(Record):
    """One published row: a figure, or a shape where the text gives no number."""

    key: str
    what: str
    unit: str = ""
    number: Number | None = None
    says: str = ""
    """What the text says where it gives no number, or beside it."""
    known: str = ""
    """Why ours is known to differ."""
    training: Training | None = None
    needs: str = ""
    """What ours would take, where nothing here computes it."""
    pairs: bool = False
    """Whether ours comes of trainings on --pairs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Page(Record):
    """A table or figure of a paper."""

    name: str
    paper: str
    place: str
    title: str
    work: tuple[Work, ...]
    minutes: float
    """About how long ours takes, trainings by their default."""
    lines: tuple[Line, ...] = ()
    note: str = ""


@cache
def read_pages() -> Mapping[str, Page]:
    """Every table and figure that there is something to say about, in the papers' order."""
    found: dict[str, Page] = {}
    for paper in PAPERS:
        tables = tomllib.loads((FOLDER / f"{paper}.toml").read_text("utf-8"))
        for name, table in tables.items():
            found[name] = read_page(name, paper, table)
    return MappingProxyType(found)


def read_page(name: str, paper: str, table: Mapping[str, object]) -> Page:
    check_names(table, {*field_types(Page), "rows", "models"}, f"name in {name}")
    rows = typed(table.get("rows", ()), tuple[Mapping[str, object], ...], f"rows of {name}")
    lines = [read_line(row) for row in rows]
    if "models" in table:
        lines += typed(table["models"], ModelList, f"models of {name}").lines()
    page = Page.from_dict({**table, "name": name, "paper": paper}, name)
    return replace(page, lines=tuple(lines))


def read_line(row: Mapping[str, object]) -> Line:
    check_names(row, {*field_types(Line), *FORMS}, "name of a row")
    number = read_number(row) if FORMS.keys() & row.keys() else None
    return replace(Line.from_dict(row), number=number)


def read_number(row: Mapping[str, object]) -> Number:
    """A figure from how the row gives it: printed, bounded, or made of two printed ones."""
    (form,) = FORMS.keys() & row.keys()
    printed: tuple[str, ...] = typed(row[form], str | tuple[str, ...], form)
    if isinstance(printed, str):
        printed = (printed,)
    compute, words = FORMS[form]
    value = compute(*map(float, printed))
    if form in ("below", "above"):
        bound: Bound = "below" if form == "below" else "above"
        return Number(f"{form} {printed[0]}", value, (value, value), bound)
    if form == "between":
        low, high = map(float, printed)
        return Number(f"{printed[0]} to {printed[1]}", value, (low, high))
    sides = [(float(text) - half(text), float(text) + half(text)) for text in printed]
    ends = [compute(*corner) for corner in itertools.product(*sides)]
    made = f"{value:.3g}" if form == "ratio" else f"{value:+.1f}"
    text = printed[0] if form == "value" else f"{made} ({words.join(printed)})"
    return Number(text, value, (min(ends), max(ends)))


def half(text: str) -> float:
    """Half of the last printed digit.

    >>> half("15.2"), half("192"), half("1e-2")
    (0.05, 0.5, 0.0005)
    """
    digits, _, power = text.lower().partition("e")
    after = len(digits.partition(".")[2])
    if power:  # one digit and a power of ten are exact for a setting
        return 0.05 * 10.0 ** int(power) * 10.0**-after
    return float(0.5 * 10.0**-after)


def loss_percent(ours: float, baseline: float) -> float:
    """By how much a loss is above another, in percent, from perplexities."""
    return 100 * (math.log(ours) / math.log(baseline) - 1)


FORMS: Mapping[str, tuple[Callable[..., float], str]] = {
    "value": (lambda a: a, ""),
    "below": (lambda a: a, ""),
    "above": (lambda a: a, ""),
    "between": (lambda a, b: (a + b) / 2, ""),
    "ratio": (lambda a, b: a / b, " / "),
    "loss": (loss_percent, " against "),
    "more": (lambda a, b: 100 * (a / b - 1), " against "),
    "points": (lambda a, b: a - b, " against "),
}
"""How a row may give its figure; `loss` takes perplexities, `more` anything, both in percent, and
`points` what has a scale of its own, such as BLEU."""


def expand(names: Iterable[str]) -> list[str]:
    """Each name once, in the order asked for."""
    pages = read_pages()
    wanted: dict[str, None] = {}
    for name in names:
        if name == "all":
            wanted |= dict.fromkeys(pages)
        elif name in PAPERS:
            wanted |= {one: None for one, page in pages.items() if page.paper == name}
        else:
            if name not in pages:
                refuse(name, [*pages, *PAPERS, "all"])
            wanted[name] = None
    return list(wanted)


def refuse(name: str, known: list[str]) -> NoReturn:
    near = difflib.get_close_matches(name, known, n=3)
    hint = f"the nearest are {', '.join(near)}" if near else "see 'parformer reproduce list'"
    raise ConfigError(f"no table or figure is called {name!r}; {hint}")


def work_words(page: Page) -> str:
    """How ours comes about, for a list."""
    return ", ".join(WORK[work] for work in page.work)


# LiteTransformerSearch's tables of architectures


@dataclass(frozen=True, slots=True)
class Printed:
    """A row of Tables 3 to 7: an architecture; what it is printed to have stands elsewhere."""

    key: str
    table: str
    block: int
    """Which list of the table, from 1."""
    name: str
    family: str
    d_model: int
    heads: tuple[int, ...]
    inner: tuple[int, ...]


@cache
def _model_rows() -> tuple[tuple[Printed, str], ...]:
    found: list[tuple[Printed, str]] = []
    table, block, last = "", 1, 0
    for row in csv.DictReader((FOLDER / "lts-models.csv").read_text("utf-8").splitlines()):
        name, family, d_model = row["name"], row["family"], int(row["d_model"])
        number = int(name.removeprefix("M")) if name.startswith("M") else 0
        if row["table"] != table:
            table, block = row["table"], 1
        elif number <= last:
            block += 1
        last = number
        heads, inner = (tuple(map(int, row[kind].split())) for kind in ("heads", "inner"))
        key = f"{table}.{block}.{name}"
        model = Printed(key, table, block, name, family, d_model, heads, inner)
        found.append((model, row["printed_millions"]))
    return tuple(found)


def printed_models(table: str) -> list[Printed]:
    """The architectures of a table."""
    return [model for model, _ in _model_rows() if model.table == table]


@dataclass(frozen=True, slots=True)
class ModelList(Record):
    """A table of architectures, as a page names it."""

    table: int
    lists: tuple[str, ...] = ("",)
    """What its blocks are called."""

    def lines(self) -> list[Line]:
        """A line for every architecture, with its printed decoder parameters."""
        return [
            Line(
                key=model.key,
                what=f"{self.lists[model.block - 1]} {model.name}, decoder parameters".lstrip(),
                unit="M",
                number=read_number({"value": printed}),
            )
            for model, printed in _model_rows()
            if model.table == str(self.table)
        ]
