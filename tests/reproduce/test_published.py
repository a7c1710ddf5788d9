"""Is what the papers printed read as printed, with what its digits leave open?"""

from __future__ import annotations

from pathlib import Path

import pytest

from parformer.errors import ConfigError
from parformer.reproduce.published import (
    PAPERS,
    WORK,
    half,
    printed_models,
    read_line,
    read_number,
    read_pages,
)

PAGES = read_pages()
WANTED = (
    *(f"par-table-{n}" for n in ("1", "2", "a1", "a2", "a3")),
    *(f"par-figure-{n}" for n in range(1, 7)),
    *("par-first-table-1", "par-first-figure-2"),
    *(f"lts-table-{n}" for n in range(1, 8)),
    *(f"lts-figure-{n}" for n in (3, 4, 5, 6, 7, 8, 9, 11, 12, 14, 15, 17)),
    *(f"srupp-table-{n}" for n in range(1, 13)),
    *(f"srupp-figure-{n}" for n in range(3, 7)),
    *("albert-table-3", "albert-table-4", "albert-table-5", "albert-table-9"),
    *(f"lite-table-{n}" for n in range(2, 6)),
    "lite-figure-4",
    *(f"synthesizer-table-{n}" for n in (2, 3, 5, 6)),
    *("mobilebert-table-1", "mobilebert-table-4", "mobilebert-table-latency", "efficient-table-1"),
)


def test_every_table_and_figure_is_there() -> None:
    assert set(WANTED) <= set(PAGES)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_whole(name: str) -> None:
    page = PAGES[name]
    assert name.startswith(f"{page.paper}-")
    assert page.paper in PAPERS
    assert page.work
    assert set(page.work) <= set(WORK)
    assert page.lines
    assert len({line.key for line in page.lines}) == len(page.lines)
    kind, number = page.place.split()
    assert name.endswith(f"{kind.lower()}-{number.lower()}")
    for line in page.lines:
        assert line.number is not None or line.says, line.key
        assert line.what


@pytest.mark.parametrize(
    ("row", "value", "low", "high", "text"),
    [
        ({"value": "192"}, 192, 191.5, 192.5, "192"),
        ({"value": "0.97"}, 0.97, 0.965, 0.975, "0.97"),
        ({"ratio": ["9.9", "15.2"]}, 0.6513, 9.85 / 15.25, 9.95 / 15.15, "0.651 (9.9 / 15.2)"),
        ({"more": ["1.03", "1.06"]}, -2.830, -3.75, -1.90, "-2.8 (1.03 against 1.06)"),
        ({"loss": ["22.7", "22.7"]}, 0.0, -0.141, 0.141, "+0.0 (22.7 against 22.7)"),
        ({"loss": ["252.9", "22.7"]}, 77.21, 77.0, 77.4, "+77.2 (252.9 against 22.7)"),
        ({"between": ["4", "5"]}, 4.5, 4, 5, "4 to 5"),
    ],
    ids=str,
)
def test_a_figure_knows_what_its_digits_leave_open(
    row: dict[str, object], value: float, low: float, high: float, text: str
) -> None:
    number = read_number(row)
    assert number.value == pytest.approx(value, rel=1e-3, abs=1e-9)
    assert number.range == pytest.approx((low, high), rel=5e-3)
    assert (number.text, number.bound) == (text, "")


def test_bounds_are_bounds() -> None:
    assert read_number({"below": "12.8"}).bound == "below"
    assert read_number({"above": "0.8"}).text == "above 0.8"


def test_half_of_the_last_digit() -> None:
    assert [half(text) for text in ("15.20", "3", "1e-2")] == [0.005, 0.5, 0.0005]


def test_a_misspelt_row_is_found() -> None:
    with pytest.raises(ConfigError, match="did you mean 'value'"):
        read_line({"key": "a", "what": "b", "valeu": "3"})


def test_the_architectures_are_those_that_the_costs_are_tested_with() -> None:
    """The same file lies with the tests as an oracle; they must not drift apart."""
    oracle = Path(__file__).parents[1] / "oracles" / "lts_tables.csv"
    source = Path(__file__).parents[2] / "src/parformer/reproduce/papers/lts-models.csv"
    assert source.read_text() == oracle.read_text()
    counts = {table: len(printed_models(table)) for table in "34567"}
    assert counts == {"3": 21, "4": 71, "5": 37, "6": 37, "7": 75}
    assert {model.block for model in printed_models("7")} == {1, 2}
    assert len([model for model in printed_models("4") if model.block == 2]) == 33
