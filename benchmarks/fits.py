"""Do fits end in time, with a model better than counting or a sentence that says it is not?

    python benchmarks/fits.py TEXTS --folder FOLDER [--minutes 2]
    python benchmarks/fits.py --write

The first runs `parformer fit` on every file of a folder of texts, as a user would, with defaults
and `--limit latency=0.8x`, whatever is missing, and adds a line for each to benchmarks/fits.jsonl;
the second writes docs/experiments/fits.md from there. A measurement of time: the machine should
have nothing else to do.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from inference import table
from kept import keep, known, made_on
from learns import into_document

from parformer.fitting.result import FitResult

DOCUMENT = Path(__file__).parents[1] / "docs" / "experiments" / "fits.md"
RESULTS = Path(__file__).with_name("fits.jsonl")
LIMIT = "latency=0.8x"


def fit_one(text: Path, folder: Path, minutes: float) -> dict[str, Any]:
    """One fit by the command line, and what the clock on the wall says."""
    run = folder / f"{text.stem}-{minutes:g}m"
    words = [sys.executable, "-m", "parformer", "fit", str(text), "--limit", LIMIT]
    words += ["--time", f"{60 * minutes:.0f}s", "--run", str(run)]
    began = time.monotonic()
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    seconds = time.monotonic() - began
    if not run.is_dir():
        raise SystemExit(f"{text.name}: {done.stderr.strip() or done.stdout.strip()}")
    found = {"bytes": text.stat().st_size, "took": round(seconds), "status": done.returncode}
    return found if done.returncode else {**found, **figures(FitResult.load(run))}


def figures(found: FitResult) -> dict[str, Any]:
    split = "test" if "test" in found.references else "valid"
    counting, counted = found.references[split].best
    loss = found.final.loss(split) if found.final else None
    return {
        "split": split,
        "bits": bits(loss),
        "counted": bits(counted),
        "counting": counting,
        "chosen": str(found.choice.pattern) if found.choice else None,
        "verdict": found.verdict.headline,
    }


def bits(loss: float | None) -> float | None:
    return None if loss is None or not math.isfinite(loss) else loss / math.log(2)


def row(one: dict[str, Any]) -> list[str]:
    cells = [one["text"], f"{one['bytes'] / 1e6:.2g} MB", f"{one['minutes']:g} min"]
    cells.append(f"{one['took'] / 60:.1f} min")
    if one["status"]:
        return [*cells, "", "", "", "", f"status {one['status']}"]
    reached, counted = one["bits"], one["counted"]
    return [
        *cells,
        "" if reached is None else f"{reached:.3f}",
        f"{counted:.3f} ({one['counting']})",
        "" if reached is None else f"{reached / counted - 1:+.1%}".replace("-", "−"),
        f"`{one['chosen']}`" if one["chosen"] else "none",
        one["verdict"],
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("texts", nargs="?", type=Path, help="a folder of texts")
    parser.add_argument("--folder", type=Path, help="where runs are kept")
    parser.add_argument("--minutes", type=float, nargs="+", default=[2.0], help="(default 2)")
    parser.add_argument("--write", action="store_true", help="write the document")
    asked = parser.parse_args()
    if asked.write:
        every = sorted(known(RESULTS), key=lambda one: (one["text"], one["minutes"]))
        heads = ["text", "size", "asked", "took", "bits per byte", "best counting"]
        heads += ["beside it", "chosen", "verdict"]
        lines = [*table(heads, map(row, every)), "", made_on(every, "two threads")]
        into_document(DOCUMENT, "fits", "\n".join(lines))
        return
    if asked.texts is None or asked.folder is None:
        parser.error("TEXTS is a folder of texts, and --folder says where runs are kept")
    asked.folder.mkdir(parents=True, exist_ok=True)
    for minutes in asked.minutes:
        for text in sorted(file for file in asked.texts.iterdir() if file.is_file()):
            key = {"text": text.stem, "minutes": minutes}
            if not known(RESULTS, **key):
                keep(RESULTS, {**key, **fit_one(text, asked.folder, minutes)})


if __name__ == "__main__":
    main()
