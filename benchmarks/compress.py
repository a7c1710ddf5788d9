"""Are models of few bits faster, and how much smaller are they?

    python benchmarks/compress.py [--write] [--rounds 12]

Two models of Llama's shape and random weights, as transformers computes them, there with torch's
own dynamic 8 bits too, and as `parformer compress` leaves them. A step of one token after 64, and
one of 64 tokens, timed in turns on one and on two threads; sizes are those of the saved weights.
What few bits cost in quality needs models that have learned something: benchmarks/compression.py
and benchmarks/stories.py tell that.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from inference import note, table, write
from torch import nn

import parformer as pf
from parformer.compress.coding import coded
from parformer.compress.receipt import PIECE, bytes_of, step_of
from parformer.measure import Comparison, Receipt, measure_latency
from parformer.measure.device import pinned_threads
from parformer.model import Model
from parformer.report.words import duration, megabytes

SHAPES = {"24 M": (512, 6, 8, 1408), "91 M": (768, 12, 12, 2048)}
"""Width, layers, heads, and how wide the middle is."""
WORDS = 8192
Step = Callable[[], object]


def pair(width: int, layers: int, heads: int, inner: int) -> tuple[Model, nn.Module]:
    """The same weights here and in transformers."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=width, intermediate_size=inner, num_hidden_layers=layers,
        num_attention_heads=heads, vocab_size=WORDS, max_position_embeddings=512,
        tie_word_embeddings=True, bos_token_id=0, eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    theirs = LlamaForCausalLM(config).eval()
    return pf.convert.from_llama(theirs.state_dict(), config.to_dict()).eval(), theirs


def forms(model: Model) -> dict[str, Model]:
    """The model as it is, and in few bits."""
    tokens = torch.randint(WORDS, (1, 256), generator=torch.Generator().manual_seed(0))

    @torch.inference_mode()
    def read(some: Model) -> None:
        some(tokens)

    return {
        "Parformer, fp32": model,
        "Parformer, 8 bits": coded(model, 8),
        "Parformer, 8 bits, activations too": coded(model, 8, activations=read),
        "Parformer, 4 bits": coded(model, 4),
    }


def theirs_step(model: Any, time: int) -> Step:
    """Of one token after 64, or of many."""
    from transformers import DynamicCache

    tokens = torch.randint(WORDS, (1, PIECE), generator=torch.Generator().manual_seed(0))
    past = DynamicCache()

    @torch.inference_mode()
    def one() -> None:
        model(tokens[:, :1], past_key_values=past, use_cache=True)
        past.crop(-1)

    @torch.inference_mode()
    def many() -> None:
        model(tokens, use_cache=True)

    if time == 1:
        with torch.inference_mode():
            model(tokens, past_key_values=past, use_cache=True)
    return one if time == 1 else many


def candidates(model: Model, theirs: nn.Module) -> tuple[dict[str, float], dict[str, Any]]:
    """Bytes of each as it is saved, and how to make a step of it of so many tokens."""
    dynamic = torch.ao.quantization.quantize_dynamic(theirs, {nn.Linear}, dtype=torch.qint8)
    steps: dict[str, Any] = {
        "transformers, fp32": partial(theirs_step, theirs),
        "transformers, torch's dynamic 8 bits": partial(theirs_step, dynamic),
    }
    sizes: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, made) in enumerate(forms(model).items()):
            place = Path(folder) / f"{number}"
            made.save(place)
            sizes[name] = bytes_of(place)
            steps[name] = partial(step_of, made)
    return sizes, steps


def compressed(rounds: int) -> Iterator[str]:
    for shape, numbers in SHAPES.items():
        sizes, makers = candidates(*pair(*numbers))
        found: dict[tuple[int, int], Comparison] = {}
        for threads in (1, 2):
            for time in (1, PIECE):
                note(f"{shape}, {time} tokens, {threads} threads")
                with pinned_threads(threads):
                    steps = {name: make(time) for name, make in makers.items()}
                    found[threads, time] = measure_latency(
                        steps, rounds=rounds, threads=threads, warmup=1, what=f"{time} tokens"
                    )
        yield f"**{shape}, fp32 beside few bits**"
        yield ""
        yield from lines_of(sizes, list(makers), found)
        yield ""


def lines_of(
    sizes: Mapping[str, float], names: list[str], found: Mapping[tuple[int, int], Comparison]
) -> list[str]:
    plain, heads, rows = "Parformer, fp32", ["", "size", "smaller"], []
    for threads, time in found:
        what = "one token" if time == 1 else f"{time} tokens"
        heads += [f"{what}, {threads} thread{'s' * (threads > 1)}", "× as fast"]
    for name in names:
        cells = [name, "", ""]
        if name in sizes:
            cells[1:] = [megabytes(sizes[name]), f"{sizes[plain] / sizes[name]:.2f}×"]
        for one in found.values():
            times = 1 / one.ratio(name, plain)
            cells += [duration(one[name].median), f"{times:.2f}"]
        rows.append(cells)
    return table(heads, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--write", action="store_true", help="write into the page of benchmarks")
    given = parser.parse_args()
    lines = list(compressed(given.rounds))
    receipt = Receipt.issue("compress").line()
    text = "\n".join([*lines, f"`python benchmarks/compress.py` — {receipt}"])
    print(text)
    if given.write:
        write("compress", text)


if __name__ == "__main__":
    main()
