"""Do the table and the page show what was found, and nothing that was slipped in?"""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

from rich.console import Console

from parformer.report.reproduced import (
    NOTHING,
    cells,
    letters,
    list_table,
    number,
    ours_words,
    published_words,
    reproduced_page,
    study_table,
)
from parformer.reproduce.published import Page
from parformer.reproduce.result import ReproducedRow, ReproducedStudy, ReproduceResult


def row(**changes: Any) -> ReproducedRow:
    values: dict[str, Any] = {
        "key": "parameters",
        "what": "PAR Base, parameters",
        "unit": "M",
        "published": {"text": "200", "value": 200.0, "bound": ""},
        "says": "",
        "ours": 199.840218,
        "interval": None,
        "difference": -0.08,
        "difference_unit": "%",
        "verdict": "within rounding",
        "how": "exact count",
        "note": "",
        "command": "",
    }
    return ReproducedRow.from_dict(values | changes)


RATIO = row(
    key="latency",
    what="PAR Base, latency against Transformer-XL",
    unit="×",
    published={"text": "0.651 (9.9 / 15.2)", "value": 0.651, "bound": ""},
    ours=0.926,
    interval=[0.91, 0.95],
    difference=42.2,
    verdict="differs",
    how="measured here, 64 tokens after 640",
)
NEEDS = row(
    key="ppl",
    what="PAR Base, test perplexity",
    unit="",
    published={"text": "22.7", "value": 22.7, "bound": ""},
    ours=None,
    difference=None,
    verdict="",
    how="needs 8 GPUs",
)
LOSS = row(
    what="PAR's rule, test loss against interleaved",
    unit="%",
    published={"text": "+0.0 (22.7 against 22.7)", "value": 0.0, "bound": ""},
    ours=3.14,
    interval=[1.0, 5.25],
    difference=3.14,
    difference_unit="points",
    verdict="differs",
    how="pocket training here",
)


def study(*rows: ReproducedRow, **changes: Any) -> ReproducedStudy:
    values: dict[str, Any] = {
        "name": "par-table-a2",
        "paper": "PAR Transformer",
        "place": "Table A2",
        "title": "Parameters",
        "note": "",
        "rows": [one.to_dict() for one in rows or (row(), RATIO, NEEDS, LOSS)],
        "summary": "4 rows: 1 within rounding; 2 differs; 1 without ours.",
        "seconds": 1.0,
        "receipt": "a machine, 1 thread",
    }
    return ReproducedStudy.from_dict(values | changes)


def page_of(*studies: ReproducedStudy) -> str:
    command = "parformer reproduce par-table-a2"
    return reproduced_page(
        ReproduceResult(command=command, date="2026-11-16", version="0.1.0", studies=studies)
    )


def printed(what: Any, width: int = 160) -> str:
    console = Console(width=width, force_terminal=False)
    with console.capture() as caught:
        console.print(what)
    return caught.get()


def test_figures_are_written_with_their_units() -> None:
    assert ours_words(row()) == "199.84 M"
    assert published_words(row()) == "200 M"
    assert ours_words(RATIO) == "0.926× (0.91–0.95)"
    assert published_words(RATIO) == "0.651× (9.9 / 15.2)"
    assert ours_words(NEEDS) == NOTHING
    assert ours_words(LOSS) == "+3.1% (+1.0 to +5.2)"
    assert published_words(row(published=None, says="no number in the text")).startswith("no ")
    assert [number(v) for v in (512, 26.993, 0.0003, 1234.5)] == ["512", "26.99", "0.0003", "1,234"]


def test_every_way_has_a_letter_of_its_own() -> None:
    rows = study().rows
    ways = letters(rows)
    assert [cells(one, ways)[-1] for one in rows] == ["a", "b", "c", "d"]
    assert letters([rows[0], rows[0]]) == {"exact count": "a"}


def test_the_terminal_shows_rows_ways_and_a_closing_line() -> None:
    shown = printed(study_table(study()))
    for words in ("par-table-a2", "199.84 M", "0.926× (0.91–0.95)", "+42.2%", "+3.1 points"):
        assert words in shown
    assert "c  needs 8 GPUs" in shown
    assert "Receipt: a machine" in shown
    assert shown.rstrip().endswith("1 without ours.")


def test_markup_in_a_name_stays_text() -> None:
    shown = printed(study_table(study(row(what="[red]s[/red]", how="[b]"))))
    assert "[red]s[/red]" in shown
    assert "a  [b]" in shown


def test_the_list_says_how_long() -> None:
    first = Page(
        name="a-table-1", paper="par", place="Table 1", title="What", work=("count",), minutes=0
    )
    shown = printed(list_table([first, replace(first, name="b", minutes=5)]))
    assert "a-table-1" in shown
    assert "no time" in shown
    assert "5 minutes" in shown


class Tags(HTMLParser):
    """Every element of a page, to see that nothing foreign came in."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.found.append(tag)


def test_the_page_escapes_whatever_comes_from_outside() -> None:
    bad = "<img src=x onerror=alert(1)>"
    nasty = row(what=bad, says=bad, how=bad, note=bad, published=None)
    whole = study(nasty, RATIO, row(), title=bad, note=bad, receipt=bad, summary=bad)
    text = page_of(whole)
    tags = Tags()
    tags.feed(text)
    assert "img" not in tags.found
    assert bad not in text


def test_the_page_is_one_file_that_follows_light_and_dark() -> None:
    text = page_of(study(), study(name="other"))
    assert "prefers-color-scheme: dark" in text
    assert "default-src 'none'" in text
    assert "<link" not in text.partition("<script>")[0]
    assert text.count("<section>") == 3
    assert "How far is ours from what was published?" in text


def test_a_study_that_was_left_out_says_why() -> None:
    left = study(name="lts-figure-3", rows=[], summary="Left out: it takes --models")
    text = page_of(left, study())
    assert "Left out: it takes --models" in text
    assert "Left out" in printed(study_table(left))


def test_without_anything_to_compare_there_is_no_picture() -> None:
    text = page_of(study(NEEDS))
    assert "How far is ours" not in text
