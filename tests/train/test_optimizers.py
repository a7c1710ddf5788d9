"""Do the optimizers follow their papers, alone and shared out, and remember every bit?"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from parformer.errors import FolderError
from parformer.model import build
from parformer.recipe import TrainConfig
from parformer.train.optimizers import (
    clip_gradients,
    group_parameters,
    load_state_tensors,
    make_optimizer,
    set_learning_rate,
    state_tensors,
)
from parformer.train.rules import Muon, orthogonal
from tests.conftest import small_config

OPTIMIZERS = ("adam", "adamw", "radam", "lamb", "nvlamb", "muon")

Array = Any
"""A NumPy array of float64."""


class Tiny(nn.Module):
    """A net with every kind of parameter: shared, empty, large, one-dimensional, idle."""

    def __init__(self, dtype: torch.dtype = torch.float64, seed: int = 0) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(9, 5))
        self.blocks = nn.ModuleList([nn.Linear(5, 7), nn.Linear(7, 3), nn.Linear(3, 5)])
        self.norm = nn.LayerNorm(5)
        self.zero = nn.Parameter(torch.empty(4, 5))
        self.scale = nn.Parameter(torch.empty(1))
        self.idle = nn.Parameter(torch.empty(2, 3))
        self.shared = self.table
        self.to(dtype)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for p in self.parameters():
                p.copy_(torch.randn(p.shape, generator=generator, dtype=torch.float64))
            self.blocks[1].weight.mul_(9.0)  # a norm that LAMB does not trust
            self.zero.zero_()

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table[tokens] + self.zero[tokens % 4]
        for block in self.blocks:
            x = torch.tanh(block(x))
        return F.cross_entropy((self.norm(x) * self.scale) @ self.shared.T, (tokens + 1) % 9)


def make_config(optimizer: str, **fields: Any) -> TrainConfig:
    values: dict[str, Any] = {"learning_rate": 0.03, "weight_decay": 0.1, "beta2": 0.98} | fields
    return TrainConfig(optimizer=optimizer, **values)  # type: ignore[arg-type]


def give_gradients(model: nn.Module, step: int) -> None:
    """Gradients that differ in size from update to update and from number to number.

    Some parameters get none now and then, one never does, one only gets zeros.
    """
    generator = torch.Generator().manual_seed(100 + step)
    for place, (name, p) in enumerate(model.named_parameters()):
        fresh = torch.randn(p.shape, generator=generator, dtype=torch.float64)
        spread = 10.0 ** torch.randint(-7, 1, p.shape, generator=generator)
        p.grad = (fresh * spread * (3.0 if step % 3 else 1e-3)).to(p.dtype)
        if name == "idle" or (step + place) % 5 == 0:
            p.grad = None
        elif name == "blocks.2.weight":
            p.grad.zero_()


def rate_at(step: int) -> float:
    return 0.03 / (1 + step)


# Twins: the papers' formulas, tensor by tensor, in float64


class Twin:
    """Weights by name, and what a naive optimizer remembers of each."""

    def __init__(self, model: nn.Module, config: TrainConfig) -> None:
        self.config = config
        self.eps = config.eps or (1e-6 if config.optimizer in ("lamb", "nvlamb") else 1e-8)
        self.weights = {n: p.detach().double().numpy().copy() for n, p in model.named_parameters()}
        self.m = {n: np.zeros_like(w) for n, w in self.weights.items()}
        self.v = {n: np.zeros_like(w) for n, w in self.weights.items()}
        self.t = dict.fromkeys(self.weights, 0)

    def decay(self, name: str) -> float:
        plain = self.weights[name].ndim < 2
        return 0.0 if plain else self.config.weight_decay

    def step(self, gradients: Mapping[str, Array], rate: float) -> None:
        total = math.sqrt(sum((g**2).sum() for g in gradients.values()))
        for name, gradient in gradients.items():
            self.t[name] += 1
            if self.config.optimizer == "nvlamb" and total > 1:
                gradient = gradient / total
            move = getattr(self, self.config.optimizer)
            self.weights[name] = move(name, self.weights[name], gradient, rate)

    def remember(self, name: str, gradient: Array) -> tuple[Array, Array]:
        b1, b2 = self.config.beta1, self.config.beta2
        self.m[name] = b1 * self.m[name] + (1 - b1) * gradient
        self.v[name] = b2 * self.v[name] + (1 - b2) * gradient**2
        return self.m[name], self.v[name]

    def corrected(self, name: str, gradient: Array) -> tuple[Array, Array]:
        m, v = self.remember(name, gradient)
        t = self.t[name]
        return m / (1 - self.config.beta1**t), v / (1 - self.config.beta2**t)

    def adam(self, name: str, w: Array, g: Array, rate: float) -> Array:
        m, v = self.corrected(name, g + self.decay(name) * w)
        return w - rate * m / (np.sqrt(v) + self.eps)

    def adamw(self, name: str, w: Array, g: Array, rate: float) -> Array:
        m, v = self.corrected(name, g)
        return w - rate * (m / (np.sqrt(v) + self.eps) + self.decay(name) * w)

    def radam(self, name: str, w: Array, g: Array, rate: float) -> Array:
        t, b2 = self.t[name], self.config.beta2
        m_hat = self.corrected(name, g)[0]
        w = w - rate * self.decay(name) * w
        longest = 2 / (1 - b2) - 1
        length = longest - 2 * t * b2**t / (1 - b2**t)
        if length <= 5:
            return w - rate * m_hat
        rectified = math.sqrt(
            (length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)
        )
        adaptive = math.sqrt(1 - b2**t) / (np.sqrt(self.v[name]) + self.eps)
        return w - rate * rectified * m_hat * adaptive

    def lamb(self, name: str, w: Array, g: Array, rate: float) -> Array:
        m, v = self.remember(name, g)
        u = m / (np.sqrt(v) + self.eps) + self.decay(name) * w
        size, move = np.sqrt((w**2).sum()), np.sqrt((u**2).sum())
        trust = 1.0 if size == 0 or move == 0 else min(size, 10.0) / (move + self.eps)
        return w - rate * trust * u

    def nvlamb(self, name: str, w: Array, g: Array, rate: float) -> Array:
        m, v = self.corrected(name, g)
        u = m / (np.sqrt(v) + self.eps) + self.decay(name) * w
        size, move = np.sqrt((w**2).sum()), np.sqrt((u**2).sum())
        return w - rate * (1.0 if size == 0 or move == 0 else size / move) * u

    def muon(self, name: str, w: Array, g: Array, rate: float) -> Array:
        if w.ndim != 2 or not name.startswith("blocks."):
            return self.adamw(name, w, g, rate)
        self.m[name] = self.config.momentum * self.m[name] + g
        x = g + self.config.momentum * self.m[name]
        # The memory here is a sum and there a mean, which the norm makes the same, if not nought.
        x = x / max(np.sqrt((x**2).sum()), 1e-30)
        for _ in range(5):
            x = 3.4445 * x + (-4.7750 * (x @ x.T) + 2.0315 * (x @ x.T @ x @ x.T)) @ x
        shrunk = w * (1 - rate * self.config.weight_decay)
        return shrunk - rate * 0.2 * math.sqrt(max(w.shape)) * x


def compare_with_twin(model: nn.Module, config: TrainConfig, tolerance: float) -> None:
    optimizer, twin = make_optimizer(model, config), Twin(model, config)
    for step in range(10):
        give_gradients(model, step)
        named = list(model.named_parameters())
        gradients = {n: p.grad.double().numpy() for n, p in named if p.grad is not None}
        twin.step({n: g.copy() for n, g in gradients.items()}, rate_at(step))
        set_learning_rate(optimizer, rate_at(step))
        optimizer.step()
        for name, p in named:
            np.testing.assert_allclose(
                p.detach().numpy(), twin.weights[name], rtol=tolerance, atol=tolerance, err_msg=name
            )
            if p.grad is not None:
                np.testing.assert_array_equal(p.grad.double().numpy(), gradients[name])


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_updates_are_those_of_the_paper(name: str, decay: float) -> None:
    compare_with_twin(Tiny(), make_config(name, weight_decay=decay), 1e-11)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_updates_are_those_of_the_paper_in_single_precision(name: str) -> None:
    compare_with_twin(Tiny(torch.float32), make_config(name), 3e-5)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_eps_and_betas_reach_the_optimizer(name: str) -> None:
    config = make_config(name, eps=1e-2, beta1=0.7, beta2=0.9, momentum=0.6)
    compare_with_twin(Tiny(), config, 1e-11)


def test_radam_is_tried_on_both_sides_of_its_rectification() -> None:
    b2 = make_config("radam").beta2
    lengths = [2 / (1 - b2) - 1 - 2 * t * b2**t / (1 - b2**t) for t in range(1, 9)]
    assert min(lengths) < 5 < max(lengths)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_how_a_gradient_lies_in_memory_does_not_matter(name: str) -> None:
    models = [Tiny(torch.float32), Tiny(torch.float32)]
    optimizers = [make_optimizer(model, make_config(name)) for model in models]
    for step in range(4):
        for model in models:
            give_gradients(model, step)
        for p in models[1].parameters():
            if p.grad is not None and p.ndim == 2:
                p.grad = p.grad.T.contiguous().T
        for optimizer in optimizers:
            optimizer.step()
    for p, q in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)


# Groups


def test_norms_and_biases_do_not_decay() -> None:
    model = build(small_config("transformer-xl", pattern="(sf)x2"))
    decaying, fixed = group_parameters(model)
    names = [name for name, _ in model.named_parameters()]
    assert sorted(names) == sorted([*decaying, *fixed])
    for found in (decaying, fixed):
        assert list(found) == [name for name in names if name in found]
    assert {"embedding.words.tables.0", "blocks.0.qkv.weight", "blocks.3.out.weight"} <= {*decaying}
    assert {"content_bias", "blocks.0.norm.weight", "blocks.1.inner.bias"} <= {*fixed}
    assert all(p.ndim == 2 for p in decaying.values())


def test_two_dimensions_do_not_make_a_bias_or_a_norm_decay() -> None:
    model = nn.Module()
    model.norm = nn.LayerNorm((2, 3))
    model.final_norm = nn.LayerNorm((2, 3))
    model.head_bias = nn.Parameter(torch.ones(2, 3))
    model.kernel = nn.Parameter(torch.ones(2, 3, 4))
    model.normal = nn.Linear(2, 3)
    model.again = model.normal
    decaying, fixed = group_parameters(model)
    norms = ["norm.weight", "norm.bias", "final_norm.weight", "final_norm.bias"]
    assert list(decaying) == ["kernel", "normal.weight"]
    assert list(fixed) == ["head_bias", *norms, "normal.bias"]


def test_muon_takes_the_matrices_inside_blocks() -> None:
    model = build(small_config("gpt2", pattern="sf"))
    optimizer = make_optimizer(model, make_config("muon"))
    assert isinstance(optimizer, Muon)
    names = {p: name for name, p in model.named_parameters()}
    first, *rest = ({names[p] for p in group["params"]} for group in optimizer.param_groups)
    wanted = ("qkv", "out", "inner")
    assert first == {
        name
        for name in names.values()
        if name.startswith("blocks.") and name.split(".")[2] in wanted and name.endswith("weight")
    }
    assert sorted([*first, *rest[0], *rest[1]]) == sorted(names.values())
    optimizer.zero_grad()
    set_learning_rate(optimizer, 0.125)
    assert [group["lr"] for group in optimizer.adamw.param_groups] == [0.125, 0.125]


def test_muon_does_without_matrices() -> None:
    model = nn.LayerNorm(3)
    optimizer = make_optimizer(model, make_config("muon"))
    model(torch.arange(3.0)).square().sum().backward()
    before = model.weight.clone()
    optimizer.step()
    assert not torch.equal(model.weight, before)


@pytest.mark.parametrize("shape", [(8, 8), (5, 40), (40, 5), (1, 6)])
def test_orthogonal_brings_singular_values_near_one(shape: tuple[int, int]) -> None:
    matrix = 3 * torch.randn(shape, generator=torch.Generator().manual_seed(1)).double()
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    assert values.max() > 1.3
    found = orthogonal(matrix)
    turned = left.T @ found @ right.T
    near = turned.diagonal()
    torch.testing.assert_close(turned, near.diag(), rtol=0, atol=1e-12)
    # Singular values below a hundredth of the norm would need more than five steps.
    assert near[values > 0.02 * values.norm()].min() > 0.5
    assert near.max() < 1.3


@pytest.mark.parametrize("shape", [(8, 8), (5, 40), (40, 5)])
def test_a_stack_is_made_orthogonal_matrix_by_matrix(shape: tuple[int, int]) -> None:
    stack = torch.randn((3, *shape), generator=torch.Generator().manual_seed(1))
    stack *= torch.tensor([1e-3, 1.0, 50.0])[:, None, None]
    for found, matrix in zip(orthogonal(stack), stack, strict=True):
        torch.testing.assert_close(found, orthogonal(matrix), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("largest", [1, 30, 2**24])
def test_muon_in_bf16_moves_as_in_fp32(monkeypatch: pytest.MonkeyPatch, largest: int) -> None:
    """All matrices of a shape at once, or as many as are allowed, each where it belongs."""
    monkeypatch.setattr("parformer.train.rules.LARGEST_STACK", largest)
    config = small_config("gpt2", pattern="(sf)x3")
    models = [build(config, seed=1), build(config, seed=1)]
    before = copy.deepcopy(models[0].state_dict())
    settings = make_config("muon")
    for model, precision in zip(models, ("fp32", "bf16"), strict=True):
        optimizer = make_optimizer(model, replace(settings, precision=precision))
        for step in range(3):
            give_gradients(model, step)
            optimizer.step()
    for (name, found), wanted in zip(
        models[1].named_parameters(), models[0].parameters(), strict=True
    ):
        moved, apart = (wanted - before[name]).norm(), (found - wanted).norm()
        assert moved > 0, name
        assert apart <= 0.02 * moved, name


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_rate_of_nought_moves_nothing(name: str) -> None:
    model = Tiny()
    before = copy.deepcopy(model.state_dict())
    optimizer = make_optimizer(model, make_config(name))
    set_learning_rate(optimizer, 0.0)
    for step in range(8):
        give_gradients(model, step)
        optimizer.step()
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key])


# Clipping


def gradients_of(model: nn.Module) -> list[Tensor]:
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("limit", [0.25, 1e6])
def test_clipping_is_torchs(limit: float) -> None:
    model, other = Tiny(), Tiny()
    for one in (model, other):
        give_gradients(one, 4)
    expected = nn.utils.clip_grad_norm_(other.parameters(), limit)
    norm = clip_gradients(model.parameters(), limit)
    assert norm.shape == ()
    torch.testing.assert_close(norm, expected)
    torch.testing.assert_close(gradients_of(model), gradients_of(other))


def test_a_limit_of_nought_only_measures() -> None:
    model = Tiny()
    give_gradients(model, 4)
    before = gradients_of(model)
    norm = clip_gradients(iter(model.parameters()), 0.0)
    assert float(norm) == pytest.approx(math.sqrt(sum(float(g.square().sum()) for g in before)))
    assert all(map(torch.equal, gradients_of(model), before))


def test_without_gradients_the_norm_is_nought() -> None:
    norm = clip_gradients(Tiny().parameters(), 1.0)
    assert (norm.shape, norm.item()) == ((), 0.0)


def test_a_norm_that_is_not_finite_is_seen() -> None:
    model = Tiny()
    give_gradients(model, 1)
    model.norm.weight.grad = torch.full((5,), math.nan, dtype=torch.float64)
    assert not clip_gradients(model.parameters(), 1.0).isfinite()


def test_the_norm_of_many_millions_is_exact() -> None:
    """Torch's own norm on a CPU is off by nearly a percent here."""
    table = nn.Parameter(torch.empty(2**25))
    table.grad = torch.full_like(table, 0.02)
    assert float(clip_gradients([table], 0.0)) == pytest.approx(0.02 * 2**12.5, rel=1e-4)


# Remembering


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        give_gradients(model, step)
        set_learning_rate(optimizer, rate_at(step))
        optimizer.step()


def through_a_file(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return safetensors.torch.load(safetensors.torch.save(tensors))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("steps", [0, 1, 7])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_saved_state_goes_on_to_the_bit(name: str, steps: int, dtype: torch.dtype) -> None:
    model, config = Tiny(dtype), make_config(name)
    optimizer = make_optimizer(model, config)
    train(model, optimizer, range(steps))
    saved = through_a_file(state_tensors(optimizer, model))
    other = copy.deepcopy(model)
    fresh = make_optimizer(other, config)
    load_state_tensors(fresh, other, saved)
    assert all(torch.equal(value, saved[key]) for key, value in state_tensors(fresh, other).items())
    for one, its in ((model, optimizer), (other, fresh)):
        train(one, its, range(steps, steps + 4))
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(p, q)
    again = state_tensors(fresh, other)
    assert saved.keys() == again.keys()
    for key, value in state_tensors(optimizer, model).items():
        assert value.dtype == again[key].dtype
        assert torch.equal(value, again[key])


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_state_has_the_same_names_before_and_after_updates(name: str) -> None:
    model = Tiny()
    optimizer = make_optimizer(model, make_config(name))
    blank = state_tensors(optimizer, model)
    assert not optimizer.state
    assert not any(value.any() for value in blank.values())
    train(model, optimizer, range(3))
    filled = state_tensors(optimizer, model)
    assert list(filled) == list(blank)
    assert {k: (v.shape, v.dtype) for k, v in filled.items()} == {
        k: (v.shape, v.dtype) for k, v in blank.items()
    }
    kept = {"lamb": 2, "muon": 3}.get(name, 3)
    matrices = 3 if name == "muon" else 0
    count = len(list(model.parameters()))
    assert len(filled) == kept * (count - matrices) + matrices
    memory = "momentum_buffer" if name == "muon" else "exp_avg"
    assert filled[f"blocks.0.weight/{memory}"].any()
    assert not filled["idle/exp_avg"].any()


@pytest.mark.parametrize("name", ["adamw", "radam", "nvlamb"])
def test_every_parameter_counts_its_own_updates(name: str) -> None:
    model = Tiny()
    optimizer = make_optimizer(model, make_config(name))
    train(model, optimizer, range(7))
    saved = state_tensors(optimizer, model)
    for place, (key, _) in enumerate(model.named_parameters()):
        given = 0 if key == "idle" else sum((step + place) % 5 != 0 for step in range(7))
        assert saved[f"{key}/step"].item() == given


def drop(state: dict[str, Tensor]) -> None:
    del state["norm.bias/exp_avg_sq"]


def add(state: dict[str, Tensor]) -> None:
    state["norm.extra/exp_avg"] = torch.zeros(3)


def reshape(state: dict[str, Tensor]) -> None:
    state["table/exp_avg"] = state["table/exp_avg"].T.contiguous()


def recast(state: dict[str, Tensor]) -> None:
    state["table/exp_avg"] = state["table/exp_avg"].float()


def count_twice(state: dict[str, Tensor]) -> None:
    state["scale/step"] = state["scale/step"].repeat(2)


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (drop, r"lacks 'norm.bias/exp_avg_sq' \(1 of 36"),
        (add, r"has 'norm.extra/exp_avg' \(1 tensors too many"),
        (reshape, r"'table/exp_avg' as torch.float64 of shape \(5, 9\), not .* \(9, 5\)"),
        (recast, r"'table/exp_avg' as torch.float32 of .*, not torch.float64"),
        (count_twice, r"'scale/step' as torch.float32 of shape \(2,\), not .* \(\)"),
        (dict.clear, r"lacks 'table/step' \(36 of 36"),
    ],
)
def test_a_state_that_does_not_fit_is_refused(
    damage: Callable[[dict[str, Tensor]], None], complaint: str
) -> None:
    model = Tiny()
    optimizer = make_optimizer(model, make_config("adamw"))
    train(model, optimizer, range(2))
    state = through_a_file(state_tensors(optimizer, model))
    before = {key: value.clone() for key, value in state.items()}
    train(model, optimizer, range(2, 3))
    changed = through_a_file(state_tensors(optimizer, model))
    damage(state)
    with pytest.raises(FolderError, match=complaint) as caught:
        load_state_tensors(optimizer, model, state)
    assert "\n" not in str(caught.value)
    for key, value in state_tensors(optimizer, model).items():
        assert torch.equal(value, changed[key])
    load_state_tensors(optimizer, model, before)
    assert torch.equal(state_tensors(optimizer, model)["table/step"], before["table/step"])


@pytest.mark.parametrize(("saved", "wanted"), [("adamw", "lamb"), ("lamb", "adamw")])
def test_another_optimizers_state_is_refused(saved: str, wanted: str) -> None:
    model = Tiny()
    state = state_tensors(make_optimizer(model, make_config(saved)), model)
    with pytest.raises(FolderError, match="another model or optimizer"):
        load_state_tensors(make_optimizer(model, make_config(wanted)), model, state)


def test_a_loaded_state_is_a_copy() -> None:
    model = Tiny()
    optimizer = make_optimizer(model, make_config("nvlamb"))
    state = through_a_file(state_tensors(optimizer, model))
    load_state_tensors(optimizer, model, state)
    train(model, optimizer, range(2))
    assert not any(value.any() for value in state.values())


# Shared out among processes


def learn(model: nn.Module, optimizer: torch.optim.Optimizer, tokens: Tensor, step: int) -> float:
    optimizer.zero_grad()
    model(tokens).backward()
    norm = clip_gradients(model.parameters(), 0.5)
    set_learning_rate(optimizer, rate_at(step))
    optimizer.step()
    return float(norm)


def shard(model: nn.Module) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    mesh = dist.init_device_mesh("cpu", (2,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def assert_same(alone: nn.Module, shared: nn.Module, what: str) -> None:
    from torch.distributed.tensor import DTensor

    for (name, p), q in zip(alone.named_parameters(), shared.parameters(), strict=True):
        assert isinstance(q, DTensor)
        difference = (p - q.full_tensor()).abs().max().item()
        assert difference < 1e-9, f"{what}: {name} differs by {difference}"


def work(rank: int, folder: str) -> None:
    """What each of two processes does: half of every batch, and half of every weight."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    for name in OPTIMIZERS:
        config = make_config(name)
        alone, shared = Tiny(), shard(Tiny())
        its, theirs = make_optimizer(alone, config), make_optimizer(shared, config)
        batches = torch.randint(9, (9, 2, 6), generator=torch.Generator().manual_seed(3))
        for step in range(5):
            norm = learn(alone, its, batches[step].flatten(), step)
            assert math.isclose(norm, learn(shared, theirs, batches[step, rank], step)), name
        assert_same(alone, shared, name)

        one, two = state_tensors(its, alone), state_tensors(theirs, shared)
        assert list(one) == list(two)
        for key, value in one.items():
            torch.testing.assert_close(value, two[key], rtol=0, atol=1e-9, msg=f"{name} {key}")

        # What two processes saved goes on in one, and what one saved in two.
        two = {key: value.clone() for key, value in two.items()}
        one = {key: value.clone() for key, value in one.items()}
        alone_again, shared_again = copy.deepcopy(alone), shard(copy.deepcopy(alone))
        its_again = make_optimizer(alone_again, config)
        theirs_again = make_optimizer(shared_again, config)
        load_state_tensors(its_again, alone_again, two)
        load_state_tensors(theirs_again, shared_again, one)
        back = state_tensors(theirs_again, shared_again)
        assert all(torch.equal(value, back[key]) for key, value in one.items()), name
        for step in range(5, 7):
            learn(alone, its, batches[step].flatten(), step)
            learn(alone_again, its_again, batches[step].flatten(), step)
            learn(shared_again, theirs_again, batches[step, rank], step)
        assert_same(alone, shared_again, f"{name} from one to two")
        assert_same(alone_again, shared_again, f"{name} from two to one")
    dist.destroy_process_group()


def test_two_processes_train_as_one_does(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(work, (str(tmp_path),), 2)


def test_what_version_0_1_remembered_of_a_head_is_found_under_todays_name() -> None:
    model = build(small_config("bert"))
    optimizer = make_optimizer(model, TrainConfig())
    today = state_tensors(optimizer, model)
    old = {name.replace("head.out.", "head."): tensor + 1 for name, tensor in today.items()}
    assert "head.bias/exp_avg" in old
    load_state_tensors(optimizer, model, old)
    for name, tensor in state_tensors(optimizer, model).items():
        assert torch.equal(tensor, old[name.replace("head.out.", "head.")])
