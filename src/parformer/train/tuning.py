"""What is the recipe of a training that starts from a trained model, or learns labels?

What BERT's authors and those after them do, unless somebody says otherwise: AdamW, a rate that
rises over a tenth of the updates and falls along a line, three epochs of batches of 32.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from parformer.config import presets
from parformer.data.benchmarks import BENCHMARKS
from parformer.data.sides import Sides
from parformer.errors import ConfigError
from parformer.recipe import Recipe, read_recipe
from parformer.tasks.preparing import kind_of, with_head
from parformer.train.start import open_start

if TYPE_CHECKING:
    from parformer.config import ModelConfig
    from parformer.data.tokenizers import Tokenizer

USUAL_RATE, USUAL_WIDTH = 3e-5, 768
"""The rate of BERT Base; narrower models take larger ones, as Google's compact BERTs do."""
LENGTH = 256
"""Tokens that texts are cut to unless somebody says otherwise."""

GENTLE: dict[str, object] = {
    "train.optimizer": "adamw",
    "train.batch": 32,
    "train.epochs": 3.0,
    "train.weight_decay": 0.01,
    "train.warmup": 0,
    "train.warmup_share": 0.1,
    "train.schedule": "linear",
}
"""For weights that know something already."""
LABELLED: dict[str, object] = {
    "train.evaluate_tokens": 0,
    "train.final_tokens": 0,
    "train.compile": "off",
}
"""For labelled texts: all are scored, and no two batches have one shape."""
SCRATCH: dict[str, object] = {"train.epochs": 10.0, "train.batch": 16}
TRANSLATING = ("translate", "summarise")
"""Tasks that need an encoder."""
MARKED = ("wordpiece", "unigram")
"""Tokenizers that have tokens to stand around texts."""


def tuned(recipe: Recipe | None, start: str, chosen: dict[str, object]) -> Recipe:
    """A recipe for a start or a labelled task, with what was chosen by hand."""
    task = str(chosen.get("train.task", "auto"))
    if recipe is None:
        opened = open_start(Path(start))
        model = opened.config
        data = {"data.corpus": chosen.get("data.corpus", "")}
        if not data["data.corpus"]:
            raise ConfigError("name the --data to learn from")
        own = told_tokenizer(opened.tokenizer, start)
        refuse_other_tokenizer(own, chosen)
        base = Recipe(model=model).replaced(data | own)
        usual = GENTLE | {"train.learning_rate": usual_rate(model), "train.start": start}
        usual |= {"train.start_identity": opened.identity()}
    else:
        base, usual = recipe, dict(SCRATCH)
        if base.data.tokenizer not in MARKED and not base.data.tokenizer.endswith(".json"):
            usual["data.tokenizer"] = MARKED[0]
    if kind_of(task):
        usual |= LABELLED | {"train.tgt_len": window_of(base.model, task)}
    if "train.steps" in chosen or "train.time" in chosen:
        usual["train.epochs"] = 0.0
    settled = base.replaced({"train.task": task} | usual | chosen)
    return with_head(settled)


def usual_rate(model: ModelConfig) -> float:
    return float(f"{USUAL_RATE * USUAL_WIDTH / model.d_model:.2g}")


def window_of(model: ModelConfig, task: str) -> int:
    """Tokens of a text at most: the task's, as far as the model has places."""
    length = BENCHMARKS[task].length if task in BENCHMARKS else LENGTH
    if task == "span":
        length = 384
    return min(length, model.max_len) if model.numbered else length


def told_tokenizer(tokenizer: Tokenizer, start: str) -> dict[str, object]:
    """How a recipe calls the tokenizer of its start."""
    kind = tokenizer.kinds[-1]
    if isinstance(tokenizer, Sides):
        separate = "separate" if tokenizer.separate else "joint"
        return {"data.tokenizer": kind, "data.vocabularies": separate}
    return {"data.tokenizer": str(Path(start) / "tokenizer.json") if kind == "hf" else kind}


def refuse_other_tokenizer(own: dict[str, object], chosen: dict[str, object]) -> None:
    """A start reads with the tokens that it was trained with."""
    for name in ("data.tokenizer", "data.vocab_size", "data.min_count"):
        if name in chosen and chosen[name] != own.get(name):
            raise ConfigError(
                f"{name} {chosen[name]!r} means nothing beside --start, which brings its own "
                "tokenizer; leave it out"
            )


def translator_of(model: str, chosen: dict[str, object]) -> str:
    """The preset's own translator, where pairs are to be learned and the preset has no encoder."""
    task, translator = chosen.get("train.task", "auto"), f"{model}-translation"
    asks = task in TRANSLATING or (task == "auto" and bool(chosen.get("data.pair")))
    if not asks or translator not in presets():
        return model
    return model if read_recipe(model, chosen).model.source is not None else translator


def recipe_for(model: str, start: str, chosen: dict[str, object]) -> Recipe:
    """The recipe of a model by name, of a start, or of both where a model is named for a start."""
    if start:
        if model:
            raise ConfigError(f"--start {start!r} brings its own model; leave out {model!r}")
        return tuned(None, start, chosen)
    if not kind_of(str(chosen.get("train.task", ""))):
        return read_recipe(model, chosen)
    return tuned(read_recipe(model), "", chosen)
