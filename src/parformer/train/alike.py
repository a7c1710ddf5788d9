"""How are several models trained alike, so that they can be compared?

All read the same text in the same order, for equally many updates. A training is a run folder of
its own: what was stopped goes on, and what is finished is found again.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median

from parformer.data.labelled import Labelled
from parformer.data.tokens import Prepared
from parformer.errors import CorpusError, Stopped, TrainingError
from parformer.events import Event, Step, Validated, Watch
from parformer.recipe import Recipe
from parformer.train.loop import train
from parformer.train.metrics import read_metrics
from parformer.train.plan import fit_vocabulary
from parformer.train.run import (
    CHECKPOINTS,
    LOCK,
    METRICS,
    is_run,
    make_folder,
    read_run,
    start_run,
)
from parformer.train.session import Session

Curve = tuple[tuple[int, float], ...]
"""Losses by update."""


@dataclass(frozen=True, slots=True)
class Trained:
    """How far a training came, and what it was worth on the way."""

    path: Path
    steps: int
    """Updates that it had so far."""
    finished: bool
    valid: Curve
    """Losses on validation text."""
    test_loss: float | None = None
    """On test text, once it is finished."""
    pace: float | None = None
    """Seconds of an update just now; None where too few were made to tell."""

    @property
    def loss(self) -> float:
        """The newest on validation text; infinite if there is none."""
        return self.loss_at(math.inf)

    def loss_at(self, step: float) -> float:
        """The newest up to a step."""
        return next((loss for at, loss in reversed(self.valid) if at <= step), math.inf)


@dataclass(frozen=True)
class Alike:
    """Trains models on one text, in folders under one root."""

    root: Path
    prepared: Prepared
    watch: Watch
    late: Callable[[], bool] = field(default=lambda: False)
    """Asked after every update: whether the training has to come to its end now."""
    clock: Callable[[], float] = time.monotonic

    def run(
        self, recipe: Recipe, name: str, *, until: int | None = None, end: int | None = None
    ) -> Trained | None:
        """Train from where it stopped; None where numbers were no longer finite.

        `until` pauses after that step; `end` ends the training there, whatever was planned.
        """
        path = self.root / name
        make_folder(path)
        if is_run(path) and schedule(read_run(path)) != schedule(recipe):
            shutil.rmtree(path)  # it was given up for a lower rate, or for more updates
            make_folder(path)
        known = self._known(path, recipe)
        valid, ticks = dict(read_curve(path, "valid_loss")), list[float]()

        def listen(event: Event) -> None:
            self.watch.tell(event)
            if isinstance(event, Step):
                ticks.append(self.clock())
            elif isinstance(event, Validated):
                valid[event.step] = event.loss

        try:
            outcome = train(
                known,
                self.prepared,
                path,
                watch=Watch(listen),
                until=until,
                make_session=ending(self.late, end or math.inf),
            )
        except TrainingError as error:
            self.watch.notice(f"{name}: {error}")
            return None
        if outcome.interrupted:
            raise Stopped("stopped, everything is saved")
        test = None
        if outcome.result is not None:
            valid[outcome.step] = outcome.result.loss_on("valid")
            test = None if outcome.result.test is None else outcome.result.test.loss
        # the median passes over those that a validation or a checkpoint came between
        pace = median(b - a for a, b in pairwise(ticks)) if len(ticks) > 3 else None
        return Trained(
            path, outcome.step, outcome.finished, tuple(sorted(valid.items())), test, pace
        )

    def _known(self, path: Path, recipe: Recipe) -> Recipe:
        """The recipe of a run that is there, else of one that begins now."""
        if not is_run(path):
            if not isinstance(self.prepared, Labelled):  # whose recipe was made for its tokens
                recipe = fit_vocabulary(recipe, self.prepared.tokenizer, lambda _: None)
            recipe = recipe.replaced({"data.identity": self.prepared.identity})
            start_run(path, recipe, self.prepared.tokenizer)
            return recipe
        stored = read_run(path)
        if stored.data.identity != self.prepared.identity:
            raise CorpusError(
                f"the text of {stored.data.corpus!r} is not the one that {str(path)!r} was "
                "started with; restore it, or choose another --run"
            )
        return stored

    def keep(self, name: str, copy: str) -> None:
        """Keep a training as it is now under another name, to go on from there later."""
        shutil.rmtree(self.root / copy, ignore_errors=True)
        shutil.copytree(self.root / name, self.root / copy, ignore=shutil.ignore_patterns(LOCK))

    def has(self, name: str) -> bool:
        return is_run(self.root / name)

    def lengthen(self, copy: str, name: str, recipe: Recipe) -> bool:
        """Take a kept training up for more updates; whether there was one that can be.

        Until its rate falls it does not depend on how many there are.
        """
        path = self.root / name
        if is_run(path) and schedule(read_run(path)) == schedule(recipe):
            return True
        if not is_run(self.root / copy):
            return False
        before = read_run(self.root / copy)
        same = ("learning_rate", "schedule", "warmup", "seed", "batch")
        if any(getattr(before.train, n) != getattr(recipe.train, n) for n in same):
            return False
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(self.root / copy, path)
        new = {n: getattr(recipe.train, n) for n in ("steps", "evaluate_every", "patience")}
        changed = before.replaced({f"train.{name}": value for name, value in new.items()})
        start_run(path, changed, self.prepared.tokenizer)
        return True

    def forget(self, pattern: str) -> None:
        """Remove trainings that were kept to go on from."""
        for place in self.root.glob(pattern):
            shutil.rmtree(place, ignore_errors=True)

    def tidy(self, pattern: str) -> None:
        """What nobody goes on from needs no checkpoints: curves, results and models stay."""
        for place in self.root.glob(f"{pattern}/{CHECKPOINTS}"):
            shutil.rmtree(place, ignore_errors=True)


def schedule(recipe: Recipe) -> tuple[float, int]:
    """What a training cannot go on with another one of."""
    return recipe.train.learning_rate, recipe.train.steps


def ending(late: Callable[[], bool], end: float) -> Callable[..., Session]:
    """Sessions that end after so many updates, or as soon as it is late."""

    class Ending(Session):
        def settled(self, step: int) -> bool:
            return super().settled(step) or step >= end or (step > 0 and late())

    return Ending


def read_curve(path: Path, name: str) -> Curve:
    """What a run's metrics say by step: its `loss`, or `valid_loss`."""
    file = path / METRICS
    rows = read_metrics(file) if file.is_file() else []
    return tuple((row["step"], row[name]) for row in rows if row.get(name) is not None)
