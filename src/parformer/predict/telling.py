"""What does a model with a head for labels tell of texts?

Examples of about one length are read together; the answers come in the order of the questions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from parformer.data.labelled import Feature
from parformer.data.tables import Example
from parformer.data.tokenizers import Tokenizer
from parformer.errors import ConfigError, InputError
from parformer.model import Model, load
from parformer.recipe import Recipe
from parformer.records import Json
from parformer.tasks.base import find_task
from parformer.tasks.labelled import LabelTask, all_logits
from parformer.tasks.preparing import texts_of
from parformer.tasks.span import Span
from parformer.train.run import open_run, read_result

WINDOW = 512
"""Tokens of a text at most, where no run says how many it was trained with."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """What a model tells of one example; what it does not tell is None."""

    label: str | None = None
    """The likeliest class, or choice."""
    probabilities: Mapping[str, float] = field(default_factory=dict)
    """Of all classes or choices."""
    score: float | None = None
    """A number, or an answer's: how much likelier than none it is, in logits."""
    answer: str | None = None
    """A stretch of the passage; empty where there seems to be none."""
    start: int | None = None
    """Where it starts in the passage, in characters."""

    def to_dict(self) -> Json:
        """Plain values, ready for JSON, of what is told."""
        known: Json = {"label": self.label, "answer": self.answer, "start": self.start}
        known |= {"score": self.score, "probabilities": dict(self.probabilities) or None}
        return {name: value for name, value in known.items() if value is not None}


@dataclass(frozen=True, eq=False)
class Teller:
    """A model that is asked about texts."""

    model: Model
    tokenizer: Tokenizer
    task: LabelTask
    recipe: Recipe
    calibration: float | None = None
    """Its expected calibration error on validation, where its run has measured it."""
    threshold: float | None = None
    """How much likelier no answer must be than the best one, where questions may have none."""
    tokens: int = 4096
    """Read at once."""

    @property
    def head(self) -> str:
        return self.model.config.label_head

    def tell(self, examples: Sequence[Example]) -> list[Prediction]:
        """What the model tells of each example."""
        if not examples:
            return []
        features = self.task.features(examples, self.tokenizer, [])
        told = all_logits(self.model, features, self.task.pad, self.tokens)
        if isinstance(self.task, Span):
            return self.spans(self.task, features, told, examples)
        return [self.one(logits, example) for logits, example in zip(told, examples, strict=True)]

    def one(self, logits: Tensor, example: Example) -> Prediction:
        if self.head == "score":
            return Prediction(score=float(logits[0]))
        names = example.choices if self.head == "choice" else self.model.config.labels
        sure = logits.double().softmax(-1).tolist()
        best = max(range(len(names)), key=sure.__getitem__)
        return Prediction(label=names[best], probabilities=dict(zip(names, sure, strict=True)))

    def spans(
        self, task: Span, features: list[Feature], told: list[Tensor], examples: Sequence[Example]
    ) -> list[Prediction]:
        found = task.answers(features, told, examples, self.tokenizer)
        answers = [found[number] for number in range(len(examples))]
        nulls, threshold = self.threshold is not None, self.threshold or 0.0
        texts = [task.settled(one, nulls, threshold) for one in answers]
        return [
            Prediction(answer=text, start=one.start if text else 0, score=one.score - one.null)
            for text, one in zip(texts, answers, strict=True)
        ]


def open_teller(path: Path, device: torch.device, tokens: int) -> Teller:
    """The model of a run or of a folder, once it is known to tell something."""
    opened = open_run(path)
    model = load(opened.folder, device=device)
    config = model.config
    if config.label_head == "none":
        raise ConfigError(
            f"the model in {str(path)!r} was trained for no labels; train one with --task "
            "classify, or let it write with 'parformer generate'"
        )
    recipe, known = opened.recipe, Validation()
    if recipe is None:
        window = min(WINDOW, config.max_len) if config.numbered else WINDOW
        recipe = Recipe(model=config).replaced({"train.tgt_len": window})
    else:
        known = validation_of(path)
    task = find_task(replace(recipe, model=config))
    assert isinstance(task, LabelTask)
    threshold = (
        0.0 if known.threshold is None and recipe.train.task == "squad2" else known.threshold
    )
    return Teller(
        model, opened.need_tokenizer(), task, recipe, known.calibration, threshold, tokens
    )


class Validation(NamedTuple):
    """What a run found out on validation, where it did."""

    calibration: float | None = None
    threshold: float | None = None


def validation_of(run: Path) -> Validation:
    result = read_result(run)
    if result is None or result.valid is None:
        return Validation()
    values = result.valid.values
    metrics = values.get("metrics")
    threshold = metrics.get("best_threshold") if isinstance(metrics, Mapping) else None
    found = (values.get("calibration_error"), threshold)
    return Validation(*(one if isinstance(one, float) else None for one in found))


def refuse_misfit(teller: Teller, example: Example) -> None:
    """Refuse what this model is not asked."""
    wanted = {
        "class": "--text",
        "score": "--text",
        "choice": "--text and --choices",
        "span": "--question and --passage",
    }[teller.head]
    fits = {
        "choice": bool(example.choices),
        "span": len(example.texts) == 2 and not example.choices,
    }.get(teller.head, not example.choices)
    if not fits:
        raise InputError(f"this model tells a {teller.head}; ask it with {wanted}")
    if len(example.choices) == 1:
        raise InputError("a single --choices leaves nothing to choose from; give two or more")
    count, trained = len(example.texts), texts_of(teller.recipe)
    if teller.head in ("class", "score") and trained and count != trained:
        what = "pairs of texts" if trained == 2 else "single texts"
        way = "add" if trained == 2 else "leave out"
        raise InputError(f"this model was trained on {what}; {way} --text-pair")
