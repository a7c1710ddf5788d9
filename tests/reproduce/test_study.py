"""Does every study say something, never take it from the paper, and agree where it must?"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import MappingProxyType

import pytest

import parformer as pf
from parformer import reproduce as package
from parformer.errors import ConfigError
from parformer.events import Notice, Watch
from parformer.reproduce import job, par, published, srupp
from parformer.reproduce import study as studies
from parformer.reproduce.published import Line, Number, Page, expand, read_number, read_pages
from parformer.reproduce.request import ReproduceRequest
from parformer.reproduce.result import ReproducedRow, ReproducedStudy, ReproduceResult
from parformer.reproduce.study import Found, Ours, in_words, side_by_side
from parformer.reproduce.workbench import STUDIES
from tests.reproduce.benches import quick_bench, write_models

PAGES = read_pages()
COUNTED = ("exact count", "the preset's setting")
AGREE = ("exactly", "within rounding")
KNOWN = {
    ("srupp-table-4", "parameters-8"),
    ("srupp-table-4", "parameters-10"),
    ("srupp-table-5", "parameters-txl"),
    ("mobilebert-table-1", "ib-bert"),
    ("mobilebert-table-1", "mobilebert"),
    ("mobilebert-table-1", "tiny"),
    ("mobilebert-table-4", "flops-bert"),
    ("mobilebert-table-4", "flops-mobilebert"),
    *(("lite-table-2", f"adds-lite-{width}") for width in (200, 408, 496)),
    *(("lite-table-2", f"adds-transformer-{width}") for width in (256, 320)),
    *(("lite-table-3", f"adds-{name}") for name in ("lite-200", "lite-408", "transformer-256")),
    *(("lite-table-5", f"adds-{name}") for name in ("lite-100", "lite-1000", "adaptive-1000")),
    ("synthesizer-table-2", "parameters-dense-random"),
    ("synthesizer-table-2", "parameters-dense-vanilla"),
}
"""Counts that differ from what was printed, and why."""


@pytest.fixture(autouse=True)
def nothing_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """No model of a paper is built."""
    kinds = {"matrix products": 3.0, "attention": 1.0}
    monkeypatch.setattr(srupp, "time_by_kind", lambda work, calls: kinds)
    monkeypatch.setattr(srupp, "build", lambda config: _Idle())
    monkeypatch.setattr(srupp, "Reader", lambda model, shape: lambda: None)
    monkeypatch.setattr(par, "search_pace", lambda bench: Ours(1.5, "measured here"))


class _Idle:
    def eval(self) -> _Idle:
        return self


@cache
def table_of_models() -> Path:
    import tempfile

    return write_models(Path(tempfile.mkdtemp()) / "models.csv")


@cache
def run_one(name: str) -> ReproducedStudy:
    (result,) = job.run_studies([name], quick_bench(models=table_of_models(), sample=5))
    return result


@cache
def found_by(name: str) -> Found:
    """All that a study computes, before it is put beside anything."""
    return STUDIES[name](quick_bench(models=table_of_models(), sample=5))


def test_every_page_has_a_study_and_every_study_a_page() -> None:
    assert set(STUDIES) == set(PAGES)


@pytest.mark.parametrize("name", PAGES)
def test_a_study_runs_or_says_what_it_needs(name: str) -> None:
    result, found = run_one(name), found_by(name)
    assert [row.key for row in result.rows] == [line.key for line in PAGES[name].lines]
    for row in result.rows:
        if row.key in found:
            assert row.how
        else:
            assert row.ours is None
            assert row.how.startswith("needs "), row.key
    works = set(PAGES[name].work) - {"train", "pairs"}
    assert bool(found) == bool(works), "what is not trained must be computed"
    assert result.summary.startswith(f"{len(result.rows)} row")


@pytest.mark.parametrize("name", PAGES)
def test_exact_counts_agree_with_the_paper_to_the_digits_printed(name: str) -> None:
    for line, row in zip(PAGES[name].lines, run_one(name).rows, strict=True):
        if row.ours is not None and row.how in COUNTED and row.published is not None:
            if (name, row.key) in KNOWN:
                assert row.verdict == studies.KNOWN
                assert line.known in row.note
            elif row.published.bound:
                assert row.verdict == "holds", row.key
            else:
                assert row.verdict in AGREE, row.key


def test_no_reason_is_given_for_what_agrees() -> None:
    labelled = {(name, line.key) for name in PAGES for line in PAGES[name].lines if line.known}
    assert labelled == KNOWN


@pytest.mark.parametrize("name", PAGES)
def test_ours_does_not_change_with_what_was_published(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = [(row.key, row.ours, row.interval, row.how) for row in run_one(name).rows]
    changed = perturbed(PAGES)
    monkeypatch.setattr(job, "read_pages", lambda: changed)
    monkeypatch.setattr(published, "read_pages", lambda: changed)
    run_one.cache_clear()
    rows = run_one(name).rows
    run_one.cache_clear()
    assert [(row.key, row.ours, row.interval, row.how) for row in rows] == before
    assert all(row.published is None or row.published.value > 1000 for row in rows)
    # as texts, for nan is not equal to itself
    anew = STUDIES[name](quick_bench(models=table_of_models(), sample=5))
    assert str(anew) == str(found_by(name))


def perturbed(pages: Mapping[str, Page]) -> Mapping[str, Page]:
    number = Number("7777", 7777.0, (7776.5, 7777.5))
    return MappingProxyType(
        {
            name: replace(
                page,
                lines=tuple(
                    line if line.number is None else replace(line, number=number)
                    for line in page.lines
                ),
            )
            for name, page in pages.items()
        }
    )


def test_what_computes_ours_cannot_see_what_was_published() -> None:
    """Studies import architectures from `published` and nothing that holds a printed figure."""
    allowed = {"Printed", "printed_models"}
    folder = Path(package.__file__).parent
    files = [*folder.glob("par*.py"), *folder.glob("lts*.py"), *folder.glob("srupp*.py")]
    files = [file for file in files if file.name != "paper_scale.py"]
    assert len(files) == 7
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module == published.__name__:
                assert {alias.name for alias in node.names} <= allowed, file.name
            if isinstance(node, ast.Import):
                assert not any("published" in alias.name for alias in node.names)
    assert "printed" not in {name for name in published.Printed.__slots__ if name != "table"}


# Agreement


def row_of(ours: Ours | None, unit: str = "", known: str = "", **form: object) -> ReproducedRow:
    line = Line(key="k", what="w", unit=unit, number=read_number(form), known=known)
    return side_by_side(line, ours, "how")


def test_how_two_figures_agree() -> None:
    assert row_of(Ours(6, "count"), value="6").verdict == "exactly"
    assert row_of(Ours(191.95, "count"), value="192").verdict == "within rounding"
    assert row_of(Ours(62.5, "count"), value="63").verdict == "within rounding"
    assert row_of(Ours(191.4, "count"), value="192").verdict == "differs"
    assert row_of(Ours(285, "count"), value="257", known="why").verdict == studies.KNOWN
    assert row_of(None, value="192").verdict == ""


def test_what_was_measured_agrees_within_its_interval() -> None:
    assert row_of(Ours(0.66, "m", (0.64, 0.68)), value="0.65").verdict == "within the noise"
    assert row_of(Ours(0.93, "m", (0.91, 0.95)), value="0.65").verdict == "differs"
    assert row_of(Ours(0.93, "m", (0.43, 1.15)), value="0.65").verdict == "too noisy to tell"


def test_one_training_is_shown_and_not_judged() -> None:
    for form in ({"value": "3.0"}, {"below": "4"}, {"above": "2"}):
        row = row_of(Ours(3.0, "training", single=True), unit="%", **form)
        assert row.verdict == ""
    ours = Ours(3.5, "training", single=True)
    row = row_of(ours, unit="%", more=["1.03", "1.00"])
    assert row.difference == pytest.approx(0.5)
    assert "one training each" in in_words([row], {"k": ours})


def test_bounds_hold_or_do_not() -> None:
    assert row_of(Ours(0.9, "m"), above="0.8").verdict == "holds"
    assert row_of(Ours(0.7, "m"), above="0.8").verdict == "does not hold"
    assert row_of(Ours(5.0, "m"), below="12.8", unit="%").verdict == "holds"
    assert row_of(Ours(0.81, "m", (0.79, 0.83)), above="0.8").verdict == "within the noise"
    assert row_of(Ours(0.81, "m", (0.4, 0.97)), above="0.8").verdict == "too noisy to tell"
    assert row_of(Ours(0.81, "m", (0.4, 0.97)), above="0.8").difference is None


def test_differences_are_in_percent_or_points() -> None:
    row = row_of(Ours(1.1, "m"), value="1.0", unit="×")
    assert (row.difference, row.difference_unit) == (pytest.approx(10), "%")
    row = row_of(Ours(30.0, "m"), value="25.8", unit="%")
    assert (row.difference, row.difference_unit) == (pytest.approx(4.2), "points")
    row = row_of(Ours(0.0, "m"), value="0")
    assert (row.difference, row.verdict) == (0, "exactly")


def test_what_is_no_number_becomes_null() -> None:
    nothing = float("nan")
    told = row_of(Ours(nothing, "m", (nothing, nothing)), value="5")
    assert (told.ours, told.difference, told.verdict) == (None, None, "")
    assert told.interval is None


# Names


def test_names_stand_for_one_or_many() -> None:
    assert expand(["par-table-1", "par-table-1"]) == ["par-table-1"]
    assert expand(["par-first"]) == ["par-first-table-1", "par-first-figure-2"]
    assert expand(["all"]) == list(PAGES)


def test_an_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(ConfigError, match="the nearest are par-table-1"):
        expand(["par-tabel-1"])


def test_of_several_studies_those_without_a_table_are_left_out() -> None:
    left, ran = job.run_studies(["lts-figure-3", "par-table-a1"], quick_bench())
    assert "--models" in left.summary
    assert "archai" in left.summary
    assert ran.summary == "6 rows: 6 exactly."
    with pytest.raises(ConfigError, match="--models"):
        job.run_studies(["lts-figure-3"], quick_bench())


# From Python


def test_the_verb_is_a_function_with_a_typed_result(tmp_path: Path) -> None:
    result = pf.reproduce(names=["par-table-a1", "lts-table-5"], run=tmp_path / "run")
    assert [study.name for study in result.studies] == ["par-table-a1", "lts-table-5"]
    assert result.studies[0].summary == "6 rows: 6 exactly."
    assert ReproduceResult.load(tmp_path / "run") == result
    assert (tmp_path / "run" / "report.html").is_file()
    counted = pf.reproduce(names="par-table-a1")
    assert counted.report is None


def test_files_of_version_0_1_load(tmp_path: Path) -> None:
    old = {"command": "c", "date": "d", "version": "0.1.0", "studies": []}
    row = {
        "key": "k", "what": "w", "unit": "M", "published": None, "says": "no number", "ours": 1.5,
        "interval": [1.0, 2.0], "difference": None, "difference_unit": "%", "verdict": "",
        "how": "exact count", "note": "", "command": "",
    }  # fmt: skip
    study = {
        "name": "n", "paper": "p", "place": "Table 1", "title": "t", "note": "", "rows": [row],
        "summary": "1 row.", "seconds": 0.1, "receipt": "",
    }  # fmt: skip
    (tmp_path / ReproduceResult.FILE).write_text(json.dumps(old | {"studies": [study]}))
    result = ReproduceResult.load(tmp_path)
    assert result.studies[0].rows[0].interval == (1.0, 2.0)
    assert result.studies[0].to_dict() == study


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"names": ["none"]}, "no table or figure is called 'none'"),
        ({"steps": 0}, "--steps must be at least 1"),
        ({"steps": 5, "time": 60.0}, "two lengths"),
        ({"seeds": 0}, "--seeds"),
        ({"models": "nowhere.csv"}, "no such file"),
    ],
)
def test_what_cannot_be_done_is_refused_at_once(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ReproduceRequest(**({"names": ("par-table-1",)} | changes))  # type: ignore[arg-type]


def test_only_what_takes_time_has_a_folder_of_its_own() -> None:
    assert ReproduceRequest(names=("par-table-a1",)).folder is None
    assert ReproduceRequest(names=("par-table-1",)).folder == Path("runs/reproduce-par-table-1")
    assert ReproduceRequest(names=("par",)).folder == Path("runs/reproduce")


def test_whoever_has_no_terminal_gets_a_line_for_every_measurement() -> None:
    said: list[str] = []
    watch = Watch(lambda event: said.extend([event.text] if isinstance(event, Notice) else []))
    job.run_studies(["par-table-2", "lts-figure-15"], quick_bench(watch=watch, rounds=8))
    assert said == [
        "Measuring txl, sandwich and par, 8 rounds",
        "Measuring txl, sandwich and par, 8 rounds",
        "Measuring 24 models, 8 rounds",
    ]
