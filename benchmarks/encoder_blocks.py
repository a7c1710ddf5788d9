"""Which blocks can go in an encoder that is trained already: attention, feed-forward, whole layers?

    python benchmarks/encoder_blocks.py --start FOLDER --data GLUE --folder RUNS [--task sst2]
    python benchmarks/encoder_blocks.py --write

FOLDER is a Hugging Face folder of BERT's shape, GLUE a folder with the tasks' own files. The model
is fine-tuned first. Then every block is taken out alone, without training: what the loss on
training examples grows by is its harm, what the clock says its price. Sets of blocks follow from
that: the least harmful attention blocks, the least harmful layers, every second layer (DistilBERT's
start), and of all twelve blocks those that do least harm for as much time as a layer or two take.
Each set is fine-tuned for as many updates, and so is the whole model; at the end all predict dev in
turns.

A line for each is added to benchmarks/encoder_blocks.jsonl, what is there is not done again, and
`--write` makes the tables of docs/experiments/encoders.md.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any

from drawing import SHADES, Picture, with_room
from finetuning import own_folder, spread
from inference import table
from kept import keep, known, made_on
from learns import into_document

import parformer as pf
from parformer.compress.shrinking import shrunk
from parformer.data.labelled import Labelled, unpacked
from parformer.data.tokenizers import Tokenizer
from parformer.measure.device import pinned_threads
from parformer.model import Model, load
from parformer.recipe import Recipe
from parformer.tasks import find_task
from parformer.tasks.labelled import LabelTask, all_logits
from parformer.tasks.preparing import read_labelled
from parformer.train.run import MODEL, open_run
from parformer.train.start import open_start
from parformer.train.tuning import recipe_for

DOCUMENT = Path(__file__).parents[1] / "docs" / "experiments" / "encoders.md"
PICTURE = DOCUMENT.with_name("encoders-blocks.svg")
RESULTS = Path(__file__).with_name("encoder_blocks.jsonl")
WHOLE = "nothing"
RATE = 6e-5
AGAIN = 0.25
"""Of the examples that a smaller model is fine-tuned on again."""
SEEN = 60_000
"""Tokens of training text that harm is told on."""
ROUNDS = 4
Gone = tuple[int, ...]
"""Numbers of the blocks that are taken out."""


@dataclass(frozen=True)
class Trial:
    """A model that was fine-tuned, and what it is like without some of its blocks."""

    start: Path
    data: Path
    folder: Path
    task: str
    epochs: float = 1.0
    """Of the whole model, before anything is taken out."""

    @cached_property
    def files(self) -> Path:
        return own_folder(self.task, self.data, self.folder)

    @cached_property
    def parent(self) -> Path:
        path = self.folder / "parent"
        self.train(self.start, path, self.epochs)
        return path / MODEL

    @cached_property
    def model(self) -> Model:
        return load(self.parent)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return open_run(self.parent).need_tokenizer()

    @cached_property
    def read(self) -> tuple[Recipe, Labelled]:
        chosen: dict[str, object] = {"train.task": self.task, "data.corpus": str(self.files)}
        chosen["train.start"] = str(self.parent)
        recipe = recipe_for("", str(self.parent), chosen)
        return read_labelled(recipe, open_start(self.parent).tokenizer, lambda *_: None)

    @cached_property
    def judge(self) -> LabelTask:
        found = find_task(self.read[0])
        assert isinstance(found, LabelTask)
        return found

    def train(self, start: Path, run: Path, epochs: float) -> None:
        pf.train(
            start=str(start), task=self.task, data=str(self.files), epochs=epochs, run=run,
            changes=(f"train.learning_rate={RATE if epochs >= 1 else RATE / 2}",),
        )  # fmt: skip

    def without(self, gone: Gone) -> Model:
        return shrunk(self.model, {f"blocks.{number}": None for number in gone})

    def harm(self, gone: Gone) -> float:
        """The loss on training examples, without any training since."""
        return self.judge.score(self.without(gone), self.read[1], "train", SEEN).loss

    def tuned(self, name: str, gone: Gone) -> Model:
        """The same after it was fine-tuned again."""
        place = self.folder / name.replace(" ", "-").replace(",", "")
        if not (place / "start").is_dir():
            self.without(gone).save(place / "start", self.tokenizer.to_json())
        self.train(place / "start", place / "run", AGAIN)
        return load(place / "run" / MODEL)

    def seconds(self, models: Mapping[str, Model]) -> dict[str, float]:
        """For all of dev, in turns."""
        features = unpacked(self.read[1].splits["valid"].tokens)
        told: dict[str, list[float]] = {name: [] for name in models}
        with pinned_threads(None):
            for _ in range(ROUNDS + 1):
                for name, model in models.items():
                    began = time.perf_counter()
                    all_logits(model, features, self.judge.pad)
                    told[name].append(time.perf_counter() - began)
        return {name: statistics.median(seconds[1:]) for name, seconds in told.items()}


def one_by_one(trial: Trial) -> None:
    """What each block alone is worth, and takes."""
    blocks = list(range(len(trial.model.config.pattern)))
    if len(known(RESULTS, part="alone", task=trial.task)) == len(blocks) + 1:
        return
    every: dict[int, Gone] = {-1: (), **{number: (number,) for number in blocks}}
    took = trial.seconds({str(number): trial.without(gone) for number, gone in every.items()})
    for number, gone in every.items():
        score = trial.judge.score(trial.without(gone), trial.read[1], "valid", 0)
        keep(
            RESULTS,
            {"part": "alone", "task": trial.task, "block": number,
             "letter": trial.model.config.pattern[number].letter if gone else "",
             "harm": trial.harm(gone), "score": score.main, "seconds": took[str(number)]},
        )  # fmt: skip


def sets(alone: Sequence[Mapping[str, Any]]) -> dict[str, Gone]:
    """What is tried, by name."""
    whole = next(one for one in alone if one["block"] < 0)
    harm = {one["block"]: one["harm"] - whole["harm"] for one in alone if one["block"] >= 0}
    price = {one["block"]: whole["seconds"] - one["seconds"] for one in alone if one["block"] >= 0}
    attention = [one["block"] for one in alone if one["letter"] == "s"]
    easiest = sorted(attention, key=harm.__getitem__)
    found: dict[str, Gone] = {WHOLE: ()}
    found |= {f"attention {number}": (number,) for number in attention}
    for count in range(2, len(attention) + 1):
        found[f"{count} attentions, least harm"] = tuple(sorted(easiest[:count]))
    layers = [(number, number + 1) for number in attention]
    ranked = sorted(layers, key=lambda pair: sum(harm[one] for one in pair))
    for count in (1, 2, 3):
        found[f"{count} layers, least harm"] = joined(ranked[:count])
    found["every second layer"] = joined(layers[1::2])
    for count in (1, 2, 3):
        enough = sum(price[one] for one in found[f"{count} layers, least harm"])
        found[f"any blocks, as much time as {count} layers"] = cheapest(harm, price, enough)
    return found


def joined(pairs: Iterable[Gone]) -> Gone:
    return tuple(sorted(number for pair in pairs for number in pair))


def cheapest(harm: Mapping[int, float], price: Mapping[int, float], enough: float) -> Gone:
    """The set that does least harm of those that save so many seconds; there are few enough."""
    some = [
        gone
        for count in range(1, len(harm))
        for gone in combinations(sorted(harm), count)
        if sum(price[one] for one in gone) >= 0.98 * enough
    ]
    return min(some, key=lambda gone: sum(harm[one] for one in gone))


def together(trial: Trial) -> None:
    """Sets of blocks taken out, fine-tuned again, scored, and timed in turns."""
    wanted = sets(known(RESULTS, part="alone", task=trial.task))
    models = {name: trial.tuned(name, gone) for name, gone in wanted.items()}
    took = trial.seconds(models)
    for name, gone in wanted.items():
        if known(RESULTS, part="tuned", task=trial.task, name=name):
            continue
        score = trial.judge.score(models[name], trial.read[1], "valid", 0)
        keep(
            RESULTS,
            {"part": "tuned", "task": trial.task, "name": name, "gone": list(gone),
             "pattern": str(models[name].config.pattern), "score": score.main,
             "loss": score.loss, "examples": score.examples, "seconds": took[name],
             "beside": took[name] / took[WHOLE]},
        )  # fmt: skip


def alone_table(task: str) -> list[str]:
    every = known(RESULTS, part="alone", task=task)
    if not every:
        return []
    whole = next(one for one in every if one["block"] < 0)
    rows = [["none", "", f"{whole['harm']:.3f}", f"{whole['score']:.3f}", "1.00×"]]
    rows += [
        [
            f"{one['block']}",
            "attention" if one["letter"] == "s" else "feed-forward",
            f"{one['harm']:.3f}",
            f"{one['score']:.3f}",
            f"{one['seconds'] / whole['seconds']:.2f}×",
        ]
        for one in every
        if one["block"] >= 0
    ]
    heads = ["block taken out", "kind", "loss on training examples", f"{task}, dev", "time"]
    return [*table(heads, rows), "", made_on(every, "two threads"), ""]


def tuned_table(task: str) -> list[str]:
    every = known(RESULTS, part="tuned", task=task)
    rows = [
        [one["name"], f"`{one['pattern']}`", spread([one["score"]]), f"{one['beside']:.2f}×"]
        for one in every
    ]
    heads = ["taken out", "left", f"{task}, dev, fine-tuned again", "time"]
    return [*table(heads, rows), "", made_on(every, "two threads")] if every else []


def picture(task: str) -> str:
    """Score against time: every dot a set of blocks that is gone."""
    every = known(RESULTS, part="tuned", task=task)
    scores, times = [one["score"] for one in every], [one["beside"] for one in every]
    drawn = Picture(
        f"{task} without so many blocks",
        "share of the whole model's time; score on dev upwards",
        with_room(times), with_room(scores), right=120,
    )  # fmt: skip
    drawn.rows()
    drawn.columns((n / 10 for n in range(1, 11) if min(times) <= n / 10 <= max(times)), ".0%")
    shades = dict(zip(("nothing", "attention", "layers", "any blocks"), SHADES, strict=False))
    for one in every:
        kind = kind_of(one["name"])
        point = one["beside"], one["score"]
        drawn.dot(point, shades[kind])
        drawn.write(drawn.x(point[0]) + 6, drawn.y(point[1]) - 5, str(len(one["gone"])), size=10)
    top = max(scores)
    drawn.names((top, kind, shade) for kind, shade in shades.items())
    return drawn.svg()


def kind_of(name: str) -> str:
    """What kind of blocks a set takes out.

    >>> kind_of("3 attentions, least harm"), kind_of("every second layer"), kind_of("nothing")
    ('attention', 'layers', 'nothing')
    """
    kinds = {"any blocks": "any blocks", "attention": "attention", "layer": "layers"}
    return next((kind for word, kind in kinds.items() if word in name), name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--start", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--folder", type=Path, help="where runs are kept")
    parser.add_argument("--task", default="sst2")
    parser.add_argument("--epochs", type=float, default=1.0, help="of the whole model")
    parser.add_argument("--write", action="store_true", help="write the document")
    given = parser.parse_args()
    if given.write:
        into_document(
            DOCUMENT, "blocks", "\n".join([*alone_table(given.task), *tuned_table(given.task)])
        )
        if known(RESULTS, part="tuned", task=given.task):
            PICTURE.write_text(picture(given.task), "utf-8")
        return
    if not (given.start and given.data and given.folder):
        parser.error("--start, --data and --folder say what to fine-tune, on what, and where")
    given.folder.mkdir(parents=True, exist_ok=True)
    trial = Trial(given.start, given.data, given.folder, given.task, given.epochs)
    one_by_one(trial)
    together(trial)


if __name__ == "__main__":
    main()
