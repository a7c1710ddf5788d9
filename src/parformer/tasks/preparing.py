"""How do labelled examples come to a model: read, encoded, and its head made for them?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from parformer.data.benchmarks import BENCHMARKS, choice, read_benchmark, read_file, squad
from parformer.data.corpora import Corpus
from parformer.data.labelled import Labelled, identity_of, packed
from parformer.data.reading import Piece
from parformer.data.tables import Example, find_files, read_examples, with_splits
from parformer.data.tokenizers import Tokenizer, train_tokenizer
from parformer.data.tokens import Split
from parformer.errors import ConfigError, CorpusError
from parformer.events import Preparing
from parformer.recipe import DataConfig, Recipe
from parformer.store.files import cache_folder
from parformer.tasks.base import find_task
from parformer.tasks.classify import classes_of, refuse_one_kind
from parformer.tasks.labelled import LabelTask

HEADS = {"classify": "class", "score": "score", "choice": "choice", "span": "span"}
"""What the head of a model tells, by task."""


def kind_of(task: str) -> str:
    """Which of the labelled tasks a name stands for; empty if none."""
    if task in BENCHMARKS:
        return BENCHMARKS[task].kind
    return task if task in HEADS else ""


def texts_of(recipe: Recipe) -> int:
    """How many texts belong together; 0 where the table's usual columns were taken."""
    task = BENCHMARKS.get(recipe.train.task)
    return len(recipe.data.texts) if task is None else task.texts


def with_head(recipe: Recipe) -> Recipe:
    """The recipe with the model's head for its labelled task, in the place of all others."""
    kind = kind_of(recipe.train.task)
    if not kind:
        return recipe
    changes: dict[str, object] = {"model.head": "none", "model.pair_head": "none"}
    changes |= {"model.label_head": HEADS[kind], "model.pooler": kind != "span"}
    changes |= {"model.labels": (), "model.counts": 0, "model.recall": 0}
    return recipe.replaced(changes)


def read_source(data: DataConfig, task: str) -> dict[str, list[Example]]:
    """The examples that a recipe names, by split."""
    if task in BENCHMARKS:
        return read_benchmark(BENCHMARKS[task], data.corpus)
    if task in ("classify", "score"):
        return read_examples(
            data.corpus, texts=data.texts, label=data.label, delimiter=data.delimiter
        )
    make = choice if task == "choice" else squad
    files = find_files(data.corpus)
    return with_splits(
        {split: read_file(make, (), path) for split, path in files.items()}, data.corpus
    )


def read_labelled(
    recipe: Recipe, tokenizer: Tokenizer | None, progress: Preparing
) -> tuple[Recipe, Labelled]:
    """The examples of a recipe as tokens, and the recipe with what they decide about its model."""
    data, kind = recipe.data, kind_of(recipe.train.task)
    progress("reading examples", 0.0)
    examples = read_source(data, recipe.train.task)
    refuse_bad_labels(examples, kind, data.corpus)
    if tokenizer is None:
        tokenizer = learned(data, examples, progress)
    if kind == "classify" and not recipe.model.labels:
        recipe = recipe.replaced({"model.labels": classes_of(examples["train"], data.corpus)})
    recipe = fit_tokens(recipe, tokenizer)
    task = find_task(recipe)
    assert isinstance(task, LabelTask)
    splits, notes = {}, list[str]()
    for place, (split, rows) in enumerate(examples.items()):
        progress(f"encoding {split}", place / len(examples))
        heard: list[str] = []
        flat = packed(task.features(rows, tokenizer, heard), np.dtype("<i4"))
        if not len(flat):
            raise CorpusError(f"{split} of {data.corpus!r} has no examples left")
        splits[split] = Split(flat, 0, 0, 0)
        notes += [f"{split}: {note}" for note in heard]
    prepared = Labelled(
        corpus=data.corpus,
        identity=identity_of(examples),
        tokenizer=tokenizer,
        splits=splits,
        folder=cache_folder(),
        examples=examples,
        notes=tuple(notes),
    )
    return recipe, prepared


def refuse_bad_labels(examples: Mapping[str, Sequence[Example]], kind: str, source: str) -> None:
    """Refuse labels that are missing, and scores that are all the same."""
    if kind == "span":
        return  # no answer is an answer
    for split, rows in examples.items():
        lacking = [one for one in rows if not one.label]
        if lacking:
            raise CorpusError(
                f"{len(lacking):,} of {len(rows):,} rows of {split} in {source!r} have no label, "
                f"the first is {lacking[0].texts[0]!r:.40}; fill them in, or remove them"
            )
    if kind == "score":
        refuse_one_kind([one.label for one in examples["train"]], source)


def fit_tokens(recipe: Recipe, tokenizer: Tokenizer) -> Recipe:
    """The model gets the tokenizer's vocabulary, or is refused where it starts with another."""
    size, model = tokenizer.size, recipe.model
    changes: dict[str, object] = {}
    if recipe.train.start and size > model.vocab_size:
        raise ConfigError(
            f"the tokenizer has {size:,} tokens and the model in {recipe.train.start!r} "
            f"{model.vocab_size:,}: they do not belong together; copy the tokenizer that it was "
            "trained with"
        )
    if not recipe.train.start and size != model.vocab_size:
        changes["model.vocab_size"] = size
    if tokenizer.has("pad") and model.embedding != "adaptive":
        changes["model.pad"] = tokenizer.special("pad")
    return recipe.replaced(changes)


def learned(
    data: DataConfig, examples: Mapping[str, Sequence[Example]], progress: Preparing
) -> Tokenizer:
    """A tokenizer of the training texts, or the one in a file."""
    lines = [text for one in examples["train"] for text in (*one.texts, *one.choices)]
    text = "\n".join(" ".join(line.split()) for line in dict.fromkeys(lines)) + "\n"
    corpus = Corpus(
        name=data.corpus,
        about="labelled texts",
        texts={"train": (Piece(text.encode("utf-8", "replace")),)},
        cache=Path(cache_folder()).absolute(),
    )
    return train_tokenizer(
        data.tokenizer,
        corpus,
        vocab_size=data.vocab_size,
        min_count=data.min_count,
        progress=progress,
    )
