"""Is the short way through a module the same as the long one, and may a guest join the registry?"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize
from torch.testing import assert_close

from parformer.blocks import BLOCKS, Block, FeedForward, block, forget
from parformer.blocks.base import find_block
from parformer.blocks.linear import LayerNorm, Linear
from parformer.errors import PatternError
from parformer.model import Model, build
from parformer.pattern import ALPHABET, Pattern, describe
from tests.conftest import lively, noise, run_block, small_config

HOOKS: dict[str, Callable[[nn.Module, Callable[..., None]], object]] = {
    "forward": lambda module, hook: module.register_forward_hook(hook),
    "before forward": lambda module, hook: module.register_forward_pre_hook(hook),
    "backward": lambda module, hook: module.register_full_backward_hook(hook),
    "before backward": lambda module, hook: module.register_full_backward_pre_hook(hook),
}


def make(family: str = "gpt2") -> Model:
    return lively(build(small_config(family, pattern="f"), dtype=torch.float64))


def kinds(model: Model) -> dict[type[nn.Module], nn.Module]:
    """One module of each kind that takes the short way."""
    found = {
        kind: m
        for m in model.blocks[0].modules()
        for kind in (Block, Linear, LayerNorm)
        if isinstance(m, kind)
    }
    assert len(found) == 3
    return found


@pytest.mark.parametrize("hook", HOOKS)
def test_hooks_of_every_kind_are_called(hook: str) -> None:
    model = make()
    called: list[type[nn.Module]] = []
    for kind, module in kinds(model).items():
        HOOKS[hook](module, lambda *_, kind=kind: called.append(kind))
    y_btd, _ = run_block(model, noise(1, 2, 12).requires_grad_())
    y_btd.sum().backward()
    assert sorted(called, key=str) == sorted((Block, Linear, LayerNorm), key=str)


class Doubled(nn.Module):
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return 2 * weight


@pytest.mark.parametrize("name", ["weight", "bias"])
@pytest.mark.parametrize("kind", [Linear, LayerNorm])
def test_a_weight_that_is_computed_counts_as_one_that_is_kept(
    kind: type[nn.Module], name: str
) -> None:
    """As low-rank adapters, weight norm and pruning do it."""
    kept, computed = make(), make()
    with torch.no_grad():
        getattr(kinds(kept)[kind], name).mul_(2)
    parametrize.register_parametrization(kinds(computed)[kind], name, Doubled())
    x_btd = noise(1, 2, 12)
    assert_close(run_block(computed, x_btd)[0], run_block(kept, x_btd)[0])


# Guests


@pytest.fixture
def guest() -> Iterator[type[Block]]:
    @block("b", "guest")
    class Guest(FeedForward):
        pass

    yield Guest
    if "b" in BLOCKS:
        forget("b")


def test_a_block_may_bring_a_letter_of_its_own(guest: type[Block]) -> None:
    assert (BLOCKS["b"], guest.letter, ALPHABET["b"]) == (guest, "b", "guest")
    model = build(small_config("gpt2", pattern="s b[inner=8]"))
    assert isinstance(model.blocks[1], guest)
    assert describe(model.config.pattern).startswith("2 blocks: 1 self-attention (50%), 1 guest")


def test_a_guest_is_forgotten_and_may_come_again(guest: type[Block]) -> None:
    spec = Pattern.parse("b")[0]
    assert find_block(spec) is guest
    forget("b")
    with pytest.raises(PatternError, match="unknown block 'b' at column 1"):
        Pattern.parse("b")
    other = block("b", "another guest")(type("Other", (FeedForward,), {}))
    assert find_block(spec) is other


@pytest.mark.parametrize(
    ("letter", "words"),
    [
        ("s", r"'s' is taken \(self-attention\); take one of b d e g h j"),
        ("l", r"'l' is taken \(LSRA\); take one of"),
        ("x", "'x' is not for a block; take one of"),
        ("bc", "'bc' is not for a block; take one of"),
        ("B", "'B' is not for a block; take one of"),
        ("", "'' is not for a block; take one of"),
    ],
)
def test_a_guest_needs_a_free_letter(letter: str, words: str) -> None:
    with pytest.raises(PatternError, match=words):
        block(letter, "guest")(type("Guest", (FeedForward,), {}))
    assert BLOCKS["f"] is FeedForward
    assert "guest" not in ALPHABET.values()


@pytest.mark.parametrize("letter", ["s", "l", "b"])
def test_only_guests_are_forgotten(letter: str) -> None:
    with pytest.raises(PatternError, match=f"'{letter}' was not added; added are: none"):
        forget(letter)
    assert {"s", "f"} <= set(BLOCKS)
