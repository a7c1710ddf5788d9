"""Can every block's training memory be saved, put back, and kept up without running it?"""

# b batch, t time, d width

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from parformer.blocks import BLOCKS
from parformer.blocks.base import Block, Context
from parformer.errors import FolderError
from parformer.model import Model
from tests.conftest import context_of, noise, small_model, tokens_of

FAMILIES = ("transformer-xl", "gpt2", "llama", "bert")
PAIRS = [
    (letter, family)
    for letter, kind in sorted(BLOCKS.items())
    for family in FAMILIES
    if family != "bert" or (letter != "c" and not kind.state_needs_run)  # it sees both sides
]
MEMORY = 7


def context_for(model: Model, x_btd: Tensor, memory: int, position: int = 0) -> Context:
    context = context_of(model, len(x_btd), memory, position)
    return replace(context, tokens=tokens_of(x_btd))


def first_block(letter: str, family: str) -> tuple[Model, Block]:
    changes: dict[str, Any] = {"n_head": 2} if family == "llama" and letter != "l" else {}
    model = small_model(family, letter, **changes)
    return model, cast(Block, model.blocks[0])


@pytest.fixture(autouse=True)
def training() -> Any:
    """Models are shared between tests; each goes back as it came."""
    touched: list[Model] = []
    yield touched
    for model in touched:
        model.eval()


@pytest.mark.parametrize(("letter", "family"), PAIRS)
def test_a_memory_is_taken_apart_and_put_together(
    letter: str, family: str, training: list[Model]
) -> None:
    model, block = first_block(letter, family)
    training.append(model.train())
    first_btd = noise(2, 5, 12)
    _, state = block(first_btd, None, context_for(model, first_btd, MEMORY))
    if block.training_state is None:
        assert state is None
        with pytest.raises(FolderError, match=f"remembers something for a block '{letter}'"):
            block.recall({"inputs_bmd": noise(2, 5, 12)})
    if state is None:
        return
    parts = state.tensors()
    again = block.recall({name: tensor.clone() for name, tensor in parts.items()})
    assert type(again) is type(state)
    assert (again.batch, again.length, again.bytes) == (state.batch, state.length, state.bytes)
    x_btd = noise(2, 3, 12, seed=1)
    context = context_for(model, x_btd, MEMORY, 5)
    assert torch.equal(block(x_btd, again, context)[0], block(x_btd, state, context)[0])
    assert not torch.equal(block(x_btd, again, context)[0], block(x_btd, None, context)[0])


@pytest.mark.parametrize(("letter", "family"), PAIRS)
@pytest.mark.parametrize("memory", [0, 3, MEMORY])
def test_what_need_not_run_remembers_the_same(
    letter: str, family: str, memory: int, training: list[Model]
) -> None:
    """A block that was not drawn in a search, among texts in which it was."""
    model, block = first_block(letter, family)
    training.append(model.train())
    if block.state_needs_run:
        assert block.training_state is not None  # else there were nothing to run for
        return
    ran = kept = None
    position = 0
    for seed, time in enumerate((2, 5, 9, 1)):
        x_btd = noise(2, time, 12, seed=seed).requires_grad_()
        context = context_for(model, x_btd, memory, position)
        _, ran = block(x_btd, ran, context)
        kept = block.remember(x_btd, kept, context)
        assert (ran is None) == (kept is None)
        if ran is not None and kept is not None:
            ours, theirs = kept.tensors(), ran.tensors()
            assert ours.keys() == theirs.keys()
            assert all(torch.equal(ours[name], tensor) for name, tensor in theirs.items())
            assert not any(tensor.requires_grad for tensor in ours.values())
        position += time
