"""Are the scores those of the reference, and does each say where it must not be used?"""

# b batch, t time, v vocabulary

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import Tensor, nn

from parformer.blocks.base import Shape
from parformer.config import ModelConfig, preset
from parformer.costs import cost
from parformer.embedding import IGNORE, token_shares
from parformer.errors import ConfigError
from parformer.evaluate.perplexity import evaluate
from parformer.head import FlatHead
from parformer.kernels import native
from parformer.model import Model, build, build_from
from parformer.pattern import Pattern
from parformer.recipe import Recipe
from parformer.search.ranking import saliency
from parformer.search.ranking.proxies import (
    COUNTS,
    PROXIES,
    SHORT_TRAINING,
    Batch,
    check_proxy,
    draw_batch,
    mixes_blocks,
    proxy_flops,
    score,
    scores,
    train_score,
)
from parformer.search.ranking.rankings import spearman
from parformer.train.distributed import Workers
from parformer.train.session import Session
from tests.conftest import CountFlops, lively, small_config
from tests.search.placement.trials import copying_text
from tests.train.trials import make_recipe

ORACLE = Path(__file__).parents[2] / "oracles" / "proxies_transformer_xl.safetensors"
BUILT = tuple(name for name in PROXIES if name not in COUNTS)
PATTERNS = {
    "transformer-xl": "sfsf",
    "gpt2": "sfsf",
    "llama": "sfsf",
    "bert": "sfsf",
    "sru": "rara",
}
UNDEFINED = {
    ("gpt2", "synflow"),
    ("sru", "grasp"),
    *((family, "relu-log-det") for family in PATTERNS if family != "transformer-xl"),
}


def read_oracle() -> tuple[dict[str, float], Model, Batch]:
    """What the authors' code gives, for these weights and this batch."""
    with safe_open(ORACLE, "pt") as file:
        expected = json.loads(file.metadata()["expected"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    theirs = {name.removeprefix("weight."): tensor for name, tensor in tensors.items()}
    config = ModelConfig.from_dict(
        {
            "family": "transformer-xl",
            "pattern": "s[heads=2]f[inner=32]s[heads=4]f[inner=48]",
            "vocab_size": 100,
            "d_model": 16,
            "n_head": 2,
            "d_inner": 32,
            "position_bias": "per-layer",
            "embedding": "adaptive",
            "cutoffs": (40, 60),
            "div_val": 2,
        }
    )
    ours: dict[str, Tensor] = {
        "head.projections.0": theirs["crit.out_projs.0"],
        "head.bias": torch.cat([theirs[f"crit.out_layers_biases.{i}"] for i in range(3)]),
        "head.cluster_weight": theirs["crit.cluster_weight"],
        "head.cluster_bias": theirs["crit.cluster_bias"],
    }
    for i in range(3):
        ours[f"embedding.words.tables.{i}"] = theirs[f"word_emb.emb_layers.{i}.weight"]
        ours[f"embedding.words.projections.{i}"] = theirs[f"word_emb.emb_projs.{i}"]
    names = {"qkv": "qkv_net", "out": "o_net", "distance": "r_net"}
    for i in range(2):
        attend, feed = f"blocks.{2 * i}", f"blocks.{2 * i + 1}"
        for mine, name in names.items():
            ours[f"{attend}.{mine}.weight"] = theirs[f"layers.{i}.dec_attn.{name}.weight"]
        ours[f"{attend}.content_bias"] = theirs[f"r_w_bias_{i}"].flatten()
        ours[f"{attend}.position_bias"] = theirs[f"r_r_bias_{i}"].flatten()
        for kind in ("weight", "bias"):
            ours[f"{attend}.norm.{kind}"] = theirs[f"layers.{i}.dec_attn.layer_norm.{kind}"]
            ours[f"{feed}.norm.{kind}"] = theirs[f"layers.{i}.pos_ff.layer_norm.{kind}"]
            ours[f"{feed}.inner.{kind}"] = theirs[f"layers.{i}.pos_ff.CoreNet.0.{kind}"]
            ours[f"{feed}.out.{kind}"] = theirs[f"layers.{i}.pos_ff.CoreNet.3.{kind}"]
    batch = Batch(tensors["tokens"], tensors["targets"])
    return expected, build_from(config, ours), batch


def family_model(family: str, dtype: torch.dtype = torch.float64, **changes: Any) -> Model:
    values = {"pattern": PATTERNS[family], "d_attention": 4} | changes
    return lively(build(small_config(family, **values), dtype=dtype))


def family_batch(model: Model, batch: int = 3, tgt_len: int = 6) -> Batch:
    return draw_batch(model.config, batch=batch, tgt_len=tgt_len, seed=5)


# The reference


def test_the_reference_s_scores_come_out() -> None:
    expected, model, batch = read_oracle()
    found = scores(BUILT, model, batch=batch)
    assert found["grad-norm"] == pytest.approx(expected["grad_norm"], rel=1e-6)
    assert found["snip"] == pytest.approx(expected["snip"], rel=1e-6)
    assert found["synflow"] == pytest.approx(expected["synflow"], rel=1e-8)
    assert found["fisher"] == pytest.approx(expected["fisher_all_layers"], rel=1e-5)
    # higher is better here; the reference turns the sign when it ranks
    assert -found["grasp"] == pytest.approx(expected["grasp"], rel=1e-6)
    assert found["relu-log-det"] == -math.inf


def test_the_reference_s_fisher_leaves_out_what_is_before_a_relu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected, model, batch = read_oracle()
    scored = saliency.scored_layers

    def others(model: Model) -> list[nn.Linear]:
        inner = [block.inner for block in model.blocks if hasattr(block, "inner")]
        return [layer for layer in scored(model) if not any(layer is other for other in inner)]

    monkeypatch.setattr(saliency, "scored_layers", others)
    quirk = expected["fisher_without_first_ff_linear"]
    assert score("fisher", model, batch=batch) == pytest.approx(quirk, rel=1e-5)


def covariance(rows: np.ndarray) -> float:
    values = np.linalg.eig(np.corrcoef(rows))[0].real
    return float(-np.sum(np.log(values + 1e-5) + 1 / (values + 1e-5)))


def random_weights(count: int, seed: int) -> Tensor:
    reach = 1 / math.sqrt(count)
    return torch.empty(count).uniform_(-reach, reach, generator=torch.Generator().manual_seed(seed))


def test_jacob_cov_of_a_cut_vocabulary_weighs_every_word_before_any_softmax() -> None:
    _, model, batch = read_oracle()
    words: list[Tensor] = []
    model.embedding.words.register_forward_hook(lambda _, __, output: words.append(output))
    x_btd = model.train()(batch.tokens_bt).hidden
    names = dict(model.named_parameters())
    logits = []
    for i in range(3):
        projection = names["head.projections.0" if i == 0 else f"embedding.words.projections.{i}"]
        table = names[f"embedding.words.tables.{i}"]
        logits.append(x_btd @ projection @ table.T)
    answer_bt = torch.cat(logits, dim=-1) @ random_weights(100, 3)
    (slopes_btd,) = torch.autograd.grad(answer_bt.sum(), words[0])
    rows = slopes_btd.transpose(0, 1).flatten(1).double().numpy()
    assert len(rows) == 8
    assert score("jacob-cov", model, batch=batch, seed=3) == pytest.approx(
        covariance(rows), rel=1e-4
    )


@pytest.mark.parametrize("family", ["gpt2", "llama", "bert", "sru"])
def test_jacob_cov_compares_texts_elsewhere(family: str) -> None:
    model = family_model(family)
    batch = family_batch(model)
    words: list[Tensor] = []
    hook = model.embedding.words.register_forward_hook(lambda _, __, output: words.append(output))
    logits_btv = model.train()(batch.tokens_bt).logits
    answer = logits_btv @ random_weights(model.config.vocab_size, 2).double()
    (slopes_btd,) = torch.autograd.grad(answer.sum(), words[0])
    hook.remove()
    wanted = covariance(slopes_btd.flatten(1).numpy())
    assert score("jacob-cov", model, batch=batch, seed=2) == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize("gated", [False, True])
def test_relu_log_det_counts_units_that_agree(gated: bool) -> None:
    config = small_config("transformer-xl", pattern="sfsf", gated=gated, d_inner=60)
    model = build(config, dtype=torch.float64)
    tokens_bt = torch.arange(8).view(2, 4)
    batch = Batch(tokens_bt, tokens_bt)
    seen: list[Tensor] = []
    hooks = [
        model.get_submodule(f"blocks.{i}.inner").register_forward_hook(
            lambda _, __, output: seen.append(output.flatten(0, 1)[:, :60])
        )
        for i in (1, 3)
    ]
    model.train()(batch.tokens_bt)
    for hook in hooks:
        hook.remove()
    alike = [
        [sum(int(((x[i] > 0) == (x[j] > 0)).sum()) for x in seen) for j in range(8)]
        for i in range(8)
    ]
    sign, wanted = np.linalg.slogdet(np.array(alike, dtype=float))
    assert (sign, math.isfinite(wanted)) == (1, True)
    assert score("relu-log-det", model, batch=batch) == pytest.approx(wanted, rel=1e-9)


def test_tokens_that_cannot_be_told_apart_have_no_determinant() -> None:
    model = family_model("transformer-xl", pattern="ff")
    same_bt = torch.tensor([[1, 2, 3, 1]])
    assert score("relu-log-det", model, batch=Batch(same_bt, same_bt)) == -math.inf
    # rounding alone would leave a tiny pivot here
    gram = torch.tensor([[1.0, 0.1], [0.3, 0.7], [0.4, 0.8]], dtype=torch.float64)
    assert saliency.log_determinant(gram @ gram.T) == -math.inf
    known = torch.tensor([[2.0, 1.0], [1.0, 3.0]], dtype=torch.float64)
    assert saliency.log_determinant(known) == pytest.approx(math.log(5))


# Twins for every family


def gradients(model: Model, batch: Batch) -> dict[str, Tensor]:
    """Of the linear maps inside blocks, the way anyone would take them."""
    model.train()
    model.zero_grad()
    model(batch.tokens_bt, targets=batch.targets_bt).loss.backward()
    scored = ("qkv", "distance", "out", "inner", "project", "key_value")
    return {
        name: parameter.grad.clone()
        for name, parameter in model.named_parameters()
        if name.startswith("blocks.")
        and name.endswith(".weight")
        and name.split(".")[-2] in scored
        and parameter.grad is not None
    }


@pytest.mark.parametrize("family", PATTERNS)
def test_first_derivatives_are_those_of_the_loss(family: str) -> None:
    model = family_model(family)
    batch = family_batch(model)
    found = scores(["grad-norm", "snip"], model, batch=batch)
    wanted = gradients(model, batch)
    assert len(wanted) == {"transformer-xl": 10, "sru": 10}.get(family, 8)
    named = dict(model.named_parameters())
    norms = sum(float(g.square().sum().sqrt()) for g in wanted.values())
    touched = sum(float((named[n].detach() * g).abs().sum()) for n, g in wanted.items())
    assert found["grad-norm"] == pytest.approx(norms, rel=1e-9)
    assert found["snip"] == pytest.approx(touched, rel=1e-9)


@pytest.mark.parametrize("family", ["gpt2", "llama", "bert"])
def test_grasp_is_a_difference_of_gradients(family: str) -> None:
    model = family_model(family)
    batch = family_batch(model)
    found = score("grasp", model, batch=batch)
    named = dict(model.named_parameters())
    first = gradients(model, batch)
    step = 1e-5
    moved = []
    for sign in (1, -1):
        with torch.no_grad():
            for name, gradient in first.items():
                named[name] += sign * step * gradient
        moved.append(gradients(model, batch))
        with torch.no_grad():
            for name, gradient in first.items():
                named[name] -= sign * step * gradient
    wanted = sum(
        float((named[name].detach() * (moved[0][name] - moved[1][name])).sum()) / (2 * step)
        for name in first
    )
    assert found == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("family", PATTERNS)
def test_fisher_is_what_removing_an_output_would_change(family: str) -> None:
    """The slope of the loss towards a map with one output scaled is Σ output · gradient."""
    model = family_model(family)
    batch = family_batch(model, batch=1, tgt_len=1)  # one token, so that a sum is its only term
    if family == "transformer-xl":
        model = family_model(family, pattern="ff")
    found = score("fisher", model, batch=batch)
    layers = [m for m in model.blocks.modules() if isinstance(m, nn.Linear)]
    scales = [torch.ones(m.out_features, dtype=torch.float64).requires_grad_() for m in layers]
    hooks = [
        layer.register_forward_hook(lambda _, __, output, s=scale: output * s)
        for layer, scale in zip(layers, scales, strict=True)
    ]
    loss = model.train()(batch.tokens_bt, targets=batch.targets_bt).loss
    slopes = torch.autograd.grad(loss, scales)
    for hook in hooks:
        hook.remove()
    wanted = sum(
        m.in_features * float(s.square().sum()) / 2 for m, s in zip(layers, slopes, strict=True)
    )
    assert found == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize("family", ["llama", "sru"])
def test_synflow_sends_ones_through_positive_weights(family: str) -> None:
    model = family_model(family, tie_weights=False)
    batch = family_batch(model)
    found = score("synflow", model, batch=batch)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.abs_()
        model.embedding.words.tables[0].fill_(1.0)
    model.train().zero_grad()
    model(batch.tokens_bt[:1]).logits.sum().backward()
    wanted = sum(
        float((layer.weight.detach() * layer.weight.grad).abs().sum())
        for layer in model.blocks.modules()
        if isinstance(layer, nn.Linear) and layer.weight.grad is not None
    )
    assert found == pytest.approx(wanted, rel=1e-9)


def test_synflow_of_masked_words_goes_through_their_transform() -> None:
    model = family_model("bert", pattern="sf")
    found = score("synflow", model, batch=family_batch(model))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.abs_()
    head = model.head
    assert isinstance(head, FlatHead)
    model.embedding.register_forward_hook(lambda _, __, output: torch.ones_like(output))
    model.train().zero_grad()
    model(torch.zeros(1, 6, dtype=torch.int64)).logits.sum().backward()
    wanted = sum(
        float((layer.weight.detach() * layer.weight.grad).abs().sum())
        for layer in model.blocks.modules()
        if isinstance(layer, nn.Linear) and layer.weight.grad is not None
    )
    assert found == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize("embedding", ["adaptive", "factorized"])
@pytest.mark.parametrize("div_val", [1, 2])
def test_read_out_is_a_sum_of_logits(embedding: str, div_val: int) -> None:
    changes: dict[str, Any] = {"embedding": embedding, "d_embed": 8}
    if embedding == "adaptive":
        changes |= {"cutoffs": (4, 9), "div_val": div_val}
    model = family_model("transformer-xl", output_bias=False, **changes)
    head = saliency.head_of(model)
    x_btd = torch.randn(2, 3, 12, dtype=torch.float64)
    ones = torch.ones(saliency.short_list(head), dtype=torch.float64)
    every = saliency.read_out(head, x_btd, torch.ones(13, dtype=torch.float64))
    if embedding == "factorized":
        torch.testing.assert_close(every, head.logits(x_btd).sum(-1))
        return
    parts, first = head._tables(), head._project(x_btd, 0)  # type: ignore[operator]
    whole = sum((head._project(x_btd, i) @ t.T).sum(-1) for i, t in enumerate(parts))  # type: ignore[operator]
    torch.testing.assert_close(every, whole)
    short = saliency.read_out(head, x_btd, ones, clusters=True)
    torch.testing.assert_close(
        short, F.linear(first, torch.cat((parts[0], head.cluster_weight))).sum(-1)
    )


# What is left as it was


@pytest.mark.parametrize("family", PATTERNS)
def test_a_model_is_only_looked_at(family: str) -> None:
    model = family_model(family, dtype=torch.float32, dropout=0.5, dropatt=0.5)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    batch = family_batch(model)
    before = {name: p.clone() for name, p in model.named_parameters()}
    torch.manual_seed(0)
    lot = torch.random.get_rng_state()
    names = [name for name in PROXIES if (family, name) not in UNDEFINED]
    with torch.inference_mode():
        found = scores(names, model, batch=batch, seed=1)
    assert list(found) == names
    assert torch.equal(torch.random.get_rng_state(), lot)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name])
        assert parameter.grad is None
        assert not parameter.requires_grad
    assert not model.training
    assert not any(module._forward_hooks for module in model.modules())
    still = build_from(model.config.replaced(dropout=0.0, dropatt=0.0), before)
    assert scores(names, still, batch=batch, seed=1) == found


@pytest.mark.parametrize("family", ["gpt2", "transformer-xl"])
def test_compiled_kernels_change_nothing_and_stay_on(family: str) -> None:
    model = family_model(family, dtype=torch.float32, pattern="sfsf")
    batch = family_batch(model)
    names = [name for name in BUILT if (family, name) not in UNDEFINED]
    plain = scores(names, model, batch=batch)
    try:
        there = native.enable()
        assert scores(names, model, batch=batch) == plain
        assert native.enabled == there
    finally:
        native.enable(False)


def test_a_configuration_is_built_with_the_seed_s_weights() -> None:
    config = small_config("transformer-xl", pattern="sfsf", dropout=0.3)
    names = [name for name in BUILT if name != "relu-log-det"]
    batch = draw_batch(config, batch=2, tgt_len=4)
    found = scores(names, config, batch=batch, seed=4)
    assert found == scores(names, build(config, seed=4), batch=batch, seed=4)
    assert found["snip"] != score("snip", config, batch=batch, seed=5)
    assert all(map(math.isfinite, found.values()))
    # the order of the names does not matter: no score spoils the model for the next
    assert scores(names[::-1], config, batch=batch, seed=4) == found


def test_counts_come_from_costs_and_build_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parformer.search.ranking.proxies.build", None)
    config = preset("par-base")
    price = cost(config)
    assert scores(COUNTS, config) == {
        "decoder-parameters": price.decoder_parameters,
        "parameters": price.parameters,
    }
    assert price.decoder_parameters != price.parameters


def test_without_a_batch_one_is_drawn() -> None:
    config = small_config("gpt2", max_len=7)
    drawn = draw_batch(config, seed=3)
    assert drawn.tokens_bt.shape == (16, 7)
    assert score("snip", config, seed=3) == score("snip", config, batch=drawn, seed=3)


# Batches


def test_a_batch_is_words_and_what_follows_them() -> None:
    batch = draw_batch(small_config("transformer-xl"), batch=5, tgt_len=9, seed=1)
    assert batch.tokens_bt.shape == batch.targets_bt.shape == (5, 9)
    assert torch.equal(batch.tokens_bt[:, 1:], batch.targets_bt[:, :-1])
    again = draw_batch(small_config("transformer-xl"), batch=5, tgt_len=9, seed=1)
    assert torch.equal(batch.tokens_bt, again.tokens_bt)
    other = draw_batch(small_config("transformer-xl"), batch=5, tgt_len=9, seed=2)
    assert not torch.equal(batch.tokens_bt, other.tokens_bt)
    assert draw_batch(small_config("transformer-xl")).tokens_bt.shape == (16, 192)


def test_every_word_occurs_and_rare_ones_are_rare() -> None:
    words = draw_batch(small_config("gpt2"), batch=40, tgt_len=64).tokens_bt
    assert sorted(words.unique().tolist()) == list(range(13))
    config = small_config("transformer-xl", embedding="adaptive", cutoffs=(3, 9), div_val=2)
    words = draw_batch(config, batch=200, tgt_len=100).tokens_bt
    assert sorted(words.unique().tolist()) == list(range(13))
    for cluster, share in zip(config.clusters, token_shares(config), strict=True):
        inside = ((words >= cluster.low) & (words < cluster.high)).double().mean()
        assert float(inside) == pytest.approx(share, abs=0.01)


def test_a_masked_model_gets_masked_words() -> None:
    config = small_config("bert")
    batch = draw_batch(config, batch=4, tgt_len=20)
    counted = batch.targets_bt != IGNORE
    assert counted.sum(1).tolist() == [3] * 4
    assert (batch.tokens_bt[counted] == 12).any()
    assert int(batch.tokens_bt.max()) <= 12


# Refusals


@pytest.mark.parametrize(("family", "name"), sorted(UNDEFINED))
def test_what_is_not_defined_is_refused(family: str, name: str) -> None:
    config = small_config(family, pattern=PATTERNS[family], d_attention=4)
    with pytest.raises(ConfigError, match=rf"{name} .*; take (snip|jacob-cov)$") as error:
        score(name, config, batch=draw_batch(config, batch=2, tgt_len=4))
    assert "\n" not in str(error.value)


def test_a_recurrence_saves_synflow_before_layer_norms() -> None:
    config = small_config("sru", pattern="fr", d_attention=4)
    assert score("synflow", config, batch=draw_batch(config, batch=2, tgt_len=4)) > 0
    relu = small_config("gpt2", pattern="ss", activation="relu")
    with pytest.raises(ConfigError, match=r"needs feed-forward blocks with ReLU, got '\(s\)x2'"):
        score("relu-log-det", relu)


@pytest.mark.parametrize(
    ("changes", "name", "message"),
    [
        ({}, "snap", "unknown proxy 'snap'; did you mean 'snip'"),
        ({"pattern": "i"}, "snip", "no block of 'i' has a linear map to score"),
        ({"head": "none"}, "snip", "no head"),
        ({"head": "none"}, "jacob-cov", "no head"),
    ],
)
def test_what_cannot_be_scored_is_refused(changes: dict[str, Any], name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        score(name, small_config("transformer-xl", **changes))


def test_one_row_has_no_covariance() -> None:
    config = small_config("gpt2")
    with pytest.raises(ConfigError, match="jacob-cov compares rows, and there is one"):
        score("jacob-cov", config, batch=draw_batch(config, batch=1, tgt_len=4))


def test_weights_that_are_no_numbers_are_refused() -> None:
    model = family_model("gpt2")
    with torch.no_grad():
        model.blocks[0].qkv.weight.fill_(math.nan)
    with pytest.raises(ConfigError, match="snip of this model is nan"):
        score("snip", model, batch=family_batch(model))


@pytest.mark.parametrize(("name", "value"), [("batch", 0), ("tgt_len", -1), ("tgt_len", 65)])
def test_strange_batches_are_refused(name: str, value: int) -> None:
    with pytest.raises(ConfigError, match=f"{name}.*{value}"):
        draw_batch(small_config("gpt2"), **{name: value})


# Costs


@pytest.mark.parametrize("family", ["transformer-xl", "gpt2"])
@pytest.mark.parametrize("name", ["grad-norm", "snip", "grasp"])
def test_flops_are_about_what_is_really_computed(family: str, name: str) -> None:
    config = small_config(family, pattern="(sf)x3", d_model=48, n_head=4, d_inner=96)
    model, batch = build(config), draw_batch(config, batch=4, tgt_len=16)
    with CountFlops() as counted:
        score(name, model, batch=batch)
    wanted = proxy_flops(name, config, Shape(4, 16, 0, 0))
    assert counted.flops == pytest.approx(wanted, rel=0.1)


def test_counts_cost_nothing_and_synflow_reads_one_text() -> None:
    config = small_config("transformer-xl", pattern="sfsf")
    forward = cost(config, tgt_len=8, mem_len=4, batch=1).flops
    one, many = Shape(1, 8, 4, 0), Shape(10, 8, 4, 0)
    assert [proxy_flops(name, config, many) for name in COUNTS] == [0, 0]
    assert proxy_flops("synflow", config, many) == 3 * forward
    assert proxy_flops("relu-log-det", config, one) == forward
    for name in ("snip", "grad-norm", "jacob-cov", "fisher"):
        assert proxy_flops(name, config, one) == 3 * forward
        assert proxy_flops(name, config, many) > 8 * 3 * forward  # distances are projected once
    assert proxy_flops("grasp", config, one) == 8 * forward


# The trap

PAR_TABLE_1 = {
    "(f)x32": 252.9,
    "(sfff)x1 (f)x28": 31.5,
    "(sfff)x3 (f)x20": 23.9,
    "(sfff)x4 (f)x16": 23.4,
    "(sfff)x5 (f)x12": 23.0,
    "(sff)x6 (f)x14": 22.9,
    "(sfff)x6 (f)x8": 22.7,
    "(sff)x7 (f)x11": 22.7,
    "(sfff)x7 (f)x4": 22.6,
    "(sf)x16": 22.7,
}
"""PAR Transformer, first version: test perplexity on WikiText-103."""


def test_parameters_mislead_where_the_mix_varies() -> None:
    counts = [score("decoder-parameters", preset("par-base", pattern=text)) for text in PAR_TABLE_1]
    assert max(counts) == counts[0]
    assert spearman([-value for value in PAR_TABLE_1.values()], counts) < -0.9
    assert mixes_blocks(Pattern.parse(text) for text in PAR_TABLE_1)


@pytest.mark.parametrize("name", ["snip", "fisher", "grad-norm"])
def test_gradients_mislead_as_well(name: str) -> None:
    found = {}
    for text in ("(f)x12", "s (f)x11", "(sfff)x3", "(sf)x6"):
        config = preset("pocket-post", pattern=text, d_model=64, d_inner=192)
        found[text] = score(name, config, batch=draw_batch(config, batch=2, tgt_len=16))
    assert max(found, key=lambda text: found[text]) == "(f)x12"


@pytest.mark.parametrize("name", PROXIES)
def test_no_score_without_training_is_taken_for_mixes(name: str) -> None:
    check_proxy(name, mixes=False)
    with pytest.raises(ConfigError, match=rf"^{name} ranks .*; take {SHORT_TRAINING}, or") as error:
        check_proxy(name, mixes=True)
    assert ("worst perplexity" in str(error.value)) == (name in COUNTS)
    assert "\n" not in str(error.value)


def test_a_short_training_is_taken_for_all() -> None:
    check_proxy(SHORT_TRAINING, mixes=True)
    check_proxy(SHORT_TRAINING, mixes=False)
    with pytest.raises(ConfigError, match="unknown proxy 'long-training'"):
        check_proxy("long-training", mixes=False)


@pytest.mark.parametrize(
    ("texts", "mixes"),
    [
        (["(sf)x2", "(sf)x9", "(fs)x3"], False),
        (["(sf)x2", "sfff"], True),
        (["ssff", "sf", "sfi"], False),
        (["f", "i"], True),
        (["i", "ii"], False),
        (["s[heads=2]f", "sf[inner=9]"], False),
        (["sf"], False),
        ([], False),
    ],
)
def test_a_mix_is_a_matter_of_proportions(texts: list[str], mixes: bool) -> None:
    assert mixes_blocks(Pattern.parse(text) for text in texts) == mixes


# Short trainings


def short_recipe(pattern: str = "sfsf", **changes: Any) -> Recipe:
    settings = {
        "model__pattern": pattern,
        "model__dropout": 0.1,
        "train__steps": 40,
        "train__accumulate": 1,
    }
    return make_recipe("transformer-xl", **settings | changes)


TEXT, VALID = copying_text(4000), copying_text(400, seed=1)


def test_a_share_of_the_updates_is_made_on_the_whole_schedule() -> None:
    recipe = short_recipe()
    torch.manual_seed(1)
    lot = torch.random.get_rng_state()
    found = train_score(recipe, TEXT, VALID, share=0.11)
    assert torch.equal(torch.random.get_rng_state(), lot)
    session = Session(recipe, TEXT, workers=Workers())
    for step in range(5):
        session.update(step)
    assert found == -evaluate(session.model, VALID, batch=8, limit=300).loss
    assert train_score(recipe, TEXT, VALID, share=0.11) == found
    seeded = recipe.replaced({"train.seed": 1})
    assert train_score(seeded, TEXT, VALID, share=0.11) != found


def test_a_longer_training_is_better_and_kernels_stay_on() -> None:
    try:
        there = native.enable()
        brief, whole = (train_score(short_recipe(), TEXT, VALID, share=s) for s in (0.025, 1.0))
        assert native.enabled == there
    finally:
        native.enable(False)
    assert brief < whole < 0


def test_a_training_that_breaks_is_the_worst_of_all() -> None:
    recipe = short_recipe(train__learning_rate=1e30, train__clip=0.0)
    assert train_score(recipe, TEXT, VALID, share=1.0) == -math.inf


@pytest.mark.parametrize("share", [0, -1, 1.01, math.nan])
def test_a_strange_share_is_refused(share: float) -> None:
    with pytest.raises(ConfigError, match="share must be above 0"):
        train_score(short_recipe(), TEXT, VALID, share=share)


def test_a_training_by_the_clock_has_no_share() -> None:
    with pytest.raises(ConfigError, match=r"train\.time 60 says no number of steps"):
        train_score(short_recipe(train__time=60.0), TEXT, VALID, share=0.1)
