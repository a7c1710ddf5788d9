"""Is what is left the same as the whole with the rest switched off?"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import parformer as pf
from parformer.blocks.lsra import LSRA
from parformer.blocks.sru import Recurrent
from parformer.blocks.sru_attention import SRUAttention
from parformer.compress.choosing import Prices, choose
from parformer.compress.coding import coded
from parformer.compress.cuts import convolutions, units, wide, written
from parformer.compress.shrinking import importance, magnitude, places, shrunk
from parformer.costs import cost
from parformer.errors import ConfigError
from parformer.model import Model, count_parameters

PRESETS = ("pocket", "llama-pocket", "gpt2-pocket", "bert-pocket", "srupp-pocket", "lite-pocket")
MIXED = {
    "srupp-pocket": ("r[norm=off]r[full]a[heads=4]", "a[norm=pre,qkv]", "a[norm=off]r[width=20]"),
    "lite-pocket": (
        "l[light,kernel=3]f",
        "l[attend=0,glu=off]",
        "l[branches=light112h7k3+attend112]",
    ),
}
"""Other patterns of theirs that can become smaller."""


def alive(name: str, **changes: object) -> Model:
    """A model no part of which is silent."""
    model = pf.build(pf.preset(name, **changes), seed=2)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
        for block in model.modules():
            if isinstance(block, SRUAttention):  # which looks at little in the beginning
                block.alpha.fill_(3.0)
                block.key_value.weight.mul_(5.0)
    return model


def tokens_for(model: Model) -> Tensor:
    return torch.randint(
        model.config.vocab_size, (2, 11), generator=torch.Generator().manual_seed(0)
    )


class Deaf(nn.Module):
    """A norm that hears the channels that stay, and gives nothing in the others' places."""

    def __init__(self, norm: nn.Module, stays_c: Tensor) -> None:
        super().__init__()
        self.norm, self.stays_c = norm, stays_c

    def forward(self, x_btd: Tensor) -> Tensor:
        x_btc, norm = x_btd[..., self.stays_c], self.norm
        weight, eps = norm.weight[self.stays_c], norm.eps
        if getattr(norm, "bias", None) is None:
            y_btc = x_btc / (x_btc.square().mean(-1, keepdim=True) + eps).sqrt() * weight
        else:
            middle = x_btc - x_btc.mean(-1, keepdim=True)
            spread = (middle.square().mean(-1, keepdim=True) + eps).sqrt()
            y_btc = middle / spread * weight + norm.bias[self.stays_c]
        return torch.zeros_like(x_btd).index_copy(-1, self.stays_c, y_btc)


@torch.no_grad()
def silenced(model: Model, path: str, gone: Tensor) -> None:
    """Switch units off in the whole model: nothing of them is written, heard or asked."""
    block = model.get_submodule(path)
    matrix = written(block)
    columns = wide(gone, matrix.shape[1] // units(block))
    matrix[:, columns] = 0
    if isinstance(block, LSRA):
        ((_, branch),) = convolutions(block)
        if branch.kernel is not None:
            branch.kernel.weight[:, columns] = 0
    if isinstance(block, Recurrent):
        block.project.weight[columns] = 0
        if getattr(block, "key_value", None) is not None:
            block.key_value.weight[torch.cat((columns, columns + matrix.shape[1]))] = 0
        everything = torch.arange(matrix.shape[1])
        if block.inner_norm is not None:
            block.inner_norm = Deaf(block.inner_norm, everything[~torch.isin(everything, columns)])


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        *((name, {}) for name in PRESETS),
        *((name, {"pattern": pattern}) for name in MIXED for pattern in MIXED[name]),
        *(("llama-pocket", {"n_kv_head": told}) for told in (4, 2)),
    ],
)
def test_fewer_units_are_units_switched_off(name: str, changes: dict[str, object]) -> None:
    model = alive(name, **changes)
    cuttable = {path: block for path, block in places(model) if units(block)}
    assert cuttable
    kept: dict[str, Tensor | None] = {}
    for number, (path, block) in enumerate(cuttable.items()):
        count = units(block)
        order = torch.randperm(count, generator=torch.Generator().manual_seed(number))
        half = max(1, count // 2)
        kept[path] = order[:half].sort().values
    tokens = tokens_for(model)
    small = shrunk(model, kept)
    for path, stays in kept.items():
        assert stays is not None
        everything = torch.arange(units(cuttable[path]))
        gone = everything[~torch.isin(everything, stays)]
        if len(gone):
            silenced(model, path, gone)
    wanted, found = model(tokens), small(tokens)
    torch.testing.assert_close(found.logits, wanted.logits, atol=2e-4, rtol=1e-4)
    assert count_parameters(small) == cost(small.config).parameters
    assert count_parameters(small) < count_parameters(model)


@pytest.mark.parametrize("name", ["pocket", "gpt2-pocket", "srupp-pocket"])
def test_a_block_that_goes_is_a_shorter_pattern(name: str) -> None:
    model = alive(name)
    gone = [path for path, _ in places(model)][1]
    small = shrunk(model, {gone: None})
    assert len(small.config.pattern) == len(model.config.pattern) - 1
    number = int(gone.rpartition(".")[2])
    del model.blocks[number]
    model.config = small.config
    tokens = tokens_for(small)
    torch.testing.assert_close(small(tokens).logits, model(tokens).logits)


@pytest.mark.parametrize("kind", ["transformer", "srupp", "lite"])
def test_a_translators_both_sides_can_shrink(kind: str) -> None:
    model = alive(f"{kind}-pocket-translation")
    paths = [path for path, block in places(model) if units(block)]
    assert any(path.startswith("encoder.") for path in paths)
    kept = {path: torch.arange(units(model.get_submodule(path)) // 2) for path in paths}
    small = shrunk(model, kept)
    assert count_parameters(small) == cost(small.config).parameters
    for path in paths:
        block = model.get_submodule(path)
        silenced(model, path, torch.arange(units(block) // 2, units(block)))
    source, target = tokens_for(model), tokens_for(model)
    torch.testing.assert_close(
        small(target, source=source).logits,
        model(target, source=source).logits,
        atol=2e-4,
        rtol=1e-4,
    )


def test_no_stack_of_a_translator_loses_all_its_blocks() -> None:
    model = alive("transformer-pocket-translation", pattern="sfs | scf")
    kinds = {type(block).__name__ for _, block in places(model)}
    known = Prices(fixed=dict.fromkeys(kinds, 1.0), unit=dict.fromkeys(kinds, 0.0))
    losses = {path: 0.1 if path.startswith("encoder") else 0.2 for path, _ in places(model)}
    small = shrunk(model, choose(model, {}, losses, known, save=100))
    assert [len(p) for p in (small.config.pattern.encoder, small.config.pattern)] == [2, 2]


def test_shared_biases_become_every_blocks_own() -> None:
    model = alive("pocket")
    assert model.config.shared_biases
    small = shrunk(model, {"blocks.0": torch.tensor([1, 3])})
    assert small.config.position_bias == "per-layer"
    assert "content_bias" not in dict(small.named_parameters())
    assert shrunk(model, {"blocks.1": torch.arange(8)}).config.shared_biases


def test_importance_is_what_the_loss_changes_by() -> None:
    """Against the loss with a unit's columns made a little smaller, one by one."""
    model = alive("gpt2-pocket", pattern="sf", d_inner=12).double()
    tokens = tokens_for(model)

    def loss() -> Tensor:
        found = model(tokens, targets=tokens).loss
        assert found is not None
        return found

    found = importance(model, [loss()])
    for path, scores in found.items():
        block = model.get_submodule(path)
        size = block.out.in_features // units(block)
        for unit in range(units(block)):
            columns = wide(torch.tensor([unit]), size)
            with torch.no_grad():
                before, kept = float(loss()), block.out.weight[:, columns].clone()
                block.out.weight[:, columns] *= 1 - 1e-5
                after = float(loss())
                block.out.weight[:, columns] = kept
            assert abs(after - before) / 1e-5 == pytest.approx(
                float(scores[unit]), rel=1e-2, abs=1e-5
            )


def test_magnitude_is_the_size_of_what_is_written() -> None:
    model = alive("gpt2-pocket", pattern="f")
    sizes = magnitude(model)["blocks.0"]
    torch.testing.assert_close(sizes, model.blocks[0].out.weight.norm(dim=0))


def test_what_cannot_be_done_is_refused() -> None:
    model = alive("gpt2-pocket")
    with pytest.raises(ConfigError, match="cannot be shrunk"):
        shrunk(model, {"blocks.99": None})
    with pytest.raises(ConfigError, match="nothing of"):
        shrunk(model, {"blocks.1": torch.tensor([], dtype=torch.long)})
    with pytest.raises(ConfigError, match="shrink first"):
        shrunk(coded(model, 8), {})
    shared = pf.build(pf.preset("albert-pocket"))
    assert not list(places(shared))
