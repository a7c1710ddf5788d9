"""Is a training told that it learned its text by heart, and others not?"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from parformer.recipe import read_recipe
from parformer.train.job import train_model
from parformer.train.overfit import advice
from tests.train.trials import Ears


@pytest.mark.parametrize("patience", [0, 50])
def test_what_was_learned_by_heart_is_told(tmp_path: Path, patience: int) -> None:
    rng = np.random.default_rng(5)
    text = tmp_path / "text.txt"
    text.write_bytes(bytes(rng.integers(97, 123, 3000).tolist()))  # nothing carries over
    recipe = read_recipe(
        "pocket",
        {
            "data.corpus": str(text), "model.pattern": "(sf)x2", "model.d_model": 64,
            "model.n_head": 2, "model.d_inner": 128, "model.tgt_len": 32, "model.mem_len": 32,
            "train.batch": 8, "train.steps": 120, "train.warmup": 5, "train.precision": "fp32",
            "train.compile": "off", "train.evaluate_every": 10, "train.patience": patience,
        },
    )  # fmt: skip
    ears = Ears("lower after")
    train_model(recipe, tmp_path / "run", watch=ears)
    assert len(ears.heard) == (not patience)
    if not patience:
        assert "train.patience=3" in ears.heard[0]


def test_an_end_that_is_near_the_best_is_not_told() -> None:
    assert advice(((10, 2.0), (20, 1.5), (30, 1.51))) == ""
    assert "4.8% lower after 20 updates than after 30" in advice(((10, 2.0), (20, 1.0), (30, 1.05)))
    assert advice(((30, 1.51),)) == ""
