"""Do SRU and SRU++ compute what the paper writes, whatever the options?

The twin below goes token by token and channel by channel through the equations of Lei 2021.
"""

# b batch, t time, m memory, d width, p width of the projection

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from parformer.blocks import BLOCKS, Shape
from parformer.blocks.sru import CellMemory, Recurrent
from parformer.blocks.sru_attention import AttentiveKeys, AttentiveMemory
from parformer.config import FAMILIES
from parformer.costs import cost
from parformer.errors import ConfigError
from parformer.model import Model, build
from parformer.pattern import Pattern
from parformer.train.optimizers import group_parameters
from tests.conftest import (
    CountFlops,
    lively,
    noise,
    run_block,
    run_pieces,
    small_config,
    small_model,
)

CAUSAL = [family for family, usual in FAMILIES.items() if usual["causal"]]
RECURRENCES = ["r", "r[width=5]", "r[norm=off]", "r[full]"]
ATTENTIONS = [
    "a",
    "a[heads=3]",
    "a[heads=2,width=8]",
    "a[norm=pre]",
    "a[norm=off,width=2]",
    "a[qkv]",
    "a[heads=2,norm=pre,qkv,width=4]",
]
BATCH, TIME, MEMORY, WIDTH = 2, 5, 7, 12

any_block = pytest.mark.parametrize("spec", RECURRENCES + ATTENTIONS)
any_attention = pytest.mark.parametrize("spec", ATTENTIONS)
any_mode = pytest.mark.parametrize("mode", ["training", "inference"])


def weights(model: Model) -> dict[str, Tensor]:
    """The block's parameters by name."""
    return {
        name.removeprefix("blocks.0."): parameter
        for name, parameter in model.named_parameters()
        if name.startswith("blocks.0.")
    }


def layer_norm(x_p: Tensor, w: dict[str, Tensor]) -> Tensor:
    centred = x_p - x_p.sum() / len(x_p)
    spread = torch.sqrt((centred * centred).sum() / len(x_p) + 1e-5)
    return centred / spread * w["inner_norm.weight"] + w["inner_norm.bias"]


def look_back(asked_p: Tensor, read: list[Tensor], w: dict[str, Tensor], heads: int) -> Tensor:
    """What one token gets from itself and all before it, head by head, key by key."""
    width = len(asked_p) // heads
    keys = [w["key_value.weight"][: len(asked_p)] @ z_p for z_p in read]
    values = [w["key_value.weight"][len(asked_p) :] @ z_p for z_p in read]
    parts = []
    for head in range(heads):
        own = slice(head * width, (head + 1) * width)
        scores = [(asked_p[own] * k_p[own]).sum() / math.sqrt(width) for k_p in keys]
        shares = torch.stack(scores).exp() / torch.stack(scores).exp().sum()
        parts.append(sum(s * v_p[own] for s, v_p in zip(shares, values, strict=True)))
    return torch.cat(parts)


def twin(
    spec: str,
    w: dict[str, Tensor],
    x_btd: Tensor,
    past_bmd: Tensor | None = None,
    cell_bd: Tensor | None = None,
    mask_bd: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Outputs and last cells, by the equations."""
    block = Pattern.parse(spec)[0]
    heads, place = int(block.options.get("heads", 1)), block.options.get("norm", "post")
    width = x_btd.shape[-1]
    outputs, cells = [], []
    for b, x_td in enumerate(x_btd):
        before = [] if past_bmd is None else list(past_bmd[b])
        c_d = torch.zeros(width, dtype=x_btd.dtype) if cell_bd is None else cell_bd[b]
        rows = []
        for t, x_d in enumerate(x_td):
            if "full" in block.options:
                inside = x_d
            elif block.letter == "r":
                inside = w["project.weight"] @ x_d
                inside = inside if place == "off" else layer_norm(inside, w)
            else:
                seen = [w["project.weight"] @ x for x in (*before, *x_td[: t + 1])]
                read = [layer_norm(z, w) for z in seen] if place == "pre" else seen
                asked = w["query.weight"] @ read[-1] if "qkv" in block.options else read[-1]
                inside = seen[-1] + w["alpha"] * look_back(asked, read, w, heads)
                inside = layer_norm(inside, w) if place == "post" else inside
            candidate, forget, reset = (w["out.weight"] @ inside).split(width)
            f = 1 / (
                1 + torch.exp(-(forget + w["gate_weight"][:width] * c_d + w["gate_bias"][:width]))
            )
            r = 1 / (
                1 + torch.exp(-(reset + w["gate_weight"][width:] * c_d + w["gate_bias"][width:]))
            )
            c_d = f * c_d + (1 - f) * candidate
            r = r if mask_bd is None else r * mask_bd[b]
            rows.append(r * c_d + (1 - r) * x_d)
        outputs.append(torch.stack(rows))
        cells.append(c_d)
    return torch.stack(outputs), torch.stack(cells)


def cell_of(state: Any) -> Tensor:
    assert isinstance(state, CellMemory | AttentiveMemory | AttentiveKeys)
    return state.cell_bd


@any_block
@any_mode
@pytest.mark.parametrize("family", ["sru", "transformer-xl", "gpt2"])
def test_outputs_are_those_of_the_equations(spec: str, mode: str, family: str) -> None:
    """After a piece that is remembered, and within the piece that follows."""
    model = small_model(family, spec)
    x_btd = noise(BATCH, 4 + TIME, WIDTH)
    model.train(mode == "training")
    with torch.no_grad():
        first_btd, state = run_block(model, x_btd[:, :4], memory=MEMORY)
        then_btd, after = run_block(model, x_btd[:, 4:], state, memory=MEMORY, position=4)
        wanted_btd, cell_bd = twin(spec, weights(model), x_btd)
    model.eval()
    assert_close(torch.cat((first_btd, then_btd), dim=1), wanted_btd)
    assert_close(cell_of(after), cell_bd)


@any_block
def test_gradients_are_those_of_the_equations(spec: str) -> None:
    """Of the input and of every weight; the past counts, but as something given."""
    model = small_model("sru", spec)
    w = weights(model)
    past_bmd, probe_btd = noise(BATCH, 3, WIDTH, seed=1), noise(BATCH, TIME, WIDTH, seed=2)
    model.train()
    _, state = run_block(model, past_bmd, memory=MEMORY)
    x_btd = noise(BATCH, TIME, WIDTH).requires_grad_()
    y_btd, _ = run_block(model, x_btd, state, memory=MEMORY, position=3)
    model.eval()
    found = torch.autograd.grad((y_btd * probe_btd).sum(), [x_btd, *w.values()])
    wanted_btd, _ = twin(spec, w, x_btd, past_bmd, cell_of(state))
    wanted = torch.autograd.grad((wanted_btd * probe_btd).sum(), [x_btd, *w.values()])
    for name, one, other in zip(["input", *w], found, wanted, strict=True):
        assert_close(one, other, msg=lambda text, name=name: f"gradient of {name}: {text}")
        assert one.any(), name


@any_block
@pytest.mark.parametrize("family", CAUSAL)
def test_the_price_is_what_is_built_multiplied_and_kept(spec: str, family: str) -> None:
    model = small_model(family, spec, torch.float32)
    (block,) = Pattern.parse(spec)
    shape = Shape(BATCH, TIME, MEMORY, MEMORY)
    price = BLOCKS[block.letter].cost(model.config, block, shape)
    assert price.parameters == sum(p.numel() for p in model.blocks[0].parameters())
    past_btd, x_btd = (noise(BATCH, n, WIDTH, dtype=torch.float32) for n in (MEMORY, TIME))
    for training, flops in ((True, price.flops), (False, price.flops_cached)):
        model.train(training)
        with torch.set_grad_enabled(training):
            _, state = run_block(model, past_btd, memory=MEMORY)
            with CountFlops() as counted:
                _, state = run_block(model, x_btd, state, memory=MEMORY, position=MEMORY)
        model.eval()
        assert counted.flops == flops
    assert state is not None
    assert state.bytes == price.state_bytes


@any_block
@any_mode
def test_a_cell_goes_on_even_where_attention_remembers_nothing(spec: str, mode: str) -> None:
    model, x_btd = small_model("sru", spec), noise(BATCH, 6, WIDTH)
    model.train(mode == "training")
    with torch.set_grad_enabled(mode == "training"):
        pieces_btd, state = run_pieces(model, x_btd, [2, 4], memory=0)
        _, first = run_block(model, x_btd[:, :2], memory=0)
        wanted_btd, cell_bd = twin(spec, weights(model), x_btd[:, 2:], None, cell_of(first))
    model.eval()
    assert_close(pieces_btd[:, 2:], wanted_btd)
    assert_close(cell_of(state), cell_bd)


@pytest.mark.parametrize("spec", RECURRENCES)
@any_mode
def test_pieces_of_a_text_give_what_the_whole_gives(spec: str, mode: str) -> None:
    model, x_btd = small_model("sru", spec), noise(1, 9, WIDTH)
    model.train(mode == "training")
    whole_btd, one = run_block(model, x_btd)
    pieces_btd, other = run_pieces(model, x_btd, [1, 3, 5], memory=0)
    model.eval()
    # only products of another number of rows may round otherwise
    assert_close(pieces_btd, whole_btd, atol=1e-14, rtol=1e-13)
    assert_close(cell_of(other), cell_of(one), atol=1e-14, rtol=1e-13)


@any_block
@any_mode
def test_cells_are_never_in_half_precision(spec: str, mode: str) -> None:
    for dtype, kind in ((torch.bfloat16, torch.float32), (torch.float64, torch.float64)):
        model = small_model("sru", spec, dtype)
        model.train(mode == "training")
        _, state = run_pieces(model, noise(1, 4, WIDTH, dtype=dtype), [2, 2], memory=3)
        model.eval()
        assert cell_of(state).dtype == kind


def test_the_cell_is_all_that_r_remembers() -> None:
    model = small_model("sru", "r")
    _, state = run_block(model, noise(3, 4, WIDTH), memory=5)
    assert isinstance(state, CellMemory)
    assert (state.batch, state.length, state.bytes) == (3, 0, 3 * WIDTH * 8)
    assert BLOCKS["r"].state_needs_run


@any_block
def test_a_training_memory_can_be_taken_apart_and_recalled(spec: str) -> None:
    model, x_btd = small_model("sru", spec), noise(BATCH, 6, WIDTH)
    for memory in (0, 3):
        model.train()
        _, state = run_block(model, x_btd[:, :4], memory=memory)
        assert state is not None
        parts = {name: tensor.clone() for name, tensor in state.tensors().items()}
        again = model.blocks[0].recall(parts)
        answers = [run_block(model, x_btd[:, 4:], s, memory=memory)[0] for s in (state, again)]
        model.eval()
        assert type(again) is type(state)
        assert torch.equal(*answers)
        assert ("inputs_bmd" in parts) == (spec[0] == "a" and memory > 0)


# Dropout


@any_block
def test_dropout_takes_whole_channels_from_a_text(spec: str) -> None:
    """They show nothing of their cells; the others show twice as much, at every token."""
    config = small_config("gpt2", pattern=spec, dropout=0.5)
    model = lively(build(config, dtype=torch.float64)).train()
    model.blocks[0].inner_dropout = 0.0
    x_btd = noise(BATCH, TIME, WIDTH)
    torch.manual_seed(0)
    y_btd, state = run_block(model, x_btd, memory=MEMORY)
    dropped_bd = (y_btd == x_btd).all(1)
    assert 0 < dropped_bd.sum() < dropped_bd.numel()
    wanted_btd, cell_bd = twin(spec, weights(model), x_btd, mask_bd=2.0 * ~dropped_bd)
    assert_close(y_btd, wanted_btd)
    assert_close(cell_of(state), cell_bd)  # cells themselves lose nothing
    again_btd, _ = run_block(model, x_btd, memory=MEMORY)
    assert not torch.equal(again_btd, y_btd)
    model.eval()
    calm_btd, _ = run_block(model, x_btd, memory=MEMORY)
    assert_close(calm_btd, twin(spec, weights(model), x_btd)[0])


@any_block
def test_dropout_inside_is_of_single_numbers(spec: str) -> None:
    config = small_config("sru", pattern=spec, dropout=0.25, d_attention=6)
    model = lively(build(config, dtype=torch.float64)).train()
    inside: list[Tensor] = []
    model.blocks[0].out.register_forward_pre_hook(lambda _, given: inside.append(given[0]))
    x_btd = noise(30, 40, WIDTH)
    run_block(model, x_btd)
    with torch.no_grad():
        run_block(model.eval(), x_btd)
    dropped, calm = inside
    if spec == "r[full]":
        assert torch.equal(dropped, calm)
        return
    kept = dropped != 0
    assert_close(dropped[kept], calm[kept] / 0.75)
    assert (~kept).double().mean() == pytest.approx(0.25, abs=0.03)
    assert (~kept).any(1).double().mean() > 0
    assert not (~kept).all(1).any()


def test_what_the_last_block_gives_is_dropped_only_once() -> None:
    model = build(small_config("sru", pattern="rar", dropout=0.5)).train()
    assert [block.dropout for block in model.blocks] == [0.5, 0.5, 0.0]
    assert [block.inner_dropout for block in model.blocks] == [0.5] * 3
    out = model(torch.zeros(4, 8, dtype=torch.int64))
    assert (out.hidden == 0).double().mean() == pytest.approx(0.5, abs=0.15)
    assert [b.dropout for b in build(small_config("gpt2", pattern="r", dropout=0.5)).blocks] == [
        0.5
    ]


# First weights


@any_block
@pytest.mark.parametrize("family", ["sru", "transformer-xl"])
@pytest.mark.parametrize("dropout", [0.0, 0.36])
def test_first_weights_are_drawn_as_the_authors_draw_them(
    spec: str, family: str, dropout: float
) -> None:
    config = small_config(family, pattern=spec, d_model=96, n_head=2, dropout=dropout)
    w = {name: p.detach() for name, p in weights(build(config, seed=3)).items()}
    assert w["gate_weight"].abs().max() == pytest.approx(1, abs=0.05)
    assert w["gate_weight"].mean() == pytest.approx(0, abs=0.15)
    forget, reset = w["gate_bias"].chunk(2)
    assert forget.tolist() == [0.0] * 96
    assert reset.tolist() == [-2.0] * 96
    reach = {
        name: math.sqrt(6 / sum(w[name].shape))
        for name in ("project.weight", "query.weight", "key_value.weight", "out.weight")
        if name in w
    }
    reach["out.weight"] *= math.sqrt(1 - dropout)
    parts = {name: w[name] for name in reach}
    if spec == "r[full]":
        candidate, gates = torch.split(parts.pop("out.weight"), [96, 192])
        parts |= {"candidate": candidate, "gates": gates}
        lost = 0.0 if family == "sru" else dropout  # which drops nothing of the last block
        reach |= {"candidate": math.sqrt(3 / 96 * (1 - lost)), "gates": math.sqrt(3 / 96 / 2)}
    for name, part in parts.items():
        assert part.abs().max() <= reach[name] * (1 + 1e-6), name
        if part.numel() > 1000:
            assert part.abs().max() > 0.97 * reach[name], name
            assert part.std() == pytest.approx(reach[name] / math.sqrt(3), rel=0.1), name
    assert "alpha" not in w or w["alpha"].tolist() == [0.0]


def test_the_same_seed_gives_the_same_first_weights() -> None:
    config = small_config("sru", pattern="r[full] ra")
    one, same, other = (dict(build(config, seed=s).named_parameters()) for s in (1, 1, 2))
    for name in one:
        assert torch.equal(one[name], same[name])
        fixed = name.endswith(("bias", "alpha")) or "norm" in name
        assert torch.equal(one[name], other[name]) == fixed, name


def test_embeddings_of_the_family_are_drawn_as_the_authors_draw_them() -> None:
    changes: dict[str, Any] = {"vocab_size": 90, "embedding": "adaptive", "cutoffs": [30, 60]}
    changes |= {"div_val": 2, "d_embed": 32, "tie_weights": False, "tie_projections": "none"}
    config = small_config("sru", pattern="r", d_model=48, n_head=1, **changes)
    for name, p in build(config).named_parameters():
        if name.startswith("blocks."):
            continue
        if name.endswith("bias"):
            assert not p.any(), name
            continue
        reach = math.sqrt(3 / 48)
        if "projection" in name:
            reach = math.sqrt(6 / sum(p.shape))
        assert 0.9 * reach < p.abs().max() <= reach * (1 + 1e-6), name


@any_block
def test_weight_decay_leaves_the_vectors_alone(spec: str) -> None:
    decaying, fixed = group_parameters(small_model("sru", spec))
    for name in weights(small_model("sru", spec)):
        matrix = name in ("project.weight", "query.weight", "key_value.weight", "out.weight")
        assert f"blocks.0.{name}" in (decaying if matrix else fixed)


# What is refused


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("r[full,width=3]", r"r\[full\] has no projection that width=3 could be about"),
        ("r[full,norm=off]", r"no projection that norm=off .*; leave out full or norm"),
        ("r[norm=pre]", r"norm in 'r\[norm=pre\]' must be one of post, off, got 'pre'"),
        ("a[norm=on]", r"norm in 'a\[norm=on\]' must be one of post, pre, off, got 'on'"),
        ("a[heads=2]", r"2 heads do not divide the width 3 inside 'a\[heads=2\]'; set width="),
        ("a[heads=0]", "'heads' in .* must be at least 1, got 0"),
        ("a[width=0]", "'width' in .* must be at least 1, got 0"),
        (
            "r[heads=1]",
            "unknown option 'heads' in .*; known options: both, full, norm, share, width",
        ),
        (
            "a[full]",
            "unknown option 'full' in .*; known options: both, heads, norm, qkv, share, source, w",
        ),
        ("a[qkv=3]", "option 'qkv' in .* takes no value, got 3"),
    ],
)
def test_options_that_make_no_block_are_refused(pattern: str, problem: str) -> None:
    config = small_config("sru", pattern=pattern)
    for attempt in (lambda: cost(config), lambda: build(config)):
        with pytest.raises(ConfigError, match=problem) as caught:
            attempt()
        assert "\n" not in str(caught.value)


def test_a_negative_width_is_refused() -> None:
    with pytest.raises(ConfigError, match="d_attention must be at least 0, got -1"):
        small_config("sru", pattern="a", d_attention=-1)


def test_a_width_is_a_quarter_unless_said() -> None:
    def width(pattern: str, **changes: Any) -> int:
        model = build(small_config("sru", pattern=pattern, **changes))
        return int(model.blocks[0].project.out_features)

    assert [width("r"), width("a")] == [3, 3]
    assert [width(p, d_attention=5) for p in ("r", "a", "r[width=2]")] == [5, 5, 2]
    assert width("a", d_model=2, n_head=1) == 1
    assert issubclass(BLOCKS["a"], Recurrent)
