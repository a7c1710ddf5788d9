"""How small does a model become when everything is stacked, and what does that cost?

    python benchmarks/stack.py stack [--steps 1000] [--pairs FOLDER]
    python benchmarks/stack.py shrunk stacked [--steps 400] [--seeds 3]
    python benchmarks/stack.py encoder --tuned RUN [--updates 60]
    python benchmarks/stack.py --write

`stack`: the four stairs of Lite Transformer (Wu et al. 2020): a Transformer, Lite Transformer of
the same width, that in 8 bits, and in 8 bits with the smallest weights gone; each with its size as
the paper counts it, without embedding, softmax and the places of zeros, and as the file is.
A language model on bytes of python-source, or with --pairs a translator of such a folder (de-en).
`shrunk`: heads, channels and blocks taken from a trained model, beside a model of that very shape
that was trained from nothing. `stacked`: shrunk, taught, pruned and in 8 bits. `encoder`: the same
for a fine-tuned run of benchmarks/finetuning.py, or of any labelled task. Trainings go by updates.
Results are kept as those of compression.py.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from compression import (
    MORE,
    SCORED,
    arguments,
    once,
    pocket,
    read_all,
    results,
    told,
    trained,
    write,
)

import parformer as pf
from parformer.compress.coding import coded_maps, decoded
from parformer.compress.result import CompressResult, Stair
from parformer.model import Model, load
from parformer.pattern import Pattern
from parformer.recipe import Recipe, read_recipe
from parformer.report.words import megabytes
from parformer.store.folder import WEIGHTS

ENDS = ("embedding.", "source_embedding.", "head.")
"""What the paper does not count."""
GONE = 0.44
"""Share of the weights that go: 9.7 of 17.3 MB stay in the paper."""
LIMITS = ("0.5", "0.25")
"""Of its bytes, what is left of a model that is shrunk."""
Values = Mapping[str, object]
TEXT: Values = {
    "train.compile": "off",
    "train.evaluate_tokens": SCORED,
    "train.final_tokens": SCORED,
}
STAIRS = {
    "transformer": "Transformer",
    "lite": "Lite Transformer",
    "bits": "Lite Transformer, 8 bits",
    "longer": "Lite Transformer, trained on",
    "pruned": f"8 bits, {GONE:.0%} of the weights gone, trained on",
}
PAIRS: dict[str, tuple[str, Values]] = {
    "transformer": (
        "transformer-pocket-translation",
        {"model.d_model": 288, "model.d_inner": 1152},
    ),
    "lite": ("lite-pocket-translation", {}),
}
TEXTS: dict[str, tuple[str, Values]] = {
    "transformer": ("lite-pocket", {"model.pattern": "(sf)x6", "model.d_inner": 896}),
    "lite": ("lite-pocket", {}),
}


def paper_bytes(model: Model) -> float:
    """Size as the paper counts it: all but the ends, in so many bits each, zeros for nothing."""
    bits = 8 if list(coded_maps(model)) else 32
    plain = decoded(model) if bits == 8 else model
    kept = (p for name, p in plain.named_parameters() if not name.startswith(ENDS))
    if any(p.is_meta for p in plain.parameters()):
        return bits / 8 * sum(p.numel() for p in kept)
    return bits / 8 * sum(int((p != 0).sum()) for p in kept)


def stair(run: Path, pairs: str) -> dict[str, float]:
    """What a run came to: sizes, loss on validation text, BLEU on the test where it translates."""
    found = {"paper": paper_bytes(load(run / "model"))}
    found["file"] = float((run / "model" / WEIGHTS).stat().st_size)
    split: dict[str, Any] = {"split": "valid", "tokens": SCORED} if not pairs else {"split": "test"}
    score = pf.evaluate(model=run, beside=False, **split).score
    found["loss"] = float(score.loss)
    if pairs:
        told: dict[str, Any] = score.to_dict()
        found["bleu"] = float(told["bleu"])
    return found


def stack_recipe(name: str, steps: int, seed: int, pairs: str, **changes: object) -> Recipe:
    preset, own = (PAIRS if pairs else TEXTS)[name]
    named = {**TEXT, **own, "train.steps": steps, "train.seed": seed}
    if pairs:
        named |= {"train.task": "translate", "data.corpus": pairs, "data.pair": "de-en"}
    return read_recipe(preset, named | changes)


def stack(given: argparse.Namespace, seed: int) -> None:
    folder, steps, pairs = given.folder, given.steps, str(given.pairs or "")
    kind = "pairs" if pairs else "text"

    def kept(name: str, make: Callable[[Path], object]) -> Path:
        run = folder / f"stack-{kind}-{name}-{seed}"

        def work() -> object:
            make(run)
            return stair(run, pairs)

        once(folder / f"stack-{kind}-{name}-{seed}.json", work)
        return run

    def eight(source: Path) -> Callable[[Path], object]:
        return lambda run: pf.compress(
            model=source, by="quantize", bits=8, run=run, tokens=4096, rounds=6, threads=1
        )

    def recipe(name: str, **changes: object) -> Recipe:
        return stack_recipe(name, steps, seed, pairs, **changes)

    kept("transformer", lambda run: trained(recipe("transformer"), run))
    lite = kept("lite", lambda run: trained(recipe("lite"), run))
    kept("bits", eight(lite))
    on = {
        "train.steps": max(2, round(MORE * steps)),
        "train.learning_rate": 0.25 * recipe("lite").train.learning_rate,
        "train.warmup": 10,
        "train.start": str(lite),
    }
    kept("longer", lambda run: trained(recipe("lite", **on), run))
    zeros = on | {"compress.sparsity": GONE, "compress.prune_until": 0.5}
    sparse = folder / f"stack-{kind}-zeros-{seed}"
    kept("pruned", lambda run: (trained(recipe("lite", **zeros), sparse), eight(sparse)(run)))


def figures(one: Stair) -> dict[str, float]:
    return {
        "size": float(one.figures.size),
        "token": one.figures.token,
        "loss": one.figures.loss,
        "taken": float(one.taken),
    }


def whole(given: argparse.Namespace, seed: int) -> Path:
    """The trained model that compression.py has too."""
    run: Path = given.folder / f"plain-{seed}"
    once(given.folder / f"bits-plain-{seed}.json", lambda: trained(pocket(given.steps, seed), run))
    return run


def shrunk(given: argparse.Namespace, seed: int) -> None:
    folder, steps = given.folder, given.steps
    source, more = whole(given, seed), max(2, round(MORE * steps))
    for share in LIMITS:
        place = folder / f"shrunk-{share}-{seed}"

        def cut(place: Path = place, share: str = share) -> object:
            limits = {"limits": (f"size={share}x",), "updates": more, "tokens": SCORED}
            found = pf.compress(
                model=source, by="shrink,distil", run=place, rounds=6, threads=1, **limits
            )
            return {one.name: figures(one) for one in found.stairs}

        once(folder / f"shrunk-{share}-{seed}.json", cut)
        config = load(place / "model").config
        for name, updates in (("equal", steps + more), ("short", more)):

            def alone(
                updates: int = updates,
                name: str = f"{share}-{name}",
                config: pf.ModelConfig = config,
            ) -> float:
                values = {f"model.{n}": v for n, v in same_shape(config).items()}
                return trained(pocket(updates, seed, **values), folder / f"shrunk-{name}-{seed}")

            once(folder / f"shrunk-{name}-{share}-{seed}.json", alone)


def same_shape(config: pf.ModelConfig) -> dict[str, object]:
    """What a recipe has to say so that its model has this very shape."""
    usual, own = pocket(2, 0).model.to_dict(), config.to_dict()
    changed = {name: value for name, value in own.items() if usual.get(name) != value}
    return {n: str(v) if isinstance(v, Pattern) else v for n, v in changed.items()}


def stacked(given: argparse.Namespace, seed: int) -> None:
    source, more = whole(given, seed), max(2, round(MORE * given.steps))
    place = given.folder / f"stacked-{seed}"

    def work() -> object:
        found = pf.compress(
            model=source,
            by="shrink,distil,prune,quantize",
            limits=("size=0.5x",),
            sparsity=0.3,
            updates=more,
            tokens=SCORED,
            threads=1,
            run=place,
        )
        return {one.name: figures(one) for one in found.stairs}

    once(given.folder / f"stacked-{seed}.json", work)


def encoder(given: argparse.Namespace, seed: int) -> None:
    if given.tuned is None:
        raise SystemExit("encoder needs --tuned RUN, such as one of benchmarks/finetuning.py")
    ways: dict[str, dict[str, object]] = {
        "8-bits": {"by": "quantize", "bits": 8},
        "4-bits": {"by": "quantize", "bits": 4, "updates": given.updates},
        "words": {"by": "vocabulary,quantize"},
        "shrunk": {"by": "shrink,distil", "limits": ("size=0.7x",), "updates": given.updates},
        "all": {
            "by": "vocabulary,shrink,distil,quantize",
            "limits": ("size=0.7x",),
            "updates": given.updates,
        },
    }
    for name, asked in ways.items():

        def work(name: str = name, asked: Mapping[str, Any] = asked) -> object:
            run = given.folder / f"encoder-{name}-{seed}"
            found: CompressResult = pf.compress(
                model=given.tuned, run=run, seed=seed, threads=1, **asked
            )
            told = {one.name: figures(one) for one in found.stairs}
            scores = [pf.evaluate(model=one, split="valid").score for one in (given.tuned, run)]
            return {"stairs": told, "scores": [score.to_dict() for score in scores]}

        once(given.folder / f"encoder-{name}-{seed}.json", work)


def stack_table() -> str:
    lines: list[str] = []
    for kind in ("text", "pairs"):
        rows = {name: read_all(f"stack-{kind}-{name}") for name in STAIRS}
        if not rows["transformer"]:
            continue
        quality = "loss, nats per token | BLEU" if kind == "pairs" else "bits per byte"
        lines += ["" for _ in lines[:1]]
        lines += [f"| {kind} | as the paper counts | smaller | file | {quality} | loss |"]
        lines += ["|---|---:|---:|---:|---:|" + "---:|" * (2 if kind == "pairs" else 1)]
        first = rows["transformer"][0]
        for name, found in rows.items():
            if not found:
                continue
            one, losses = found[0], [each["loss"] for each in found]
            shown = (
                [f"{one['loss']:.3f}", f"{one['bleu']:.1f}"] if kind == "pairs" else [told(losses)]
            )
            cells = [megabytes(one["paper"]), f"{first['paper'] / one['paper']:.1f}×"]
            cells += [megabytes(one["file"]), *shown, f"{one['loss'] / first['loss'] - 1:+.1%}"]
            lines.append(f"| {STAIRS[name]} | {' | '.join(cells)} |")
    return "\n".join(lines)


def shrunk_table() -> str:
    lines = [
        "| bytes left | size | as soon as cut | trained on, taught | from nothing, as many updates "
        "in all | from nothing, as many as that |",
        "|---:|---:|---:|---:|---:|---:|",
    ]
    for share in LIMITS:
        found = read_all(f"shrunk-{share}")
        if not found:
            continue
        cells = [megabytes(found[0]["shrink"]["size"])]
        cells += [told([one[name]["loss"] for one in found]) for name in ("shrink", "distil")]
        cells += [told(read_all(f"shrunk-{name}-{share}")) for name in ("equal", "short")]
        lines.append(f"| {float(share):.0%} | {' | '.join(cells)} |")
    lines.append(f"| the whole | | {told(read_all('bits-plain'))} | | | |")
    return "\n".join(lines)


def stacked_table() -> str:
    found = read_all("stacked")
    lines = ["| | size | one token | bits per byte |", "|---|---:|---:|---:|"]
    for name in found[0]:
        some = [one[name] for one in found]
        out = "" if some[0]["taken"] else " (left out)"
        cells = [megabytes(some[0]["size"]), f"{1e3 * some[0]['token']:.2f} ms"]
        lines.append(f"| {name}{out} | {' | '.join(cells)} | {told([s['loss'] for s in some])} |")
    return "\n".join(lines)


def encoder_table() -> str:
    lines = ["| | size | a text | score, before | and after |", "|---|---:|---:|---|---|"]
    for whole, found in results().items():
        if not (whole.startswith("encoder-") and whole.endswith("-0")):
            continue
        last = [one for one in found["stairs"].values() if one["taken"]][-1]
        scores = [
            ", ".join(f"{n} {v:.3f}" for n, v in one.items() if is_score(n, v))
            for one in found["scores"]
        ]
        name = whole.removeprefix("encoder-").removesuffix("-0")
        cells = [megabytes(last["size"]), f"{1e3 * last['token']:.2f} ms", *scores]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def is_score(name: str, value: object) -> bool:
    return isinstance(value, float) and math.isfinite(value) and name in ("score", "loss")


def main() -> None:
    parts = {"stack": stack, "shrunk": shrunk, "stacked": stacked, "encoder": encoder}
    parser = arguments(parts, __doc__.splitlines()[0])
    parser.add_argument("--updates", type=int, default=60, help="of an encoder's trainings")
    parser.add_argument("--pairs", type=Path, help="a folder of pairs, de-en")
    parser.add_argument("--tuned", type=Path, help="a fine-tuned run")
    given = parser.parse_args()
    for seed in range(given.first_seed, given.first_seed + given.seeds):
        for name in given.parts:
            parts[name](given, seed)
    if given.write:
        write(
            {
                "stack": stack_table,
                "shrunk": shrunk_table,
                "stacked": stacked_table,
                "encoder": encoder_table,
            }
        )


if __name__ == "__main__":
    main()
