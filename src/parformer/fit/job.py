"""Text and a budget in, the best model that fits out: the whole job, phase by phase.

A phase is done once: what it found is in the run's notes, and whoever comes back goes on with
the next. What a clock decided (sizes, updates) is among that, so it is decided once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any, Protocol

import numpy as np

from parformer.config import ModelConfig
from parformer.costs import cost
from parformer.data.tokens import Prepared
from parformer.errors import ConfigError
from parformer.fit.ask import FAMILIES, Ask
from parformer.fit.finalists import (
    CLOCKED,
    INNER,
    INSIDE,
    Reckoned,
    candidates,
    choose,
    measured_figures,
    picture,
    placements,
    search_sizes,
    space_of,
    widths_of,
)
from parformer.fit.notes import Notes, Result
from parformer.fit.sizing import PROBE, affordable, ladder, reckon, within
from parformer.fit.timetable import Phase, counted, plan, seconds_of
from parformer.fit.trainings import (
    EVALUATED,
    GLANCE,
    Trainings,
    last_validation,
    losers,
    sweep,
)
from parformer.fit.verdict import choose as choose_best
from parformer.measure.meter import Meter, Step, measure_here
from parformer.measure.profile import BlockRange, Profile, Sizes, profile_device
from parformer.recipe import Recipe, SearchConfig, read_recipe
from parformer.search.job import search_differentiable
from parformer.search.limits import excess
from parformer.search.objectives import Clock, Figures, countable
from parformer.train.distributed import Workers
from parformer.train.job import read_text
from parformer.train.loop import Silence, Watch
from parformer.train.plan import decide, fit_vocabulary, step_seconds, token_seconds
from parformer.train.session import refuse_misfits, train_length

BASELINE = "baseline"
FINALISTS = 5
"""Models that a size is reckoned for."""
ROUNDS = 10
BEHIND = 0.04
"""How far behind the best a model is dropped after a third of its training."""
SURVIVE = 0.8
"""The share of all updates that is trained when losers are dropped."""
LONGER = 1.3
"""How much longer than in the contest a winner's training must be to be worth while."""
CLOSE = 0.25
"""The share of the margin within which two models are as good, and the faster one is taken."""
REACH = (0.3, 0.97)
"""Limits between these multiples of the baseline steer the search for placements."""


class FitWatch(Watch, Protocol):
    """Whoever looks on, told which phase begins."""

    def phase(self, phase: Phase, number: int, of: int, left: float) -> None: ...
    def planned(self, phases: Sequence[Phase], ask: Ask) -> None: ...


class Quiet(Silence):
    """Nobody does."""

    def phase(self, phase: Phase, number: int, of: int, left: float) -> None: ...
    def planned(self, phases: Sequence[Phase], ask: Ask) -> None: ...


@dataclass(frozen=True)
class Job:
    """One fit in its run folder."""

    notes: Notes
    path: Path
    watch: FitWatch
    meter: Meter = measure_here
    cache: Path | None = None
    """Where block costs are kept; the user's cache folder unless given."""
    receipts: dict[str, Any] = field(default_factory=dict)
    """What the last measurement was made with."""

    @property
    def ask(self) -> Ask:
        return self.notes.ask

    @cached_property
    def phases(self) -> tuple[Phase, ...]:
        return counted() if self.ask.steps else plan(self.ask.time)

    @cached_property
    def step(self) -> Step:
        """What is measured of every model."""
        ask = self.ask
        return Step(
            tgt_len=ask.tgt_len or None,
            mem_len=None if ask.mem_len < 0 else ask.mem_len,
            threads=ask.threads,
            rounds=ROUNDS,
        )

    def run(self) -> None:
        """All phases that are not done yet."""
        self.watch.planned(self.phases, self.ask)
        work: Mapping[str, Callable[[], Result]] = {
            "text": self.read,
            "size": self.size,
            "profile": self.profile,
            "search": self.search,
            "sizes": self.sizes,
            "rates": self.rates,
            "contest": self.contest,
            "seeds": self.seeds,
            "winner": self.winner,
        }
        for name, make in work.items():
            if not self.notes.has(name):
                self.announce(name)
                self.notes.once(name, make)

    def announce(self, name: str) -> None:
        """Tell that a phase begins, unless it is left out."""
        for number, phase in enumerate(self.phases, start=1):
            out = not phase.planned and (not self.ask.steps or bool(phase.note))
            if phase.name == name and not out:
                self.watch.phase(phase, number, len(self.phases), self.left)

    @property
    def left(self) -> float:
        """Seconds that remain of the time for everything."""
        return max(0.0, self.ask.time - self.notes.spent)

    def result(self, phase: str) -> Result:
        """What a phase that is done found."""
        return self.notes.once(phase, _unreachable)

    @cached_property
    def prepared(self) -> Prepared:
        """The text as tokens."""
        return read_text(self.ask.recipe(), Workers(), self.watch, None, self.path)

    def read(self) -> Result:
        tokens = self.prepared.splits["train"].tokens
        return {
            "identity": self.prepared.identity,
            "tokens": len(tokens),
            "bytes": self.prepared.splits["train"].bytes,
            "vocabulary": self.prepared.tokenizer.size,
        }

    def size(self) -> Result:
        """The baseline, as large as the time and the limits allow, and what it costs."""
        tokens = self.prepared.splits["train"].tokens
        recipe = fit_vocabulary(self.ask.recipe(), self.prepared.tokenizer, lambda _: None)
        recipe = recipe.replaced({"data.identity": self.prepared.identity})
        rungs = ladder(recipe.model)
        recipe = replace(recipe, model=rungs[PROBE])
        refuse_misfits(recipe, tokens, Workers())
        recipe = decide(recipe, tokens, Workers(), self.watch.notice)
        per_update = recipe.train.batch * train_length(recipe)
        if self.ask.steps:
            paces, seconds = [1.0] * len(rungs), float(self.ask.steps)
        else:
            paces = reckon(rungs, rungs[PROBE], step_seconds(recipe, tokens, Workers()))
            seconds = seconds_of(self.phases)["contest"] / FINALISTS / SURVIVE
        largest = affordable(rungs, paces, seconds, per_update)
        config = rungs[self.within_absolute(rungs, largest)]
        reading = self.meter({BASELINE: config}, self.step)[BASELINE]
        figures = {**self.counts(config), "latency": reading.median, "memory": reading.peak_bytes}
        limits = {b.metric: b.of(figures[b.metric]).most for b in self.ask.bounds}
        parameters = cost(config).parameters
        self.watch.notice(
            f"Baseline: {config.pattern}, width {config.d_model}, {parameters:,} parameters, "
            f"{1000 * reading.median:.3g} ms a step."
        )
        return {
            "recipe": replace(recipe, model=config).to_dict(),
            "figures": figures,
            "limits": limits,
        }

    def counts(self, config: ModelConfig) -> Figures:
        shape = self.step.shape(config)
        return countable(cost(config, tgt_len=shape.tgt_len, mem_len=shape.mem_len))

    def within_absolute(self, rungs: Sequence[ModelConfig], largest: int) -> int:
        """The largest rung that keeps limits which are no multiples of the baseline's."""
        limits = {b.metric: b.most for b in self.ask.bounds if not b.relative}
        if not limits:
            return largest
        figures = [self.counts(config) for config in rungs[: largest + 1]]
        if set(limits) & set(CLOCKED):
            few = {str(n): config for n, config in enumerate(rungs[: largest + 1])}
            readings = self.meter(few, self.step)
            for n, one in enumerate(figures):
                reading = readings[str(n)]
                one |= {"latency": reading.median, "memory": float(reading.peak_bytes)}
        return within(figures, limits, largest)

    @cached_property
    def recipe(self) -> Recipe:
        """How the baseline is trained; models differ from it in what they are."""
        return Recipe.from_dict(self.result("size")["recipe"])

    @property
    def limits(self) -> dict[str, float]:
        return dict(self.result("size")["limits"])

    def profile(self) -> Result:
        """Block costs on this device; nothing where that is left out."""
        seconds = seconds_of(self.phases)["profile"]
        if not seconds:
            return {}
        base, letters = self.recipe.model, self.ask.letters
        options: dict[str, dict[str, list[int]]] = {
            "f": {"inner": [16 * max(1, round(m * base.d_model / 16)) for m in INNER]},
            "r": {"width": [8 * max(1, round(m * base.d_model / 8)) for m in INSIDE]},
        }
        sizes = Sizes(
            base=base,
            fields={"d_model": tuple(widths_of(base))},
            blocks=tuple(
                BlockRange(letter=letter, options=options.get(letter, {}))
                for letter in letters
                if letter != "i"
            ),
            typical_bytes=4 * cost(base).decoder_parameters,
            step=replace(self.step, rounds=6 if seconds < 60 else ROUNDS),
        )
        profile = profile_device(
            sizes,
            meter=self.meter,
            folder=self.cache,
            whole=self.whole_models(8 if seconds < 60 else 24),
            progress=self.watch.preparing,
        )
        error = profile.error
        if error is not None:
            self.watch.notice(
                f"Latency of any size is predicted from now on, off by {error.latency.median:.0%} "
                "in the median."
            )
        return {
            "profile": profile.to_dict(),
            "median_error": None if error is None else error.latency.median,
            "p90_error": None if error is None else error.latency.p90,
        }

    def whole_models(self, count: int) -> list[ModelConfig]:
        """Models from all placements by rule, to calibrate the profile and to tell its error."""
        base, rng = self.recipe.model, Random("whole models of a fit")
        rules = placements(len(base.pattern), self.ask.letters, "")
        recipe = FAMILIES[self.ask.family]
        spaces = [space_of(one.name, p, base, recipe) for one in rules for p in one.patterns]
        return [
            (space := spaces[number % len(spaces)]).config(space.draw(rng))
            for number in range(count)
        ]

    def clock(self) -> Clock:
        known = self.result("profile")
        if known:
            return Profile.from_dict(known["profile"])
        figures = self.result("size")["figures"]
        return Reckoned(self.recipe.model, figures["latency"], int(figures["memory"]), self.step)

    def search(self) -> Result:
        """Where a supernet puts the blocks; nothing where that is left out."""
        seconds = seconds_of(self.phases)["search"]
        if not seconds and not self.ask.steps:
            return {}
        known = read_recipe("pocket-search").search or SearchConfig()
        recipe = replace(self.recipe, search=known).replaced(
            {
                "search.choices": self.ask.choices,
                "search.limit": self.steering(),
                "train.time": 0.8 * seconds,
                "train.steps": max(30, self.ask.steps),
                "train.warmup": 3,
                "train.evaluate_tokens": 1024,
                "train.final_tokens": 1024,
            }
        )
        if seconds:
            recipe = recipe.replaced({"train.warmup": 100})
        found = search_differentiable(
            recipe, self.path / "search", watch=self.watch, command="parformer fit"
        )
        if not found.finished:
            raise KeyboardInterrupt
        return {"pattern": str(found.found["pattern"])}

    def steering(self) -> str:
        """The limit that the search for placements is told, as a multiple of the baseline."""
        figures = self.result("size")["figures"]
        for metric in ("latency", "flops", "parameters", "state"):
            if metric in self.limits:
                share = self.limits[metric] / figures[metric]
                if REACH[0] <= share <= REACH[1]:
                    return f"{metric}={share:.4g}x"
        return ""

    def sizes(self) -> Result:
        """The finalists: every placement with the sizes that fit, measured beside the baseline."""
        base, clock, limits = self.recipe.model, self.clock(), self.limits
        found = self.result("search").get("pattern", "")
        rules = placements(len(base.pattern), self.ask.letters, found)
        tried: dict[str, list[ModelConfig]] = {}
        pictures = {}
        (self.path / "sizes").mkdir(exist_ok=True)
        for number, placement in enumerate(rules):
            self.watch.preparing(f"sizes of {placement.title}", number / (len(rules) + 1))
            spaces = [
                space_of(placement.name, pattern, base, FAMILIES[self.ask.family])
                for pattern in placement.patterns
            ]
            searches = [
                search_sizes(
                    space,
                    clock,
                    limits,
                    self.step,
                    self.ask.seed,
                    self.path / "sizes" / f"{space.name}.jsonl",
                )
                for space in spaces
            ]
            tried[placement.name] = candidates(searches, limits)
            pictures[placement.name] = picture(searches)
        configs = {f"{name} {n}": c for name, many in tried.items() for n, c in enumerate(many)}
        readings = self.meter({BASELINE: base, **configs}, self.step, self.watch.preparing)
        seconds = self.result("size")["figures"]["latency"]
        rows = []
        for placement in rules:
            many = tried[placement.name]
            figures = [
                measured_figures(c, f"{placement.name} {n}", readings, self.step, seconds)
                for n, c in enumerate(many)
            ]
            best = choose(many, figures, limits)
            if many[best] == base:
                continue
            rows.append(
                {
                    "name": placement.name,
                    "title": placement.title,
                    "how": f"{placement.how}; sizes by a Pareto search within the limits",
                    "config": many[best].to_dict(),
                    "figures": figures[best],
                    "eligible": excess(figures[best], limits) == 0,
                }
            )
        own = measured_figures(base, BASELINE, readings, self.step, seconds)
        fits = all(self.ask_keeps(own, metric) for metric in limits)
        if not fits and not any(row["eligible"] for row in rows):
            raise self.nothing_fits(rows)
        rows.insert(0, {
            "name": BASELINE, "title": "Interleaved Transformer",
            "how": "attention and feed-forward in turn, all alike, sized for the time there is",
            "config": base.to_dict(), "figures": own, "eligible": fits,
        })  # fmt: skip
        return {"models": rows, "pictures": pictures}

    def ask_keeps(self, figures: Mapping[str, float], metric: str) -> bool:
        """Whether the baseline keeps a limit; one of its own figure it does by definition."""
        limit = next(bound for bound in self.ask.bounds if bound.metric == metric)
        if limit.relative:
            return limit.most >= 1
        return figures[metric] <= limit.most

    def nothing_fits(self, rows: Sequence[Mapping[str, Any]]) -> ConfigError:
        from parformer.search.limits import as_option, in_words

        limits = self.limits
        nearest = min(rows, key=lambda row: excess(row["figures"], limits))
        broken = {n: nearest["figures"][n] for n in limits if nearest["figures"][n] > limits[n]}
        has = " and ".join(
            f"{in_words(n, v)} of {n} where {in_words(n, limits[n])} is allowed"
            for n, v in broken.items()
        )
        options = " ".join(f"--limit {as_option(n, v)}" for n, v in broken.items())
        pattern = nearest["config"]["pattern"]
        return ConfigError(
            f"no model is within the limits; the nearest, {pattern}, has {has}; try {options}"
        )

    @cached_property
    def trainings(self) -> Trainings:
        return Trainings(self.path / "trainings", self.prepared, self.watch)

    @property
    def models(self) -> dict[str, ModelConfig]:
        rows = self.result("sizes")["models"]
        return {row["name"]: ModelConfig.from_dict(row["config"]) for row in rows}

    @property
    def eligible(self) -> list[str]:
        return [row["name"] for row in self.result("sizes")["models"] if row["eligible"]]

    def recipe_of(self, name: str, steps: int, rate: float, seed: int = 0) -> Recipe:
        looks = max(1, steps // 6)
        return replace(self.recipe, model=self.models[name]).replaced(
            {
                "train.steps": steps,
                "train.time": 0.0,
                "train.warmup": max(1, steps // 10),
                "train.learning_rate": rate,
                "train.seed": self.ask.seed + seed,
                "train.evaluate_every": looks,
                "train.evaluate_tokens": GLANCE,
                "train.final_tokens": 1024,
            }
        )

    def paces(self) -> dict[str, float]:
        """Seconds of an update of every finalist; and of a token in validation."""
        if self.ask.steps:
            return {**dict.fromkeys(self.models, 1.0), "token": 0.0}
        tokens, found = self.prepared.splits["train"].tokens, {}
        for number, name in enumerate(self.models):
            self.watch.preparing("timing updates", number / len(self.models))
            found[name] = step_seconds(self.recipe_of(name, 100, 1e-3), tokens, Workers())
        return found | {"token": token_seconds(self.recipe, tokens, Workers())}

    def share_of(self, phase: str) -> float:
        """The seconds of a training phase: its share of what is left for all of them."""
        planned = seconds_of(self.phases)
        order = ("rates", "contest", "seeds", "winner")
        ahead = order[order.index(phase) :]
        left = self.left - planned["report"]
        return max(0.0, left) * planned[phase] / sum(planned[name] for name in ahead)

    def rates(self) -> Result:
        """The learning rate of each finalist, by three short trainings."""
        paces = self.notes.once("rates.paces", self.paces)
        names = list(self.models)
        steps = max(2, self.ask.steps // 6)
        if not self.ask.steps:
            looking = 3 * len(names) * (2 * GLANCE * paces["token"] + 0.5)
            together = 3 * sum(paces[name] for name in names)
            steps = max(10, int((self.share_of("rates") - looking) / together))
        steps = self.notes.once("rates.steps", lambda: {"steps": steps})["steps"]
        start = self.recipe.train.learning_rate * math.sqrt(128 / self.recipe.model.d_model)
        found = {}
        for number, name in enumerate(names, start=1):
            self.watch.notice(f"Learning rate of {name}, {number} of {len(names)}")

            def score(rate: float, name: str = name) -> float | None:
                recipe = self.recipe_of(name, steps, rate)
                _, outcome = self.trainings.run(recipe, f"rate-{name}-{rate:.3g}")
                loss = None if outcome is None else outcome.result["valid"]["loss"]
                return None if loss is None else float(loss)

            rows, best = sweep(score, float(f"{start:.2g}"))
            found[name] = {"rates": rows, "rate": best}
        return {"steps": steps, "models": found}

    def contest_steps(self) -> dict[str, int]:
        paces = self.result("rates.paces")
        names = list(self.models)
        if self.ask.steps:
            return {"steps": self.ask.steps}
        looking = len(names) * ((7 * GLANCE + EVALUATED) * paces["token"] + 1.0)
        together = SURVIVE * sum(paces[name] for name in names)
        steps = int((self.share_of("contest") - looking) / together)
        return {"steps": max(30, steps // 6 * 6)}

    def contest(self) -> Result:
        """All finalists a third of the way, then those that are not far behind to the end."""
        steps = self.notes.once("contest.steps", self.contest_steps)["steps"]
        rates = self.result("rates")["models"]
        third = max(1, steps // 6) * 2
        losses: dict[str, float] = {}
        for name in self.models:
            self.watch.notice(f"{name}: {self.models[name].pattern}, {steps:,} updates")
            recipe = self.recipe_of(name, steps, rates[name]["rate"])
            path, outcome = self.trainings.run(recipe, name, until=third)
            losses[name] = last_validation(path) if outcome is not None else math.inf
        known = {name: loss for name, loss in losses.items() if math.isfinite(loss)}
        out = losers(known, [BASELINE], self.eligible, BEHIND) if known else {}
        found: dict[str, Any] = {}
        for name, loss in losses.items():
            if name in out or not math.isfinite(loss):
                why = f"{out[name]:.1%} behind the best" if name in out else "it diverged"
                found[name] = {"dropped": {"step": third, "loss": known.get(name), "why": why}}
                self.watch.notice(f"{name} is dropped after {third:,} updates: {why}")
                continue
            recipe = self.recipe_of(name, steps, rates[name]["rate"])
            path, outcome = self.trainings.run(recipe, name)
            if outcome is None:
                found[name] = {"dropped": {"step": steps, "loss": None, "why": "it diverged"}}
                continue
            found[name] = {"dropped": None, "segments": self.trainings.segments(path).tolist()}
        best = self.best_of(found)
        return {"steps": steps, "models": found, "best": best}

    def best_of(self, found: Mapping[str, Any]) -> str:
        """The best of those that may be chosen; the baseline if there is no other."""
        means = {
            name: float(np.mean(found[name]["segments"]))
            for name in self.eligible
            if found.get(name, {}).get("segments")
        }
        rows = self.result("sizes")["models"]
        latencies = {row["name"]: row["figures"]["latency"] for row in rows}
        return choose_best(means, latencies, CLOSE * self.ask.margin) if means else BASELINE

    def seeds(self) -> Result:
        """Baseline and best again, with as many other seeds as there is time for."""
        contest, paces = self.result("contest"), self.result("rates.paces")
        best, steps = contest["best"], contest["steps"]
        if not seconds_of(self.phases)["seeds"] or best == BASELINE:
            return {"seeds": {}}
        both = steps * (paces[BASELINE] + paces[best]) + 2 * EVALUATED * paces["token"]
        count = min(4, int(self.share_of("seeds") / both))
        count = self.notes.once("seeds.count", lambda: {"count": count})["count"]
        rates = self.result("rates")["models"]
        found: dict[str, Any] = {}
        for seed in range(1, count + 1):
            found[str(seed)] = {}
            for name in (BASELINE, best):
                self.watch.notice(f"{name} with seed {self.ask.seed + seed}")
                recipe = self.recipe_of(name, steps, rates[name]["rate"], seed)
                path, outcome = self.trainings.run(recipe, f"{name}-seed-{seed}")
                if outcome is not None:
                    found[str(seed)][name] = self.trainings.segments(path).tolist()
        return {"seeds": {s: both for s, both in found.items() if len(both) == 2}}

    def winner(self) -> Result:
        """The best once more, from scratch and for longer, if the time allows that."""
        contest, paces = self.result("contest"), self.result("rates.paces")
        name, steps = contest["best"], contest["steps"]
        if self.ask.steps:
            longer = 2 * steps
        else:
            looking = 7 * GLANCE * paces["token"] + 1.0
            longer = int((self.share_of("winner") - looking) / paces[name])
        longer = self.notes.once("winner.steps", lambda: {"steps": longer})["steps"]
        kept = {"name": name, "run": name, "steps": steps, "retrained": False}
        if longer < LONGER * steps:
            return kept
        rate = self.result("rates")["models"][name]["rate"]
        _, outcome = self.trainings.run(self.recipe_of(name, longer, rate), "winner")
        if outcome is None or outcome.result["valid"]["loss"] >= last_validation(
            self.trainings.root / name
        ):
            return kept  # longer was not better
        return {"name": name, "run": "winner", "steps": longer, "retrained": True}


def _unreachable() -> Result:
    raise AssertionError("this phase was to be done before")
