"""What does a fit reach in so many minutes, beside counting, and beside one model by itself?

    python benchmarks/fit.py TEXT … --folder FOLDER [--minutes 6] [--seeds 1] [--alone]
    python benchmarks/fit.py TEXT … --counts-of-size [--minutes 6]
    python benchmarks/fit.py --write

fits every text (a file, or the name of a corpus) within `latency=0.8x` and adds a line for each to
benchmarks/fit.jsonl: the bits of the model on test text, beside those of the best n-gram and of the
same counts alone. With `--alone` the winner is then trained from scratch, by itself, for the whole
time. Regret is what a fit is above the best that is known of that text and time, be it one of these
or another fit. `--counts-of-size` adds what counting reaches on the same stretches of text in as
many bytes as the largest of those winners takes with its tables and its counts. What is there
already is not done again; a quiet machine is yours to see to. `--write` puts the table into
docs/fitting.md.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from inference import table
from kept import keep, known, made_on
from learns import into_document

import parformer as pf
from parformer.counts.count import MOST
from parformer.data.batches import sample
from parformer.data.corpora import find_corpus
from parformer.data.tokens import prepare
from parformer.evaluate.counting import table_losses
from parformer.fitting.result import FitResult
from parformer.fitting.running import TESTED
from parformer.store.files import cache_folder
from parformer.train.run import CONFIG, read_result

DOCUMENT = Path(__file__).parents[1] / "docs" / "fitting.md"
RESULTS = Path(__file__).with_name("fit.jsonl")
LIMIT = "latency=0.8x"
UNSIZED = 16_000_000
"""More bytes than a winner has whose line does not say: by `pf.cost` these have at most 11.6 MB
after 6 minutes and 15.4 MB after 30, at the greatest width that their search could give them."""
SAME = 1e-3
"""Counts of one text and size differ by less from one machine to the next."""
OFF = ("predicted_off", "finalists_off")
"""By how much predictions of latency were off, in the median: of held-out models, of finalists."""
HEADS = (
    "text",
    "time",
    "seeds",
    "bits",
    "counts alone",
    "best n-gram",
    "beside counting",
    "counting in as many bytes",
    "regret",
    "latency predicted, off by",
    "that of finalists, off by",
    "winners",
)


def fitted(text: str, run: Path, seconds: float, seed: int) -> dict[str, Any]:
    began = time.monotonic()
    found = pf.fit(text, run=str(run), time=seconds, limits=(LIMIT,), seed=seed)
    took = time.monotonic() - began
    return {"took": round(took), **figures(found)}


def figures(found: FitResult) -> dict[str, Any]:
    final, counted = found.final, found.references["test"]
    assert final is not None
    chosen = next(model for model in found.models if model.name == final.name)
    return {
        "test": bits(final.loss("test")),
        "ngram": bits(counted.ngram),
        "order": counted.order,
        "counts": bits(counted.table),
        "counts_bytes": counted.table_bytes,
        "pattern": str(chosen.pattern),
        "size": chosen.size,
        "updates": final.steps,
        "predicted_off": found.profile.median_error if found.profile else None,
        "finalists_off": found.profile.finalists_error if found.profile else None,
        "verdict": [found.verdict.headline, *found.verdict.sentences],
    }


def bits(loss: float | None) -> float | None:
    return None if loss is None else loss / math.log(2)


def alone(run: Path, seconds: float) -> dict[str, Any]:
    """The winner's model, trained by itself for as long."""
    path = run.with_name(f"{run.name}-alone")
    changes = ("train.schedule=trapezoid", f"train.final_tokens={TESTED}")
    pf.train(model=str(run / CONFIG), time=seconds, run=path, changes=changes, beside=False)
    done = read_result(path)
    assert done is not None
    return {"alone": bits(done.loss_on("test")), "alone_updates": done.steps}


def counting(text: str, sizes: Sequence[int]) -> list[float]:
    """The bits of tables of so many bytes, on the test text that fits are scored on."""
    prepared = prepare(find_corpus(text), "byte", cache=cache_folder())
    train = prepared.splits["train"].tokens[:MOST]
    test = {"test": sample(prepared.splits["test"].tokens, TESTED)}
    found = [table_losses(train, test, prepared.tokenizer.size, size)["test"] for size in sizes]
    return [loss / math.log(2) for loss in found]


def count_as_much(text: str, minutes: float) -> None:
    """A line of what counting reaches in the bytes of the largest winner of a text."""
    name = Path(text).stem
    fits = known(RESULTS, part="fit", text=name, minutes=minutes)
    if not fits:
        raise SystemExit(f"no fit of {name} in {minutes:g} minutes is known; fit it first")
    size, first = largest(fits), fits[0]
    if known(RESULTS, part="counting", text=name, bytes=size):
        return
    again, found = counting(text, (first["counts_bytes"], size))
    if abs(again / first["counts"] - 1) > SAME:
        raise SystemExit(
            f"{text} is another text than the fits of {name} had: {first['counts_bytes']:,} bytes "
            f"of counts reach {again:.4f} bits, there they reached {first['counts']:.4f}"
        )
    keep(RESULTS, {"part": "counting", "text": name, "bytes": size, "counting": found})


def largest(fits: list[dict[str, Any]]) -> int:
    """Bytes of the largest winner, with its tables and its counts."""
    return max(one.get("size") or UNSIZED for one in fits)


def rows(every: list[dict[str, Any]]) -> list[list[str]]:
    """A row for every text and time."""
    keys = sorted({(one["text"], one["minutes"]) for one in every if one["part"] == "fit"})
    return [row(*key, every) for key in keys]


def row(text: str, minutes: float, every: list[dict[str, Any]]) -> list[str]:
    some = [one for one in every if (one["text"], one.get("minutes")) == (text, minutes)]
    fits = [one for one in some if one["part"] == "fit"]
    single = [one["alone"] for one in some if one["part"] == "alone"]
    wide = [
        one
        for one in every
        if one["part"] == "counting" and (one["text"], one["bytes"]) == (text, largest(fits))
    ]
    first, tests = fits[0], [one["test"] for one in fits]
    ahead = [1 - one["test"] / min(one["counts"] or 9, one["ngram"]) for one in fits]
    best = min([*single, *tests])
    off = {name: [one[name] for one in fits if one.get(name) is not None] for name in OFF}
    table_of = f"{first['counts_bytes'] / 1e6:.2g} MB"
    return [
        text,
        f"{minutes:g} min",
        str(len(fits)),
        spread(tests, "{:.3f}"),
        f"{first['counts']:.3f} ({table_of})" if first["counts"] else "",
        f"{first['ngram']:.3f} ({first['order']})",
        spread([-one for one in ahead], "{:+.1%}"),
        "".join(f"{one['counting']:.3f} ({one['bytes'] / 1e6:.3g} MB)" for one in wide),
        spread([one / best - 1 for one in tests] if single else [], "{:+.1%}"),
        *(spread(off[name], "{:.0%}") for name in OFF),
        ", ".join(dict.fromkeys(f"`{one['pattern']}`" for one in fits)),
    ]


def written(every: list[dict[str, Any]]) -> str:
    """The table, without columns that are empty."""
    found = rows(every)
    full = [n for n in range(len(HEADS)) if any(cells[n] for cells in found)]
    lines = table([HEADS[n] for n in full], [[cells[n] for n in full] for cells in found])
    return "\n".join([*lines, "", made_on(every, "two threads")])


def spread(values: list[float], form: str) -> str:
    """The mean, and the least and the most where there are several."""
    if not values:
        return ""
    said = form.format(statistics.fmean(values))
    if len(values) > 1:
        said += f" ({form.format(min(values))} … {form.format(max(values))})"
    return said.replace("-", "−")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("texts", nargs="*", metavar="TEXT")
    parser.add_argument("--folder", type=Path, help="where runs are kept")
    parser.add_argument("--minutes", type=float, default=6.0, help="for each fit (default 6)")
    parser.add_argument("--seeds", type=int, default=1, help="(default 1)")
    parser.add_argument("--alone", action="store_true", help="train the winner by itself as well")
    parser.add_argument(
        "--counts-of-size", action="store_true", help="count in as many bytes as winners have"
    )
    parser.add_argument("--write", action="store_true", help="write the document")
    asked = parser.parse_args()
    if asked.write:
        into_document(DOCUMENT, "fit", written(known(RESULTS)))
        return
    if asked.counts_of_size:
        for text in asked.texts:
            count_as_much(text, asked.minutes)
        return
    if asked.folder is None:
        parser.error("--folder says where runs are kept")
    seconds = 60 * asked.minutes
    for seed in range(asked.seeds):
        for text in asked.texts:
            name = Path(text).stem
            run = asked.folder / f"{name}-{seconds:.0f}s-{seed}"
            key = {"text": name, "minutes": asked.minutes, "seed": seed}
            if not known(RESULTS, part="fit", **key):
                keep(RESULTS, {"part": "fit", **key, **fitted(text, run, seconds, seed)})
            if asked.alone and not known(RESULTS, part="alone", **key):
                keep(RESULTS, {"part": "alone", **key, **alone(run, seconds)})


if __name__ == "__main__":
    main()
