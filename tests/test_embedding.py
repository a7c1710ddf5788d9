"""Do tokens become the vectors, and vectors the probabilities, that the definitions say?"""

# b batch, t time, d width, e embedding width, v vocabulary, n tokens

from __future__ import annotations

import math
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

from parformer.config import ModelConfig
from parformer.embedding import IGNORE, ClusterTables, SingleTable, check_tokens
from parformer.errors import InputError
from parformer.head import ClusterHead, FlatHead
from parformer.model import Model, build
from tests.conftest import lively, noise, small_config

VOCAB = 23
ADAPTIVE = {"embedding": "adaptive", "vocab_size": VOCAB, "cutoffs": (5, 9, 17)}

CLUSTER_CASES = [
    {"div_val": div_val, "tie_projections": ties, "tie_weights": tied, "d_embed": d_embed}
    for div_val, ties, tied, d_embed in product(
        (1, 2, 4), ("all", "tails", "none"), (True, False), (0, 70)
    )
]
FLAT_CASES: list[dict[str, Any]] = [
    {},
    {"tie_weights": False},
    {"output_bias": True},
    {"embedding": "factorized", "d_embed": 5},
    {"embedding": "factorized", "d_embed": 5, "tie_projections": "all"},
    {"embedding": "factorized", "d_embed": 5, "tie_projections": "none", "tie_weights": False},
    {"embedding": "factorized", "d_embed": 5, "projection_bias": True, "output_bias": True},
    {"embedding": "adaptive", "d_embed": 5, "tie_projections": "all"},
    {"head": "masked", "causal": False, "output_bias": True},
    {"head": "masked", "causal": False, "output_bias": True, "tie_weights": False},
    {"head": "masked", "causal": False, "embedding": "factorized", "d_embed": 5},
]


def named(case: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in case.items()) or "plain"


clusters = pytest.mark.parametrize("case", CLUSTER_CASES, ids=named)
flat = pytest.mark.parametrize("case", FLAT_CASES, ids=named)


def make_clusters(case: dict[str, Any]) -> Model:
    # 64 wide, so that even the fourth cluster of factor four has a width
    config = small_config(
        "transformer-xl", pattern="f", d_model=64, n_head=1, d_inner=1, **ADAPTIVE, **case
    )
    return lively(build(config, dtype=torch.float64))


def make_flat(case: dict[str, Any]) -> Model:
    values = {"pattern": "f", "vocab_size": VOCAB} | case
    return lively(build(small_config("gpt2", **values), dtype=torch.float64))


def cluster_of(token: int, config: ModelConfig) -> int:
    return sum(token >= edge for edge in config.cutoffs)


def naive_vector(token: int, model: Model) -> Tensor:
    """A token's row of its cluster's table, projected to the model's width."""
    config, words = model.config, model.embedding.words
    i = cluster_of(token, config)
    if config.div_val == 1:
        row_e = words.tables[0][token]
        projection = words.projections[0] if config.embed_width != config.d_model else None
    else:
        row_e = words.tables[i][token - (0, *config.cutoffs)[i]]
        projection = words.projections[i]
    row_d = row_e if projection is None else projection @ row_e
    return row_d * math.sqrt(config.d_model)


def naive_log_probability(x_d: Tensor, token: int, model: Model) -> Tensor:
    """First among the frequent words and the rare clusters, then within the cluster."""
    config, head, words = model.config, model.head, model.embedding.words
    assert isinstance(head, ClusterHead)
    edges = (0, *config.cutoffs, config.vocab_size)
    one_table = config.div_val == 1
    tables = words.tables if config.tie_weights else head.tables
    own = iter([p for p in head.projections if all(p is not q for q in words.projections)])
    projections: list[Tensor] = []
    for i in range(len(edges) - 1):
        shared = config.tie_projections == "all" or (config.tie_projections == "tails" and i > 0)
        if not len(words.projections):
            projections.append(torch.eye(config.d_model, dtype=torch.float64))
        else:
            projections.append(words.projections[0 if one_table else i] if shared else next(own))

    def scores(i: int) -> Tensor:
        table = tables[0][edges[i] : edges[i + 1]] if one_table else tables[i]
        return table @ (projections[i].T @ x_d) + head.bias[edges[i] : edges[i + 1]]

    x_e = projections[0].T @ x_d
    short = torch.cat((scores(0), head.cluster_weight @ x_e + head.cluster_bias)).log_softmax(0)
    i = cluster_of(token, config)
    if i == 0:
        return short[token]
    return short[edges[1] + i - 1] + scores(i).log_softmax(0)[token - edges[i]]


@clusters
def test_a_token_is_its_row_of_its_cluster(case: dict[str, Any]) -> None:
    model = make_clusters(case)
    kind = SingleTable if case["div_val"] == 1 else ClusterTables
    assert isinstance(model.embedding.words, kind)
    tokens_bt = torch.tensor([[0, 22, 5, 4, 16, 9], [8, 17, 3, 17, 1, 21]])
    x_btd = model.embedding(tokens_bt, None, 0)
    wanted = [naive_vector(int(token), model) for token in tokens_bt.flatten()]
    assert_close(x_btd, torch.stack(wanted).view(2, 6, 64))
    probe_btd = noise(2, 6, 64)
    parameters = list(model.embedding.parameters())
    got = torch.autograd.grad((x_btd * probe_btd).sum(), parameters)
    loss = (torch.stack(wanted).view(2, 6, 64) * probe_btd).sum()
    assert_close(got, torch.autograd.grad(loss, parameters))


@clusters
def test_logits_are_the_log_probabilities_of_the_definition(case: dict[str, Any]) -> None:
    model = make_clusters(case)
    assert isinstance(model.head, ClusterHead)
    x_nd = 0.3 * noise(3, 64)
    wanted = [[naive_log_probability(x_d, v, model) for v in range(VOCAB)] for x_d in x_nd]
    wanted_nv = torch.stack([torch.stack(row) for row in wanted])
    assert_close(wanted_nv.exp().sum(-1), torch.ones(3, dtype=torch.float64))
    assert_close(model.head.logits(x_nd), wanted_nv)


@clusters
def test_losses_cluster_by_cluster_are_those_of_the_full_logits(case: dict[str, Any]) -> None:
    """Values, and the gradients of the input and of every parameter."""
    model = make_clusters(case)
    assert model.head is not None
    x_nd = (0.3 * noise(VOCAB + 4, 64)).requires_grad_()
    targets_n = torch.tensor([*range(VOCAB), 22, 0, 6, 6])
    check_losses(model, x_nd, targets_n)


@clusters
@pytest.mark.parametrize("targets", [[0, 4, 1], [17, 22, 20], [5, 10]])
def test_losses_need_no_token_in_every_cluster(case: dict[str, Any], targets: list[int]) -> None:
    model = make_clusters(case)
    x_nd = (0.3 * noise(len(targets), 64)).requires_grad_()
    check_losses(model, x_nd, torch.tensor(targets), unused=True)


def check_losses(model: Model, x_nd: Tensor, targets_n: Tensor, unused: bool = False) -> None:
    assert model.head is not None
    probability_nv = model.head.logits(x_nd).log_softmax(-1)
    assert_close(probability_nv.exp().sum(-1), torch.ones(len(x_nd)).to(probability_nv))
    wanted_n = -probability_nv[torch.arange(len(x_nd)), targets_n]
    losses_n = model.head.losses(x_nd, targets_n)
    assert losses_n.dtype == torch.float64
    assert_close(losses_n, wanted_n)
    weights_n = 1 + torch.arange(len(x_nd)) % 3
    names = dict(model.head.named_parameters())
    inputs = [x_nd, *names.values()]
    got = torch.autograd.grad((losses_n * weights_n).sum(), inputs, allow_unused=True)
    wanted = torch.autograd.grad((wanted_n * weights_n).sum(), inputs)
    for name, one, other in zip(("input", *names), got, wanted, strict=True):
        if one is None and unused:
            one = torch.zeros_like(other)
        assert one is not None, f"{name} has no gradient"
        assert_close(one, other, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize("case", [CLUSTER_CASES[0], CLUSTER_CASES[-1], None], ids=str)
def test_half_precision_is_widened_before_its_exponentials_are_summed(
    case: dict[str, Any] | None,
) -> None:
    model = make_flat({}) if case is None else make_clusters(case)
    assert model.head is not None
    x_nd = 0.3 * noise(VOCAB, model.config.d_model)
    wanted_n = model.head.losses(x_nd, torch.arange(VOCAB))
    losses_n = model.to(torch.bfloat16).head.losses(x_nd.bfloat16(), torch.arange(VOCAB))
    assert losses_n.dtype == torch.float32
    assert_close(losses_n.double(), wanted_n, atol=0.05, rtol=0.05)


@clusters
def test_tied_parts_are_one_parameter(case: dict[str, Any]) -> None:
    """And what is not tied is another one."""
    model = make_clusters(case)
    head, words = model.head, model.embedding.words
    assert isinstance(head, ClusterHead)
    assert all(
        (mine is theirs) == case["tie_weights"]
        for mine, theirs in zip(head.tables, words.tables, strict=True)
    )
    for i, projection in enumerate(head.projections):
        shared = any(projection is theirs for theirs in words.projections)
        assert shared == {"all": True, "tails": i > 0, "none": False}[case["tie_projections"]]
    needs = case["div_val"] > 1 or case["d_embed"] > 0
    assert len(head.projections) == (4 if needs else 0)


@flat
def test_a_flat_embedding_is_a_row_and_its_projection(case: dict[str, Any]) -> None:
    model = make_flat(case)
    words = model.embedding.words
    assert isinstance(words, SingleTable)
    tokens_bt = torch.tensor([[0, 22, 5], [7, 7, 1]])
    x_btd = model.embedding(tokens_bt, None, 3)
    for b in range(2):
        for t in range(3):
            row_d = words.tables[0][tokens_bt[b, t]]
            if model.config.embed_width != 12:
                row_d = words.projections[0] @ row_d
            if case.get("projection_bias"):
                row_d = row_d + words.bias
            assert_close(x_btd[b, t], row_d + model.embedding.positions[3 + t])


@flat
def test_a_flat_head_scores_every_token(case: dict[str, Any]) -> None:
    model = make_flat(case)
    head, words, config = model.head, model.embedding.words, model.config
    assert isinstance(head, FlatHead)
    assert (head.out.weight is words.tables[0]) == config.tie_weights
    x_nd = noise(4, 12)
    x_ne = x_nd
    if config.head == "masked":
        assert head.transform is not None
        x_ne = F.gelu(x_nd @ head.transform.weight.T + head.transform.bias, approximate="tanh")
        x_ne = F.layer_norm(x_ne, x_ne.shape[-1:], head.norm.weight, head.norm.bias, eps=1e-5)
    elif config.embed_width != 12:
        tied = config.tie_projections == "all"
        assert (head.projection is words.projections[0]) == tied
        x_ne = x_nd @ (words.projections[0] if tied else head.projection)
    scores_nv = x_ne @ head.out.weight.T
    if config.output_bias:
        scores_nv = scores_nv + head.out.bias
    assert_close(head.logits(x_nd), scores_nv)


@flat
def test_losses_of_a_flat_head_are_those_of_its_logits(case: dict[str, Any]) -> None:
    x_nd = noise(VOCAB, 12).requires_grad_()
    check_losses(make_flat(case), x_nd, torch.arange(VOCAB))


def test_embeddings_add_positions_types_and_a_norm() -> None:
    model = lively(build(small_config("bert"), dtype=torch.float64))
    embedding = model.embedding
    tokens_bt, types_bt = torch.tensor([[3, 1, 4]]), torch.tensor([[0, 1, 1]])
    for types, rows in ((types_bt, [0, 1, 1]), (None, [0, 0, 0])):
        sum_td = embedding.words.tables[0][[3, 1, 4]]
        sum_td = sum_td + embedding.positions[2:5] + embedding.types[rows]
        assert isinstance(embedding.norm, nn.LayerNorm)
        wanted_td = F.layer_norm(sum_td, (12,), embedding.norm.weight, embedding.norm.bias, 1e-12)
        assert_close(embedding(tokens_bt, types, 2)[0], wanted_td)


def test_embeddings_drop_in_training_alone() -> None:
    model = build(small_config("gpt2", dropout=0.5))
    tokens_bt = torch.zeros(1, 50, dtype=torch.int64)
    quiet_btd = model.embedding(tokens_bt, None, 0)
    torch.manual_seed(0)
    dropped_btd = model.train().embedding(tokens_bt, None, 0)
    assert quiet_btd.all()
    gone = dropped_btd == 0
    assert 0.4 < gone.double().mean() < 0.6
    assert_close(dropped_btd[~gone], 2 * quiet_btd[~gone])


@pytest.mark.parametrize("case", [CLUSTER_CASES[0], CLUSTER_CASES[-1], None], ids=str)
def test_ignored_targets_count_for_nothing(case: dict[str, Any] | None) -> None:
    model = make_flat({}) if case is None else make_clusters(case)
    tokens_bt = torch.tensor([[1, 2, 3, 4], [5, 6, 22, 8]])
    targets_bt = torch.tensor([[2, IGNORE, 20, 5], [IGNORE, IGNORE, 9, 0]])
    all_counted = model(tokens_bt, targets=targets_bt.clamp(min=0))
    out = model(tokens_bt, targets=targets_bt)
    counted_bt = targets_bt != IGNORE
    assert_close(out.losses, all_counted.losses * counted_bt)
    assert_close(out.loss, all_counted.losses[counted_bt].mean())
    with pytest.raises(InputError, match="every target is -100"):
        model(tokens_bt, targets=torch.full_like(tokens_bt, IGNORE))


@pytest.mark.parametrize(
    ("tokens", "problem"),
    [
        (torch.zeros(3, dtype=torch.int64), r"shape \(3,\)"),
        (torch.zeros(1, 2, 3, dtype=torch.int64), r"shape \(1, 2, 3\)"),
        (torch.zeros(1, 2), "torch.float32"),
        (torch.zeros(1, 2, dtype=torch.bool), "torch.bool"),
        (torch.zeros(1, 2, dtype=torch.complex64), "torch.complex64"),
        (torch.zeros(0, 2, dtype=torch.int64), r"empty, shape \(0, 2\)"),
        (torch.zeros(2, 0, dtype=torch.int64), r"empty, shape \(2, 0\)"),
        (torch.tensor([[0, 10]]), r"hold 10, outside 0 … 9"),
        (torch.tensor([[0, -1]]), r"hold -1, outside 0 … 9"),
    ],
    ids=str,
)
def test_tokens_that_are_none_are_refused(tokens: Tensor, problem: str) -> None:
    with pytest.raises(InputError, match=problem) as caught:
        check_tokens(tokens, 10, "targets")
    assert str(caught.value).startswith("targets ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_tokens_of_the_vocabulary_pass(dtype: torch.dtype) -> None:
    check_tokens(torch.tensor([[0, 9]], dtype=dtype), 10, "tokens")
