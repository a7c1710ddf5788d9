"""Small translators to search for, and pairs that are made up in memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from parformer.recipe import Recipe, read_recipe
from parformer.search.placement.choices import Choices

START, END, PAD, WORDS = 17, 18, 19, 16
SPACE = Choices.of_sides([(2, "sfi"), (3, "scfi")])
SMALL = {
    "model.d_model": 16, "model.d_inner": 32, "model.n_head": 2, "model.max_len": 32,
    "model.dropout": 0.0, "data.pair": "de-en", "train.batch_tokens": 64,
    "train.precision": "fp32", "train.kernels": "plain", "train.compile": "off",
    "search.choices": "sfi | scfi", "search.encoder_layers": 2, "search.layers": 3,
    "search.cycle": 3, "search.warmup": 0.25, "search.learning_rate": 0.05,
    "train.steps": 9, "train.evaluate_every": 9, "train.warmup": 2, "train.threads": 1,
}  # fmt: skip
OPEN = {**SMALL, "data.tokenizer": "character", "data.vocab_size": 0}


def text(pairs: int, seed: int = 0) -> Any:
    """Pairs of two to six tokens, as their lines have them."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(pairs):
        source, target = (rng.integers(0, WORDS, rng.integers(2, 7)) for _ in range(2))
        rows += [source, [START], target, [END]]
    return np.concatenate(rows).astype(np.uint8)


def make_recipe(**changes: Any) -> Recipe:
    own = {"model.vocab_size": 20, "model.start": START, "model.end": END, "model.pad": PAD}
    own |= {name.replace("__", "."): value for name, value in changes.items()}
    return read_recipe("transformer-pocket-translation", {**SMALL, **own})
