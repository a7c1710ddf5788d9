"""What can be done to a model, one step at a time?

A step takes a model and gives a smaller one and a sentence about it. Whether that was worth it is
not its business: what it gives is measured beside what there was before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from parformer.blocks.coded import NARROW, WIDE
from parformer.compress.bits import by_loss, by_size, sensitivity
from parformer.compress.choosing import (
    FEWEST_BLOCKS,
    FEWEST_CHANNELS,
    blocks_in,
    choose,
    prices,
    root_of,
    size_price,
    stream_worth,
)
from parformer.compress.coding import Reading, coded
from parformer.compress.narrowing import along, obstacle
from parformer.compress.receipt import Bench, token_seconds
from parformer.compress.replacing.step import replace_blocks
from parformer.compress.request import CompressRequest
from parformer.compress.shrinking import STREAM, Kept, importance, places, shrunk
from parformer.compress.training import trained_on
from parformer.compress.vocabulary import cut_vocabulary
from parformer.compress.work import ATTEMPTS, TRIED, Work, wanted_share
from parformer.costs import cost
from parformer.errors import ConfigError
from parformer.evaluate.perplexity import evaluate
from parformer.model import Model
from parformer.tasks import find_task
from parformer.weights import matrices, named_tensors

CALIBRATED = 8_192
"""Tokens of training text that reaches are learned from."""
BATCHES = 8
"""Batches of training text whose gradients tell what matters."""
CAREFUL = 0.5
"""Share of what may be lost that single matrices may lose together: their sum is an estimate."""


Step = Callable[[Model, Work], tuple[Model, str]]


def quantize(model: Model, work: Work) -> tuple[Model, str]:
    """Few bits for every matrix: as asked for, or as many as each of them needs."""
    bits = choose_bits(model, work)
    read = calibration(work.bench) if work.request.activations else None
    learned = trains("quantize", work.request)
    if learned:
        model = trained_on(
            model,
            work.bench,
            work.folder,
            teacher=work.original,
            seconds=work.seconds,
            watch=work.watch,
            bits=work.request.bits,
            sparsity=work.request.sparsity if "prune" in work.request.steps else 0.0,
            updates=work.request.updates,
        )
    made = coded(model, bits, activations=read, nearest=learned)
    four = sum(one < WIDE for one in bits.values())
    if not four:
        told = f"{len(bits)} matrices in 8 bits"
    elif four == len(bits):
        told = f"{len(bits)} matrices in {min(bits.values())} bits, in groups of 32"
    else:
        told = f"{four} matrices in {NARROW} bits, {len(bits) - four} in 8"
    if learned:
        told += f", trained in them for {how_long(work)}"
    if read is not None:
        told += ", their inputs in 8 bits"
    return made, told


def trains(step: str, request: CompressRequest) -> bool:
    """Whether a step trains: to quantize and to prune only where time was given for it."""
    if step in ("distil", "replace"):
        return True
    few = step == "quantize" and 0 < request.bits <= NARROW
    return (few or step == "prune") and (request.time is not None or request.updates > 0)


def how_long(work: Work) -> str:
    """A training's length, in words."""
    updates = work.request.updates
    return f"{updates:,} updates" if updates else f"{work.seconds:.0f} s"


def distil(model: Model, work: Work) -> tuple[Model, str]:
    """Training on, with the original as the teacher."""
    made = trained_on(
        model,
        work.bench,
        work.folder,
        teacher=work.original,
        seconds=work.seconds,
        watch=work.watch,
        updates=work.request.updates,
    )
    return made, f"trained on for {how_long(work)}, taught by the original"


def choose_bits(model: Model, work: Work) -> dict[str, int]:
    """Bits of every matrix, by name."""
    places = matrices(model)
    if not places:
        raise ConfigError("this model has no matrix left to quantize; it was quantized already")
    if work.request.bits:
        return dict.fromkeys(places, work.request.bits)
    weights = named_tensors(model).values()
    whole = sum(t.numel() * t.element_size() for t in weights)
    rest = whole - sum(w.numel() * w.element_size() for w in places.values())
    most = work.targets.bytes(work.size)
    if most is None and work.targets.loss is None:
        return dict.fromkeys(places, WIDE)
    borne = sensitivity(model, lambda m: work.bench.train_loss(m, TRIED), work.watch.preparing)
    if most is not None:
        return by_size(borne, rest + overhead(model), most)
    return by_loss(borne, CAREFUL * work.targets.may_lose)


def overhead(model: Model) -> int:
    """Bytes that a file takes beside its tensors: their names and places."""
    return 256 + 160 * len(named_tensors(model))


def calibration(bench: Bench) -> Reading:
    """Reads some training text."""

    def read(model: Model) -> None:
        tokens = bench.prepared.splits["train"].tokens[:CALIBRATED]
        if bench.reads_on:
            evaluate(model, tokens, batch=4)
        else:
            bench.train_loss(model, CALIBRATED)

    return read


def prune(model: Model, work: Work) -> tuple[Model, str]:
    """The smallest weights of every matrix become zero, and the file holds the others only."""
    from parformer.compress.pruning import pruned

    share = work.request.sparsity
    told = f"the smallest {share:.0%} of every matrix are zero; the file holds the others"
    if not trains("prune", work.request):
        return pruned(model, share), told
    made = trained_on(
        model,
        work.bench,
        work.folder,
        teacher=work.original,
        seconds=work.seconds,
        watch=work.watch,
        sparsity=share,
        updates=work.request.updates,
    )
    return made, f"{told}, trained for {how_long(work)} while they went"


def shrink(model: Model, work: Work) -> tuple[Model, str]:
    """Fewer heads, channels and blocks, until a step or a file is as small as asked."""
    by_time = work.targets.latency is not None or work.targets.size is None
    price = partial(token_seconds, work.bench) if by_time else size_price
    whole = price(model)
    share = wanted_share(work, by_time)
    say = work.watch.preparing
    say("finding out what matters", 0.1)
    narrows = model.config.d_model >= 4 * FEWEST_CHANNELS and not obstacle(model)
    worth = importance(model, losses(model, work.bench), along(model) if narrows else None)
    before = work.bench.train_loss(model, TRIED)

    def grows(kept: Kept) -> float:
        return work.bench.train_loss(shrunk(model, kept), TRIED) - before

    blocks = {}
    count = blocks_in(model)
    for number, (path, _) in enumerate(places(model)):
        say(f"trying without {path}", 0.2 + 0.5 * number / sum(count.values()))
        if count[root_of(path)] > FEWEST_BLOCKS:
            blocks[path] = grows({path: None})
    if narrows:
        say("trying a narrower stream", 0.7)
        worth[STREAM] = stream_worth(worth[STREAM], lambda stays: grows({STREAM: stays}))
    known, aim = prices(model, price, stream=narrows), share
    made = model
    for _ in range(ATTEMPTS):
        made = shrunk(model, choose(model, worth, blocks, known, (1 - aim) * whole))
        reached = price(made) / whole
        if reached <= share:
            break
        aim *= share / reached
    lost = cost(model.config).parameters - cost(made.config).parameters
    wide = made.config.d_model
    width = f", {wide} channels wide" if wide < model.config.d_model else ""
    return made, f"{made.config.pattern}{width}: {lost:,} parameters fewer"


def losses(model: Model, bench: Bench) -> Iterator[Tensor]:
    """Losses of some batches of training text, each with its gradient to come."""
    task = find_task(bench.recipe)
    batches = task.batches(bench.prepared.splits["train"].tokens)
    for number in range(BATCHES):
        yield task.loss(model, batches.at(number), None).total


STEPS: dict[str, Step] = {
    "vocabulary": cut_vocabulary,
    "replace": replace_blocks,
    "shrink": shrink,
    "distil": distil,
    "prune": prune,
    "quantize": quantize,
}


def finite(model: Model) -> bool:
    """Whether all of a model's numbers are numbers."""
    return all(bool(torch.isfinite(t.float()).all()) for t in named_tensors(model).values())
