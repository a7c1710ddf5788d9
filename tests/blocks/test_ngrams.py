"""Memory of n-grams against a plain loop, and the optimizer that moves only what was used."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import parformer as pf
from parformer.blocks.ngrams import NGramMemory
from parformer.errors import ConfigError, InputError
from parformer.model import Model
from parformer.recipe import TrainConfig
from parformer.train.optimizers import clip_gradients, make_optimizer
from parformer.train.rules import RowAdam
from tests.conftest import lively, small_config

TOKENS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6], [5, 3, 5, 8, 9, 7, 9, 3]])


def make(pattern: str, **changes: object) -> Model:
    sizes = {"d_model": 12, "n_head": 2, "pattern": pattern, "vocab_size": 13}
    return lively(pf.build(small_config("transformer-xl", **{**sizes, **changes})))


def wrap(number: int) -> int:
    """A whole number of 64 bits, as torch's are."""
    number &= 2**64 - 1
    return number - 2**64 if number >= 2**63 else number


def naive_row(gram: list[int], rows: int) -> int:
    """The row of an n-gram, written from the last token backwards."""
    side = math.isqrt(rows)
    if len(gram) == 2 and all(0 <= token < side for token in gram):
        return gram[0] * side + gram[1]
    code = 0
    for token in reversed(gram):
        code = wrap((code ^ (token + 2)) * 0x9E3779B97F4A7C15)
        code = wrap((code ^ (code >> 29)) * 0xBF58476D1CE4E5B9)
    return (code >> 24 & (2**31 - 1)) % rows


def naive(block: NGramMemory, x_btd: Tensor, tokens_bt: Tensor) -> Tensor:
    """One token after the other, one order after the other."""
    out_btd = x_btd.clone()
    sizes, width = block.sizes, x_btd.shape[2]
    for b, row in enumerate(tokens_bt.tolist()):
        padded = [-1] * (sizes.last - 1) + row
        for t in range(len(row)):
            read_d = block.read(x_btd[b, t])
            end = t + sizes.last
            for place, order in enumerate(sizes.orders):
                vector_w = block.rows[place][naive_row(padded[end - order : end], sizes.rows)]
                channels = [(place * sizes.width + i) % width for i in range(sizes.width)]
                agrees = sum(read_d[c] * vector_w[i] for i, c in enumerate(channels))
                scale = block.gate_scale[place] / math.sqrt(sizes.width)
                gate = torch.sigmoid(scale * agrees + block.gate_bias[place])
                for i, c in enumerate(channels):
                    out_btd[b, t, c] = out_btd[b, t, c] + gate * vector_w[i]
    return out_btd


@pytest.mark.parametrize(
    "pattern",
    ["n", "n[to=2]", "n[from=3,to=5,rows=7]", "n[width=12,rows=200]", "n[width=5,rows=169]"],
)
def test_a_plain_loop_gives_the_same(pattern: str) -> None:
    model = make(pattern, norm="pre", dropout=0.0)
    block = model.blocks[0]
    assert isinstance(block, NGramMemory)
    seen: list[tuple[Tensor, Tensor]] = []
    block.register_forward_hook(lambda _, given, answer: seen.append((given[0], answer[0])))
    model(TOKENS)
    assert_close(seen[0][1], naive(block, seen[0][0], TOKENS), atol=1e-5, rtol=1e-5)
    probe = torch.linspace(-1, 1, 12)
    own = torch.autograd.grad((seen[0][1] * probe).sum(), list(block.parameters()))
    plain = torch.autograd.grad(
        (naive(block, seen[0][0].detach(), TOKENS) * probe).sum(), list(block.parameters())
    )
    for ours, theirs in zip(own, plain, strict=True):
        assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


def test_enough_rows_tell_all_pairs_apart() -> None:
    block = make("n[to=2,rows=169]").blocks[0]
    assert isinstance(block, NGramMemory)
    pairs_b2 = torch.cartesian_prod(torch.arange(13), torch.arange(13))
    (number_b1,) = block.row_numbers(pairs_b2, 1)
    assert len(set(number_b1.flatten().tolist())) == 169


def test_places_without_a_token_count_as_before_the_text() -> None:
    model = make("n[to=3]")
    padded = torch.cat((torch.zeros(2, 2, dtype=torch.int64), TOKENS), dim=1)
    there = torch.ones_like(padded, dtype=torch.bool)
    there[:, :2] = False
    assert_close(model(padded, padding=there).logits[:, 2:], model(TOKENS).logits)


def test_a_stack_by_itself_has_no_tokens() -> None:
    model = make("n")
    with pytest.raises(InputError, match="n looks tokens up"):
        pf.blocks.Stack.forward(model, torch.zeros(1, 2, 12))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("pattern", "complaint"),
    [
        ("n[to=1]", "2 tokens or more, got from=1 to=1"),
        ("n[from=5]", "got from=5 to=4"),
        ("n[width=13]", "wider than the stream of 12"),
        ("n[rows=0]", "must be at least 1, got 0"),
        ("n[taps=3]", "unknown option 'taps'"),
    ],
)
def test_options_that_make_no_sense_are_refused(pattern: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        make(pattern)


def losses(model: Model, config: TrainConfig, *, sparse: bool, steps: int = 5) -> list[float]:
    for module in model.modules():
        if isinstance(module, NGramMemory):
            module.sparse = sparse
    optimizer = make_optimizer(model, config)
    assert isinstance(optimizer, RowAdam) == sparse
    model.train()
    told = []
    for _ in range(steps):
        loss = model(TOKENS, targets=TOKENS.roll(1, 1)).loss
        assert loss is not None
        loss.backward()
        clip_gradients(list(model.parameters()), 0.25)
        optimizer.step()
        optimizer.zero_grad()
        told.append(float(loss.detach()))
    return told


@pytest.mark.parametrize("optimizer", ["adamw", "muon", "lamb"])
def test_rows_that_are_used_every_time_move_as_with_adam(optimizer: str) -> None:
    config = TrainConfig(optimizer=optimizer, learning_rate=0.01, weight_decay=0.1)
    models = [make("n[to=3,rows=40]sf", dropout=0.0) for _ in range(2)]
    if optimizer == "lamb":  # which has no rows of its own
        told = losses(models[0], config, sparse=True)
        assert told[-1] < told[0]
        return
    assert losses(models[0], config, sparse=True) == pytest.approx(
        losses(models[1], config, sparse=False), rel=1e-5
    )


def test_rows_move_as_with_the_sparse_adam_of_torch() -> None:
    ours, theirs = (nn.Embedding(9, 4, sparse=True) for _ in range(2))
    theirs.load_state_dict(ours.state_dict())
    rest = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    first = RowAdam([ours.weight], rest, lr=0.1, betas=(0.9, 0.99), eps=1e-8)
    second = torch.optim.SparseAdam([theirs.weight], lr=0.1, betas=(0.9, 0.99), eps=1e-8)
    for used in ([1, 2, 2], [2, 5], [1], [8, 8, 8]):
        for table, optimizer in ((ours, first), (theirs, second)):
            optimizer.zero_grad()
            table(torch.tensor(used)).square().sum().backward()
            optimizer.step()
    assert_close(ours.weight, theirs.weight)
    untouched = [0, 3, 4, 6, 7]
    assert not first.state[ours.weight]["exp_avg"][untouched].any()


def test_the_norm_counts_each_row_once() -> None:
    dense, sparse = (nn.Embedding(9, 4, sparse=kind) for kind in (False, True))
    sparse.load_state_dict(dense.state_dict())
    for table in (dense, sparse):
        table(torch.tensor([1, 1, 4])).square().sum().backward()
    norms = [clip_gradients([table.weight], 0.5) for table in (dense, sparse)]
    assert_close(norms[0], norms[1])
    assert sparse.weight.grad is not None
    assert_close(sparse.weight.grad.to_dense(), dense.weight.grad)
