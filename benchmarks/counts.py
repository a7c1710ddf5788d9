"""What does counting know, in how many bytes, and how long does a look-up take?

    python benchmarks/counts.py TEXT …

counts the first nine tenths of every text and asks about the next twentieth: by bytes of the table,
beside n-grams of every order without a bound on their bytes, with and without recall (one number
for each length of a repeat, fitted to one half and told of the other), and the time of a look-up,
compiled and in numpy.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path

import numpy as np
import torch
from inference import table
from numpy.typing import NDArray
from torch import Tensor

from parformer.counts import count
from parformer.counts.look import Readable, log_chances, look_plainly
from parformer.counts.recall import LONGEST, find_repeats
from parformer.evaluate.counting import references, table_loss
from parformer.measure.device import describe_device

BYTES = (1, 2, 4, 8, 16)
"""Millions of them."""
ASKED = 140_000
"""Tokens that are asked about."""
RECALL = 2048
TIMED = 4096
"""Look-ups whose time is taken."""


def split(text: Path) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    tokens = np.frombuffer(text.read_bytes(), np.uint8)
    first = 9 * len(tokens) // 10
    return tokens[:first], tokens[first : first + min(ASKED, len(tokens) // 20)]


def by_bytes(train: NDArray[np.uint8], valid: NDArray[np.uint8]) -> list[str]:
    """Bits of the best n-gram without a bound, and of tables of so many bytes."""
    known = references(train, {"valid": valid}, vocab_size=256)["valid"]
    cells = [f"{known.ngram / math.log(2):.3f} ({known.order}-gram)"]
    for size in BYTES:
        began = time.perf_counter()
        readable = Readable(count(train, vocab_size=256, size=size * 1_000_000))
        took = time.perf_counter() - began
        assert readable.layout is not None
        used = readable.layout.size / 1e6
        bits = table_loss(readable, valid) / math.log(2)
        cells.append(f"{bits:.3f} ({used:.1f} MB, {took:.1f} s)")
    return cells


def with_recall(train: NDArray[np.uint8], valid: NDArray[np.uint8]) -> tuple[float, float]:
    """Bits of 4 MB of counts on the second half of a text, and with recall."""
    readable = Readable(count(train, vocab_size=256, size=4_000_000))
    tokens = torch.from_numpy(valid.astype(np.int64))
    logs_nv = log_chances([readable], tokens[None, :-1], len(tokens) - 1)[0]
    expected_n, length_n = (t[0] for t in find_repeats(tokens[None, :-1], len(tokens) - 1, RECALL))
    own_n = logs_nv.gather(1, tokens[1:, None])[:, 0]
    chance_n = logs_nv.gather(1, expected_n[:, None])[:, 0].exp()
    right_n, half = expected_n == tokens[1:], len(own_n) // 2
    bonus = torch.zeros(LONGEST + 1, requires_grad=True)

    def bits(part: slice) -> Tensor:
        more_n = torch.where(length_n[part] > 0, bonus[length_n[part]], 0.0)
        total_n = torch.log1p(chance_n[part] * (more_n.exp() - 1))
        return -(own_n[part] + more_n * right_n[part] - total_n).mean() / math.log(2)

    optimizer = torch.optim.LBFGS([bonus], max_iter=60)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = bits(slice(half))
        loss.backward()
        return loss

    optimizer.step(closure)
    with torch.no_grad():
        alone = float(-own_n[half:].mean() / math.log(2))
        return alone, float(bits(slice(half, None)))


def microseconds(train: NDArray[np.uint8], valid: NDArray[np.uint8]) -> tuple[float, float, float]:
    """Of a look-up, compiled and in numpy, and of recall; the best of five, one thread."""
    torch.set_num_threads(1)
    readable = Readable(count(train, vocab_size=256, size=4_000_000))
    tokens = torch.from_numpy(valid[:TIMED].astype(np.int64)).view(16, -1)
    every = np.ones(tokens.shape, bool)
    ways = (
        lambda: log_chances([readable], tokens, tokens.shape[1]),
        lambda: look_plainly(readable, tokens.numpy(), tokens.shape[1], every),
        lambda: find_repeats(tokens, tokens.shape[1], RECALL),
    )
    best = []
    for way in ways:
        way()
        times = []
        for _ in range(5):
            began = time.perf_counter()
            way()
            times.append(time.perf_counter() - began)
        best.append(1e6 * min(times) / TIMED)
    return best[0], best[1], best[2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("texts", nargs="+", type=Path, metavar="TEXT")
    texts = {text: split(text) for text in parser.parse_args().texts}
    heads = ["bits per byte", "best n-gram", *(f"at most {size} MB" for size in BYTES)]
    print(
        *table(heads, [[text.stem, *by_bytes(*parts)] for text, parts in texts.items()]), sep="\n"
    )
    rows = []
    for text, parts in texts.items():
        alone, both = with_recall(*parts)
        rows.append([text.stem, f"{alone:.3f}", f"{both:.3f}", f"−{1 - both / alone:.1%}"])
    print()
    print(*table(["bits per byte", "4 MB of counts", "with recall", ""], rows), sep="\n")
    fast, plain, recall = microseconds(*next(iter(texts.values())))
    here = describe_device()
    print(
        f"\nA look-up takes {fast:.1f} µs, in numpy {plain:.0f} µs; recall {recall:.1f} µs "
        f"({here.cpu}, one thread, torch {here.torch})."
    )


if __name__ == "__main__":
    main()
