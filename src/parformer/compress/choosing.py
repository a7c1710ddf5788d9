"""Which heads, channels and blocks should go, so that a limit is kept and the least is lost?

Everything that can go has a price, in seconds of this machine or in bytes, and a loss: measured for
whole blocks and for shares of the stream, to first order for what is inside of blocks. What loses
the least for its price goes first. Prices are learned from a few smaller models that are timed; the
choice is timed again, and made anew with a tighter limit where it is not kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from parformer.blocks.base import Block
from parformer.compress.cuts import units
from parformer.compress.shrinking import STREAM, Kept, places, shrunk, stacks
from parformer.model import Model
from parformer.weights import named_tensors

FEWEST_CHANNELS = 16
"""Inner channels that go or stay together, and that every middle keeps."""
FEWEST_BLOCKS = 2
"""Blocks of a stack that stay, whatever the limit."""
SHARES = (1 / 8, 1 / 4, 1 / 2)
"""Of units whose loss is measured, such as the stream's channels; no more of them go."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """Something that can go."""

    path: str
    stays: int
    """Units of its block that are left when this goes; 0 for the whole block."""
    loses: float
    saves: float


@dataclass(frozen=True, kw_only=True)
class Prices:
    """What a block costs by itself, and each of its units, by kind; a unit may be a channel."""

    fixed: Mapping[str, float]
    unit: Mapping[str, float]


def prices(model: Model, price: Callable[[Model], float], *, stream: bool = False) -> Prices:
    """From the model without one block of each kind, and with half of all units of a kind."""
    whole = price(model)
    blocks: dict[str, list[tuple[str, Block]]] = {}
    for path, block in places(model):
        blocks.setdefault(type(block).__name__, []).append((path, block))
    fixed, unit = {}, {}
    for kind, listed in blocks.items():
        count = sum(units(block) for _, block in listed)
        halves: dict[str, Tensor | None] = {
            path: torch.arange(units(block) // 2) for path, block in listed if units(block) > 1
        }
        gone = sum(-(-units(block) // 2) for path, block in listed if path in halves)
        unit[kind] = max(0.0, whole - price(shrunk(model, halves))) / gone if gone else 0.0
        path = listed[-1][0]
        if blocks_in(model)[root_of(path)] > FEWEST_BLOCKS and len(listed) > 1:
            without = price(shrunk(model, {path: None}))
            fixed[kind] = max(0.0, whole - without - unit[kind] * units(listed[-1][1]))
        else:
            fixed[kind] = 0.0
        assert count >= gone
    if stream:
        half = model.config.d_model // 4 * 2
        less = whole - price(shrunk(model, {STREAM: torch.arange(half)}))
        unit[STREAM] = max(0.0, less) / (model.config.d_model - half)
    return Prices(fixed=fixed, unit=unit)


def together(count: int) -> int:
    """How many of so many units go or stay together."""
    return FEWEST_CHANNELS if count > FEWEST_CHANNELS * 2 else 1


def measured_worth(
    scores: Tensor, grows: Callable[[Tensor], float], beyond: float = math.inf
) -> Tensor:
    """What the loss grows by with each unit that goes, the least first, by measurement.

    `scores` say which go first; `grows` tells what the loss grows by with these units alone. Those
    that nobody tried without cost so many times as much as the dearest.
    """
    count, order, few = len(scores), scores.argsort(), together(len(scores))
    worth = torch.full((count,), torch.inf, dtype=torch.float64)
    gone, lost, dearest = 0, 0.0, 0.0
    for share in SHARES:
        more = int(share * count) // few * few
        if more <= gone:
            continue
        grown = max(lost, grows(order[more:].sort().values))
        dearest = max(dearest, (grown - lost) / (more - gone))
        # whoever is told to go later costs a trifle more, so that the order stays
        trifle = 1e-12 * torch.arange(gone, more, dtype=torch.float64)
        worth[order[gone:more]] = dearest + trifle
        gone, lost = more, grown
    if math.isfinite(beyond):
        trifle = 1e-12 * torch.arange(gone, count, dtype=torch.float64)
        worth[order[gone:]] = beyond * dearest + trifle
    return worth


def blocks_in(model: Model) -> dict[str, int]:
    """How many blocks a stack has, by what stands before their names."""
    return {root: len(pattern) for root, pattern in stacks(model)}


def root_of(path: str) -> str:
    """Which stack a block belongs to.

    >>> root_of("encoder.blocks.3"), root_of("blocks.3")
    ('encoder.', '')
    """
    return path[: path.index("blocks.")]


def size_price(model: Model) -> float:
    """Bytes of a model's weights."""
    return float(sum(t.numel() * t.element_size() for t in named_tensors(model).values()))


def choose(
    model: Model,
    worth: Mapping[str, Tensor],
    blocks: Mapping[str, float],
    known: Prices,
    save: float,
) -> Kept:
    """What stays, once at least `save` is saved; `blocks` are losses of whole blocks."""
    sizes = {path: units(block) for path, block in places(model)}
    left_in = blocks_in(model)
    kinds = {path: type(block).__name__ for path, block in places(model)}
    if STREAM in worth:
        sizes[STREAM], kinds[STREAM] = len(worth[STREAM]), STREAM
    left, gone, saved = dict(sizes), set[str](), 0.0
    orders = {path: scores.argsort(descending=True) for path, scores in worth.items()}
    while saved < save:
        options = [
            part
            for path in sizes
            if path not in gone
            for part in parts(path, left[path], worth.get(path), blocks.get(path), known, kinds)
        ]
        options = [
            part
            for part in options
            if part.saves > 0
            and math.isfinite(part.loses)
            and (part.stays or left_in[root_of(part.path)] > FEWEST_BLOCKS)
        ]
        if not options:
            break
        best = min(options, key=lambda part: part.loses / part.saves)
        saved += best.saves
        if best.stays:
            left[best.path] = best.stays
        else:
            gone.add(best.path)
            left_in[root_of(best.path)] -= 1
    kept: dict[str, Tensor | None] = dict.fromkeys(gone)
    for path, order in orders.items():
        if path not in gone and left[path] < sizes[path]:
            kept[path] = order[: left[path]].sort().values
    return kept


def parts(
    path: str,
    left: int,
    worth: Tensor | None,
    block: float | None,
    known: Prices,
    kinds: Mapping[str, str],
) -> list[Part]:
    """What of a block can go next: its least units, or all of it."""
    kind = kinds[path]
    found = []
    few = together(0 if worth is None else len(worth))
    if worth is not None and left > few:
        scores = worth.sort(descending=True).values
        loses = float(scores[left - few : left].sum())
        found.append(Part(path=path, stays=left - few, loses=loses, saves=few * known.unit[kind]))
    if block is not None:
        saves = known.fixed[kind] + left * known.unit[kind]
        found.append(Part(path=path, stays=0, loses=max(block, 0.0), saves=saves))
    return found
