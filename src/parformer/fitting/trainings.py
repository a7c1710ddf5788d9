"""How are models trained so that they can be compared?

All read the same text in the same order, for equally many updates, each with the learning rate
that a small sweep gives it. A training is a run folder of its own: what was stopped goes on.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parformer.data.tokens import Prepared
from parformer.errors import Stopped, TrainingError
from parformer.evaluate.perplexity import evaluate
from parformer.events import Watch
from parformer.fitting.verdict import segment_means
from parformer.model import load
from parformer.recipe import Recipe
from parformer.train.loop import Outcome, sample, train
from parformer.train.run import (
    CHECKPOINTS,
    METRICS,
    MODEL,
    is_run,
    make_folder,
    read_run,
    start_run,
)

SEGMENT = 512
"""Tokens of a stretch of validation text whose mean loss counts as one observation."""
EVALUATED = 65_536
"""Tokens of the valid split that models are compared on."""
TESTED = 131_072
"""Tokens of the test split that the baseline and the model handed over are looked at with."""
SURVIVE = 0.8
"""The share of all updates that is trained when losers are dropped."""
MOST_RATES = 5
"""Rates that a sweep tries at most."""
UNDECIDED = 0.01
"""Losses within this share of the lowest do not decide between rates."""
LOOKS = 6
"""Validations during a training."""
GLANCE = 16_384
"""Tokens that a validation during a training looks at."""


@dataclass(frozen=True)
class Trainings:
    """Trains models on one text, in folders under one root."""

    root: Path
    prepared: Prepared
    watch: Watch

    def run(
        self, recipe: Recipe, name: str, *, until: int | None = None
    ) -> tuple[Path, Outcome | None]:
        """Train to the end or to a step; None where numbers were no longer finite."""
        path = self.root / name
        make_folder(path)
        if is_run(path) and read_run(path).train.learning_rate != recipe.train.learning_rate:
            shutil.rmtree(path)  # it was given up for a lower rate
            make_folder(path)
        if is_run(path):
            recipe = read_run(path)
        else:
            start_run(path, recipe, self.prepared.tokenizer)
        try:
            outcome = train(recipe, self.prepared, path, watch=self.watch, until=until)
        except TrainingError as error:
            self.watch.notice(f"{name}: {error}")
            return path, None
        if outcome.interrupted:
            raise Stopped("stopped, everything is saved")
        return path, outcome

    def tidy(self, pattern: str) -> None:
        """What nobody goes on from needs no checkpoints: curves, results and models stay."""
        for place in self.root.glob(f"{pattern}/{CHECKPOINTS}"):
            shutil.rmtree(place, ignore_errors=True)

    @staticmethod
    def schedule(steps: int, rate: float, seed: int, looks: int) -> dict[str, object]:
        """What trainings of a contest have in common, with so many validations."""
        return {
            "train.steps": steps,
            "train.time": 0.0,
            "train.warmup": max(1, steps // 10),
            "train.learning_rate": rate,
            "train.seed": seed,
            "train.evaluate_every": max(1, steps // looks),
            "train.evaluate_tokens": GLANCE,
            "train.final_tokens": 1024,
        }

    def segments(self, path: Path, limit: int = EVALUATED) -> NDArray[np.float64]:
        """The losses of a trained model on stretches of the valid split."""
        tokens = sample(self.prepared.splits["valid"].tokens, limit)
        places: list[NDArray[np.int64]] = []
        losses: list[NDArray[np.float64]] = []

        def keep(where: NDArray[np.int64], what: NDArray[np.float64]) -> None:
            places.append(where)
            losses.append(what)

        evaluate(load(path / MODEL), tokens, batch=8, each=keep)
        return segment_means(places, losses, SEGMENT)


@dataclass(frozen=True, slots=True)
class Tried:
    """A short training at one rate."""

    rate: float
    loss: float | None
    """On validation text; None where its numbers were no longer finite."""
    stuck: bool = False
    """Whether it still knew nothing but how frequent each token is."""
    curve: Sequence[Sequence[float]] = ()
    """Losses on the text trained on, by update."""

    @property
    def standing(self) -> float:
        """What it is compared by: a loss on the plateau says nothing about its rate."""
        return math.inf if self.loss is None or self.stuck else self.loss


def sweep(score: Callable[[float], Tried], start: float, *, factor: float = 2.0) -> list[Tried]:
    """The usual rate and lower ones, as long as lower is better or nothing was learned.

    A short training flatters high rates: one of 40 updates was best at four times the rate that
    800 updates could bear. So none above the usual rate is tried.

    >>> tried = sweep(lambda rate: Tried(rate, abs(rate - 1)), 4.0)
    >>> [one.rate for one in tried], best_rate(tried)
    ([0.5, 1.0, 2.0, 4.0], 1.0)
    """
    tried = [score(start), score(start / factor)]
    while len(tried) < MOST_RATES:
        hopeless = all(math.isinf(one.standing) for one in tried)
        if not hopeless and best_rate(tried) > tried[-1].rate:
            break
        if not hopeless and tried[-1].standing >= tried[-2].standing:
            break  # lower is no better any more, only as good
        tried.append(score(tried[-1].rate / (factor**2 if hopeless else factor)))
    return sorted(tried, key=lambda one: one.rate)


def best_rate(tried: Sequence[Tried]) -> float:
    """The rate with the lowest loss; the lowest rate of those that are as good, or if none is.

    A short training flatters high rates, and a rate that is too high fails altogether.

    >>> best_rate([Tried(1.0, 2.01), Tried(2.0, 2.0), Tried(4.0, 1.9, stuck=True)])
    1.0
    """
    best = min(one.standing for one in tried)
    near = [one.rate for one in tried if one.standing <= best * (1 + UNDECIDED)]
    return min(near)


def losers(
    losses: Mapping[str, float], spared: Sequence[str], eligible: Sequence[str], behind: float
) -> dict[str, float]:
    """Who is so far behind the best that may be chosen that it need not go on, and by how much.

    >>> losers({"a": 1.0, "b": 1.2, "base": 1.3}, ["base"], ["a", "b"], 0.05)
    {'b': 0.2}
    """
    best = min(losses[name] for name in eligible if name in losses)
    return {
        name: round(loss / best - 1, 6)
        for name, loss in losses.items()
        if name not in spared and loss > best * (1 + behind)
    }


def read_curves(path: Path) -> dict[str, list[list[float]]]:
    """Training and validation losses by step, from a run's metrics."""
    curves: dict[str, list[list[float]]] = {"curve": [], "valid_curve": []}
    file = path / METRICS
    for line in file.read_text("utf-8").splitlines() if file.is_file() else ():
        row: dict[str, Any] = json.loads(line)
        for name, curve in (("loss", "curve"), ("valid_loss", "valid_curve")):
            if row.get(name) is not None:
                curves[curve].append([row["step"], row[name]])
    return curves


def last_validation(path: Path, until: float = float("inf")) -> float:
    """The newest validation of a run up to a step; infinite if there is none."""
    points = [loss for step, loss in read_curves(path)["valid_curve"] if step <= until]
    return points[-1] if points else float("inf")
