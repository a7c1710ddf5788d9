"""Is a shared weight trained once, however often it is used?"""

from __future__ import annotations

import copy
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close

import parformer as pf
from parformer.model import Model, build
from parformer.recipe import TrainConfig
from parformer.train.checkpoint import read_checkpoint
from parformer.train.distributed import standing_alone
from parformer.train.optimizers import clip_gradients, make_optimizer
from tests.conftest import noise, small_config
from tests.train.trials import begin, make_prepared, make_recipe, train_to_the_end

OPTIMIZERS = ("adam", "adamw", "radam", "lamb", "nvlamb", "muon")
SHARED = {
    "all": ("{sf}x3", "sf"),
    "attention": ("(s[share=a]f)x2", "sff"),
    "feed-forward": ("(sf[share=a])x2", "sfs"),
    "groups": ("{sf}x2 {sf}x2", "sfsf"),
    "inner groups": ("{sfsf}x2", "sfsf"),
    "across groups": ("{s[share=a]f}x2 <sf[share=n]f[share=n]>[feed=shared] s[share=a]", ""),
}
"""A pattern that shares, and one without sharing that has the same weights in the same order."""


def make(pattern: str) -> Model:
    sizes: dict[str, Any] = {"d_model": 16, "n_head": 2, "d_embed": 8, "d_bottleneck": 8}
    return build(small_config("albert", pattern=pattern, **sizes)).train()


def give_gradients(model: Model) -> None:
    """The same numbers for the same number of weights."""
    for seed, parameter in enumerate(model.parameters()):
        parameter.grad = noise(*parameter.shape, seed=seed).float()


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("way", [way for way, (_, twin) in SHARED.items() if twin])
def test_an_update_decays_and_moves_a_shared_weight_once(way: str, name: str) -> None:
    """Just as a model without sharing that has the same weights and gradients."""
    shared, plain = map(make, SHARED[way])
    both = list(zip(shared.parameters(), plain.parameters(), strict=True))
    with torch.no_grad():
        for one, other in both:
            other.copy_(one)
    config = TrainConfig(optimizer=name, weight_decay=0.5, learning_rate=0.1)  # type: ignore[arg-type]
    for model in (shared, plain):
        optimizer = make_optimizer(model, config)
        for _ in range(2):
            give_gradients(model)
            optimizer.step()
    for one, other in both:
        assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize("way", SHARED)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_and_clipping_see_every_weight_once(way: str, name: str) -> None:
    model = make(SHARED[way][0])
    unique = {
        id(p): p for module in model.modules() for p in module._parameters.values() if p is not None
    }
    groups = make_optimizer(model, TrainConfig(optimizer=name)).param_groups  # type: ignore[arg-type]
    held = [id(p) for group in groups for p in group["params"]]
    assert sorted(held) == sorted(unique)
    assert pf.cost(model.config).parameters == sum(p.numel() for p in unique.values())
    give_gradients(model)
    whole = torch.cat([p.grad.flatten() for p in unique.values()]).norm()
    assert_close(clip_gradients(list(model.parameters()), 0.25), whole)
    assert_close(torch.cat([p.grad.flatten() for p in unique.values()]).norm(), torch.tensor(0.25))


def test_a_checkpoint_and_a_model_hold_a_shared_weight_once(tmp_path: Path) -> None:
    pattern = "{sf}x2 (s[share=a]f)x2"
    recipe = make_recipe("albert", model__pattern=pattern, model__d_embed=8)
    prepared = make_prepared(60)
    begin(tmp_path / "run", recipe, prepared)
    train_to_the_end(tmp_path / "run", recipe, prepared)
    newest = sorted((tmp_path / "run" / "checkpoints").iterdir())[-1]
    found = read_checkpoint(newest)
    model = pf.load(tmp_path / "run" / "model")
    names = dict(model.named_parameters())
    assert found.weights.keys() == names.keys()
    assert model.blocks[1] is model.blocks[3]
    assert not any(name.startswith("blocks.3.") for name in names)
    assert sum(w.numel() for w in found.weights.values()) == pf.cost(model.config).parameters
    moments = [name for name in found.optimizer if name.endswith("/exp_avg")]
    assert len(moments) == len(names)


def test_only_blocks_that_share_nothing_are_spread_by_themselves() -> None:
    model = make("sf (s[share=a]f)x2 {s[share=a]}x2 {f}x2 <s[share=b]><s[share=b]>")
    alone = standing_alone(model.blocks)
    expected = [model.blocks[i] for i in (0, 1, 3, 5, 7)]
    assert alone == expected
    for one, other in pairwise(alone):
        assert not {*one.parameters()} & {*other.parameters()}


def test_a_copy_of_a_model_shares_as_it_did() -> None:
    model = make("(s[share=a]f)x2 {sf}x2")
    again = copy.deepcopy(model)
    assert again.blocks[0] is again.blocks[2]
    assert sum(p.numel() for p in again.parameters()) == sum(p.numel() for p in model.parameters())
