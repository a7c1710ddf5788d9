"""The compiled kernels compute what the plain way defines: answers and gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import parformer as pf
from parformer.kernels import extension, native
from parformer.kernels.activations import gelu_tanh, linear_gelu, times_slope
from parformer.kernels.attention import MOST_KEYS, attention, usable
from parformer.kernels.entropy import cross_entropy
from parformer.model import Model
from tests.conftest import lively, noise, small_config

needs_compiler = pytest.mark.skipif(
    not extension.find_compilers() or native.find_gemm() is None, reason="needs a C++ compiler"
)

MODELS: dict[str, dict[str, Any]] = {
    "relative": {"family": "transformer-xl", "mem_len": 70},
    "relative, biases of its own": {
        "family": "transformer-xl", "mem_len": 150, "position_bias": "per-layer", "clamp_len": 9,
    },
    "same length": {"family": "transformer-xl", "mem_len": 33, "same_length": True},
    "relative, grouped": {"family": "transformer-xl", "mem_len": 20, "n_head": 4, "n_kv_head": 2},
    "learned": {"family": "gpt2", "max_len": 160},
    "rotary, grouped": {
        "family": "llama", "n_head": 6, "n_kv_head": 2, "d_head": 4, "max_len": 400,
    },
    "both sides": {"family": "bert", "max_len": 160},
}  # fmt: skip


@pytest.fixture
def compiled() -> Iterator[None]:
    assert native.enable()
    yield
    native.enable(False)


def steps(model: Model, length: int, **inputs: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Losses of three steps with memory carried, and the gradients of all parameters."""
    model.train()
    generator = torch.Generator().manual_seed(0)
    state, losses = None, []
    for _ in range(3):
        tokens = torch.randint(13, (3, length), generator=generator)
        targets = torch.randint(13, (3, length), generator=generator)
        out = model(tokens, state, targets, **inputs)
        state = None if model.config.positions == "learned" else out.state
        assert out.loss is not None
        losses.append(out.loss)
    total = torch.stack(losses).sum()
    parameters = [p for p in model.parameters() if p.requires_grad]
    gradients = torch.autograd.grad(total, parameters, allow_unused=True)
    return [loss.detach() for loss in losses], [g for g in gradients if g is not None]


class CountCalls(TorchDispatchMode):
    """How often the compiled attention was called inside `with`."""

    calls = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self.calls += func is torch.ops.parformer.attention.default
        return func(*args, **(kwargs or {}))


def compare(config: pf.ModelConfig, length: int, **inputs: Tensor) -> None:
    """The compiled way in fp32 against the plain way in fp64."""
    exact = steps(lively(pf.build(config, dtype=torch.float64)), length, **inputs)
    with CountCalls() as counted:
        found = steps(lively(pf.build(config)), length, **inputs)
    assert counted.calls == 3 * config.pattern.count("s")
    for mine, theirs in zip(found, exact, strict=True):
        for a, b in zip(mine, theirs, strict=True):
            torch.testing.assert_close(a.double(), b, rtol=1e-3, atol=1e-5 * b.abs().max().item())


@needs_compiler
@pytest.mark.parametrize("length", [1, 7, 64, 131])
@pytest.mark.parametrize("name", MODELS)
def test_losses_and_gradients_are_the_plain_ones(name: str, length: int, compiled: None) -> None:
    compare(small_config(pattern="sfs", **MODELS[name]), length)


@needs_compiler
def test_what_is_padded_is_not_seen(compiled: None) -> None:
    padding = torch.ones(3, 70, dtype=torch.bool)
    padding[0, 50:], padding[1, 3:] = False, False
    compare(small_config("bert", pattern="sfs", max_len=70), 70, padding=padding)


@needs_compiler
def test_threads_do_not_change_the_numbers(compiled: None) -> None:
    shapes = ((5, 70, 12), (5, 100, 24), (3, 100, 4), (3, 4), (3, 4))

    def run(threads: int) -> list[Tensor]:
        torch.set_num_threads(threads)
        inputs = [noise(*shape, dtype=torch.float32).requires_grad_() for shape in shapes]
        y = attention(*inputs, None, 3, 3, True, 90)[0]
        return [y.detach(), *torch.autograd.grad(y.square().sum(), inputs)]

    try:
        alone, together = run(1), run(3)
    finally:
        torch.set_num_threads(1)
    assert all(map(torch.equal, alone, together))


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("time", "width"), [(9, 4), (70, 5), (64, 32), (131, 17)])
def test_half_precision_errs_little_more_than_torchs(
    compiled: None, time: int, width: int, dtype: torch.dtype
) -> None:
    qkv = noise(2, time, 9 * width, dtype=torch.float32).to(dtype)
    weight = noise(2, time, 3 * width, dtype=torch.float32).to(dtype)

    def ours(x: Tensor) -> Tensor:
        y: Tensor = attention(x, None, None, None, None, None, 3, 3, True, time)[0]
        return y

    def torchs(x: Tensor) -> Tensor:
        q, k, v = x.view(2, time, 3, 3, width).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)

    def run(way: Callable[[Tensor], Tensor], kind: torch.dtype) -> tuple[Tensor, Tensor]:
        x = qkv.to(kind).requires_grad_()
        y = way(x)
        assert y.dtype == kind
        return y.detach().double(), torch.autograd.grad(y, x, weight.to(kind))[0].double()

    exact, mine, theirs = run(torchs, torch.float64), run(ours, dtype), run(torchs, dtype)
    for found, usual, wanted in zip(mine, theirs, exact, strict=True):
        assert (found - wanted).norm() <= 1.5 * (usual - wanted).norm() + 1e-6


@needs_compiler
@pytest.mark.parametrize("turned", [(0, 0), (0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize(
    "sizes", [(1, 1, 1), (64, 256, 32), (13, 37, 21), (8, 100, 3), (5, 16, 66)]
)
def test_products_in_bf16_are_exact_for_small_whole_numbers(
    sizes: tuple[int, int, int], turned: tuple[int, int]
) -> None:
    """2 a b − c, into a part of wider rows; sums so small are exact in any order."""
    m, n, k = sizes
    library = native.library()
    assert library is not None
    generator = torch.Generator().manual_seed(3)
    a, b, c = (
        torch.randint(-9, 10, shape, generator=generator).float()
        for shape in ((m, k), (k, n), (m, n + 7))
    )
    before = c.clone()
    sides = [x.T.contiguous() if turn else x for x, turn in zip((a, b), turned, strict=True)]
    places = [x.data_ptr() for x in (*sides, c)]
    if not library.multiply_halves(
        m, n, k, places[0], turned[0], places[1], turned[1], places[2], n + 7
    ):
        pytest.skip("this CPU has no products in bf16")
    assert torch.equal(c[:, :n], 2 * a @ b - before[:, :n])
    assert torch.equal(c[:, n:], before[:, n:])


@needs_compiler
def test_gelu_and_its_slope_over_all_sizes_of_numbers(compiled: None) -> None:
    x = torch.cat((torch.linspace(-12, 12, 4001), torch.tensor([-1e4, -0.0, 0.0, 1e-30, 1e4])))
    mine, exact = x[:, None].clone().requires_grad_(), x[:, None].double().requires_grad_()
    weight, bias = noise(3, 1, dtype=torch.float32), torch.tensor([0.0, 0.3, -2.0])
    biases = bias.clone().requires_grad_(), bias.double().requires_grad_()
    y = linear_gelu(mine, weight, biases[0])
    assert y is not None
    expected = gelu_tanh(F.linear(exact, weight.double(), biases[1]))
    torch.testing.assert_close(y.double(), expected, rtol=1e-5, atol=1e-6)
    y.sum().backward()
    expected.sum().backward()
    for a, b in ((mine, exact), biases):
        assert a.grad is not None
        torch.testing.assert_close(a.grad.double(), b.grad, rtol=1e-5, atol=1e-6)


@needs_compiler
def test_gelu_of_other_kinds_stays_plain(compiled: None) -> None:
    x, weight, bias = noise(2, 3, dtype=torch.float32), torch.ones(4, 3), torch.zeros(4)
    assert linear_gelu(x, weight, bias) is not None
    assert linear_gelu(x, weight, None) is None
    assert linear_gelu(x.double(), weight.double(), bias.double()) is None
    with torch.autocast("cpu", torch.bfloat16):
        assert linear_gelu(x, weight, bias) is None
    with torch.no_grad():
        assert linear_gelu(x, weight, bias) is None


@needs_compiler
def test_what_is_no_number_stays_none(compiled: None) -> None:
    x = torch.tensor([[float("nan")], [1.0]], requires_grad=True)
    y = linear_gelu(x, torch.ones(1, 1), torch.zeros(1))
    assert y is not None
    assert y.isnan().tolist() == [[True], [False]]
    qkv = torch.zeros(1, 3, 12, requires_grad=True)
    with torch.no_grad():
        qkv[0, 1] = float("nan")
    y = attention(qkv, None, None, None, None, None, 1, 1, True, 3)[0]
    assert y[0, 1:].isnan().all()


@needs_compiler
def test_only_training_in_these_types_goes_the_compiled_way(compiled: None) -> None:
    x = torch.zeros(1)
    assert usable(x, MOST_KEYS, 0.0)
    assert not usable(x, MOST_KEYS + 1, 0.0)
    assert not usable(x, 1, 0.1)
    assert not usable(x.double(), 1, 0.0)
    with torch.no_grad():
        assert not usable(x, 1, 0.0)
    native.enable(False)
    assert not usable(x, 1, 0.0)


def test_the_plain_way_is_the_usual_one() -> None:
    assert not native.enabled


@pytest.mark.parametrize("missing", ["compiler", "multiplication", "sense"])
def test_without_what_it_needs_all_goes_the_plain_way(
    missing: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PARFORMER_CACHE", str(tmp_path))
    if missing == "compiler":
        monkeypatch.setattr(extension.shutil, "which", lambda name: None)
    elif missing == "multiplication":
        monkeypatch.setattr(native, "find_gemm", lambda: None)
    else:
        monkeypatch.setattr(extension, "run_patiently", lambda command: (1, "out of sorts"))
    monkeypatch.setattr(native, "_library", None)
    monkeypatch.setattr(native, "failure", "")
    assert not native.enable()
    assert not native.enabled
    words = {"compiler": "no C++ compiler", "multiplication": "no matrix", "sense": "out of sorts"}
    assert words[missing] in native.failure


@needs_compiler
@pytest.mark.parametrize(("tokens", "words"), [(1, 1), (1, 300), (7, 13), (130, 257), (64, 1024)])
@pytest.mark.parametrize("spread", [1.0, 60.0])
def test_the_loss_and_its_gradient(compiled: None, tokens: int, words: int, spread: float) -> None:
    logits_nv = (spread * noise(tokens, words, dtype=torch.float32)).requires_grad_()
    targets_n = torch.randint(words, (tokens,), generator=torch.Generator().manual_seed(1))
    weights_n = noise(tokens, dtype=torch.float32, seed=2)
    losses_n = cross_entropy(logits_nv, targets_n)
    assert type(losses_n.grad_fn).__name__ == "FunctionBackward"
    (gradient_nv,) = torch.autograd.grad(losses_n @ weights_n, logits_nv)
    exact_nv = logits_nv.detach().double().requires_grad_()
    expected_n = F.cross_entropy(exact_nv, targets_n, reduction="none")
    (wanted_nv,) = torch.autograd.grad(expected_n @ weights_n.double(), exact_nv)
    torch.testing.assert_close(losses_n.double(), expected_n, rtol=2e-6, atol=2e-5)
    torch.testing.assert_close(gradient_nv.double(), wanted_nv, rtol=1e-5, atol=2e-6)


@needs_compiler
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.7])
def test_smoothing_and_places_without_a_target(compiled: None, smoothing: float) -> None:
    logits_nv = (3 * noise(9, 37, dtype=torch.float32)).requires_grad_()
    targets_n = torch.tensor([1, -100, 36, 0, -100, 5, 5, 7, 8])
    weights_n = noise(9, dtype=torch.float32, seed=2)
    losses_n = cross_entropy(logits_nv, targets_n, smoothing)
    (gradient_nv,) = torch.autograd.grad(losses_n @ weights_n, logits_nv)
    exact_nv = logits_nv.detach().double().requires_grad_()
    expected_n = F.cross_entropy(
        exact_nv, targets_n, reduction="none", label_smoothing=smoothing, ignore_index=-100
    )
    (wanted_nv,) = torch.autograd.grad(expected_n @ weights_n.double(), exact_nv)
    torch.testing.assert_close(losses_n.double(), expected_n, rtol=2e-6, atol=2e-5)
    torch.testing.assert_close(gradient_nv.double(), wanted_nv, rtol=1e-5, atol=2e-6)


@needs_compiler
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_loss_that_is_no_number_shows(compiled: None, bad: float) -> None:
    logits_nv = noise(3, 40, dtype=torch.float32)
    logits_nv[1, 7] = bad
    losses_n = cross_entropy(logits_nv.requires_grad_(), torch.tensor([1, 2, 3]))
    assert torch.isfinite(losses_n).tolist() == [True, False, True]


@needs_compiler
@pytest.mark.parametrize("rows", [1, 63, 64, 65, 200])
def test_the_gradient_of_a_bias_does_not_depend_on_threads(compiled: None, rows: int) -> None:
    dy, slope = noise(rows, 24, dtype=torch.float32), noise(rows, 24, dtype=torch.float32, seed=1)
    before = torch.get_num_threads()
    try:
        found = []
        for threads in (1, 3):
            torch.set_num_threads(threads)
            found.append(times_slope(dy, slope))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0][0], dy * slope)
    torch.testing.assert_close(found[0][1], (dy * slope).sum(0))
    for one, three in zip(*found, strict=True):
        assert torch.equal(one, three)
