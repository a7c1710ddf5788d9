"""What does a search leave open, and how is it decided?

As in a training, once and on this machine: threads, kernels and precision; how many updates
fit into a given time; what a block costs here; how long an update takes beside one of the
interleaved model.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace

import torch

from parformer.blocks.base import find_block
from parformer.data.batches import Tokens, sample
from parformer.data.tokens import Prepared
from parformer.errors import ConfigError
from parformer.evaluate.counting import References, references_of
from parformer.events import Watch
from parformer.pattern import Pattern
from parformer.recipe import Recipe
from parformer.records import Record
from parformer.search.placement.choices import Choices
from parformer.search.placement.duties import duties_of
from parformer.search.placement.prices import (
    Prices,
    baseline_of,
    exact,
    measured,
    refuse_unreachable,
)
from parformer.search.placement.sentences import measured_sentences
from parformer.search.placement.session import SearchSession, search_of, space_of
from parformer.search.placement.shares import share_out
from parformer.search.placement.target import Target, read_target
from parformer.search.placement.timetable import Timetable
from parformer.tasks import find_task
from parformer.tasks.base import training_shape
from parformer.train.distributed import Workers
from parformer.train.plan import RESERVE, decide
from parformer.train.session import Session, refuse_misfits

ROUNDS = 7
"""Updates of each kind that are timed."""

COUNTED = 65_536
"""Tokens of the valid split that plain counting is judged on, beside the search."""


@dataclass(frozen=True, slots=True)
class Pace(Record):
    """Seconds of an update, measured side by side."""

    weights: float
    architecture: float
    baseline: float
    """Of the interleaved model."""

    def mean(self, timetable: Timetable) -> float:
        """Over a whole search."""
        turns = sum(timetable.at(s).kind == "architecture" for s in range(timetable.steps))
        share = turns / timetable.steps
        return (1 - share) * self.weights + share * self.architecture


@dataclass(frozen=True, slots=True)
class Known(Record):
    """What was measured of this machine when a run began."""

    prices: Prices | None
    """What blocks cost, where that matters."""
    pace: Pace


def refuse_impossible(recipe: Recipe, tokens: Tokens, workers: Workers) -> None:
    """Find what no search could be made of, before anything is written down."""
    if workers.shard:
        raise ConfigError("a search cannot be sharded; leave --shard out, each process holds all")
    if recipe.train.compile == "on":
        raise ConfigError(
            "train.compile 'on' does not go with a search, whose steps all differ; use 'auto'"
        )
    counts = [stretch.count for stretch in space_of(recipe).stretches]
    if max(counts) < 3:
        raise ConfigError(
            f"the model has {' | '.join(map(str, counts))} blocks, too few to be cut into thirds "
            "of the depth, which the result is told in; give --layers 3 or more"
        )
    for part in share_out(tokens, recipe):
        refuse_misfits(recipe, part, workers)


def refuse_unfit(recipe: Recipe) -> None:
    """Find what choices the model cannot have, before any text is read."""
    space = space_of(recipe)
    duties_of(space)
    *before, offered = (
        Pattern(dict.fromkeys(spec for row in stretch.of(space.layers) for spec in row))
        for stretch in space.stretches
    )
    recipe.model.replaced(pattern=Pattern(offered.blocks, before[0] if before else None))


def decide_search(
    recipe: Recipe, tokens: Tokens, workers: Workers, watch: Watch
) -> tuple[Recipe, Known]:
    """The recipe with nothing left open, the blocks' prices, and the pace."""
    began = time.monotonic()
    refuse_impossible(recipe, tokens, workers)
    limit = recipe.train.time
    recipe = recipe.replaced({"train.compile": "off", "train.time": 0.0})
    recipe = decide(recipe, tokens, workers, watch.notice)
    prices = find_prices(recipe, workers, watch)
    pace = find_pace(recipe, tokens, workers)
    if limit:
        timetable = timetable_of(recipe, tokens)
        left = (limit - (time.monotonic() - began)) * (1 - RESERVE)
        seconds, seeds = pace.mean(timetable), search_of(recipe).seeds
        steps = max(2, int(left / seeds / seconds))
        steps = int(workers.share(str(steps)))
        each = f" for each of {seeds} seeds" if seeds > 1 else ""
        watch.notice(
            f"{steps:,} updates of {1000 * seconds:,.0f} ms{each} fit into {limit:,.0f} s."
        )
        changes: dict[str, object] = {"train.steps": steps, "train.time": limit}
        if recipe.train.warmup >= steps:
            changes["train.warmup"] = max(1, steps // 10)
        recipe = recipe.replaced(changes)
    # the supernet itself is not what is to be good
    recipe = recipe.replaced({"train.evaluate_every": recipe.train.steps})
    refuse_short(recipe, tokens)
    return recipe, Known(prices, pace)


def refuse_short(recipe: Recipe, tokens: Tokens) -> None:
    """A search in which the architecture never gets a turn finds nothing."""
    timetable = timetable_of(recipe, tokens)
    if timetable.tuning < timetable.cycle:
        raise ConfigError(
            f"{timetable.steps:,} updates end before the architecture's first turn: "
            f"{timetable.warmup:,} warm up, and a cycle has {timetable.cycle:,}; take more "
            "--steps or --time, or a shorter search.cycle or search.warmup"
        )


def timetable_of(recipe: Recipe, tokens: Tokens) -> Timetable:
    epoch = find_task(recipe).batches(share_out(tokens, recipe)[0]).per_epoch
    return Timetable.of(recipe.train.steps, search_of(recipe), epoch)


def without_carried_state(recipe: Recipe, watch: Watch) -> Recipe:
    """Drawn paths leave gaps in what only a running block remembers: then nothing is carried."""
    choices = {spec for layer in space_of(recipe).layers for spec in layer}
    runs = sorted(spec.letter for spec in choices if find_block(spec).state_needs_run)
    carries = training_shape(recipe).mem_len > 0 and recipe.train.order != "windows"
    if search_of(recipe).mode != "sampled" or not runs or not carries:
        return recipe
    watch.notice(
        f"Sampled: {' '.join(runs)} must run to remember, and not every block runs in every "
        "update, so the search reads windows and carries no state from one to the next."
    )
    return recipe.replaced({"train.order": "windows", "train.mem_len": 0})


def find_prices(recipe: Recipe, workers: Workers, watch: Watch) -> Prices | None:
    """What blocks cost where that matters, the same in all processes."""
    target = target_of(recipe)
    if target is None:
        return None
    space = space_of(recipe)
    if target.metric != "latency":
        prices = exact(target.metric, recipe.model, space)
    else:
        prices = shared_prices(recipe, space, workers, watch)
        watch.notice(
            f"Latency of every block measured; the interleaved model's sum is off by "
            f"{prices.error:+.0%}."
        )
    if target.limit is not None:
        refuse_unreachable(prices, space, target.limit)
    return prices


def shared_prices(recipe: Recipe, space: Choices, workers: Workers, watch: Watch) -> Prices:
    text = ""
    if workers.first:
        time_blocks = measured_sentences if space.encoder else measured
        prices = time_blocks(
            recipe.model, space, threads=recipe.train.threads, progress=watch.preparing
        )
        text = json.dumps(prices.to_dict())
    return Prices.from_dict(json.loads(workers.share(text)))


def target_of(recipe: Recipe) -> Target | None:
    search = search_of(recipe)
    return read_target(search.penalty, search.limit)


def find_pace(recipe: Recipe, tokens: Tokens, workers: Workers) -> Pace:
    """Time updates of the supernet and of the interleaved model in turn, then forget both."""
    turns = recipe.replaced(
        {"search.cycle": 2, "search.warmup": 0.0, "search.guard": 0.0, "train.warmup": 1}
    )
    search = SearchSession(turns, tokens, workers=workers)
    plain = recipe.replaced({"model.pattern": baseline_of(space_of(recipe))})
    plain = replace(plain, search=None)
    baseline = Session(plain, tokens, workers=workers)
    shape = training_shape(recipe)
    # until the memory is full every step is longer than the one before
    warm = 1 + min(8, -(-shape.memory // shape.step_len)) if shape.causal else 1
    taken: dict[str, list[float]] = {"weights": [], "architecture": [], "baseline": []}
    for number in range(warm + ROUNDS):
        for name, session, step in (
            ("weights", search, 2 * number),
            ("architecture", search, 2 * number + 1),
            ("baseline", baseline, number),
        ):
            began = time.perf_counter()
            session.update(step)
            if workers.device.type == "cuda":
                torch.cuda.synchronize()
            if number >= warm:
                taken[name].append(time.perf_counter() - began)
    medians = [sorted(times)[len(times) // 2] for times in taken.values()]
    averaged = workers.average(torch.tensor(medians, device=workers.device))
    return Pace(*averaged.tolist())


def count_beside(recipe: Recipe, prepared: Prepared) -> References | None:
    """What plain counting reaches; nothing where models see both sides of what they guess."""
    if not recipe.model.causal or recipe.data.pair:
        return None
    tokens = sample(prepared.splits["valid"].tokens, COUNTED)
    return references_of(prepared, {"valid": tokens}, xz=False)["valid"]
