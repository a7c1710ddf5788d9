"""Which choices keep within a limit and lose the least?

Prices add up: every choice's is learned from the model with all blocks of a kind replaced, timed in
turns with the model as it is; parameters are counted. Under them the best choices are found
exactly, and the second best, and so on.
"""

# l place, c choice

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence

from parformer.blocks.base import find_block
from parformer.compress.receipt import Bench, clock
from parformer.compress.replacing.places import Places, stack_config
from parformer.costs import cost, step_shape
from parformer.errors import ConfigError
from parformer.model import Model
from parformer.pattern import BlockSpec
from parformer.search.placement.architecture import best_picks
from parformer.search.placement.prices import Prices

Gains = Sequence[Sequence[float]]
"""What is gained by each choice of each place; −∞ for one that is none."""
Swap = Callable[[Sequence[int]], Model]
"""Makes the model of some picks."""


def timed_prices(where: Places, swap: Swap, bench: Bench, say: Callable[[float], None]) -> Prices:
    """Nanoseconds of a step of one token that each choice adds."""
    kinds: dict[tuple[str, BlockSpec], list[int]] = {}
    for at, path in enumerate(where.paths):
        kinds.setdefault((path.partition("blocks")[0], where.spec(at, 0)), []).append(at)
    models = {"whole": swap(where.originals)}
    for number, places in enumerate(kinds.values()):
        for pick in range(1, len(where.space.layers[places[0]])):
            picks = [pick if at in places else 0 for at in range(len(where.paths))]
            models[f"{number}/{pick}"] = swap(picks)
    found, _ = clock(models, bench, 1, say)
    whole = 1e9 * found["whole"].median

    def nanoseconds(name: str) -> float:
        return whole * found.ratio(name, "whole")

    rows: list[tuple[int, ...]] = [()] * len(where.paths)
    for number, places in enumerate(kinds.values()):
        choices = where.space.layers[places[0]]
        each = [0.0] + [
            (nanoseconds(f"{number}/{pick}") - whole) / len(places)
            for pick in range(1, len(choices))
        ]
        # beside each other prices are all that matters, so that the cheapest costs nothing
        least = min(each)
        for at in places:
            rows[at] = tuple(round(one - least) for one in each)
    own = sum(row[0] for row in rows)
    fixed = max(0, round(whole) - own)
    return Prices(
        metric="latency",
        choices=tuple(rows),
        fixed=fixed,
        baseline=max(1, fixed + own),
        measured=round(whole),
    )


def counted_prices(where: Places, model: Model) -> Prices:
    """Parameters that each choice has."""
    shape = step_shape(model.config, None, None, 1)
    rows = tuple(
        tuple(
            find_block(spec).cost(stack_config(model.config, path), spec, shape).parameters
            for spec in choices
        )
        for path, choices in zip(where.paths, where.space.layers, strict=True)
    )
    whole = cost(model.config).parameters
    fixed = whole - sum(row[0] for row in rows)
    return Prices(metric="parameters", choices=rows, fixed=fixed, baseline=whole)


def refuse_too_little(prices: Prices, limit: float, names: Sequence[Sequence[BlockSpec]]) -> None:
    """Refuse a limit that even the cheapest choices exceed, and say what comes nearest."""
    picks = [min(range(len(row)), key=row.__getitem__) for row in prices.choices]
    if (nearest := prices.total(picks)) <= limit:
        return
    told = " ".join(
        f"{choices[0]}→{choices[pick]}" for choices, pick in zip(names, picks, strict=True)
    )
    what = "time" if prices.metric == "latency" else "bytes"
    raise ConfigError(
        f"no replacement keeps within {limit:.4g}x of the {what}; the nearest ({told:.60}) has "
        f"{nearest:.3g}x, so raise the limit to {math.ceil(100 * nearest) / 100:.2f}x, "
        "name cheaper blocks, or shrink as well"
    )


def best_few(gains: Gains, prices: Prices, limit: float, few: int) -> list[list[int]]:
    """The best picks within a limit, then the second best, and so on, as far as there are any.

    After each answer, what is left of its part of all picks is cut into parts that have no picks
    in common: those that differ from it first in the first place, in the second, and so on.
    """
    room = prices.room(limit)
    waiting: list[tuple[float, list[int], list[list[float]]]] = []

    def ask(part: list[list[float]]) -> None:
        if any(max(row) == -math.inf for row in part):
            return
        try:
            picks = best_picks(part, prices.choices, room)
        except ConfigError:  # none of this part fits
            return
        total = math.fsum(row[pick] for row, pick in zip(part, picks, strict=True))
        heapq.heappush(waiting, (-total, picks, part))

    ask([list(row) for row in gains])
    found: list[list[int]] = []
    while waiting and len(found) < few:
        _, picks, part = heapq.heappop(waiting)
        found.append(picks)
        for at, pick in enumerate(picks):
            fixed = [only(row, own) for row, own in zip(part[:at], picks, strict=False)]
            ask([*fixed, without(part[at], pick), *part[at + 1 :]])
    return found


def only(row: Sequence[float], pick: int) -> list[float]:
    return [gain if choice == pick else -math.inf for choice, gain in enumerate(row)]


def without(row: Sequence[float], pick: int) -> list[float]:
    return [-math.inf if choice == pick else gain for choice, gain in enumerate(row)]
