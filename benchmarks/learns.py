"""Does every pocket recipe learn, on any text?

    python benchmarks/learns.py --texts FOLDER [--jobs 2] [--seeds 3]
    python benchmarks/learns.py --write

The first trains every pocket preset on every file of a folder of texts, whatever is missing, 300
updates each, and adds a line for each to benchmarks/learns.jsonl; the second writes
docs/experiments/learns.md from there. What must come out: on texts of 1 MB and more every model
ends below a counted bigram of its own tokens.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import statistics
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from datetime import date
from functools import cache
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
RESULTS = Path(__file__).with_name("learns.jsonl")
OF_BYTES = (
    "pocket",
    "par-pocket",
    "llama-pocket",
    "srupp-pocket",
    "lite-pocket",
    "synthesizer-pocket",
    "pocket-post",
)
OF_PIECES = ("gpt2-pocket", "bert-pocket", "mobilebert-pocket", "albert-pocket")
PRESETS = (*OF_BYTES, *OF_PIECES)
UPDATES = 300
SCORED = 65_536
"""Tokens of the test split that models and counts are scored on."""
LARGE = 1_000_000
"""Bytes of a text that a model has to learn something from in so many updates."""


def train_one(job: tuple[Path, str, int, str]) -> dict[str, Any]:
    """One training: its loss on test text beside what counting has there."""
    text, preset, seed, precision = job
    torch.set_num_threads(1)
    recipe, prepared = read(text, preset, seed, precision)
    session = Session(recipe, prepared.splits["train"].tokens, workers=Workers())
    for step in range(UPDATES):
        session.update(step)
    model = build_from(recipe.model, whole_weights(session.model))
    tokens = sample(prepared.splits["test"].tokens, SCORED)
    score = evaluate(model, tokens, batch=8)
    counted = references_of(prepared, {"valid": tokens, "test": tokens}, xz=False)["test"]
    split = prepared.splits["test"]
    return {
        **key_of(text, preset, seed),
        "precision": precision,
        "loss": score.loss,
        "references": counted.to_dict(),
        "bytes": sum(one.bytes for one in prepared.splits.values()),
        "bytes_per_token": split.bytes / len(split.tokens),
        "masked": score.kind != "perplexity",
        "cpu": describe_device(1).cpu,
        "date": str(date.today()),
    }


def key_of(text: Path, preset: str, seed: int) -> dict[str, Any]:
    """What a result is told apart by: texts of one name need not be the same on two machines."""
    return {"text": text.stem, "digest": digest_of(text), "preset": preset, "seed": seed}


@cache
def digest_of(text: Path) -> str:
    return hashlib.sha256(text.read_bytes()).hexdigest()[:12]


def sentence(found: dict[str, Any]) -> str:
    known, scale = found["references"], math.log(2)
    verdict = "learned" if learned(found) else "NOT LEARNED"
    return (
        f"{found['text']}, {found['preset']}, seed {found['seed']}: {found['loss'] / scale:.3f} "
        f"bits per token, bigram {known['bigram'] / scale:.3f}, {known['order']}-gram "
        f"{known['ngram'] / scale:.3f}: {verdict}"
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


def known_results() -> list[dict[str, Any]]:
    if not RESULTS.is_file():
        return []
    return [json.loads(line) for line in RESULTS.read_text("utf-8").splitlines()]


def tables(known: list[dict[str, Any]]) -> str:
    """Models of bytes beside counts of bytes, models of pieces as parts of their own bigram."""
    newest = {one["text"]: one["digest"] for one in known}
    known = [one for one in known if one["digest"] == newest[one["text"]]]
    texts = {
        text: [one for one in known if one["text"] == text]
        for text in sorted(newest)
        if any(one["text"] == text and one["bytes_per_token"] == 1 for one in known)
    }
    of_bytes = [preset for preset in OF_BYTES if any(one["preset"] == preset for one in known)]
    heads = ["text", "size", "letters", "bigram", "n-gram", *of_bytes]
    bytes_rows = [[text, *counted(found), *cells(found, of_bytes)] for text, found in texts.items()]
    piece_rows = [[text, *cells(found, OF_PIECES)] for text, found in texts.items()]
    where = " and ".join(sorted({one["cpu"] for one in known}))
    when = max(one["date"] for one in known)
    return "\n".join(
        [
            *markdown(heads, bytes_rows),
            "",
            "Models of pieces, as parts of what the bigram of their own pieces has:",
            "",
            *markdown(["text", *OF_PIECES], piece_rows),
            "",
            summary([one for found in texts.values() for one in found]),
            "",
            f"{where}, one thread each, torch {torch.__version__}, {when}.",
        ]
    )


def markdown(heads: Sequence[str], rows: list[list[str]]) -> list[str]:
    lines = [f"| {' | '.join(heads)} |", f"|---|{'---:|' * (len(heads) - 1)}"]
    return lines + [f"| {' | '.join(row)} |" for row in rows]


def counted(found: list[dict[str, Any]]) -> list[str]:
    """The size of a text, and what counts of its bytes reach."""
    first = next(one for one in found if one["bytes_per_token"] == 1)
    counts = first["references"]
    row = [f"{bits(counts[name], first):.3f}" for name in ("unigram", "bigram", "ngram")]
    return [f"{first['bytes'] / 1e6:.1f} MB", *row[:-1], f"{row[-1]} ({counts['order']})"]


def cells(found: list[dict[str, Any]], presets: Sequence[str]) -> list[str]:
    return [cell([one for one in found if one["preset"] == preset]) for preset in presets]


def summary(known: list[dict[str, Any]]) -> str:
    """How many of today's recipes learned nothing where there was enough to learn."""
    asked = [one for one in known if one["bytes"] >= LARGE and one["preset"] != "pocket-post"]
    texts = {one["text"] for one in asked}
    failed = [f"{one['text']} with {one['preset']}" for one in asked if not learned(one)]
    said = f"Of {len(asked)} trainings of today's recipes on the {len(texts)} texts of 1 MB and "
    said += f"more, {len(failed)} ended above the bigram"
    named = [f"{name} ({failed.count(name)})" for name in sorted(set(failed))]
    return said + (f": {', '.join(named)}." if failed else ".")


def learned(found: dict[str, Any]) -> bool:
    return bool(found["loss"] < found["references"]["bigram"])


def cell(found: list[dict[str, Any]]) -> str:
    """The mean and how far seeds lie apart; what did not learn is struck out."""
    if not found:
        return ""
    pieces = found[0]["preset"] in OF_PIECES
    values = [
        one["loss"] / one["references"]["bigram"] if pieces else bits(one["loss"], one)
        for one in found
    ]
    words = f"{statistics.mean(values):.3f}"
    if len(values) > 1:
        words += f" ± {statistics.stdev(values):.3f}"
    return words if all(map(learned, found)) else f"~~{words}~~"


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
    parser.add_argument("--texts", type=Path, help="a folder of texts")
    parser.add_argument("--presets", nargs="+", default=PRESETS, help="(default: all)")
    parser.add_argument("--seeds", type=int, default=3, help="(default 3)")
    parser.add_argument("--jobs", type=int, default=2, help="trainings at a time (default 2)")
    parser.add_argument("--precision", default="fp32", help="(default fp32)")
    parser.add_argument("--write", action="store_true", help="write the document")
    given = parser.parse_args()
    known = known_results()
    if given.write:
        into_document(DOCUMENT, "learns", tables(known))
        return
    if given.texts is None:
        parser.error("--texts FOLDER says where texts are")
    texts = sorted(file for file in given.texts.iterdir() if file.is_file())
    jobs = [
        (text, preset, seed, given.precision)
        for seed in range(given.seeds)
        for preset in given.presets
        for text in texts
        if not any(key_of(text, preset, seed).items() <= one.items() for one in known)
    ]
    with ProcessPoolExecutor(given.jobs) as pool, RESULTS.open("a", encoding="utf-8") as file:
        for done in as_completed([pool.submit(train_one, job) for job in jobs]):
            found = done.result()
            file.write(json.dumps(found) + "\n")
            file.flush()
            print(sentence(found), flush=True)


if __name__ == "__main__":
    main()
