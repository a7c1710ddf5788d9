"""Train many patterns a little, and the better half on, until one is left.

First come the usual patterns and random mixes; a regression on what was seen of them then says
which others are worth a trial. Nothing is trained twice: whoever goes on goes on from where it
was. What the ways to search are worth is in docs/experiments/placement.md.
"""

from __future__ import annotations

import datetime
import json
import math
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from random import Random

from parformer import __version__
from parformer.data.tokens import Prepared
from parformer.errors import ConfigError, ParformerError
from parformer.events import Watch
from parformer.measure.device import describe_device
from parformer.recipe import Recipe
from parformer.search.machine import Machine
from parformer.search.placement.choices import Choices
from parformer.search.placement.decide import count_beside, find_prices, target_of
from parformer.search.placement.prices import Prices, baseline_of
from parformer.search.placement.session import search_of, space_of
from parformer.search.trials.patterns import Picks
from parformer.search.trials.result import Trial, TrialsResult
from parformer.search.trials.stacks import Stacks
from parformer.store import folder
from parformer.store.files import replace_file
from parformer.train.alike import Alike
from parformer.train.distributed import Workers
from parformer.train.job import running
from parformer.train.plan import decide, step_seconds

FIRST, EXPECTED = 16, 8
"""Patterns that are tried first, and those that the regression then adds."""
SHARES = (1 / 8, 1 / 4, 1 / 2, 1)
"""Shares of all updates after which the better half goes on."""
POOL = 600
"""Patterns that the regression chooses among."""
TRAININGS, PRICES = "trials", "prices.json"
LOOKED_AT = 16_384
"""Tokens of the valid split in every look."""
MOST_DRAWS = 20_000
"""Attempts to find patterns that keep a limit."""
RESERVE = 0.1
"""The share of the time that validations and counting may take."""


def effort(by: str, suspects: int) -> float:
    """Trainings of full length that a search takes altogether, about.

    >>> effort("usual", 4), effort("trials", 4)
    (1.5, 7.5)
    """
    entering = suspects if by == "usual" else FIRST + (EXPECTED if by == "trials" else 0)
    spent, before = 0.0, 0.0
    for share in SHARES:
        spent += entering * (share - before)
        entering, before = math.ceil(entering / 2), share
    return spent


def search_trials(
    recipe: Recipe,
    path: Path,
    *,
    chosen: Collection[str] = (),
    command: str = "",
    watch: Watch | None = None,
    prepared: Prepared | None = None,
) -> TrialsResult:
    """Search by a recipe in a run folder; a run that is there already goes on."""
    watch, workers = watch or Watch(), Workers()
    target = target_of(recipe)
    if target is not None and target.penalty is not None:
        raise ConfigError("a penalty is for the supernet; give trials a limit, such as flops=0.7x")

    def settle(recipe: Recipe, prepared: Prepared) -> Recipe:
        return settled(recipe, prepared, workers, watch)

    with running(recipe, path, settle, chosen, workers, watch, prepared) as (recipe, prepared):
        if recipe.search is None:
            raise ConfigError(
                f"the run {str(path)!r} holds a training; go on with: parformer train --run {path}"
            )
        began = time.monotonic()
        search = Trials(recipe, prepared, path, watch, known_prices(recipe, path, watch))
        losses = search.race()
        result = search.told(losses, time.monotonic() - began, command)
        result.save(path)
    return result


def settled(recipe: Recipe, prepared: Prepared, workers: Workers, watch: Watch) -> Recipe:
    """The recipe with nothing left open; updates that fit into the time."""
    space, search = space_of(recipe), search_of(recipe)
    limit, tokens = recipe.train.time, prepared.splits["train"].tokens
    plain = recipe.replaced({"model.pattern": baseline_of(space)})
    plain = plain.replaced({"train.compile": "off", "train.time": 0.0})
    plain = decide(replace(plain, search=None), tokens, workers, watch.notice)
    if limit:
        many = effort(search.by, len(Stacks.of(space).usual()))
        seconds = step_seconds(plain, tokens, workers)
        steps = max(len(SHARES) * 8, int(limit * (1 - RESERVE) / many / seconds))
        watch.notice(f"{steps:,} updates of {1000 * seconds:,.0f} ms for whoever comes to the end.")
        plain = plain.replaced({"train.steps": steps, "train.time": limit})
    return replace(plain, search=search, model=recipe.model)


def known_prices(recipe: Recipe, path: Path, watch: Watch) -> Prices | None:
    """What blocks cost where there is a limit, measured once for a run."""
    if (path / PRICES).is_file():
        try:
            return Prices.from_dict(folder.read_json(path, PRICES), PRICES)
        except ParformerError:
            watch.notice(f"{path / PRICES} is broken, so it is measured again")
    prices = find_prices(recipe, Workers(), watch)
    if prices is not None:
        replace_file(path / PRICES, json.dumps(prices.to_dict(), indent=2) + "\n")
    return prices


@dataclass(frozen=True)
class Trials:
    """A search under way."""

    recipe: Recipe
    prepared: Prepared
    path: Path
    watch: Watch
    prices: Prices | None

    @property
    def space(self) -> Choices:
        return space_of(self.recipe)

    @property
    def stacks(self) -> Stacks:
        return Stacks.of(self.space)

    @property
    def steps(self) -> int:
        """Updates of whoever comes to the end; an eighth of them is a whole number."""
        return max(8, self.recipe.train.steps // 8 * 8)

    @property
    def looks(self) -> tuple[int, ...]:
        return tuple(round(share * self.steps) for share in SHARES)

    def recipe_of(self, picks: Picks) -> Recipe:
        """How a pattern is trained: until its rate falls it does not matter for how long."""
        changes = {
            "model.pattern": self.space.pattern(picks),
            "train.steps": self.steps,
            "train.time": 0.0,
            "train.warmup": max(1, self.steps // 16),
            "train.schedule": "trapezoid",
            "train.evaluate_every": self.steps // 8,
            "train.evaluate_tokens": LOOKED_AT,
            "train.final_tokens": 1024,
        }
        return replace(self.recipe.replaced(changes), search=None)

    def fits(self, picks: Picks) -> bool:
        """Whether a pattern mixes tokens at all and keeps the limit."""
        target = target_of(self.recipe)
        if not self.stacks.looks(picks):
            return False
        if target is None or target.limit is None or self.prices is None:
            return True
        return self.prices.total(picks) <= target.limit

    def first(self, by: str, rng: Random) -> dict[Picks, str]:
        """The patterns that are tried first, and where they came from."""
        usual = [] if by == "random" else self.stacks.usual()
        found = {picks: "usual" for picks in usual if self.fits(picks)}
        if by == "usual" and found:
            return found
        drawn = (self.stacks.draw(rng) for _ in range(MOST_DRAWS))
        for picks in drawn:
            if len(found) >= FIRST:
                break
            if self.fits(picks):
                found.setdefault(picks, "random")
        if not found:
            raise ConfigError("no pattern of these choices keeps the limit; allow more")
        return found

    def pool(self, losses: dict[Picks, float], rng: Random) -> Iterable[Picks]:
        """Others to choose among: half near the best, half anywhere."""
        best = sorted(losses, key=losses.__getitem__)[: max(1, len(losses) // 3)]
        near = (self.stacks.neighbour(rng.choice(best), rng) for _ in range(MOST_DRAWS))
        anywhere = (self.stacks.draw(rng) for _ in range(MOST_DRAWS))
        for some in (near, anywhere):
            yield from islice((picks for picks in some if self.fits(picks)), POOL // 2)

    def race(self) -> dict[Picks, tuple[str, tuple[float, ...]]]:
        """Every pattern that was tried, where it came from, and its losses look by look."""
        by, rng = search_of(self.recipe).by, Random(self.recipe.train.seed)
        alike = Alike(self.path / TRAININGS, self.prepared, self.watch)
        found = self.first(by, rng)
        losses = {picks: self.look(alike, picks, 0) for picks in found}
        if by == "trials":
            known = {picks: min(loss, 1e3) for picks, loss in losses.items()}
            pool = self.pool(known, rng)
            for picks in self.stacks.most_promising(known, pool, EXPECTED):
                found[picks] = "expected"
                losses[picks] = self.look(alike, picks, 0)
        history = {picks: [loss] for picks, loss in losses.items()}
        for number in range(1, len(self.looks)):
            going = sorted(losses, key=losses.__getitem__)[: math.ceil(len(losses) / 2)]
            self.watch.notice(f"{len(going)} go on to {self.looks[number]:,} updates")
            losses = {picks: self.look(alike, picks, number) for picks in going}
            for picks, loss in losses.items():
                history[picks].append(loss)
        return {picks: (how, tuple(history[picks])) for picks, how in found.items()}

    def look(self, alike: Alike, picks: Picks, number: int) -> float:
        """The loss after a look's updates; infinite where numbers were no longer finite."""
        pattern, until = self.space.pattern(picks), self.looks[number]
        last = number == len(self.looks) - 1
        name = self.stacks.spelled(picks)
        trained = alike.run(self.recipe_of(picks), name, until=None if last else until)
        loss = math.inf if trained is None else trained.loss_at(until)
        self.watch.notice(f"{pattern}: loss {loss:.4g} after {until:,} updates")
        return loss

    def told(
        self, found: dict[Picks, tuple[str, tuple[float, ...]]], seconds: float, command: str
    ) -> TrialsResult:
        """What trials.json says."""
        target, prices = target_of(self.recipe), self.prices

        def standing(picks: Picks) -> tuple[int, float]:
            return -len(found[picks][1]), found[picks][1][-1]

        order = sorted(found, key=standing)
        best = order[0]
        counted = count_beside(self.recipe, self.prepared)
        return TrialsResult(
            pattern=self.space.pattern(best),
            corpus=self.recipe.data.corpus,
            layers=len(self.space.layers),
            choices=self.stacks.letters,
            by=search_of(self.recipe).by,
            tokenizer=self.recipe.data.tokenizer,
            steps=self.steps,
            looks=self.looks,
            trials=tuple(
                Trial(
                    pattern=self.space.pattern(picks),
                    how=found[picks][0],
                    losses=tuple(min(loss, 1e9) for loss in found[picks][1]),
                    cost=None if prices is None else prices.total(picks),
                )
                for picks in order
            ),
            learned=counted is None or found[best][1][-1] < counted.bigram,
            references=counted,
            target=target,
            seconds=seconds,
            updates=sum(self.looks[len(losses) - 1] for _, losses in found.values()),
            device=Machine.of(describe_device()),
            command=command,
            version=__version__,
            date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        )
