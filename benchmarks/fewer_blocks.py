"""Which attention of a trained encoder can go, and is that better than dropping whole layers?

    python benchmarks/fewer_blocks.py --start FOLDER --data GLUE [--task mrpc] [--seeds 1]
    python benchmarks/fewer_blocks.py --write

Takes attention blocks out of a pretrained encoder of BERT's shape (benchmarks/finetuning.py says
which) one by one, then those together that were missed least; beside it whole layers, every second
one first as DistilBERT does. Each is fine-tuned as the whole is, scored on dev, and timed in turns
with the whole, one text of 64 tokens. Since every attention block takes equally long, the exact
choice under a limit of time is the sum of those that are missed least: no knapsack is needed.
Results are lines of benchmarks/finetuning.jsonl; `--write` puts the table and the picture into
docs/experiments/encoders.md.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch
from finetuning import DOCUMENT, EPOCHS, RESULTS, own_folder, tuned
from kept import keep, known
from learns import into_document

import parformer as pf
from parformer.compress.shrinking import shrunk
from parformer.model import Model, count_parameters
from parformer.train.start import open_start

TOGETHER = (2, 3, 4, 6)
"""Attention blocks that go at once."""
LAYERS = {"5": (4,), "3, 5": (2, 4), "2, 4, 6": (1, 3, 5)}
"""Layers that go, as people count them and as their places."""
PICTURE = DOCUMENT.with_name("encoders.svg")
ROUNDS = 60


def train_all(given: argparse.Namespace, place: Path) -> None:
    start = open_start(given.start)
    assert start.model is not None
    letters = start.config.pattern.letters
    attends = [n for n, letter in enumerate(letters) if letter == "s"]
    data = own_folder(given.task, given.data, place)
    for seed in range(given.seeds):

        def drop(kind: str, name: str, gone: tuple[int, ...], seed: int = seed) -> None:
            told = {"kind": kind, "name": name, "gone": list(gone)}
            if any(told.items() <= one.items() and one["seed"] == seed for one in ours(given.task)):
                return
            small = shrunk(start.model, {f"blocks.{number}": None for number in gone})
            folder = place / f"start-{kind}-{name}"
            small.save(folder, start.tokenizer.to_json())
            run = place / f"{given.task}-{kind}-{name}-{seed}"
            asked = argparse.Namespace(start=folder, changes=given.changes)
            epochs = given.epochs or EPOCHS[given.task]
            found = tuned(asked, given.task, data, run, seed, epochs)
            ratio = beside(pf.load(run / "model"), start.model)
            weights = count_parameters(small)
            told |= {"part": "blocks", "ratio": ratio, "weights": weights}
            keep(RESULTS, {**told, **found})

        drop("whole", "all", ())
        for layer, number in enumerate(attends):
            drop("attention", str(layer + 1), (number,))
        for many in TOGETHER:
            least = order(given.task, seed)[:many]
            name = ", ".join(sorted(str(layer + 1) for layer in least))
            drop("attention", name, tuple(sorted(attends[layer] for layer in least)))
        for name, layers in LAYERS.items():
            drop("layers", name, tuple(n for layer in layers for n in (2 * layer, 2 * layer + 1)))


def ours(task: str) -> list[dict[str, Any]]:
    return known(RESULTS, part="blocks", task=task)


def score(found: dict[str, Any]) -> float:
    """The mean of a task's own metrics."""
    return mean(found["metrics"].values())


def order(task: str, seed: int) -> list[int]:
    """Attention blocks by how little they were missed, one by one, with this seed."""
    alone = {
        int(one["name"]) - 1: score(one)
        for one in ours(task)
        if one["kind"] == "attention" and len(one["gone"]) == 1 and one["seed"] == seed
    }
    return sorted(alone, key=lambda layer: -alone[layer])


def beside(small: Model, whole: Model) -> float:
    """How much of the whole's time a text of 64 tokens takes, in turns."""
    tokens = torch.randint(999, small.config.vocab_size, (1, 64))
    models = (small.eval(), whole.eval())
    ratios = []
    with torch.inference_mode():
        for _ in range(ROUNDS):
            taken = []
            for model in models:
                began = time.perf_counter()
                model(tokens)
                taken.append(time.perf_counter() - began)
            ratios.append(taken[0] / taken[1])
    return median(ratios[8:])


def table(every: list[dict[str, Any]]) -> str:
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for one in every:
        groups.setdefault((one["kind"], one["name"]), []).append(one)
    (metrics,) = {tuple(one["metrics"]) for one in every}
    lines = [f"| without | of the time | parameters | {' | '.join(metrics)} |"]
    lines.append(f"|---|---:|---:|{'---:|' * len(metrics)}")
    for (kind, name), some in groups.items():
        words = "nothing" if kind == "whole" else f"{kind} {name}"
        cells = [words, f"{median(one['ratio'] for one in some):.2f}", f"{some[0]['weights']:,}"]
        cells += [" / ".join(f"{one['metrics'][m]:.3f}" for one in some) for m in metrics]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def picture(every: list[dict[str, Any]]) -> str:
    """Score against time: every dot a model."""
    wide, high, left, low = 720, 380, 60, 46
    shades = {"whole": "#2f9e44", "attention": "#7c5cff", "layers": "#d9480f"}
    scores, ratios = [score(one) for one in every], [one["ratio"] for one in every]
    bottom, top = min(scores) - 0.01, max(scores) + 0.01
    first, last = min(ratios) - 0.03, max(ratios) + 0.05

    def x(ratio: float) -> float:
        return left + (wide - left - 20) * (ratio - first) / (last - first)

    def y(value: float) -> float:
        return high - low - (high - low - 40) * (value - bottom) / (top - bottom)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" '
        'font-family="system-ui, sans-serif" font-size="12" fill="#868e96">',
        f'<text x="{left}" y="20" font-size="14" font-weight="600">What is left of a score without '
        "some attention, or without layers</text>",
        f'<text x="{wide / 2}" y="{high - 8}" text-anchor="middle">'
        "share of the whole model's time for a text</text>",
    ]
    for tick in range(round(50 * bottom), round(50 * top) + 1):
        value = tick / 50
        if bottom < value < top:
            parts.append(
                f'<line x1="{left}" x2="{wide - 20}" y1="{y(value):.1f}" y2="{y(value):.1f}" '
                f'stroke="#868e9633"/><text x="{left - 8}" y="{y(value) + 4:.1f}" '
                f'text-anchor="end">{value:.2f}</text>'
            )
    for tick in range(round(10 * first), round(10 * last) + 1):
        if first < tick / 10 < last:
            parts.append(
                f'<text x="{x(tick / 10):.1f}" y="{high - low + 18}" text-anchor="middle">'
                f"{tick / 10:.1f}</text>"
            )
    for one in every:
        shade, at = shades[one["kind"]], (x(one["ratio"]), y(score(one)))
        name = "" if one["kind"] == "whole" else one["name"].replace(", ", "·")
        parts.append(
            f'<circle cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="4" fill="{shade}"/>'
            f'<text x="{at[0] + 6:.1f}" y="{at[1] - 5:.1f}" fill="{shade}" font-size="10">{name}'
            "</text>"
        )
    for number, (kind, shade) in enumerate(shades.items()):
        parts.append(
            f'<text x="{left + 8 + 150 * number}" y="38" fill="{shade}">● '
            f"{'nothing gone' if kind == 'whole' else f'without {kind}'}</text>"
        )
    return "\n".join([*parts, "</svg>", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--start", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--task", default="mrpc", choices=sorted(EPOCHS))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--epochs", type=float)
    parser.add_argument("--runs", type=Path, help="keep the runs here")
    parser.add_argument("--set", dest="changes", action="append", default=[])
    parser.add_argument("--write", action="store_true", help="write the document")
    given = parser.parse_args()
    if given.write:
        into_document(DOCUMENT, "blocks", table(ours(given.task)))
        PICTURE.write_text(picture(ours(given.task)), "utf-8")
        return
    if given.start is None or given.data is None:
        parser.error("--start and --data say what to fine-tune, and on what")
    with tempfile.TemporaryDirectory() as place:
        train_all(given, given.runs or Path(place))


if __name__ == "__main__":
    main()
