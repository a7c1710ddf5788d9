"""From a text to a pattern: the whole differentiable search.

A run folder holds the recipe (`config.toml`), what was measured of this machine
(`device.json`), a folder for every seed with its metrics and checkpoints, and in the end
`search.json`; with `retrain` also the found pattern and its rivals, trained from scratch.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from parformer.data.tokens import Prepared
from parformer.errors import ConfigError, FolderError, ParformerError
from parformer.evaluate.counting import References, entropy, references_of
from parformer.events import Watch
from parformer.pattern import Pattern
from parformer.recipe import Recipe, SearchConfig
from parformer.search.placement.decide import (
    Pace,
    find_pace,
    find_prices,
    settle,
    target_of,
    timetable_of,
    without_carried_state,
)
from parformer.search.placement.journal import SearchJournal, SeedRun
from parformer.search.placement.prices import Prices
from parformer.search.placement.result import rivals, summarise, with_retrained
from parformer.search.placement.session import SearchSession, space_of
from parformer.store import folder
from parformer.store.files import replace_file
from parformer.train.distributed import Workers
from parformer.train.job import running, train_model
from parformer.train.loop import Outcome, sample, train
from parformer.train.plateau import MOST_SLOWER, SLOWER

DEVICE, FOUND, RETRAIN = "device.json", "search.json", "retrain"
COUNTED = 65_536
"""Tokens of the valid split that plain counting is judged on, beside the search."""


@dataclass(frozen=True, slots=True)
class Searched:
    """How a search ended."""

    finished: bool
    found: Mapping[str, Any]
    """What search.json holds; empty while it is not finished."""
    step: int = 0
    """Where it stopped, if it is not finished."""
    where: str = ""
    """Which part stopped, in words."""


def search_differentiable(
    recipe: Recipe | None,
    path: Path,
    *,
    chosen: Collection[str] = (),
    retrain: bool = False,
    command: str = "",
    workers: Workers | None = None,
    watch: Watch | None = None,
) -> Searched:
    """Search by a recipe in a run folder; a run that is there already goes on."""
    workers, watch = workers or Workers(), watch or Watch()
    measured: dict[str, Any] = {}

    def decide(recipe: Recipe, prepared: Prepared) -> Recipe:
        tokens = prepared.splits["train"].tokens
        recipe, prices, pace = settle(recipe, tokens, workers, watch)
        measured.update(as_measured(prices, pace))
        return recipe

    if recipe is not None:
        recipe = replace(recipe, search=recipe.search or SearchConfig())
        # before it is compared with what a run holds, which was made of this
        recipe = without_carried_state(recipe, watch)
    with running(recipe, path, decide, chosen, workers, watch) as (recipe, prepared):
        if recipe.search is None:
            raise ConfigError(
                f"the run {str(path)!r} holds a training; go on with: parformer train --run {path}"
            )
        prices, pace = know_device(recipe, prepared, path, measured, workers, watch)
        ended = search_seeds(recipe, prepared, path, prices, workers, watch)
        if isinstance(ended, Searched):
            return ended
        found: dict[str, Any] = {}
        if workers.first:
            timetable = timetable_of(recipe, prepared.splits["train"].tokens)
            counted = count_beside(recipe, prepared)
            found = finished_search(path, len(ended)) or summarise(
                recipe, ended, prices, pace, timetable, command, watch, counted
            )
            write_found(path, found)
        found = json.loads(workers.share(json.dumps(found)))
    if retrain:
        return retrain_all(recipe, path, found, workers, watch)
    return Searched(True, found)


def as_measured(prices: Prices | None, pace: Pace) -> dict[str, Any]:
    return {"prices": None if prices is None else prices.to_dict(), "pace": pace.to_dict()}


def know_device(
    recipe: Recipe,
    prepared: Prepared,
    path: Path,
    measured: dict[str, Any],
    workers: Workers,
    watch: Watch,
) -> tuple[Prices | None, Pace]:
    """What was measured of this machine when the run began, for all who go on with it."""
    known = workers.share("yes" if (path / DEVICE).is_file() else "") == "yes"
    if not known and not measured:  # killed after its recipe was written, before this was
        tokens = prepared.splits["train"].tokens
        prices = find_prices(recipe, workers, watch)
        measured = as_measured(prices, find_pace(recipe, tokens, workers))
    if not known and workers.first:
        replace_file(path / DEVICE, json.dumps(measured, indent=2) + "\n")
    values = folder.read_json(path, DEVICE) if known else measured
    try:
        prices = None if values["prices"] is None else Prices.from_dict(values["prices"])
        return prices, Pace.from_dict(values["pace"])
    except (KeyError, TypeError, ValueError, ParformerError) as problem:
        raise FolderError(
            f"{str(path / DEVICE)!r} is broken ({problem}); remove it, and what it says is "
            "measured again"
        ) from None


def search_seeds(
    recipe: Recipe,
    prepared: Prepared,
    path: Path,
    prices: Prices | None,
    workers: Workers,
    watch: Watch,
) -> list[SeedRun] | Searched:
    """Every seed's search, one after the other; or where they were stopped."""
    assert recipe.search is not None
    target = target_of(recipe)

    def make_session(*inputs: Any, **options: Any) -> SearchSession:
        return SearchSession(*inputs, **options, prices=prices, target=target)

    runs = []
    known = entropy(prepared.splits["train"].tokens, recipe.model.vocab_size)
    for number in range(recipe.search.seeds):
        seed = recipe.train.seed + number
        if recipe.search.seeds > 1:
            watch.notice(f"Seed {seed}, {number + 1} of {recipe.search.seeds}")
        for slower in range(MOST_SLOWER + 1):
            rate = recipe.train.learning_rate / SLOWER**slower
            own = recipe.replaced({"train.seed": seed, "train.learning_rate": rate})
            place = path / (f"seed-{seed}-slower-{slower}" if slower else f"seed-{seed}")
            if workers.first:
                place.mkdir(exist_ok=True)
            workers.share("")  # the folder is there
            outcome = train(
                own,
                prepared,
                place,
                workers=workers,
                watch=watch,
                make_session=make_session,
                make_journal=SearchJournal,
            )
            if not outcome.finished:
                return Searched(False, {}, outcome.step, f"seed {seed}")
            run = SeedRun.read(place, outcome.result) if workers.first else None
            stuck = workers.share("yes" if run is not None and run.stuck(known) else "") == "yes"
            if not stuck or slower == MOST_SLOWER:
                break
            watch.notice(
                f"seed {seed}: the supernet learned nothing but token frequencies at {rate:g}; "
                f"once more at {rate / SLOWER:g}"
            )
        if run is not None:
            runs.append(run)
            watch.notice(f"seed {seed}: {outcome.result['pattern']}")
    return runs


def count_beside(recipe: Recipe, prepared: Prepared) -> References | None:
    """What plain counting reaches; nothing where models see both sides of what they guess."""
    if not recipe.model.causal:
        return None
    tokens = sample(prepared.splits["valid"].tokens, COUNTED)
    return references_of(prepared, {"valid": tokens}, xz=False)["valid"]


def finished_search(path: Path, seeds: int) -> dict[str, Any] | None:
    """What search.json holds, if it is about all these seeds."""
    if not (path / FOUND).is_file():
        return None
    found = folder.read_json(path, FOUND)
    return found if len(found.get("seeds", ())) == seeds else None


def write_found(path: Path, found: Mapping[str, Any]) -> None:
    replace_file(path / FOUND, json.dumps(found) + "\n")


def retrain_all(
    recipe: Recipe, path: Path, found: Mapping[str, Any], workers: Workers, watch: Watch
) -> Searched:
    """Train the found pattern and its rivals from scratch, all with the search's updates."""
    patterns = {"found": Pattern.parse(found["pattern"]), **rivals(len(space_of(recipe).layers))}
    results: dict[str, Mapping[str, Any]] = {}
    for name, pattern in patterns.items():
        twin = next((other for other in results if patterns[other] == pattern), None)
        if twin is not None:
            results[name] = results[twin]
            continue
        watch.notice(f"Training {name} from scratch: {pattern}")
        outcome = retrain_one(recipe, path / RETRAIN / name, pattern, workers, watch)
        if not outcome.finished:
            return Searched(False, {}, outcome.step, f"training {name}")
        results[name] = outcome.result
    if not workers.first:
        return Searched(True, found)
    by_character = recipe.data.tokenizer in ("byte", "used-bytes", "character")
    whole = with_retrained(found, results, patterns, by_character=by_character)
    write_found(path, whole)
    return Searched(True, whole)


def retrain_one(
    recipe: Recipe, path: Path, pattern: Pattern, workers: Workers, watch: Watch
) -> Outcome:
    changes = {"model.pattern": pattern, "train.time": 0.0, "train.evaluate_every": 0}
    own = replace(recipe.replaced(changes), search=None)
    return train_model(own, path, workers=workers, watch=watch)
