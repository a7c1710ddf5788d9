"""From names to results: run studies one after the other, and put ours beside the published.

>>> from parformer.reproduce.workbench import Workbench
>>> run_studies(["par-table-a1"], Workbench())[0].summary
'6 rows: 6 exactly.'
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from parformer import __version__
from parformer.errors import FolderError
from parformer.events import Listener, Watch, nobody
from parformer.fields import check_names
from parformer.report.reproduced import reproduced_page

# they register themselves
from parformer.reproduce import (  # noqa: F401
    efficient,
    encoders,
    lite,
    lts_counts,
    lts_devices,
    lts_rankings,
    par,
    par_search,
    srupp,
    srupp_quality,
)
from parformer.reproduce.paper_scale import command_of, finished, machine_words
from parformer.reproduce.published import PAPERS, Line, Page, expand, read_pages
from parformer.reproduce.request import ReproduceRequest
from parformer.reproduce.result import REPORT, ReproducedRow, ReproducedStudy, ReproduceResult
from parformer.reproduce.study import Found, in_words, side_by_side
from parformer.reproduce.workbench import AUTHORS, STUDIES, Workbench
from parformer.store.files import reason, replace_file
from parformer.train.run import only_one
from parformer.verbs import requested


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
        studies = run_studies(names, bench, each=each)
        result = ReproduceResult(
            command=command,
            date=datetime.datetime.now(datetime.UTC).date().isoformat(),
            version=__version__,
            studies=tuple(studies),
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
    each: Callable[[ReproducedStudy], None] = lambda _: None,
) -> list[ReproducedStudy]:
    """Run the studies by name; of several, those that lack a table of models are left out.

    A paper's name stands for all of its own, `all` for every one.
    """
    pages = [read_pages()[name] for name in expand(names)]
    studies = []
    for page in pages:
        if "models" in page.work and bench.models is None and len(pages) > 1:
            why = f"Left out: it takes --models TABLE.csv, a table of trained models; {AUTHORS}."
            study = told(page, why)
        else:
            study = run_study(page, bench)
        studies.append(study)
        each(study)
    return studies


def told(
    page: Page,
    summary: str,
    rows: Sequence[ReproducedRow] = (),
    seconds: float = 0.0,
    receipt: str = "",
) -> ReproducedStudy:
    """A study as the result says it."""
    return ReproducedStudy(
        name=page.name,
        paper=PAPERS[page.paper],
        place=page.place,
        title=page.title,
        note=page.note,
        rows=tuple(rows),
        summary=summary,
        seconds=round(seconds, 3),
        receipt=receipt,
    )


def run_study(page: Page, bench: Workbench) -> ReproducedStudy:
    began = time.monotonic()
    bench = replace(bench, receipt="")
    found, lines = dict(STUDIES[page.name](bench)), page.lines
    if bench.scale == "paper":
        found |= finished_runs(page, bench)
        # what pocket trainings alone compute has no place at the paper's scale
        lines = tuple(one for one in lines if one.key in found or one.training or one.needs)
    check_names(found, [line.key for line in page.lines], f"row of {page.name}")
    rows = []
    for line in lines:
        ours = found.get(line.key)
        how, command = (ours.how, "") if ours else missing(bench, line)
        rows.append(side_by_side(line, ours, how, command))
    return told(page, in_words(rows, found), rows, time.monotonic() - began, bench.receipt)


def finished_runs(page: Page, bench: Workbench) -> Found:
    trainings = {line.key: line.training for line in page.lines if line.training}
    done = {key: finished(training, bench.folder) for key, training in trainings.items()}
    return {key: ours for key, ours in done.items() if ours}


def missing(bench: Workbench, line: Line) -> tuple[str, str]:
    """What ours takes where there is none, and the command for it."""
    if line.training is not None:
        command = command_of(line.training, bench.folder) if bench.scale == "paper" else ""
        how = f"needs {machine_words(line.training)}"
        return (f"{how}: the command is {command}" if command else how), command
    if line.needs:
        return f"needs {line.needs}", ""
    if line.pairs and not bench.pairs:
        return "needs --pairs, such as multi30k, for pocket trainings", ""
    if not bench.training:
        return "needs pocket trainings, which were left out", ""
    return "not computed here", ""
