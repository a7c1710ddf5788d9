"""What must every registered block keep to, in every family?"""

# b batch, t time, d width

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close

from parformer.blocks import BLOCKS, Shape
from parformer.blocks.sru import Recurrent
from parformer.config import FAMILIES
from parformer.errors import ConfigError
from parformer.model import Model, build
from parformer.pattern import ALPHABET, BlockSpec
from tests.conftest import (
    DIFFERENT,
    SOURCE,
    CountFlops,
    noise,
    run_block,
    run_pieces,
    small_config,
    small_model,
)

BATCH, TIME, MEMORY = 2, 5, 7
LETTERS = sorted(BLOCKS)
CAUSAL = [family for family in DIFFERENT if FAMILIES[family]["causal"]]

PAIRS = [
    (letter, family)
    for letter in LETTERS
    for family in DIFFERENT
    if family in CAUSAL or (letter != "c" and not issubclass(BLOCKS[letter], Recurrent))
]

any_letter = pytest.mark.parametrize("letter", LETTERS)
any_pair = pytest.mark.parametrize(("letter", "family"), PAIRS)
any_family = pytest.mark.parametrize("family", DIFFERENT)
causal_family = pytest.mark.parametrize("family", CAUSAL)
any_norm = pytest.mark.parametrize("norm", ["pre", "post"])
any_mode = pytest.mark.parametrize("mode", ["training", "inference"])
lengths = st.lists(st.integers(1, 6), min_size=1, max_size=5)


@contextmanager
def ready(model: Model, mode: str) -> Iterator[None]:
    """A model that trains, or one that only answers."""
    with torch.set_grad_enabled(mode == "training"):
        model.train(mode == "training")
        try:
            yield
        finally:
            model.eval()


def shape_of(letter: str, past: int, memory: int | None = None) -> Shape:
    """A step after so many tokens; cross-attention looks at a source as well."""
    source = SOURCE if letter == "c" else 0
    return Shape(BATCH, TIME, past, past if memory is None else memory, source)


def stream(time: int, *, batch: int = BATCH, dtype: torch.dtype = torch.float64) -> Tensor:
    return noise(batch, time, 12, dtype=dtype)


def used_parameters(model: Model) -> dict[str, nn.Parameter]:
    """The block's own parameters, and the position biases it may share with others."""
    return {
        name: parameter
        for name, parameter in model.named_parameters()
        if name.startswith("blocks.") or name in ("content_bias", "position_bias")
    }


def test_every_registered_letter_is_in_the_alphabet() -> None:
    assert {letter: cls.letter for letter, cls in BLOCKS.items()} == {c: c for c in LETTERS}
    assert set(BLOCKS) <= set(ALPHABET)


@any_pair
@any_norm
def test_the_price_names_every_parameter_that_is_built(letter: str, family: str, norm: str) -> None:
    model = small_model(family, letter, norm=norm)
    price = BLOCKS[letter].cost(model.config, BlockSpec(letter), Shape(1, TIME, 0, 0))
    assert price.parameters == sum(p.numel() for p in model.blocks[0].parameters())


@any_pair
@any_norm
def test_training_multiplies_as_often_as_the_price_says(
    letter: str, family: str, norm: str
) -> None:
    model = small_model(family, letter, norm=norm)
    past = MEMORY if model.config.causal else 0
    price = BLOCKS[letter].cost(model.config, BlockSpec(letter), shape_of(letter, past))
    with ready(model, "training"):
        state = run_block(model, stream(past), memory=past)[1] if past else None
        with CountFlops() as counted:
            run_block(model, stream(TIME), state, memory=past, position=past)
    assert counted.flops == price.flops


@any_pair
@any_norm
def test_inference_multiplies_as_often_as_the_price_says(
    letter: str, family: str, norm: str
) -> None:
    model = small_model(family, letter, norm=norm)
    past = MEMORY if model.config.causal else 0
    price = BLOCKS[letter].cost(model.config, BlockSpec(letter), shape_of(letter, past))
    with ready(model, "inference"):
        # The steps before the one that counts fill the memory and project all distances.
        _, state = run_pieces(model, stream(2 * TIME + past), [TIME + past, TIME], memory=past)
        with CountFlops() as counted:
            run_block(model, stream(TIME), state, memory=past, position=2 * TIME + past)
    assert counted.flops == price.flops_cached


@any_pair
def test_a_full_memory_holds_as_many_bytes_as_the_price_says(letter: str, family: str) -> None:
    model = small_model(family, letter, torch.float32)
    past = MEMORY if model.config.causal else 0
    price = BLOCKS[letter].cost(model.config, BlockSpec(letter), shape_of(letter, past))
    x_btd = stream(3 * TIME, dtype=torch.float32)
    with ready(model, "inference"):
        _, state = run_pieces(model, x_btd, [TIME] * 3, memory=past)
    assert price.state_bytes == (0 if state is None else state.bytes)
    empty = BLOCKS[letter].cost(model.config, BlockSpec(letter), shape_of(letter, past, 0))
    grown = price.state_bytes - empty.state_bytes
    assert grown == price.state_bytes_per_token * BATCH * past


@pytest.mark.parametrize("letter", [c for c in LETTERS if issubclass(BLOCKS[c], Recurrent)])
def test_a_recurrence_refuses_to_see_both_sides(letter: str) -> None:
    config = small_config("bert", pattern=letter)
    for attempt in (
        lambda: build(config),
        lambda: BLOCKS[letter].cost(config, BlockSpec(letter), Shape(1, TIME, 0, 0)),
        lambda: BLOCKS[letter](config, BlockSpec(letter)),  # type: ignore[call-arg]
    ):
        with pytest.raises(ConfigError, match=r"'bert', causal=false.*; take a causal") as caught:
            attempt()
        assert "\n" not in str(caught.value)


@any_letter
@causal_family
@any_norm
@any_mode
def test_the_future_never_leaks(letter: str, family: str, norm: str, mode: str) -> None:
    model = small_model(family, letter, norm=norm)
    x_btd = stream(7)
    changed_btd = x_btd.clone()
    changed_btd[:, 4:] += noise(BATCH, 3, 12, seed=3)
    for lengths in ([7], [2, 5]):
        with ready(model, mode):
            before_btd, _ = run_pieces(model, x_btd, lengths, memory=MEMORY)
            after_btd, _ = run_pieces(model, changed_btd, lengths, memory=MEMORY)
        assert_close(before_btd[:, :4], after_btd[:, :4])
        assert not torch.allclose(before_btd[:, 4:], after_btd[:, 4:])


@any_letter
@causal_family
@any_norm
@any_mode
@given(lengths=lengths)
@settings(max_examples=8)
def test_a_text_in_pieces_gives_what_it_gives_in_one(
    letter: str, family: str, norm: str, mode: str, lengths: list[int]
) -> None:
    model = small_model(family, letter, norm=norm)
    x_btd = stream(sum(lengths))
    with ready(model, mode):
        whole_btd, _ = run_block(model, x_btd, memory=30)
        pieces_btd, _ = run_pieces(model, x_btd, lengths, memory=30)
    assert_close(pieces_btd, whole_btd)


@any_letter
@any_norm
@any_mode
@given(lengths=lengths, window=st.integers(1, 9))
@settings(max_examples=12)
def test_with_same_length_a_memory_of_one_window_is_enough(
    letter: str, norm: str, mode: str, lengths: list[int], window: int
) -> None:
    model = small_model("transformer-xl", letter, norm=norm, mem_len=window, same_length=True)
    x_btd = stream(sum(lengths))
    with ready(model, mode):
        whole_btd, _ = run_block(model, x_btd, memory=window)
        pieces_btd, _ = run_pieces(model, x_btd, lengths, memory=window)
    assert_close(pieces_btd, whole_btd)


@any_letter
@causal_family
@any_norm
@given(lengths=lengths, memory=st.integers(0, 9))
@settings(max_examples=8)
def test_training_and_inference_memories_give_the_same_numbers(
    letter: str, family: str, norm: str, lengths: list[int], memory: int
) -> None:
    model = small_model(family, letter, norm=norm)
    x_btd = stream(sum(lengths))
    with ready(model, "training"):
        trained_btd, _ = run_pieces(model, x_btd, lengths, memory=memory)
    with ready(model, "inference"):
        answered_btd, _ = run_pieces(model, x_btd, lengths, memory=memory)
    assert_close(trained_btd, answered_btd)


@any_pair
@any_norm
def test_every_gradient_is_finite_and_none_is_lost(letter: str, family: str, norm: str) -> None:
    model = small_model(family, letter, norm=norm)
    past = MEMORY if model.config.causal else 0
    x_btd = stream(TIME).requires_grad_()
    with ready(model, "training"):
        state = run_block(model, stream(past), memory=past)[1] if past else None
        y_btd, _ = run_block(model, x_btd, state, memory=past, position=past)
        wanted = {"input": x_btd} | (used_parameters(model) if letter != "i" else {})
        loss = (y_btd * noise(*y_btd.shape, seed=1)).sum()
        gradients = torch.autograd.grad(loss, list(wanted.values()), allow_unused=True)
    shared = {"content_bias", "position_bias"} if letter != "s" else set()
    for name, gradient in zip(wanted, gradients, strict=True):
        if name in shared:
            continue
        assert gradient is not None, f"{name} has no gradient"
        assert gradient.isfinite().all(), f"{name} has a gradient that is not finite"
        assert gradient.any(), f"{name} has a gradient of nought"


@any_letter
@causal_family
@any_norm
@any_mode
def test_the_last_piece_has_the_gradient_it_has_in_one_piece(
    letter: str, family: str, norm: str, mode: str
) -> None:
    model = small_model(family, letter, norm=norm)
    probe_btd = noise(BATCH, 3, 12, seed=1)
    gradients = []
    for lengths in ([TIME + 3], [2, TIME - 2, 3]):
        x_btd = stream(TIME + 3).requires_grad_()
        model.train(mode == "training")
        y_btd, _ = run_pieces(model, x_btd, lengths, memory=MEMORY)
        model.eval()
        (y_btd[:, TIME:] * probe_btd).sum().backward(inputs=[x_btd])
        gradients.append(x_btd.grad[:, TIME:])
    assert_close(*gradients)


@any_letter
@causal_family
@any_mode
def test_what_is_remembered_carries_no_gradient(letter: str, family: str, mode: str) -> None:
    model = small_model(family, letter)
    model.train(mode == "training")
    _, state = run_block(model, stream(TIME).requires_grad_(), memory=MEMORY)
    model.eval()
    assert state is None or not any(tensor.requires_grad for tensor in state.tensors().values())


@any_pair
@any_mode
def test_rows_of_a_batch_do_not_touch_each_other(letter: str, family: str, mode: str) -> None:
    model = small_model(family, letter)
    memory = MEMORY if model.config.causal else 0
    lengths = [4, 3] if model.config.causal else [7]
    x_btd = stream(7, batch=3)
    changed_btd = x_btd.clone()
    changed_btd[1] += noise(7, 12, seed=3)
    with ready(model, mode):
        before_btd, _ = run_pieces(model, x_btd, lengths, memory=memory)
        after_btd, _ = run_pieces(model, changed_btd, lengths, memory=memory)
        alone_btd, _ = run_pieces(model, x_btd[2:], lengths, memory=memory)
    assert_close(before_btd[[0, 2]], after_btd[[0, 2]])
    assert_close(before_btd[2:], alone_btd)
    assert not torch.allclose(before_btd[1], after_btd[1])


@any_pair
@any_norm
@any_mode
def test_bf16_stays_bf16_and_near_the_truth(letter: str, family: str, norm: str, mode: str) -> None:
    answers = {}
    for dtype in (torch.bfloat16, torch.float64):
        model = small_model(family, letter, dtype, norm=norm)
        causal = model.config.causal
        x_btd = stream(7, dtype=torch.bfloat16).to(dtype)
        with ready(model, mode):
            answers[dtype], state = run_pieces(
                model, x_btd, [4, 3] if causal else [7], memory=MEMORY if causal else 0
            )
        assert answers[dtype].dtype == dtype
        # a cell gathers many small steps, which bf16 would round away
        kinds = {torch.float32, dtype} if issubclass(BLOCKS[letter], Recurrent) else {dtype}
        kinds = {torch.int64} if letter == "n" else kinds
        assert state is None or {tensor.dtype for tensor in state.tensors().values()} <= kinds
    rough_btd = answers[torch.bfloat16].double()
    assert_close(rough_btd, answers[torch.float64], atol=0.1, rtol=0.1)


@any_family
@any_norm
@any_mode
def test_identity_returns_its_input_itself(family: str, norm: str, mode: str) -> None:
    model = small_model(family, "i", norm=norm)
    x_btd = stream(TIME)
    with ready(model, mode):
        y_btd, state = run_block(model, x_btd, memory=MEMORY)
    assert y_btd is x_btd
    assert state is None
