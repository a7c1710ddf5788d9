"""Labels: what is a text, or a pair of texts? Classes and scores."""

# n examples, l labels

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from shlex import quote
from statistics import median
from types import MappingProxyType

import numpy as np
import torch

from parformer.config import ModelConfig
from parformer.costs import cost
from parformer.data.benchmarks import BENCHMARKS
from parformer.data.corpora import Corpus
from parformer.data.labelled import Labelled, unpacked
from parformer.data.tokens import Prepared
from parformer.events import Watch
from parformer.fitting.kinds.answers import (
    Answers,
    answer_words,
    ignorant,
    main_of,
    repeats,
    short,
    squared_errors,
    task_of,
)
from parformer.fitting.kinds.base import Kind, Losses
from parformer.fitting.kinds.starts import start_folder, start_placements
from parformer.fitting.phases import TextFacts
from parformer.fitting.rules import DEPTHS, Placement, in_turn
from parformer.fitting.scored import FINAL, Metrics, TaskScores
from parformer.model import Model
from parformer.pattern import Pattern, par
from parformer.predict.request import predict
from parformer.recipe import Recipe
from parformer.report.words import Unit
from parformer.tasks.labelled import all_logits
from parformer.tasks.preparing import kind_of, with_head
from parformer.train.distributed import Workers
from parformer.train.job import read_data, starting_tokenizer
from parformer.train.tuning import LENGTH, tuned

LADDER = ((32, 1), (48, 1), (64, 1), (96, 2), (128, 2), (192, 2), (256, 3), (384, 4))
"""Widths, and pairs of attention and feed-forward."""
WORDS = 8192
"""Pieces of words in a vocabulary."""
BATCH = 32
EPOCHS, UPDATES = 4, 1000
"""How often a training reads every example at most; where examples are few, so many updates."""
RECIPE: dict[str, object] = {
    "train.optimizer": "adamw",
    "train.learning_rate": 3e-4,
    "train.weight_decay": 0.01,
    "model.dropout": 0.2,
}
"""Gentler than that of language models: whoever learns labels quickly learns them by heart
(docs/fitting.md has what was measured)."""
TUNED = 3
"""The same for a model that starts with another one's weights."""
STARTS = "starts"
"""Where parts of a start are kept."""
PER_WEIGHT = 0.5
"""Tokens of examples that there are at least for each parameter of the largest stack."""
HASTE = 5.0
"""How many times the usual rate a training of few updates may have."""
TOKENS = 10
"""Tokens that a model reads at least in its training for each parameter of its stack."""
SURE = 0.2
"""What is added to losses before they are compared in shares, of what frequencies reach."""
JUDGED = 2048
"""Examples of the valid split that models are compared on, at most."""
READ = 32_768
"""Tokens that a validation reads at most."""
SHOWN = 5
"""Examples that a report shows."""
BARELY = 0.98
"""Whoever does not get below this share of what frequencies reach learned nothing."""
CALLED = {
    "majority": "the most frequent answer",
    "mean": "the mean of all scores",
    "n-grams": "a bag of n-grams",
}
"""What needs no network, in words."""


class Labels(Kind):
    """Classes or scores of labelled texts."""

    behind = 0.15
    spread = 0.03
    keeps_best = True
    without = MappingProxyType(
        {"search": "labels are learned in minutes: the placements by rule take part"}
    )

    @property
    def scored(self) -> bool:
        """Whether labels are numbers."""
        return kind_of(self.request.task) == "score"

    @property
    def what(self) -> str:
        who = "scores" if self.scored else "classes"
        named = f", task {self.request.task}" if self.request.task in BENCHMARKS else ""
        return f"a model that tells the {who} of texts like those of {self.request.corpus}{named}"

    @property
    def unit(self) -> Unit:
        return Unit("plain", "squared error")

    @property
    def lesson(self) -> Unit:
        return self.unit if self.scored else Unit("plain", "nats per label")

    def recipe(self) -> Recipe:
        asked = self.request
        if asked.start:
            return self.tuned()
        window = BENCHMARKS[asked.task].length if asked.task in BENCHMARKS else LENGTH
        changes: dict[str, object] = {
            "data.texts": asked.text,
            "data.label": asked.label,
            "data.vocab_size": WORDS,
            "model.max_len": window,
            "model.pool": "mean",
            "train.task": asked.task,
            "train.tgt_len": window,
            "train.batch": BATCH,
            **RECIPE,
        }
        return with_head(asked.recipe().replaced(changes))

    def tuned(self) -> Recipe:
        """How a model that has learned something already is trained on."""
        asked = self.request
        chosen: dict[str, object] = {
            "data.corpus": asked.corpus,
            "data.texts": asked.text,
            "data.label": asked.label,
            "train.task": asked.task,
            "train.seed": asked.seed,
            "train.steps": 1,  # the clock or the request says how many
        }
        return tuned(None, asked.start, chosen)

    def find(self, watch: Watch, path: Path, identity: str) -> Corpus | None:
        return None

    def read(
        self, corpus: Corpus | None, watch: Watch, path: Path, identity: str
    ) -> tuple[Recipe, Prepared]:
        recipe = self.recipe().replaced({"data.identity": identity})
        recipe, prepared = read_data(recipe, Workers(), watch, starting_tokenizer(recipe), path)
        assert isinstance(prepared, Labelled)
        train = prepared.examples["train"]
        changes: dict[str, object] = {"train.batch": min(BATCH, max(1, len(train) // 4))}
        if not self.request.start:
            changes["model.token_types"] = 2 if len(train[0].texts) > 1 else 0
        return recipe.replaced(changes), prepared

    def facts(self, recipe: Recipe, prepared: Prepared) -> TextFacts:
        assert isinstance(prepared, Labelled)
        task = task_of(recipe)
        train, valid = (unpacked(prepared.splits[split].tokens) for split in ("train", "valid"))
        lengths = [one.length for one in train]
        ignorance, squares = ignorant(task, train, valid)
        return TextFacts(
            identity=prepared.identity,
            tokens=sum(lengths),
            bytes=sum(len(text.encode()) for e in prepared.examples["train"] for text in e.texts),
            vocabulary=prepared.tokenizer.size,
            overlap={},
            references={},
            examples={split: len(rows) for split, rows in prepared.examples.items()},
            length=max(2, int(median(lengths))),
            ignorance=ignorance,
            to_beat=BARELY * squares,
            plain={
                split: {CALLED[n]: dict(some) for n, some in task.beside(prepared, split).items()}
                for split in prepared.splits
                if split != "train"
            },
            repeated=repeats(prepared.examples),
        )

    def rungs(self, like: ModelConfig, facts: TextFacts) -> list[ModelConfig]:
        if self.request.start:
            return [like]
        # where it is to be quicker than the baseline there must be blocks to do without
        quicker = self.request.multiples.get("latency", 1.0) < 1
        least = 2 if quicker else 1
        return [encoder_rung(like, width, max(least, pairs)) for width, pairs in LADDER]

    def wanted(self, config: ModelConfig, facts: TextFacts) -> float:
        return TOKENS * cost(config).decoder_parameters

    def largest(self, rungs: Sequence[ModelConfig], facts: TextFacts) -> int:
        most = facts.tokens / PER_WEIGHT
        fits = [n for n, one in enumerate(rungs) if cost(one).decoder_parameters <= most]
        return fits[-1] if fits else 0

    def placements(self, base: ModelConfig, found: str) -> list[Placement]:
        if self.request.start:
            return start_placements(base)
        return encoder_placements(len(base.pattern), self.request.letters)

    def sizes(self, rule: Placement, base: ModelConfig) -> list[ModelConfig]:
        if not self.request.start:
            return super().sizes(rule, base)
        return [base.replaced(pattern=pattern) for pattern in rule.patterns]

    def rate(self, config: ModelConfig, usual: float, updates: int) -> float:
        if self.request.start:
            return usual
        hurry = min(HASTE, max(1.0, math.sqrt(UPDATES / max(1, updates))))
        return hurry * super().rate(config, usual, updates)

    def training(self, config: ModelConfig, root: Path) -> Mapping[str, object]:
        # as many looks as there are: none ends a training, but the best weights are kept
        own: dict[str, object] = {"train.patience": 100, "train.evaluate_tokens": READ}
        if not self.request.start:
            return own
        start = start_folder(Path(self.request.start), config, root / STARTS)
        return own | {"train.start": str(start), "train.start_identity": ""}

    def most_updates(self, recipe: Recipe, prepared: Prepared) -> int:
        assert isinstance(prepared, Labelled)
        epochs = TUNED if self.request.start else EPOCHS
        reading = epochs * len(prepared.examples["train"]) // recipe.train.batch
        return max(1 if self.request.start else UPDATES, reading)

    def level(self, loss: float, facts: TextFacts) -> float:
        # who is right nearly always has hardly a loss to take a share of
        return loss + SURE * facts.ignorance

    def losses(self, recipe: Recipe, model: Model, prepared: Prepared) -> Losses:
        task, features = task_of(recipe), unpacked(prepared.splits["valid"].tokens)
        if len(features) > JUDGED:
            places = np.linspace(0, len(features) - 1, JUDGED).astype(int)
            features = [features[n] for n in places]
        told_nl = torch.stack(all_logits(model, features, task.pad)).double()
        return squared_errors(task, features, told_nl)

    def scores(
        self, recipe: Recipe, models: Mapping[str, Model], prepared: Prepared, facts: TextFacts
    ) -> TaskScores | None:
        assert isinstance(prepared, Labelled)
        task, splits = task_of(recipe), dict[str, dict[str, Metrics]]()
        whole = TaskScores(self.request.task, main_of(task), {})
        between: dict[str, tuple[float, float]] = {}
        for split in ("valid", "test"):
            if split not in prepared.splits:
                continue
            features = unpacked(prepared.splits[split].tokens)
            examples = [prepared.examples[split][one.number] for one in features]
            splits[split] = dict(facts.plain.get(split, {}))
            for name, model in models.items():
                told_nl = torch.stack(all_logits(model, features, task.pad)).double()
                answers = Answers(task, features, examples, told_nl)
                splits[split][name] = answers.metrics()
                if name == FINAL:
                    between[split] = answers.interval(whole, self.request.seed)
        return TaskScores(self.request.task, main_of(task), splits, between, facts.examples)

    def shown(
        self, recipe: Recipe, models: Mapping[str, Model], prepared: Prepared
    ) -> list[tuple[str, str, str]]:
        assert isinstance(prepared, Labelled)
        split = "test" if "test" in prepared.splits else "valid"
        task, features = task_of(recipe), unpacked(prepared.splits[split].tokens)
        step = max(1, len(features) // SHOWN)
        some, found = features[::step][:SHOWN], []
        for name, model in models.items():
            told = all_logits(model, some, task.pad)
            rows = [
                answer_words(recipe.model, prepared.examples[split][one.number], told_l)
                for one, told_l in zip(some, told, strict=True)
            ]
            found.append((name, "", "\n".join(rows)))
        return found

    def asking(self, run: str, recipe: Recipe, prepared: Prepared) -> tuple[str, Callable[[], str]]:
        assert isinstance(prepared, Labelled)
        split = "test" if "test" in prepared.splits else "valid"
        texts = [short(text, 60) for text in prepared.examples[split][0].texts]
        words = f"--text {quote(texts[0])}"
        words += f" --text-pair {quote(texts[1])}" if len(texts) > 1 else ""

        def ask() -> str:
            told = predict(model=Path(run), texts=(texts[0],), text_pairs=tuple(texts[1:]))
            one = told.predictions[0]
            return f"it answered {one.label or f'{one.score:.3g}'}"

        return f"parformer predict {quote(run)} {words}", ask


def encoder_rung(like: ModelConfig, width: int, pairs: int) -> ModelConfig:
    """The interleaved encoder of this size."""
    heads = 2 if width < 64 else 4 if width < 256 else 8
    sizes: dict[str, object] = {"d_model": width, "n_head": heads, "d_inner": 4 * width}
    return like.replaced(**sizes, pattern=in_turn("sf", [2 * pairs])[0])


def encoder_placements(layers: int, letters: str) -> list[Placement]:
    """What may read texts from both sides.

    >>> for one in encoder_placements(4, "sfln"):
    ...     print(one.name, one.patterns[0])
    interleaved (sf)x2
    par s (f)x3
    shared {sf}x2
    lsra (l[kernel=7]f)x2
    bag n (f)x3
    memory n (sf)x2
    """
    depths = list(dict.fromkeys(max(2, 2 * round(share * layers / 2)) for share in DEPTHS))
    turns = "attention and feed-forward in turn"
    found = [Placement("interleaved", "Interleaved, resized", turns, in_turn("sf", depths))]
    rule = "one block in five is attention, in the first two thirds"
    by_rule = tuple(map(par, depths))
    if by_rule != found[0].patterns:
        found.append(Placement("par", "PAR's rule", rule, by_rule))
    again = tuple(Pattern.parse(f"{{sf}}x{depth // 2}") for depth in depths if depth > 2)
    if again:
        how = "one pair of attention and feed-forward, run several times (ALBERT)"
        found.append(Placement("shared", "Shared weights", how, again))
    if "l" in letters:
        near = tuple(Pattern.parse(f"(l[kernel=7]f)x{depth // 2}") for depth in depths)
        how = "attention with half of the channels, convolution with the others"
        found.append(Placement("lsra", "LSRA", how, near))
    if "n" in letters:
        words = tuple(Pattern.parse(f"n (f)x{max(1, depth - 1)}") for depth in depths)
        how = "a memory of n-grams and feed-forwards: words and their neighbours, no attention"
        found.append(Placement("bag", "Bag of n-grams", how, words))
        behind = tuple(Pattern.parse(f"n (sf)x{depth // 2}") for depth in depths)
        how = f"a memory of n-grams, then {turns}"
        found.append(Placement("memory", "Memory, then attention", how, behind))
    return found
