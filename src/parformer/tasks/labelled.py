"""What do all tasks with labelled texts have in common?

Batches of examples of about one length, a head for their labels, the scores that their authors
publish, and what counting reaches beside them.
"""

# b batch, k choices, t time, l labels

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import mean
from typing import ClassVar

import torch
from torch import Tensor

from parformer.config import ModelConfig
from parformer.data.batches import Batch, Tokens
from parformer.data.benchmarks import BENCHMARKS
from parformer.data.labelled import Examples, Feature, Labelled, in_order, unpacked
from parformer.data.tables import Example
from parformer.data.tokenizer import Tokenizer
from parformer.data.tokens import Prepared
from parformer.errors import ConfigError
from parformer.evaluate.labels import LabelScore
from parformer.evaluate.perplexity import at_rest
from parformer.model import Model
from parformer.recipe import Recipe
from parformer.state import State
from parformer.tasks.base import Loss, Scored, Task, train_length

READ = 4096
"""Tokens that are scored at once."""


class LabelTask(Task):
    """A task of labelled texts; what is special about one is in its file."""

    steady = False
    head: ClassVar[str]
    """What the model's head tells."""
    usual: ClassVar[tuple[str, ...]]
    """The metrics where no benchmark says which."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__(recipe)
        name, config = recipe.train.task, recipe.model
        self.benchmark = BENCHMARKS.get(name)
        self.metrics = self.benchmark.metrics if self.benchmark else self.usual
        if config.causal or config.source is not None:
            raise ConfigError(
                f"train.task {name!r} reads a text from both sides, and a model of family "
                f"{config.family!r} with {str(config.pattern)!r} reads it onward; take an encoder, "
                "such as bert-pocket"
            )
        if config.label_head != self.head:
            raise ConfigError(
                f"train.task {name!r} needs label_head={self.head!r}, got {config.label_head!r}"
            )
        self.pad = max(config.pad, 0)
        self.mean_length = train_length(recipe) / 4

    @property
    def tokens_per_update(self) -> int:
        return int(self.recipe.train.batch * self.mean_length)

    @classmethod
    def fits(cls, config: ModelConfig) -> bool:
        return config.label_head == cls.head

    @abstractmethod
    def features(
        self, examples: Sequence[Example], tokenizer: Tokenizer, notes: list[str]
    ) -> list[Feature]:
        """What the model reads of examples; `notes` hears what was cut or left out."""

    def batches(self, tokens: Tokens) -> Examples:
        features, train = unpacked(tokens), self.recipe.train
        self.learn(features)
        self.mean_length = mean(one.length * len(one.rows) for one in features)
        return Examples(features, batch=train.batch, seed=train.seed, pad=self.pad)

    def learn(self, features: Sequence[Feature]) -> None:
        """Take from the training examples what the loss depends on."""

    def loss(self, model: Model, batch: Batch, state: State | None) -> Loss:
        return Loss(self.loss_of(label_logits(model, batch), batch))

    @abstractmethod
    def loss_of(self, logits: Tensor, batch: Batch) -> Tensor:
        """What an update makes smaller."""

    def score(self, model: Model, prepared: Prepared, split: str, limit: int) -> LabelScore:
        assert isinstance(prepared, Labelled)
        features = within(unpacked(prepared.splits[split].tokens), limit)
        told = all_logits(model, features, self.pad)
        return self.judge(features, told, prepared, split)

    @abstractmethod
    def judge(
        self, features: Sequence[Feature], told: list[Tensor], prepared: Labelled, split: str
    ) -> LabelScore:
        """The score of what a model tells of each feature."""

    def compared(self, score: Scored) -> float:
        assert isinstance(score, LabelScore)
        return -score.main

    def with_beside(self, score: Scored, prepared: Prepared, split: str) -> LabelScore:
        """The score with what counting reaches on the same examples."""
        assert isinstance(prepared, Labelled)
        assert isinstance(score, LabelScore)
        return replace(score, beside=self.beside(prepared, split))

    def beside(self, prepared: Labelled, split: str) -> Mapping[str, Mapping[str, float]]:
        """The same as `counted`, which is counted once for all models."""
        if split not in prepared.counted:
            prepared.counted[split] = self.counted(prepared, split)
        return prepared.counted[split]

    def counted(self, prepared: Labelled, split: str) -> Mapping[str, Mapping[str, float]]:
        """The metrics of the most frequent answer and of bags of n-grams, by their names."""
        return {}

    def window(self) -> int:
        return train_length(self.recipe)


def label_logits(model: Model, batch: Batch) -> Tensor:
    """What a model tells: (batch, labels), (batch, choices), or (batch, time, 2) of spans."""
    inputs = batch.inputs
    tokens = inputs["tokens"]
    several = tokens.dim() == 3
    given = {name: x.flatten(0, 1) if several else x for name, x in inputs.items()}
    types = given["types"] if model.config.token_types > 1 else None
    padding = None if bool(given["padding"].all()) else given["padding"]
    out = model(given["tokens"], token_types=types, padding=padding)
    logits: Tensor | None = out.label_logits
    assert logits is not None
    return logits.view(tokens.shape[:2]) if several else logits


def all_logits(
    model: Model, features: Sequence[Feature], pad: int, most: int = READ
) -> list[Tensor]:
    """What a model tells of each feature, in their order, on the CPU."""
    device = next(model.parameters()).device
    found: list[Tensor] = [torch.empty(0)] * len(features)
    with at_rest(model):
        for numbers, batch in in_order(features, pad, most):
            told = label_logits(model, batch.to(device)).cpu()
            for row, number in enumerate(numbers):
                found[number] = told[row]
    return found


def within(features: Sequence[Feature], limit: int) -> list[Feature]:
    """Features from all over, with about so many tokens; all of them for 0."""
    total = sum(one.length * len(one.rows) for one in features)
    if not limit or total <= limit:
        return list(features)
    count = max(1, len(features) * limit // total)
    return [features[n] for n in torch.linspace(0, len(features) - 1, count).long().tolist()]


def note_cut(cut: int, count: int, window: int, notes: list[str]) -> None:
    """Say that some texts did not fit."""
    if cut:
        notes.append(
            f"{cut:,} of {count:,} examples have more than {window} tokens and were cut; "
            "train.tgt_len makes room for more."
        )
