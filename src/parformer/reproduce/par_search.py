"""PAR Transformer's search: how much attention it keeps, and where.

One pocket search serves all three figures that are about it: it lies in the run's folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean

from parformer.errors import ConfigError, Stopped
from parformer.measure.device import pinned_threads
from parformer.pattern import Pattern
from parformer.reproduce.study import Found, Ours
from parformer.reproduce.trainings import pocket, settled
from parformer.reproduce.workbench import Workbench, spread, study
from parformer.search.placement.job import search_recipe
from parformer.search.placement.result import PlacementResult

SEEDS = 2
"""Searches at least; the paper has six."""
SHARE = 0.47
"""Of the time that is the search's; the rest is for training what it found and its rivals."""


def pocket_search(bench: Workbench, *, retrain: bool = False) -> PlacementResult | None:
    """What search.json says; nothing where trainings are left out."""
    if not bench.training:
        return None
    if bench.folder is None:
        raise ConfigError("a search needs a --run folder to keep it in")
    seeds = max(SEEDS, bench.seeds)
    length: dict[str, object] = {"train__time": SHARE * bench.seconds}
    name = f"search-{bench.seconds:g}s-{seeds}"
    if bench.steps:
        length = {"train__steps": bench.steps, "train__warmup": max(1, bench.steps // 10)}
        name = f"search-{bench.steps}-steps-{seeds}"
    recipe = settled(bench, pocket("pocket-search", search__seeds=seeds, **length))
    path: Path = bench.folder / name
    with pinned_threads(bench.threads):
        searched = search_recipe(recipe, path, retrain=retrain, watch=bench.watch)
    if not searched.finished:
        raise Stopped(
            f"stopped in {searched.where} after step {searched.step:,}, everything is saved; "
            f"the same command with --run {bench.folder} goes on"
        )
    return searched.found


def how(found: PlacementResult) -> str:
    return (
        f"pocket search here: {found.layers} layers, {found.steps:,} updates, "
        f"{len(found.seeds)} seeds, {found.corpus}"
    )


def over_seeds(found: PlacementResult, values: Sequence[float]) -> Ours:
    """The mean of what every seed has one of."""
    return Ours(fmean(values), how(found), spread(values))


def chosen(found: PlacementResult) -> list[list[str]]:
    """Every layer's choice, identities among them, seed by seed."""
    return [[block.letter for block in found.stacks[0].blocks(seed.picks)] for seed in found.seeds]


def thirds(letters: Sequence[str]) -> list[int]:
    """Attention blocks in each third of the layers.

    >>> thirds("ssffsfff f".replace(" ", ""))
    [2, 1, 0]
    """
    edges = [round(i * len(letters) / 3) for i in range(4)]
    return [list(letters[a:b]).count("s") for a, b in pairwise(edges)]


@study("par-figure-2")
def figure_2(bench: Workbench) -> Found:
    found = pocket_search(bench, retrain=True)
    if found is None:
        return {}
    rows = {row.name: row for row in found.retrained or ()}
    mine, theirs = ((row.test or row.valid).loss for row in (rows["found"], rows["interleaved"]))
    pattern = rows["found"].pattern
    ratios = [len(letters) / max(1, letters.count("s")) for letters in chosen(found)]
    return {
        "ratio": over_seeds(found, ratios),
        "best-loss": Ours(
            100 * (mine / theirs - 1),
            how(found) + ", then trained from scratch with as many updates",
            note=f"{pattern}: {pattern.count('s')} attention blocks of {len(pattern)}",
            single=True,
        ),
    }


@study("par-figure-3")
def figure_3(bench: Workbench) -> Found:
    found = pocket_search(bench)
    if found is None:
        return {}

    parts = [thirds(letters) for letters in chosen(found)]
    shares = [100 * (sum(three) - three[2]) / max(1, sum(three)) for three in parts]
    places = zip(("first", "second", "last"), zip(*parts, strict=True), strict=True)
    return {
        "share": over_seeds(found, shares),
        **{key: over_seeds(found, counts) for key, counts in places},
    }


@study("par-first-figure-2")
def first_figure_2(bench: Workbench) -> Found:
    found = pocket_search(bench)
    if found is None:
        return {}
    column = [Pattern.parse(choice).letters for choice in found.choices].index("s")
    cut = round(2 * found.layers / 3)

    ratios = [letters.count("s") / max(1, letters.count("f")) for letters in chosen(found)]
    likely = [[row[column] for row in seed.probabilities] for seed in found.seeds]
    former, latter = (
        [fmean(row[part]) for row in likely] for part in (slice(cut), slice(cut, None))
    )
    return {
        "ratio": over_seeds(found, ratios),
        "former": over_seeds(found, former),
        "latter": over_seeds(found, latter),
        "lead": over_seeds(found, [a / b for a, b in zip(former, latter, strict=True)]),
    }
