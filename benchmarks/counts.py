"""What does counting know, in how many bytes, and how long does a look-up take?

    python benchmarks/counts.py TEXT …
    python benchmarks/counts.py --suffixes TEXT …

counts the first nine tenths of every text and asks about the next twentieth: by bytes of the table,
beside n-grams of every order without a bound on their bytes, with and without recall (one number
for each length of a repeat, fitted to one half and told of the other), and the time of a look-up,
compiled and in numpy. With `--suffixes` it asks another thing: whether the end of the training text
itself with a suffix array, which knows contexts of any length, is worth as many bytes of counts.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path
from typing import NamedTuple

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
LOOKED_BACK = 32
"""Tokens of context that a suffix array is asked about at most."""
AMONG_SUFFIXES = 32_768
"""Tokens that it is asked about."""


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


class Suffixes(NamedTuple):
    """What a text and its suffix array say of the tokens of another text."""

    chance: NDArray[np.float64]
    longest: NDArray[np.int64]
    """Tokens of the longest context that was found."""


def suffix_room(size: int) -> int:
    """How many tokens a text and its suffix array may have in so many bytes.

    A token takes a byte, a place in the array as many bits as it takes to tell them apart.
    """
    return max(
        int(size / (1 + bits / 8)) for bits in range(1, 33) if int(size / (1 + bits / 8)) <= 2**bits
    )


def by_suffixes(train: NDArray[np.uint8], valid: NDArray[np.uint8], size: int) -> Suffixes:
    """Chances of the tokens of a text after others, by the last of train and its suffix array.

    Contexts of every length up to LOOKED_BACK that occur there, blended as Witten and Bell have it
    in `evaluate.counting`: the longest speaks first, and as often as something new followed it,
    a shorter one that stands in more places.
    """
    wide = LOOKED_BACK + 1
    known = train[-suffix_room(size) :]
    rows = np.lib.stride_tricks.sliding_window_view(known, wide)
    # every suffix, as far as it is asked about: sorting them is making the array
    sorted_nw = np.sort(np.ascontiguousarray(rows).view(f"S{wide}")[:, 0])
    letters_nw = sorted_nw.view(np.uint8).reshape(-1, wide)
    asked = np.arange(LOOKED_BACK, len(valid))
    chance, longest = np.full(len(asked), 1 / 256), np.zeros(len(asked), np.int64)
    before = np.zeros(len(asked), np.int64)
    for length in range(LOOKED_BACK + 1):
        # the context, then with the token that follows it: where do such suffixes stand?
        (low, high), (first, last) = (
            bounds(sorted_nw, valid, asked - length, more) for more in (length, length + 1)
        )
        new = np.concatenate(([0], np.cumsum(np.diff(letters_nw[:, length].astype(int)) != 0)))
        many, seen = high - low, high > low
        kinds = 1 + new[np.maximum(high - 1, 0)] - new[np.minimum(low, len(new) - 1)]
        # a longer context that stands in the same places says nothing more
        tells = seen & (many != before)
        mixed = (last - first + kinds * chance) / np.maximum(many + kinds, 1)
        chance, before = np.where(tells, mixed, chance), many
        longest[seen] = length
    return Suffixes(chance, longest)


def bounds(
    sorted_nw: NDArray[np.bytes_], text: NDArray[np.uint8], starts: NDArray[np.int64], length: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Between which places of a sorted list stands what begins with so many tokens from there."""
    wide = sorted_nw.dtype.itemsize
    asked = np.zeros((len(starts), wide), np.uint8)
    asked[:, :length] = text[starts[:, None] + np.arange(length)]
    low = np.searchsorted(sorted_nw, asked.view(f"S{wide}")[:, 0], "left")
    asked[:, length:] = 255  # no byte of a text in UTF-8
    return low, np.searchsorted(sorted_nw, asked.view(f"S{wide}")[:, 0], "right")


def beside_suffixes(train: NDArray[np.uint8], valid: NDArray[np.uint8]) -> list[str]:
    """Bits of counts, of suffixes, and of both in as many bytes, on the second half of a text."""
    valid = valid[:AMONG_SUFFIXES]
    whole, part = (chances_of(train, valid, size) for size in (8_000_000, 4_000_000))
    suffixes = by_suffixes(train, valid, 8_000_000)
    half, recent = len(whole) // 2, by_recall(valid)
    both = mix(part, by_suffixes(train, valid, 4_000_000), half)
    ways = whole, suffixes.chance, both, mix(whole, recent, half), mix(both, recent, half)
    return [f"{-np.log2(chance[half:]).mean():.3f}" for chance in ways]


def by_recall(valid: NDArray[np.uint8]) -> Suffixes:
    """The same of the recent text alone, which names a single token."""
    tokens = torch.from_numpy(valid.astype(np.int64))
    found = find_repeats(tokens[None, :-1], len(tokens) - 1, RECALL)
    expected, length = (one[0, LOOKED_BACK - 1 :].numpy() for one in found)
    return Suffixes((expected == valid[LOOKED_BACK:]).astype(np.float64), length)


def chances_of(
    train: NDArray[np.uint8], valid: NDArray[np.uint8], size: int
) -> NDArray[np.float64]:
    """The chances of the same tokens by a table of counts."""
    readable = Readable(count(train, vocab_size=256, size=size))
    tokens = torch.from_numpy(valid.astype(np.int64))
    logs_nv = log_chances([readable], tokens[None, :-1], len(tokens) - 1)[0]
    own = logs_nv.gather(1, tokens[1:, None])[:, 0].double().exp().numpy()
    return np.asarray(own[LOOKED_BACK - 1 :], np.float64)


def mix(own: NDArray[np.float64], other: Suffixes, half: int) -> NDArray[np.float64]:
    """Both, with a weight for each length of a context that the first half is best with."""
    weight = np.full(LOOKED_BACK + 1, 0.5)
    for _ in range(100):  # expectation and maximisation
        mine = weight[other.longest] * other.chance
        share = (mine / (mine + (1 - weight[other.longest]) * own))[:half]
        many = np.bincount(other.longest[:half], minlength=len(weight))
        weight = (np.bincount(other.longest[:half], share, len(weight)) + 0.5) / (many + 1)
    return weight[other.longest] * other.chance + (1 - weight[other.longest]) * own


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
    parser.add_argument("--suffixes", action="store_true", help="counts beside a suffix array")
    asked = parser.parse_args()
    texts = {text: split(text) for text in asked.texts}
    if asked.suffixes:
        heads = ["bits per byte", "8 MB of counts", "8 MB of suffixes", "4 MB of each"]
        heads += ["8 MB of counts, recall", "4 MB of each, recall"]
        rows = [[text.stem, *beside_suffixes(*parts)] for text, parts in texts.items()]
        print(*table(heads, rows), sep="\n")
        return
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
