"""How does the best learning rate follow a model's width and depth?

    python benchmarks/rates.py --folder FOLDER --text FILE [--jobs 2]
    python benchmarks/rates.py --folder FOLDER --text FILE --write

The first trains whatever is missing: models of `pocket`'s kind from 32 to 512 wide and 4 to 32
blocks deep, each at five rates, all with the same short training; the second writes the table
of docs/training.md from the results.
"""

from __future__ import annotations

import argparse
import json
import math
from concurrent.futures import ProcessPoolExecutor
from datetime import date
from pathlib import Path

import torch
from learns import into_document

from parformer.data.batches import sample
from parformer.data.corpora import find_corpus
from parformer.data.tokens import prepare
from parformer.evaluate.perplexity import evaluate
from parformer.measure.device import describe_device
from parformer.model import build_from
from parformer.recipe import Recipe, read_recipe
from parformer.store.files import cache_folder
from parformer.train.distributed import Workers
from parformer.train.plan import fit_vocabulary
from parformer.train.schedule import rate_for
from parformer.train.session import Session

DOCUMENT = Path(__file__).parents[1] / "docs" / "training.md"
MODELS = [
    ("sf", 32, 4),
    ("sf", 32, 16),
    ("sf", 64, 8),
    ("sf", 128, 4),
    ("sf", 128, 12),
    ("sf", 128, 32),
    ("sf", 256, 4),
    ("sf", 512, 4),
    ("rf", 32, 8),
    ("rf", 128, 8),
    ("rf", 256, 8),
    ("rsf", 128, 12),
]
"""Blocks that take turns, width, and how many blocks."""
RATES = (0.002, 0.004, 0.008, 0.016, 0.032)
UPDATES = 150
SCORED = 65_536


def recipe_of(text: str, letters: str, width: int, blocks: int, rate: float) -> Recipe:
    pattern = (letters * blocks)[:blocks]
    changes = {
        "data.corpus": text,
        "model.pattern": pattern,
        "model.d_model": width,
        "model.d_inner": 3 * width,
        "model.d_attention": width,
        "model.n_head": max(2, width // 32),
        "model.tgt_len": 64,
        "model.mem_len": 64,
        "train.steps": UPDATES,
        "train.warmup": UPDATES // 10,
        "train.learning_rate": rate,
        "train.precision": "fp32",
        "train.kernels": "native",
    }
    return read_recipe("pocket", changes)


def train_one(job: tuple[Path, str, str, int, int, float]) -> str:
    """One short training, its bits on validation text."""
    root, text, letters, width, blocks, rate = job
    file = root / f"{letters}-{width}-{blocks}-{rate:g}.json"
    if file.is_file():
        return f"{file.name}: there already"
    torch.set_num_threads(1)
    recipe = recipe_of(text, letters, width, blocks, rate)
    prepared = prepare(find_corpus(text), "byte", cache=cache_folder())
    recipe = fit_vocabulary(recipe, prepared.tokenizer, lambda _: None)
    session = Session(recipe, prepared.splits["train"].tokens, workers=Workers())
    for step in range(UPDATES):
        session.update(step)
    model = build_from(recipe.model, {n: p.detach() for n, p in session.model.named_parameters()})
    tokens = sample(prepared.splits["valid"].tokens, SCORED)
    bits = evaluate(model, tokens, batch=8).loss / math.log(2)
    file.write_text(json.dumps({"bits": bits}), "utf-8")
    return f"{file.name}: {bits:.3f} bits"


def table(root: Path) -> str:
    """A row per model, a column per rate; bold is the best, the last column is the rule's."""
    usual, known = read_recipe("pocket").train.learning_rate, read_recipe("pocket").model
    lines = [
        f"| pattern | width | {' | '.join(f'{rate:g}' for rate in RATES)} | the rule gives |",
        f"|---|---:|{'---:|' * len(RATES)}---:|",
    ]
    for letters, width, blocks in MODELS:
        bits = []
        for rate in RATES:
            file = root / f"{letters}-{width}-{blocks}-{rate:g}.json"
            bits.append(json.loads(file.read_text())["bits"] if file.is_file() else math.inf)
        cells = [
            f"**{b:.3f}**" if b == min(bits) else "–" if math.isinf(b) else f"{b:.3f}" for b in bits
        ]
        config = recipe_of("any", letters, width, blocks, 0.001).model
        rule = rate_for(config, usual, known)
        lines.append(f"| `{config.pattern}` | {width} | {' | '.join(cells)} | {rule:.2g} |")
    device = describe_device(1)
    lines += ["", f"{device.cpu}, one thread each, torch {device.torch}, {date.today()}."]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="where results are kept")
    parser.add_argument("--text", required=True, help="the text to train on")
    parser.add_argument("--jobs", type=int, default=2, help="trainings at a time (default 2)")
    parser.add_argument("--write", action="store_true", help="write the document")
    given = parser.parse_args()
    if given.write:
        into_document(DOCUMENT, "rates", table(given.folder))
        return
    given.folder.mkdir(parents=True, exist_ok=True)
    jobs = [(given.folder, given.text, *model, rate) for model in MODELS for rate in RATES]
    with ProcessPoolExecutor(given.jobs) as pool:
        for line in pool.map(train_one, jobs):
            print(line, flush=True)


if __name__ == "__main__":
    main()
