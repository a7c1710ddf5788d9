"""Does a feed-forward block do what its definition says, number by number?"""

# b batch, t time, d width, n inner width

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from parformer.blocks.feed_forward import FeedForward
from parformer.model import Model, build
from tests.conftest import lively, noise, run_block, small_config

ACTIVATIONS = {
    "relu": lambda x: max(x, 0.0),
    "gelu": lambda x: x * (1 + math.erf(x / math.sqrt(2))) / 2,
    "gelu-tanh": lambda x: x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
    "silu": lambda x: x / (1 + math.exp(-x)),
}


def make(**changes: Any) -> Model:
    return lively(build(small_config(**{"pattern": "f"} | changes), dtype=torch.float64))


@torch.no_grad()
def naive_answer(block: FeedForward, x_d: Tensor, activation: str, gated: bool) -> Tensor:
    """What the block adds to one token, before any norm."""
    rows = [float(row_d @ x_d) for row_d in block.inner.weight]
    if block.inner.bias is not None:
        rows = [row + float(bias) for row, bias in zip(rows, block.inner.bias, strict=True)]
    act = ACTIVATIONS[activation]
    if gated:
        half = len(rows) // 2
        middle = [act(gate) * value for gate, value in zip(rows[:half], rows[half:], strict=True)]
    else:
        middle = [act(row) for row in rows]
    y_d = block.out.weight @ torch.tensor(middle, dtype=torch.float64)
    return y_d if block.out.bias is None else y_d + block.out.bias


@pytest.mark.parametrize("gated", [False, True], ids=["plain", "gated"])
@pytest.mark.parametrize("biased", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_each_token_goes_through_its_middle_alone(
    activation: str, biased: bool, gated: bool
) -> None:
    changes = {"activation": activation, "gated": gated, "feed_forward_bias": biased}
    model = make(family="gpt2", norm="post", **changes)
    block = model.blocks[0]
    assert isinstance(block, FeedForward)
    x_btd = noise(2, 3, 12)
    y_btd, state = run_block(model, x_btd)
    for b in range(2):
        for t in range(3):
            sum_d = x_btd[b, t] + naive_answer(block, x_btd[b, t], activation, gated)
            assert_close(y_btd[b, t], block.norm(sum_d))
    assert state is None


def test_a_pre_norm_changes_what_is_read_and_not_what_is_kept() -> None:
    model = make(family="gpt2", norm="pre")
    block = model.blocks[0]
    assert isinstance(block, FeedForward)
    x_btd = noise(1, 1, 12)
    y_btd, _ = run_block(model, x_btd)
    answer_d = naive_answer(block, block.norm(x_btd[0, 0]), "gelu-tanh", False)
    assert_close(y_btd[0, 0], x_btd[0, 0] + answer_d)


def test_the_middle_is_as_wide_as_the_pattern_says() -> None:
    block = make(family="llama", pattern="f[inner=7]").blocks[0]
    assert isinstance(block, FeedForward)
    assert (block.inner.weight.shape, block.out.weight.shape) == ((14, 12), (12, 7))


@pytest.mark.parametrize("inner_dropout", [True, False])
def test_the_middle_drops_in_training_alone_and_only_where_it_should(inner_dropout: bool) -> None:
    model = make(family="gpt2", dropout=0.5, inner_dropout=inner_dropout)
    sure = make(family="gpt2")
    x_btd = noise(1, 1, 12).expand(4000, 1, 12)
    with torch.no_grad():
        wanted_btd, _ = run_block(sure, x_btd[:1])
        quiet_btd, _ = run_block(model, x_btd[:1])
        torch.manual_seed(0)
        dropped_btd, _ = run_block(model.train(), x_btd)
    assert_close(quiet_btd, wanted_btd)
    answers_bd = (dropped_btd - x_btd)[:, 0]
    kept = answers_bd != 0
    assert 0.45 < kept.double().mean() < 0.55
    # without a dropped middle, what is kept is always the same, doubled
    same = torch.isclose(answers_bd, 2 * (wanted_btd - x_btd[:1])[0])
    assert (same | ~kept).all() != inner_dropout
    spread_d = answers_bd.std(0) / math.sqrt(4000)
    assert ((answers_bd.mean(0) - (wanted_btd - x_btd[:1])[0, 0]).abs() < 5 * spread_d).all()
