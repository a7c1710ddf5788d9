"""What was planned, and what was measured on the way? What has a reader to be warned of?"""

from __future__ import annotations

from collections.abc import Sequence
from shlex import quote
from statistics import median

from parformer.errors import FolderError
from parformer.fitting.phases import Profiled, TextFacts
from parformer.fitting.placements import SEARCH
from parformer.fitting.result import DeviceFacts, ModelFacts, PhaseFacts, ProfileFacts, StepFacts
from parformer.fitting.running import Running
from parformer.measure.device import describe_device
from parformer.search.trials.result import TrialsResult
from parformer.train.run import CONFIG

CALLED = {"onnx": "onnxruntime", "llama.cpp": "llama.cpp"}
"""Runtimes in words."""
REPEATED = 0.02
"""The share of examples that may stand in train too before it is said."""


def about_step(fit: Running) -> StepFacts:
    base = fit.baseline.recipe.model
    shape, words = fit.step.shape(base), fit.kind.step_words(fit.step, base)
    if fit.request.runtime != "torch":
        words += f", in {CALLED[fit.request.runtime]}"
    lengths = {"tgt_len": shape.tgt_len, "mem_len": shape.mem_len}
    return StepFacts.from_dict({**fit.step.to_dict(), **lengths, "words": words})


def about_phases(fit: Running) -> list[PhaseFacts]:
    return [
        PhaseFacts(
            name=part.name,
            title=part.title,
            planned=part.planned,
            note=part.note,
            seconds=fit.progress.seconds(part.name),
            left_out=fit.progress.left_out(part.name),
        )
        for part in fit.plan
    ]


def searched(fit: Running) -> TrialsResult | None:
    """What the search for placements found."""
    place = fit.path / SEARCH
    if not (place / TrialsResult.FILE).is_file():
        return None
    try:
        return TrialsResult.load(place)
    except FolderError as error:  # only a picture depends on it
        fit.watch.notice(f"The report says nothing of the search: {error}")
        return None


def about_profile(fit: Running, rows: Sequence[ModelFacts]) -> ProfileFacts | None:
    found = fit.progress.found(Profiled)
    if found is None or (found.profile is None and found.line is None):
        return None
    seconds = fit.progress.seconds(Profiled.PHASE)
    return ProfileFacts(seconds, found.median_error, found.p90_error, off_by(rows))


def off_by(rows: Sequence[ModelFacts]) -> float | None:
    """How far the predicted latencies of models were off, in the median; None where none was."""
    off = [
        abs(one.predicted / one.latency.seconds - 1)
        for one in rows
        if one.predicted is not None and one.latency is not None
    ]
    return median(off) if off else None


def about_device(threads: int) -> DeviceFacts:
    here = describe_device(threads)
    return DeviceFacts(here.cpu, here.cores, here.threads, here.torch, here.ram_bytes)


def repeats(fit: Running) -> list[str]:
    path = quote(str(fit.path))
    return [
        fit.kind.asking(str(fit.path), fit.baseline.recipe, fit.prepared)[0],
        f"parformer evaluate {path}",
        f"parformer train {quote(str(fit.path / CONFIG))} --run again",
    ]


def warnings_of(fit: Running, chosen: ModelFacts | None, text: TextFacts | None) -> list[str]:
    said = []
    if chosen is not None and chosen.broken:
        said.append(
            "The model that is handed over breaks a limit by the last measurement; with more time, "
            "or a somewhat lower --limit, the search keeps clear of it."
        )
    for split, share in (text.repeated if text else {}).items():
        if share > REPEATED:
            said.append(
                f"{share:.1%} of the {split} examples stand in the training data too: whoever "
                "learns them by heart looks better here than on new ones."
            )
    for split, one in (text.overlap if text else {}).items():
        if one.crowded:
            said.append(
                f"{one.shared:.1%} of the {split} text's 50-byte windows stand in the training "
                "text word for word: whoever copies looks better here than on new text "
                f"(parformer data {quote(fit.request.corpus)})."
            )
    return said
