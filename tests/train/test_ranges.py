"""Are ranges of few bits learned as they should be, and what does a model keep of them?"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import parformer as pf
from parformer.blocks.linear import Linear
from parformer.compress.coding import coded
from parformer.errors import ConfigError
from parformer.recipe import Recipe, read_recipe
from parformer.shaping import CompressConfig
from parformer.train.job import train_model
from parformer.train.ranges import Ranges, few, first_shares
from parformer.train.shape import Shaping


def small(**changes: object) -> Recipe:
    named = {name.replace("__", "."): value for name, value in changes.items()}
    shape = {"model.d_model": 64, "model.d_inner": 128, "model.pattern": "sf"}
    short = {"train.batch": 2, "train.tgt_len": 32, "train.steps": 8, "train.warmup": 1}
    looks = {"train.evaluate_tokens": 1024, "train.final_tokens": 1024}
    same = {"train.compile": "off", "train.precision": "fp32", "data.corpus": "python-docs"}
    return read_recipe("llama-pocket", {**shape, **short, **looks, **same, **named})


def ranged(bits: int, inputs: int = 64) -> tuple[Linear, Ranges]:
    generator = torch.Generator().manual_seed(bits)
    linear = Linear(inputs, 3, bias=False).double()
    with torch.no_grad():
        linear.weight.copy_(torch.randn(3, inputs, generator=generator, dtype=torch.float64))
        linear.weight[0, 0] = 9.0  # far from all others
    return linear, Ranges({linear: linear.weight}, bits, rate=0.01)


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("inputs", [64, 40])
def test_values_and_gradients_are_those_of_a_twin(bits: int, inputs: int) -> None:
    """Number by number: cut and rounded; what is cut moves its range, all else its rounding."""
    linear, ranges = ranged(bits, inputs)
    slope = torch.randn(3, inputs, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    with torch.no_grad():
        ranges.shares[0].fill_(0.6)
    seen = ranges.seen(0, linear.weight)
    (seen * slope).sum().backward()
    width, weight = (32 if bits <= 4 else inputs), linear.weight.detach()
    wanted_shares = torch.zeros_like(ranges.shares[0]).double()
    for row in range(3):
        for column in range(inputs):
            group = column // width
            whole = weight[row, group * width : (group + 1) * width].abs().max()
            reach = 0.6 * whole
            number, own = weight[row, column], seen[row, column].detach()
            inside = bool(number.abs() <= reach)
            assert linear.weight.grad is not None
            assert linear.weight.grad[row, column] == slope[row, column] * inside
            end = number.clamp(-reach, reach)
            # steps are 255ths of the row's: coarser than the group's own by that at most
            assert abs(own - end) <= reach / (2 ** (bits - 1) - 1) * 0.6
            # the rounding changes with the range, and what is cut with its end
            along = (own - end) / reach + (0.0 if inside else float(number.sign()))
            wanted_shares[row, group] += slope[row, column] * along * whole
    assert ranges.shares[0].grad is not None
    torch.testing.assert_close(ranges.shares[0].grad.double(), wanted_shares, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_shares_begin_with_the_least_error(bits: int) -> None:
    linear, ranges = ranged(bits)
    weight = linear.weight.detach()
    whole = (few(weight, bits).weight - weight).square().sum()
    learned = (ranges.seen(0, linear.weight).detach() - weight).square().sum()
    assert learned < whole
    assert first_shares(torch.ones(2, 32), 4).tolist() == [[1.0], [1.0]]


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_what_was_seen_is_what_codes_keep(bits: int) -> None:
    linear, ranges = ranged(bits)
    with torch.no_grad():
        ranges.shares[0].fill_(0.7)
    seen = ranges.seen(0, linear.weight).detach()
    ranges.finish()
    torch.testing.assert_close(few(linear.weight, bits).weight.double(), seen, rtol=0, atol=1e-6)
    assert float(linear.weight.detach().abs().max()) == pytest.approx(0.7 * 9.0)


def test_a_training_ends_with_codes_that_are_worth_the_same(tmp_path: Path) -> None:
    recipe = small(compress__bits=3, compress__ranges="learned", compress__range_rate=0.05)
    train_model(recipe, tmp_path / "run")
    model = pf.load(tmp_path / "run" / "model")
    shown, kept = pf.load(tmp_path / "run" / "model"), coded(model, 3, nearest=True)
    Shaping(shown, CompressConfig(bits=3), 8)  # as plain ranges show it
    tokens = torch.arange(24).view(1, 24)
    with torch.inference_mode():
        torch.testing.assert_close(
            kept(tokens).logits, shown.eval()(tokens).logits, atol=1e-4, rtol=0
        )
    plain = pf.load(tmp_path / "run" / "model")
    train_model(small(compress__bits=3), tmp_path / "whole")
    other = pf.load(tmp_path / "whole" / "model")
    assert not torch.equal(plain.blocks[0].qkv.weight, other.blocks[0].qkv.weight)


def test_a_stopped_training_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    recipe = small(compress__bits=4, compress__ranges="learned", compress__range_rate=0.05)
    train_model(recipe, tmp_path / "whole")
    train_model(recipe, tmp_path / "parts", until=5)
    train_model(recipe, tmp_path / "parts")
    whole, parts = (
        dict(pf.load(tmp_path / n / "model").named_parameters()) for n in ("whole", "parts")
    )
    assert all(torch.equal(tensor, parts[name]) for name, tensor in whole.items())


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"ranges": "learned"}, "needs compress.bits"),
        ({"ranges": "learned", "bits": 4, "range_rate": 0.0}, "above 0"),
        ({"ranges": "some", "bits": 4}, "whole"),
    ],
)
def test_bad_wishes_are_refused(fields: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        CompressConfig(**fields)  # type: ignore[arg-type]


def test_cut_weights_do_not_go_with_patience(tmp_path: Path) -> None:
    recipe = small(compress__bits=4, compress__ranges="learned", train__patience=3)
    with pytest.raises(ConfigError, match=r"train\.patience to 0"):
        train_model(recipe, tmp_path / "run")
