"""Do the lecture's blocks keep their papers' promises on text, in pocket size?

    python benchmarks/lecture_text.py --folder FOLDER --enwik8 FILE [--jobs 2]
    python benchmarks/lecture_text.py --folder FOLDER --enwik8 FILE --write

The first trains what is missing, on the file and on `python-source`; the second writes
docs/experiments/lecture.md. Every model gets the best of three learning rates, found on the file
in fewer updates, then as many updates as all others, then as many as fit into the time that
interleaved attention takes for its own. A training has one thread, and its time is what the
processor spent on it, so that neighbours do not count.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import torch
from learns import into_document

from parformer.costs import cost
from parformer.data.batches import sample
from parformer.data.corpora import find_corpus
from parformer.data.tokens import prepare
from parformer.evaluate.counting import references_of
from parformer.evaluate.perplexity import evaluate
from parformer.measure.device import describe_device
from parformer.model import build_from
from parformer.recipe import Recipe, read_recipe
from parformer.store.files import Json, cache_folder
from parformer.train.distributed import Workers, whole_weights
from parformer.train.plan import find_kernels, fit_vocabulary
from parformer.train.session import Session

DOCUMENT = Path(__file__).parents[1] / "docs" / "experiments" / "lecture.md"
OWN = "python-source"
STEPS, TRIAL_STEPS = 400, 120
RATES = (6e-3, 12e-3, 24e-3)
SCORED = 65_536
"""Tokens of the test split, or of validation for a trial, that a model is scored on."""
SIZES = {"model.d_model": 128, "model.n_head": 4, "model.max_len": 128, "train.batch": 8}
INNER = 448
"""Inner width of interleaved attention's feed-forwards: 1.1 M parameters."""


@dataclass(frozen=True, slots=True)
class Subject:
    """One model of the comparison."""

    pattern: str
    title: str
    equal: str = "parameters"
    """What of interleaved's it has by the choice of a width: parameters, flops, or nothing."""
    wide: bool = False
    """Whether that width is the stream's, for a block whose weights are shared."""
    bottleneck: int = 0


INTERLEAVED = Subject("(sf)x6", "interleaved attention", equal="")
SUBJECTS = (
    INTERLEAVED,
    Subject("(sfff)x2 (f)x4", "PAR's rule"),
    Subject("(lf)x6", "LSRA, dynamic convolution", equal="flops"),
    Subject("(l[light]f)x6", "LSRA, lightweight convolution", equal="flops"),
    Subject("(y[dense]f)x6", "Synthesizer, dense"),
    Subject("(y[random]f)x6", "Synthesizer, random"),
    Subject("(y[fixed]f)x6", "Synthesizer, fixed"),
    Subject("(y[factored-dense]f)x6", "Synthesizer, factored dense"),
    Subject("(y[factored-random]f)x6", "Synthesizer, factored random"),
    Subject("(y[random+vanilla]f)x6", "Synthesizer, random + vanilla"),
    Subject("(y[dense+vanilla]f)x6", "Synthesizer, dense + vanilla"),
    Subject("{sf}x6", "shared as ALBERT's, as many FLOPs", equal=""),
    Subject("{sf}x6", "shared as ALBERT's, as many parameters", wide=True),
    Subject("<sffff>[feed=shared]x3", "bottleneck as MobileBERT's", bottleneck=64),
)


@dataclass(frozen=True, slots=True)
class Job:
    """One training, and the file of its figures."""

    file: Path
    subject: Subject
    text: str
    rate: float
    steps: int = STEPS
    seed: int = 0
    split: str = "test"


def recipe_of(job: Job) -> Recipe:
    return read_recipe(
        "lite-pocket",
        {
            **sizes_of(job.subject),
            "data.corpus": job.text,
            "train.steps": job.steps,
            "train.warmup": round(0.1 * job.steps),
            "train.learning_rate": job.rate,
            "train.seed": job.seed,
            "train.precision": "bf16",
            "train.compile": "off",
            "train.kernels": find_kernels(Workers()),
        },
    )


def sizes_of(subject: Subject) -> dict[str, object]:
    """The settings of its model, with the width at which it has what interleaved attention has."""
    fixed: dict[str, object] = {**SIZES, "model.pattern": subject.pattern, "model.d_inner": INNER}
    if subject.bottleneck:
        fixed["model.d_bottleneck"] = subject.bottleneck
    if not subject.equal:
        return fixed
    goal = figure(sizes_of(INTERLEAVED), subject.equal)
    tries = [
        {**fixed, "model.d_model": width, "model.d_inner": 7 * width // 2}
        if subject.wide
        else {**fixed, "model.d_inner": width}
        for width in range(32, 1600, 32 if subject.wide else 8)
    ]
    return min(tries, key=lambda settings: abs(figure(settings, subject.equal) - goal))


def figure(settings: dict[str, object], name: str) -> int:
    return int(getattr(cost(read_recipe("lite-pocket", settings).model), name))


def train_one(job: Job) -> str:
    """One training, its loss beside what counting has, and the processor's time."""
    if job.file.is_file():
        return f"{job.file.stem}: there already"
    torch.set_num_threads(1)
    recipe = recipe_of(job)
    data = recipe.data
    prepared = prepare(
        find_corpus(job.text), data.tokenizer, vocab_size=data.vocab_size, cache=cache_folder()
    )
    recipe = fit_vocabulary(recipe, prepared.tokenizer, lambda _: None)
    session = Session(recipe, prepared.splits["train"].tokens, workers=Workers())
    began = time.process_time()
    for step in range(job.steps):
        session.update(step)
    seconds = time.process_time() - began
    model = build_from(recipe.model, whole_weights(session.model))
    tokens = sample(prepared.splits[job.split].tokens, SCORED)
    loss = evaluate(model, tokens, batch=8).loss
    found: Json = {"bits": loss / math.log(2), "seconds": seconds, "steps": job.steps}
    found["rate"] = job.rate
    job.file.write_text(json.dumps(found), "utf-8")
    return f"{job.file.stem}: {found['bits']:.3f} bits, {seconds:.0f} s"


def count(root: Path, text: str) -> None:
    """What plain counting has on the same test tokens."""
    file = root / f"{Path(text).stem}-counted.json"
    if file.is_file():
        return
    prepared = prepare(find_corpus(text), "byte", cache=cache_folder())
    tokens = sample(prepared.splits["test"].tokens, SCORED)
    known = references_of(prepared, {"valid": tokens, "test": tokens}, xz=False)["test"]
    file.write_text(json.dumps(known.to_dict()), "utf-8")


def file_of(root: Path, subject: Subject, text: str, what: str) -> Path:
    place = SUBJECTS.index(subject)
    return root / f"{Path(text).stem}-{place:02d}-{what}.json"


def trials(root: Path, text: str) -> Iterator[Job]:
    for rate in RATES:
        for subject in SUBJECTS:
            file = file_of(root, subject, text, f"rate-{rate:g}")
            yield Job(file, subject, text, rate, TRIAL_STEPS, split="valid")


def best_rate(root: Path, subject: Subject, text: str) -> float:
    """The rate of the lowest loss in the trials of a text."""
    files = {rate: file_of(root, subject, text, f"rate-{rate:g}") for rate in RATES}
    return min(RATES, key=lambda rate: read(files[rate])["bits"])


def equal_updates(root: Path, texts: list[str], seed: int) -> Iterator[Job]:
    for subject in SUBJECTS:
        for text in texts:
            rate = best_rate(root, subject, texts[0])
            yield Job(file_of(root, subject, text, f"{seed}"), subject, text, rate, seed=seed)


def equal_time(root: Path, texts: list[str]) -> Iterator[Job]:
    """As many updates as interleaved attention's time allows."""
    for subject in SUBJECTS[1:]:
        for text in texts:
            base = read(file_of(root, INTERLEAVED, text, "0"))["seconds"]
            own = read(file_of(root, subject, text, "0"))["seconds"]
            rate, steps = best_rate(root, subject, texts[0]), round(STEPS * base / own)
            yield Job(file_of(root, subject, text, "timed"), subject, text, rate, steps)


def read(file: Path) -> Json:
    return dict(json.loads(file.read_text("utf-8")))


def table(root: Path, texts: list[str]) -> str:
    heads = ["model", "pattern", "parameters", "MFLOPs of 128 tokens", "rate"]
    for text in texts:
        heads += [f"{Path(text).stem}", "beside interleaved", "seconds", "in equal time"]
    lines = [f"| {' | '.join(heads)} |", f"|---|---|{'---:|' * (len(heads) - 2)}"]
    for subject in SUBJECTS:
        settings = sizes_of(subject)
        cells = [subject.title, f"`{subject.pattern}`"]
        cells.append(f"{figure(settings, 'parameters'):,}")
        cells.append(f"{figure(settings, 'flops') / 1e6:.0f}")
        cells.append(f"{best_rate(root, subject, texts[0]):g}")
        for text in texts:
            cells += cells_of(root, subject, text)
        lines.append(f"| {' | '.join(cells)} |")
    for text in texts:
        known = read(root / f"{Path(text).stem}-counted.json")
        counted = [f"{name} {known[name] / math.log(2):.3f}" for name in ("unigram", "bigram")]
        counted.append(f"{known['order']}-gram {known['ngram'] / math.log(2):.3f}")
        lines += ["", f"Counted, on {Path(text).stem}: {', '.join(counted)} bits per byte."]
    device = describe_device(1)
    lines += ["", f"{device.cpu}, one thread, bf16, torch {device.torch}, {date.today()}."]
    return "\n".join(lines)


def cells_of(root: Path, subject: Subject, text: str) -> list[str]:
    """Test bits over seeds, the paired difference to interleaved attention, time, equal time."""
    own, base = (seeds_of(root, one, text) for one in (subject, INTERLEAVED))
    if not own:
        return ["", "", "", ""]
    words = f"{mean_bits(own):.3f}" + (f" ({len(own)} seeds)" if len(own) > 1 else "")
    apart = [mine["bits"] / theirs["bits"] - 1 for mine, theirs in zip(own, base, strict=False)]
    beside = "" if subject is INTERLEAVED else " ".join(f"{one:+.1%}" for one in apart)
    timed = file_of(root, subject, text, "timed")
    later = ""
    if timed.is_file():
        later = f"{read(timed)['bits']:.3f} ({read(timed)['steps']:,} updates)"
    return [words, beside.replace("-", "−"), f"{own[0]['seconds']:.0f}", later]


def seeds_of(root: Path, subject: Subject, text: str) -> list[Json]:
    files = [file_of(root, subject, text, f"{seed}") for seed in range(9)]
    return [read(file) for file in files if file.is_file()]


WIDTH, LINE, NAMES = 900, 26, 290


def picture(root: Path, texts: list[str]) -> str:
    """Bits beside interleaved attention's: filled for equal updates, open for equal time."""
    height = 70 + LINE * len(SUBJECTS)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        'font-family="system-ui, sans-serif" font-size="13" fill="#222">',
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
    ]
    room = (WIDTH - NAMES) / len(texts)
    for row, subject in enumerate(SUBJECTS):
        y = 58 + LINE * row
        parts.append(f'<text x="{NAMES - 16}" y="{y + 4}" text-anchor="end">{subject.title}</text>')
    for place, text in enumerate(texts):
        left = NAMES + place * room
        parts += column(root, text, left + 14, left + room - 20, height)
    return "\n".join([*parts, "</svg>", ""])


def column(root: Path, text: str, left: float, right: float, height: int) -> Iterator[str]:
    """One text's axis and dots."""
    base = mean_bits(seeds_of(root, INTERLEAVED, text))
    shown = [
        (row, kind, bits / base - 1)
        for row, subject in enumerate(SUBJECTS)
        for kind, bits in figures_of(root, subject, text)
    ]
    low = min(0, *(value for *_, value in shown)) - 0.02
    high = max(0, *(value for *_, value in shown)) + 0.02

    def x(value: float) -> float:
        return left + (value - low) / (high - low) * (right - left)

    yield f'<text x="{(left + right) / 2:.0f}" y="18" text-anchor="middle">{Path(text).stem}</text>'
    for percent in range(10 * math.ceil(10 * low), 10 * math.floor(10 * high) + 1, 10):
        words = f"{percent:+d}%".replace("-", "−") if percent else "interleaved"
        colour = "#888" if percent == 0 else "#ddd"
        at = x(percent / 100)
        yield f'<path d="M{at:.1f} 44V{height - 12}" stroke="{colour}"/>'
        yield f'<text x="{at:.1f}" y="38" text-anchor="middle" font-size="11">{words}</text>'
    for row, kind, value in shown:
        fill = "#fff" if kind == "timed" else "#1f6fb2"
        yield (
            f'<circle cx="{x(value):.1f}" cy="{58 + LINE * row}" r="5" fill="{fill}" '
            'stroke="#1f6fb2" stroke-width="1.5" fill-opacity="0.8"/>'
        )


def figures_of(root: Path, subject: Subject, text: str) -> Iterator[tuple[str, float]]:
    """Bits of each of its trainings, and of which kind that is."""
    for one in seeds_of(root, subject, text):
        yield "updates", one["bits"]
    timed = file_of(root, subject, text, "timed")
    if timed.is_file():
        yield "timed", read(timed)["bits"]


def mean_bits(found: list[Json]) -> float:
    return statistics.mean(one["bits"] for one in found)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--folder", type=Path, required=True, help="where results are kept")
    parser.add_argument("--enwik8", required=True, help="its first 10 MB, or another text")
    parser.add_argument("--jobs", type=int, default=2, help="trainings at a time (default 2)")
    parser.add_argument("--seeds", type=int, default=2, help="(default 2)")
    parser.add_argument("--write", action="store_true", help="write the document")
    asked = parser.parse_args()
    texts = [asked.enwik8, OWN]
    asked.folder.mkdir(parents=True, exist_ok=True)
    if asked.write:
        into_document(DOCUMENT, "lecture", table(asked.folder, texts))
        DOCUMENT.with_suffix(".svg").write_text(picture(asked.folder, texts), "utf-8")
        return
    for text in texts:
        count(asked.folder, text)
    with ProcessPoolExecutor(asked.jobs) as pool:
        stages = [lambda: trials(asked.folder, texts[0])]
        stages += [lambda: equal_updates(asked.folder, texts, 0)]
        stages += [lambda: equal_time(asked.folder, texts)]
        stages += [
            lambda seed=seed: equal_updates(asked.folder, texts, seed)
            for seed in range(1, asked.seeds)
        ]
        for stage in stages:
            for line in pool.map(train_one, list(stage())):
                print(line, flush=True)


if __name__ == "__main__":
    main()
