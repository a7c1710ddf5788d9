"""What is a pocket encoder's pretraining worth: BERT, PAR BERT and ALBERT shapes, side by side?

    python benchmarks/encoders.py --wiki FOLDER --data DATA --runs RUNS [--shapes bert par-bert]
    python benchmarks/encoders.py --write

FOLDER holds plain text with documents, `.txt` or `.txt.xz`; DATA holds the folders glue, squad and
race with their authors' files. Every shape is pretrained for as many updates on the same text, then
fine-tuned on each task with several seeds; and so is the same shape with weights by chance. Lines
are added to benchmarks/encoders.jsonl: `pretrained` with the curve of its validations, `tuned` with
a score for each task, start and seed. What is there is not done again, a pretraining in RUNS goes
on where it stopped, and `--write` makes the tables of docs/experiments/encoders.md and the picture
of the curves beside it.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from curves import picture
from finetuning import own_folder, spread
from inference import table
from kept import keep, known, made_on
from learns import into_document

import parformer as pf
from parformer.costs import cost
from parformer.data.reading import Piece, read_pieces
from parformer.model import build, load
from parformer.train.metrics import read_metrics
from parformer.train.run import METRICS, MODEL, open_run

DOCUMENT = Path(__file__).parents[1] / "docs" / "experiments" / "encoders.md"
PICTURE = DOCUMENT.with_name("encoders-pretraining.svg")
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
    stride: int = 128


TASKS = {
    "sst2": Tuning("glue", 0.5, 64, seeds=3),
    "mrpc": Tuning("glue", 4.0),
    "rte": Tuning("glue", 4.0),
    "squad": Tuning("squad", 2.0, seeds=2, stride=48),
    "race-middle": Tuning("race", 0.2, seeds=2),
}


def one_text(wiki: Path, runs: Path) -> Path:
    """All files as one, so that its last tenth is kept back and not one file of three."""
    whole = runs / "wiki.txt"
    if not whole.is_file():
        files = sorted(file for file in wiki.iterdir() if ".txt" in file.suffixes)
        beside = whole.with_suffix(".new")
        with beside.open("wb") as stream:
            for chunk in read_pieces([Piece(file) for file in files]):
                stream.write(chunk)
        beside.rename(whole)
    return whole


def pretrain(name: str, text: Path, run: Path, updates: int) -> None:
    """A shape's pretraining, and a line of what it came to."""
    shape = SHAPES[name]
    changes = {"train.evaluate_every": max(1, updates // 20), **shape.changes}
    began = time.monotonic()
    found = pf.train(
        model=shape.recipe, corpus=str(text), steps=updates, run=run,
        changes=tuple(f"{field}={value}" for field, value in changes.items()),
    ).outcome.result  # fmt: skip
    if known(RESULTS, part="pretrained", shape=name, updates=updates):
        return
    assert found is not None
    assert found.valid is not None
    looks = [row for row in read_metrics(run / METRICS) if row.get("valid_loss") is not None]
    model = load(run / MODEL)
    told = cost(model.config)
    curve = [{n: v for n, v in row.items() if n == "step" or "valid" in n} for row in looks]
    keep(
        RESULTS,
        {"part": "pretrained", "shape": name, "updates": updates, "curve": curve,
         "metrics": found.valid.values["metrics"],
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
        changes=(f"train.tgt_len={how.length}", f"data.stride={how.stride}"),
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
        last = one["curve"][-1]["valid_loss"]
        rows.append(
            [
                SHAPES[one["shape"]].title,
                f"`{one['pattern']}`",
                f"{one['parameters'] / 1e6:.2f} M",
                f"{one['updates']:,}",
                f"{one['seconds'] / 60:.0f}",
                f"{last:.3f}",
                *(
                    f"{one['metrics'][name]:.1%}" if name in one["metrics"] else ""
                    for name in ("masked_accuracy", "pair_accuracy")
                ),
            ]
        )
    heads = ["shape", "pattern", "parameters", "updates", "minutes", "loss of hidden words"]
    return table([*heads, "hidden words right", "pairs right"], rows)


def curves(every: Sequence[Mapping[str, Any]]) -> str:
    """The loss of hidden words on validation by updates, as in PAR's Figure 6."""
    lines = {
        SHAPES[one["shape"]].title: [(row["step"], row["valid_loss"]) for row in one["curve"]]
        for one in every
    }
    return picture(lines, "Pretraining", "updates; nats of a hidden word of validation upwards")


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
        PICTURE.write_text(curves(pretrained), "utf-8")
        lines = [*pretrained_table(pretrained), "", f"![curves]({PICTURE.name})", ""]
        lines += tuned_table(tuned)
        lines += ["", made_on([*pretrained, *tuned], "two threads")]
        into_document(DOCUMENT, "pretraining", "\n".join(lines))
        return
    if not (given.wiki and given.data and given.runs):
        parser.error("--wiki, --data and --runs say what to read, and where to keep runs")
    given.runs.mkdir(parents=True, exist_ok=True)
    text = one_text(given.wiki, given.runs)
    for name in given.shapes:
        pretrain(name, text, given.runs / name, given.updates)
        for task in given.tasks:
            for seed in range(min(given.seeds, TASKS[task].seeds)):
                for start in ("pretrained", CHANCE):
                    tune(name, task, start, seed, given)


if __name__ == "__main__":
    main()
