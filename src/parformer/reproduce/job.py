"""From names to results: run studies one after the other, and put ours beside the published.

>>> from parformer.reproduce.workbench import Workbench
>>> result = reproduce(["par-table-a1"], Workbench())[0]
>>> result.summary
'6 rows: 6 exactly.'
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

# they register themselves
from parformer.reproduce import (  # noqa: F401
    lts_counts,
    lts_devices,
    lts_rankings,
    par,
    par_search,
    srupp,
    srupp_quality,
)
from parformer.reproduce.paper_scale import command_of, finished, machine_words
from parformer.reproduce.published import Line, Page, expand, read_pages
from parformer.reproduce.registry import STUDIES, Compute
from parformer.reproduce.study import Found, Ours, Result, Row, side_by_side
from parformer.reproduce.workbench import AUTHORS, Workbench


@dataclass(frozen=True, slots=True)
class Study:
    """A table or figure, and what computes ours for it."""

    page: Page
    compute: Compute

    @property
    def needs_models(self) -> bool:
        return "models" in self.page.work


def find_studies(names: Iterable[str]) -> list[Study]:
    """Studies by name; a paper's name stands for all of its own, `all` for every one."""
    return [Study(read_pages()[name], STUDIES[name]) for name in expand(names)]


def reproduce(
    names: Sequence[str],
    bench: Workbench,
    *,
    on_result: Callable[[Result], None] = lambda _: None,
) -> list[Result]:
    """Run the studies; of several, those that lack a table of models are left out."""
    studies = find_studies(names)
    results = []
    for study in studies:
        if study.needs_models and bench.models is None and len(studies) > 1:
            why = f"Left out: it takes --models TABLE.csv, a table of trained models; {AUTHORS}."
            result = Result(study.page, (), 0.0, skipped=why)
        else:
            result = run_study(study, bench)
        results.append(result)
        on_result(result)
    return results


def run_study(study: Study, bench: Workbench) -> Result:
    began = time.monotonic()
    bench = replace(bench, receipt="")
    found: dict[str, Ours] = dict(study.compute(bench))
    if bench.scale == "paper":
        found |= finished_runs(study, bench)
    rows = side_by_side(study.page, found, partial(missing, bench))
    if bench.scale == "paper":
        rows = [row for row in rows if row.ours or row.command or not of_pocket(row)]
    return Result(study.page, rows, time.monotonic() - began, bench.receipt)


def finished_runs(study: Study, bench: Workbench) -> Found:
    done = {}
    for line in study.page.lines:
        if line.training is not None:
            ours = finished(line.training, bench.folder)
            if ours is not None:
                done[line.key] = ours
    return done


def of_pocket(row: Row) -> bool:
    """Whether a row is about pocket trainings alone, which have no place at the paper's scale."""
    return row.line.needs == ""


def missing(bench: Workbench, line: Line) -> tuple[str, str]:
    """What ours takes where there is none, and the command for it."""
    if line.training is not None:
        command = command_of(line.training, bench.folder) if bench.scale == "paper" else ""
        how = f"needs {machine_words(line.training)}"
        return (f"{how}: the command is {command}" if command else how), command
    if line.needs:
        return f"needs {line.needs}", ""
    if not bench.training:
        return "needs pocket trainings, which were left out", ""
    return "not computed here", ""
