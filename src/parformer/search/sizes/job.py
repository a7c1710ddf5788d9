"""From a space of sizes and a device to every architecture worth having between the two ends.

A run folder holds the study (`study.db`), what was measured (`measured.jsonl`), and in the end
`pareto.json` and `report.html`. The same request on the same folder goes on where it stopped.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from parformer.errors import FolderError, Stopped
from parformer.events import Listener, Watch, nobody
from parformer.measure import readings
from parformer.measure.device import Device
from parformer.report.pareto import pareto_page
from parformer.search.sentences import measure_any
from parformer.search.sizes.engine import MEASURED, OLD_STUDY, STUDY, search_front
from parformer.search.sizes.remote import RemoteMeter
from parformer.search.sizes.request import SizesRequest
from parformer.search.sizes.result import SizesResult
from parformer.search.sizes.storage import read_address
from parformer.search.sizes.summarise import summarise
from parformer.search.sizes.wanted import Wanted
from parformer.store.files import replace_file
from parformer.train.run import only_one
from parformer.verbs import requested

REPORT = "report.html"
OURS = {STUDY, OLD_STUDY, SizesResult.FILE, MEASURED}


def search_sizes(
    request: SizesRequest | None = None, *, watch: Listener = nobody, **fields: Any
) -> SizesResult:
    """Find every size worth having; takes a request or its fields."""
    request = requested(SizesRequest, request, fields)
    tell = Watch(watch)
    wanted = request.wanted()
    if request.storage:
        read_address(request.storage)
    path = request.folder(wanted)
    make_room(path)
    with only_one(path):
        tell.notice(about(wanted, path))
        meter, device = meter_of(request, wanted, tell)
        try:
            ended = search_front(
                wanted,
                path,
                storage=request.storage,
                name=request.study,
                workers=request.workers,
                again=request.again,
                meter=meter,
                device=device,
                watch=tell,
            )
            command = request.again_with(path)
            result = summarise(ended, command=command, meter=meter, watch=tell, folder=path)
        except KeyboardInterrupt:
            raise Stopped(
                f"stopped, everything is saved; go on with: {request.again_with(path)}"
            ) from None
        result.save(path)
        replace_file(path / REPORT, pareto_page(result))
    return result


def meter_of(
    request: SizesRequest, wanted: Wanted, watch: Watch
) -> tuple[readings.Meter, Device | None]:
    """Who measures, and if that is not this machine, which one it is."""
    if request.measure_on == "here":
        return measure_any, None
    meter = RemoteMeter(request.storage, request.study, watch.notice)
    return meter, meter.device(wanted.step.threads) if wanted.clocked else None


def make_room(path: Path) -> None:
    """A new folder, an empty one, or one that holds a search of this kind."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        inside = {entry.name for entry in path.iterdir() if not entry.name.startswith(".")}
    except OSError as error:
        raise FolderError(f"cannot make the run folder {str(path)!r}: {error.strerror}") from None
    if inside and not inside & OURS:
        raise FolderError(
            f"{str(path)!r} is not empty and holds no search for sizes; choose another --run"
        )


def about(wanted: Wanted, path: Path) -> str:
    space, plan, step = wanted.space, wanted.plan, wanted.step
    sentence = ""
    if step.source:
        how = f"{step.beam} beams" if step.beam > 1 else "greedy"
        sentence = (
            f" of a whole text of {step.tgt_len} tokens from {step.source}, {how}, each model "
            "measured"
        )
    return (
        f"{space.title or space.name}: {space.size:.1e} architectures like {space.recipe}, "
        f"{plan.slots:,} candidates in {plan.iterations} iterations, "
        f"{' against '.join(wanted.objectives)}{sentence}, quality by {wanted.grading.proxy}, "
        f"run {path}"
    )
