"""What did a search for placements find, how sure is it, and what does it cost?"""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from parformer import __version__
from parformer.config import ModelConfig
from parformer.costs import cost
from parformer.evaluate.counting import References
from parformer.events import Watch
from parformer.measure.device import describe_device
from parformer.measure.models import measure_models
from parformer.pattern import ALPHABET, Pattern, par, sandwich
from parformer.recipe import Recipe
from parformer.records import Json
from parformer.search.machine import Machine
from parformer.search.placement.architecture import agreement
from parformer.search.placement.choices import Choices
from parformer.search.placement.decide import Known, target_of
from parformer.search.placement.duties import Duty, duty_words
from parformer.search.placement.journal import SeedRun
from parformer.search.placement.prices import Prices, baseline_of
from parformer.search.placement.removal import needed_kinds, overruled
from parformer.search.placement.result import (
    Compared,
    Effort,
    Offered,
    PlacementResult,
    Price,
    Retrained,
    Score,
    Table,
)
from parformer.search.placement.sentences import time_texts
from parformer.search.placement.session import decode, likeliest, search_of, space_of
from parformer.search.placement.timetable import Timetable

SANDWICH = 6 / 32
"""The share of blocks at either end of the Sandwich Transformer that the paper compares with."""
STILL_FALLING = 0.05
"""The share by which a loss may fall after the pattern settled before that is worth a warning."""
UNSURE = 0.6
"""The agreement of seeds below which one should not trust a single layer's choice."""


class Timed(Protocol):
    """How long a model takes, in seconds."""

    @property
    def median(self) -> float: ...

    @property
    def low(self) -> float: ...

    @property
    def high(self) -> float: ...


def rivals(space: Choices) -> dict[str, Pattern]:
    """What a found pattern has to be better than, of the same numbers of layers.

    The rules are about self-attention and feed-forward: of a translator they fill the encoder,
    before the interleaved decoder.

    >>> space = Choices.of_sides([(4, "sf"), (3, "cf")])
    >>> {name: str(rival) for name, rival in rivals(space).items()}
    {'interleaved': '(sf)x2 | scf', 'sandwich': '(s)x2 (f)x2 | scf', 'par': 's (f)x3 | scf'}
    """
    usual, layers = baseline_of(space), space.stretches[0].count
    rules = {"sandwich": sandwich(layers, k=round(SANDWICH * layers))} if layers % 2 == 0 else {}
    rules["par"] = par(layers)
    if space.encoder:
        rules = {name: Pattern(usual.blocks, rule) for name, rule in rules.items()}
    return {"interleaved": usual, **rules}


def summarise(
    recipe: Recipe,
    runs: Sequence[SeedRun],
    known: Known,
    timetable: Timetable,
    command: str,
    watch: Watch,
    counted: References | None = None,
) -> PlacementResult:
    """What search.json says."""
    search, space = search_of(recipe), space_of(recipe)
    prices, pace = known.prices, known.pace
    mean = average([run.probabilities for run in runs])
    picks, kept, told = decided(recipe, runs, mean, prices)
    *before, offered = (Offered.of(stretch.of(space.layers)) for stretch in space.stretches)
    pattern = space.pattern(picks)
    step = pace.mean(timetable)
    return PlacementResult(
        pattern=pattern,
        picks=tuple(picks),
        corpus=recipe.data.corpus,
        layers=offered.layers,
        choices=offered.choices,
        encoder=before[0] if before else None,
        mode=search.mode,
        steps=timetable.steps,
        warmup_steps=timetable.warmup,
        probabilities=mean,
        agreement=agreement([run.picks for run in runs]),
        seeds=tuple(run.summary() for run in runs),
        learned=counted is None or any(run.loss < counted.bigram for run in runs),
        references=counted,
        warnings=(
            *nothing_learned(runs, counted),
            *guard_words(kept, search.guard, space),
            *duty_words(told, space, picks),
            *warnings(runs, prices, recipe),
        ),
        target=target_of(recipe),
        price=None
        if prices is None
        else Price(metric=prices.metric, found=prices.total(picks), expected=expected_cost(runs)),
        compared=compare_costs({"found": pattern, **rivals(space)}, recipe, watch),
        effort=Effort(
            search_step_seconds=step,
            baseline_step_seconds=pace.baseline,
            share=step / pace.baseline,
            seconds=step * sum(run.steps for run in runs),
        ),
        device=Machine.of(describe_device()),
        command=command,
        version=__version__,
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
    )


def decided(
    recipe: Recipe, runs: Sequence[SeedRun], mean: Table, prices: Prices | None
) -> tuple[list[int], dict[int, str], dict[int, Duty]]:
    """The choice of every layer, the kinds of block that the removal test kept, and duties."""
    space, target, guard = space_of(recipe), target_of(recipe), search_of(recipe).guard
    logs = [[math.log(max(value, 1e-300)) for value in row] for row in mean]
    asked = [run.removal for run in runs if run.removal is not None]
    removal = average(asked) if len(asked) == len(runs) else None
    picks, told = decode(logs, space, prices, target, removal, guard)
    if removal is None or not guard:
        return picks, {}, told
    needs = needed_kinds(removal, space, guard)
    alone = likeliest(logs, prices, target)
    refused = overruled(picks, needs, space)  # by a limit, which has the last word
    kept = {n: needs[n] for n in overruled(alone, needs, space) if n not in refused}
    return picks, kept, told


def expected_cost(runs: Sequence[SeedRun]) -> float:
    return sum(run.cost or 0.0 for run in runs) / len(runs)


def average(tables: Sequence[Table]) -> Table:
    """The mean of several seeds' tables, layer by layer."""
    return tuple(
        tuple(sum(values) / len(tables) for values in zip(*rows, strict=True))
        for rows in zip(*tables, strict=True)
    )


def nothing_learned(runs: Sequence[SeedRun], counted: References | None) -> list[str]:
    """Supernets that learned less than pairs of tokens tell of have no say in a pattern."""
    if counted is None:
        return []
    return [
        f"Seed {run.seed}: nothing was learned in this time. The supernet's loss is "
        f"{run.loss:.3f}, and counting pairs of tokens gives {counted.bigram:.3f}: its pattern is "
        "chance. Search longer."
        for run in runs
        if run.loss >= counted.bigram
    ]


def guard_words(kept: Mapping[int, str], guard: float, space: Choices) -> list[str]:
    """Where the search settled on something else than what was needed when the warm-up ended."""
    said = []
    for stretch in space.stretches:
        own = {layer: kept[layer] for layer in stretch.layers if layer in kept}
        for kind in sorted(set(own.values())):
            first, *others = (layer for layer, letter in own.items() if letter == kind)
            layers = [stretch.told(first), *(str(n - stretch.first + 1) for n in others)]
            said.append(
                f"{', '.join(layers).capitalize()} keeps {ALPHABET[kind]}: the search had settled "
                "on another block, but when the warm-up ended the loss would have grown by more "
                f"than {guard:.0%} without it. Search longer, or with a longer search.warmup, to "
                "be sure."
            )
    return said


def warnings(runs: Sequence[SeedRun], prices: Prices | None, recipe: Recipe) -> list[str]:
    """What one should know before one believes the pattern."""
    said = []
    for run in runs:
        fall, seed = run.fall_after_change(), run.seed
        if fall > STILL_FALLING:
            said.append(
                f"Seed {seed}: the loss still fell by {fall:.0%} after the pattern had settled at "
                f"step {run.changed:,}. What the weights learned since then had no say "
                "in it; search longer, or with a longer search.warmup."
            )
    alike = agreement([run.picks for run in runs])
    if alike is not None and alike < UNSURE:
        said.append(
            f"Two seeds agree on {alike:.0%} of the layers only, so a single layer's choice says "
            "little; search longer or with more seeds."
        )
    target = target_of(recipe)
    if prices is not None and target is not None and target.limit is not None:
        expected = expected_cost(runs)
        if expected > 1.05 * target.limit:
            said.append(
                f"The expected {target.metric} is {expected:.2f}x, above the limit of "
                f"{target.limit:g}x: the pattern was cut to fit, not found; search longer."
            )
    return said


def compare_costs(
    patterns: Mapping[str, Pattern], recipe: Recipe, watch: Watch
) -> tuple[Compared, ...]:
    """What the patterns cost, exactly and on this machine."""
    configs = {name: recipe.model.replaced(pattern=p) for name, p in patterns.items()}
    timed = timings(configs, recipe.train.threads, watch)
    rows = []
    for name, config in configs.items():
        price, timing = cost(config), timed[name]
        rows.append(
            Compared(
                name=name,
                pattern=config.pattern,
                parameters=price.parameters,
                flops=price.flops,
                state_bytes=price.state_bytes,
                latency_seconds=timing.median,
                latency_interval=(timing.low, timing.high),
            )
        )
    return tuple(rows)


def timings(configs: Mapping[str, ModelConfig], threads: int, watch: Watch) -> Mapping[str, Timed]:
    """What a step takes of every model; of translators a whole text."""
    if all(config.source is not None for config in configs.values()):
        texts = time_texts(configs, threads=threads, progress=watch.preparing)
        return {name: texts[name] for name in configs}
    steps = measure_models(configs, threads=threads, progress=watch.preparing).latency
    return {name: steps[name] for name in configs}


def retrained(
    found: PlacementResult,
    results: Mapping[str, Json],
    patterns: Mapping[str, Pattern],
    *,
    by_character: bool,
) -> PlacementResult:
    """The same with what training from scratch gave; in bits where tokens are characters.

    What learned less than counting pairs gives is marked, and nothing is compared with it.
    """
    bigram = math.inf if found.references is None else found.references.bigram
    rows = tuple(
        Retrained(
            name=name,
            pattern=patterns[name],
            steps=result["steps"],
            valid=score(result["valid"], by_character=by_character),
            test=score(result["test"], by_character=by_character) if "test" in result else None,
            learned=result["valid"]["loss"] < bigram,
        )
        for name, result in results.items()
    )
    return replace(found, retrained=rows)


def score(result: Json, *, by_character: bool) -> Score:
    bits = result.get("bits_per_character") if by_character else None
    return Score(loss=result["loss"], perplexity=result["perplexity"], bits=bits)
