"""Does what attention remembers stay what it was?"""

# b batch, m memory, t time, d width, g key-value heads, k head width

from __future__ import annotations

from contextlib import AbstractContextManager

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from parformer.blocks.memory import InputMemory, KeyValueMemory, append
from parformer.model import build
from tests.conftest import lively, noise, run_block, run_pieces, small_config, small_model

CAUSAL = ["transformer-xl", "gpt2", "llama"]
PLENTY = 10_000
MODES = {
    "no gradients": torch.no_grad,
    "inference": torch.inference_mode,
    "gradients": torch.enable_grad,
}
exact = {"atol": 0.0, "rtol": 0.0}


def under(mode: str) -> AbstractContextManager[None]:
    return MODES[mode]()


def rows(time: int, seed: int = 0) -> Tensor:
    """New keys and values of two heads."""
    return noise(2, 4, time, 3, seed=seed)


@pytest.mark.parametrize("mode", MODES)
@given(
    lengths=st.lists(st.integers(1, 80), min_size=1, max_size=12),
    memory=st.integers(0, 200),
)
@settings(max_examples=30)
def test_rows_come_back_in_order_whatever_the_pieces(
    mode: str, lengths: list[int], memory: int
) -> None:
    """Across every capacity on the way, and never more of them than the memory may hold."""
    all_bgnk = rows(sum(lengths))
    state, end = None, 0
    with under(mode):
        for piece_bgtk in torch.split(all_bgnk, lengths, dim=2):
            first = max(0, end - memory)
            end += piece_bgtk.shape[2]
            seen_bgnk, state = append(state, piece_bgtk, memory, None)
            assert_close(seen_bgnk, all_bgnk[:, :, first:end], **exact)
            assert_close(state.kv_bgmk, all_bgnk[:, :, max(0, end - memory) : end], **exact)
            assert (state.batch, state.length) == (2, min(memory, end))
            assert state.bytes == 8 * 2 * 4 * 3 * min(memory, end)


@pytest.mark.parametrize("mode", MODES)
def test_older_states_keep_their_numbers(mode: str) -> None:
    """A newer state was appended behind them, often in the same place of the store."""
    states, wanted, state = [], [], None
    with under(mode):
        for step in range(30):
            new_bgtk = rows(1 + step % 7, seed=step)
            _, state = append(state, new_bgtk, 11, None)
            states.append(state)
            wanted.append(state.kv_bgmk.clone())
        for older, before_bgmk in zip(states, wanted, strict=True):
            assert_close(older.kv_bgmk, before_bgmk, **exact)


@pytest.mark.parametrize("mode", MODES)
@given(past=st.integers(1, 70), first=st.integers(1, 70), second=st.integers(1, 70))
@settings(max_examples=20)
def test_two_continuations_of_one_state_do_not_meet(
    mode: str, past: int, first: int, second: int
) -> None:
    past_bgmk, one_bgtk, two_bgtk = rows(past), rows(first, seed=1), rows(second, seed=2)
    with under(mode):
        _, state = append(None, past_bgmk, PLENTY, None)
        seen_one, after_one = append(state, one_bgtk, PLENTY, None)
        seen_two, after_two = append(state, two_bgtk, PLENTY, None)
        _, after_one = append(after_one, two_bgtk, PLENTY, None)
        _, after_two = append(after_two, one_bgtk, PLENTY, None)
        assert_close(seen_one, torch.cat((past_bgmk, one_bgtk), dim=2), **exact)
        assert_close(seen_two, torch.cat((past_bgmk, two_bgtk), dim=2), **exact)
        assert_close(after_one.kv_bgmk, torch.cat((past_bgmk, one_bgtk, two_bgtk), dim=2), **exact)
        assert_close(after_two.kv_bgmk, torch.cat((past_bgmk, two_bgtk, one_bgtk), dim=2), **exact)
        assert_close(state.kv_bgmk, past_bgmk, **exact)


def test_token_by_token_the_store_is_rarely_copied() -> None:
    """Appending one row is cheap: most steps write behind what is there."""
    state, stores = None, set()
    with torch.no_grad():
        for step in range(500):
            _, state = append(state, rows(1, seed=step), PLENTY, None)
            stores.add(state.kept.buffer.data_ptr())
    assert len(stores) <= 8


@pytest.mark.parametrize("mode", MODES)
def test_a_long_text_needs_no_more_room_than_its_memory(mode: str) -> None:
    state = None
    with under(mode):
        for step in range(400):
            _, state = append(state, rows(3, seed=step), 20, None)
            assert state.kept.buffer.shape[2] <= 20 + 3 + 64


@pytest.mark.parametrize("family", CAUSAL)
@given(modes=st.lists(st.sampled_from(sorted(MODES)), min_size=2, max_size=6))
@settings(max_examples=20)
def test_states_pass_between_modes(family: str, modes: list[str]) -> None:
    """Made without gradients, in inference mode or with gradients: each may go on with any."""
    model = small_model(family, "s")
    x_btd = noise(2, 3 * len(modes), 12)
    with torch.no_grad():
        whole_btd, _ = run_block(model, x_btd, memory=PLENTY)
    state = None
    for step, mode in enumerate(modes):
        piece_btd = x_btd[:, 3 * step : 3 * step + 3]
        with under(mode):
            y_btd, state = run_block(model, piece_btd, state, memory=PLENTY, position=3 * step)
            if mode == "gradients":
                torch.autograd.grad(y_btd.sum(), list(model.blocks[0].parameters()))
        assert_close(y_btd.detach().clone(), whole_btd[:, 3 * step : 3 * step + 3])


@pytest.mark.parametrize("family", CAUSAL)
def test_later_steps_leave_the_gradients_of_earlier_ones_alone(family: str) -> None:
    """Even where keys need no gradient themselves, but what meets them does."""
    model = lively(build(small_config(family, pattern="s"), dtype=torch.float64))
    for parameter in model.blocks[0].qkv.parameters():
        parameter.requires_grad_(False)
    trained = [p for p in model.blocks[0].parameters() if p.requires_grad]
    if model.content_bias is not None and model.position_bias is not None:
        trained += [model.content_bias, model.position_bias]
    state, losses, apart = None, [], []
    for step in range(3):
        y_btd, state = run_block(
            model, noise(1, 3, 12, seed=step), state, memory=9, position=3 * step
        )
        losses.append((y_btd * noise(1, 3, 12, seed=9)).sum())
        apart.append(torch.autograd.grad(losses[-1], trained, retain_graph=True))
    together = torch.autograd.grad(torch.stack(losses).sum(), trained)
    assert_close(together, tuple(sum(step) for step in zip(*apart, strict=True)))


@pytest.mark.parametrize("family", CAUSAL)
def test_two_continuations_of_one_text_answer_independently(family: str) -> None:
    model = small_model(family, "s")
    past, one, two = noise(2, 4, 12), noise(2, 3, 12, seed=1), noise(2, 5, 12, seed=2)
    with torch.no_grad():
        _, state = run_block(model, past, memory=PLENTY)
        first, after_first = run_block(model, one, state, memory=PLENTY, position=4)
        second, _ = run_block(model, two, state, memory=PLENTY, position=4)
        third, _ = run_block(model, two, after_first, memory=PLENTY, position=7)
        for text, answer in (([one], first), ([two], second), ([one, two], third)):
            whole, _ = run_block(model, torch.cat((past, *text), dim=1), memory=PLENTY)
            assert_close(answer, whole[:, -answer.shape[1] :])


@pytest.mark.parametrize("family", CAUSAL)
@given(lengths=st.lists(st.integers(1, 5), min_size=2, max_size=4), memory=st.integers(1, 12))
@settings(max_examples=15)
def test_a_training_memory_serves_inference(family: str, lengths: list[int], memory: int) -> None:
    """What was remembered while training is projected, and the text goes on as if it had been."""
    model = small_model(family, "s")
    x_btd, read = noise(2, sum(lengths), 12), sum(lengths[:-1])
    with torch.no_grad():
        wanted_btd, wanted = run_pieces(model, x_btd, lengths, memory=memory)
    model.train()
    _, trained = run_pieces(model, x_btd[:, :read], lengths[:-1], memory=memory)
    model.eval()
    assert isinstance(trained, InputMemory)
    with torch.no_grad():
        y_btd, after = run_block(model, x_btd[:, read:], trained, memory=memory, position=read)
    assert isinstance(after, KeyValueMemory)
    assert isinstance(wanted, KeyValueMemory)
    assert_close(y_btd, wanted_btd[:, read:])
    assert_close(after.kv_bgmk, wanted.kv_bgmk)


def test_a_training_memory_is_the_input_itself() -> None:
    """As it was before the norm: each step projects it with the weights of the moment."""
    model = small_model("gpt2", "s").train()
    x_btd = noise(2, 6, 12)
    _, state = run_pieces(model, x_btd, [2, 3, 1], memory=4)
    model.eval()
    assert isinstance(state, InputMemory)
    assert_close(state.inputs_bmd, x_btd[:, 2:], **exact)
    assert (state.batch, state.length, state.bytes) == (2, 4, 2 * 4 * 12 * 8)


@pytest.mark.parametrize("family", CAUSAL)
def test_a_memory_read_with_new_weights_gives_their_numbers(family: str) -> None:
    """Training projects the past with today's weights; inference keeps yesterday's projections."""
    old, new = (lively(build(small_config(family, pattern="s"), dtype=torch.float64)) for _ in "ab")
    with torch.no_grad():
        for parameter in new.parameters():
            parameter *= 1.5
    x_btd = noise(2, 6, 12)
    old.train()
    _, state = run_block(old, x_btd[:, :4], memory=9)
    old.eval()
    new.train()
    y_btd, _ = run_block(new, x_btd[:, 4:], state, memory=9, position=4)
    whole_btd, _ = run_block(new, x_btd, memory=9)
    new.eval()
    assert_close(y_btd, whole_btd[:, 4:])


def test_distances_are_projected_once_and_made_in_advance() -> None:
    model = small_model("transformer-xl", "s")
    projected = []
    handle = model.blocks[0].distance.register_forward_hook(
        lambda module, inputs, output: projected.append(output.shape[1])
    )
    with torch.no_grad():
        state = None
        for position in range(100):
            x_btd = noise(1, 1, 12, seed=position)
            _, state = run_block(model, x_btd, state, memory=40, position=position)
    handle.remove()
    assert len(projected) <= 3
