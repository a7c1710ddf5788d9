"""Classes and scores: what is one text, or a pair of texts?"""

# n examples, l labels

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from statistics import mean

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from parformer.data.batches import Batch
from parformer.data.labelled import Feature, Labelled, Marks, bits_of, scores_of, unpacked
from parformer.data.tables import Example
from parformer.data.tokenizer import Tokenizer
from parformer.errors import CorpusError
from parformer.evaluate import official
from parformer.evaluate.baselines import Bayes, Ridge, bag_of, buckets_for
from parformer.evaluate.labels import LabelScore
from parformer.recipe import Recipe
from parformer.tasks.base import task
from parformer.tasks.labelled import LabelTask, note_cut

MANY = 50
"""From so many kinds of labels on they may be meant as numbers."""


class TextTask(LabelTask):
    """One row of tokens for an example."""

    def features(
        self, examples: Sequence[Example], tokenizer: Tokenizer, notes: list[str]
    ) -> list[Feature]:
        marks, window = Marks(tokenizer), self.window()
        first = tokenizer.encode_all([one.texts[0] for one in examples])
        second: Sequence[list[int] | None] = [None] * len(examples)
        if examples and len(examples[0].texts) > 1:
            second = tokenizer.encode_all([one.texts[1] for one in examples])
        found, cut = [], 0
        for number, one in enumerate(examples):
            row = marks.around(first[number], second[number], window)
            more = second[number]
            length = len(first[number]) + (2 if more is None else 3 + len(more))
            cut += length > window
            found.append(Feature((row,), (self.target(one), 0), number))
        note_cut(cut, len(examples), window, notes)
        return found

    def target(self, example: Example) -> int:
        raise AssertionError


@task("classify")
class Classify(TextTask):
    """One class out of several."""

    head = "class"
    usual = ("accuracy", "macro_f1")

    def __init__(self, recipe: Recipe) -> None:
        super().__init__(recipe)
        self.numbers = {label: n for n, label in enumerate(recipe.model.labels)}
        self.weights: Tensor | None = None

    def target(self, example: Example) -> int:
        if not example.label:
            return 0  # nobody knows, and nobody asks
        if example.label not in self.numbers:
            raise CorpusError(
                f"the label {example.label!r:.40} of {example.texts[0]!r:.40} is none of train's: "
                f"{', '.join(list(self.numbers)[:8])}"
            )
        return self.numbers[example.label]

    def learn(self, features: Sequence[Feature]) -> None:
        if self.recipe.train.class_weights == "balanced":
            counts = Counter(one.targets[0] for one in features)
            kinds = len(self.numbers)
            self.weights = torch.tensor(
                [len(features) / (kinds * counts[n]) if counts[n] else 0.0 for n in range(kinds)]
            )

    def loss_of(self, logits: Tensor, batch: Batch) -> Tensor:
        weights = None if self.weights is None else self.weights.to(logits.device)
        return F.cross_entropy(logits, batch.targets[:, 0], weight=weights)

    def judge(
        self, features: Sequence[Feature], told: list[Tensor], prepared: Labelled, split: str
    ) -> LabelScore:
        logits_nl = torch.stack(told)
        truth = torch.tensor([one.targets[0] for one in features])
        sure_nl = logits_nl.double().softmax(-1).numpy()
        examples = [prepared.examples[split][one.number] for one in features]
        metrics = self.measured(truth.numpy(), sure_nl, examples)
        right_n = sure_nl.argmax(1) == truth.numpy()
        return LabelScore(
            loss=float(F.cross_entropy(logits_nl.double(), truth)),
            examples=len(features),
            metrics=metrics,
            main=mean(metrics.values()) if self.benchmark else metrics[self.metrics[0]],
            calibration=official.calibration_error(sure_nl.max(1), right_n),
        )

    def measured(
        self, truth: NDArray[np.int64], sure_nl: NDArray[np.float64], examples: Sequence[Example]
    ) -> dict[str, float]:
        """The metrics of a task, from the probabilities of all classes."""
        told, found = sure_nl.argmax(1), {}
        for name in self.metrics:
            if name == "em":
                found[name] = official.all_right(truth, told, [one.group for one in examples])
            elif name == "f1a":
                found[name] = official.f1(truth, told)
            elif name.startswith("record_"):
                known = [[text for _, text in one.answers] for one in examples]
                groups, entities = [one.group for one in examples], [one.name for one in examples]
                both = official.record(groups, entities, known, sure_nl[:, 1])
                found[name] = both[name.removeprefix("record_")]
            else:
                found[name] = official.LABEL_METRICS[name](truth, told)
        return found

    def counted(self, prepared: Labelled, split: str) -> Mapping[str, Mapping[str, float]]:
        kinds = len(self.numbers)
        buckets = buckets_for(kinds)
        train, here = (unpacked(prepared.splits[s].tokens) for s in ("train", split))
        labels = [one.targets[0] for one in train]
        bayes = Bayes([bag_of(one, buckets) for one in train], labels, buckets, kinds)
        logs_nl = bayes.tell([bag_of(one, buckets) for one in here])
        truth = np.array([one.targets[0] for one in here])
        most_nl = np.zeros((len(here), kinds))
        most_nl[:, Counter(labels).most_common(1)[0][0]] = 1.0
        examples = [prepared.examples[split][one.number] for one in here]
        sure_nl = np.exp(logs_nl - np.logaddexp.reduce(logs_nl, axis=1, keepdims=True))
        return {
            "majority": self.measured(truth, most_nl, examples),
            "n-grams": self.measured(truth, sure_nl, examples),
        }


@task("score")
class Scores(TextTask):
    """A number, by squared error."""

    head = "score"
    usual = ("pearson", "spearman")

    def target(self, example: Example) -> int:
        if not example.label:
            return 0
        with contextlib.suppress(ValueError, OverflowError):
            score = float(example.label)
            if math.isfinite(score):
                return bits_of(score)
        raise CorpusError(
            f"the score {example.label!r:.40} of {example.texts[0]!r:.40} is no number; "
            "for classes say --task classify"
        )

    def loss_of(self, logits: Tensor, batch: Batch) -> Tensor:
        return F.mse_loss(logits[:, 0], scores_of(batch.targets[:, 0]))

    def judge(
        self, features: Sequence[Feature], told: list[Tensor], prepared: Labelled, split: str
    ) -> LabelScore:
        told_n, truth_n = torch.stack(told)[:, 0].double().numpy(), truth_of(features)
        metrics = self.measured(truth_n, told_n)
        return LabelScore(
            loss=float(np.mean((told_n - truth_n) ** 2)),
            examples=len(features),
            metrics=metrics,
            main=mean(metrics.values()),
        )

    def measured(
        self, truth_n: NDArray[np.float64], told_n: NDArray[np.float64]
    ) -> dict[str, float]:
        return {name: official.SCORE_METRICS[name](truth_n, told_n) for name in self.metrics}

    def counted(self, prepared: Labelled, split: str) -> Mapping[str, Mapping[str, float]]:
        buckets = buckets_for(1)
        train, here = (unpacked(prepared.splits[s].tokens) for s in ("train", split))
        scores = truth_of(train).tolist()
        ridge = Ridge([bag_of(one, buckets) for one in train], scores, buckets)
        told_n, truth_n = ridge.tell([bag_of(one, buckets) for one in here]), truth_of(here)
        constant_n = np.full(len(here), np.mean(scores))
        return {
            "mean": self.measured(truth_n, constant_n),
            "n-grams": self.measured(truth_n, told_n),
        }


def truth_of(features: Sequence[Feature]) -> NDArray[np.float64]:
    bits = torch.tensor([one.targets[0] for one in features], dtype=torch.int64)
    return np.asarray(scores_of(bits).double().numpy())


def classes_of(examples: Sequence[Example], source: str) -> tuple[str, ...]:
    """The labels of train in order: of numbers, else of the alphabet."""
    kinds = {one.label for one in examples}
    refuse_one_kind(kinds, source)
    if len(kinds) > max(MANY, len(examples) // 2):
        raise CorpusError(
            f"{source!r} has {len(kinds):,} different labels in {len(examples):,} rows of train; "
            "if they are numbers say --task score, else choose another --label"
        )
    try:
        return tuple(sorted(kinds, key=lambda label: (float(label), label)))
    except ValueError:
        return tuple(sorted(kinds))


def refuse_one_kind(labels: Collection[str], source: str) -> None:
    """Refuse a train split that has one label, or one score, in all of its rows."""
    if len(kinds := set(labels)) < 2:
        raise CorpusError(
            f"every row of train in {source!r} has the label {next(iter(kinds))!r}; there is "
            "nothing to tell apart, so give it two kinds at least"
        )
