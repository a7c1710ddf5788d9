"""Do the pocket recipes learn more than pairs of letters in a few updates, at any shape?

The whole trial, on real texts of many kinds, is benchmarks/learns.py.
"""

from __future__ import annotations

from functools import cache
from itertools import accumulate
from random import Random

import numpy as np
import pytest
from numpy.typing import NDArray

from parformer.evaluate.counting import references
from parformer.evaluate.perplexity import evaluate
from parformer.model import build_from
from parformer.recipe import read_recipe
from parformer.train.distributed import Workers
from parformer.train.schedule import rate_for
from parformer.train.session import Session

UPDATES = 120


@cache
def prose() -> NDArray[np.uint8]:
    """Sentences of made-up words, a few of them frequent, as in any language."""
    rng = Random(7)
    syllables = [a + b for a in "bdfgklmnprstvw" for b in "aeiou"]
    words = ["".join(rng.choices(syllables, k=rng.randint(1, 4))) for _ in range(300)]
    weights = list(accumulate(1 / (rank + 3) for rank in range(len(words))))
    lines = [
        " ".join(rng.choices(words, cum_weights=weights, k=rng.randint(4, 12))) + "."
        for _ in range(6000)
    ]
    return np.frombuffer("\n".join(lines).encode(), np.uint8)


@cache
def bigram() -> float:
    """What counting pairs loses on held-out text."""
    train, held_out = prose()[:-8192], prose()[-8192:]
    return references(train, {"valid": held_out}, vocab_size=256)["valid"].bigram


def loss_of(preset: str, **changes: object) -> float:
    """What a small model of this recipe loses on it."""
    train, held_out = prose()[:-8192], prose()[-8192:]
    sizes = {
        "model.d_model": 64,
        "model.d_inner": 128,
        "model.n_head": 2,
        "model.pattern": "(sf)x2",
        "train.tgt_len": 64,
        "train.mem_len": 64,
        "train.batch": 8,
        "train.steps": UPDATES,
        "train.warmup": UPDATES // 10,
        "train.precision": "fp32",
        "train.kernels": "plain",
    }
    given = {name.replace("__", "."): value for name, value in changes.items()}
    recipe = read_recipe(preset, sizes | given)
    usual, known = read_recipe(preset).train.learning_rate, read_recipe(preset).model
    if preset != "pocket-post":
        recipe = recipe.replaced({"train.learning_rate": rate_for(recipe.model, usual, known)})
    recipe = recipe.replaced({"model.tgt_len": 64})
    if recipe.model.max_len:
        recipe = recipe.replaced({"model.max_len": 64})
    session = Session(recipe, train, workers=Workers())
    for step in range(UPDATES):
        session.update(step)
    model = build_from(recipe.model, {n: p.detach() for n, p in session.model.named_parameters()})
    return evaluate(model, held_out, batch=8).loss


@pytest.mark.parametrize(
    ("preset", "changes"),
    [
        ("pocket", {}),
        ("pocket", {"model__pattern": "(sfff)x2", "model__d_model": 32}),
        ("pocket", {"model__pattern": "(rsf)x2"}),
        ("llama-pocket", {"model__n_kv_head": 1}),
        ("srupp-pocket", {"model__pattern": "(ra)x2", "model__d_attention": 32}),
    ],
)
def test_a_recipe_learns_more_than_pairs(preset: str, changes: dict[str, object]) -> None:
    assert loss_of(preset, **changes) < 0.98 * bigram()


def test_the_old_recipe_does_not() -> None:
    """Norms after the sums: so the trial above can fail."""
    assert loss_of("pocket-post", model__pattern="(sf)x6") > bigram()
