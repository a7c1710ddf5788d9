"""Which rate suits a training of so many updates, beside counts?

    python benchmarks/late_rates.py TEXT … [--updates 300 1200] [--rungs 1] [--threads 1]
    python benchmarks/late_rates.py --write

Trains interleaved models of `fit`'s ladder beside counts with `fit`'s own schedule, each at several
rates, whatever is missing, and adds a line for each to benchmarks/late_rates.jsonl; `--write` puts
the table into docs/training.md.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from kept import keep, known, made_on
from learns import into_document
from sizing import over_counts, trained

import parformer as pf
from parformer.fitting.rungs import LADDER, rung
from parformer.pattern import Pattern

DOCUMENT = Path(__file__).parents[1] / "docs" / "training.md"
RESULTS = Path(__file__).with_name("late_rates.jsonl")
RATES = (0.006, 0.003, 0.012, 0.024, 0.0015)


def table(every: list[dict[str, Any]]) -> str:
    """A row per model and length, a column per rate; bold is the best."""
    rates = sorted({one["rate"] for one in every})
    lines = [f"| text | pattern | width | updates | {' | '.join(f'{r:g}' for r in rates)} |"]
    lines.append(f"|---|---|---:|---:|{'---:|' * len(rates)}")
    for key in sorted({(o["text"], o["width"], o["pattern"], o["updates"]) for o in every}):
        names = ("text", "width", "pattern", "updates")
        some = [one for one in every if tuple(one[name] for name in names) == key]
        best = min(one["valid"] for one in some)
        told = {
            one["rate"]: f"**{one['valid']:.3f}**"
            if one["valid"] == best
            else f"{one['valid']:.3f}"
            for one in some
        }
        text, width, pattern, updates = key
        cells = [text, f"`{pattern}`", str(width), f"{updates:,}"]
        lines.append(f"| {' | '.join(cells + [told.get(rate, '') for rate in rates])} |")
    return "\n".join([*lines, "", made_on(every, "one thread each")])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("texts", nargs="*", metavar="TEXT")
    parser.add_argument("--updates", type=int, nargs="+", default=[300, 1200])
    parser.add_argument("--rates", type=float, nargs="+", default=RATES)
    parser.add_argument("--rungs", type=int, nargs="+", default=[1])
    parser.add_argument("--letters", default="sf", help="blocks that take turns (default sf)")
    parser.add_argument("--threads", type=int, default=1, help="(default 1)")
    parser.add_argument("--write", action="store_true", help="write the document")
    given = parser.parse_args()
    if given.write:
        into_document(DOCUMENT, "late-rates", table(known(RESULTS)))
        return
    for updates in given.updates:
        for number in given.rungs:
            config = rung(pf.preset("pocket"), *LADDER[number])
            blocks = len(config.pattern)
            pattern = Pattern.parse((given.letters * blocks)[:blocks])
            config = config.replaced(pattern=pattern)
            for rate in given.rates:
                for text in given.texts:
                    key = {"text": Path(text).stem, "pattern": str(pattern), "rate": rate}
                    key |= {"width": config.d_model, "updates": updates}
                    if known(RESULTS, **key):
                        continue
                    changes = [
                        *over_counts(config), f"train.threads={given.threads}",
                        f"train.learning_rate={rate}", f"train.steps={updates}",
                        f"train.warmup={updates // 10}", "train.schedule=trapezoid",
                    ]  # fmt: skip
                    keep(RESULTS, {**trained(text, changes), **key})


if __name__ == "__main__":
    main()
