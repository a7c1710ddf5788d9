"""From names to results: run studies one after the other, and put ours beside the published.

>>> from parformer.reproduce.workbench import Workbench
>>> run_studies(["par-table-a1"], Workbench())[0].summary
'6 rows: 6 exactly.'
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from parformer import __version__
from parformer.errors import FolderError
from parformer.events import Listener, Watch, nobody
from parformer.report.reproduced import reproduced_page

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
from parformer.reproduce.request import ReproduceRequest
from parformer.reproduce.result import REPORT, ReproducedStudy, ReproduceResult
from parformer.reproduce.study import Found, Ours, Row, StudyRun, side_by_side
from parformer.reproduce.workbench import AUTHORS, Workbench
from parformer.store.files import reason, replace_file
from parformer.train.run import only_one
from parformer.verbs import requested


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
    request: ReproduceRequest | None = None,
    *,
    watch: Listener = nobody,
    each: Callable[[ReproducedStudy], None] = lambda _: None,
    command: str = "parformer.reproduce",
    **given: Any,
) -> ReproduceResult:
    """Published figures and ours, side by side; written down where there is a folder.

    Takes a request or its fields: names, run, time or steps, and so on. `each` is told of a
    study once it is done.
    """
    request = requested(ReproduceRequest, request, given)
    folder = request.folder
    bench = Workbench.of(request, Watch(watch))
    with ExitStack() as stack:
        if folder is not None:
            make_folder(folder)
            stack.enter_context(only_one(folder))
        names = [page.name for page in request.pages]
        studies = run_studies(names, bench, each=lambda run: each(run.told()))
        result = ReproduceResult(
            command=command,
            date=datetime.datetime.now(datetime.UTC).date().isoformat(),
            version=__version__,
            studies=tuple(run.told() for run in studies),
            report=None if folder is None else str(folder / REPORT),
        )
        if folder is not None:
            result.save(folder)
            replace_file(folder / REPORT, reproduced_page(result))
    return result


def make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FolderError(f"cannot make {str(folder)!r}: {reason(error)}") from None


def run_studies(
    names: Sequence[str],
    bench: Workbench,
    *,
    each: Callable[[StudyRun], None] = lambda _: None,
) -> list[StudyRun]:
    """Run the studies; of several, those that lack a table of models are left out."""
    studies = find_studies(names)
    results = []
    for study in studies:
        if study.needs_models and bench.models is None and len(studies) > 1:
            why = f"Left out: it takes --models TABLE.csv, a table of trained models; {AUTHORS}."
            result = StudyRun(study.page, (), 0.0, skipped=why)
        else:
            result = run_study(study, bench)
        results.append(result)
        each(result)
    return results


def run_study(study: Study, bench: Workbench) -> StudyRun:
    began = time.monotonic()
    bench = replace(bench, receipt="")
    found: dict[str, Ours] = dict(study.compute(bench))
    if bench.scale == "paper":
        found |= finished_runs(study, bench)
    rows = side_by_side(study.page, found, partial(missing, bench))
    if bench.scale == "paper":
        rows = [row for row in rows if row.ours or row.command or not of_pocket(row)]
    return StudyRun(study.page, rows, time.monotonic() - began, bench.receipt)


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
