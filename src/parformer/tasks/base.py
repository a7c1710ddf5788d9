"""What is a task: what is read, what is lost, what is scored?

A task is one file, as a block is. Sessions, journals, searches and fits know it only by what
stands here, so a new one is trained, resumed, searched for and compared like any other.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from parformer.config import ModelConfig
from parformer.data.batches import Batch, Batches, Tokens
from parformer.data.benchmarks import BENCHMARKS
from parformer.data.tokens import Prepared
from parformer.errors import ConfigError
from parformer.fields import check_names
from parformer.model import Model
from parformer.phases import phases_of
from parformer.recipe import Recipe
from parformer.state import State


@dataclass(frozen=True, slots=True, eq=False)
class Loss:
    """What an update is to make smaller, and what to go on from."""

    total: Tensor
    state: State | None = None
    parts: Mapping[str, Tensor] = field(default_factory=dict)
    """What the total is made of, by name, where it is a sum."""


class Scored(Protocol):
    """How good a model is at a task."""

    @property
    def loss(self) -> float:
        """What is compared while training; lower is better."""

    def to_dict(self) -> dict[str, object]:
        """Plain values, ready for JSON."""


class Task(ABC):
    """One kind of training, for one recipe."""

    name: ClassVar[str]
    steady: ClassVar[bool] = True
    """Whether batches have one shape, so that a compiled step serves them all."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.shape = training_shape(recipe)
        """The model with the lengths that it trains with."""

    @property
    def tokens_per_update(self) -> int:
        return self.recipe.train.batch * train_length(self.recipe)

    @classmethod
    @abstractmethod
    def fits(cls, config: ModelConfig) -> bool:
        """Whether a model of this kind is trained so when nobody says how."""

    @abstractmethod
    def batches(self, tokens: Tokens) -> Batches:
        """What updates read, by number; refuses a text that is too short."""

    def ends(self, tokens: Tokens) -> NDArray[np.int64] | None:
        """Where each row of a text ends that has to stay whole; None for a stream of tokens."""
        return None

    def loss(self, model: Model, batch: Batch, state: State | None) -> Loss:
        """The loss of one batch, or of some of its rows, after what `state` remembers."""
        out = model(batch.tokens_bt, state, batch.targets, part=batch.inputs.get("part"))
        assert out.loss is not None
        return Loss(out.loss, out.state)

    @abstractmethod
    def score(self, model: Model, prepared: Prepared, split: str, limit: int) -> Scored:
        """How good a model is on a split, or on so many of its tokens; 0 means all."""

    def compared(self, score: Scored) -> float:
        """What early stopping and the choice between trainings go by; lower is better."""
        return score.loss

    def with_beside(self, score: Scored, prepared: Prepared, split: str) -> Scored:
        """The score with what plain counting reaches, where that belongs to it."""
        return score

    def ignorance(self, prepared: Prepared) -> float | None:
        """The loss of whoever knows how often things occur and no more, if that can be counted."""
        return None


TASKS: dict[str, type[Task]] = {}

T = TypeVar("T", bound=type[Task])


def task(name: str) -> Callable[[T], T]:
    """Register a task; `forget_task` takes it back."""

    def register(cls: T) -> T:
        assert name not in TASKS, name
        cls.name = name
        TASKS[name] = cls
        return cls

    return register


def forget_task(name: str) -> None:
    del TASKS[name]


def find_task(recipe: Recipe) -> Task:
    """What a recipe trains for; `auto` asks the model's head."""
    wanted = recipe.train.task
    if wanted != "auto":
        check_names([wanted], [*TASKS, *BENCHMARKS], "task")
        return TASKS[BENCHMARKS[wanted].kind if wanted in BENCHMARKS else wanted](recipe)
    for cls in TASKS.values():
        if cls.fits(recipe.model):
            return cls(recipe)
    raise ConfigError(
        f"no task for a model with head {recipe.model.head!r} ({str(recipe.model.pattern)!r}); "
        f"name one in train.task, or take another model: {', '.join(TASKS)} are known"
    )


def training_shape(recipe: Recipe) -> ModelConfig:
    """The model with the lengths that it trains with."""
    config, length, limit = recipe.train, train_length(recipe), recipe.model.max_len
    if limit and length > limit:
        raise ConfigError(
            f"train.tgt_len {length} exceeds the model's window of {limit}; "
            "lower it or raise model.max_len"
        )
    return recipe.model.replaced(
        tgt_len=length,
        mem_len=recipe.model.mem_len if config.mem_len < 0 else config.mem_len,
        clamp_len=config.clamp_len,
        same_length=False,
    )


def train_length(recipe: Recipe) -> int:
    """Tokens of a text in an update; of the longest phase, where there are some."""
    longest = max((one.length for one in phases_of(recipe.train)), default=0)
    return longest or recipe.train.tgt_len or recipe.model.step_len
