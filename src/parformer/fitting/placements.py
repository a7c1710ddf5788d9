"""Which blocks in which order may enter the contest: by rule, and as a search places them?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from parformer.errors import ConfigError, CorpusError, TrainingError
from parformer.fitting.phases import Placed
from parformer.fitting.running import OutOfTime, Running
from parformer.pattern import Pattern, par
from parformer.recipe import Recipe, SearchConfig
from parformer.search.trials.job import search_trials as search_by

SEARCH = "search"
"""The folder of the search, and the name of its phase."""
DEPTHS = (1, 0.75, 0.5)
"""Blocks of a placement by rule, in multiples of the baseline's."""
SEARCHING = 0.85
"""The share of its time that a search is told."""
INSTEAD = {
    "r": ("recurrent", "Recurrence", "recurrence in the place of attention"),
    "l": ("lsra", "LSRA", "attention with half of the channels, convolution with the others"),
    "y": ("synthesizer", "Synthesizer", "a dense Synthesizer in the place of attention"),
}
"""What may stand in the place of attention, by its letter: its name, its title, and in words."""
REACH = (0.3, 0.97)
"""Limits between these multiples of the baseline steer the search for placements."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Which blocks in which order, and where that came from."""

    name: str
    title: str
    how: str
    patterns: tuple[Pattern, ...]
    """Of one depth or several, the deepest first."""


def placements(layers: int, letters: str, found: str) -> list[Placement]:
    """What may be compared: by rule, and found by a search if there was one.

    >>> for one in placements(12, "rsfn", ""):
    ...     print(one.name, one.patterns[0])
    interleaved (sf)x6
    par (sfff)x2 (f)x4
    recurrent (rf)x6
    hybrid (rfsf)x3
    memory n (rfsf)x3
    """
    depths = list(dict.fromkeys(max(2, 2 * round(share * layers / 2)) for share in DEPTHS))
    rule = "one block in five is attention, in the first two thirds"
    turns = "attention and feed-forward in turn"
    known = [
        Placement("interleaved", "Interleaved, resized", turns, in_turn("sf", depths)),
        Placement("par", "PAR's rule", rule, tuple(map(par, depths))),
    ]
    for letter, (name, title, what) in INSTEAD.items():
        if letter not in letters:
            continue
        known.append(Placement(name, title, what, in_turn(f"{letter}f", depths)))
        if letter == "r":
            known += hybrids(depths, memory="n" in letters)
    seen = {pattern for placement in known for pattern in placement.patterns}
    if found and (pattern := Pattern.parse(found)) not in seen and pattern.letters.strip("i"):
        known.append(Placement("found", "Found", "where the search put the blocks", (pattern,)))
    return known


def hybrids(depths: Sequence[int], *, memory: bool) -> list[Placement]:
    """Recurrence and attention in turn, and the same behind a memory; two blocks are neither."""
    both = tuple(one for one in in_turn("rfsf", depths) if "s" in one.letters)
    if not both:
        return []
    turns = "recurrence and attention in turn, feed-forwards between"
    found = [Placement("hybrid", "Recurrence and attention", turns, both)]
    if memory:
        behind = tuple(Pattern.parse(f"n {pattern}") for pattern in both)
        how = f"a memory of n-grams, then {turns}"
        found.append(Placement("memory", "Memory, then both", how, behind))
    return found


def in_turn(letters: str, depths: Sequence[int]) -> tuple[Pattern, ...]:
    """As many of these letters, over and over, as there are blocks."""
    over = (letters * -(-depth // len(letters)) for depth in depths)
    return tuple(Pattern.parse(word[:depth]) for word, depth in zip(over, depths, strict=True))


def search(fit: Running) -> Placed:
    """What short trainings of many patterns find; nothing where there is no time or text for it.

    Of all ways to search that were tried this one loses least for the time it takes
    (docs/experiments/placement.md).
    """
    seconds = fit.seconds_for(SEARCH)
    if fit.by_clock and not seconds:
        return Placed()
    try:
        found = search_by(
            search_recipe(fit, seconds),
            fit.path / SEARCH,
            watch=fit.impatient(),
            prepared=fit.prepared,
            command="parformer fit",
        )
    except OutOfTime:
        fit.leave_out(SEARCH)
        return Placed()
    except (ConfigError, CorpusError, TrainingError) as error:
        fit.watch.notice(f"No search for placements, only those by rule: {error}")
        fit.progress.leave_out(SEARCH, f"only placements by rule take part: {error}")
        return Placed()
    return Placed(str(found.pattern) if found.learned else "")


def search_recipe(fit: Running, seconds: float) -> Recipe:
    search = SearchConfig(by="trials", choices=fit.request.choices, limit=steering(fit))
    return replace(fit.baseline.recipe, search=search).replaced(
        {
            "train.time": SEARCHING * seconds,
            "train.steps": max(16, fit.request.steps or 0),
            "train.seed": fit.request.seed,
        }
    )


def steering(fit: Running) -> str:
    """The limit that the search for placements is told, as a multiple of the baseline."""
    for metric in ("latency", "flops", "parameters", "state"):
        if metric in fit.limits:
            share = fit.limits[metric] / fit.baseline.figures[metric]
            if REACH[0] <= share <= REACH[1]:
                return f"{metric}={share:.4g}x"
    return ""
