"""Does attention do what its definition says, one score at a time?"""

# b batch, t time, m memory, n = m + t keys, d width, h heads, g key-value heads, k head width

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from parformer.blocks.attention import SelfAttention, head_sizes
from parformer.blocks.memory import InputMemory, KeyValueMemory
from parformer.blocks.relative import align
from parformer.errors import ConfigError
from parformer.model import Model, build
from tests.conftest import lively, noise, run_block, small_config

BATCH = 2

CASES: dict[str, dict[str, Any]] = {
    "relative": {"family": "transformer-xl"},
    "relative, pre-norm": {"family": "transformer-xl", "norm": "pre"},
    "relative, clamped": {"family": "transformer-xl", "clamp_len": 3},
    "relative, clamped to nought": {"family": "transformer-xl", "clamp_len": 0},
    "relative, same length": {"family": "transformer-xl", "mem_len": 4, "same_length": True},
    "relative, same length of one": {"family": "transformer-xl", "mem_len": 1, "same_length": True},
    "relative, biases per layer": {"family": "transformer-xl", "position_bias": "per-layer"},
    "relative, everything": {
        "family": "transformer-xl",
        "norm": "pre",
        "norm_type": "rms",
        "clamp_len": 2,
        "mem_len": 5,
        "same_length": True,
        "position_bias": "per-layer",
        "attention_bias": True,
        "n_kv_head": 1,
    },
    "relative, grouped queries": {"family": "transformer-xl", "n_kv_head": 1},
    "relative, four heads in two groups": {
        "family": "transformer-xl",
        "n_head": 4,
        "n_kv_head": 2,
        "d_head": 6,
    },
    "rotary": {"family": "llama"},
    "rotary, slow": {"family": "llama", "rotary_base": 50.0},
    "rotary, grouped queries": {"family": "llama", "n_kv_head": 1},
    "rotary, four heads in two groups": {
        "family": "llama",
        "n_head": 4,
        "n_kv_head": 2,
        "d_head": 6,
    },
    "learned": {"family": "gpt2"},
    "learned, post-norm": {"family": "gpt2", "norm": "post"},
    "no positions": {"family": "gpt2", "positions": "none", "mem_len": 7},
    "both sides": {"family": "bert"},
    "both sides, rotary": {"family": "bert", "positions": "rotary"},
    "both sides, grouped queries": {"family": "bert", "n_kv_head": 1},
}
CAUSAL_CASES = [name for name, case in CASES.items() if case["family"] != "bert"]
SHAPES = [(1, 0), (1, 1), (1, 7), (2, 1), (5, 0), (4, 7)]
"""New tokens, remembered ones."""


def make(name: str, heads: int) -> Model:
    case = {"n_head": heads} | CASES[name]
    return lively(build(small_config(pattern="s", **case), dtype=torch.float64))


def naive_norm(norm: nn.Module, x_d: Tensor) -> Tensor:
    if isinstance(norm, nn.RMSNorm):
        return x_d / torch.sqrt((x_d**2).mean() + norm.eps) * norm.weight
    spread = ((x_d - x_d.mean()) ** 2).mean()
    return (x_d - x_d.mean()) / torch.sqrt(spread + norm.eps) * norm.weight + norm.bias


def naive_turn(x_k: Tensor, place: int, base: float) -> Tensor:
    """Turn the pair (i, i + half) in its plane by place / base^(i / half)."""
    half = len(x_k) // 2
    angle = torch.tensor([place / base ** (i / half) for i in range(half)], dtype=torch.float64)
    cos, sin = angle.cos(), angle.sin()
    left, right = x_k[:half], x_k[half:]
    return torch.cat((left * cos - right * sin, left * sin + right * cos))


def naive_distance(distance: int, width: int) -> Tensor:
    """Sines, then cosines, of a distance at falling rates."""
    angles = [distance / 10_000 ** (i / width) for i in range(0, width, 2)]
    values = [math.sin(a) for a in angles] + [math.cos(a) for a in angles]
    return torch.tensor(values, dtype=torch.float64)


def naive_block(
    model: Model, all_bnd: Tensor, time: int, first: int = 0, padding: Tensor | None = None
) -> Tensor:
    """What becomes of the last `time` inputs; the first of all stands at place `first`."""
    config, block = model.config, model.blocks[0]
    assert isinstance(block, SelfAttention)
    heads, groups, width = block.heads, block.kv_heads, block.width
    batch, keys, _ = all_bnd.shape
    past = keys - time
    biases = model if config.position_bias == "shared" else block
    q_rows, k_rows, v_rows = torch.split(
        block.qkv.weight, [heads * width, groups * width, groups * width]
    )
    if block.qkv.bias is None:
        q_bias = k_bias = v_bias = torch.zeros((), dtype=torch.float64).expand(heads * width)
    else:
        q_bias, k_bias, v_bias = torch.split(
            block.qkv.bias, [heads * width, groups * width, groups * width]
        )

    def sees(b: int, t: int, j: int) -> bool:
        if padding is not None and not padding[b, j]:
            return False
        distance = past + t - j
        if config.same_length:
            return 0 <= distance < config.mem_len
        return distance >= 0 or not config.causal

    def attend(b: int, h: int, t: int) -> Tensor:
        g = h // (heads // groups)
        mine, theirs = slice(h * width, (h + 1) * width), slice(g * width, (g + 1) * width)
        q_k = q_rows[mine] @ read[b][past + t] + q_bias[mine]
        scores, values = [], []
        for j in range(keys):
            if not sees(b, t, j):
                continue
            k_k = k_rows[theirs] @ read[b][j] + k_bias[theirs]
            values.append(v_rows[theirs] @ read[b][j] + v_bias[theirs])
            if config.positions == "relative":
                distance = past + t - j
                if config.clamp_len >= 0:
                    distance = min(distance, config.clamp_len)
                r_k = block.distance.weight[mine] @ naive_distance(distance, config.d_model)
                score = (q_k + biases.content_bias[mine]) @ k_k
                score = score + (q_k + biases.position_bias[mine]) @ r_k
            elif config.positions == "rotary":
                turned_k = naive_turn(q_k, first + past + t, config.rotary_base)
                score = turned_k @ naive_turn(k_k, first + j, config.rotary_base)
            else:
                score = q_k @ k_k
            scores.append(score / math.sqrt(width))
        weights = torch.stack(scores).softmax(0)
        return (weights[:, None] * torch.stack(values)).sum(0)

    pre = config.norm == "pre"
    read = [[naive_norm(block.norm, x_d) if pre else x_d for x_d in row] for row in all_bnd]
    rows = []
    for b in range(batch):
        for t in range(time):
            y_d = block.out.weight @ torch.cat([attend(b, h, t) for h in range(heads)])
            if block.out.bias is not None:
                y_d = y_d + block.out.bias
            y_d = all_bnd[b, past + t] + y_d
            rows.append(y_d if pre else naive_norm(block.norm, y_d))
    return torch.stack(rows).view(batch, time, -1)


def gradients(y_btd: Tensor, x_btd: Tensor, model: Model) -> dict[str, Tensor]:
    """What one loss says about the input and every parameter of the block."""
    wanted = {"input": x_btd} | dict(model.blocks[0].named_parameters())
    if model.content_bias is not None and model.position_bias is not None:
        wanted |= {"content_bias": model.content_bias, "position_bias": model.position_bias}
    loss = (y_btd * noise(*y_btd.shape, seed=1)).sum()
    return dict(zip(wanted, torch.autograd.grad(loss, list(wanted.values())), strict=True))


def assert_near(actual: Any, expected: Any) -> None:
    # The tables of sines are made in fp32, whatever the model's type.
    assert_close(actual, expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("name", CAUSAL_CASES)
def test_training_attends_as_the_definition_says(name: str, heads: int) -> None:
    """Outputs and all gradients, with remembered inputs that go through today's weights."""
    model = make(name, heads).train()
    for time, past in SHAPES:
        memory_bmd, x_btd = noise(BATCH, past, 12, seed=2), noise(BATCH, time, 12).requires_grad_()
        state = InputMemory(memory_bmd) if past else None
        y_btd, _ = run_block(model, x_btd, state, memory=20, position=past)
        wanted_btd = naive_block(model, torch.cat((memory_bmd, x_btd), dim=1), time)
        assert_near(y_btd, wanted_btd)
        assert_near(gradients(y_btd, x_btd, model), gradients(wanted_btd, x_btd, model))


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("name", CAUSAL_CASES)
def test_inference_attends_as_the_definition_says(name: str, heads: int) -> None:
    """With remembered keys and values, after a memory read in two pieces."""
    model = make(name, heads)
    for time, past in SHAPES:
        all_bnd = noise(BATCH, past + time, 12)
        with torch.no_grad():
            state, at = None, 0
            for length in (past - past // 2, past // 2):
                if length:
                    piece_btd = all_bnd[:, at : at + length]
                    _, state = run_block(model, piece_btd, state, memory=20, position=at)
                    at += length
            y_btd, _ = run_block(model, all_bnd[:, past:], state, memory=20, position=past)
            assert_near(y_btd, naive_block(model, all_bnd, time))


@pytest.mark.parametrize("name", CAUSAL_CASES)
def test_evaluation_with_gradients_attends_as_the_definition_says(name: str) -> None:
    """Keys of the past are fixed numbers then; what is new has its gradient, step after step."""
    model = make(name, 3)
    state, past_bmd = None, noise(BATCH, 0, 12)
    for step in range(4):
        x_btd = noise(BATCH, 2, 12, seed=step).requires_grad_()
        all_bnd = torch.cat((past_bmd, x_btd), dim=1)
        y_btd, state = run_block(model, x_btd, state, memory=20, position=past_bmd.shape[1])
        wanted_btd = naive_block(model, all_bnd, 2)
        assert_near(y_btd, wanted_btd)
        got, wanted = gradients(y_btd, x_btd, model), gradients(wanted_btd, x_btd, model)
        for parameter in wanted:
            if step == 0 or not parameter.startswith(("qkv", "norm")):
                assert_near(got[parameter], wanted[parameter])
        past_bmd = all_bnd.detach()


@pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("name", [name for name in CASES if name not in CAUSAL_CASES])
def test_both_sides_are_seen_and_padding_is_not(
    name: str, heads: int, padded: bool, training: bool
) -> None:
    model = make(name, heads).train(training)
    for time in (1, 2, 6):
        x_btd = noise(BATCH, time, 12).requires_grad_()
        padding = torch.ones(BATCH, time, dtype=torch.bool) if padded else None
        if padding is not None:
            padding[1, max(1, time - 2) :] = False
        y_btd, state = run_block(model, x_btd, padding=padding)
        wanted_btd = naive_block(model, x_btd, time, padding=padding)
        assert state is None
        assert_near(y_btd, wanted_btd)
        assert_near(gradients(y_btd, x_btd, model), gradients(wanted_btd, x_btd, model))
        with torch.no_grad():
            assert_near(run_block(model, x_btd, padding=padding)[0], wanted_btd)


@pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])
def test_rotary_attention_depends_on_distances_alone(training: bool) -> None:
    """The same text far down the road gives the same numbers."""
    model = make("rotary", 3).train(training)
    memory_bmd, x_btd = noise(BATCH, 3, 12, seed=2), noise(BATCH, 4, 12)
    near, far = (
        run_block(model, x_btd, InputMemory(memory_bmd), memory=9, position=position)[0]
        for position in (3, 500)
    )
    assert_close(near, far, atol=1e-4, rtol=1e-4)  # fp32 angles grow coarser with their size


@pytest.mark.parametrize("first", [0, 5])
def test_a_memory_that_lost_its_start_keeps_its_places(first: int) -> None:
    """Rotary keys stand where the text had them, not where the memory does."""
    model = make("rotary", 3).train()
    memory_bmd, x_btd = noise(BATCH, 3, 12, seed=2), noise(BATCH, 4, 12)
    y_btd, _ = run_block(model, x_btd, InputMemory(memory_bmd), memory=9, position=first + 3)
    assert_near(y_btd, naive_block(model, torch.cat((memory_bmd, x_btd), dim=1), 4, first))


@pytest.mark.parametrize(("time", "keys"), [(1, 1), (1, 8), (2, 2), (3, 3), (2, 9), (5, 6), (7, 7)])
def test_align_turns_columns_of_distances_into_columns_of_keys(time: int, keys: int) -> None:
    """Values and gradients, where a key is not hidden."""
    scores_bhtn = noise(2, 3, time, keys).requires_grad_()
    hidden_tn = torch.arange(keys) > torch.arange(keys - time, keys)[:, None]
    mask_tn = torch.zeros(time, keys, dtype=torch.float64).masked_fill(hidden_tn, -math.inf)
    aligned_bhtn = align(scores_bhtn, scores_bhtn.shape[-1], mask_tn)
    probe_bhtn = noise(2, 3, time, keys, seed=1).masked_fill(hidden_tn, 0)
    wanted_bhtn = torch.zeros(2, 3, time, keys, dtype=torch.float64)
    gradient_bhtn = torch.zeros_like(wanted_bhtn)
    for t in range(time):
        for j in range(keys):
            distance = keys - time + t - j
            if distance < 0:
                wanted_bhtn[:, :, t, j] = -math.inf
            else:
                wanted_bhtn[:, :, t, j] = scores_bhtn[:, :, t, keys - 1 - distance].detach()
                gradient_bhtn[:, :, t, keys - 1 - distance] = probe_bhtn[:, :, t, j]
    assert_close(aligned_bhtn, wanted_bhtn)
    (got_bhtn,) = torch.autograd.grad(aligned_bhtn, scores_bhtn, probe_bhtn)
    assert_close(got_bhtn, gradient_bhtn)


def test_align_takes_scores_in_any_layout() -> None:
    scores_bhtn = noise(4, 9, 3, 2).permute(3, 2, 0, 1)[:, 1:, :, 2:]
    tidy_bhtn = scores_bhtn.clone(memory_format=torch.contiguous_format)
    mask_tn = noise(4, 7, seed=1)
    assert not scores_bhtn.is_contiguous()
    assert_close(align(scores_bhtn, 7, mask_tn), align(tidy_bhtn, 7, mask_tn))


def test_one_query_that_sees_everything_needs_no_alignment() -> None:
    scores_bhtn = noise(2, 3, 1, 5)
    assert_close(align(scores_bhtn, scores_bhtn.shape[-1], None), scores_bhtn)


@pytest.mark.parametrize("name", ["relative, pre-norm", "learned", "rotary, grouped queries"])
@pytest.mark.parametrize("share", [{"dropatt": 0.5}, {"dropout": 0.5}], ids=["dropatt", "dropout"])
def test_dropping_happens_in_training_alone_and_keeps_the_mean(
    name: str, share: dict[str, float]
) -> None:
    sure = make(name, 3)
    model = build(sure.config.replaced(**share), dtype=torch.float64)
    model.load_state_dict(sure.state_dict())
    x_btd = noise(1, 4, 12).expand(3000, -1, -1)
    with torch.no_grad():
        wanted_btd, _ = run_block(sure, x_btd[:1])
        quiet_btd, _ = run_block(model, x_btd[:1])
        torch.manual_seed(0)
        dropped_btd, _ = run_block(model.train(), x_btd)
    assert_close(quiet_btd, wanted_btd)
    assert dropped_btd.std(0).mean() > 0.1
    off_td = (dropped_btd.mean(0) - wanted_btd[0]) / (dropped_btd.std(0) / math.sqrt(3000) + 1e-9)
    assert off_td.abs().max() < 5, "the mean is off by more standard errors than chance explains"


@pytest.mark.parametrize("mode", ["training", "evaluation with gradients", "inference"])
def test_the_memory_keeps_what_it_may_and_no_more(mode: str) -> None:
    model = make("relative", 3).train(mode == "training")
    kind = InputMemory if mode == "training" else KeyValueMemory
    with torch.set_grad_enabled(mode != "inference"):
        for memory in (1, 3, 100):
            state, seen = None, 0
            for time in (2, 1, 4):
                x_btd = noise(BATCH, time, 12)
                _, state = run_block(model, x_btd, state, memory=memory, position=seen)
                seen += time
                assert isinstance(state, kind)
                assert (state.batch, state.length) == (BATCH, min(memory, seen))
        _, state = run_block(model, noise(BATCH, 2, 12), memory=0)
        assert state is None


@pytest.mark.parametrize(
    ("changes", "pattern", "problem"),
    [
        ({}, "s[kv_heads=2]", "2 key-value heads do not divide 3 heads"),
        ({"n_kv_head": 5}, "s", "5 key-value heads do not divide 3 heads"),
        ({}, "s[heads=5]", "5 heads do not divide d_model 12"),
        ({}, "s[heads=13]", "13 heads do not fit into d_model 12"),
        ({"family": "transformer-xl"}, "s[head=5]", "3 heads × 5 cannot share"),
        ({"family": "llama", "d_head": 3}, "s", "even head width, got 3"),
        ({"family": "llama"}, "s[head=7]", "even head width, got 7"),
    ],
)
def test_heads_that_do_not_fit_are_refused(
    changes: dict[str, Any], pattern: str, problem: str
) -> None:
    config = small_config(**{"family": "gpt2", "pattern": pattern} | changes)
    with pytest.raises(ConfigError, match=problem) as caught:
        head_sizes(config, config.pattern[0].options)
    assert "\n" not in str(caught.value)
    assert "set " in str(caught.value)


@pytest.mark.parametrize("positions", ["learned", "rotary", "none"])
def test_heads_of_any_size_fit_where_no_position_biases_are_shared(positions: str) -> None:
    config = small_config("transformer-xl", positions=positions, max_len=8, pattern="s[head=6]")
    assert head_sizes(config, config.pattern[0].options) == (3, 3, 6)
