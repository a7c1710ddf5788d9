"""From a trained model to a smaller one: the whole job.

Step by step; each one's model is measured beside all before it, and goes or stays by what the
receipt says. Every stair has a folder of its own, so a job that was killed finds what it had done.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

from parformer import __version__
from parformer.compress.planning import Plan, Planned
from parformer.compress.receipt import Bench, bytes_of, weigh
from parformer.compress.refusing import refuse_early
from parformer.compress.replacing.result import Replacement
from parformer.compress.request import CompressRequest
from parformer.compress.result import ORIGINAL, CompressResult, Stair
from parformer.compress.standing import Standing
from parformer.compress.steps import STEPS, finite, trains
from parformer.compress.trying import planned
from parformer.compress.work import Work
from parformer.data.foreign import read_folder_tokenizer
from parformer.data.tokenizers import Tokenizer, load_tokenizer
from parformer.data.tokens import Prepared
from parformer.errors import ConfigError, ParformerError
from parformer.evaluate.request import find_tokens
from parformer.events import Listener, Watch, nobody
from parformer.generate.writing import Sampling, generate_text
from parformer.hub import foreign_config, load_foreign
from parformer.measure.device import describe_device
from parformer.model import Model, load
from parformer.recipe import Recipe
from parformer.report.compressed import compressed_page
from parformer.search.machine import Machine
from parformer.store.cache import digest
from parformer.store.files import read_json, replace_file, sha256
from parformer.store.folder import MANIFEST
from parformer.tasks import find_task
from parformer.tasks.preparing import kind_of, read_labelled
from parformer.train.run import METRICS, MODEL, Opened, make_folder, only_one, open_run, start_run
from parformer.verbs import requested

NOTE, REPORT = "step.json", "report.html"
TRAINING_SECONDS = 300.0
"""For all training, where nobody says."""
PROMPT, WRITTEN = 24, 120
"""Tokens of text that models go on from, and that they write."""
SOBER = Sampling(temperature=0.7)


def compress(
    request: CompressRequest | None = None, *, watch: Listener = nobody, **given: Any
) -> CompressResult:
    """Make a model smaller and faster, step by step, with a receipt for each."""
    return compress_model(requested(CompressRequest, request, given), Watch(watch))


def compress_model(request: CompressRequest, watch: Watch) -> CompressResult:
    """All steps that a request names, or that its limits ask for."""
    began = time.monotonic()
    opened, model = open_model(Path(request.model))
    path = request.folder
    if path.resolve() == Path(request.model).resolve():
        raise ConfigError(f"the run {str(path)!r} is what is compressed; choose another --run")
    prepared = texts_of(request, opened, watch)
    recipe = recipe_of(opened, model, prepared, request.corpus)
    bench = Bench(recipe, prepared, request.tokens, request.rounds, request.threads)
    refuse_early(request, model, prepared.tokenizer)
    make_folder(path)
    if (path / METRICS).exists():
        raise ConfigError(f"{str(path)!r} holds a training; choose another --run")
    with only_one(path):
        start_run(path, recipe, prepared.tokenizer)
        opened = in_our_form(opened, model, path)
        standing = begin(model, opened, bench, watch)

        def read(tokenizer: Tokenizer) -> Prepared:
            return texts_of(request, replace(opened, tokenizer=tokenizer), watch)

        plan, steps = steps_for(request, standing, path, watch)
        trainings = max(1, sum(trains(step.name, request) for step in steps))
        names = tuple(step.name for step in steps)
        for number, step in enumerate(steps, start=1):
            work = replace(
                work_for(request, standing, path / "steps" / f"{number}-{step.name}", watch),
                seconds=(request.time or TRAINING_SECONDS) / trainings,
                left=step.left,
                grown=standing.grown,
            )
            take(step.name, work, standing, read, names[number:])
        prompt = write_samples(standing, request.seed)
        result = finish(request, bench, standing, prompt, time.monotonic() - began)
        result = replace(result, plan=plan)
        keep(path, result, standing)
    return replace(result, run=path)


def open_model(path: Path) -> tuple[Opened, Model]:
    """A trained model: a run's, a model folder's, or one of Hugging Face's."""
    if (values := foreign_config(path)) is None:
        opened = open_run(path)
        return opened, load(opened.folder)
    return Opened(path, None, "", read_folder_tokenizer(path)), load_foreign(path, values)


def in_our_form(opened: Opened, model: Model, run: Path) -> Opened:
    """The same in a model folder of ours, which teachers are read from."""
    if foreign_config(opened.folder) is None:
        return opened
    folder = run / "steps" / ORIGINAL
    if not folder.is_dir():
        model.save(folder, opened.need_tokenizer().to_json())
    return replace(opened, folder=folder)


def texts_of(request: CompressRequest, opened: Opened, watch: Watch) -> Prepared:
    """What the model reads: the run's own text, pairs or labelled examples, or what was named."""
    known = opened.recipe
    if known is None or not kind_of(known.train.task):
        return find_tokens(opened, request.corpus, request.local, watch.preparing)
    if request.corpus:
        known = known.replaced({"data.corpus": request.corpus})
    return read_labelled(known, opened.need_tokenizer(), watch.preparing)[1]


def recipe_of(opened: Opened, model: Model, prepared: Prepared, corpus: str) -> Recipe:
    """What the model was trained by; for one that belongs to no run, what it looks like."""
    known = opened.recipe or Recipe(model=model.config)
    about = {"data.identity": prepared.identity}
    if opened.recipe is None or corpus:
        about["data.corpus"] = corpus or prepared.corpus
    return replace(known, model=model.config, search=None).replaced(about)


def steps_for(
    request: CompressRequest, standing: Standing, path: Path, watch: Watch
) -> tuple[Plan | None, tuple[Planned, ...]]:
    """The steps that were named; for limits alone those that trials speak for, and why."""
    if request.steps or not request.limits:
        return None, tuple(Planned(name=name) for name in request.steps or ("quantize",))
    work = work_for(request, standing, path / "steps" / "plan", watch)
    source, text = identity(standing.folders[ORIGINAL]), standing.bench.prepared.identity
    plan = planned(standing.models[ORIGINAL], work, path, digest([source, text, wishes(request)]))
    watch.notice(plan.words())
    return plan, plan.steps


def work_for(request: CompressRequest, standing: Standing, folder: Path, watch: Watch) -> Work:
    """What a step with such a folder may ask for."""
    first = standing.stairs[0].figures
    return Work(
        request=request,
        targets=request.targets,
        bench=standing.bench,
        size=first.size,
        latency=first.token,
        original=standing.teacher,
        folder=folder,
        watch=watch,
    )


def begin(model: Model, opened: Opened, bench: Bench, watch: Watch) -> Standing:
    size = bytes_of(opened.folder)
    figures = weigh({ORIGINAL: model}, {ORIGINAL: size}, bench, watch.preparing)[ORIGINAL]
    stair = Stair(name=ORIGINAL, done="as it was trained", figures=figures)
    folder = opened.folder
    return Standing({ORIGINAL: model}, {ORIGINAL: folder}, [stair], bench, folder)


def take(
    name: str,
    work: Work,
    standing: Standing,
    read: Callable[[Tokenizer], Prepared],
    later: tuple[str, ...],
) -> None:
    """One step: done or found done, measured beside all others, and judged."""
    before = standing.foot
    began = time.monotonic()
    made, told = done_before(work.folder, standing.folders[before], work)
    if made is None:
        made, told = STEPS[name](standing.models[before], work)
        if not finite(made):
            raise ParformerError(f"{name} made numbers that are none; try it with other limits")
        write_step(work.folder, made, told, standing.folders[before], work)
        made = load(work.folder / MODEL)
    standing.models = {**standing.models, name: made}
    standing.folders = {**standing.folders, name: work.folder / MODEL}
    sizes = {one: bytes_of(folder) for one, folder in standing.folders.items()}
    bench = work.bench
    if made.config.vocab_size != bench.recipe.model.vocab_size:
        bench = bench.in_tokens(read(tokenizer_of(work)), made.config)
    figures = weigh(standing.models, sizes, bench, work.watch.preparing)
    stairs = [replace(stair, figures=figures[stair.name]) for stair in standing.stairs]
    found = replacement_of(work.folder) if name == "replace" else None
    seconds = time.monotonic() - began
    stair = Stair(name=name, done=told, figures=figures[name], seconds=seconds, replacement=found)
    standing.stairs = [*stairs, stair]
    standing.judge(bench, work.targets, later, work.watch)


def replacement_of(folder: Path) -> Replacement | None:
    """What a step that replaces blocks wrote down."""
    return Replacement.load(folder) if (folder / Replacement.FILE).is_file() else None


def done_before(folder: Path, source: Path, work: Work) -> tuple[Model | None, str]:
    """What a killed job left of this very step."""
    note = folder / NOTE
    if not note.is_file():
        return None, ""
    kept = read_json(note)
    if any(kept.get(name, value) != value for name, value in note_of(source, work).items()):
        return None, ""
    return load(folder / MODEL), str(kept.get("done", ""))


def write_step(folder: Path, model: Model, told: str, source: Path, work: Work) -> None:
    model.save(folder / MODEL, tokenizer_of(work).to_json(), sparse=True)
    replace_file(folder / NOTE, json.dumps({"done": told} | note_of(source, work)) + "\n")


def note_of(source: Path, work: Work) -> dict[str, str]:
    """What a step's outcome is known again by; older versions did not write all of it."""
    text = work.bench.prepared.identity
    asked = wishes(work.request) + ("" if work.left is None else f" left={work.left}")
    return {"source": identity(source), "asked": asked, "text": text}


def tokenizer_of(work: Work) -> Tokenizer:
    """What a step's model reads with: what the step has left behind, or what was there before."""
    return load_tokenizer(work.folder) or work.bench.prepared.tokenizer


def identity(folder: Path) -> str:
    """SHA-256 of a model folder's manifest, which names all its files."""
    return sha256(folder / MANIFEST)


def wishes(request: CompressRequest) -> str:
    """What a step's outcome depends on."""
    asked = replace(request, model=Path(), by="", tokens=1024, rounds=6, threads=None)
    told = repr(replace(asked, run=None, local="", command=""))
    return told.replace(", score='gradient'", "")  # as it was told before there was a choice


def write_samples(standing: Standing, seed: int) -> str:
    """Let every model write on after the same words of validation text, where they write."""
    bench = standing.bench
    if not bench.reads_on:
        return ""
    first = bench.of(standing.models[ORIGINAL]).prepared
    prompt = first.tokenizer.decode(first.splits["valid"].tokens[:PROMPT].tolist())
    for number, stair in enumerate(standing.stairs):
        model = standing.models[stair.name]
        tokenizer = bench.of(model).prepared.tokenizer
        text = generate_text(model, tokenizer, [prompt], WRITTEN, sampling=SOBER, seed=seed)[0]
        standing.stairs[number] = replace(stair, sample=text)
    return prompt


def finish(
    request: CompressRequest, bench: Bench, standing: Standing, prompt: str, seconds: float
) -> CompressResult:
    first, foot = standing.stairs[0].figures, standing.figures(standing.foot)
    targets = request.targets
    size, latency = targets.bytes(first.size), targets.seconds(first.token)
    kept = (
        (size is None or foot.size <= size)
        and (latency is None or foot.token <= latency)
        and (targets.loss is None or foot.loss <= first.loss * (1 + targets.loss))
    )
    return CompressResult(
        source=str(request.model),
        corpus=bench.prepared.corpus,
        tokenizer=bench.prepared.tokenizer.kind,
        task=find_task(bench.recipe).name,
        limits=tuple(request.limits),
        stairs=tuple(standing.stairs),
        kept=kept,
        prompt=prompt,
        seconds=seconds,
        device=Machine.of(describe_device(), request.threads or 0),
        command=request.command or "pf.compress(…)",
        version=__version__,
        date=str(date.today()),
    )


def keep(path: Path, result: CompressResult, standing: Standing) -> None:
    """The run folder: the model at the foot, its recipe, the receipts and their page."""
    model = standing.models[standing.foot]
    bench = standing.bench.of(model)
    tokenizer = bench.prepared.tokenizer
    start_run(path, replace(bench.recipe, model=model.config), tokenizer)
    model.save(path / MODEL, tokenizer.to_json(), sparse=True)
    result.save(path)
    replace_file(path / REPORT, compressed_page(result))
