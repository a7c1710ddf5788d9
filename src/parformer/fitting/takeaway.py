"""How does the model that a fit found leave the house? Every way is tried before it is told."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from shlex import quote

from parformer.errors import ParformerError
from parformer.export.request import ExportRequest, export
from parformer.fitting.result import Way
from parformer.fitting.running import Running
from parformer.measure.readings import measure_here
from parformer.serve.request import ServeRequest, open_services

TAKES = {"for onnxruntime": 9.0, "for llama.cpp": 4.0, "for Hugging Face": 7.0}
"""Seconds of a way that takes more than one or two, about; what has no such time is not tried."""
SLACK = 2.0
"""Seconds that nobody minds."""
NO_TIME = "not tried, the time was over; it compares numbers itself before it writes anything"


def ways_out(fit: Running) -> tuple[Way, ...]:
    """All that fit this model, tried with the folder that is handed over."""
    if fit.meter is not measure_here or not fit.request.exports:
        return ()  # what was measured elsewhere leaves from there
    return tuple(attempt(fit, *one) for one in attempts(fit))


def attempt(fit: Running, name: str, command: str, work: Callable[[], str]) -> Way:
    ends = fit.progress.spent + TAKES.get(name, 1.0)
    if fit.by_clock and ends > fit.request.seconds + SLACK:
        return Way(name, command, False, NO_TIME)
    fit.watch.preparing(f"trying {name}", 0.0)
    try:
        return Way(name, command, True, work())
    except ParformerError as error:
        return Way(name, command, False, str(error), possible=False)


def attempts(fit: Running) -> Iterator[tuple[str, str, Callable[[], str]]]:
    """A name, a command and something that tries it."""
    run, path = str(fit.path), quote(str(fit.path))
    command, ask = fit.kind.asking(run, fit.baseline.recipe, fit.prepared)
    yield "to ask it", command, ask
    yield "to serve it", f"parformer serve {path}", lambda: served(fit.path)
    for kind, (name, flag, end) in FORMS.items():
        told = f"parformer export {path} {flag} {quote(f'{run}{end}')}"
        yield name, told, lambda kind=kind, end=end: exported(fit.path, kind, end)  # type: ignore[misc]


FORMS = {
    "onnx": ("for onnxruntime", "--onnx", "-onnx"),
    "gguf": ("for llama.cpp", "--gguf", ".gguf"),
    "hub": ("for Hugging Face", "--hub", "-hub"),
}


def exported(run: Path, kind: str, end: str) -> str:
    """Export it to a place that is thrown away; what was compared."""
    with tempfile.TemporaryDirectory() as place:
        there = Path(place) / f"model{end}"
        forms = {form: there if form == kind else None for form in FORMS}
        (done,) = export(ExportRequest(model=run, **forms))  # type: ignore[arg-type]
    told = []
    if note := done.parity.get("note"):
        told.append(str(note))
    if (worst := done.parity.get("largest_difference")) is not None:
        told.append(f"its numbers differ from the model's by {worst:.1g}")
    if count := done.parity.get("greedy_tokens_equal"):
        told.append(f"the same {count} greedy tokens")
    return "; ".join(told) or "written and read back"


def served(run: Path) -> str:
    """Make everything ready but the socket."""
    from parformer.serve.app import make_app

    make_app(open_services(ServeRequest(model=run)))
    return "loaded, with all its addresses"
