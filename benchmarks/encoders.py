"""What is a pocket encoder's pretraining worth: BERT, PAR BERT and ALBERT shapes, side by side?

    python benchmarks/encoders.py --wiki FOLDER --data DATA --runs RUNS [--shapes bert par-bert]
    python benchmarks/encoders.py --write

FOLDER holds plain text with documents, one `.txt` or more; DATA holds the folders glue, squad and
race with their authors' files. Every shape is pretrained for as many updates on the same text, then
fine-tuned on each task with several seeds; and so is the same shape with weights by chance. Lines
are added to benchmarks/encoders.jsonl: `pretrained` with the curve of its validations, `tuned` with
a score for each task, start and seed. What is there is not done again, a pretraining in RUNS goes
on where it stopped, and `--write` makes the tables of docs/experiments/encoders.md.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from finetuning import own_folder, spread
from inference import table
from kept import keep, known, made_on
from learns import into_document

import parformer as pf
from parformer.costs import cost
from parformer.model import build, load
from parformer.train.metrics import read_metrics
from parformer.train.run import METRICS, MODEL, open_run

DOCUMENT = Path(__file__).parents[1] / "docs" / "experiments" / "encoders.md"
RESULTS = Path(__file__).with_name("encoders.jsonl")
CHANCE = "by chance"
"""The start of a model that was not pretrained."""


@dataclass(frozen=True)
class Shape:
    """An encoder to pretrain: a recipe, and what differs."""

    title: str
    recipe: str
    changes: Mapping[str, object] = field(default_factory=dict)


SHAPES = {
    "bert": Shape("BERT, next sentence", "bert-pocket-pretraining"),
    "par-bert": Shape("PAR BERT, next sentence", "par-bert-pocket-pretraining"),
    "albert": Shape("ALBERT, sentence order", "albert-pocket-pretraining"),
    "bert-order": Shape(
        "BERT, sentence order", "bert-pocket-pretraining", {"model.pair_head": "order"}
    ),
    "bert-alone": Shape(
        "BERT, no pairs, full rows", "bert-pocket-pretraining",
        {"model.pair_head": "none", "train.packed": True},
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Tuning:
    """How a task is learned: enough for two cores and several seeds."""

    folder: str
    epochs: float
    length: int = 128
    seeds: int = 5


TASKS = {
    "sst2": Tuning("glue", 0.5, 64, seeds=3),
    "mrpc": Tuning("glue", 4.0),
    "rte": Tuning("glue", 4.0),
    "squad": Tuning("squad", 2.0, 256, seeds=2),
    "race-middle": Tuning("race", 0.2, seeds=2),
}


def pretrain(name: str, wiki: Path, run: Path, updates: int) -> None:
    """A shape's pretraining, and a line of what it came to."""
    shape = SHAPES[name]
    changes = {"train.evaluate_every": max(1, updates // 20), **shape.changes}
    began = time.monotonic()
    pf.train(
        model=shape.recipe, corpus=str(wiki / "*.txt"), steps=updates, run=run,
        changes=tuple(f"{field}={value}" for field, value in changes.items()),
    )  # fmt: skip
    if known(RESULTS, part="pretrained", shape=name, updates=updates):
        return
    looks = [row for row in read_metrics(run / METRICS) if row.get("valid_loss") is not None]
    model = load(run / MODEL)
    told = cost(model.config)
    curve = [{n: v for n, v in row.items() if n == "step" or "valid" in n} for row in looks]
    keep(
        RESULTS,
        {"part": "pretrained", "shape": name, "updates": updates, "curve": curve,
         "pattern": str(model.config.pattern), "parameters": told.parameters,
         "seconds": round(time.monotonic() - began)},
    )  # fmt: skip


def untrained(run: Path, seed: int) -> Path:
    """A model of the same shape and tokenizer, as it was drawn."""
    folder = run.with_name(f"{run.name}-chance-{seed}")
    if not folder.is_dir():
        opened = open_run(run)
        model = build(load(opened.folder).config, seed=seed)
        model.save(folder, opened.need_tokenizer().to_json())
    return folder


def tune(name: str, task: str, start: str, seed: int, given: argparse.Namespace) -> None:
    """One fine-tuning, and its score on dev."""
    key = {"part": "tuned", "shape": name, "task": task, "start": start, "seed": seed}
    if known(RESULTS, **key, updates=given.updates):
        return
    how, run = TASKS[task], given.runs / name
    files = own_folder(task, given.data / how.folder, given.runs)
    began = time.monotonic()
    result = pf.train(
        start=str(untrained(run, seed) if start == CHANCE else run), task=task, data=str(files),
        epochs=how.epochs, seed=seed, run=given.runs / f"{name}-{task}-{start[:2]}-{seed}",
        changes=(f"train.tgt_len={how.length}",),
    )  # fmt: skip
    found = result.outcome.result
    assert found is not None
    assert found.valid is not None
    valid = found.valid.values
    keep(
        RESULTS,
        {**key, "updates": given.updates, "epochs": how.epochs, "examples": valid["examples"],
         "metrics": valid["metrics"], "score": valid["score"], "beside": valid.get("beside"),
         "seconds": round(time.monotonic() - began)},
    )  # fmt: skip


def pretrained_table(every: Sequence[Mapping[str, Any]]) -> list[str]:
    rows = []
    for one in every:
        last = one["curve"][-1]
        rows.append(
            [
                SHAPES[one["shape"]].title,
                f"`{one['pattern']}`",
                f"{one['parameters'] / 1e6:.2f} M",
                f"{one['updates']:,}",
                f"{one['seconds'] / 60:.0f}",
                *(
                    f"{last[name]:.1%}" if last.get(name) is not None else ""
                    for name in ("valid_masked_accuracy", "valid_pair_accuracy")
                ),
            ]
        )
    heads = ["shape", "pattern", "parameters", "updates", "minutes", "hidden words right"]
    return table([*heads, "pairs right"], rows)


def tuned_table(every: Sequence[Mapping[str, Any]]) -> list[str]:
    """A row for each shape and start, a column for each task: the median over seeds."""
    tasks = [task for task in TASKS if any(one["task"] == task for one in every)]
    rows = []
    for name, shape in SHAPES.items():
        for start in ("pretrained", CHANCE):
            own = [one for one in every if (one["shape"], one["start"]) == (name, start)]
            cells = [
                spread([one["score"] for one in own if one["task"] == task])
                if any(one["task"] == task for one in own)
                else ""
                for task in tasks
            ]
            if own:
                rows.append([shape.title, start, *cells])
    for way in ("n-grams", "majority"):
        rows.append(["counting" if way == "n-grams" else "always the same", way])
        rows[-1] += [beside(every, task, way) for task in tasks]
    return table(["shape", "start", *tasks], rows)


def beside(every: Sequence[Mapping[str, Any]], task: str, way: str) -> str:
    """What counting reaches: the mean of a task's metrics, as its score is."""
    known_ways = next((one["beside"] for one in every if one["task"] == task), None) or {}
    values = list(known_ways.get(way, {}).values())
    return f"{statistics.mean(values):.3f}" if values else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--wiki", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--runs", type=Path, help="where runs are kept")
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--updates", type=int, default=4000, help="of pretraining (default 4000)")
    parser.add_argument("--seeds", type=int, default=5, help="of fine-tuning at most (default 5)")
    parser.add_argument("--write", action="store_true", help="write the document")
    given = parser.parse_args()
    if given.write:
        pretrained, tuned = (known(RESULTS, part=part) for part in ("pretrained", "tuned"))
        lines = [*pretrained_table(pretrained), "", *tuned_table(tuned)]
        lines += ["", made_on([*pretrained, *tuned], "two threads")]
        into_document(DOCUMENT, "pretraining", "\n".join(lines))
        return
    if not (given.wiki and given.data and given.runs):
        parser.error("--wiki, --data and --runs say what to read, and where to keep runs")
    given.runs.mkdir(parents=True, exist_ok=True)
    for name in given.shapes:
        pretrain(name, given.wiki, given.runs / name, given.updates)
        for task in given.tasks:
            for seed in range(min(given.seeds, TASKS[task].seeds)):
                for start in ("pretrained", CHANCE):
                    tune(name, task, start, seed, given)


if __name__ == "__main__":
    main()
