"""How does a smaller model learn again what it lost?

By training on from the weights it has, with the model that all began with as its teacher: a run
like any other, in the step's own folder, so what was stopped goes on.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from parformer.compress.receipt import Bench
from parformer.compress.work import TRIED
from parformer.errors import Stopped
from parformer.events import Watch
from parformer.model import Model, load
from parformer.recipe import Recipe
from parformer.store.cache import digest
from parformer.train.job import train_model
from parformer.train.run import MODEL
from parformer.train.start import Start, open_start

GENTLER = 0.25
"""Of the rate that the model was trained with first."""
FASTER = ((0.15, 4.0), (0.03, 2.0))
"""By how much the loss grew, and how much faster a model then learns on. After a loss of 6% twice
the gentle rate ended 0.5% lower, after 48% and 76% four times that rate 4% and 10%
(docs/experiments/compression.md)."""
ADAM_RATE = 5e-4
"""For a model of which nobody knows how it was trained."""
LOGITS = 2**25
"""Numbers of an update's answers, of each of the two models, that a small machine bears."""


def trained_on(
    model: Model,
    bench: Bench,
    folder: Path,
    *,
    teacher: Path,
    seconds: float,
    watch: Watch,
    bits: int = 0,
    sparsity: float = 0.0,
    soft: float = 0.8,
    updates: int = 0,
) -> Model:
    """The model after so many seconds of training, or updates, in few bits or with zeros.

    The training has a folder of its own for every model, teacher, text and wish, so that one that
    was stopped goes on, and another one begins.
    """
    own: dict[str, object] = {
        **(counted(updates) if updates else {"train.time": seconds}),
        "compress.soft": soft,
        "compress.bits": bits,
        "compress.sparsity": sparsity,
    }
    source, taught = Start(Path(), model, bench.prepared.tokenizer), open_start(teacher)
    key = digest([source.identity(), taught.identity(), bench.prepared.identity, own])
    folder = folder / key[:12]
    start = folder / "start"
    if not start.is_dir():
        model.save(start, bench.prepared.tokenizer.to_json())
    recipe = recipe_for(bench.recipe, model, start)
    faster = hurry(bench.train_loss(model, TRIED), bench.train_loss(taught.model, TRIED))
    recipe = recipe.replaced(
        {
            "train.learning_rate": faster * recipe.train.learning_rate,
            "compress.teacher": str(teacher),
            **own,
        }
    )
    outcome = train_model(recipe, folder / "run", prepared=bench.prepared, watch=watch)
    if outcome.interrupted or not outcome.finished:
        raise Stopped("stopped; what was done is kept, and the same command goes on")
    return load(folder / "run" / MODEL)


def hurry(loss: float, first: float) -> float:
    """How much faster than gently a model learns on that has lost so much.

    >>> [hurry(loss, 2.0) for loss in (1.9, 2.02, 2.1, 2.5)]
    [1.0, 1.0, 2.0, 4.0]
    """
    return next((times for growth, times in FASTER if loss >= (1 + growth) * first), 1.0)


def counted(updates: int) -> dict[str, object]:
    """What a recipe says where updates are counted, whatever it said before."""
    return {"train.steps": updates, "train.time": 0.0, "train.epochs": 0.0, "train.phases": ()}


def recipe_for(recipe: Recipe, model: Model, start: Path) -> Recipe:
    """How a model is trained on from where it is."""
    own = {"train.start": str(start), "train.start_identity": open_start(start).identity()}
    return gentle(recipe, model).replaced(own)


def gentle(recipe: Recipe, model: Model) -> Recipe:
    """How a model is trained on: as it was, but gently, and in batches that a machine bears."""
    train = recipe.train
    known = train.optimizer == "muon" or train.learning_rate != type(train)().learning_rate
    rate = GENTLER * train.learning_rate if known else ADAM_RATE
    length = train.tgt_len or model.config.step_len
    most = max(1, LOGITS // (length * model.config.vocab_size))
    batch = min(train.batch, 1 << most.bit_length() - 1)
    return replace(recipe, model=model.config, search=None).replaced(
        {
            "train.learning_rate": rate,
            "train.final_rate": 0.0,
            "train.warmup": 10,
            "train.schedule": "cosine",
            "train.order": "windows" if model.config.causal else train.order,
            "train.batch": batch,
            "train.accumulate": 1,
            "train.compile": "off",
            "train.evaluate_tokens": min(train.evaluate_tokens, 16_384),
            "train.final_tokens": 4096,
        }
    )
