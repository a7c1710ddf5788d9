"""What in a pocket recipe is worth having? One thing changed at a time.

    python benchmarks/recipe.py TEXT … [--counts] [--seeds 3] [--jobs 2] [--only WORD …]
    python benchmarks/recipe.py --write

The first trains what is missing, `pocket` with four layers, 300 updates of 16 × 64 bytes and one
thread, and adds a line for each to benchmarks/recipe.jsonl; with `--counts` beside counts and
recall, as a `fit` trains. The second writes docs/experiments/recipe.md from there. What the house
has no setting for is tried by putting other functions in the place of its own, here and nowhere
else.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from kept import keep, known, made_on
from learns import into_document
from torch import Tensor

from parformer.blocks import linear
from parformer.blocks.attention import SelfAttention
from parformer.data.batches import sample
from parformer.data.corpora import find_corpus
from parformer.data.tokens import prepare
from parformer.evaluate.perplexity import evaluate
from parformer.fitting.ladder import RECALL
from parformer.fitting.request import COUNTS
from parformer.model import build_from
from parformer.recipe import read_recipe
from parformer.store.files import cache_folder
from parformer.train.distributed import Workers
from parformer.train.plan import find_kernels, fit_vocabulary
from parformer.train.schedule import rate_for
from parformer.train.session import Session
from parformer.weights import named_tensors

DOCUMENT = Path(__file__).parents[1] / "docs" / "experiments" / "recipe.md"
RESULTS = Path(__file__).with_name("recipe.jsonl")
UPDATES = 300
SCORED = 65_536
KEPT = 0.97
"""The share of the old average that a running average of weights keeps in an update."""
SIZES = {"model.pattern": "(sf)x4", "model.tgt_len": 64, "model.mem_len": 64}


def squared_relu() -> None:
    known: dict[str, Any] = linear.ACTIVATIONS  # type: ignore[assignment]
    known["relu"] = lambda x: torch.relu(x).square()


def normed_queries() -> None:
    """Queries and keys of length √k before they meet, in every kind of attention."""

    def normed(x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)

    def wrap(attend: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def inner(self: SelfAttention, q: Tensor, kv: Tensor, *more: object) -> Tensor:
            k, v = kv.chunk(2, dim=1)
            return attend(self, normed(q), torch.cat((normed(k), v), dim=1), *more)

        return inner

    kinds: set[Any] = {SelfAttention, *SelfAttention.kinds.values()}
    for kind in kinds:
        kind._usable = lambda *_: False
        if "_attend" in vars(kind):
            kind._attend = wrap(kind._attend)


Found = dict[str, Any]


@dataclass(frozen=True)
class Variant:
    """One thing that differs from the recipe as it is."""

    title: str
    changes: Mapping[str, object] = field(default_factory=dict)
    patch: Callable[[], None] | None = None
    average: bool = False
    longer: float = 1.0
    """How many times the updates, for batches of another size."""


VARIANTS = (
    Variant("as it is"),
    Variant("Adam, 0.002", {"train.optimizer": "adam", "train.learning_rate": 0.002}),
    Variant("Adam, 0.005", {"train.optimizer": "adam", "train.learning_rate": 0.005}),
    Variant("first weights as the family's", {"model.first_weights": "family"}),
    Variant("GELU", {"model.activation": "gelu"}),
    Variant("ReLU²", patch=squared_relu),
    Variant("queries and keys normed", patch=normed_queries),
    Variant("a memory of n-grams first", {"model.pattern": "n(sf)x4"}),
    Variant("dropout 0.1", {"model.dropout": 0.1}),
    Variant("weight decay 0", {"train.weight_decay": 0.0}),
    Variant("weight decay 0.1", {"train.weight_decay": 0.1}),
    Variant("a running average of weights", average=True),
    Variant("batches of 8, twice the updates", {"train.batch": 8}, longer=2.0),
    Variant("batches of 32, half the updates", {"train.batch": 32}, longer=0.5),
)


@dataclass(frozen=True, slots=True)
class Job:
    variant: int
    text: str
    seed: int
    precision: str
    counts: bool

    @property
    def key(self) -> dict[str, object]:
        """What a result is told apart by."""
        title = VARIANTS[self.variant].title
        return {
            "changed": title, "text": Path(self.text).stem, "seed": self.seed,
            "precision": self.precision, **({"counts": True} if self.counts else {}),
        }  # fmt: skip


def train_one(job: Job) -> dict[str, object]:
    torch.set_num_threads(1)
    variant = VARIANTS[job.variant]
    if variant.patch:
        variant.patch()
    steps = round(UPDATES * variant.longer)
    changes = {
        **SIZES,
        **variant.changes,
        "data.corpus": job.text,
        "train.steps": steps,
        "train.warmup": steps // 10,
        "train.seed": job.seed,
        "train.precision": job.precision,
        "train.compile": "off",
        "train.kernels": find_kernels(Workers()),
    }
    if job.counts:
        usual = read_recipe("pocket")
        changes |= {"model.counts": COUNTS, "model.recall": RECALL}
        wide = usual.model.replaced(counts=COUNTS)
        rate = rate_for(wide, usual.train.learning_rate, usual.model)
        changes.setdefault("train.learning_rate", rate)
    recipe = read_recipe("pocket", changes)
    prepared = prepare(find_corpus(job.text), recipe.data.tokenizer, cache=cache_folder())
    recipe = fit_vocabulary(recipe, prepared.tokenizer, lambda _: None)
    session = Session(recipe, prepared.splits["train"].tokens, workers=Workers())
    weights = dict(session.model.named_parameters())
    mean = {name: one.detach().clone() for name, one in weights.items()}
    began = time.process_time()
    for step in range(steps):
        session.update(step)
        if variant.average:
            for name, one in weights.items():
                mean[name].lerp_(one.detach(), 1 - KEPT)
    seconds = time.process_time() - began
    found = {name: one.detach() for name, one in named_tensors(session.model).items()}
    model = build_from(recipe.model, found | mean if variant.average else found)
    tokens = sample(prepared.splits["test"].tokens, SCORED)
    bits = evaluate(model, tokens, batch=8).loss / math.log(2)
    return {**job.key, "bits": bits, "seconds": seconds}


def table(every: list[Found]) -> str:
    texts = sorted({one["text"] for one in every})
    heads = ["changed"]
    for text in texts:
        heads += [f"{text}, bits", "beside it as it is", "time"]
    lines = [f"| {' | '.join(heads)} |", f"|---|{'---:|' * (len(heads) - 1)}"]
    for variant in VARIANTS:
        cells = [variant.title]
        for text in texts:
            here = [one for one in every if one["text"] == text]
            cells += cells_of(by_seed(here, variant.title), by_seed(here, VARIANTS[0].title))
        if any(cells[1:]):
            lines.append(f"| {' | '.join(cells)} |")
    ways = " and ".join(sorted({one["precision"] for one in every}))
    how = f"one thread, {ways}, torch {torch.__version__}"
    return "\n".join([*lines, "", made_on(every, how)])


def beside(counts: bool, every: list[Found]) -> list[Found]:
    """Those beside counts, or those without."""
    return [one for one in every if one.get("counts", False) == counts]


def by_seed(every: list[Found], title: str) -> dict[int, Found]:
    return {one["seed"]: one for one in every if one["changed"] == title}


def cells_of(own: dict[int, Found], base: dict[int, Found]) -> list[str]:
    """Mean bits, the paired difference with its deviation over seeds, time of the processor."""
    pairs = [(one, base[seed]) for seed, one in own.items() if seed in base]
    if not pairs:
        return ["", "", ""]
    apart = [one["bits"] / usual["bits"] - 1 for one, usual in pairs]
    beside = f"{statistics.mean(apart):+.1%}"
    if len(apart) > 1:
        beside += f" ± {statistics.stdev(apart):.1%}"
    spent = statistics.mean(one["seconds"] / usual["seconds"] for one, usual in pairs)
    mean = statistics.mean(one["bits"] for one, _ in pairs)
    said = "" if own == base else beside.replace("-", "−")
    return [f"{mean:.3f}", said, f"{spent:.2f}×"]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("texts", nargs="*", metavar="TEXT", help="a file, or a corpus by name")
    parser.add_argument("--seeds", type=int, default=3, help="(default 3)")
    parser.add_argument("--jobs", type=int, default=2, help="trainings at a time (default 2)")
    parser.add_argument("--precision", default="fp32", help="(default fp32)")
    parser.add_argument("--only", nargs="+", help="variants whose titles hold one of these words")
    parser.add_argument("--counts", action="store_true", help="beside counts, as in a fit")
    parser.add_argument("--write", action="store_true", help="write the document")
    asked = parser.parse_args()
    if asked.write:
        every = known(RESULTS)
        for name, counts in (("recipe", False), ("beside", True)):
            some = beside(counts, every)
            if some:
                into_document(DOCUMENT, name, table(some))
        return
    jobs = [
        Job(number, text, seed, asked.precision, asked.counts)
        for seed in range(asked.seeds)
        for number, variant in enumerate(VARIANTS)
        if not number or not asked.only or any(word in variant.title for word in asked.only)
        for text in asked.texts
    ]
    jobs = [job for job in jobs if not beside(job.counts, known(RESULTS, **job.key))]
    # a process for each, as some of them put functions in the place of others
    with ProcessPoolExecutor(asked.jobs, max_tasks_per_child=1) as pool:
        for found in pool.map(train_one, jobs):
            keep(RESULTS, found, 1)


if __name__ == "__main__":
    main()
