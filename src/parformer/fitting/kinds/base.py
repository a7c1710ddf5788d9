"""What does a race between models have to know of what they learn?

The phases of a fit are the same for language models, for labels and for translations; what
differs is here, a file for each: what is read, which models may enter, how one is judged and
timed, what needs no network, and what a reader is shown of the winner.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from parformer.config import ModelConfig, read_model
from parformer.costs import cost
from parformer.data.corpora import Corpus
from parformer.data.tokens import Prepared
from parformer.events import Watch
from parformer.fitting.grid import sized
from parformer.fitting.phases import TextFacts
from parformer.fitting.request import FitRequest
from parformer.fitting.rules import Placement
from parformer.fitting.scored import Metrics, TaskScores
from parformer.measure.readings import Meter, Step
from parformer.model import Model
from parformer.recipe import Recipe
from parformer.report.words import Unit
from parformer.search.sizes.objectives import Figures, countable
from parformer.train.job import find_text
from parformer.train.plateau import on_plateau
from parformer.train.schedule import rate_for

Losses = NDArray[np.float64]
"""Of stretches of validation text, of examples or of pairs; lower is better."""


class Kind(ABC):
    """What differs between fits."""

    behind: ClassVar[float]
    """How far behind the best a model is dropped after a third of its training."""
    spread: ClassVar[float]
    """By how much of the loss the difference between two models varies from seed to seed."""
    without: ClassVar[Mapping[str, str]] = {}
    """Phases that this kind has no use for, and why."""
    searches: ClassVar[bool] = False
    """Whether every block gets sizes of its own, by a search; else all of a model are alike."""

    keeps_best: ClassVar[bool] = False
    """Whether a training keeps the best weights on the way, so that it may get worse after."""

    def __init__(self, request: FitRequest) -> None:
        self.request = request

    @property
    @abstractmethod
    def what(self) -> str:
        """What is asked for, in words."""

    @property
    @abstractmethod
    def unit(self) -> Unit:
        """What models are compared in."""

    @property
    def lesson(self) -> Unit:
        """What their trainings' curves are in."""
        return self.unit

    def recipe(self) -> Recipe:
        """How models are trained, before their sizes are known."""
        return self.request.recipe()

    def find(self, watch: Watch, path: Path, identity: str) -> Corpus | None:
        """What is learned from, before it is tokens; None for tables, which are read whole."""
        return find_text(self.recipe().replaced({"data.identity": identity}), watch, path)

    @abstractmethod
    def read(
        self, corpus: Corpus | None, watch: Watch, path: Path, identity: str
    ) -> tuple[Recipe, Prepared]:
        """The same as tokens, and the recipe with what that decides."""

    def facts(self, recipe: Recipe, prepared: Prepared) -> TextFacts:
        """Its measures, and what needs no network."""
        raise AssertionError

    @abstractmethod
    def rungs(self, like: ModelConfig, facts: TextFacts) -> list[ModelConfig]:
        """Interleaved models, the smallest first."""

    @abstractmethod
    def wanted(self, config: ModelConfig, facts: TextFacts) -> float:
        """Tokens that a finalist is to read in the contest at least."""

    def largest(self, rungs: Sequence[ModelConfig], facts: TextFacts) -> int:
        """The largest of them that there are examples enough for, however long the time."""
        return len(rungs) - 1

    @abstractmethod
    def placements(self, base: ModelConfig, found: str) -> list[Placement]:
        """Which blocks in which order may enter."""

    def step(self, facts: TextFacts) -> Step:
        """What is timed of every model; `rounds` are the caller's."""
        return Step(tgt_len=facts.length or None, mem_len=0, threads=self.request.threads)

    def step_words(self, step: Step, base: ModelConfig) -> str:
        """The same for people."""
        return f"one text of {step.tgt_len} tokens, fp32"

    def price(self, config: ModelConfig, step: Step, facts: TextFacts) -> Figures:
        """What can be counted of that."""
        shape = step.shape(config)
        return countable(
            cost(config, tgt_len=shape.tgt_len, mem_len=shape.mem_len, batch=shape.batch)
        )

    def meter(self, usual: Meter, facts: TextFacts) -> Meter:
        """Who measures it."""
        return usual

    def sizes(self, rule: Placement, base: ModelConfig) -> list[ModelConfig]:
        """The sizes that a placement may have, where its blocks are all alike."""
        return sized(rule.patterns, base)

    def rate(self, config: ModelConfig, usual: float, updates: int) -> float:
        """The learning rate that a model's size calls for, and about so many updates."""
        return rate_for(config, usual, read_model(self.request.preset))

    def training(self, config: ModelConfig, root: Path) -> Mapping[str, object]:
        """What the recipe of a model in the contest has of its own; `root` is the fit's folder."""
        return {}

    def most_updates(self, recipe: Recipe, prepared: Prepared) -> int:
        """Updates after which nothing is left to learn; 0 where there is no such number."""
        return 0

    @abstractmethod
    def losses(self, recipe: Recipe, model: Model, prepared: Prepared) -> Losses:
        """What trained models are compared by, piece by piece of the valid split."""

    def stuck(self, loss: float, facts: TextFacts) -> bool:
        """Whether a training's loss on validation tells of nothing but frequencies."""
        return on_plateau(loss, facts.ignorance)

    def level(self, loss: float, facts: TextFacts) -> float:
        """What a training's loss is compared by on the way, in shares."""
        return loss

    def learned(self, loss: float, facts: TextFacts) -> bool:
        """Whether what it is compared by tells of more than whoever learned nothing."""
        return loss < facts.to_beat

    def scores(
        self, recipe: Recipe, models: Mapping[str, Model], prepared: Prepared, facts: TextFacts
    ) -> TaskScores | None:
        """The task's own score of some models, on validation and test."""
        return None

    def metrics_of(self, values: Mapping[str, object]) -> Metrics:
        """A task's metrics in what a training wrote down of a split."""
        told = values.get("metrics", {})
        assert isinstance(told, Mapping)
        return {str(name): float(value) for name, value in told.items()}

    @abstractmethod
    def shown(
        self, recipe: Recipe, models: Mapping[str, Model], prepared: Prepared
    ) -> list[tuple[str, str, str]]:
        """What some models make of the same words: name, what was given, what came of it."""

    @abstractmethod
    def asking(self, run: str, recipe: Recipe, prepared: Prepared) -> tuple[str, Callable[[], str]]:
        """The command that asks a run something, and what does the same and tells the answer."""
