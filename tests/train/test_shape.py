"""Do zeros come where a recipe looks for them: in every matrix, or all over the model?"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import parformer as pf
from parformer.compress.pruning import sparsity
from parformer.errors import ConfigError
from parformer.model import Model
from parformer.shaping import CompressConfig
from parformer.train.job import train_model
from parformer.train.session import refuse_unshapely
from parformer.train.shape import Shaping, smallest_of
from parformer.weights import matrices
from tests.train.test_movement import small


def uneven() -> Model:
    """A model one matrix of which is ten times as small as it was."""
    model = pf.build(pf.preset("llama-pocket", pattern="sf", d_model=64, d_inner=128), seed=1)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in matrices(model).values():
            weight.copy_(torch.randn(weight.shape, generator=generator))
        model.blocks[1].out.weight.mul_(0.1)
    return model


def shares(model: Model) -> list[float]:
    return [float((weight == 0).float().mean()) for weight in matrices(model).values()]


@pytest.mark.parametrize("over", ["matrix", "model"])
def test_zeros_are_looked_for_in_every_matrix_or_in_all_of_them(over: str) -> None:
    model = uneven()
    whole = torch.cat([weight.detach().abs().flatten() for weight in matrices(model).values()])
    config = CompressConfig(sparsity=0.5, prune_over=over)  # type: ignore[arg-type]
    Shaping(model, config, steps=4).after(3)
    assert sparsity(model) == pytest.approx(0.5, abs=1e-3)
    assert (max(shares(model)) > 0.95) == (over == "model"), "the small matrix goes nearly whole"
    if over == "matrix":
        assert shares(model) == pytest.approx([0.5] * len(shares(model)), abs=1e-3)
    else:
        left = torch.cat([weight[weight != 0].abs() for weight in matrices(model).values()])
        assert torch.equal(left.sort().values, whole.sort().values[-len(left) :])


def test_nothing_or_nearly_all_can_go() -> None:
    weights = matrices(uneven())
    assert all(bool(mask.all()) for mask in smallest_of(weights, 0.0, together=True).values())
    masks = smallest_of(weights, 0.999, together=True)
    kept, count = (sum(int(f(one)) for one in masks.values()) for f in (torch.sum, torch.numel))
    assert kept == count - round(0.999 * count)


def test_a_recipe_says_where(tmp_path: Path) -> None:
    recipe = small(compress__sparsity=0.6, compress__prune_over="model")
    train_model(recipe, tmp_path / "run")
    model = pf.load(tmp_path / "run" / "model")
    assert sparsity(model) == pytest.approx(0.6, abs=1e-3)
    assert max(shares(model)) - min(shares(model)) > 0.05
    assert 'prune_over = "model"' in (tmp_path / "run" / "config.toml").read_text()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"prune_over": "model"}, "needs a compress.sparsity"),
        ({"prune_over": "model", "sparsity": 0.5, "prune_by": "movement"}, "one of both"),
        ({"prune_over": "layer"}, "matrix"),
    ],
)
def test_what_cannot_be_is_refused(fields: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        CompressConfig(**fields)  # type: ignore[arg-type]


def test_shards_do_not_know_the_whole_models_smallest() -> None:
    recipe = small(compress__sparsity=0.6, compress__prune_over="model")
    with pytest.raises(ConfigError, match="leave --shard out"):
        refuse_unshapely(recipe, SimpleNamespace(shard=True))  # type: ignore[arg-type]
    refuse_unshapely(recipe, SimpleNamespace(shard=False))  # type: ignore[arg-type]
