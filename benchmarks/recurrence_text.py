"""How much attention does a recurrence need? Figure 3 of SRU++, in pocket size, on this machine.

    python benchmarks/recurrence_text.py --folder FOLDER --enwik8 FILE
    python benchmarks/recurrence_text.py --folder FOLDER --write

The first measures, trains and searches whatever is missing (it may be stopped and started
again); the second writes docs/experiments/recurrence.md and its picture from the results.

All models have as many parameters and get as many *seconds*: how long an update takes is
measured once, side by side, and each model is trained for the updates that fit. So a busy
machine delays the experiment and does not change it.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch
from attention_count import SCORE, call
from inference import table
from search import Updates

from parformer.costs import cost
from parformer.measure import measure_latency
from parformer.measure.device import describe_device
from parformer.recipe import Recipe, read_recipe
from parformer.train.allocator import keep_memory
from parformer.train.distributed import Workers
from parformer.train.session import Session

DOCUMENT = Path(__file__).parents[1] / "docs" / "experiments" / "recurrence.md"
SECONDS = 300.0
"""What each model is trained for, at its own measured pace."""
SWEEP = 0.2
"""The share of it that each learning rate is tried for."""
RATES = (0.5, 1.0, 2.0)
"""Learning rates that are tried, of the preset's."""
WARMUP = 0.1
"""The share of the updates over which the rate rises."""
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


def train_one(
    path: Path,
    corpus: str,
    model: Contestant,
    *,
    seconds: float,
    pace: float,
    rate: float,
    looks: int = LOOKS,
) -> None:
    """Train one model for the updates that fit into the time; what is done is done."""
    if (path / "result.json").is_file():
        return
    steps = round(seconds / pace)
    changes = {
        **model.changes(),
        "train.learning_rate": rate,
        "train.warmup": round(WARMUP * steps),
        "train.evaluate_every": -(-steps // looks),
    }
    words = ["train", model.preset, "--corpus", corpus, "--run", str(path), "--json"]
    words += ["--steps", str(steps)]
    for name, value in changes.items():
        words += ["--set", f"{name}={value}"]
    call(words)
    print(f"{path.name}: {valid_bits(path):.3f} bits in validation", flush=True)


def valid_bits(path: Path) -> float:
    """Bits per byte on the sample of the valid split, when training was done."""
    result = json.loads((path / "result.json").read_text())
    return float(result["valid"]["bits_per_character"])


def sweep(root: Path, corpus: str, pace: dict[str, float]) -> dict[str, dict[float, float]]:
    """Validation bits of every learning rate, by family."""
    bits: dict[str, dict[float, float]] = {}
    for family, name in SWEPT.items():
        model = CONTESTANTS[name]
        for factor in RATES:
            rate = factor * model.recipe().train.learning_rate
            path = root / f"rate-{family}-{rate:g}"
            given = {"seconds": SWEEP * SECONDS, "pace": pace[name], "rate": rate}
            train_one(path, corpus, model, **given, looks=1)
            bits.setdefault(family, {})[rate] = valid_bits(path)
    return bits


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


def run(root: Path, corpus: str) -> None:
    """Everything that is missing."""
    root.mkdir(parents=True, exist_ok=True)
    pace = measure_pace(root, CONTESTANTS)
    rates = sweep(root, corpus, pace)
    for name, model in CONTESTANTS.items():
        train_and_score(root, corpus, name, model, pace[name], rates)
    model = found_model(search(root, corpus)["pattern"])
    pace = measure_pace(root, {**CONTESTANTS, FOUND: model})
    train_and_score(root, corpus, FOUND, model, pace[FOUND], rates)


def train_and_score(
    root: Path,
    corpus: str,
    name: str,
    model: Contestant,
    pace: float,
    rates: dict[str, dict[float, float]],
) -> None:
    """A whole training at its family's best rate, then the whole test split."""
    path, bits = root / name, rates[model.recipe().model.family]
    best = min(bits, key=lambda rate: bits[rate])
    train_one(path, corpus, model, seconds=SECONDS, pace=pace, rate=best)
    if not (path / SCORE).is_file():
        (path / SCORE).write_text(call(["evaluate", str(path), "--json"]), "utf-8")


# The document


@dataclass(frozen=True, slots=True)
class Trained:
    """A model of the comparison when all is done."""

    name: str
    model: Contestant
    pace: float
    curve: list[tuple[float, float]]
    """Seconds and bits per byte, from validation to validation."""
    test: float

    @property
    def updates(self) -> int:
        return round(SECONDS / self.pace)


def read_trained(root: Path) -> list[Trained]:
    pace = json.loads((root / "pace.json").read_text())
    models = dict(CONTESTANTS)
    if (root / FOUND / SCORE).is_file():
        pattern = json.loads((root / "search" / "search.json").read_text())["pattern"]
        models[FOUND] = found_model(pattern)
    found = []
    for name, model in models.items():
        rows = map(json.loads, (root / name / "metrics.jsonl").read_text().splitlines())
        losses = {row["step"]: row["valid_loss"] for row in rows if "valid_loss" in row}
        curve = [(step * pace[name], loss / math.log(2)) for step, loss in losses.items()]
        test = json.loads((root / name / SCORE).read_text())["bits_per_character"]
        found.append(Trained(name, model, pace[name], curve, test))
    return found


def models_table(trained: list[Trained]) -> list[str]:
    """One row per model, the best first."""
    rows = []
    for one in sorted(trained, key=lambda one: one.test):
        config = one.model.recipe().model
        rows.append(
            [
                one.model.words,
                f"`{config.pattern}`",
                f"{cost(config).parameters:,}",
                f"{1000 * one.pace:.0f}",
                f"{one.updates:,}",
                f"{one.curve[-1][1]:.3f}",
                f"{one.test:.3f}",
            ]
        )
    heads = ["", "pattern", "parameters", "ms per update", "updates", "valid bits", "test bits"]
    return table(heads, rows)


def rates_table(root: Path) -> list[str]:
    bits = sweep(root, "", json.loads((root / "pace.json").read_text()))
    rows = []
    for family, own in bits.items():
        cells = [f"{rate:g}: {value:.3f}" for rate, value in own.items()]
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


def picture(trained: list[Trained]) -> str:
    """Validation bits against training time, as SVG; every line has its name at its end."""
    low = math.floor(5 * min(bits for one in trained for _, bits in one.curve)) / 5
    high = 4.0

    def x(seconds: float) -> float:
        return LEFT + seconds / SECONDS * (WIDTH - LEFT - RIGHT)

    def y(bits: float) -> float:
        return TOP + (high - bits) / (high - low) * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="13" fill="#334">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        f'<text x="{LEFT}" y="22" font-size="15" fill="#112">'
        "Validation bits per byte against training time, enwik8, 1.2 M parameters each</text>",
        f'<text x="{x(SECONDS / 2):.0f}" y="{HEIGHT - 10}" text-anchor="middle">'
        "seconds of training, at each model's pace on one quiet core</text>",
    ]
    for tick in range(round((high - low) * 5) + 1):
        bits = high - tick / 5
        parts.append(
            f'<line x1="{LEFT}" x2="{x(SECONDS):.1f}" y1="{y(bits):.1f}" y2="{y(bits):.1f}" '
            f'stroke="#dde"/><text x="{LEFT - 8}" y="{y(bits) + 4:.1f}" text-anchor="end">'
            f"{bits:.1f}</text>"
        )
    for seconds in range(0, round(SECONDS) + 1, 60):
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
            f'<line x1="{x(end) + 2:.1f}" y1="{y(bits):.1f}" x2="{x(SECONDS) + 18:.1f}" '
            f'y2="{level:.1f}" stroke="{colour}" stroke-width="0.8"/>'
            f'<text x="{x(SECONDS) + 22:.1f}" y="{level + 4:.1f}" fill="{colour}">'
            f"{bits:.2f} {one.model.words}</text>"
        )
    return "\n".join([*parts, "</svg>", ""])


def spread(heights: list[float], lowest: float, gap: float = 18) -> list[float]:
    """Heights in their order, moved apart so that names can be read."""
    levels = list(heights)
    for number in range(1, len(levels)):
        levels[number] = max(levels[number], levels[number - 1] + gap)
    levels[-1] = min(levels[-1], lowest)
    for number in reversed(range(len(levels) - 1)):
        levels[number] = min(levels[number], levels[number + 1] - gap)
    return levels


def write(root: Path) -> None:
    """Put the tables between the document's marks, and the picture beside it."""
    trained = read_trained(root)
    device = describe_device(1)
    receipt = f"{device.cpu}, one thread, torch {device.torch}, {date.today()}."
    sections = {
        "models": [*models_table(trained), "", receipt],
        "rates": rates_table(root),
        "search": search_table(json.loads((root / "search" / "search.json").read_text())),
    }
    text = DOCUMENT.read_text("utf-8")
    for name, lines in sections.items():
        start, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
        before, _, rest = text.partition(start)
        _, _, after = rest.partition(end)
        text = before + "\n".join([start, *lines, end]) + after
    DOCUMENT.write_text(text, "utf-8")
    DOCUMENT.with_suffix(".svg").write_text(picture(trained), "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="where the runs are kept")
    parser.add_argument("--enwik8", help="a file with the first bytes of enwik8")
    parser.add_argument("--write", action="store_true", help="write the document")
    arguments = parser.parse_args()
    if arguments.write:
        write(arguments.folder)
    elif arguments.enwik8:
        run(arguments.folder, arguments.enwik8)
    else:
        parser.error("--enwik8 is missing: the file to train on")


if __name__ == "__main__":
    main()
