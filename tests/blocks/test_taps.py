"""Does whoever listens to blocks hear what they do, and change nothing by it?"""

# b batch, t time, n keys, d width, h heads, k head width

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from parformer.blocks.stack import Stack
from parformer.blocks.taps import Taps
from parformer.config import FAMILIES
from parformer.errors import ConfigError
from parformer.model import Model, build
from tests.conftest import DIFFERENT, lively, noise, small_config

TIME, VOCAB = 4, 13
"""As many tokens as a head is wide, so that what attention gives tells its weights."""
PATTERNS = ["sf", "{s<sf>}x2 f", "sf | {scf}x2", "(ra)x2", "lf l[light]"]


def make(family: str, pattern: str, **changes: Any) -> Model:
    sizes: dict[str, Any] = {"d_model": 16, "n_head": 4, "d_bottleneck": 8, "d_attention": 8}
    if family in ("transformer-xl", "sru"):
        sizes["mem_len"] = 30
    config = small_config(family, pattern=pattern, **(sizes | changes))
    return lively(build(config, dtype=torch.float64))


def text(time: int = TIME, seed: int = 0) -> Tensor:
    """Two texts in which no token comes twice."""
    generator = torch.Generator().manual_seed(seed)
    return torch.stack([torch.randperm(VOCAB, generator=generator)[:time] for _ in range(2)])


def source_of(model: Model) -> Tensor | None:
    return None if model.encoder is None else text(5, seed=9)


def fits(family: str, pattern: str) -> bool:
    causal = bool(FAMILIES[family]["causal"])
    return causal or not set(pattern) & set("ra|")


PAIRS = [(f, p) for f in DIFFERENT for p in PATTERNS if fits(f, p)]


@pytest.mark.parametrize(("family", "pattern"), PAIRS)
@pytest.mark.parametrize("training", [True, False])
def test_listening_changes_nothing(family: str, pattern: str, training: bool) -> None:
    model, taps = make(family, pattern).train(training), Taps()
    with torch.set_grad_enabled(training):
        plain = model(text(), source=source_of(model))
        heard = model(text(), source=source_of(model), taps=taps)
    assert_close(heard.logits, plain.logits)
    for weights_bhtn in taps.having("weights").values():
        assert_close(weights_bhtn.sum(-1), torch.ones_like(weights_bhtn[..., 0]))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("groups", [4, 2])
def test_weights_are_those_of_the_kernels(family: str, causal: bool, groups: int) -> None:
    """The fused kernels say what attention gives; with few keys only one set of weights does."""
    biases = {"position_bias": "per-layer"} if family == "transformer-xl" else {}
    mem_len = {"mem_len": 30 if causal else 0} if family in ("transformer-xl", "sru") else {}
    both: dict[str, Any] = {"head": "lm" if causal else "none", "n_kv_head": groups}
    both |= {"trigrams": "none"} if causal else {}
    model = make(family, "s", causal=causal, **both, **mem_len, **biases)
    block, taps, seen = model.blocks[0], Taps("weights"), {}
    block.qkv.register_forward_hook(lambda *given: seen.update(qkv=given[2]))
    block.out.register_forward_pre_hook(lambda _, given: seen.update(y=given[0]))
    with torch.no_grad():
        model(text())
        y_bhtk = seen["y"].view(2, TIME, 4, 4).transpose(1, 2)
        v_bhnk = seen["qkv"][..., -4 * groups :].view(2, TIME, groups, 4).transpose(1, 2)
        v_bhnk = v_bhnk.repeat_interleave(4 // groups, dim=1)
        model(text(), taps=taps)
    wanted_bhtn = torch.linalg.solve(v_bhnk.mT, y_bhtk.mT).mT
    assert_close(taps.heard["0"]["weights"], wanted_bhtn)
    if causal:
        assert not taps.heard["0"]["weights"].triu(1).any()


def test_weights_of_a_recurrence_are_those_of_its_formula() -> None:
    model, taps, seen = make("sru", "a[heads=2]"), Taps("weights"), {}
    block = model.blocks[0]
    block.project.register_forward_hook(lambda *given: seen.update(q=given[2]))
    block.key_value.register_forward_hook(lambda *given: seen.update(kv=given[2]))
    with torch.no_grad():
        model(text(), taps=taps)
    for b in range(2):
        for h in range(2):
            q_tk, k_nk = (seen[name][b, :, 4 * h : 4 * h + 4] for name in ("q", "kv"))
            for t in range(TIME):
                scores = torch.stack([q_tk[t] @ k_nk[n] / math.sqrt(4) for n in range(t + 1)])
                found_n = taps.heard["0"]["weights"][b, h, t]
                assert_close(found_n[: t + 1], scores.softmax(0))
                assert not found_n[t + 1 :].any()


def test_weights_of_a_decoder_over_its_source() -> None:
    model, taps, seen = make("gpt2", "f | c"), Taps("weights"), {}
    block = model.blocks[0]
    block.query.register_forward_hook(lambda *given: seen.update(q=given[2]))
    block.key_value.register_forward_hook(lambda *given: seen.update(kv=given[2]))
    present = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    with torch.no_grad():
        model(text(), source=source_of(model), source_padding=present, taps=taps)
    found_bhts = taps.heard["0"]["weights"]
    q_btk, k_bsk = seen["q"][..., 4:8], seen["kv"][..., 4:8]
    scores_bts = q_btk @ k_bsk.mT / 2
    assert_close(found_bhts[0, 1], scores_bts[0].softmax(-1))
    assert_close(found_bhts[1, 1, :, :3], scores_bts[1, :, :3].softmax(-1))
    assert not found_bhts[1, ..., 3:].any()


@pytest.mark.parametrize(("family", "pattern"), [(f, p) for f, p in PAIRS if FAMILIES[f]["causal"]])
def test_a_later_piece_looks_back_as_it_does_in_one(family: str, pattern: str) -> None:
    model, whole, last = make(family, pattern), Taps("weights"), Taps("weights")
    with torch.no_grad():
        model(text(7), source=source_of(model), taps=whole)
        state = model(text(7)[:, :5], source=source_of(model)).state
        model(text(7)[:, 5:], state, taps=last)
    for place, weights_bhtn in last.having("weights").items():
        assert_close(weights_bhtn, whole.heard[place]["weights"][:, :, 5:])


def test_places_are_those_of_states_and_encoders_have_their_own() -> None:
    model, taps = make("gpt2", "s | {s<cf>}x2 f"), Taps("output")
    model(text(), source=source_of(model), taps=taps)
    inside = ["0.0", "0.1.0", "0.1.1", "0.1", "0.2", "0.3.0", "0.3.1", "0.3"]
    assert list(taps.heard) == ["encoder.0", *inside, "0", "1"]
    assert set(model(text(), source=source_of(model)).state.blocks[0].tensors()) >= {"0.kv_bgmk"}
    assert taps.heard["0.1.0"]["output"].shape == (2, TIME, 8)


def test_what_goes_in_is_what_came_out_before() -> None:
    model, taps = make("gpt2", "sff"), Taps("input", "output")
    out = model(text(), taps=taps)
    for place in ("1", "2"):
        before = taps.heard[str(int(place) - 1)]["output"]
        assert torch.equal(taps.heard[place]["input"], before)
    assert_close(model.final_norm(taps.heard["2"]["output"]), out.hidden)
    assert not taps.having("weights")


def test_a_loss_may_be_made_of_what_is_heard() -> None:
    """As distillation does: weights and streams carry gradients where that is wanted."""
    model = make("transformer-xl", "sf").train()
    cut, kept = Taps(), Taps(gradients=True)
    model(text(), taps=cut)
    model(text(), taps=kept)
    assert not any(t.requires_grad for told in cut.heard.values() for t in told.values())
    probe = noise(*kept.heard["0"]["weights"].shape)
    (kept.heard["0"]["weights"] * probe).sum().backward()
    assert model.blocks[0].qkv.weight.grad.any()


def test_without_anybody_no_weights_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fused kernels stay in use where streams alone are listened to."""
    model = make("gpt2", "s")

    def refuse(*given: Any, **more: Any) -> Tensor:
        raise AssertionError("the open way was taken")

    monkeypatch.setattr("parformer.blocks.attention.attend_openly", refuse)
    model(text())
    model(text(), taps=Taps("output"))
    with pytest.raises(AssertionError, match="open way"):
        model(text(), taps=Taps("weights"))


def test_unknown_words_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"'weight' cannot be heard; known: weights, input"):
        Taps("weight")


def test_a_stack_by_itself_has_taps_and_padding() -> None:
    model, taps = make("llama", "sf"), Taps("weights")
    present = torch.tensor([[True] * 4, [True, True, True, False]])
    model(text(), padding=present, taps=taps)
    other = Taps("weights")
    stack = Stack(model.config.stack()).double()
    stack.load_state_dict({n: t for n, t in model.state_dict().items() if "blocks" in n}, False)
    stack(model.embedding(text(), None, 0), padding=present, taps=other)
    assert_close(other.heard["0"], taps.heard["0"])
    assert not other.heard["0"]["weights"][1, :, :3, 3:].any()
