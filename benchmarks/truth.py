"""Which patterns are good, really? A table of truth that ways to search are judged by.

    python benchmarks/truth.py --folder FOLDER --texts FILE FILE [--jobs 2] [--patterns 160]
    python benchmarks/truth.py --folder FOLDER --texts FILE FILE --write

The first trains whatever is missing, every pattern on every text for equally many updates; the
second writes benchmarks/truth.json. Patterns have 6 to 12 blocks of attention, feed-forward,
recurrence and memory; the letter i of a search is a block that is not there, so it is covered by
patterns of fewer blocks. The rate stays after its warm-up and falls in the last third, so a
validation on the way is what a shorter training would have seen. Models learn alone; with
--counts they learn beside a table of n-grams, as those of a fit do, which leaves so little to
tell them apart that it takes many times as long to see.

Times are those of the processor, not of the clock: other work beside does not change them much.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import torch

from parformer.costs import cost
from parformer.data.batches import sample
from parformer.data.corpora import find_corpus
from parformer.data.tokens import Prepared, prepare
from parformer.evaluate.perplexity import evaluate
from parformer.measure.device import describe_device
from parformer.pattern import Pattern, par
from parformer.recipe import Recipe, read_recipe
from parformer.store.files import cache_folder
from parformer.train.distributed import Workers
from parformer.train.plan import find_kernels
from parformer.train.schedule import rate_for
from parformer.train.session import Session

TABLE = Path(__file__).parent / "truth.json"
LETTERS = "sfrn"
BLOCK = {"r": "r[width=64]"}
"""A recurrence as wide inside as the stream, so that it weighs as much as attention."""
MOST_MEMORIES = 2
SHORTEST, LONGEST = 6, 12
STEPS = 400
LOOKS = (40, 80, 140, 200, 280, 400)
"""Updates after which a model is validated."""
GLANCE, SCORED = 8192, 32_768
"""Tokens of the valid split in a validation on the way, and in the last one."""
SEEDED = 8
"""Patterns that are trained with three seeds, to tell what a difference is worth."""
SETTINGS: dict[str, Any] = {
    "model.d_model": 64,
    "model.n_head": 4,
    "model.d_inner": 192,
    "model.tgt_len": 64,
    "model.mem_len": 64,
    "train.steps": STEPS,
    "train.warmup": 20,
    "train.schedule": "trapezoid",
    "train.batch": 16,
    "train.precision": "fp32",
    "train.compile": "off",
    "train.threads": 1,
}

COUNTS = {"model.counts": 2_000_000, "model.recall": 2048}


Jobs = list[tuple[Path, Path, str, int, bool]]


def spelled(letters: str) -> Pattern:
    """The pattern of these letters, with the sizes of this table."""
    return Pattern.parse("".join(BLOCK.get(letter, letter) for letter in letters))


def usual(blocks: int) -> list[str]:
    """What one would try without a search, as letters."""
    half, rest = blocks // 2, "f" * (blocks % 2)
    return [
        "sf" * half + rest,
        par(blocks, 5).letters,
        "rf" * half + rest,
        "n" + "rf" * ((blocks - 1) // 2) + "f" * ((blocks - 1) % 2),
        "n" + "sf" * ((blocks - 1) // 2) + "f" * ((blocks - 1) % 2),
        "r" * blocks,
        "rrrs" * (blocks // 4) + "rf"[: blocks % 4],
        "f" * blocks,
    ]


def drawn(count: int, seed: int = 0) -> list[str]:
    """Patterns as letters: the usual ones of every even depth, then random mixes."""
    rng = Random(seed)
    found = dict.fromkeys(
        letters for blocks in range(SHORTEST, LONGEST + 1, 2) for letters in usual(blocks)
    )
    while len(found) < count:
        blocks = rng.randint(SHORTEST, LONGEST)
        shares = [rng.expovariate(1.0) for _ in LETTERS]
        letters = "".join(rng.choices(LETTERS, shares, k=blocks))
        if letters.count("n") <= MOST_MEMORIES:
            found.setdefault(letters)
    return list(found)[:count]


def recipe_of(letters: str, text: Path, seed: int, *, counts: bool = False) -> Recipe:
    changes = {
        **SETTINGS,
        **(COUNTS if counts else {}),
        "data.corpus": str(text),
        "model.pattern": str(spelled(letters)),
        "train.seed": seed,
        "train.kernels": find_kernels(Workers()),
    }
    known, recipe = read_recipe("pocket"), read_recipe("pocket", changes)
    once = rate_for(recipe.model, known.train.learning_rate, known.model)
    return recipe.replaced({"train.learning_rate": float(f"{once:.2g}")})


def read(text: Path) -> Prepared:
    return prepare(find_corpus(str(text)), "byte", cache=cache_folder())


def train_one(job: tuple[Path, Path, str, int, bool]) -> str:
    """One training: validations on the way and at the end, and what an update takes."""
    root, text, letters, seed, counts = job
    file = root / f"{text.stem}-{letters}-{seed}{'-counts' if counts else ''}.json"
    if file.is_file():
        return f"{file.stem}: there already"
    torch.set_num_threads(1)
    prepared = read(text)
    recipe = recipe_of(letters, text, seed, counts=counts)
    session = Session(recipe, prepared.splits["train"].tokens, workers=Workers())
    valid = prepared.splits["valid"].tokens
    curve, spent = dict[int, float](), 0.0
    for step in range(STEPS):
        began = time.process_time()
        session.update(step)
        spent += time.process_time() - began
        if step + 1 in LOOKS:
            many = SCORED if step + 1 == STEPS else GLANCE
            session.model.eval()
            curve[step + 1] = evaluate(session.model, sample(valid, many), batch=8).loss
            session.model.train()
    found = {"curve": curve, "seconds": spent / STEPS}
    file.write_text(json.dumps(found), "utf-8")
    return f"{file.stem}: {curve[STEPS] / math.log(2):.4f} bits, {spent:.0f} s"


def jobs_of(root: Path, texts: Sequence[Path], patterns: Sequence[str], *, counts: bool) -> Jobs:
    """All trainings, a text after the other, since counting a text is done once."""
    once = [(root, text, letters, 0, counts) for text in texts for letters in patterns]
    some = [] if counts else patterns[:: max(1, len(patterns) // SEEDED)][:SEEDED]
    again = [(root, text, letters, s, False) for text in texts for letters in some for s in (1, 2)]
    return once + again


def write(root: Path, texts: Sequence[Path], patterns: Sequence[str]) -> None:
    """The table, from what was trained."""
    rows = []
    for letters in patterns:
        price = cost(recipe_of(letters, texts[0], 0).model)
        found = {text.stem: trained(root, text, letters) for text in texts}
        if all(found.values()):
            sizes = {"parameters": price.parameters, "flops": price.flops_cached}
            rows.append({"letters": letters, **sizes, "texts": found})
    device = describe_device(1)
    about = {
        "cpu": device.cpu,
        "torch": device.torch,
        "steps": STEPS,
        "looks": LOOKS,
        "settings": SETTINGS,
        "blocks": {letter: BLOCK.get(letter, letter) for letter in LETTERS},
    }
    lines = ",\n  ".join(json.dumps(row) for row in rows)
    TABLE.write_text(f'{{"about": {json.dumps(about)},\n "rows": [\n  {lines}\n]}}\n', "utf-8")
    print(f"{len(rows)} patterns in {TABLE.name}")


def trained(root: Path, text: Path, letters: str) -> list[dict[str, Any]]:
    """Losses by update of every seed there is."""
    files = sorted(root.glob(f"{text.stem}-{letters}-[0-9].json"))
    found = [json.loads(file.read_text("utf-8")) for file in files]
    return [
        {
            "losses": [round(one["curve"][str(look)], 5) for look in LOOKS],
            "seconds": round(one["seconds"], 5),
        }
        for one in found
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--texts", type=Path, nargs="+", required=True)
    parser.add_argument("--patterns", type=int, default=160)
    parser.add_argument("--counts", action="store_true", help="learn beside counts")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    patterns = drawn(asked.patterns)
    if asked.write:
        write(asked.folder, asked.texts, patterns)
        return
    for text in asked.texts:
        read(text)
    with ProcessPoolExecutor(asked.jobs) as pool:
        jobs = jobs_of(asked.folder, asked.texts, patterns, counts=asked.counts)
        for number, said in enumerate(pool.map(train_one, jobs), start=1):
            print(f"{number}/{len(jobs)} {said}", flush=True)


if __name__ == "__main__":
    main()
