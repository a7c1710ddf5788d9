"""Do fits end in time, with a model better than counting or a sentence that says it is not?

    python benchmarks/fits.py TEXTS --folder FOLDER [--minutes 2 4]
    python benchmarks/fits.py TEXTS --folder FOLDER [--minutes 2 4] --write

The first runs `parformer fit` on every file of a folder of texts, as a user would, with defaults
and `--limit latency=0.8x`, whatever is missing; the second writes docs/experiments/fits.md. A
measurement of time: the machine should have nothing else to do.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
from datetime import date
from pathlib import Path

from learns import into_document

from parformer.fitting.result import FitResult
from parformer.measure.device import describe_device

DOCUMENT = Path(__file__).parents[1] / "docs" / "experiments" / "fits.md"
LIMIT = "latency=0.8x"
CLOCK = "clock.json"


def fit_one(text: Path, folder: Path, minutes: float) -> None:
    """One fit by the command line, and what the clock on the wall says."""
    run = run_of(text, folder, minutes)
    if (run / CLOCK).is_file():
        return
    words = [sys.executable, "-m", "parformer", "fit", str(text), "--limit", LIMIT]
    words += ["--time", f"{60 * minutes:.0f}s", "--run", str(run)]
    began = time.monotonic()
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    seconds = time.monotonic() - began
    if not run.is_dir():
        raise SystemExit(f"{text.name}: {done.stderr.strip() or done.stdout.strip()}")
    known = {"seconds": seconds, "status": done.returncode, "said": done.stdout[-4000:]}
    (run / CLOCK).write_text(json.dumps(known, indent=1), "utf-8")
    print(f"{run.name}: {seconds:.0f} s, status {done.returncode}", flush=True)


def run_of(text: Path, folder: Path, minutes: float) -> Path:
    return folder / f"{text.stem}-{minutes:g}m"


def row(text: Path, folder: Path, minutes: float) -> list[str] | None:
    run = run_of(text, folder, minutes)
    if not (run / CLOCK).is_file():
        return None
    clock = json.loads((run / CLOCK).read_text("utf-8"))
    cells = [text.stem, f"{text.stat().st_size / 1e6:.2g} MB", f"{minutes:g} min"]
    cells.append(f"{clock['seconds'] / 60:.1f} min")
    if clock["status"]:
        return [*cells, "", "", "", "", f"status {clock['status']}"]
    found = FitResult.load(run)
    split = "test" if "test" in found.references else "valid"
    known, final = found.references[split], found.final
    loss = final.loss(split) if final else None
    counted = known.best[1]
    ahead = "" if loss is None else f"{loss / counted - 1:+.1%}"
    chosen = found.choice
    return [
        *cells,
        bits(loss),
        f"{bits(counted)} ({known.best[0]})",
        ahead.replace("-", "−"),
        f"`{chosen.pattern}`" if chosen else "none",
        found.verdict.headline,
    ]


def bits(loss: float | None) -> str:
    return "" if loss is None or not math.isfinite(loss) else f"{loss / math.log(2):.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("texts", type=Path, help="a folder of texts")
    parser.add_argument("--folder", type=Path, required=True, help="where runs are kept")
    parser.add_argument("--minutes", type=float, nargs="+", default=[2.0, 4.0])
    parser.add_argument("--write", action="store_true", help="write the document")
    asked = parser.parse_args()
    texts = sorted(file for file in asked.texts.iterdir() if file.is_file())
    asked.folder.mkdir(parents=True, exist_ok=True)
    if not asked.write:
        for minutes in asked.minutes:
            for text in texts:
                fit_one(text, asked.folder, minutes)
        return
    rows = [row(text, asked.folder, minutes) for text in texts for minutes in asked.minutes]
    heads = ["text", "size", "asked", "took", "bits per byte", "best counting"]
    heads += ["beside it", "chosen", "verdict"]
    lines = [f"| {' | '.join(heads)} |", "|---|---:|---:|---:|---:|---:|---:|---|---|"]
    lines += [f"| {' | '.join(cells)} |" for cells in rows if cells]
    device = describe_device()
    lines += ["", f"{device.cpu}, {device.cores} cores, torch {device.torch}, {date.today()}."]
    into_document(DOCUMENT, "fits", "\n".join(lines))


if __name__ == "__main__":
    main()
