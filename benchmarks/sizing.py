"""How large should a model be that has so many seconds to learn?

    python benchmarks/sizing.py TEXT … --seconds 60 240 [--rungs 0 1 2 3 4 5 6] [--threads 1]
    python benchmarks/sizing.py --write

Trains the interleaved models of `fit`'s ladder by the clock, each by itself, over counts as `fit`
does, with the rates that their sizes call for, and tells what they reach: the best size for a time,
and how many tokens it has read for each of its parameters by then. A quiet machine is yours to see
to; with one thread, two texts may be trained side by side. Results are lines of
benchmarks/sizing.jsonl; `--write` makes the table of docs/experiments/sizing.md.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kept import keep, known, made_on
from learns import into_document

import parformer as pf
from parformer.config import ModelConfig
from parformer.costs import cost
from parformer.data.batches import sample
from parformer.data.corpora import find_corpus
from parformer.data.tokens import prepare
from parformer.evaluate.perplexity import evaluate
from parformer.fitting.ladder import RECALL
from parformer.fitting.request import COUNTS
from parformer.fitting.rungs import LADDER, rung
from parformer.model import load
from parformer.recipe import read_recipe
from parformer.store.files import cache_folder
from parformer.train.run import MODEL, read_run
from parformer.train.schedule import rate_for

DOCUMENT = Path(__file__).parents[1] / "docs" / "experiments" / "sizing.md"
RESULTS = Path(__file__).with_name("sizing.jsonl")
SCORED = 131_072


def over_counts(config: ModelConfig) -> list[str]:
    """What makes a training of `pocket` one of a fit's baselines, beside counts."""
    sizes = {name: getattr(config, name) for name in ("d_model", "n_head", "d_inner")}
    sizes |= {"pattern": str(config.pattern), "counts": COUNTS, "recall": RECALL}
    changes = [f"model.{name}={value}" for name, value in sizes.items()]
    # a training by the clock may look at fewer tokens than it was told; what is told is scored here
    return [*changes, "train.evaluate_tokens=8192", "train.final_tokens=1024"]


def trained(text: str, changes: Sequence[str], time: float | None = None) -> dict[str, Any]:
    """A training of `pocket` with changes, by the clock or by updates, and what it reached."""
    with tempfile.TemporaryDirectory() as place:
        run = Path(place) / "run"
        pf.train(
            model="pocket", corpus=text, time=time, run=run, changes=tuple(changes), beside=False
        )
        recipe, model = read_run(run), load(run / MODEL)
    tokens = prepare(find_corpus(text), "byte", cache=cache_folder()).splits
    scores = {
        split: evaluate(model, sample(tokens[split].tokens, SCORED), batch=8).loss / math.log(2)
        for split in ("valid", "test")
    }
    return {
        "parameters": cost(recipe.model).parameters,
        "updates": recipe.train.steps,
        "tokens": recipe.train.steps * recipe.train.batch * recipe.model.step_len,
        "rate": recipe.train.learning_rate,
        **scores,
        "precision": recipe.train.precision,
    }


def train_one(text: str, seconds: float, number: int, threads: int) -> dict[str, Any]:
    config, usual = rung(pf.preset("pocket"), *LADDER[number]), read_recipe("pocket")
    rate = rate_for(config.replaced(counts=COUNTS), usual.train.learning_rate, usual.model)
    changes = [f"train.threads={threads}", f"train.learning_rate={rate:.2g}"]
    changes += ["train.schedule=trapezoid"]
    return {
        "text": Path(text).stem,
        "seconds": seconds,
        "rung": number,
        "threads": threads,
        "pattern": str(config.pattern),
        "width": config.d_model,
        **trained(text, [*over_counts(config), *changes], seconds),
    }


def table(every: list[dict[str, Any]]) -> str:
    """A table per text: a row per size, test bits and tokens per parameter for every time."""
    lines: list[str] = []
    for text in sorted({one["text"] for one in every}):
        here = [one for one in every if one["text"] == text]
        times = sorted({one["seconds"] for one in here})
        best = {t: min(o["valid"] for o in here if o["seconds"] == t) for t in times}
        heads = [f"{time:g} s | bytes per parameter" for time in times]
        lines += ["", f"| {text} | width | parameters | {' | '.join(heads)} |"]
        lines.append(f"|---|---:|---:|{'---:|---:|' * len(times)}")
        for number in sorted({one["rung"] for one in here}):
            some = {one["seconds"]: one for one in here if one["rung"] == number}
            first = next(iter(some.values()))
            cells = [f"`{first['pattern']}`", str(first["width"]), f"{first['parameters']:,}"]
            for time in times:
                if time not in some:
                    cells += ["", ""]
                    continue
                bits = f"{some[time]['test']:.3f}"
                won = some[time]["valid"] == best[time]
                cells += [f"**{bits}**" if won else bits]
                read = some[time]["tokens"] / some[time]["parameters"]
                cells += [f"{read:.1f}"]
            lines.append(f"| {' | '.join(cells)} |")
    (threads,) = {one["threads"] for one in every}
    how = f"{'one thread' if threads == 1 else f'{threads} threads'} each"
    return "\n".join([*lines[1:], "", made_on(every, how)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("texts", nargs="*", metavar="TEXT")
    parser.add_argument("--seconds", type=float, nargs="+", default=[60.0, 240.0])
    parser.add_argument("--rungs", type=int, nargs="+", default=list(range(7)))
    parser.add_argument("--threads", type=int, default=2, help="(default 2)")
    parser.add_argument("--write", action="store_true", help="write the document")
    given = parser.parse_args()
    if given.write:
        into_document(DOCUMENT, "sizing", table(known(RESULTS)))
        return
    for seconds in given.seconds:
        for text in given.texts:
            for number in given.rungs:
                key = {"text": Path(text).stem, "seconds": seconds, "rung": number}
                key["threads"] = given.threads
                if not known(RESULTS, **key):
                    keep(RESULTS, train_one(text, seconds, number, given.threads))


if __name__ == "__main__":
    main()
