"""How do small models compare that were trained here, for minutes, on the built-in text?

All models of a study get the same number of updates, as many as fit into its time, found out once
by timing an update of each in turns. What was decided and every trained model stay in the run's
folder: the same command goes on where it stopped. Ratios between the models are what may be
compared with a paper, never their losses themselves.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from statistics import fmean
from typing import Any

from parformer.costs import cost
from parformer.data.batches import sample
from parformer.errors import ConfigError, FolderError, Stopped, TrainingError
from parformer.evaluate.counting import references_of
from parformer.measure.device import pinned_threads
from parformer.measure.latency import measure_latency
from parformer.recipe import DataConfig, Recipe, read_recipe
from parformer.records import Json, Record
from parformer.reproduce.study import Ours
from parformer.reproduce.workbench import FEWEST_ROUNDS, Workbench, spread, time_ratio
from parformer.store.files import read_json, replace_file
from parformer.tasks.base import training_shape
from parformer.train.alike import Alike, read_curve
from parformer.train.alike import Trained as Training
from parformer.train.distributed import Workers
from parformer.train.plan import find_kernels, fit_vocabulary
from parformer.train.session import Session

TRAININGS = "trainings"
FEWEST_STEPS = 20
"""Updates below which a comparison would be of first weights."""
LOOKING = 0.25
"""The share of the time that is kept for reading the text, timing and validation."""
TIMING = 0.1
"""The share of it for timing alone, at most."""
LOOKS = 8
"""Validations in a training."""
TOKENS = 32_768
"""Of the test split that are looked at, and half as many of the valid split, each time."""
SHORT = {"model__tgt_len": 64, "model__mem_len": 64}
"""What most pocket models read at a time, and remember."""


@dataclass(frozen=True)
class Plan(Record):
    """How many updates every model of a study gets, decided once."""

    steps: int
    paces: dict[str, tuple[float, ...]]
    """Seconds of an update, from rounds that timed all of them."""
    identity: str
    """Of the recipes."""

    def pace(self, name: str) -> float:
        """The median, the higher one of two."""
        times = sorted(self.paces[name])
        return times[len(times) // 2]


@dataclass(frozen=True, slots=True)
class Trained:
    """The models of a study by name, each with one training per seed."""

    recipes: Mapping[str, Recipe]
    curves: Mapping[str, tuple[Training, ...]]
    plan: Plan
    failed: frozenset[str] = frozenset()
    """Models that learned less than counting pairs of tokens gives."""

    def how(self, name: str) -> str:
        recipe, seeds = self.recipes[name], len(self.curves[name])
        return (
            f"pocket training here: {cost(recipe.model).parameters / 1e6:.1f} M parameters, "
            f"{self.plan.steps:,} updates of {update_words(recipe)}, {recipe.data.corpus}"
            + (f", {seeds} seeds" if seeds > 1 else "")
        )

    def more_loss(self, name: str, baseline: str, *, split: str = "test") -> Ours:
        """By how many percent a model's loss is above the baseline's, seed by seed."""
        note = str(self.recipes[name].model.pattern)
        if lost := sorted({name, baseline} & self.failed):
            note += f"; says nothing: {' and '.join(lost)} learned less than counting pairs gives"
        return self.above(name, baseline, split, note)

    def more_losses(
        self, baseline: str, *, split: str = "test", prefix: str = "loss-"
    ) -> dict[str, Ours]:
        """The same of every model but the baseline, as rows are named."""
        others = [name for name in self.curves if name != baseline]
        return {prefix + name: self.more_loss(name, baseline, split=split) for name in others}

    def above(self, name: str, baseline: str, split: str, note: str = "") -> Ours:
        pairs = zip(self.curves[name], self.curves[baseline], strict=True)
        found = [percent_above(loss(a, split), loss(b, split)) for a, b in pairs]
        return self.of_seeds(found, name, note)

    def of_seeds(self, values: Sequence[float], name: str, note: str = "") -> Ours:
        """A figure that every seed has one of; a single one is not judged."""
        single = len(values) == 1 or name in self.failed
        return Ours(fmean(values), self.how(name), spread(values), note, single=single)

    def pace_ratio(self, name: str, baseline: str) -> Ours:
        """How many times the baseline's time an update takes."""
        how = "measured here: an update of the pocket models"
        return time_ratio(self.plan.paces[name], self.plan.paces[baseline], how)


def update_words(recipe: Recipe) -> str:
    """What a model reads in one update."""
    if recipe.data.pair:
        return f"{recipe.train.batch_tokens:,} tokens"
    return f"{recipe.train.batch} × {training_shape(recipe).step_len} bytes"


def percent_above(ours: float, theirs: float) -> float:
    return 100 * (ours / theirs - 1)


def loss(training: Training, split: str) -> float:
    """At the end; of the text trained on, the mean of the last lines of metrics."""
    if split == "train":
        losses = [loss for _, loss in read_curve(training.path, "loss")]
        return fmean(losses[-max(1, len(losses) // 10) :])
    found = training.test_loss if split == "test" else training.loss
    assert found is not None, "pocket trainings end with a look at test"
    return found


def pocket(preset: str = "pocket", /, **changes: Any) -> Recipe:
    """A small recipe; fields are named with two underscores, as in train__batch=16."""
    own = {name.replace("__", "."): value for name, value in changes.items()}
    settings: dict[str, object] = {
        "train.precision": "fp32",
        "train.compile": "off",
        "train.time": 0.0,
        "train.evaluate_tokens": TOKENS // 2,
        "train.final_tokens": TOKENS,
    }
    return read_recipe(preset, settings | own)


def train_pocket(bench: Workbench, study: str, recipes: Mapping[str, Recipe]) -> Trained | None:
    """Train every recipe with as many updates; nothing where trainings are left out."""
    if not bench.training:
        return None
    if bench.folder is None:
        raise ConfigError(f"{study} trains models and needs a --run folder to keep them in")
    with pinned_threads(bench.threads):
        recipes = {name: settled(bench, recipe) for name, recipe in recipes.items()}
        plan = read_plan(bench, study, recipes) or make_plan(bench, study, recipes)
        curves: dict[str, tuple[Training, ...]] = {}
        total = len(recipes) * bench.seeds
        for name, recipe in recipes.items():
            found: list[Training] = []
            for seed in range(bench.seeds):
                done = len(curves) * bench.seeds + seed
                bench.say(f"training {name}, {done + 1} of {total}", done / total)
                found.append(train_one(bench, study, name, final(recipe, plan.steps, seed)))
            curves[name] = tuple(found)
    return Trained(recipes, curves, plan, failed(bench, recipes, curves))


def compare_losses(
    bench: Workbench, study: str, recipes: Mapping[str, Recipe], baseline: str, split: str = "test"
) -> dict[str, Ours]:
    """How far the loss of each is above the baseline's; nothing where trainings are left out."""
    trained = train_pocket(bench, study, recipes)
    return {} if trained is None else trained.more_losses(baseline, split=split)


def failed(
    bench: Workbench, recipes: Mapping[str, Recipe], curves: Mapping[str, Sequence[Training]]
) -> frozenset[str]:
    """Models of which a seed learned less than counting pairs of tokens gives.

    Feed-forward alone sees one token, so pairs are all that it can learn: it fails nobody.
    """
    lost: set[str] = set()
    known: dict[DataConfig, float] = {}
    for name, recipe in recipes.items():
        data = recipe.data
        if set(recipe.model.pattern.letters) <= set("fi"):
            continue
        if data not in known and recipe.model.causal and not data.pair:
            text = bench.text(recipe)
            tokens = sample(text.splits["valid"].tokens, recipe.train.evaluate_tokens)
            known[data] = references_of(text, {"valid": tokens}, xz=False)["valid"].bigram
        if any(curve.loss >= known.get(data, math.inf) for curve in curves[name]):
            lost.add(name)
    return frozenset(lost)


def settled(bench: Workbench, recipe: Recipe) -> Recipe:
    changes: dict[str, object] = {"train.threads": bench.threads}
    if recipe.train.kernels == "auto":
        changes["train.kernels"] = find_kernels(Workers())
    if bench.corpus and not recipe.data.pair:
        changes["data.corpus"] = bench.corpus
    return recipe.replaced(changes)


def final(recipe: Recipe, steps: int, seed: int) -> Recipe:
    train = recipe.train
    return recipe.replaced(
        {
            "train.steps": steps,
            "train.seed": seed,
            "train.warmup": min(train.warmup, max(1, steps // 10)),
            "train.evaluate_every": max(1, -(-steps // LOOKS)),
        }
    )


def train_one(bench: Workbench, study: str, name: str, recipe: Recipe) -> Training:
    """Train one model, or find it trained."""
    assert bench.folder is not None
    digest = fingerprint(recipe.to_dict())[:8]
    words = re.sub(r"[^\w]+", "-", name).strip("-")
    alike = Alike(bench.folder / TRAININGS / study, bench.text(recipe), bench.watch)
    try:
        trained = alike.run(recipe, f"{words}-{recipe.train.seed}-{digest}")
    except Stopped:
        raise Stopped(
            f"stopped in the training of {name}, everything is saved; "
            f"the same command with --run {bench.folder} goes on"
        ) from None
    if trained is None:
        raise TrainingError(f"the training of {name} in {study} diverged; leave {study} out")
    return trained


def plan_file(bench: Workbench, study: str) -> Path:
    assert bench.folder is not None
    length = f"{bench.steps}-steps" if bench.steps else f"{bench.seconds:g}s"
    return bench.folder / TRAININGS / f"{study}-{length}-{bench.seeds}.json"


def fingerprint(values: Json) -> str:
    return hashlib.sha256(json.dumps(values, default=str).encode()).hexdigest()


def identity(recipes: Mapping[str, Recipe]) -> str:
    return fingerprint({name: recipe.to_dict() for name, recipe in recipes.items()})


def read_plan(bench: Workbench, study: str, recipes: Mapping[str, Recipe]) -> Plan | None:
    """What was decided when the study began in this folder."""
    file = plan_file(bench, study)
    if not file.is_file():
        return None
    try:
        plan = Plan.from_dict(read_json(file))
    except FolderError as error:
        raise FolderError(
            f"{str(file)!r} is broken ({error}); remove it, and it is decided anew"
        ) from None
    return plan if plan.identity == identity(recipes) else None


def make_plan(bench: Workbench, study: str, recipes: Mapping[str, Recipe]) -> Plan:
    """Time an update of every model, in turns; and see how many of each fit."""
    plan = Plan(bench.steps, time_updates(bench, recipes), identity(recipes))
    if not plan.steps:
        each = sum(map(plan.pace, recipes))
        steps = int(bench.seconds * (1 - LOOKING) / each / bench.seeds)
        if steps < FEWEST_STEPS:
            need = FEWEST_STEPS * each * bench.seeds / (1 - LOOKING)
            raise ConfigError(
                f"--time leaves {steps} updates for each of {len(recipes) * bench.seeds} trainings "
                f"of {study}; give at least --time {need / 60 + 0.5:.0f}m"
            )
        plan = replace(plan, steps=steps)
    file = plan_file(bench, study)
    file.parent.mkdir(parents=True, exist_ok=True)
    replace_file(file, json.dumps(plan.to_dict()) + "\n")
    return plan


def time_updates(bench: Workbench, recipes: Mapping[str, Recipe]) -> dict[str, tuple[float, ...]]:
    """Seconds of updates of models that are thrown away, all in the same rounds."""
    bench.say(f"timing updates of {len(recipes)} models", 0.0)
    steps = {}
    for name, recipe in recipes.items():
        prepared = bench.text(recipe)
        recipe = fit_vocabulary(recipe, prepared.tokenizer, lambda _: None)
        session = Session(recipe, prepared.splits["train"].tokens, workers=Workers())
        steps[name] = partial(_next_update, session, count())
    began = time.monotonic()
    for update in steps.values():
        update()
    once = time.monotonic() - began
    # a round runs every model twice, and what is spent on timing is not trained
    rounds = bench.rounds or max(2, min(FEWEST_ROUNDS, int(TIMING * bench.seconds / 2 / once)))
    timed = measure_latency(steps, rounds=rounds, warmup=1, min_round_seconds=0.0)
    return {name: tuple(timed[name].samples_seconds) for name in recipes}


def _next_update(session: Session, numbers: Iterator[int]) -> None:
    session.update(next(numbers))
