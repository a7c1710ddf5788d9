"""Is every kind of Synthesizer what its formula says, and cheap to the last number?"""

# b batch, t time, n keys, d width, h heads, k head width

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import parformer as pf
from parformer.blocks import Shape, Synthesizer
from parformer.blocks.synthesizer import KINDS
from parformer.blocks.taps import Taps
from parformer.config import FAMILIES
from parformer.errors import ConfigError, InputError, ParformerError, PatternError
from parformer.model import Model, build
from parformer.pattern import Pattern
from tests.conftest import (
    CountFlops,
    noise,
    run_block,
    run_pieces,
    small_config,
    small_model,
)

PAIRS = [*(f"{kind}+vanilla" for kind in KINDS[:-1]), "dense+random"]
WHOLE = [
    *(f"y[{kind}]" for kind in KINDS if kind != "vanilla"),
    *(f"y[{pair}]" for pair in PAIRS),
    "y[dense+fixed+vanilla,alpha]",
    "y[dense+vanilla,alpha]",
    "y[dense,released]",
    "y[dense+vanilla,alpha,released]",
    "y[factored-dense,a=5,b=4,length=20]",
    "y[factored-dense,a=5,b=4,length=20,released]",
    "y[factored-random,rank=3]",
    "y[factored-random,released]",
    "y[random,heads=2,head=5]",
    "y[random+vanilla,bare]",
]
any_whole = pytest.mark.parametrize("pattern", WHOLE)
any_mode = pytest.mark.parametrize("training", [True, False])
BATCH, TIME, MEMORY, LENGTH = 2, 5, 7, 20


def make(pattern: str, family: str = "llama", dtype: Any = torch.float64, **more: Any) -> Model:
    if family != "transformer-xl":
        more = {"max_len": LENGTH} | more
    return small_model(family, pattern, dtype, **more)


def stream(time: int, batch: int = BATCH, seed: int = 0) -> Tensor:
    return noise(batch, time, 12, seed=seed)


def scores_of(block: Synthesizer, x_td: Tensor, h: int, i: int, j: int) -> Tensor:
    """The score of one query and one key of one head, as the papers write it down."""
    sizes, total = block.sizes, torch.zeros((), dtype=torch.float64)
    k, own = sizes.width, slice(h * sizes.width, (h + 1) * sizes.width)
    part = x_td.shape[1] // sizes.heads
    slice_i = x_td[i, h * part : (h + 1) * part]
    query = None if block.query is None else block.query(x_td[i])[own]
    weights = torch.ones(len(sizes.kinds), dtype=torch.float64)
    if block.alpha is not None:
        powers = [*block.alpha.exp(), torch.ones(())]
        weights = torch.stack([power / sum(powers) for power in powers])
    for kind, weight in zip(sizes.kinds, weights, strict=True):
        if kind == "vanilla":
            score = query @ block.key_value(x_td[j])[own]
            score = score if sizes.released else score / k**0.5
        elif kind == "dense" and sizes.released:
            score = block.scores[kind].shared.weight[j] @ query.clamp(min=0)
        elif kind in ("dense", "factored-dense") and not sizes.released:
            maps = block.scores[kind]
            hidden = (maps.hidden.maps[h].weight @ slice_i).clamp(min=0)
            if kind == "dense":
                score = maps.table.maps[h].weight[j] @ hidden
            else:
                a, b = (each.maps[h].weight @ hidden for each in (maps.a, maps.b))
                score = a[j // sizes.b] * b[j % sizes.b]
        elif kind == "factored-dense":
            maps = block.scores[kind]
            a, b = maps.a(x_td[i]), maps.b(x_td[i])
            score = a[h * sizes.a + j % sizes.a] * b[h * sizes.b + j % sizes.b]
        elif kind == "factored-random":
            rows, columns = block.scores[kind].rows_hnr, block.scores[kind].columns_hnr
            score = rows[h, j if sizes.released else i] @ columns[h, j]
        else:
            score = block.scores[kind].table_hnn[h, i, j]
        total = total + weight * score
    return total


def written_out(block: Synthesizer, x_btd: Tensor) -> Tensor:
    """The block place by place; a window begins wherever a table ends."""
    rows = []
    for x_td in x_btd:
        read_td = x_td if block.bare or not block.pre_norm else block.norm(x_td)
        out = []
        for t in range(len(x_td)):
            start = t // block.sizes.length * block.sizes.length
            window_td = read_td[start : start + block.sizes.length]
            seen = range(t - start + 1) if block.causal else range(len(window_td))
            heads = []
            for h in range(block.sizes.heads):
                own = slice(h * block.sizes.width, (h + 1) * block.sizes.width)
                scores = torch.stack([scores_of(block, window_td, h, t - start, j) for j in seen])
                values = block.key_value(window_td)[:, -block.sizes.inside :][: len(seen), own]
                heads.append(scores.softmax(0) @ values)
            out.append(block.out(torch.cat(heads)))
        rows.append(torch.stack(out))
    y_btd = torch.stack(rows)
    if block.bare:
        return y_btd
    return x_btd + y_btd if block.pre_norm else block.norm(x_btd + y_btd)


@any_whole
@pytest.mark.parametrize("causal", [True, False])
def test_every_kind_is_its_formula(pattern: str, causal: bool) -> None:
    """Outputs and gradients of everything that learns."""
    model = make(pattern, causal=causal, head="lm" if causal else "none")
    block = model.blocks[0]
    found = []
    for run in (lambda x: run_block(model, x)[0], lambda x: written_out(block, x)):
        x_btd = stream(4).requires_grad_()
        y_btd = run(x_btd)
        wanted = [x_btd, *block.parameters()]
        gradients = torch.autograd.grad((y_btd * noise(*y_btd.shape, seed=1)).sum(), wanted)
        found.append((y_btd, *gradients))
    assert_close(*found)
    assert all(gradient.any() for gradient in found[0])


@any_whole
@any_mode
def test_any_pieces_give_what_one_gives_in_windows_of_the_table(
    pattern: str, training: bool
) -> None:
    model = make(pattern).train(training)
    with torch.set_grad_enabled(training):
        whole_btd, _ = run_block(model, stream(50), memory=60)
        for lengths in ([20, 20, 10], [7, 20, 3, 17, 3], [1] * 50):
            pieces_btd, _ = run_pieces(model, stream(50), lengths, memory=60)
            assert_close(pieces_btd, whole_btd)
    model.eval()
    length = model.blocks[0].sizes.length
    assert_close(whole_btd[:, length : 2 * length], run_alone(model, stream(50), length))


def run_alone(model: Model, x_btd: Tensor, length: int) -> Tensor:
    """The second window, as a text of its own."""
    with torch.no_grad():
        return run_block(model, x_btd[:, length : 2 * length], memory=60)[0]


@any_whole
@pytest.mark.parametrize("family", ["transformer-xl", "gpt2", "bert"])
def test_the_price_is_exact(pattern: str, family: str) -> None:
    model = make(pattern, family)
    past = MEMORY if model.config.causal else 0
    spec, block = model.config.pattern[0], model.blocks[0]
    price = Synthesizer.cost(model.config, spec, Shape(BATCH, TIME, past, past))
    assert price.parameters == sum(p.numel() for p in block.parameters())
    assert price.constants == sum(b.numel() for b in block.buffers())
    for training, wanted in ((True, price.flops), (False, price.flops_cached)):
        with torch.set_grad_enabled(training):
            model.train(training)
            state = run_block(model, stream(past), memory=past)[1] if past else None
            with CountFlops() as counted:
                _, after = run_block(model, stream(TIME), state, memory=past, position=past)
            model.eval()
        assert counted.flops == wanted
    kept = 0 if after is None else sum(t.numel() for t in after.tensors().values())
    assert price.state_bytes == 4 * kept
    keys_too = 2 if "vanilla" in pattern else 1
    inside = block.sizes.inside if model.config.causal else 0
    assert price.state_bytes_per_token == 4 * inside * keys_too


@pytest.mark.parametrize("pattern", ["y[random]", "y[dense+vanilla]"])
def test_a_memory_longer_than_the_table_keeps_one_window(pattern: str) -> None:
    model = make(pattern)
    with torch.no_grad():
        _, state = run_block(model, stream(50), memory=60)
    price = Synthesizer.cost(model.config, model.config.pattern[0], Shape(BATCH, 1, 60, 60))
    assert state.length == LENGTH - 1
    assert price.state_bytes == state.bytes // 2  # float64


@pytest.mark.parametrize("family", [name for name, usual in FAMILIES.items() if usual["causal"]])
def test_a_model_in_pieces_and_beyond_its_window(family: str) -> None:
    """Whatever the family does at the end of a window, a text may go on."""
    pattern = "y[dense+vanilla]f y[random]f"
    model = make(
        pattern, family, **({"mem_len": 60} if family in ("transformer-xl", "sru") else {})
    )
    tokens = torch.randint(13, (2, 45), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        state, pieces = None, []
        for piece in tokens.split(9, dim=1):
            out = model(piece, state)
            state = out.state
            pieces.append(out.logits)
        assert torch.cat(pieces, dim=1).isfinite().all()
        if not model.config.numbered:  # whose window slides by the pieces
            assert_close(torch.cat(pieces, dim=1), model(tokens).logits)


@pytest.mark.parametrize("pattern", ["y[random]", "y[dense]", "y[factored-dense+vanilla]"])
def test_padding_hides_places_in_every_window(pattern: str) -> None:
    model = make(pattern)
    present = torch.rand(BATCH, 45, generator=torch.Generator().manual_seed(1)) > 0.3
    other = torch.where(present[..., None], stream(45), stream(45, seed=5))
    with torch.no_grad():
        first, _ = run_block(model, stream(45), memory=60, padding=present)
        second, _ = run_block(model, other, memory=60, padding=present)
    assert_close(first[present], second[present])
    assert not torch.allclose(first, run_block(model, stream(45), memory=60)[0])


def test_weights_can_be_heard_and_a_table_knows_no_text() -> None:
    model, taps = make("y[random]y[dense]"), Taps("weights")
    tokens = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])
    model(tokens, taps=taps)
    random, dense = (taps.heard[place]["weights"] for place in "01")
    assert torch.equal(random[0], random[1])
    assert not torch.allclose(dense[0], dense[1])
    assert_close(random.sum(-1), torch.ones(2, 3, 4, dtype=torch.float64))


def test_weights_of_several_windows_are_told_as_one() -> None:
    model, taps = make("y[dense,length=5]y[dense,length=20]"), Taps("weights")
    model(torch.arange(12)[None], taps=taps)
    short, long = (taps.heard[place]["weights"] for place in "01")
    assert short.shape == long.shape == (1, 3, 12, 12)
    assert_close(short.sum(-1), torch.ones(1, 3, 12, dtype=torch.float64))
    window = torch.arange(12) // 5
    assert not short[..., window[:, None] != window].any()
    assert long[..., 11, :].all()


def test_a_fixed_table_is_drawn_saved_and_never_learned(tmp_path: Path) -> None:
    model = build(small_config("gpt2", pattern="y[fixed]f", max_len=LENGTH))
    table = model.blocks[0].scores["fixed"].table_hnn
    assert 0.9 < float(table.std()) < 1.1
    assert not torch.equal(table, build(model.config, seed=1).blocks[0].scores["fixed"].table_hnn)
    assert not table.requires_grad
    model.save(tmp_path / "model")
    again = pf.load(tmp_path / "model")
    assert torch.equal(again.blocks[0].scores["fixed"].table_hnn, table)
    saved = (tmp_path / "model" / "model.safetensors").stat().st_size
    assert 0 < saved - pf.cost(model.config).size < 4096  # names and shapes


@pytest.mark.parametrize("kind", [*KINDS[:-1], "random+vanilla", "dense+vanilla"])
@pytest.mark.parametrize("first", ["family", "scaled"])
def test_first_weights_learn(kind: str, first: str) -> None:
    """A text by heart: what follows a token depends on the one two places before it."""
    config = small_config(
        "gpt2",
        pattern=f"(y[{kind}]f)x2",
        d_model=24,
        max_len=12,
        first_weights=first,
    )
    model = build(config).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    tokens = torch.randint(13, (4, 13), generator=torch.Generator().manual_seed(2))
    losses = []
    for _ in range(60):
        loss = model(tokens[:, :-1], targets=tokens[:, 1:]).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.5 * losses[0]
    if first == "scaled":
        fresh = build(config)
        assert not fresh.blocks[0].out.weight.any()


def test_alpha_begins_with_equal_shares_and_is_left_alone_by_decay() -> None:
    model = build(small_config("gpt2", pattern="y[dense+random+vanilla,alpha]"))
    assert model.blocks[0].alpha.tolist() == [0, 0]


def test_the_released_factors_give_every_query_the_same_row() -> None:
    """The bug that the docs tell of; the paper's product has rows of their own."""
    for pattern, same in (("y[factored-random,released]", True), ("y[factored-random]", False)):
        model, taps = make(pattern, causal=False, head="none"), Taps("weights")
        model(torch.arange(6)[None], taps=taps)
        rows_htn = taps.heard["0"]["weights"][0]
        assert torch.allclose(rows_htn, rows_htn[:, :1]) is same


def test_a_sum_reads_the_same_in_any_order() -> None:
    text = "y[dense+vanilla]"
    assert str(Pattern.parse("y[vanilla+dense]")) == text
    assert Pattern.parse("y[vanilla+dense]") == Pattern.parse(text)
    assert (
        str(Pattern.parse("y[vanilla+random+dense,heads=2]")) == "y[dense+random+vanilla,heads=2]"
    )
    with pytest.raises(PatternError, match=r"second option 'dense\+vanilla'"):
        Pattern.parse("y[dense+vanilla,vanilla+dense]")


@pytest.mark.parametrize(
    ("pattern", "changes", "problem"),
    [
        (
            "y[dens]",
            {},
            r"unknown option 'dens'.*; known kinds, and sums .*: dense, factored-dense",
        ),
        ("y[dense+dens]", {}, r"unknown option 'dens\+dense'.*known kinds"),
        ("y[dense=3]", {}, r"unknown option 'dense'"),
        (
            "y[dense,random]",
            {},
            r"two kinds in 'y\[dense,random\]'; write their sum as dense\+rand",
        ),
        ("y[dense+dense]", {}, "a kind comes twice"),
        ("y[vanilla]", {}, "is attention and nothing else; write s"),
        ("y[random,alpha]", {}, "alpha in .* weighs the parts of a sum"),
        ("y[heads=5]", {}, "5 heads do not divide d_model 12"),
        ("y[heads=5,head=4]", {}, "5 heads do not divide d_model 12.*slice of its own"),
        ("y[factored-dense,a=2,b=3]", {}, "a=2 times b=3 .* are fewer than its length 64"),
        (
            "y[length=8]",
            {},
            r"max_len 64 is beyond the length 8 of 'y\[length=8\]'; write length=64",
        ),
        ("y[length=0]", {}, "'length' in .* must be at least 1"),
        (
            "y[length=99]",
            {"positions": "none", "tgt_len": 300},
            "tgt_len 300 is beyond the length 99",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(
    pattern: str, changes: dict[str, Any], problem: str
) -> None:
    for attempt in (build, pf.cost):
        with pytest.raises(ConfigError, match=problem) as caught:
            attempt(small_config("gpt2", pattern=pattern, **changes))
        assert "\n" not in str(caught.value)


def test_what_sees_both_sides_ends_with_its_table() -> None:
    model = make("y[random,length=8]", causal=False, head="none", positions="none")
    model(torch.zeros(1, 8, dtype=torch.long))
    with pytest.raises(InputError, match=r"9 tokens are beyond the length 8 of 'y\[") as caught:
        model(torch.zeros(1, 9, dtype=torch.long))
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, ParformerError)


def test_a_length_is_the_window_unless_said() -> None:
    assert make("y", "gpt2").blocks[0].sizes.length == LENGTH
    assert make("y", "transformer-xl").blocks[0].sizes.length == 256
    assert make("y[length=31]").blocks[0].sizes.length == 31


@pytest.mark.parametrize(
    ("name", "millions"),
    [
        ("vanilla", 67),
        ("fixed", 61),
        ("random", 67),
        ("factored-random", 61),
        ("dense", 62),
        ("factored-dense", 61),
        ("random-vanilla", 73),
        ("dense-random", 69),  # printed as 67
        ("dense-vanilla", 69),  # printed as 74
    ],
)
def test_counts_of_table_2(name: str, millions: int) -> None:
    """What the paper prints of translation models, but for two rows that no formula gives."""
    config = pf.preset(f"synthesizer-wmt-{name}")
    assert round(pf.cost(config).parameters / 1e6) == millions
    assert 1.15e6 < pf.cost(pf.preset("synthesizer-pocket")).parameters < 1.25e6
