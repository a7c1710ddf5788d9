"""Is a narrower stream the same as the whole one with the other channels silent?"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import parformer as pf
from parformer.blocks.linear import Linear
from parformer.blocks.places import sinusoids
from parformer.blocks.sru import Recurrent
from parformer.compress.choosing import Prices, choose, measured_worth, prices, size_price
from parformer.compress.coding import coded
from parformer.compress.narrowing import along, narrowed, obstacle, refitted
from parformer.compress.shrinking import STREAM, importance, shrunk
from parformer.costs import cost
from parformer.embedding import SingleTable
from parformer.errors import ConfigError
from parformer.model import Model, count_parameters
from parformer.weights import named_tensors
from tests.compress.test_shrinking import Deaf, alive, tokens_for


@torch.no_grad()
def silence(model: Model, stays_c: Tensor) -> None:
    """Nothing is written to the other channels, and norms do not count them."""
    width = model.config.d_model
    gone = torch.ones(width, dtype=torch.bool).index_fill(0, stays_c, False).nonzero()[:, 0]
    for module in model.modules():
        if isinstance(module, SingleTable):
            table = module.projections[0].T if len(module.projections) else module.tables[0]
            table[:, gone] = 0
        for name in ("positions", "types"):
            if isinstance(found := getattr(module, name, None), nn.Parameter):
                found[:, gone] = 0
        if isinstance(module, Recurrent):
            module.out.weight[torch.cat([gone + n * width for n in range(3)])] = 0
    for path, module in list(model.named_modules()):
        writes = path.endswith(".out") and isinstance(module, Linear) and "head" not in path
        if writes and module.out_features == width:
            module.weight[gone] = 0
            if module.bias is not None:
                module.bias[gone] = 0
        for name in ("norm", "final_norm"):
            child = getattr(module, name, None)
            if isinstance(child, nn.Module) and tuple(child.weight.shape) == (width,):
                setattr(module, name, Deaf(child, stays_c))


@pytest.mark.parametrize(
    "name", ["llama-pocket", "gpt2-pocket", "srupp-pocket", "pocket", "pocket-post"]
)
def test_fewer_channels_are_channels_switched_off(name: str) -> None:
    model = alive(name)
    if name.startswith("pocket"):
        with torch.no_grad():  # waves of distances are fitted, not cut: see below
            for path, weight in model.named_parameters():
                if path.endswith("distance.weight"):
                    weight.zero_()
    width = model.config.d_model
    order = torch.randperm(width, generator=torch.Generator().manual_seed(1))
    stays_c = order[: width // 4 * 3].sort().values
    small = narrowed(model, stays_c)
    assert small.config.d_model == len(stays_c)
    assert count_parameters(small) == cost(small.config).parameters < count_parameters(model)
    silence(model, stays_c)
    tokens = tokens_for(model)
    torch.testing.assert_close(small(tokens).logits, model(tokens).logits, atol=3e-4, rtol=1e-4)


@pytest.mark.parametrize("trigrams", ["none", "tokens"])
def test_a_narrow_encoder_reads_all_its_parts(trigrams: str) -> None:
    model = alive("bert-pocket", pattern="sf", trigrams=trigrams)
    stays_c = torch.arange(0, 128, 2)
    small = narrowed(model, stays_c)
    silence(model, stays_c)
    head = model.head
    heard = head.norm.norm if isinstance(head.norm, Deaf) else head.norm
    with torch.no_grad():  # what the head makes of the stream has the table's columns
        head.norm = Deaf(heard, stays_c) if trigrams == "none" else heard
    tokens = tokens_for(model)
    torch.testing.assert_close(small(tokens).logits, model(tokens).logits, atol=3e-4, rtol=1e-4)


def test_both_sides_of_a_translator_become_narrower() -> None:
    model = alive("srupp-pocket-translation")
    stays_c = torch.arange(0, model.config.d_model, 2)
    small = narrowed(model, stays_c)
    silence(model, stays_c)
    source, target = tokens_for(model), tokens_for(model).flip(1)
    torch.testing.assert_close(
        small(target, source=source).logits,
        model(target, source=source).logits,
        atol=3e-4,
        rtol=1e-4,
    )


def test_heads_keep_their_width_whatever_the_stream_has() -> None:
    model = alive("gpt2-pocket", pattern="s[heads=2]fsf")
    small = narrowed(model, torch.arange(80))
    assert small.config.d_head == 32
    assert str(small.config.pattern) == "s[head=64,heads=2]fsf"
    both = shrunk(model, {STREAM: torch.arange(96), "blocks.1": torch.arange(64), "blocks.3": None})
    assert (both.config.d_model, str(both.config.pattern)) == (96, "s[head=64,heads=2]f[inner=64]s")
    assert small(tokens_for(small)).logits.isfinite().all()


def test_distances_say_nearly_what_they_said() -> None:
    model = alive("pocket", pattern="s")
    weight = model.blocks[0].distance.weight.detach()
    fitted = refitted(weight, model.config, 96)
    reach = model.config.memory + model.config.step_len
    wanted = sinusoids(reach, 128, model.config.clamp_len) @ weight.T
    found = sinusoids(reach, 96, model.config.clamp_len) @ fitted.T
    plain = sinusoids(reach, 96, model.config.clamp_len) @ weight[:, :96].T
    near = slice(reach - 32, None)  # what counts most: the last places
    assert (found - wanted)[near].norm() < 0.2 * wanted[near].norm() < (plain - wanted)[near].norm()


def test_a_channels_worth_is_what_the_loss_changes_by() -> None:
    """Against the loss with everything of a channel made a little smaller."""
    model = alive(
        "gpt2-pocket", pattern="sf", d_inner=12, max_len=32, tgt_len=32, n_head=2, d_head=9
    )
    model = model.double()
    tokens, axes = tokens_for(model), along(model)
    assert axes is not None

    def loss() -> Tensor:
        found = model(tokens, targets=tokens).loss
        assert found is not None
        return found

    scores = importance(model, [loss()], axes)[STREAM]
    for channel in (0, 17, 127):
        with torch.no_grad():
            before = float(loss())
            kept = {name: tensor.clone() for name, tensor in named_tensors(model).items()}
            for tensor in named_tensors(model).values():
                for axis, size in enumerate(tensor.shape):
                    if size == 128:
                        tensor.select(axis, channel).mul_(1 - 1e-6)
            after = float(loss())
            for name, tensor in named_tensors(model).items():
                tensor.copy_(kept[name])
        assert abs(after - before) / 1e-6 == pytest.approx(
            float(scores[channel]), rel=1e-2, abs=1e-6
        )


def test_what_is_measured_decides_how_many_channels_go() -> None:
    scores = torch.rand(128, generator=torch.Generator().manual_seed(0))
    losses = {112: 0.0, 96: 0.5, 64: 0.25}
    asked = []

    def grows(stays_c: Tensor) -> float:
        asked.append(stays_c)
        return losses[len(stays_c)]

    worth = measured_worth(scores, grows)
    assert [len(one) for one in asked] == [112, 96, 64]
    gone = torch.ones(128, dtype=torch.bool).index_fill(0, asked[0], False)
    assert scores[gone].max() <= scores[~gone].min()
    assert float(worth[gone].sum()) == pytest.approx(0, abs=1e-6)
    assert int(worth.isinf().sum()) == 64
    model = alive("gpt2-pocket", pattern="sf")
    known = Prices(
        fixed={"SelfAttention": 0, "FeedForward": 0},
        unit={"SelfAttention": 0, "FeedForward": 0, STREAM: 1.0},
    )
    kept = choose(model, {STREAM: worth}, {}, known, save=16)
    assert torch.equal(kept[STREAM], asked[0])
    most = choose(model, {STREAM: worth}, {}, known, save=1000)
    assert torch.equal(most[STREAM], asked[2])  # nobody measured what less would lose


def test_a_channels_price_is_a_share_of_the_bytes() -> None:
    model = alive("gpt2-pocket", pattern="sf")
    known = prices(model, size_price, stream=True)
    without = size_price(narrowed(model, torch.arange(64)))
    assert known.unit[STREAM] == pytest.approx((size_price(model) - without) / 64)


def test_streams_that_stay_say_why() -> None:
    for name, why in [("lite-pocket", "sinusoidal"), ("albert-pocket", "cuts the stream")]:
        model = pf.build(pf.preset(name))
        assert why in obstacle(model)
        with pytest.raises(ConfigError, match="stays"):
            narrowed(model, torch.arange(32))
    model = alive("gpt2-pocket", pattern="sf")
    with pytest.raises(ConfigError, match="shrink first"):
        narrowed(coded(model, 8), torch.arange(32))
    with pytest.raises(ConfigError, match="have to stay"):
        narrowed(model, torch.tensor([], dtype=torch.long))
