"""Do the numbers stay what they were while the code around them moves?

    python benchmarks/unchanged.py --write     before a change
    python benchmarks/unchanged.py             after it

Trains eight presets of all families for twenty updates, runs both searches for a few and a fit
by updates, all through the command line, and compares hashes of losses, weights, patterns and
verdicts with those in `unchanged.json`. Equal bits need the same machine and the same torch:
the file says which, and on another one it is written anew from the older code first.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import safetensors.numpy

KEPT = Path(__file__).with_suffix(".json")
PRESETS = {
    "pocket": [],
    "pocket-post": ["--set", "train.optimizer=lamb"],
    "par-pocket": ["--set", "train.optimizer=radam", "--set", "model.dropout=0.1"],
    "llama-pocket": ["--set", "train.precision=bf16"],
    "gpt2-pocket": [
        *("--set", "data.tokenizer=word", "--set", "data.vocab_size=500"),
        *("--set", "train.batch=16"),
    ],
    "bert-pocket": ["--set", "data.tokenizer=character"],
    "srupp-pocket": ["--set", "train.accumulate=2"],
    "transformer-xl-24b-text8": [
        "--set", "model.d_model=64", "--set", "model.d_inner=128", "--set", "model.n_head=4",
        "--set", "model.d_head=16", "--set", "train.batch=4", "--set", "train.tgt_len=32",
        "--set", "train.mem_len=32",
    ],
}  # fmt: skip
SMALL = [
    "--set", "model.d_model=32", "--set", "model.d_inner=64", "--set", "model.n_head=2",
    "--set", "model.d_head=16", "--set", "train.batch=4",
]  # fmt: skip


def text(words: int = 30_000) -> str:
    """Sentences that no machine's own files decide."""
    rng = random.Random(5)
    stems = ["".join(rng.choices("etaoinshrdlu", k=rng.randint(2, 7))) for _ in range(400)]
    weights = [1 / (rank + 1) for rank in range(len(stems))]
    lines = []
    for start in range(0, words, 12):
        chosen = rng.choices(stems, weights, k=12)
        lines.append(" ".join(chosen) + (". " if start % 5 else "?"))
    return "\n".join(lines)


def run(*words: str) -> None:
    """One verb of the command line, alone on one thread."""
    subprocess.run(
        [sys.executable, "-m", "parformer", *words], check=True, stdout=subprocess.DEVNULL
    )


def hashed(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def weights(folder: Path) -> str:
    tensors = safetensors.numpy.load_file(folder / "model.safetensors")
    # today's names as those of version 0.1, which the first hashes were taken with
    tensors = {name.replace("head.out.", "head."): tensor for name, tensor in tensors.items()}
    whole = hashlib.sha256()
    for name in sorted(tensors):
        whole.update(name.encode() + tensors[name].tobytes())
    return whole.hexdigest()[:16]


def losses(run: Path) -> str:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return hashed(
        [{k: v for k, v in x.items() if k in ("step", "loss", "valid_loss")} for x in lines]
    )


def trainings(corpus: str, root: Path) -> Iterator[tuple[str, str]]:
    for name, changes in PRESETS.items():
        run("train", name, "--corpus", corpus, "--run", str(root / name), "--steps", "20",
            "--set", "train.threads=1", "--set", "train.evaluate_every=10",
            "--set", "train.precision=fp32", *changes)  # fmt: skip
        yield f"train {name}: losses", losses(root / name)
        yield f"train {name}: weights", weights(root / name / "model")
        result = json.loads((root / name / "result.json").read_text())
        yield f"train {name}: test", hashed(result["test"]["loss"])


def placements(corpus: str, root: Path) -> Iterator[tuple[str, str]]:
    for mode in ("soft", "sampled"):
        path = root / f"search-{mode}"
        run("search", "differentiable", "pocket-search", "--corpus", corpus, "--run", str(path),
            "--steps", "20", "--set", "search.cycle=3", "--seeds", "2", "--retrain",
            "--set", f"search.mode={mode}", "--set", "search.choices=rsfi",
            "--set", "train.threads=1", "--set", "train.precision=fp32", *SMALL)  # fmt: skip
        found = json.loads((path / "search.json").read_text())
        yield f"search {mode}: patterns", hashed(sorted(patterns(found)))
        scores = {k: v for k, v in numbers(found) if k.endswith((".loss", ".perplexity"))}
        yield f"search {mode}: losses", hashed(scores)


def sizes(root: Path) -> Iterator[tuple[str, str]]:
    for sampler in ("lts", "nsga2"):
        path = root / f"sizes-{sampler}"
        run("search", "pareto", "pocket", "--objectives", "quality,flops", "--run", str(path),
            "--sampler", sampler, "--population", "20", "--iterations", "4")  # fmt: skip
        found = json.loads((path / "pareto.json").read_text())
        yield f"sizes {sampler}: front", hashed(sorted(r["pattern"] for r in found["front"]))


def fits(corpus: str, root: Path) -> Iterator[tuple[str, str]]:
    path = root / "fit"
    run("fit", corpus, "--steps", "30", "--limit", "flops=0.9x", "--run", str(path))
    found = json.loads((path / "fit.json").read_text())
    yield "fit: models", hashed({row["name"]: row["pattern"] for row in found["models"]})
    yield "fit: chosen", hashed([found["chosen"], found["verdict"]["headline"]])
    yield "fit: weights", weights(path / "model")


def patterns(value: Any) -> Iterator[str]:
    """Every pattern anywhere in a result."""
    if isinstance(value, dict):
        for name, inside in value.items():
            if name == "pattern" and isinstance(inside, str):
                yield inside
            yield from patterns(inside)
    elif isinstance(value, list):
        for inside in value:
            yield from patterns(inside)


def numbers(value: Any, place: str = "") -> Iterator[tuple[str, float]]:
    """Every number in a result, by where it stands."""
    if isinstance(value, dict):
        for name, inside in value.items():
            yield from numbers(inside, f"{place}.{name}")
    elif isinstance(value, list):
        for index, inside in enumerate(value):
            yield from numbers(inside, f"{place}[{index}]")
    elif isinstance(value, float):
        yield place, value


def machine() -> str:
    import torch

    lines = Path("/proc/cpuinfo").read_text().splitlines() if sys.platform == "linux" else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.processor()}, torch {torch.__version__}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="keep today's hashes")
    parser.add_argument("--only", default="", help="parts whose names begin so: train, search, fit")
    arguments = parser.parse_args()
    found: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        corpus = root / "sentences.txt"
        corpus.write_text(text())
        parts = {
            "train": trainings(str(corpus), root),
            "search": placements(str(corpus), root),
            "sizes": sizes(root),
            "fit": fits(str(corpus), root),
        }
        for name, part in parts.items():
            if name.startswith(arguments.only):
                for what, value in part:
                    print(f"{what:<45} {value}", flush=True)
                    found[what] = value
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {"machine": "", "hashes": {}}
    if arguments.write:
        old = kept["hashes"] if kept["machine"] == machine() else {}
        kept = {"machine": machine(), "hashes": old | found}
        KEPT.write_text(json.dumps(kept, indent=2) + "\n")
        return
    if kept["machine"] != machine():
        sys.exit(f"{KEPT.name} was written on another machine: {kept['machine']}")
    changed = [what for what, value in found.items() if kept["hashes"].get(what) != value]
    sys.exit(f"changed: {', '.join(changed)}" if changed else None)


if __name__ == "__main__":
    main()
