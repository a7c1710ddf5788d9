"""A stack by itself goes on from its state, and says what it cannot read."""

# b batch, t time, d width

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from parformer.blocks.stack import Stack, StackState
from parformer.errors import ConfigError, InputError
from tests.conftest import noise, small_config


def make(pattern: str = "rasf", family: str = "sru", **changes: Any) -> Stack:
    stack = Stack(small_config(family, pattern=pattern, **changes)).double().eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in stack.parameters():
            parameter.copy_(
                0.4 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            )
    return stack


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("family", ["sru", "llama"])
def test_pieces_give_what_the_whole_gives(training: bool, family: str) -> None:
    stack = make(family=family, mem_len=20).train(training)
    x_btd = noise(2, 9, 12)
    whole_btd, end = stack(x_btd)
    state, pieces = None, []
    for piece_btd in torch.split(x_btd, [1, 5, 3], dim=1):
        y_btd, state = stack(piece_btd, state)
        pieces.append(y_btd)
    assert_close(torch.cat(pieces, dim=1), whole_btd)
    assert state.position == end.position == 9


def test_the_memory_is_as_long_as_asked() -> None:
    stack, x_btd = make("a", mem_len=2), noise(1, 9, 12)
    lengths = [stack(x_btd, state)[1].blocks[0].length for state in (None, stack.initial_state(5))]
    assert lengths == [2, 5]
    assert_close(stack(x_btd, stack.initial_state(0))[0], stack(x_btd)[0])


def test_what_the_last_block_gives_is_left_whole() -> None:
    """As the package sru does it; whoever reads it may drop from it."""
    assert [block.dropout for block in make("rar", dropout=0.3).blocks] == [0.3, 0.3, 0.0]
    assert [block.dropout for block in make("rar", "llama", dropout=0.3).blocks] == [0.3] * 3


@pytest.mark.parametrize(
    ("x", "state", "problem"),
    [
        (noise(2, 12), None, r"reads \(batch, time, 12\), got \(2, 12\)"),
        (noise(2, 3, 11), None, r"reads \(batch, time, 12\), got \(2, 3, 11\)"),
        (noise(2, 0, 12), None, r"got \(2, 0, 12\)"),
        (noise(3, 1, 12), make()(noise(2, 1, 12))[1], "a batch of 2, the input to one of 3"),
        (noise(2, 1, 12), make("ra")(noise(2, 1, 12))[1], "a stack of 2 blocks, this one has 4"),
    ],
)
def test_what_does_not_fit_is_refused(x: Tensor, state: StackState | None, problem: str) -> None:
    with pytest.raises(InputError, match=problem) as caught:
        make()(x, state)
    assert "\n" not in str(caught.value)


def test_training_refuses_what_inference_remembers() -> None:
    stack, x_btd = make(mem_len=4), noise(2, 3, 12)
    _, state = stack(x_btd)
    with pytest.raises(InputError, match="made for inference"):
        stack.train()(x_btd, state)
    with pytest.raises(InputError, match="memory must not be negative, got -1"):
        stack.initial_state(-1)


@pytest.mark.parametrize("family", ["gpt2", "bert"])
def test_positions_of_an_embedding_are_refused(family: str) -> None:
    stack = Stack(small_config(family, pattern="s"))
    with pytest.raises(ConfigError, match=r"has no learned positions.*'rotary' or 'none'"):
        stack(torch.zeros(1, 2, 12))
