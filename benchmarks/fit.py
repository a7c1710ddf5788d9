"""What does a fit reach in so many minutes, beside counting, and beside one model by itself?

    python benchmarks/fit.py TEXT … --folder FOLDER [--minutes 6] [--seeds 1] [--alone]
    python benchmarks/fit.py --write

fits every text (a file, or the name of a corpus) within `latency=0.8x` and adds a line for each to
benchmarks/fit.jsonl: the bits of the model on test text, beside those of the best n-gram and of the
same counts alone. With `--alone` the winner is then trained from scratch, by itself, for the whole
time: what a fit is above that is its regret. What is there already is not done again; a quiet
machine is yours to see to. `--write` puts the table into docs/fitting.md.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from pathlib import Path
from typing import Any

from inference import table
from kept import keep, known, made_on
from learns import into_document

import parformer as pf
from parformer.fitting.result import FitResult
from parformer.fitting.running import TESTED
from parformer.train.run import CONFIG, read_result

DOCUMENT = Path(__file__).parents[1] / "docs" / "fitting.md"
RESULTS = Path(__file__).with_name("fit.jsonl")
LIMIT = "latency=0.8x"


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
        "updates": final.steps,
        "predicted_off": found.profile.median_error if found.profile else None,
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


def rows(every: list[dict[str, Any]]) -> list[list[str]]:
    found = []
    for key in sorted({(one["text"], one["minutes"]) for one in every}):
        some = [one for one in every if (one["text"], one["minutes"]) == key]
        fits = [one for one in some if one["part"] == "fit"]
        single = {one["seed"]: one["alone"] for one in some if one["part"] == "alone"}
        if not fits:
            continue
        first = fits[0]
        ahead = [1 - one["test"] / min(one["counts"] or 9, one["ngram"]) for one in fits]
        regret = [one["test"] / single[one["seed"]] - 1 for one in fits if one["seed"] in single]
        off = [one["predicted_off"] for one in fits if one["predicted_off"] is not None]
        found.append(
            [
                key[0],
                f"{key[1]:g} min",
                str(len(fits)),
                spread([one["test"] for one in fits], "{:.3f}"),
                f"{first['counts']:.3f} ({first['counts_bytes'] / 1e6:.2g} MB)"
                if first["counts"]
                else "",
                f"{first['ngram']:.3f} ({first['order']})",
                spread([-one for one in ahead], "{:+.1%}"),
                spread(regret, "{:+.1%}"),
                spread(off, "{:.0%}"),
                ", ".join(dict.fromkeys(f"`{one['pattern']}`" for one in fits)),
            ]
        )
    return found


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
    parser.add_argument("--write", action="store_true", help="write the document")
    asked = parser.parse_args()
    if asked.write:
        every = known(RESULTS)
        heads = ["text", "time", "seeds", "bits", "counts alone", "best n-gram"]
        heads += ["beside counting", "regret", "latency predicted, off by", "winners"]
        lines = [*table(heads, rows(every)), "", made_on(every, "two threads")]
        into_document(DOCUMENT, "fit", "\n".join(lines))
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
