"""Is LSRA what the papers say, whatever its options?

Convolutions are compared with what fairseq gave, the block with one that is written out here.
"""

# b batch, t time, d width, c channels, h heads, k taps

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import Tensor
from torch.testing import assert_close

import parformer as pf
from parformer.blocks import BLOCKS, LSRA, Shape
from parformer.blocks.attention import SelfAttention
from parformer.blocks.convolution import Convolution, tap_weights
from parformer.blocks.state import GroupState
from parformer.config import ModelConfig
from parformer.errors import ConfigError
from parformer.kernels.convolution import convolve
from parformer.pattern import BlockSpec, Pattern
from tests.conftest import (
    CountFlops,
    lively,
    noise,
    run_block,
    run_pieces,
    small_config,
    small_model,
)

ORACLE = Path(__file__).parents[1] / "oracles" / "convolution_a.safetensors"


def read_oracle() -> tuple[dict[str, Any], dict[str, Tensor]]:
    with safe_open(ORACLE, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return json.loads(file.metadata()["config"]), tensors


CONFIGS, TENSORS = read_oracle()
OPTIONS = (
    "l",
    "l[light]",
    "l[dynamic,kernel=3]",
    "l[kernel=4,heads=2]",
    "l[glu=off]",
    "l[light,glu=on,kernel=1]",
    "l[attend=0]",
    "l[attend=0,light,kernel=5]",
    "l[attend=1]",
    "l[attend=0.25]",
    "l[branches=attend4h2+dynamic6h1k2+light2h2k9,glu=on]",
    "l[branches=light6+attend3+attend3h1,kernel=3]",
    "l[branches=attend6+dynamic3h2k3i4+light3h1k2i5]",
    "l[leaky]",
)
any_options = pytest.mark.parametrize("pattern", OPTIONS)


# Convolutions alone


@pytest.mark.parametrize("tag", CONFIGS)
def test_a_convolution_gives_what_fairseq_gave(tag: str) -> None:
    config = CONFIGS[tag]
    own = {n.removeprefix(f"{tag}."): t for n, t in TENSORS.items() if n.startswith(f"{tag}.")}
    heads, taps, left = config["heads"], config["kernel"], config["padding_left"]
    weights = {n: t.clone().requires_grad_() for n, t in own.items() if n.startswith("weight.")}
    x_tbc = own["input.x"].clone().requires_grad_()
    x_btc = x_tbc.transpose(0, 1)
    if config["kind"] == "light":
        scores = weights["weight.weight"].squeeze(1)
    else:
        scores = F.linear(x_btc, weights["weight.weight_linear.weight"])
        scores = torch.unflatten(scores, -1, (heads, taps))
    y_btc = convolve(x_btc, tap_weights(scores), x_btc.shape[1], -left)
    bias = weights.get("weight.bias", weights.get("weight.conv_bias"))
    y_btc = y_btc if bias is None else y_btc + bias
    y_tbc = y_btc.transpose(0, 1)
    assert_close(y_tbc, own["output"], atol=1e-6, rtol=0.0)
    (y_tbc * own["input.weight_of_output"]).sum().backward()
    assert_close(x_tbc.grad, own["grad.input.x"], atol=5e-6, rtol=0.0)
    for name, weight in weights.items():
        truth = own[name.replace("weight.", "grad.", 1)]
        assert_close(weight.grad, truth, atol=5e-6, rtol=0.0)


def test_taps_beyond_a_text_may_have_no_weight() -> None:
    """As fairseq's renorm_padding: softmax over the taps that lie inside."""
    scores = noise(2, 4, 3, 5)
    weights = tap_weights(scores, inside_only=True, time=4, left=2)
    for t in range(4):
        inside = [k for k in range(5) if 0 <= t + k - 2 < 4]
        assert_close(weights[:, t][..., inside], scores[:, t][..., inside].softmax(-1))
    assert_close(weights.sum(-1), torch.ones(2, 4, 3, dtype=torch.float64))


# The block


def by_hand(block: LSRA, x_btd: Tensor, *, causal: bool, present: Tensor | None = None) -> Tensor:
    """What all branches see, one token after the other."""
    answers, first = [], 0
    for branch, channels in zip(block.branches, block.sizes, strict=True):
        x_btc = x_btd[..., first : first + channels]
        first += channels
        far = isinstance(branch, SelfAttention)
        see = attend_by_hand if far else convolve_by_hand
        answers.append(see(branch, x_btc, causal, present))
    return torch.cat(answers, -1)


def attend_by_hand(
    branch: SelfAttention, x_btc: Tensor, causal: bool, present: Tensor | None
) -> Tensor:
    q, k, v = branch.qkv(x_btc).chunk(3, -1)
    rows = []
    for t in range(x_btc.shape[1]):
        heads = []
        for h in range(branch.heads):
            own = slice(h * branch.width, (h + 1) * branch.width)
            last = t + 1 if causal else x_btc.shape[1]
            scores = (k[:, :last, own] @ q[:, t, own, None])[..., 0] / branch.width**0.5
            if present is not None:
                scores = scores.masked_fill(~present[:, :last], -torch.inf)
            heads.append((scores.softmax(-1)[:, None] @ v[:, :last, own])[:, 0])
        rows.append(torch.cat(heads, -1))
    return branch.out(torch.stack(rows, 1))


def convolve_by_hand(
    branch: Convolution, x_btc: Tensor, causal: bool, present: Tensor | None
) -> Tensor:
    if present is not None and branch.leaky:
        x_btc = x_btc * present[..., None]
    u = branch.inner(x_btc)
    if branch.gated:
        one, other = u.chunk(2, -1)
        u = one * torch.sigmoid(other)
    if present is not None and not branch.leaky:
        u = u * present[..., None]
    taps, heads = branch.taps, branch.heads
    left = taps - 1 if causal else taps // 2
    y = torch.zeros_like(u)
    for t in range(u.shape[1]):
        scores = branch.scores if branch.kernel is None else branch.kernel(u[:, t])
        weights = scores.reshape(-1, heads, taps).softmax(-1)
        for k in range(taps):
            if 0 <= t + k - left < u.shape[1]:
                each = weights[:, :, k].repeat_interleave(u.shape[2] // heads, 1)
                y[:, t] = y[:, t] + each * u[:, t + k - left]
    return branch.out(y)


@any_options
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("padded", [False, True])
def test_the_block_is_what_is_written_out_here(pattern: str, causal: bool, padded: bool) -> None:
    if not causal:
        pattern = pattern.replace("kernel=4", "kernel=5").replace("k2", "k3")
    model = small_model("lite", pattern, causal=causal)
    x_btd = noise(2, 7, 12)
    present = None
    if padded:
        present = torch.tensor([[True] * 7, [True] * 4 + [False] * 3])
    y_btd, _ = run_block(model, x_btd, padding=present)
    block = model.blocks[0]
    # released, a text that is written has no places without tokens
    known = None if causal and "leaky" in pattern else present
    wanted = block.norm(x_btd + by_hand(block, x_btd, causal=causal, present=known))
    seen = slice(None) if present is None else present
    assert_close(y_btd[seen], wanted[seen])


@pytest.mark.parametrize(
    ("pattern", "family"),
    [
        *((pattern, "lite") for pattern in OPTIONS),
        # relative attention takes an even number of channels
        *((pattern, "transformer-xl") for pattern in OPTIONS if "0.25" not in pattern),
    ],
)
def test_options_are_priced_exactly(pattern: str, family: str) -> None:
    pattern = pattern.replace("attend3+attend3h1", "attend6") if family != "lite" else pattern
    model = small_model(family, pattern, torch.float32)
    spec = Pattern.parse(pattern)[0]
    price = LSRA.cost(model.config, spec, Shape(2, 5, 7, 7))
    assert price.parameters == sum(p.numel() for p in model.blocks[0].parameters())
    with torch.no_grad():
        x_btd = noise(2, 17, 12, dtype=torch.float32)
        _, state = run_pieces(model, x_btd, [12, 5], memory=7)
        with CountFlops() as counted:
            run_block(model, x_btd[:, :5], state, memory=7, position=17)
    assert counted.flops == price.flops_cached
    assert price.state_bytes == (0 if state is None else state.bytes)


@any_options
@pytest.mark.parametrize("training", [True, False])
def test_any_pieces_give_what_one_gives_with_any_options(pattern: str, training: bool) -> None:
    model = small_model("lite", pattern)
    model.train(training)
    x_btd = noise(2, 13, 12)
    with torch.set_grad_enabled(training):
        whole_btd, _ = run_block(model, x_btd, memory=20)
        for lengths in ([1] * 13, [5, 8], [2, 10, 1]):
            assert_close(run_pieces(model, x_btd, lengths, memory=20)[0], whole_btd)
    model.eval()


@any_options
def test_what_would_be_remembered_is_what_a_step_leaves(pattern: str) -> None:
    """Without its answer; and a checkpoint brings it back."""
    model = small_model("lite", pattern)
    block, state, seen = model.blocks[0], None, None
    model.train()
    for x_btd in noise(2, 11, 12).split([3, 6, 2], dim=1):
        context = pf.blocks.Context(memory=5)
        seen = block.remember(x_btd, seen, context)
        _, state = run_block(model, x_btd, state, memory=5)
    model.eval()
    assert isinstance(state, GroupState)
    assert isinstance(seen, GroupState)
    again = block.recall(state.tensors())
    for other in (seen, again):
        assert other.tensors().keys() == state.tensors().keys()
        for name, tensor in state.tensors().items():
            assert_close(other.tensors()[name], tensor)


def test_a_memory_of_zeros_is_as_long_as_asked_for() -> None:
    model = small_model("transformer-xl", "l[kernel=3]", mem_len=9)
    state = model.initial_state(2, 9, zeros=True).blocks[0]
    assert {name: tuple(t.shape) for name, t in state.tensors().items()} == {
        "0.inputs_bmd": (2, 9, 6),
        "1.inputs_bkc": (2, 2, 6),
    }
    assert model(torch.zeros(2, 3, dtype=torch.long), model.initial_state(2, 9, zeros=True))


@pytest.mark.parametrize("feed", ["inside", "shared", "outside"])
def test_inside_a_bottleneck_the_narrow_stream_is_split(feed: str) -> None:
    """Whatever attention is fed there; `l` reads what feed-forwards read."""
    changes: dict[str, Any] = {"d_model": 24, "d_bottleneck": 12}
    config = small_config("lite", pattern=f"<sl[kernel=3]f>[feed={feed}]", **changes)
    model = lively(pf.build(config, dtype=torch.float64))
    assert pf.cost(config).parameters == sum(p.numel() for p in model.parameters())
    tokens = torch.tensor([[3, 1, 4, 1, 5, 9, 2]])
    with torch.no_grad():
        first = model(tokens[:, :3])
        second = model(tokens[:, 3:], first.state).logits
        assert_close(torch.cat((first.logits, second), dim=1), model(tokens).logits)


def test_kernels_are_dropped_while_training() -> None:
    model = lively(pf.build(small_config("lite", pattern="l[attend=0]", dropatt=0.5)))
    x_btd = noise(2, 9, 12, dtype=torch.float32)
    block = model.blocks[0]
    model.train()
    torch.manual_seed(0)
    one, other = (run_block(model, x_btd)[0] for _ in range(2))
    assert not torch.allclose(one, other)
    model.eval()
    assert torch.equal(run_block(model, x_btd)[0], run_block(model, x_btd)[0])
    assert block.branches[0].dropout == 0.5


def test_kernels_and_attention_may_be_dropped_apart() -> None:
    """Lite Transformer's recipe for IWSLT'14 drops a tenth of the kernels and no attention."""
    apart = small_config("lite", pattern="l", dropatt=0.0, dropkernel=0.1)
    attend, convolve = pf.build(apart).blocks[0].branches
    assert (attend.dropatt, convolve.dropout) == (0.0, 0.1)
    attend, convolve = pf.build(apart.replaced(dropatt=0.3, dropkernel=0.0)).blocks[0].branches
    assert (attend.dropatt, convolve.dropout) == (0.3, 0.0)
    older = {name: value for name, value in apart.to_dict().items() if name != "dropkernel"}
    attend, convolve = pf.build(ModelConfig.from_dict(older | {"dropatt": 0.2})).blocks[0].branches
    assert (attend.dropatt, convolve.dropout) == (0.2, 0.2)


# Bad input


@pytest.mark.parametrize(
    ("pattern", "changes", "problem"),
    [
        ("l[kernel=4]", {"causal": False}, "a kernel of 4 taps in .* has no middle.*take 3 or 5"),
        ("l", {"d_model": 9, "positions": "none"}, "a share of 0.5 of 9 channels to attention"),
        ("l[attend=0.3]", {}, "a share of 0.3 of 12 channels to attention; change attend= or"),
        ("l[heads=4]", {}, "4 heads do not divide the 6 channels that attend in .*; set heads="),
        ("l[attend=0,heads=5]", {}, "5 heads do not divide the 12 channels that convolve"),
        ("l[attend=2]", {}, "attend in .* is a share from 0 to 1, got 2"),
        ("l[attend=-0.5]", {}, "attend in .* is a share from 0 to 1, got -0.5"),
        ("l[dynamic,light]", {}, "is dynamic and light; leave out one"),
        ("l[deep]", {}, "unknown option 'deep' in .*; known options: attend, branches, dynamic"),
        ("l[glu=half]", {}, "glu in .* must be on or off, got 'half'"),
        ("l[kernel=0]", {}, "'kernel' in .* must be at least 1, got 0"),
        ("l[kernel=2.5]", {}, "'kernel' in .* takes a whole number, got 2.5"),
        ("l[branches=attend6+wide6]", {}, "branch 'wide6' in .* is none; write attend, dynamic"),
        ("l[branches=attend6i2+light6]", {}, "attends, which has no taps .k. and no channels ins"),
        ("l[branches=attend6+light6h3i4]", {}, "3 heads do not divide the 4 channels that conv"),
        ("l[branches=attend6]", {}, "have 6 channels together, the stream 12; they must agree"),
        ("l[branches=attend6k3+light6]", {}, "branch 'attend6k3' in .* attends, which has no taps"),
        ("l[branches=attend12h0]", {}, "has 0 channels, heads or taps"),
        ("l[branches=attend12,light]", {}, "branches in .* says it all; leave out light"),
        ("l", {"family": "llama", "n_head": 6}, "an even head width, got 1 in 'l'; set heads="),
        ("l[branches=attend3+light9]", {"family": "transformer-xl"}, "even number of channels"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(
    pattern: str, changes: dict[str, Any], problem: str
) -> None:
    config = small_config(**{"family": "lite", "pattern": pattern} | changes)
    for attempt in (
        lambda: pf.cost(config),
        lambda: pf.build(config),
        lambda: BLOCKS["l"](config, BlockSpec("l", Pattern.parse(pattern)[0].options)),
    ):
        if "known options" in problem or "must be at least" in problem or "takes a" in problem:
            attempt = lambda: pf.cost(config)  # noqa: E731 - options are looked at there
        with pytest.raises(ConfigError, match=problem) as caught:
            attempt()
        assert "\n" not in str(caught.value)
