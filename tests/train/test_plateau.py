"""Is a training that learned nothing told so, once, and others not?"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from parformer.evaluate.counting import entropy
from parformer.recipe import Recipe, read_recipe
from parformer.train.job import train_model
from parformer.train.plateau import SHORTEST, advice, is_due, on_plateau
from tests.train.trials import Ears

SMALL = {
    "model.d_model": 32,
    "model.n_head": 2,
    "model.d_inner": 64,
    "model.pattern": "(sf)x2",
    "model.tgt_len": 16,
    "model.mem_len": 16,
    "train.batch": 4,
    "train.warmup": 5,
    "train.steps": 120,
    "train.evaluate_tokens": 512,
    "train.final_tokens": 512,
    "train.precision": "fp32",
    "train.compile": "off",
}


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """Two letters in turn, with runs of random length: a bigram knows most of it."""
    rng = np.random.default_rng(3)
    parts = [b"ab"[i % 2 : i % 2 + 1] * int(n) for i, n in enumerate(rng.integers(3, 9, 4000))]
    path = tmp_path / "text.txt"
    path.write_bytes(b"".join(parts))
    return path


def heard(text: Path, path: Path, preset: str = "pocket", **changes: object) -> list[str]:
    given = {name.replace("__", "."): value for name, value in changes.items()}
    recipe = read_recipe(preset, SMALL | {"data.corpus": str(text)} | given)
    ears = Ears("nothing else was learned")
    train_model(recipe, path, watch=ears)
    return ears.heard


def test_a_training_that_learns_says_nothing(text: Path, tmp_path: Path) -> None:
    assert heard(text, tmp_path / "run") == []


def test_one_that_does_not_is_told_so_once_with_the_way_out(text: Path, tmp_path: Path) -> None:
    (said,) = heard(text, tmp_path / "run", train__learning_rate=1e-9)
    assert said.startswith("After 30 updates the loss is ")  # the first line after a fifth, 24
    assert "train.learning_rate=2.5e-10" in said


def test_a_run_that_goes_on_does_not_say_it_again(text: Path, tmp_path: Path) -> None:
    recipe = read_recipe(
        "pocket", SMALL | {"data.corpus": str(text), "train.learning_rate": 1e-9}
    )  # fmt: skip
    ears = Ears("nothing else was learned")
    for until in (20, 35, 60):
        train_model(recipe, tmp_path / "run", watch=ears, until=until)
    assert len(ears.heard) == 1


def test_a_short_training_has_only_begun(text: Path, tmp_path: Path) -> None:
    slow = {"train__learning_rate": 1e-9, "train__steps": SHORTEST - 10}
    assert heard(text, tmp_path / "run", **slow) == []


def test_the_plateau_is_within_a_percent_of_the_entropy_of_single_tokens() -> None:
    tokens = np.array([0, 0, 0, 1] * 50, np.uint8)
    known = entropy(tokens, 256)
    assert known == pytest.approx(-(0.75 * math.log(0.75) + 0.25 * math.log(0.25)))
    assert on_plateau(known * 0.995, known)
    assert on_plateau(known * 1.5, known)
    assert not on_plateau(known * 0.985, known)


@pytest.mark.parametrize("every", [1, 7, 10, 50])
@pytest.mark.parametrize("steps", [100, 101, 333, 2000])
def test_one_line_of_metrics_is_judged(every: int, steps: int) -> None:
    lines = [step for step in range(1, steps + 1) if step % every == 0]
    judged = [step for step in lines if is_due(step, every, steps)]
    assert judged == [next(step for step in lines if step >= steps / 5)]


def test_the_way_out_is_one_that_was_not_taken() -> None:
    def words(preset: str, **changes: object) -> str:
        recipe: Recipe = read_recipe(preset, changes)
        return advice(recipe, 60, 3.0, 3.0)

    assert "model.norm=pre" in words("pocket-post")
    assert "model.first_weights=scaled" in words("gpt2-small")
    assert "train.warmup=100" in words("pocket")
    assert "train.learning_rate=0.0005" in words("pocket-post")
