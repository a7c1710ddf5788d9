"""From a text to a pattern: the whole search for placements.

A run folder holds the recipe (`config.toml`), what was measured of this machine
(`device.json`), a folder for every seed with its metrics and checkpoints, and in the end
`search.json`; with `retrain` also the found pattern and its rivals, trained from scratch.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from parformer.data.batches import Tokens
from parformer.data.tokens import Prepared
from parformer.errors import ConfigError, FolderError, ParformerError, Stopped
from parformer.events import Listener, Watch, nobody
from parformer.pattern import Pattern
from parformer.recipe import Recipe, SearchConfig
from parformer.records import Json
from parformer.report.search import search_page
from parformer.report.trials import trials_page
from parformer.search.placement.decide import (
    Known,
    count_beside,
    decide_search,
    find_pace,
    find_prices,
    refuse_unfit,
    target_of,
    timetable_of,
    without_carried_state,
)
from parformer.search.placement.journal import SearchJournal, SeedRun
from parformer.search.placement.prices import Prices
from parformer.search.placement.request import PlacementRequest
from parformer.search.placement.result import PlacementResult
from parformer.search.placement.session import SearchSession, search_of, space_of
from parformer.search.placement.summarise import retrained, rivals, summarise
from parformer.search.trials.job import search_trials
from parformer.search.trials.result import TrialsResult
from parformer.store import folder
from parformer.store.files import replace_file
from parformer.tasks import find_task
from parformer.train.distributed import Workers, workers_from
from parformer.train.job import running, train_model
from parformer.train.loop import train
from parformer.train.plateau import MOST_SLOWER, SLOWER
from parformer.verbs import requested

DEVICE, RETRAIN, REPORT = "device.json", "retrain", "report.html"


@dataclass(frozen=True, slots=True)
class Searched:
    """How a search ended."""

    found: PlacementResult | None
    """None while it is not finished, and in all processes of torchrun but the first."""
    finished: bool = True
    step: int = 0
    """Where it stopped, if it is not finished."""
    where: str = ""
    """Which part stopped, in words."""


class StoppedSearch(Stopped):
    """Somebody stopped a search; it goes on another time."""

    def __init__(self, searched: Searched, command: str) -> None:
        super().__init__(
            f"stopped in {searched.where} after step {searched.step:,}, everything is saved; "
            f"go on with: {command}"
        )
        self.step = searched.step


def search_placement(
    request: PlacementRequest | None = None, *, watch: Listener = nobody, **fields: Any
) -> PlacementResult | TrialsResult | None:
    """Find which block belongs where; takes a request or its fields.

    By a supernet, or by trials, as the request says. Of several processes of torchrun, the first
    gets the result and the others nothing.
    """
    request = requested(PlacementRequest, request, fields)
    asked = request.asked()
    path = request.folder(asked)
    if asked.search is not None and asked.search.by != "supernet":
        return by_trials(request, asked, path, Watch(watch))
    with workers_from(device=request.device) as workers:
        searched = search_recipe(
            asked,
            path,
            chosen=request.chosen,
            retrain=request.retrain,
            command=request.command,
            workers=workers,
            watch=Watch(watch if workers.first else nobody),
        )
        if not searched.finished and workers.first:
            raise StoppedSearch(searched, request.again_with(path))
        if searched.found is not None and workers.first:
            replace_file(path / REPORT, search_page(searched.found))
    return searched.found


def by_trials(request: PlacementRequest, asked: Recipe, path: Path, watch: Watch) -> TrialsResult:
    """The same question asked of many short trainings."""
    if request.retrain:
        raise ConfigError("trials are trainings already; leave --retrain out")
    found = search_trials(asked, path, chosen=request.chosen, command=request.command, watch=watch)
    replace_file(path / REPORT, trials_page(found))
    return found


def search_recipe(
    recipe: Recipe | None,
    path: Path,
    *,
    chosen: Collection[str] = (),
    retrain: bool = False,
    command: str = "",
    workers: Workers | None = None,
    watch: Watch | None = None,
    prepared: Prepared | None = None,
) -> Searched:
    """Search by a recipe in a run folder; a run that is there already goes on.

    Who has the text open already gives it as `prepared`.
    """
    workers, watch = workers or Workers(), watch or Watch()
    measured: list[Known] = []

    def decide(recipe: Recipe, prepared: Prepared) -> Recipe:
        recipe, known = decide_search(recipe, prepared.splits["train"].tokens, workers, watch)
        measured.append(known)
        return recipe

    if recipe is not None:
        recipe = replace(recipe, search=recipe.search or SearchConfig())
        target_of(recipe)  # what cannot be aimed at is refused before any text is read
        refuse_unfit(recipe)
        # before it is compared with what a run holds, which was made of this
        recipe = without_carried_state(recipe, watch)
    with running(recipe, path, decide, chosen, workers, watch, prepared) as (recipe, prepared):
        if recipe.search is None:
            raise ConfigError(
                f"the run {str(path)!r} holds a training; go on with: parformer train --run {path}"
            )
        run = Run(recipe, prepared, path, workers, watch)
        known = run.know_device(measured)
        ended = run.search_seeds(known.prices)
        if isinstance(ended, Searched):
            return ended
        found = None
        if workers.first:
            timetable = timetable_of(recipe, run.tokens)
            found = finished_search(path, len(ended)) or summarise(
                recipe, ended, known, timetable, command, watch, count_beside(recipe, prepared)
            )
            found.save(path)
        shared = workers.share("" if found is None else str(found.pattern))
    return run.retrain(found, Pattern.parse(shared)) if retrain else Searched(found)


@dataclass(frozen=True, slots=True)
class Run:
    """A search under way."""

    recipe: Recipe
    prepared: Prepared
    path: Path
    workers: Workers
    watch: Watch

    @property
    def tokens(self) -> Tokens:
        return self.prepared.splits["train"].tokens

    def know_device(self, measured: list[Known]) -> Known:
        """What was measured of this machine when the run began, for all who go on with it."""
        file, workers = self.path / DEVICE, self.workers
        if workers.share("yes" if file.is_file() else "") == "yes":
            try:
                return Known.from_dict(folder.read_json(self.path, DEVICE), DEVICE)
            except ParformerError as problem:
                raise FolderError(
                    f"{str(file)!r} is broken ({problem}); remove it, and what it says is "
                    "measured again"
                ) from None
        if not measured:  # killed after its recipe was written, before this was
            prices = find_prices(self.recipe, workers, self.watch)
            measured.append(Known(prices, find_pace(self.recipe, self.tokens, workers)))
        if workers.first:
            replace_file(file, json.dumps(measured[0].to_dict(), indent=2) + "\n")
        return measured[0]

    def search_seeds(self, prices: Prices | None) -> list[SeedRun] | Searched:
        """Every seed's search, one after the other; or where they were stopped."""
        recipe, workers, watch = self.recipe, self.workers, self.watch
        seeds, target = search_of(recipe).seeds, target_of(recipe)

        def make_session(*inputs: Any, **options: Any) -> SearchSession:
            return SearchSession(*inputs, **options, prices=prices, target=target)

        runs = []
        known = find_task(recipe).ignorance(self.prepared)
        for number in range(seeds):
            seed = recipe.train.seed + number
            if seeds > 1:
                watch.notice(f"Seed {seed}, {number + 1} of {seeds}")
            for slower in range(MOST_SLOWER + 1):
                rate = recipe.train.learning_rate / SLOWER**slower
                own = recipe.replaced({"train.seed": seed, "train.learning_rate": rate})
                place = self.path / (f"seed-{seed}-slower-{slower}" if slower else f"seed-{seed}")
                if workers.first:
                    place.mkdir(exist_ok=True)
                workers.share("")  # the folder is there
                outcome = train(
                    own,
                    self.prepared,
                    place,
                    workers=workers,
                    watch=watch,
                    make_session=make_session,
                    make_journal=SearchJournal,
                )
                if not outcome.finished:
                    return Searched(None, False, outcome.step, f"seed {seed}")
                run = SeedRun.read(place) if workers.first else None
                stuck = run is not None and run.stuck(known)
                stuck = workers.share("yes" if stuck else "") == "yes"
                if not stuck or slower == MOST_SLOWER:
                    break
                watch.notice(
                    f"seed {seed}: the supernet learned nothing but token frequencies at {rate:g}; "
                    f"once more at {rate / SLOWER:g}"
                )
            if run is not None:
                runs.append(run)
                watch.notice(f"seed {seed}: {run.pattern}")
        return runs

    def retrain(self, found: PlacementResult | None, pattern: Pattern) -> Searched:
        """Train the found pattern and its rivals from scratch, all with the search's updates."""
        recipe = self.recipe
        patterns = {"found": pattern, **rivals(space_of(recipe))}
        results: dict[str, Json] = {}
        for name, pattern in patterns.items():
            twin = next((other for other in results if patterns[other] == pattern), None)
            if twin is not None:
                results[name] = results[twin]
                continue
            self.watch.notice(f"Training {name} from scratch: {pattern}")
            changes = {"model.pattern": pattern, "train.time": 0.0, "train.evaluate_every": 0}
            own = replace(recipe.replaced(changes), search=None)
            place = self.path / RETRAIN / name
            outcome = train_model(own, place, workers=self.workers, watch=self.watch)
            if not outcome.finished:
                return Searched(None, False, outcome.step, f"training {name}")
            results[name] = {} if outcome.result is None else outcome.result.to_dict()
        if found is None:
            return Searched(None)
        by_character = recipe.data.tokenizer in ("byte", "used-bytes", "character")
        whole = retrained(found, results, patterns, by_character=by_character)
        whole.save(self.path)
        return Searched(whole)


def finished_search(path: Path, seeds: int) -> PlacementResult | None:
    """What search.json holds, if it is whole and about all these seeds; else it is made again."""
    if not (path / PlacementResult.FILE).is_file():
        return None
    try:
        found = PlacementResult.load(path)
    except ParformerError:
        return None
    return found if len(found.seeds) == seeds else None
