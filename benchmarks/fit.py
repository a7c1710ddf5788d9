"""What does a fit reach in so many minutes, beside counting, and beside one model by itself?

    python benchmarks/fit.py TEXT … --folder FOLDER [--minutes 6] [--seeds 1] [--alone]

fits every text (a file, or the name of a corpus) within `latency=0.8x` and tells the bits of the
model on test text, beside those of the best n-gram and of the same counts alone. With `--alone`
the winner is then trained from scratch, by itself, for the whole time: what a fit is above that
is its regret. What is there already is not done again; a quiet machine is yours to see to.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from inference import table

import parformer as pf
from parformer.fitting.result import FitResult
from parformer.fitting.running import TESTED
from parformer.train.run import CONFIG, read_result

LIMIT = "latency=0.8x"


def fitted(text: str, folder: Path, seconds: float, seed: int) -> FitResult:
    path = folder / f"{Path(text).stem}-{seconds:.0f}s-{seed}"
    return pf.fit(text, run=str(path), time=seconds, limits=(LIMIT,), seed=seed)


def alone(found: FitResult, seconds: float) -> float | None:
    """Test loss of the winner's model, trained by itself for as long."""
    run = Path(found.run)
    path = run.with_name(f"{run.name}-alone")
    changes = ("train.schedule=cosine", f"train.final_tokens={TESTED}")
    pf.train(model=str(run / CONFIG), time=seconds, run=path, changes=changes, beside=False)
    done = read_result(path)
    return None if done is None else done.loss_on("test")


def row(text: str, found: FitResult, single: float | None) -> list[str]:
    def bits(loss: float | None) -> str:
        return "" if loss is None else f"{loss / math.log(2):.3f}"

    final, known = found.final, found.references["test"]
    assert final is not None
    loss = final.loss("test")
    counted = known.best[1]
    regret = ""
    if single is not None:
        regret = f"{(loss or math.nan) / single - 1:+.1%}"
    ahead = "" if loss is None else f"−{1 - loss / counted:.1%}"
    chosen = next(model for model in found.models if model.name == final.name)
    return [
        Path(text).stem,
        bits(loss),
        f"{bits(known.ngram)} ({known.order}-gram)",
        f"{bits(known.table)} ({known.table_bytes / 1e6:.2g} MB)" if known.table else "",
        ahead,
        f"`{chosen.pattern}`",
        f"{final.steps:,}",
        regret,
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("texts", nargs="+", metavar="TEXT")
    parser.add_argument("--folder", type=Path, required=True, help="where runs are kept")
    parser.add_argument("--minutes", type=float, default=6.0, help="for each fit (default 6)")
    parser.add_argument("--seeds", type=int, default=1, help="(default 1)")
    parser.add_argument("--alone", action="store_true", help="train the winner by itself as well")
    asked = parser.parse_args()
    seconds = 60 * asked.minutes
    rows = []
    for text in asked.texts:
        for seed in range(asked.seeds):
            found = fitted(text, asked.folder, seconds, seed)
            single = alone(found, seconds) if asked.alone else None
            rows.append(row(text, found, single))
    heads = [
        "text",
        "bits",
        "best n-gram",
        "counts alone",
        "ahead of counting",
        "winner",
        "updates",
    ]
    print(*table([*heads, "regret"], rows), sep="\n")


if __name__ == "__main__":
    main()
