"""What can be done to a model, one step at a time?

A step takes a model and gives a smaller one and a sentence about it. Whether that was worth it is
not its business: what it gives is measured beside what there was before.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from parformer.blocks.coded import NARROW, WIDE
from parformer.compress.bits import Bearing, Borne, by_loss, by_size, sensitivity
from parformer.compress.coding import Reading, coded
from parformer.compress.receipt import Bench
from parformer.compress.replacing.step import kept, replace_blocks
from parformer.compress.request import CompressRequest
from parformer.compress.training import trained_on
from parformer.compress.vocabulary import cut_vocabulary
from parformer.compress.work import TRIED, Work, wanted_share
from parformer.compress.worth import find_worth
from parformer.costs import cost
from parformer.errors import ConfigError
from parformer.evaluate.perplexity import evaluate
from parformer.model import Model
from parformer.store.cache import digest
from parformer.train.start import Start
from parformer.weights import matrices, named_tensors

CALIBRATED = 8_192
"""Tokens of training text that reaches are learned from."""
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
    borne, left = borne_by(model, work), work.targets.may_lose - work.grown
    careful = by_loss(borne, CAREFUL * left)
    if most is None:
        return careful
    bits = by_size(borne, rest + overhead(model), most)
    loses = sum(max(0.0, borne[name].loses) for name in bits if bits[name] < WIDE)
    return bits if work.targets.loss is None or loses <= left else careful


def borne_by(model: Model, work: Work) -> dict[str, Borne]:
    """What each matrix costs in few bits, which is found out once for a model and a text."""
    source = Start(Path(), model, work.bench.prepared.tokenizer).identity()
    key = digest([source, work.bench.prepared.identity, TRIED])[:12]

    def find() -> Bearing:
        say = work.watch.preparing
        return Bearing(matrices=sensitivity(model, lambda m: work.bench.train_loss(m, TRIED), say))

    return dict(kept(work.folder.parent / f"bits-{key}.json", Bearing, find).matrices)


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
    made = find_worth(model, work).within(wanted_share(work))
    lost = cost(model.config).parameters - cost(made.config).parameters
    wide = made.config.d_model
    width = f", {wide} channels wide" if wide < model.config.d_model else ""
    return made, f"{made.config.pattern}{width}: {lost:,} parameters fewer"


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
