"""Is movement pruning what its paper says, masks and gradients, and does it go on after a stop?"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

import parformer as pf
from parformer.compress.pruning import sparsity
from parformer.errors import ConfigError
from parformer.recipe import Recipe, read_recipe
from parformer.shaping import CompressConfig
from parformer.train.job import train_model
from parformer.train.movement import FEWEST, Movement
from parformer.train.shape import Shaping

SMALL: dict[str, object] = {
    "model.d_model": 64,
    "model.d_inner": 128,
    "model.pattern": "sf",
    "data.corpus": "python-docs",
    "train.batch": 2,
    "train.tgt_len": 32,
    "train.steps": 8,
    "train.warmup": 1,
    "train.compile": "off",
    "train.precision": "fp32",
    "train.evaluate_tokens": 1024,
    "train.final_tokens": 1024,
}


def small(**changes: object) -> Recipe:
    named = {name.replace("__", "."): value for name, value in changes.items()}
    return read_recipe("llama-pocket", SMALL | named)


class Twin:
    """The method written out for one matrix: y = (W ∘ M) x, loss = Σ (y − t)²."""

    def __init__(self, weight: Tensor, config: CompressConfig, matrices: int) -> None:
        self.weight, self.config, self.matrices = weight.detach().double().clone(), config, matrices
        self.scores = torch.zeros_like(self.weight)
        self.mask = torch.ones_like(self.weight)
        self.first, self.second = torch.zeros_like(self.weight), torch.zeros_like(self.weight)

    def gradients(self, x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        y = x @ (self.weight * self.mask).T
        seen = 2 * (y - target).T @ x
        return seen * self.mask, seen * self.weight

    def move(self, gradient: Tensor, step: int, share: float) -> None:
        config = self.config
        done = min(
            1.0, max(0.0, share - config.prune_from) / (config.prune_until - config.prune_from)
        )
        risen = 1 - (1 - done) ** 3
        if config.prune_by == "soft-movement":
            chance = 1 / (1 + (-self.scores).exp())
            slope = chance * (1 - chance) / self.scores.numel() / self.matrices
            gradient = gradient + config.score_penalty * risen * slope
        self.first = 0.9 * self.first + 0.1 * gradient
        self.second = 0.999 * self.second + 0.001 * gradient**2
        top, below = self.first / (1 - 0.9**step), (self.second / (1 - 0.999**step)).sqrt()
        self.scores -= config.score_rate * top / (below + 1e-8)
        if config.prune_by == "movement":
            count = round(config.sparsity * risen * self.scores.numel())
            edge = self.scores.flatten().sort().values
            cut = edge[count - 1] if count else torch.tensor(-1e9)
            self.mask = (self.scores > cut).double()
        else:
            self.mask = (1 / (1 + (-self.scores).exp()) > config.threshold * risen).double()


@pytest.mark.parametrize("by", ["movement", "soft-movement"])
def test_masks_and_gradients_are_those_of_a_twin(by: str) -> None:
    config = CompressConfig(
        prune_by=by,  # type: ignore[arg-type]
        sparsity=0.7,
        score_rate=2.0,
        score_penalty=3.0,
        threshold=0.4,
    )
    model = pf.build(small(model__pattern="f").model).double()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        model.blocks[0].out.weight.normal_(generator=generator)
    shaping = Shaping(model, config, steps=4)
    assert isinstance(shaping.beside, Movement)
    names = list(shaping.beside.weights)
    number = names.index("blocks.0.out")
    linear = model.blocks[0].out
    twin = Twin(linear.weight, config, len(names))
    for step in range(3):
        x = torch.randn(5, linear.in_features, generator=generator, dtype=torch.float64)
        target = torch.randn(5, linear.out_features, generator=generator, dtype=torch.float64)
        (linear(x) - target).square().sum().backward()
        own, scores = twin.gradients(x, target)
        torch.testing.assert_close(linear.weight.grad, own)
        torch.testing.assert_close(shaping.beside.scores[number].grad, scores)
        linear.weight.grad = None
        shaping.after(step)
        twin.move(scores, step + 1, (step + 1) / 4)
        torch.testing.assert_close(shaping.beside.scores[number].detach(), twin.scores)
        assert torch.equal(shaping.beside.masks[number], twin.mask)
        assert 0 < float(twin.mask.mean()) < 1
    dense = linear.weight.detach().clone()
    assert bool((dense != 0).all())  # what is not seen may come back
    shaping.after(3)
    assert torch.equal(linear.weight.detach(), dense * shaping.beside.masks[number])


def test_a_few_are_always_seen() -> None:
    model = pf.build(small().model)
    movement = Movement(model, CompressConfig(prune_by="soft-movement"))
    with torch.no_grad():
        for scores in movement.scores:
            scores.copy_(-9 - torch.rand(scores.shape))
    movement.choose(1.0)
    for scores, mask in zip(movement.scores, movement.masks, strict=True):
        assert int(mask.sum()) == scores.numel() - round((1 - FEWEST) * scores.numel())
        assert float(scores[mask.bool()].min().detach()) > float(
            scores[~mask.bool()].max().detach()
        )


@pytest.mark.parametrize("by", ["movement", "soft-movement"])
def test_a_stopped_training_goes_on_with_the_same_bits(by: str, tmp_path: Path) -> None:
    recipe = small(
        compress__prune_by=by,
        compress__sparsity=0.6,
        compress__score_rate=2.0,
        compress__prune_until=0.7,
    )
    train_model(recipe, tmp_path / "whole")
    train_model(recipe, tmp_path / "parts", until=5)
    train_model(recipe, tmp_path / "parts")
    whole, parts = (
        dict(pf.load(tmp_path / n / "model").named_parameters()) for n in ("whole", "parts")
    )
    assert all(torch.equal(tensor, parts[name]) for name, tensor in whole.items())
    matrices = [t for name, t in whole.items() if name.startswith("blocks.") and t.dim() == 2]
    zeros = sum(int((t == 0).sum()) for t in matrices) / sum(t.numel() for t in matrices)
    if by == "movement":
        assert zeros == pytest.approx(0.6, abs=0.001)
    assert zeros > 0.05
    assert sparsity(pf.load(tmp_path / "whole" / "model")) > 0


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"prune_by": "movement"}, "needs a compress.sparsity"),
        ({"prune_by": "movement", "sparsity": 0.5, "bits": 4}, "one of both"),
        ({"prune_by": "soft-movement", "threshold": 0.6}, "between 0 and 0.5"),
        ({"prune_by": "soft-movement", "score_rate": 0.0}, "above 0"),
        ({"prune_by": "size"}, "magnitude"),
    ],
)
def test_bad_wishes_are_refused(fields: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        CompressConfig(**fields)  # type: ignore[arg-type]


def test_zeros_that_rise_until_the_end_do_not_go_with_patience(tmp_path: Path) -> None:
    recipe = small(compress__sparsity=0.5, train__patience=3)
    with pytest.raises(ConfigError, match=r"train\.patience to 0"):
        train_model(recipe, tmp_path / "run")
