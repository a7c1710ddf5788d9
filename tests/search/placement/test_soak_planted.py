"""Texts whose truth is known, with the settings of the pocket search: is it found?"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from parformer.config import ModelConfig
from parformer.data.batches import Tokens
from parformer.pattern import Pattern
from parformer.recipe import Recipe, TrainConfig, read_recipe
from parformer.train.distributed import Workers
from parformer.train.session import Session
from tests.search.placement.trials import chained_text, copying_text, make_session, updated

pytestmark = pytest.mark.soak


def recall_text(length: int, *, kinds: int = 4, queries: int = 20, seed: int = 0) -> Tokens:
    """Keys with a value each, then keys whose values are to be named; all of it ever anew."""
    rng = np.random.default_rng(seed)
    tokens: list[int] = []
    while len(tokens) < length:
        keys, values = rng.permutation(kinds), rng.integers(kinds, 2 * kinds, kinds)
        for place in [*range(kinds), *rng.integers(0, kinds, queries)]:
            tokens += [int(keys[place]), int(values[place])]
    return np.array(tokens[:length], np.uint8)


def planted(seed: int, steps: int) -> Recipe:
    """The pocket search over four small layers; first weights large, or recall takes too long."""
    model = {
        "family": "llama",
        "pattern": "(sf)x2",
        "vocab_size": 16,
        "d_model": 32,
        "n_head": 2,
        "d_inner": 64,
        "max_len": 48,
        "init_std": 0.1,
    }
    training = TrainConfig(
        steps=steps,
        batch=32,
        learning_rate=5e-3,
        schedule="constant",
        warmup=20,
        seed=seed,
        precision="fp32",
        compile="off",
        kernels="native",
        threads=1,
    )
    search = read_recipe("pocket-search").search
    assert search is not None
    search = replace(search, penalty="flops=0.1", layers=4, warmup=0.5)
    return Recipe(model=ModelConfig.from_dict(model), train=training, search=search)


def find(recipe: Recipe, tokens: Tokens) -> Pattern:
    session = make_session(recipe, tokens=tokens)
    updated(session, 0, recipe.train.steps)
    return session.space.pattern(session.picks)


def learned(recipe: Recipe, tokens: Tokens, pattern: str | Pattern) -> float:
    """The loss that a plain model of this pattern ends with."""
    plain = replace(recipe.replaced({"model.pattern": Pattern.parse(pattern)}), search=None)
    session = Session(plain, tokens, workers=Workers())
    losses = [float(session.update(step)[0]) for step in range(recipe.train.steps)]
    return sum(losses[-50:]) / 50


@pytest.mark.parametrize("seed", range(5))
def test_recall_keeps_two_attention_blocks_in_a_row(seed: int) -> None:
    """What is learned late, by blocks that work together, is not given up before."""
    recipe, tokens = planted(seed, 1800), recall_text(300_000, seed=seed)
    found = find(recipe, tokens)
    assert "ss" in found.letters
    # a plain model of so few blocks does not always learn all of it in as many updates
    assert learned(recipe, tokens, found) < learned(recipe, tokens, "(f)x4") - 0.1


@pytest.mark.parametrize("seed", range(3))
def test_copies_from_afar_keep_attention(seed: int) -> None:
    recipe, tokens = planted(seed, 600), copying_text(200_000, back=8, seed=seed)
    found = find(recipe, tokens)
    assert "s" in found.letters
    assert learned(recipe, tokens, found) < learned(recipe, tokens, "(f)x4") - 0.5


@pytest.mark.parametrize("seed", range(3))
def test_a_chain_keeps_no_attention(seed: int) -> None:
    assert "s" not in find(planted(seed, 600), chained_text(200_000, seed=seed)).letters
