"""Which attention can go in a model that is trained already?

Prices first, so that a limit nobody can keep is told at once. Then every candidate is fitted, all
gates are learned, and each replacement is tried alone: what is known then stays in the step's
folder, whatever the limit. The limit is solved for, the best few are taught, and the one that
guesses held-out text best is taken.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from torch import Tensor

from parformer.compress.receipt import clock, timed
from parformer.compress.replacing.fitting import Fitting, fit, passes_in
from parformer.compress.replacing.gates import Gating, learn_gates, updates_in
from parformer.compress.replacing.places import Places, candidates, find_places, swapped
from parformer.compress.replacing.result import (
    Candidate,
    Learned,
    Plan,
    Replacement,
    Rung,
    Solved,
    Table,
)
from parformer.compress.replacing.solving import (
    best_few,
    counted_prices,
    refuse_too_little,
    timed_prices,
)
from parformer.compress.training import gentle, trained_on
from parformer.compress.work import ATTEMPTS, Work, wanted_share
from parformer.model import Model
from parformer.recipe import Recipe
from parformer.records import Record
from parformer.search.placement.prices import Prices
from parformer.store.files import read_json, replace_file
from parformer.train.start import Start
from parformer.weights import named_tensors

FITTING, GATING, TEACHING = 0.3, 0.2, 0.5
"""Shares of the time for training."""
TRIED = 4_096
"""Tokens of training text that replacements are tried on, one by one and together."""
TAUGHT = 2
"""Choices that are taught before one is taken."""
EACH = 2
"""Choices that gates and single losses propose."""
PASSES = 4
"""Of the teacher for every update of a training: without heads and gradients of its own they are
several times as quick."""
FEWEST = 20
"""Passes and updates, however short the time is."""
RUNGS = (0.9, 0.8, 0.7, 0.6, 0.5)
"""Limits that are solved for beside the one that was asked for."""

R = TypeVar("R", bound=Record)


def replace_blocks(model: Model, work: Work) -> tuple[Model, str]:
    """The model with other blocks where it needs those it has least."""
    job = Replacing(model, work)
    found = job.solve()
    if all(not any(one.picks) for one in found):
        job.tell(found, 0)
        return model, "no block had to be replaced to keep within the limit"
    taught = [job.teach(one) for one in found]
    losses = [work.bench.loss(one) for one in taught]
    best = min(range(len(losses)), key=losses.__getitem__)
    told = [replace(one, after=loss) for one, loss in zip(found, losses, strict=True)]
    job.tell(told, best)
    return taught[best], job.words(told[best], len(told))


@dataclass
class Replacing:
    """One model's replacements: what is known of them, and the folder that keeps it."""

    model: Model
    work: Work

    @cached_property
    def where(self) -> Places:
        return find_places(self.model, self.work.request.replacements)

    @cached_property
    def limit(self) -> float:
        return wanted_share(self.work)

    @cached_property
    def recipe(self) -> Recipe:
        return gentle(self.work.bench.recipe, self.model)

    @cached_property
    def folder(self) -> Path:
        """For whatever depends on the model, the text and the wishes, and not on a limit."""
        request, prepared = self.work.request, self.work.bench.prepared
        parts = (
            Start(Path(), self.model, prepared.tokenizer).identity(),
            prepared.identity,
            repr([self.where.paths, self.where.space]),
            *map(str, (request.seed, request.updates, self.work.seconds, self.work.by_time)),
        )
        key = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]
        return self.work.folder / key

    def swap(self, picks: Sequence[int], fitted: dict[str, Tensor] | None = None) -> Model:
        return swapped(self.model, self.where, picks, self.fitted if fitted is None else fitted)

    @cached_property
    def prices(self) -> Prices:
        """What every choice costs; refuses a limit that none keeps."""
        first = named_tensors(candidates(self.model, self.where, self.work.request.seed))
        say = self.work.watch.preparing

        def measure() -> Prices:
            if not self.work.by_time:
                return counted_prices(self.where, self.model)
            bench, told = self.work.bench, "timing what blocks cost, in turns"
            swap = lambda picks: self.swap(picks, dict(first))  # noqa: E731
            return timed_prices(self.where, swap, bench, lambda share: say(told, share))

        found = kept(self.folder / "prices.json", Prices, measure)
        refuse_too_little(found, self.limit, self.where.space.layers)
        return found

    def fitting(self) -> Fitting:
        text = self.work.bench.prepared.splits["train"].tokens
        return Fitting(self.model, self.where, self.recipe, text, self.work.request.seed)

    def gating(self) -> Gating:
        seed = self.work.request.seed
        others = candidates(self.model, self.where, seed)
        for name, tensor in named_tensors(others).items():
            tensor.data.copy_(self.fitted[name])
        text = self.work.bench.prepared.splits["train"].tokens
        return Gating(self.model, self.where, others, self.prices, self.recipe, text, seed)

    @cached_property
    def plan(self) -> Plan:
        """How much is learned: by the clock once, or as many updates as were asked for."""
        updates, seconds = self.work.request.updates, self.work.seconds

        def decide() -> Plan:
            if updates:
                return Plan(passes=PASSES * updates, updates=max(1, updates // 2))
            passes = passes_in(self.fitting, FITTING * seconds, FEWEST)
            return Plan(passes=passes, updates=0)

        return kept(self.folder / "plan.json", Plan, decide)

    @cached_property
    def fit(self) -> tuple[dict[str, Tensor], list[list[float]]]:
        root, steps = self.folder / "fitting", self.plan.passes
        return fit(self.fitting, steps=steps, root=root, watch=self.work.watch)

    @property
    def fitted(self) -> dict[str, Tensor]:
        return self.fit[0]

    @cached_property
    def updates(self) -> int:
        """Of the gates, which can be timed once candidates are fitted."""
        if self.plan.updates:
            return self.plan.updates

        def decide() -> Plan:
            count = updates_in(self.gating, GATING * self.work.seconds, FEWEST)
            return replace(self.plan, updates=count)

        return kept(self.folder / "gates.json", Plan, decide).updates

    @cached_property
    def learned(self) -> Learned:
        """What is known of every choice."""

        def find() -> Learned:
            chances = learn_gates(
                self.gating,
                steps=self.updates,
                root=self.folder / "gates",
                watch=self.work.watch,
            )
            return Learned(
                errors=as_table(self.fit[1]), alone=self.alone(), chances=as_table(chances)
            )

        return kept(self.folder / "learned.json", Learned, find)

    def alone(self) -> Table:
        """What the loss grows by with one block replaced and all others as they were."""
        loss = self.work.bench.train_loss
        before, rows = loss(self.model, TRIED), []
        for at, choices in enumerate(self.where.space.layers):
            row = []
            for pick in range(1, len(choices)):
                told = f"trying {choices[pick]} for {choices[0]}"
                self.work.watch.preparing(told, at / len(self.where.paths))
                picks = [pick if place == at else 0 for place in range(len(self.where.paths))]
                row.append(loss(self.swap(picks), TRIED) / before - 1)
            rows.append([0.0, *row])
        return as_table(rows)

    def solve(self) -> tuple[Candidate, ...]:
        """The most promising choices within the limit, timed where the limit is a time."""
        prices = self.prices  # refuses before anything is learned
        file = self.folder / f"solved-{self.limit:.6g}.json"
        return kept(file, Solved, lambda: self.solved(prices)).candidates

    def solved(self, prices: Prices) -> Solved:
        aim, nearest = self.limit, Solved(candidates=())
        for _ in range(ATTEMPTS):
            proposed = self.proposed(prices, aim)
            if not proposed:
                break
            seen = self.timed(proposed) if self.work.by_time else [(one, 0.0) for one in proposed]
            fits = [one for one, least in seen if least <= self.limit]
            if fits:
                best = sorted(fits, key=lambda one: one.before)
                return Solved(candidates=tuple(best[:TAUGHT]))
            quickest, least = min(seen, key=lambda pair: pair[1])
            nearest = Solved(candidates=(quickest,))
            aim *= self.limit / least
        return nearest

    def proposed(self, prices: Prices, limit: float) -> list[Candidate]:
        """What gates and single losses find best, each with the loss of all together."""
        learned = self.learned
        gates = [[math.log(max(p, 1e-300)) for p in row] for row in learned.chances]
        single = [[-grown for grown in row] for row in learned.alone]
        found: dict[tuple[int, ...], str] = {}
        for by, gains in (("the gates", gates), ("one by one", single)):
            for best in best_few(gains, prices, limit, EACH):
                found.setdefault(tuple(best), by)
        made = []
        for picks, by in found.items():
            model = self.swap(picks)
            made.append(
                Candidate(
                    picks=picks,
                    pattern=str(model.config.pattern),
                    by=by,
                    cost=prices.total(picks),
                    before=self.work.bench.train_loss(model, TRIED),
                )
            )
        return made

    def timed(self, proposed: Sequence[Candidate]) -> list[tuple[Candidate, float]]:
        """The same by the clock, beside the model as it is; and what each takes at the very least.

        Prices are of many models and know more than a single look, which a neighbour may spoil: a
        choice is given up only where the clock is sure.
        """
        models = {"whole": self.model} | {str(one.picks): self.swap(one.picks) for one in proposed}
        say = self.work.watch.preparing
        found, _ = clock(models, self.work.bench, 1, lambda share: say("timing, in turns", share))
        told = [timed(found, str(one.picks), "whole") for one in proposed]
        return [
            (replace(one, time=change.ratio), change.low)
            for one, change in zip(proposed, told, strict=True)
        ]

    def teach(self, one: Candidate) -> Model:
        """What becomes of a choice when the whole model learns from the original."""
        name = "-".join(map(str, one.picks))
        return trained_on(
            self.swap(one.picks),
            self.work.bench,
            self.folder / "taught" / name,
            teacher=self.work.original,
            seconds=TEACHING * self.work.seconds / TAUGHT,
            watch=self.work.watch,
            updates=self.work.request.updates,
        )

    def tell(self, found: Sequence[Candidate], best: int) -> None:
        """Write down what was found and chosen."""
        layers = self.where.space.layers
        Replacement(
            paths=self.where.paths,
            choices=tuple(tuple(map(str, choices)) for choices in layers),
            plan=replace(self.plan, updates=self.updates),
            learned=self.learned,
            prices=self.prices,
            limit=self.limit,
            candidates=tuple(found),
            chosen=best,
            ladder=tuple(self.ladder()),
        ).save(self.work.folder)

    def ladder(self) -> list[Rung]:
        """What other limits lead to, by single losses: no training, so it takes no time."""
        single = [[-grown for grown in row] for row in self.learned.alone]
        rungs = []
        for limit in RUNGS:
            for picks in best_few(single, self.prices, limit, 1):
                total = sum(row[pick] for row, pick in zip(self.learned.alone, picks, strict=True))
                pattern = str(self.swap(picks).config.pattern)
                cost = self.prices.total(picks)
                rungs.append(Rung(limit=limit, pattern=pattern, cost=cost, alone=total))
        return rungs

    def words(self, chosen: Candidate, count: int) -> str:
        """What was done, in a sentence."""
        layers = self.where.space.layers
        swaps = [
            f"{choices[0]}→{choices[pick]}"
            for choices, pick in zip(layers, chosen.picks, strict=True)
            if pick
        ]
        among = f", the best of {count} that were taught" if count > 1 else ""
        return f"{chosen.pattern}: {', '.join(swaps)}{among}"


def as_table(rows: Sequence[Sequence[float]]) -> Table:
    return tuple(tuple(row) for row in rows)


def kept(file: Path, kind: type[R], make: Callable[[], R]) -> R:
    """What a file holds, or what has to be found out for it."""
    if file.is_file():
        return kind.from_dict(read_json(file), str(file))
    found = make()
    file.parent.mkdir(parents=True, exist_ok=True)
    replace_file(file, json.dumps(found.to_dict()) + "\n")
    return found
