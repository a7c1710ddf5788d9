"""How much attention does a recurrence need? Figure 3 of SRU++, in pocket size, on this machine.

    python benchmarks/recurrence_text.py --folder FOLDER --enwik8 FILE [--jobs 2] [--search]
    python benchmarks/recurrence_text.py --folder FOLDER --write

The first measures and trains whatever is missing, with `--search` searches too (it may be
stopped and started again); the second writes docs/experiments/recurrence.md and its picture
from the results.

All models have as many parameters and get as many *seconds*: how long an update takes is
measured once, side by side, and each model is trained for the updates that fit. So a busy
machine delays the experiment and does not change it. Models that get more or fewer updates
than the first in that time are trained once more, with as many.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from attention_count import (
    LOST,
    SCORE,
    SEEDS,
    WARMUP,
    call,
    do_all,
    noted,
    read_references,
    reference_lines,
    score,
    spread,
    spread_of,
    test_bits,
    valid_bits,
)
from inference import table
from learns import into_document
from search import Updates

from parformer.costs import cost
from parformer.measure import measure_latency
from parformer.measure.device import describe_device
from parformer.recipe import Recipe, read_recipe
from parformer.train.allocator import keep_memory
from parformer.train.distributed import Workers
from parformer.train.session import Session

DOCUMENT = Path(__file__).parents[1] / "docs" / "experiments" / "recurrence.md"
SECONDS = 120.0
"""What each model is trained for, at its own measured pace."""
SWEEP = 0.4
"""The share of it that each learning rate is tried for."""
RATES = (0.5, 1.0, 2.0)
"""Learning rates that are tried, of the preset's."""
LOOKS = 12
"""Validations along the way."""
PARAMETERS = 1_208_000
"""What all models have, within one percent."""
SETTINGS: dict[str, Any] = {
    "model.tgt_len": 128,
    "model.mem_len": 128,
    "train.batch": 16,
    "train.precision": "fp32",
    "train.compile": "off",
    "train.kernels": "native",
    "train.threads": 1,
    "train.evaluate_tokens": 32_768,
    "train.final_tokens": 1024,
}
SEARCH: dict[str, Any] = {"train.steps": 500, "model.d_attention": 128}
"""As wide inside as outside, a recurrence has 66 thousand weights to attention's 82."""
CHOICES = "rsfi"


@dataclass(frozen=True, slots=True)
class Contestant:
    """A model of the comparison."""

    preset: str
    pattern: str
    words: str
    sizes: dict[str, int] = field(default_factory=dict)

    def recipe(self) -> Recipe:
        return read_recipe(self.preset, self.changes())

    def changes(self) -> dict[str, Any]:
        sizes = {f"model.{name}": value for name, value in self.sizes.items()}
        return {**SETTINGS, **sizes, "model.pattern": self.pattern}


def recurrent(pattern: str, words: str, width: int, inside: int) -> Contestant:
    return Contestant("srupp-pocket", pattern, words, {"d_model": width, "d_attention": inside})


FIRST = "transformer-xl"
CONTESTANTS = {
    FIRST: Contestant("pocket", "(sf)x6", "Transformer-XL, interleaved", {"d_inner": 440}),
    "every-2nd": recurrent("(ra)x5", "SRU++, every 2nd", 304, 80),
    "every-5th": recurrent("(rrrra)x2", "SRU++, every 5th", 312, 80),
    "last": recurrent("(r)x9 a", "SRU++, only the last", 320, 80),
    "none": recurrent("(r)x10", "SRU, no attention", 320, 80),
    "every": recurrent("(a)x10", "SRU++, every layer", 304, 76),
    "par": Contestant("par-pocket", "(sfff)x2 (f)x4", "PAR's rule", {"d_inner": 392}),
}
SWEPT = {"transformer-xl": FIRST, "sru": "every-2nd"}
"""The model of each family that tries the learning rates."""
REPEATED = (FIRST, "every-5th", "none", "par")
"""What is trained with three seeds; the rest with one."""
SAME = 0.01
"""Updates that differ by a smaller share are as many."""
VALID = "valid.json"
FOUND = "found"


def measure_pace(root: Path, contestants: dict[str, Contestant]) -> dict[str, float]:
    """Seconds per update, in turns; who comes later is measured beside the first model."""
    file = root / "pace.json"
    known: dict[str, float] = json.loads(file.read_text()) if file.is_file() else {}
    if missing := [name for name in contestants if name not in known]:
        torch.set_num_threads(1)
        keep_memory()
        tokens = np.random.default_rng(0).integers(0, 256, 4_000_000).astype(np.uint8)
        work = {
            name: Updates(Session(contestants[name].recipe(), tokens, workers=Workers()), count=2)
            for name in {FIRST: None, **dict.fromkeys(missing)}
        }
        result = measure_latency(work, rounds=15, warmup=2, what="2 updates")
        base = known.get(FIRST, result[FIRST].median / 2)
        known |= {name: base * result.ratio(name, FIRST) for name in missing if name != FIRST}
        known[FIRST] = base
        file.write_text(json.dumps(known, indent=1), "utf-8")
    return known


@dataclass(frozen=True, slots=True)
class Job:
    """One training, and where it is kept."""

    path: Path
    model: Contestant
    steps: int
    rate: float
    seed: int = 0
    looks: int = LOOKS


def train_one(corpus: str, job: Job) -> None:
    """Train one model; what is done is done."""
    if (job.path / "result.json").is_file():
        return
    changes = {
        **job.model.changes(),
        "train.learning_rate": job.rate,
        "train.warmup": round(WARMUP * job.steps),
        "train.evaluate_every": -(-job.steps // job.looks),
    }
    words = ["train", job.model.preset, "--corpus", corpus, "--run", str(job.path), "--json"]
    words += ["--steps", str(job.steps), "--seed", str(job.seed), "--no-beside"]
    for name, value in changes.items():
        words += ["--set", f"{name}={value}"]
    call(words)
    print(f"{job.path.name}: {valid_bits(job.path):.3f} bits in validation", flush=True)


def train_and_score(corpus: str, job: Job) -> None:
    """A whole training, then the whole test split; the first has the references beside it."""
    train_one(corpus, job)
    first = job.path.name == f"{FIRST}-0"
    score(job.path, beside=first)
    if first and not (job.path / VALID).is_file():
        words = ["evaluate", str(job.path), "--batch", "16", "--split", "valid", "--json"]
        (job.path / VALID).write_text(call(words), "utf-8")


def trials(root: Path, pace: dict[str, float], seconds: float) -> Iterator[tuple[str, Job]]:
    """Short trainings at several rates, with their family."""
    for family, name in SWEPT.items():
        model = CONTESTANTS[name]
        for factor in RATES:
            rate = factor * model.recipe().train.learning_rate
            path = root / f"rate-{family}-{rate:g}"
            yield family, Job(path, model, round(SWEEP * seconds / pace[name]), rate, looks=1)


def tried(root: Path, pace: dict[str, float], seconds: float) -> dict[str, dict[float, float]]:
    """Validation bits of every learning rate, by family."""
    bits: dict[str, dict[float, float]] = {}
    for family, job in trials(root, pace, seconds):
        bits.setdefault(family, {})[job.rate] = valid_bits(job.path)
    return bits


def trainings(
    root: Path, models: dict[str, Contestant], pace: dict[str, float], seconds: float
) -> Iterator[Job]:
    """Every training of the comparison, seed by seed, then those of as many updates."""
    bits = tried(root, pace, seconds)
    rates = {family: min(own, key=lambda rate: own[rate]) for family, own in bits.items()}
    steps = {name: round(seconds / pace[name]) for name in models}
    for seed in range(SEEDS):
        for name, model in models.items():
            if seed == 0 or name in REPEATED:
                rate = rates[model.recipe().model.family]
                yield Job(root / f"{name}-{seed}", model, steps[name], rate, seed)
    first = round(seconds / pace[FIRST])
    for name, model in models.items():
        if abs(steps[name] / first - 1) > SAME:
            rate = rates[model.recipe().model.family]
            yield Job(root / f"{name}-updates", model, first, rate)


def search(root: Path, corpus: str) -> dict[str, Any]:
    """One differentiable search; where it is done, what it found."""
    path = root / "search"
    if not (path / "search.json").is_file():
        words = ["search", "differentiable", "--corpus", corpus, "--choices", CHOICES]
        words += ["--run", str(path), "--json"]
        own = {name: value for name, value in SETTINGS.items() if not name.startswith("model.")}
        own.pop("train.final_tokens")
        for name, value in {**own, **SEARCH}.items():
            words += ["--set", f"{name}={value}"]
        call(words)
    return dict(json.loads((path / "search.json").read_text()))


def found_model(pattern: str) -> Contestant:
    """The found pattern with the inner width that makes it as large as the others."""
    models = [
        Contestant("pocket", pattern, "found by the search", {"d_inner": inner, "d_attention": 128})
        for inner in range(64, 2048, 8)
    ]
    return min(models, key=lambda m: abs(cost(m.recipe().model).parameters - PARAMETERS))


def run(root: Path, corpus: str, seconds: float, at_a_time: int, *, searched: bool) -> None:
    """Everything that is missing."""
    root.mkdir(parents=True, exist_ok=True)
    pace = measure_pace(root, CONTESTANTS)
    tries = (job for _, job in trials(root, pace, seconds))
    do_all((partial(train_one, corpus, job) for job in tries), at_a_time)
    jobs = trainings(root, CONTESTANTS, pace, seconds)
    do_all((partial(train_and_score, corpus, job) for job in jobs), at_a_time)
    if searched:
        models = {FOUND: found_model(search(root, corpus)["pattern"])}
        pace = measure_pace(root, {**CONTESTANTS, **models})
        jobs = trainings(root, models, pace, seconds)
        do_all((partial(train_and_score, corpus, job) for job in jobs), at_a_time)


# The document


@dataclass(frozen=True, slots=True)
class Trained:
    """A model of the comparison when all is done."""

    name: str
    model: Contestant
    pace: float
    updates: int
    curve: list[tuple[float, float]]
    """Seconds and bits per byte, from validation to validation."""
    tests: list[float]
    """Test bits of every seed."""
    equal: float | None
    """Those with as many updates as the first model, where these are others."""


def read_trained(root: Path) -> list[Trained]:
    pace = json.loads((root / "pace.json").read_text())
    models = dict(CONTESTANTS)
    if (root / f"{FOUND}-0" / SCORE).is_file():
        pattern = json.loads((root / "search" / "search.json").read_text())["pattern"]
        models[FOUND] = found_model(pattern)
    found = []
    for name, model in models.items():
        rows = map(json.loads, (root / f"{name}-0" / "metrics.jsonl").read_text().splitlines())
        losses = {row["step"]: row["valid_loss"] for row in rows if "valid_loss" in row}
        curve = [(step * pace[name], loss / math.log(2)) for step, loss in losses.items()]
        paths = [root / f"{name}-{seed}" for seed in range(SEEDS)]
        tests = [test_bits(path) for path in paths if (path / SCORE).is_file()]
        other = root / f"{name}-updates"
        equal = test_bits(other) if (other / SCORE).is_file() else None
        found.append(Trained(name, model, pace[name], max(losses), curve, tests, equal))
    return found


def models_table(
    trained: list[Trained], known: dict[str, float], valid: dict[str, float]
) -> list[str]:
    """One row per model, the best first; then what counting reaches."""

    def told(bits: float) -> str:
        return f"{bits:.3f} {LOST}" if bits >= known["bigram"] else f"{bits:.3f}"

    rows = []
    for one in sorted(trained, key=lambda one: one.tests[0]):
        config = one.model.recipe().model
        rows.append(
            [
                one.model.words,
                f"`{config.pattern}`",
                f"{cost(config).parameters:,}",
                f"{1000 * one.pace:.0f}",
                f"{one.updates:,}",
                f"{one.curve[-1][1]:.3f}",
                told(one.tests[0]),
                spread_of(one.tests),
                told(one.tests[0] if one.equal is None else one.equal),
            ]
        )
    for (name, bits), own in zip(known.items(), valid.values(), strict=True):
        rows.append([f"*{name}*", *[""] * 4, f"{own:.3f}", f"{bits:.3f}", "", ""])
    first = next(one for one in trained if one.name == FIRST)
    heads = ["", "pattern", "parameters", "ms per update", "updates", "valid bits", "test bits"]
    heads += ["three seeds", f"after {first.updates:,} updates"]
    return noted(table(heads, rows))


def rates_table(root: Path, seconds: float) -> list[str]:
    bits = tried(root, json.loads((root / "pace.json").read_text()), seconds)
    rows = []
    for family, own in bits.items():
        best = min(own.values())
        cells = [
            f"{rate:g}: **{value:.3f}**" if value == best else f"{rate:g}: {value:.3f}"
            for rate, value in own.items()
        ]
        rows.append([f"`{CONTESTANTS[SWEPT[family]].pattern}`", *cells])
    return table(["", *(f"{factor:g} × the preset's" for factor in RATES)], rows)


def search_table(found: dict[str, Any]) -> list[str]:
    """How likely every choice is in every layer, with the pick in bold."""
    rows = []
    for layer, shares in enumerate(found["probabilities"]):
        cells = [f"{value:.2f}" for value in shares]
        pick = found["picks"][layer]
        cells[pick] = f"**{cells[pick]}**"
        rows.append([f"{layer + 1}", *cells])
    return table(["layer", *(f"`{choice}`" for choice in found["choices"])], rows)


WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 800, 460, 56, 244, 44, 56
COLOURS = {
    FIRST: "#c0392b",
    "par": "#d97b16",
    "every": "#1b3a8c",
    "every-2nd": "#2f6fd0",
    "every-5th": "#12877a",
    "last": "#3d9140",
    "none": "#6b7280",
    FOUND: "#8e44ad",
}


def picture(trained: list[Trained], known: dict[str, float], whole: float) -> str:
    """Validation bits against training time, as SVG; every line has its name at its end."""
    frequencies, *others = known.values()
    ends = [one.curve[-1][1] for one in trained]
    low = math.floor(5 * min(*ends, *others)) / 5
    high = math.ceil(5 * max(*ends, *others)) / 5

    def x(seconds: float) -> float:
        return LEFT + seconds / whole * (WIDTH - LEFT - RIGHT)

    def y(bits: float) -> float:
        return TOP + (high - bits) / (high - low) * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="13" fill="#334">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        f'<text x="{LEFT}" y="22" font-size="15" fill="#112">'
        "Validation bits per byte against training time, enwik8, 1.2 M parameters each</text>",
        f'<text x="{x(whole / 2):.0f}" y="{HEIGHT - 10}" text-anchor="middle">'
        "seconds of training, at each model's pace on one quiet core</text>",
        f'<text x="{x(whole):.0f}" y="38" text-anchor="end" font-size="11">'
        f"letter frequencies: {frequencies:.2f}, off the chart</text>",
    ]
    for tick in range(round((high - low) * 5) + 1):
        bits = high - tick / 5
        parts.append(
            f'<line x1="{LEFT}" x2="{x(whole):.1f}" y1="{y(bits):.1f}" y2="{y(bits):.1f}" '
            f'stroke="#dde"/><text x="{LEFT - 8}" y="{y(bits) + 4:.1f}" text-anchor="end">'
            f"{bits:.1f}</text>"
        )
    lines = list(known.items())[1:]
    parts += reference_lines(lines, y, (LEFT + 96, x(whole)), LEFT + 6, HEIGHT - BOTTOM)
    for seconds in (round(whole * sixth / 6) for sixth in range(7)):
        across = f'x="{x(seconds):.1f}" y="{HEIGHT - 32}"'
        parts.append(f'<text {across} text-anchor="middle">{seconds}</text>')
    ordered = sorted(trained, key=lambda one: -one.curve[-1][1])
    levels = spread([y(one.curve[-1][1]) for one in ordered], HEIGHT - BOTTOM)
    for one, level in zip(ordered, levels, strict=True):
        colour, (end, bits) = COLOURS[one.name], one.curve[-1]
        shown = [point for point in one.curve if point[1] <= high]
        path = " ".join(f"{x(seconds):.1f},{y(value):.1f}" for seconds, value in shown)
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
            f'<line x1="{x(end) + 2:.1f}" y1="{y(bits):.1f}" x2="{x(whole) + 18:.1f}" '
            f'y2="{level:.1f}" stroke="{colour}" stroke-width="0.8"/>'
            f'<text x="{x(whole) + 22:.1f}" y="{level + 4:.1f}" fill="{colour}">'
            f"{bits:.2f} {one.model.words}</text>"
        )
    return "\n".join([*parts, "</svg>", ""])


def write(root: Path, seconds: float) -> None:
    """Put the tables between the document's marks, and the picture beside it."""
    trained = read_trained(root)
    first = root / f"{FIRST}-0"
    known, valid = read_references(first), read_references(first, VALID)
    device = describe_device(1)
    receipt = f"{device.cpu}, one thread, torch {device.torch}, {date.today()}."
    sections = {
        "models": [*models_table(trained, known, valid), "", receipt],
        "rates": rates_table(root, seconds),
    }
    if (file := root / "search" / "search.json").is_file():
        sections["search"] = search_table(json.loads(file.read_text()))
    for name, lines in sections.items():
        into_document(DOCUMENT, name, "\n".join(lines))
    DOCUMENT.with_suffix(".svg").write_text(picture(trained, valid, seconds), "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="where the runs are kept")
    parser.add_argument("--enwik8", help="a file with the first bytes of enwik8")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="per model (default 120)")
    parser.add_argument("--jobs", type=int, default=2, help="trainings at a time (default 2)")
    parser.add_argument("--search", action="store_true", help="search for a pattern, and train it")
    parser.add_argument("--write", action="store_true", help="write the document")
    arguments = parser.parse_args()
    if arguments.write:
        write(arguments.folder, arguments.seconds)
    elif arguments.enwik8:
        given = (arguments.folder, arguments.enwik8, arguments.seconds, arguments.jobs)
        run(*given, searched=arguments.search)
    else:
        parser.error("--enwik8 is missing: the file to train on")


if __name__ == "__main__":
    main()
