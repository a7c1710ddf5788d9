"""Is a model the mean of the checkpoints that its recipe names, also after a stop?"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from parformer.errors import ConfigError
from parformer.recipe import Recipe, TrainConfig, read_recipe
from parformer.store.folder import read_model
from parformer.train.averaging import averaged_steps, checkpoint_steps, mean, mean_of_last
from parformer.train.checkpoint import read_checkpoint
from parformer.train.job import train_model

SMALL: dict[str, object] = {
    "model.pattern": "sf",
    "model.d_model": 16,
    "model.d_inner": 16,
    "model.tgt_len": 16,
    "model.mem_len": 16,
    "data.corpus": "python-docs",
    "train.steps": 7,
    "train.batch": 2,
    "train.precision": "fp32",
    "train.kernels": "plain",
    "train.compile": "off",
    "train.evaluate_tokens": 128,
    "train.final_tokens": 128,
    "train.checkpoint_every": 2,
}


def recipe(**changes: object) -> Recipe:
    more = {f"train.{name}": value for name, value in changes.items()}
    return read_recipe("pocket", {**SMALL, **more})


def weights_of(run: Path) -> Mapping[str, Tensor]:
    return read_model(run / "model")[1]


def test_the_model_is_the_mean_of_the_last_checkpoints(tmp_path: Path) -> None:
    """The checkpoints are those of a run that keeps them all and takes the last weights."""
    train_model(recipe(keep=9), tmp_path / "all")
    outcome = train_model(recipe(average=3), tmp_path / "mean")
    assert outcome.finished
    kept = sorted(path.name for path in (tmp_path / "mean/checkpoints").glob("step-*"))
    assert kept == [f"step-{step:09d}" for step in (4, 6, 7)]
    every = [read_checkpoint(tmp_path / "all/checkpoints" / name).weights for name in kept]
    found, last = weights_of(tmp_path / "mean"), weights_of(tmp_path / "all")
    assert any(not torch.equal(found[name], last[name]) for name in found)
    for name, tensor in found.items():
        wanted = np.mean([one[name].double().numpy() for one in every], axis=0)
        np.testing.assert_allclose(tensor.numpy(), wanted, rtol=1e-6, atol=1e-9)


def test_a_run_that_was_stopped_ends_with_the_same_mean(tmp_path: Path) -> None:
    """What a stop saves between two checkpoints does not count, and pushes none of them out."""
    train_model(recipe(average=3), tmp_path / "whole")
    for step in (3, 5):
        train_model(recipe(average=3), tmp_path / "run", until=step)
    train_model(recipe(average=3), tmp_path / "run")
    found, whole = weights_of(tmp_path / "run"), weights_of(tmp_path / "whole")
    assert all(torch.equal(found[name], whole[name]) for name in whole)


def test_how_often_checkpoints_are_made_is_part_of_a_mean(tmp_path: Path) -> None:
    train_model(recipe(average=2, checkpoint_every=0), tmp_path / "run", until=2)
    train_model(recipe(average=2, checkpoint_every=0), tmp_path / "run", until=3)
    with pytest.raises(ConfigError, match=r"train.checkpoint_every is 1 in the run"):
        train_model(recipe(average=2, checkpoint_every=3), tmp_path / "run")


def test_a_damaged_checkpoint_is_left_out_and_said(tmp_path: Path) -> None:
    train_model(recipe(average=3), tmp_path / "run")
    root = tmp_path / "run/checkpoints"
    (root / "step-000000006/weights.safetensors").write_bytes(b"torn")
    said: list[str] = []
    config = recipe(average=3).train
    found = mean_of_last(root, config, said.append)
    assert found is not None
    assert "step-000000006" in said[0]
    assert "2 checkpoints" in said[1]
    kept = [read_checkpoint(root / f"step-{step:09d}").weights for step in (4, 7)]
    assert all(torch.equal(found[name], tensor) for name, tensor in mean(kept).items())


def test_whole_numbers_are_the_last() -> None:
    found = mean([{"a": torch.tensor([1.0]), "n": torch.tensor([1])},
                  {"a": torch.tensor([2.0]), "n": torch.tensor([5])}])  # fmt: skip
    assert found["a"].tolist() == [1.5]
    assert found["n"].tolist() == [5]


def test_which_steps() -> None:
    assert averaged_steps(TrainConfig(steps=10, average=1, checkpoint_every=2)) == []
    assert averaged_steps(TrainConfig(steps=7, average=9, checkpoint_every=3)) == [3, 6, 7]
    assert checkpoint_steps(TrainConfig(steps=3000, average=5)) == 150
    assert averaged_steps(TrainConfig(steps=10, average=3, checkpoint_every=5)) == [5, 10]
    with pytest.raises(ConfigError, match="give one of them"):
        TrainConfig(average=3, patience=2)
