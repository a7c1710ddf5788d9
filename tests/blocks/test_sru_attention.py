"""What SRU++'s attention sees: the past, without positions, as far as its memory reaches."""

# b batch, t time, d width

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from parformer.blocks.sru_attention import AttentiveKeys, AttentiveMemory
from parformer.errors import ConfigError, InputError
from parformer.kernels import extension, native
from parformer.model import build
from tests.blocks.test_sru import (
    CAUSAL,
    WIDTH,
    any_attention,
    any_mode,
    cell_of,
    twin,
    weights,
)
from tests.conftest import lively, noise, run_block, run_pieces, small_config, small_model

lengths = st.lists(st.integers(1, 5), min_size=1, max_size=4)


@any_attention
@any_mode
@given(lengths=lengths, window=st.integers(1, 6))
@settings(max_examples=10)
def test_with_same_length_every_token_sees_one_window(
    spec: str, mode: str, lengths: list[int], window: int
) -> None:
    model = small_model("sru", spec, mem_len=window, same_length=True)
    x_btd = noise(1, sum(lengths), WIDTH)
    model.train(mode == "training")
    with torch.no_grad():
        found_btd, _ = run_pieces(model, x_btd, lengths, memory=window)
        cell_bd, wanted = None, []
        for t in range(x_btd.shape[1]):
            past_btd = x_btd[:, max(0, t + 1 - window) : t]
            y_btd, cell_bd = twin(spec, weights(model), x_btd[:, t : t + 1], past_btd, cell_bd)
            wanted.append(y_btd)
    model.eval()
    assert_close(found_btd, torch.cat(wanted, dim=1))


@any_attention
@any_mode
def test_a_short_memory_forgets_the_oldest_keys_but_no_cell(spec: str, mode: str) -> None:
    model, x_btd = small_model("sru", spec), noise(2, 9, WIDTH)
    model.train(mode == "training")
    with torch.no_grad():
        pieces_btd, _ = run_pieces(model, x_btd, [5, 4], memory=2)
        _, first = run_block(model, x_btd[:, :5], memory=2)
        wanted_btd, _ = twin(spec, weights(model), x_btd[:, 5:], x_btd[:, 3:5], cell_of(first))
    model.eval()
    assert_close(pieces_btd[:, 5:], wanted_btd)


@any_attention
@pytest.mark.parametrize("family", CAUSAL)
def test_a_training_memory_serves_inference(spec: str, family: str) -> None:
    model, x_btd = small_model(family, spec), noise(2, 8, WIDTH)
    with torch.no_grad():
        wanted_btd, wanted = run_pieces(model, x_btd, [5, 3], memory=4)
        model.train()
        _, trained = run_block(model, x_btd[:, :5], memory=4)
        model.eval()
        assert isinstance(trained, AttentiveMemory)
        assert trained.length == 4
        y_btd, after = run_block(model, x_btd[:, 5:], trained, memory=4, position=5)
    assert isinstance(after, AttentiveKeys)
    assert isinstance(wanted, AttentiveKeys)
    assert (after.batch, after.length) == (2, 4)
    assert_close(y_btd, wanted_btd[:, 5:])
    assert_close(after.tensors(), wanted.tensors())


@any_attention
def test_the_past_is_read_with_todays_weights_while_training(spec: str) -> None:
    """As it was before any weight: what is remembered are the inputs themselves."""
    config = small_config("sru", pattern=spec)
    old, new = (lively(build(config, dtype=torch.float64)).train() for _ in "ab")
    with torch.no_grad():
        for parameter in new.parameters():
            parameter *= 1.5
    x_btd = noise(2, 6, WIDTH)
    _, state = run_block(old, x_btd[:, :4], memory=9)
    assert isinstance(state, AttentiveMemory)
    assert state.inputs_bmd is not None
    assert torch.equal(state.inputs_bmd, x_btd[:, :4])
    y_btd, _ = run_block(new, x_btd[:, 4:], state, memory=9, position=4)
    wanted_btd, _ = twin(spec, weights(new), x_btd[:, 4:], x_btd[:, :4], state.cell_bd)
    assert_close(y_btd, wanted_btd)


def test_training_refuses_keys_that_older_weights_made() -> None:
    model = build(small_config("sru", pattern="ra", mem_len=4))
    tokens = torch.zeros(1, 3, dtype=torch.int64)
    with torch.no_grad():
        state = model(tokens).state
    with pytest.raises(InputError, match="made for inference"):
        model.train()(tokens, state)


def test_two_continuations_of_one_text_answer_independently() -> None:
    model = small_model("sru", "a")
    past, one, two = (noise(2, n, WIDTH, seed=n) for n in (4, 3, 5))
    with torch.no_grad():
        _, state = run_block(model, past, memory=99)
        answers = {}
        for text in (one, two):
            answers[text], _ = run_block(model, text, state, memory=99, position=4)
        for text, answer in answers.items():
            whole, _ = run_block(model, torch.cat((past, text), dim=1), memory=99)
            assert_close(answer, whole[:, 4:])


@any_attention
def test_there_are_no_positions_in_attention_itself(spec: str) -> None:
    """The past in another order is the same to a token that knows its cell."""
    model, x_btd = small_model("llama", spec), noise(1, 1, WIDTH)
    past_bmd, cell_bd = noise(1, 6, WIDTH, seed=1), noise(1, WIDTH, seed=2)
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    for training in (True, False):
        model.train(training)
        one, other = (
            run_block(model, x_btd, AttentiveMemory(cell_bd, p), memory=9, position=6)[0]
            for p in (past_bmd, past_bmd[:, order])
        )
        model.eval()
        assert_close(one, other)


def test_attention_sets_in_as_alpha_leaves_zero() -> None:
    """With alpha at zero it is the recurrence `r` of the same weights, whatever it looks at."""
    attentive = build(small_config("sru", pattern="a"), dtype=torch.float64)
    plain = build(small_config("sru", pattern="r"), dtype=torch.float64)
    own = weights(attentive)
    with torch.no_grad():
        for name, parameter in weights(plain).items():
            parameter.copy_(own[name])
        x_btd = noise(2, 7, WIDTH)
        outputs = [run_pieces(m, x_btd, [3, 4], memory=9)[0] for m in (attentive, plain)]
        assert_close(*outputs)
        own["alpha"].fill_(0.5)
        assert not torch.allclose(run_block(attentive, x_btd, memory=9)[0], outputs[1])


@pytest.mark.parametrize("memory", [0, 9])
def test_attention_drops_weights_while_training_only(memory: int) -> None:
    config = small_config("sru", pattern="a[width=6]", dropatt=0.5)
    model = lively(build(config, dtype=torch.float64)).train()
    x_btd = noise(2, 7, WIDTH)
    torch.manual_seed(0)
    one, other = (run_block(model, x_btd, memory=memory)[0] for _ in "ab")
    assert not torch.allclose(one, other)
    model.eval()
    with torch.no_grad():
        calm_btd, _ = run_block(model, x_btd, memory=memory)
    assert_close(calm_btd, twin("a[width=6]", weights(model), x_btd)[0].detach())


def test_a_memory_of_zeros_can_be_seen() -> None:
    model = small_model("sru", "ra")
    state = model.initial_state(2, 3, zeros=True)
    assert state.blocks[0] is None
    remembered = state.blocks[1]
    assert isinstance(remembered, AttentiveMemory)
    assert remembered.length == 3
    assert not any(tensor.any() for tensor in remembered.tensors().values())
    tokens = torch.zeros(2, 4, dtype=torch.int64)
    with torch.no_grad():
        assert not torch.allclose(model(tokens, state).hidden, model(tokens).hidden)


def test_same_length_without_positions_is_not_for_self_attention() -> None:
    with pytest.raises(ConfigError, match="same_length without positions is for a blocks"):
        small_config("sru", pattern="as", mem_len=4, same_length=True)
    with pytest.raises(ConfigError, match="same_length needs"):
        small_config("sru", pattern="a", same_length=True)
    with pytest.raises(ConfigError, match="same_length needs"):
        small_config("llama", pattern="a", mem_len=4, same_length=True)


@pytest.fixture
def compiled() -> Iterator[None]:
    assert native.enable()
    yield
    native.enable(False)


needs_compiler = pytest.mark.skipif(
    not extension.find_compilers() or native.find_gemm() is None, reason="needs a C++ compiler"
)


@needs_compiler
@pytest.mark.parametrize("memory", [0, 6])
@any_attention
def test_the_compiled_attention_gives_the_same(
    spec: str, memory: int, request: pytest.FixtureRequest
) -> None:
    changes = {"mem_len": 4, "same_length": True} if spec == "a" else {}
    model = small_model("sru", spec, torch.float32, **changes).train()
    found = []
    for way in ("plain", "native"):
        if way == "native":
            request.getfixturevalue("compiled")
        x_btd = noise(2, 9, WIDTH, dtype=torch.float32).requires_grad_()
        y_btd, _ = run_pieces(model, x_btd, [4, 5], memory=memory)
        probe = noise(*y_btd.shape, dtype=torch.float32, seed=1)
        wanted = [x_btd, *model.blocks[0].parameters()]
        found.append((y_btd.detach(), *torch.autograd.grad((y_btd * probe).sum(), wanted)))
    model.eval()
    assert_close(*found, atol=1e-4, rtol=1e-4)


@needs_compiler
@pytest.mark.usefixtures("compiled")
def test_attention_that_drops_goes_the_plain_way() -> None:
    """The compiled one does not know dropout."""
    model = lively(build(small_config("sru", pattern="a[width=6]", dropatt=0.5))).train()
    x_btd = noise(2, 7, WIDTH, dtype=torch.float32)
    one, other = (run_block(model, x_btd, memory=9)[0] for _ in "ab")
    assert not torch.allclose(one, other)
