"""Does every pocket recipe learn, on any text?

    python benchmarks/learns.py --folder FOLDER --texts FOLDER [--jobs 2] [--seeds 3]
    python benchmarks/learns.py --folder FOLDER --texts FOLDER --write

The first trains every pocket preset on every file of a folder of texts, whatever is missing, 300
updates each; the second writes docs/experiments/learns.md from the results. What must come out:
on texts of 1 MB and more every model ends below a counted bigram of its own tokens.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from concurrent.futures import ProcessPoolExecutor
from datetime import date
from pathlib import Path
from typing import Any

import torch

from parformer.data.batches import sample
from parformer.data.corpora import find_corpus
from parformer.data.tokens import Prepared, prepare
from parformer.evaluate.counting import references_of
from parformer.evaluate.perplexity import evaluate
from parformer.measure.device import describe_device
from parformer.model import build_from
from parformer.recipe import Recipe, read_recipe
from parformer.store.files import cache_folder
from parformer.train.distributed import Workers, whole_weights
from parformer.train.plan import find_kernels, fit_vocabulary
from parformer.train.session import Session

DOCUMENT = Path(__file__).parents[1] / "docs" / "experiments" / "learns.md"
PRESETS = (
    "pocket",
    "par-pocket",
    "llama-pocket",
    "gpt2-pocket",
    "srupp-pocket",
    "bert-pocket",
    "pocket-post",
)
UPDATES = 300
SCORED = 65_536
"""Tokens of the test split that models and counts are scored on."""
LARGE = 1_000_000
"""Bytes of a text that a model has to learn something from in so many updates."""


def train_one(job: tuple[Path, Path, str, int, str]) -> str:
    """One training, its loss on test text beside what counting has there."""
    root, text, preset, seed, precision = job
    file = root / f"{text.stem}-{preset}-{seed}.json"
    if file.is_file():
        return f"{file.stem}: there already"
    torch.set_num_threads(1)
    recipe, prepared = read(text, preset, seed, precision)
    session = Session(recipe, prepared.splits["train"].tokens, workers=Workers())
    losses = [float(session.update(step)[0]) for step in range(UPDATES)]
    model = build_from(recipe.model, whole_weights(session.model))
    tokens = sample(prepared.splits["test"].tokens, SCORED)
    score = evaluate(model, tokens, batch=8)
    counted = references_of(prepared, {"valid": tokens, "test": tokens}, xz=False)["test"]
    split = prepared.splits["test"]
    found = {
        "loss": score.loss,
        "curve": losses[9::10],
        "references": counted.to_dict(),
        "bytes": sum(one.bytes for one in prepared.splits.values()),
        "bytes_per_token": split.bytes / len(split.tokens),
        "masked": score.kind != "perplexity",
    }
    file.write_text(json.dumps(found), "utf-8")
    verdict = "learned" if score.loss < counted.bigram else "NOT LEARNED"
    scale = math.log(2)
    return (
        f"{file.stem}: {score.loss / scale:.3f} bits per token, bigram "
        f"{counted.bigram / scale:.3f}, {counted.order}-gram {counted.ngram / scale:.3f}: {verdict}"
    )


def read(text: Path, preset: str, seed: int, precision: str) -> tuple[Recipe, Prepared]:
    changes = {
        "data.corpus": str(text),
        "train.steps": UPDATES,
        "train.seed": seed,
        "train.precision": precision,
        "train.compile": "off",
        "train.kernels": find_kernels(Workers()),
    }
    recipe = read_recipe(preset, changes)
    data = recipe.data
    prepared = prepare(
        find_corpus(str(text)), data.tokenizer, vocab_size=data.vocab_size, cache=cache_folder()
    )
    return fit_vocabulary(recipe, prepared.tokenizer, lambda _: None), prepared


def results(root: Path, text: Path, preset: str) -> list[dict[str, Any]]:
    files = sorted(root.glob(f"{text.stem}-{preset}-[0-9].json"))
    return [json.loads(file.read_text("utf-8")) for file in files]


def table(root: Path, texts: list[Path]) -> str:
    """A row per text, a column per preset: bits per byte, mean over seeds; counts beside them."""
    heads = ["text", "size", "letters", "bigram", "n-gram", *PRESETS]
    lines = [f"| {' | '.join(heads)} |", f"|---|{'---:|' * (len(heads) - 1)}"]
    failed, trained, large = [], 0, 0
    for text in texts:
        first = results(root, text, PRESETS[0])
        if not first:
            continue
        known, size = first[0]["references"], first[0]["bytes"]
        cells = [f"{size / 1e6:.1f} MB"]
        cells += [f"{bits(known[name], first[0]):.3f}" for name in ("unigram", "bigram", "ngram")]
        cells[-1] += f" ({known['order']})"
        for preset in PRESETS:
            found = results(root, text, preset)
            cells.append(cell(found))
            bad = [one for one in found if one["loss"] >= one["references"]["bigram"]]
            if size >= LARGE and preset != "pocket-post":
                trained += len(found)
                failed += [f"{text.stem} with {preset}"] * len(bad)
        large += size >= LARGE
        lines.append(f"| {text.stem} | {' | '.join(cells)} |")
    said = f"Of {trained} trainings of today's recipes on the {large} texts of 1 MB and more, "
    said += f"{len(failed)} ended above the bigram"
    said += f": {', '.join(sorted(set(failed)))}." if failed else "."
    device = describe_device(1)
    return "\n".join(
        [*lines, "", said, "", f"{device.cpu}, one thread each, torch {device.torch}, "
         f"{date.today()}."]
    )  # fmt: skip


def cell(found: list[dict[str, Any]]) -> str:
    """Mean bits per byte and how far seeds lie apart; what did not learn is struck out."""
    if not found:
        return ""
    values = [bits(one["loss"], one) for one in found]
    words = f"{statistics.mean(values):.3f}"
    if len(values) > 1:
        words += f" ± {statistics.stdev(values):.3f}"
    if any(one["loss"] >= one["references"]["bigram"] for one in found):
        words = f"~~{words}~~"
    return words


def bits(loss: float, found: dict[str, Any]) -> float:
    return loss / math.log(2) / float(found["bytes_per_token"])


def into_document(document: Path, name: str, body: str) -> None:
    """Put a table between the marks that a document has for it."""
    text = document.read_text("utf-8")
    start, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    before, found, rest = text.partition(start)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise SystemExit(f"{document} has no {start} … {end}")
    document.write_text(f"{before}{start}\n{body}\n{end}{after}", "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="where results are kept")
    parser.add_argument("--texts", type=Path, required=True, help="a folder of texts")
    parser.add_argument("--presets", nargs="+", default=PRESETS, help="(default: all)")
    parser.add_argument("--seeds", type=int, default=3, help="(default 3)")
    parser.add_argument("--jobs", type=int, default=2, help="trainings at a time (default 2)")
    parser.add_argument("--precision", default="fp32", help="(default fp32)")
    parser.add_argument("--write", action="store_true", help="write the document")
    given = parser.parse_args()
    texts = sorted(file for file in given.texts.iterdir() if file.is_file())
    if given.write:
        into_document(DOCUMENT, "learns", table(given.folder, texts))
        return
    given.folder.mkdir(parents=True, exist_ok=True)
    jobs = [
        (given.folder, text, preset, seed, given.precision)
        for seed in range(given.seeds)
        for preset in given.presets
        for text in texts
    ]
    with ProcessPoolExecutor(given.jobs) as pool:
        for line in pool.map(train_one, jobs):
            print(line, flush=True)


if __name__ == "__main__":
    main()
