"""Does one model keep its promises for every family, pattern and way of reading a text?"""

# b batch, t time, d width, v vocabulary

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import FrozenInstanceError
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

import parformer as pf
from parformer.config import ModelConfig
from parformer.embedding import IGNORE
from parformer.errors import ConfigError, InputError, ParformerError
from parformer.model import Model, State, build, load
from tests.conftest import lively, small_config

FAMILIES = ("transformer-xl", "gpt2", "bert", "llama")
CAUSAL = ("transformer-xl", "gpt2", "llama")
MODES = (torch.inference_mode, torch.no_grad, torch.enable_grad)
VOCAB = 23
LONGEST = 24

EMBEDDINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "untied": {"tie_weights": False},
    "with bias": {"output_bias": True},
    "adaptive": {"embedding": "adaptive", "cutoffs": (5, 9)},
    "adaptive narrow": {"embedding": "adaptive", "cutoffs": (5, 9), "d_embed": 7},
    "adaptive falling": {"embedding": "adaptive", "cutoffs": (5, 9), "div_val": 2},
    "adaptive untied": {
        "embedding": "adaptive",
        "cutoffs": (5, 9),
        "div_val": 2,
        "tie_weights": False,
        "tie_projections": "none",
    },
    "factorized": {"embedding": "factorized", "d_embed": 5, "projection_bias": True},
    "factorized tied": {"embedding": "factorized", "d_embed": 5, "tie_projections": "all"},
}


@contextmanager
def refused(kind: type[ParformerError], *words: str) -> Iterator[None]:
    """The one-line error that names all of this."""
    with pytest.raises(kind) as caught:
        yield
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message


def make(family: str, pattern: str = "sfsf", **changes: Any) -> Model:
    """A small model whose weights all matter; Transformer-XL remembers a long text."""
    values: dict[str, Any] = {"vocab_size": VOCAB, "pattern": pattern}
    if family == "transformer-xl":
        values["mem_len"] = LONGEST
    else:
        values["max_len"] = LONGEST
    return lively(build(small_config(family, **(values | changes))))


def text(batch: int = 2, time: int = 9, number: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(number)
    return torch.randint(VOCAB, (batch, time), generator=generator)


def read(model: Model, pieces: list[Tensor], state: State | None = None) -> tuple[Tensor, Any]:
    """Logits of a text in pieces, each after the state of the one before."""
    found = []
    for piece in pieces:
        out = model(piece, state=state)
        state = out.state
        found.append(out.logits)
    return torch.cat(found, 1), state


# What a step gives


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_step_gives_logits_or_the_loss_and_a_state(family: str, batch: int) -> None:
    model, tokens = make(family), text(batch, 6)
    out = model(tokens)
    assert out.logits.shape == (batch, 6, VOCAB)
    assert out.hidden.shape == (batch, 6, model.config.d_model)
    assert out.loss is None
    assert out.losses is None
    scored = model(tokens, targets=tokens)
    assert scored.logits is None
    assert scored.loss.shape == ()
    assert scored.losses.shape == (batch, 6)
    for each in (out, scored):
        if family == "bert":
            assert each.state is None
            assert each.pooled.shape == (batch, model.config.d_model)
        else:
            assert (each.state.batch, each.state.position) == (batch, 6)
            assert each.state.bytes == 2 * 2 * 12 * 4 * batch * 6
            assert each.pooled is None


def test_a_model_without_a_head_gives_hidden_states_alone() -> None:
    model = make("bert", head="none", pooler=False)
    out = model(text())
    assert out.logits is None
    assert out.pooled is None
    assert out.hidden.shape == (2, 9, 12)


@pytest.mark.parametrize("name", EMBEDDINGS)
@pytest.mark.parametrize("family", CAUSAL)
def test_the_loss_is_what_the_logits_say(family: str, name: str) -> None:
    model, tokens = make(family, **EMBEDDINGS[name]), text(3, 8)
    targets = torch.arange(24).view(3, 8) % VOCAB  # every word, so every cluster's edge
    logits = model(tokens).logits
    assert_close(logits.softmax(-1).sum(-1), torch.ones(3, 8))
    if "adaptive" in name:
        assert_close(logits.logsumexp(-1), torch.zeros(3, 8), atol=1e-5, rtol=0)
    expected = -logits.log_softmax(-1).gather(-1, targets[..., None])[..., 0]
    out = model(tokens, targets=targets)
    assert_close(out.losses, expected, atol=1e-5, rtol=1e-5)
    assert_close(out.loss, expected.mean(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["plain", "untied", "factorized"])
def test_the_masked_loss_is_what_the_logits_say(name: str) -> None:
    model, tokens = make("bert", **EMBEDDINGS[name]), text(3, 8)
    targets = text(3, 8, number=1)
    targets[:, 1::2] = IGNORE
    expected = -model(tokens).logits.log_softmax(-1).gather(-1, targets.clamp(min=0)[..., None])
    expected = expected[..., 0] * (targets != IGNORE)
    out = model(tokens, targets=targets)
    assert_close(out.losses, expected, atol=1e-5, rtol=1e-5)
    assert_close(out.loss, expected.sum() / 12, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["plain", "adaptive", "adaptive falling"])
def test_targets_that_do_not_count_leave_no_trace(name: str) -> None:
    model, tokens, targets = make("transformer-xl", **EMBEDDINGS[name]), text(), text(number=1)
    whole = model(tokens, targets=targets).losses
    targets[0, 2:5] = targets[1, 0] = IGNORE
    out = model(tokens, targets=targets)
    counted = targets != IGNORE
    assert_close(out.losses, whole * counted)
    assert_close(out.loss, whole[counted].mean())
    out.loss.backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize("family", FAMILIES)
def test_last_only_gives_the_last_of_all_logits(family: str) -> None:
    model, tokens = make(family), text()
    last = model(tokens, last_only=True).logits
    assert last.shape == (2, 1, VOCAB)
    assert_close(last, model(tokens).logits[:, -1:])


def test_32_bit_tokens_mean_the_same_as_64_bit_ones() -> None:
    model = make("transformer-xl", **EMBEDDINGS["adaptive falling"])
    tokens, targets = text(), text(number=1)
    assert torch.equal(model(tokens.int()).logits, model(tokens).logits)
    wide = model(tokens, targets=targets).loss
    assert torch.equal(model(tokens.int(), targets=targets.int()).loss, wide)


@pytest.mark.parametrize("family", FAMILIES)
def test_dropout_acts_in_training_alone(family: str) -> None:
    model, tokens = make(family, dropout=0.3, dropatt=0.3), text()
    assert torch.equal(model(tokens).logits, model(tokens).logits)
    model.train()
    assert not torch.equal(model(tokens).logits, model(tokens).logits)


# One text, whole or in pieces


@st.composite
def architectures(draw: st.DrawFn) -> dict[str, Any]:
    """A causal model of any family: pattern, options, embedding and lengths drawn at random."""
    family = draw(st.sampled_from(CAUSAL))
    changes: dict[str, Any] = {
        "family": family,
        "norm": draw(st.sampled_from(["pre", "post"])),
        **EMBEDDINGS[draw(st.sampled_from(sorted(EMBEDDINGS)))],
    }
    heads = ["s", "s[heads=2]", "s[heads=6,kv_heads=2]", "s[heads=4,head=6,kv_heads=1]"]
    if family == "transformer-xl":
        changes["clamp_len"] = draw(st.sampled_from([-1, 3]))
        changes["position_bias"] = draw(st.sampled_from(["shared", "per-layer"]))
        if changes["position_bias"] == "shared":
            heads = ["s", "s[heads=6,head=2]"]
        changes["same_length"] = draw(st.booleans())
        if changes["same_length"]:
            changes["mem_len"] = draw(st.integers(1, LONGEST))
    blocks = st.sampled_from([*heads, "f", "f[inner=7]", "i"])
    changes["pattern"] = "".join(draw(st.lists(blocks, min_size=1, max_size=6)))
    return changes


@settings(max_examples=60)
@given(architectures(), st.data())
def test_a_text_in_any_pieces_gives_the_same_numbers(
    changes: dict[str, Any], data: st.DataObject
) -> None:
    model = make(**changes)
    for time in (1, 7, LONGEST):
        cuts = data.draw(st.sets(st.integers(1, time - 1), max_size=5)) if time > 1 else set()
        lengths = [high - low for low, high in pairwise((0, *sorted(cuts), time))]
        for batch in (1, 3):
            tokens = text(batch, time, number=time)
            with torch.inference_mode():
                whole = model(tokens).logits
                one_by_one, _ = read(model, list(tokens.split(1, 1)))
            pieces = list(tokens.split(lengths, 1))
            in_pieces, _ = read(model, pieces)
            training, _ = read(model.train(), pieces)
            model.eval()
            for found in (one_by_one, in_pieces, training):
                assert_close(found, whole, atol=1e-4, rtol=1e-4, check_stride=False)
                assert torch.equal(found.argmax(-1), whole.argmax(-1))


@pytest.mark.parametrize("family", CAUSAL)
def test_generation_with_a_state_writes_what_reading_anew_writes(family: str) -> None:
    model = make(family)
    with torch.inference_mode():
        anew, quick = text(3, 4), text(3, 4)
        piece, state = quick, None
        for _ in range(LONGEST - 4):
            out = model(piece, state=state, last_only=True)
            state, piece = out.state, out.logits[:, -1].argmax(-1, keepdim=True)
            quick = torch.cat((quick, piece), 1)
            token = model(anew).logits[:, -1].argmax(-1, keepdim=True)
            anew = torch.cat((anew, token), 1)
    assert quick.tolist() == anew.tolist()


@pytest.mark.parametrize("after", MODES)
@pytest.mark.parametrize("before", MODES)
@pytest.mark.parametrize("family", CAUSAL)
def test_a_state_goes_on_in_another_mode(
    family: str, before: Callable[[], Any], after: Callable[[], Any]
) -> None:
    model, tokens = make(family), text(2, 20)
    first, second = tokens.split((12, 8), 1)
    expected = model(tokens).logits
    with before():
        _, state = read(model, list(first.split(3, 1)))
    with after():
        found, _ = read(model, list(second.split(2, 1)), state)
    assert_close(found.clone(), expected[:, 12:], atol=1e-4, rtol=1e-4, check_stride=False)


@pytest.mark.parametrize("family", CAUSAL)
def test_a_training_state_goes_on_in_evaluation(family: str) -> None:
    model, tokens = make(family), text(2, 20)
    expected = model(tokens).logits
    _, state = read(model.train(), list(tokens[:, :12].split(3, 1)))
    found, _ = read(model.eval(), list(tokens[:, 12:].split(2, 1)), state)
    assert_close(found, expected[:, 12:], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", CAUSAL)
def test_an_old_state_is_as_it_was_after_others_went_on_from_it(family: str) -> None:
    """Three continuations of one text, taken in turns as a beam search would."""
    model = make(family)
    start, ways = text(2, 6), [text(2, 7, number=n) for n in (1, 2, 3)]
    for mode in MODES:
        with mode():
            expected = [model(torch.cat((start, way), 1)).logits[:, 6:] for way in ways]
            _, state = read(model, list(start.split(1, 1)))
            for _ in range(2):
                states, found = [state] * 3, [[], [], []]
                for piece in (0, 1), (1, 5), (5, 7):
                    for i, way in enumerate(ways):
                        out = model(way[:, slice(*piece)], state=states[i])
                        states[i] = out.state
                        found[i].append(out.logits)
                for pieces, wanted in zip(found, expected, strict=True):
                    assert_close(torch.cat(pieces, 1), wanted, atol=1e-4, rtol=1e-4)


def test_a_state_cannot_be_written_to() -> None:
    state = make("gpt2")(text()).state
    with pytest.raises(FrozenInstanceError):
        state.position = 3
    with pytest.raises(FrozenInstanceError):
        state.blocks[0].end = 3


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_of_a_batch_do_not_touch_each_other(family: str) -> None:
    model, tokens = make(family), text(3, 12)
    other = tokens.clone()
    other[1] = text(1, 12, number=9)
    pieces = (12,) if family == "bert" else (5, 1, 6)
    together, _ = read(model, list(tokens.split(pieces, 1)))
    changed, _ = read(model, list(other.split(pieces, 1)))
    for row in (0, 2):
        assert torch.equal(changed[row], together[row])
        alone, _ = read(model, list(tokens[row : row + 1].split(pieces, 1)))
        assert_close(alone[0], together[row], atol=1e-5, rtol=1e-5)
    assert not torch.equal(changed[1], together[1])


@pytest.mark.parametrize("family", CAUSAL)
def test_the_future_never_leaks(family: str) -> None:
    model, tokens = make(family), text(2, 9)
    other = tokens.clone()
    other[:, 5:] = (other[:, 5:] + 1) % VOCAB
    before, after = model(tokens).logits, model(other).logits
    assert torch.equal(before[:, :5], after[:, :5])
    assert not torch.isclose(before[:, 5:], after[:, 5:]).all(-1).any()


def test_bert_sees_both_sides_but_no_padding() -> None:
    model, tokens = make("bert"), text(2, 9)
    other = tokens.clone()
    other[:, 5:] = (other[:, 5:] + 1) % VOCAB
    assert not torch.isclose(model(tokens).logits, model(other).logits).all(-1).any()
    present = (torch.arange(9) < 5).expand(2, 9)
    found = model(tokens, padding=present).logits[:, :5]
    assert torch.equal(found, model(other, padding=present).logits[:, :5])
    assert_close(found, model(tokens[:, :5]).logits, atol=1e-5, rtol=1e-5)


# Past the window


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("lengths", [(1,) * 20, (8, 1, 7, 4), (5, 5, 5, 5), (3, 8, 8, 1)], ids=str)
def test_learned_positions_slide_past_their_window(
    lengths: tuple[int, ...], training: bool
) -> None:
    model = make("gpt2", max_len=8).train(training)
    tokens, state, read_so_far = text(2, 20), None, 0
    for piece in tokens.split(lengths, 1):
        out = model(piece, state=state)
        state = out.state
        read_so_far += piece.shape[1]
        fresh = model(tokens[:, max(0, read_so_far - 8) : read_so_far])
        assert_close(out.logits, fresh.logits[:, -piece.shape[1] :], atol=1e-5, rtol=1e-5)
        assert state.position == min(8, read_so_far)
        scored = model(piece, state=state, targets=piece)
        assert scored.losses.shape == piece.shape


@pytest.mark.parametrize("family", ["llama", "transformer-xl"])
def test_one_attention_block_remembers_as_many_tokens_as_it_should(family: str) -> None:
    """Both know distances only, so the last tokens read afresh give the same numbers."""
    length = {"mem_len": 8} if family == "transformer-xl" else {"max_len": 8}
    model, tokens, state = make(family, "fsf", **length), text(2, 30), None
    with torch.no_grad():
        for i in range(30):
            out = model(tokens[:, i : i + 1], state=state)
            state = out.state
            fresh = model(tokens[:, max(0, i - 8) : i + 1], last_only=True)
            assert_close(out.logits, fresh.logits, atol=1e-4, rtol=1e-4)
            assert state.position == i + 1
            assert state.blocks[1].length == min(8, i + 1)


@pytest.mark.parametrize("family", ["llama", "transformer-xl"])
def test_with_depth_memory_reaches_back_block_by_block_and_no_further(family: str) -> None:
    length = {"mem_len": 4} if family == "transformer-xl" else {"max_len": 4}
    model, tokens = make(family, "sfsf", **length), text(1, 20)
    reach = 2 * 4
    whole, state = read(model, list(tokens.split(1, 1)))
    assert [block and block.length for block in state.blocks] == [4, None, 4, None]
    assert whole.isfinite().all()
    for place, seen in ((19 - reach - 1, False), (19 - reach, True)):
        other = tokens.clone()
        other[:, place] = (other[:, place] + 1) % VOCAB
        changed, _ = read(model, list(other.split(1, 1)))
        assert torch.equal(changed[:, -1], whole[:, -1]) is not seen


# How a text starts


@pytest.mark.parametrize("family", CAUSAL)
def test_no_state_is_the_initial_state(family: str) -> None:
    model, tokens = make(family), text()
    assert torch.equal(model(tokens).logits, model(tokens, state=model.initial_state(2)).logits)


def test_a_memory_of_zeros_is_seen() -> None:
    model, tokens = make("transformer-xl", mem_len=5), text()
    zeros = model.initial_state(2, zeros=True)
    assert [block and block.length for block in zeros.blocks] == [5, None, 5, None]
    assert all(not block.inputs_bmd.any() for block in zeros.blocks if block is not None)
    assert zeros.position == model.initial_state(2).position == 0
    found = model(tokens, state=zeros).logits
    assert not torch.isclose(found, model(tokens).logits, atol=1e-3).all(-1).any()
    assert_close(model.train()(tokens, state=zeros).logits, found, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", CAUSAL)
def test_a_state_may_remember_less_or_more(family: str) -> None:
    model, tokens = make(family, "sf"), text(2, 20)
    for memory in (0, 3, LONGEST):
        state = model.initial_state(2, memory=memory)
        for piece in tokens.split(5, 1):
            state = model(piece, state=state).state
        kept = state.blocks[0]
        assert (0 if kept is None else kept.length) == min(memory, 20)


# What is refused


def state_of(model: Model, batch: int = 2) -> State | None:
    with torch.no_grad():
        return model(text(batch, 4)).state


REFUSALS: dict[str, tuple[Callable[[], object], tuple[str, ...]]] = {
    "a negative token": (lambda: make("gpt2")(text() - 99), ("tokens hold -", "0 … 22")),
    "a token too large": (lambda: make("gpt2")(text() + VOCAB), ("tokens hold 4", "0 … 22")),
    "fractions": (lambda: make("gpt2")(text().float()), ("tokens", "torch.float32", "(2, 9)")),
    "truth values": (lambda: make("gpt2")(text() > 3), ("tokens", "torch.bool", "(2, 9)")),
    "bytes": (lambda: make("gpt2")(text().byte()), ("tokens", "torch.uint8", "int64")),
    "complex tokens": (lambda: make("gpt2")(text() * 1j), ("tokens", "torch.complex64")),
    "tokens without a batch": (lambda: make("gpt2")(text()[0]), ("(batch, time)", "(9,)")),
    "tokens of three dimensions": (lambda: make("gpt2")(text()[None]), ("(1, 2, 9)",)),
    "no text": (lambda: make("gpt2")(text()[:, :0]), ("empty", "(2, 0)")),
    "no batch": (lambda: make("gpt2")(text()[:0]), ("empty", "(0, 9)")),
    "too long a text": (
        lambda: make("gpt2")(text(1, LONGEST + 1)),
        (f"{LONGEST + 1} tokens", f"window of {LONGEST}", "in pieces"),
    ),
    "targets of another shape": (
        lambda: make("llama")(text(), targets=text()[:, 1:]),
        ("targets have shape (2, 8)", "tokens (2, 9)"),
    ),
    "a target too large": (
        lambda: make("llama")(text(), targets=text() + VOCAB),
        ("targets hold 4", "0 … 22"),
    ),
    "a negative target": (
        lambda: make("llama")(text(), targets=text() - 99),
        ("targets hold -9", "0 … 22"),
    ),
    "fractional targets": (
        lambda: make("llama")(text(), targets=text().float()),
        ("targets", "torch.float32"),
    ),
    "targets none of which count": (
        lambda: make("llama")(text(), targets=torch.full((2, 9), IGNORE)),
        ("every target is -100", "mask fewer"),
    ),
    "targets without a head": (
        lambda: make("bert", head="none")(text(), targets=text()),
        ("no head", "head='lm'"),
    ),
    "padding for a recurrence": (
        lambda: make("sru", pattern="rf")(text(), padding=text() > 0),
        ("padding", "(2, 9)", "recurrence (r in 'rf')"),
    ),
    "no source for a decoder": (
        lambda: make("gpt2", pattern="sf | scf")(text()),
        ("source", "first tokens"),
    ),
    "a source without an encoder": (
        lambda: make("gpt2")(text(), source=text()),
        ("no encoder", "leave it out"),
    ),
    "padding of another shape": (
        lambda: make("bert")(text(), padding=text()[:, 1:] > 0),
        ("padding", "(2, 9)", "(2, 8)"),
    ),
    "padding in numbers": (
        lambda: make("bert")(text(), padding=torch.ones(2, 9).long()),
        ("padding", "torch.bool", "torch.int64"),
    ),
    "token types where there are none": (
        lambda: make("gpt2")(text(), token_types=text() * 0),
        ("no token types", "token_types=2"),
    ),
    "an unknown token type": (
        lambda: make("bert")(text(), token_types=text() * 0 + 2),
        ("token_types hold 2", "0 … 1"),
    ),
    "token types of another shape": (
        lambda: make("bert")(text(), token_types=text()[:1] * 0),
        ("token_types have shape (1, 9)", "tokens (2, 9)"),
    ),
    "a state for a model that sees both sides": (
        lambda: make("bert")(text(), state=make("bert").initial_state(2)),
        ("no state", "leave it out"),
    ),
    "a state of another batch": (
        lambda: make("gpt2")(text(3), state=state_of(make("gpt2"))),
        ("batch of 2", "one of 3", "initial_state"),
    ),
    "a state of a longer model": (
        lambda: make("gpt2")(text(), state=state_of(make("gpt2", "sfsfsf"))),
        ("another model", "'(sf)x3'", "'(sf)x2'", "initial_state"),
    ),
    "a state of a model in another order": (
        lambda: make("gpt2")(text(), state=state_of(make("gpt2", "fsfs"))),
        ("another model", "'(fs)x2'", "'(sf)x2'"),
    ),
    "a state of a wider model": (
        lambda: make("gpt2")(text(), state=state_of(make("gpt2", d_model=24))),
        ("another model", "width 24", "width 12"),
    ),
    "a state of another family": (
        lambda: make("gpt2")(text(), state=state_of(make("llama"))),
        ("another model", "llama", "gpt2"),
    ),
    "a state made for inference": (
        lambda: make("transformer-xl").train()(text(), state=state_of(make("transformer-xl"))),
        ("made for inference", "initial_state"),
    ),
    "a batch of none": (lambda: make("gpt2").initial_state(0), ("at least 1", "got 0")),
    "a negative memory": (lambda: make("llama").initial_state(1, memory=-1), ("got -1",)),
    "zeros for learned positions": (
        lambda: make("gpt2").initial_state(1, zeros=True),
        ("zeros=True", "transformer-xl"),
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_what_a_model_cannot_take_is_refused_in_one_line(case: str) -> None:
    give, words = REFUSALS[case]
    with refused(InputError, *words):
        give()


@pytest.mark.parametrize("field", ["vocab_size", "d_inner", "d_head"])
def test_a_model_too_large_for_any_machine_is_refused(field: str) -> None:
    with refused(ConfigError, "parameters are more than"):
        build(small_config("gpt2", **{field: 2**62}))


# Weights


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_seed_gives_the_same_weights(family: str) -> None:
    config = small_config(family, vocab_size=VOCAB)
    generator_before = torch.get_rng_state()
    one, two, other = build(config, seed=5), build(config, seed=5), build(config, seed=6)
    assert torch.equal(torch.get_rng_state(), generator_before)
    for (name, a), b, c in zip(
        one.named_parameters(), two.parameters(), other.parameters(), strict=True
    ):
        assert torch.equal(a, b)
        constant = name.endswith(".bias") or ("norm" in name and family != "transformer-xl")
        assert torch.equal(a, c) is constant
    assert not one.training


def assert_drawn(parameter: Tensor, mean: float, std: float) -> None:
    """Mean and spread are as they should be, within six standard errors."""
    count = parameter.numel()
    assert abs(parameter.mean().item() - mean) < 6 * std / math.sqrt(count)
    assert parameter.std().item() == pytest.approx(std, rel=6 / math.sqrt(2 * count))


@pytest.mark.parametrize("embedding", ["plain", "adaptive", "factorized"])
@pytest.mark.parametrize("family", FAMILIES)
def test_first_weights_are_drawn_as_the_family_says(family: str, embedding: str) -> None:
    if family == "bert" and embedding == "adaptive":
        embedding = "plain"  # a masked-word head has no clusters
    changes = {
        "plain": {},
        "adaptive": {"embedding": "adaptive", "cutoffs": (100, 200), "div_val": 2},
        "factorized": {"embedding": "factorized", "d_embed": 24, "projection_bias": True},
    }[embedding]
    config = small_config(
        family, pattern="(sf)x8", d_model=48, vocab_size=300, d_inner=96, **changes
    )
    model = build(config.replaced(init_std=0.03, projection_std=0.007), seed=1)
    seen = set()
    for name, parameter in model.named_parameters():
        last = name.split(".")[-1]
        if "norm" in name and last == "weight":
            seen.add("norm")
            if family == "transformer-xl":
                assert_drawn(parameter, 1.0, 0.03)
            else:
                assert torch.equal(parameter, torch.ones_like(parameter))
        elif last in ("bias", "cluster_bias"):
            seen.add("bias")
            assert not parameter.any(), name
        elif "projection" in name:
            seen.add("projection")
            assert_drawn(parameter, 0.0, 0.007)
        elif family == "gpt2" and name.endswith("out.weight"):
            seen.add("residual")
            assert_drawn(parameter, 0.0, 0.03 / 4)  # the square root of 16 blocks
        else:
            seen.add(last)
            assert_drawn(parameter, 0.0, 0.03)
    expected = {"norm", "weight"}
    expected |= {"bias"} if family != "llama" or embedding == "factorized" else set()
    expected |= {"projection"} if embedding != "plain" else set()
    expected |= {
        "transformer-xl": {"content_bias", "position_bias"},
        "gpt2": {"positions", "residual"},
        "bert": {"positions", "types"},
        "llama": set(),
    }[family]
    assert expected <= seen


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_in_bfloat16_says_nearly_the_same(family: str) -> None:
    full = make(family)
    half = build(full.config, dtype=torch.bfloat16)
    with torch.no_grad():
        for small, large in zip(half.parameters(), full.parameters(), strict=True):
            assert small.dtype == torch.bfloat16
            small.copy_(large)
            large.copy_(small)
    tokens = text()
    expected = full(tokens).logits
    out = half(tokens, targets=tokens)
    assert out.loss.dtype == torch.float32
    assert out.hidden.dtype == torch.bfloat16
    found = [half(tokens).logits]
    if family != "bert":
        assert 2 * out.state.bytes == full(tokens).state.bytes
        found.append(read(half, list(tokens.split((4, 1, 4), 1)))[0])
    for logits in found:
        assert (logits.float() - expected).norm() < 0.05 * expected.norm()
    out.loss.backward()
    gradients = [parameter.grad for parameter in half.parameters() if parameter.grad is not None]
    assert all(gradient.isfinite().all() for gradient in gradients)


def storages(model: Model) -> dict[str, int]:
    """Where each weight lives, by every name it has."""
    return {
        name: parameter.untyped_storage().data_ptr()
        for name, parameter in model.named_parameters(remove_duplicate=False)
    }


TIES = {
    "plain": [("head.out.weight", "embedding.words.tables.0")],
    "adaptive": [("head.tables.0", "embedding.words.tables.0")],
    "adaptive narrow": [
        ("head.tables.0", "embedding.words.tables.0"),
        ("head.projections.1", "embedding.words.projections.0"),
        ("head.projections.2", "embedding.words.projections.0"),
    ],
    "adaptive falling": [
        ("head.tables.2", "embedding.words.tables.2"),
        ("head.projections.1", "embedding.words.projections.1"),
    ],
    "factorized tied": [
        ("head.out.weight", "embedding.words.tables.0"),
        ("head.projection", "embedding.words.projections.0"),
    ],
    "untied": [],
    "adaptive untied": [],
}


@pytest.mark.parametrize("name", TIES)
def test_tied_weights_are_one_after_build_and_after_load(name: str, tmp_path: Any) -> None:
    model = make("transformer-xl", **EMBEDDINGS[name])
    model.save(tmp_path / "model")
    for each in (model, load(tmp_path / "model"), make("gpt2", **EMBEDDINGS[name])):
        places = storages(each)
        for one, other in TIES[name]:
            assert places[one] == places[other]
        assert len(set(places.values())) == len(list(each.parameters()))
        everything = dict(each.named_parameters(remove_duplicate=False)).values()
        assert not any(parameter.is_meta for parameter in everything)
        if not TIES[name]:
            assert len(places) == len(set(places.values()))


# Training


@pytest.mark.parametrize("preset", ["pocket", "llama-pocket"])
@pytest.mark.parametrize("pattern", ["(sf)x2", "sfff"])
def test_thirty_steps_on_a_repeated_line_lower_the_loss(preset: str, pattern: str) -> None:
    model = build(pf.preset(preset, pattern=pattern, dropout=0.0)).train()
    line = b"pay attention when required. "
    stream = torch.tensor(list(line * 120))
    tokens = stream[: 4 * 30 * 16 + 1]
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    rows_in = tokens[:-1].view(4, -1)
    rows_out = tokens[1:].view(4, -1)
    state, losses = None, []
    for piece, targets in zip(rows_in.split(16, 1), rows_out.split(16, 1), strict=True):
        out = model(piece, state=state, targets=targets)
        state = out.state
        optimizer.zero_grad()
        out.loss.backward()
        optimizer.step()
        losses.append(out.loss.item())
    assert len(losses) == 30
    assert losses[0] == pytest.approx(math.log(256), abs=0.5)
    assert losses[-1] < 0.5


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("family", CAUSAL)
def test_each_step_of_a_text_has_a_gradient_of_its_own(family: str, training: bool) -> None:
    """The state carries no graph: a step's gradient does not ask for the step before."""
    model, tokens, state = make(family).train(training), text(2, 20), None
    for piece in tokens.split(4, 1):
        model.zero_grad()
        out = model(piece, state=state, targets=piece)
        state = out.state
        out.loss.backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("mode", MODES)
def test_gradients_of_positions_do_not_depend_on_how_the_past_was_read(
    mode: Callable[[], Any],
) -> None:
    """Distances that inference keeps from step to step must not stand in for today's."""
    model, tokens = make("transformer-xl"), text(2, 20)
    found = []
    for training in (True, False):
        model.train(training).zero_grad()
        with torch.no_grad() if training else mode():
            _, state = read(model, list(tokens[:, :16].split(4, 1)))
        model(tokens[:, 16:], state=state, targets=tokens[:, 16:]).loss.backward()
        found.append({n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None})
    for name in ("blocks.0.distance.weight", "blocks.2.distance.weight", "position_bias"):
        assert found[0][name].abs().max() > 1e-4
        assert_close(found[1][name], found[0][name], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_trains_after_it_was_evaluated(family: str) -> None:
    model, tokens = make(family), text()
    with torch.inference_mode():
        expected = model(tokens, targets=tokens).loss
    out = model.train()(tokens, targets=tokens)
    out.loss.backward()
    assert_close(out.loss.detach(), expected.clone())


def test_a_longer_memory_than_before_gets_its_distances() -> None:
    """The table of sinusoids grows, and short texts go on reading its end."""
    model, tokens = make("transformer-xl", mem_len=200), text(1, 150)
    short = model(tokens[:, :9]).logits
    long = model(tokens).logits
    assert_close(model(tokens[:, :9]).logits, short)
    assert_close(long[:, :9], short, atol=1e-4, rtol=1e-4)


def test_configurations_that_agree_share_states() -> None:
    one, two = make("gpt2"), make("gpt2")
    assert one.config is not two.config
    expected = one(text(2, 3), state=state_of(one)).logits
    assert torch.equal(two(text(2, 3), state=state_of(one)).logits, expected)


@pytest.mark.parametrize("change", ["new numbers", "new weights", "half", "double"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_packed_model_notices_that_its_weights_changed(family: str, change: str) -> None:
    tokens, packed, plain = text(2, 8), make(family), make(family)
    other = build(packed.config, seed=3).state_dict()
    packed.pack(16)
    for model in (packed, plain):
        if change.startswith("new"):
            fresh = {name: weight.clone() for name, weight in other.items()}
            model.load_state_dict(fresh, assign=change == "new weights")
        else:
            model.to(torch.bfloat16 if change == "half" else torch.float64)
    with torch.inference_mode():
        assert_close(packed(tokens).logits, plain(tokens).logits)


def test_a_model_made_in_inference_mode_works_all_the_same() -> None:
    expected = make("llama")(text(2, 8)).logits
    with torch.inference_mode():
        model = make("llama")
        model.pack(16)
        assert_close(model(text(2, 8)).logits, expected)


def test_a_configuration_is_kept_as_it_was_given() -> None:
    config = ModelConfig.from_dict(small_config("llama").to_dict())
    model = build(config)
    assert model.config is config
    assert F.softmax(model(text() % 13).logits, -1).shape[-1] == 13


@pytest.mark.parametrize("family", ["transformer-xl", "gpt2", "llama"])
def test_scaled_first_weights_keep_sizes_and_add_nothing(family: str) -> None:
    for width, pattern in ((32, "(sf)x2"), (256, "(sf)x8")):
        sizes = {"d_model": width, "d_inner": 3 * width, "n_head": 2, "pattern": pattern}
        lengths = {"max_len": 64, "tgt_len": 16, "mem_len": 0}
        config = pf.preset("pocket", family=family, **sizes, **lengths)
        model = build(config, seed=1)
        for name, weight in model.named_parameters():
            if not name.startswith("blocks.") or weight.dim() < 2:
                continue
            if name.endswith("out.weight"):
                assert not weight.any(), name
            else:
                assert float(weight.detach().std()) == pytest.approx(
                    weight.shape[1] ** -0.5, rel=0.05
                ), name
        tokens = torch.randint(256, (2, 16), generator=torch.Generator().manual_seed(0))
        bare = build(config.replaced(pattern="i"), seed=1)
        bare.load_state_dict({n: v for n, v in model.state_dict().items()
                              if not n.startswith("blocks.")}, strict=False)  # fmt: skip
        # whatever the depth, the stream begins as if there were no blocks
        torch.testing.assert_close(model(tokens).logits, bare(tokens).logits)


def test_recurrent_blocks_draw_their_own_first_weights() -> None:
    """A highway passes the stream on: zeros in its products would leave the gates nothing."""
    model = build(pf.preset("pocket", pattern="(rf)x2"), seed=1)
    assert all(w.any() for n, w in model.named_parameters() if n.endswith("0.out.weight"))
    ours = build(pf.preset("pocket", pattern="(rf)x2", first_weights="family"), seed=1)
    for name, weight in model.named_parameters():
        if name.startswith(("blocks.0.", "blocks.2.")) and "norm" not in name:
            torch.testing.assert_close(weight, dict(ours.named_parameters())[name])
