"""What did a search find, how sure is it, and what does it cost?"""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping, Sequence
from typing import Any

from parformer import __version__
from parformer.costs import cost
from parformer.evaluate.counting import References
from parformer.events import Watch
from parformer.measure.device import describe_device
from parformer.measure.models import measure_models
from parformer.pattern import ALPHABET, Pattern, par, sandwich
from parformer.recipe import Recipe
from parformer.search.placement.architecture import agreement
from parformer.search.placement.decide import Pace, target_of
from parformer.search.placement.journal import SeedRun
from parformer.search.placement.prices import Prices, baseline_pattern
from parformer.search.placement.removal import Removal, needed_kinds, overruled
from parformer.search.placement.session import Timetable, decode, likeliest, space_of

FORMAT = "parformer-search-1"

SANDWICH = 6 / 32
"""The share of blocks at either end of the Sandwich Transformer that the paper compares with."""
STILL_FALLING = 0.05
"""The share by which a loss may fall after the pattern settled before that is worth a warning."""
UNSURE = 0.6
"""The agreement of seeds below which one should not trust a single layer's choice."""


def rivals(layers: int) -> dict[str, Pattern]:
    """What a found pattern has to be better than, of the same number of layers."""
    known = {"interleaved": baseline_pattern(layers)}
    if layers % 2 == 0:
        known["sandwich"] = sandwich(layers, k=round(SANDWICH * layers))
    known["par"] = par(layers)
    return known


def summarise(
    recipe: Recipe,
    runs: Sequence[SeedRun],
    prices: Prices | None,
    pace: Pace,
    timetable: Timetable,
    command: str,
    watch: Watch,
    counted: References | None = None,
) -> dict[str, Any]:
    """What search.json says."""
    assert recipe.search is not None
    space, target = space_of(recipe), target_of(recipe)
    mean = average([run.result["probabilities"] for run in runs])
    logs = [[math.log(max(value, 1e-300)) for value in row] for row in mean]
    removal, guard = mean_removal(runs), recipe.search.guard
    picks = decode(logs, space, prices, target, removal, guard)
    kept: dict[int, str] = {}
    if removal is not None and guard:
        needs = needed_kinds(removal, space, guard)
        alone = likeliest(logs, prices, target)
        refused = overruled(picks, needs, space)  # by a limit, which has the last word
        kept = {n: needs[n] for n in overruled(alone, needs, space) if n not in refused}
    pattern = space.pattern(picks)
    compared = compare_costs({"found": pattern, **rivals(len(space.layers))}, recipe, watch)
    step = pace.mean(timetable)
    return {
        "format": FORMAT,
        "pattern": str(pattern),
        "picks": picks,
        "corpus": recipe.data.corpus,
        "layers": len(space.layers),
        "choices": [str(choice) for choice in space.layers[0]],
        "mode": recipe.search.mode,
        "steps": timetable.steps,
        "warmup_steps": timetable.warmup,
        "probabilities": mean,
        "agreement": agreement([run.result["picks"] for run in runs]),
        "seeds": [run.to_dict() for run in runs],
        "learned": counted is None or any(run.loss < counted.bigram for run in runs),
        "references": None if counted is None else counted.to_dict(),
        "warnings": [
            *nothing_learned(runs, counted),
            *guard_words(kept, guard),
            *warnings(runs, prices, recipe),
        ],
        "target": None
        if target is None
        else {"metric": target.metric}
        | ({"penalty": target.penalty} if target.limit is None else {"limit": target.limit}),
        "price": None
        if prices is None
        else {
            "metric": prices.metric,
            "found": prices.total(picks),
            "expected": sum(run.result["cost"] for run in runs) / len(runs),
        },
        "compared": compared,
        "effort": {
            "search_step_seconds": step,
            "baseline_step_seconds": pace.baseline,
            "share": step / pace.baseline,
            "seconds": step * sum(run.result["steps"] for run in runs),
        },
        "device": device(),
        "retrained": None,
        "command": command,
        "version": __version__,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def average(tables: Sequence[Sequence[Sequence[float]]]) -> list[list[float]]:
    """The mean of several probabilities, layer by layer."""
    return [
        [sum(values) / len(tables) for values in zip(*rows, strict=True)]
        for rows in zip(*tables, strict=True)
    ]


def mean_removal(runs: Sequence[SeedRun]) -> Removal | None:
    """What the supernets of all seeds would lose, on average; None where they were not asked."""
    tables = [run.result["removal"] for run in runs]
    if any(table is None for table in tables):
        return None
    return Removal.mean([Removal.from_json(table) for table in tables])


def nothing_learned(runs: Sequence[SeedRun], counted: References | None) -> list[str]:
    """Supernets that learned less than pairs of tokens tell of have no say in a pattern."""
    if counted is None:
        return []
    return [
        f"Seed {run.result['seed']}: nothing was learned in this time. The supernet's loss is "
        f"{run.loss:.3f}, and counting pairs of tokens gives {counted.bigram:.3f}: its pattern is "
        "chance. Search longer."
        for run in runs
        if run.loss >= counted.bigram
    ]


def guard_words(kept: Mapping[int, str], guard: float) -> list[str]:
    """Where the search settled on something else than what was needed when the warm-up ended."""
    said = []
    for kind in sorted(set(kept.values())):
        layers = [str(layer + 1) for layer, letter in kept.items() if letter == kind]
        said.append(
            f"Layer {', '.join(layers)} keeps {ALPHABET[kind]}: the search had settled on another "
            "block, but when the warm-up ended the loss would have grown by more than "
            f"{guard:.0%} without it. Search longer, or with a longer search.warmup, to be sure."
        )
    return said


def warnings(runs: Sequence[SeedRun], prices: Prices | None, recipe: Recipe) -> list[str]:
    """What one should know before one believes the pattern."""
    said = []
    for run in runs:
        fall, seed = run.fall_after_change(), run.result["seed"]
        if fall > STILL_FALLING:
            said.append(
                f"Seed {seed}: the loss still fell by {fall:.0%} after the pattern had settled at "
                f"step {run.result['changed']:,}. What the weights learned since then had no say "
                "in it; search longer, or with a longer search.warmup."
            )
    alike = agreement([run.result["picks"] for run in runs])
    if alike is not None and alike < UNSURE:
        said.append(
            f"Two seeds agree on {alike:.0%} of the layers only, so a single layer's choice says "
            "little; search longer or with more seeds."
        )
    target = target_of(recipe)
    if prices is not None and target is not None and target.limit is not None:
        expected = sum(run.result["cost"] for run in runs) / len(runs)
        if expected > 1.05 * target.limit:
            said.append(
                f"The expected {target.metric} is {expected:.2f}x, above the limit of "
                f"{target.limit:g}x: the pattern was cut to fit, not found; search longer."
            )
    return said


def compare_costs(
    patterns: Mapping[str, Pattern], recipe: Recipe, watch: Watch
) -> list[dict[str, Any]]:
    """What the patterns cost, exactly and on this machine."""
    configs = {name: recipe.model.replaced(pattern=p) for name, p in patterns.items()}
    timed = measure_models(configs, threads=recipe.train.threads, progress=watch.preparing)
    rows = []
    for name, config in configs.items():
        price, timing = cost(config), timed.latency[name]
        rows.append(
            {
                "name": name,
                "pattern": str(config.pattern),
                "parameters": price.parameters,
                "flops": price.flops,
                "state_bytes": price.state_bytes,
                "latency_seconds": timing.median,
                "latency_interval": [timing.low, timing.high],
            }
        )
    return rows


def with_retrained(
    found: Mapping[str, Any],
    results: Mapping[str, Mapping[str, Any]],
    patterns: Mapping[str, Pattern],
    *,
    by_character: bool,
) -> dict[str, Any]:
    """The same with what training from scratch gave; in bits where tokens are characters.

    What learned less than counting pairs gives is marked, and nothing is compared with it.
    """
    counted = found.get("references") or {}
    rows = [
        {
            "name": name,
            "pattern": str(patterns[name]),
            "steps": result["steps"],
            "valid": score(result["valid"], by_character=by_character),
            "test": score(result["test"], by_character=by_character) if "test" in result else None,
            "learned": not counted or result["valid"]["loss"] < counted["bigram"],
        }
        for name, result in results.items()
    ]
    return {**found, "retrained": rows}


def score(result: Mapping[str, Any], *, by_character: bool) -> dict[str, Any]:
    bits = result["bits_per_character"] if by_character else None
    return {"loss": result["loss"], "perplexity": result["perplexity"], "bits": bits}


def device() -> dict[str, Any]:
    here = describe_device()
    return {"cpu": here.cpu, "threads": here.threads, "torch": here.torch}
