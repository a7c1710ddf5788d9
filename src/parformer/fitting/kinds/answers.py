"""What did a model tell of labelled texts, and what is that worth?"""

# n examples, l labels

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from parformer.config import ModelConfig
from parformer.data.labelled import Feature
from parformer.data.tables import Example
from parformer.fitting.kinds.base import Losses
from parformer.fitting.scored import Metrics, TaskScores
from parformer.recipe import Recipe
from parformer.tasks import find_task
from parformer.tasks.classify import Classify, Scores, truth_of
from parformer.tasks.labelled import LabelTask

RESAMPLES = 400
"""Samples of a bootstrap over examples."""
MOST_WORDS = 160
"""Characters of an example that a report shows."""


class Answers:
    """What a model told of examples, and what that is worth."""

    def __init__(
        self, task: LabelTask, features: Sequence[Feature], examples: Sequence[Example],
        told_nl: torch.Tensor,
    ) -> None:  # fmt: skip
        self.task, self.examples = task, examples
        self.told: NDArray[np.float64] = told_nl.softmax(-1).numpy()
        self.truth: NDArray[np.generic] = np.array([one.targets[0] for one in features])
        if isinstance(task, Scores):
            self.told, self.truth = told_nl[:, 0].numpy(), truth_of(features)

    def metrics(self, places: NDArray[np.int64] | None = None) -> Metrics:
        """Of all, or of some that were drawn."""
        if places is None:
            places = np.arange(len(self.truth))
        if isinstance(self.task, Scores):
            return self.task.measured(self.truth[places].astype(float), self.told[places])
        assert isinstance(self.task, Classify)
        some = [self.examples[n] for n in places]
        return self.task.measured(self.truth[places].astype(int), self.told[places], some)

    def interval(self, whole: TaskScores, seed: int) -> tuple[float, float]:
        """Where the main figure lies, by drawing the examples again and again."""
        rng, count = np.random.default_rng(seed), len(self.truth)
        drawn = [whole.figure(self.metrics(rng.integers(count, size=count)))
                 for _ in range(RESAMPLES)]  # fmt: skip
        low, high = np.nanpercentile([np.nan if x is None else x for x in drawn], [2.5, 97.5])
        return float(low), float(high)


def task_of(recipe: Recipe) -> LabelTask:
    task = find_task(recipe)
    assert isinstance(task, LabelTask)
    return task


def main_of(task: LabelTask) -> tuple[str, ...]:
    """The metrics whose mean the task is told in."""
    return task.metrics if task.benchmark or isinstance(task, Scores) else task.metrics[:1]


def squared_errors(task: LabelTask, features: Sequence[Feature], told_nl: torch.Tensor) -> Losses:
    """Of scores, or of the probabilities of classes (Brier 1950), example by example."""
    if isinstance(task, Scores):
        return np.asarray((told_nl[:, 0].numpy() - truth_of(features)) ** 2)
    sure_nl = told_nl.softmax(-1)
    truth_n = torch.tensor([one.targets[0] for one in features])
    sure_nl[torch.arange(len(features)), truth_n] -= 1
    return np.asarray(sure_nl.square().sum(-1).numpy())


def ignorant(
    task: LabelTask, train: Sequence[Feature], valid: Sequence[Feature]
) -> tuple[float, float]:
    """The loss and the squared error of whoever tells every example alike."""
    if isinstance(task, Scores):
        error = float(np.mean((truth_of(valid) - truth_of(train).mean()) ** 2))
        return error, error
    counts = Counter(one.targets[0] for one in train)
    kinds = len(task.recipe.model.labels)
    share_l = np.array([counts[n] + 0.5 for n in range(kinds)]) / (len(train) + 0.5 * kinds)
    truth_n = np.array([one.targets[0] for one in valid])
    squares_l = (share_l**2).sum() - 2 * share_l + 1
    return float(-np.log(share_l[truth_n]).mean()), float(squares_l[truth_n].mean())


def repeats(examples: Mapping[str, Sequence[Example]]) -> dict[str, float]:
    """The share of each split's texts that stand in train word for word."""
    known = {one.texts for one in examples["train"]}
    return {
        split: sum(one.texts in known for one in rows) / len(rows)
        for split, rows in examples.items()
        if split != "train"
    }


def answer_words(config: ModelConfig, example: Example, told_l: torch.Tensor) -> str:
    """An example, what was told of it, and what it is."""
    text = short(" / ".join(example.texts), MOST_WORDS)
    if not config.labels:
        return f"“{text}”\n→ {float(told_l[0]):.3g}; in truth {example.label}\n"
    sure_l = told_l.double().softmax(-1)
    best = int(sure_l.argmax())
    told = f"{config.labels[best]} ({float(sure_l[best]):.0%})"
    mark = "✓" if config.labels[best] == example.label else f"✗ in truth {example.label}"
    return f"“{text}”\n→ {told} {mark}\n"


def short(text: str, most: int) -> str:
    """A text in one line, cut between words."""
    line = " ".join(text.split())
    if len(line) <= most:
        return line
    return (
        f"{line[: line.rfind(' ', most // 2, most) if ' ' in line[most // 2 : most] else most]} …"
    )
