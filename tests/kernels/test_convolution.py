"""Does the compiled convolution give what its definition gives, forward and backward?"""

# b batch, t time, n places read, c channels, h heads, k taps

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from parformer.errors import InputError
from parformer.kernels import convolution as kernel
from parformer.kernels import extension
from parformer.kernels.convolution import convolve, unfolded
from tests.conftest import noise

CASES = {
    # batch, time, places, channels, heads, taps, first
    "causal": (2, 9, 9, 12, 3, 4, -3),
    "both sides": (2, 9, 9, 12, 4, 5, -2),
    "after a tail": (3, 5, 9, 40, 2, 5, 0),
    "shorter than its kernel": (1, 3, 3, 7, 7, 11, -10),
    "one token": (2, 1, 7, 96, 4, 7, 0),
    "wide heads": (1, 6, 6, 140, 2, 3, -2),
    "one tap": (2, 4, 4, 6, 1, 1, 0),
    "beyond the end": (1, 4, 6, 5, 1, 3, 5),
}
any_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
any_kind = pytest.mark.parametrize("dynamic", [True, False], ids=["dynamic", "light"])


def tensors(case: tuple[int, ...], dynamic: bool, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    batch, time, places, channels, heads, taps, _ = case
    shape = (batch, time, heads, taps) if dynamic else (heads, taps)
    u_bnc = noise(batch, places, channels, dtype=dtype).requires_grad_()
    return u_bnc, noise(*shape, dtype=dtype, seed=1).requires_grad_()


def by_hand(u_bnc: Tensor, kernels: Tensor, time: int, first: int) -> Tensor:
    """Number by number."""
    batch, places, channels = u_bnc.shape
    heads, taps = kernels.shape[-2:]
    y_btc = torch.zeros(batch, time, channels, dtype=u_bnc.dtype)
    for b in range(batch):
        for t in range(time):
            for c in range(channels):
                own_k = kernels[b, t] if kernels.dim() == 4 else kernels
                for k in range(taps):
                    if 0 <= t + k + first < places:
                        weight = own_k[c * heads // channels, k]
                        y_btc[b, t, c] += weight * u_bnc[b, t + k + first, c]
    return y_btc


@any_case
@any_kind
def test_outputs_are_those_computed_by_hand(case: tuple[int, ...], dynamic: bool) -> None:
    u_bnc, kernels = tensors(case, dynamic, torch.float64)
    time, first = case[1], case[-1]
    wanted = by_hand(u_bnc.detach(), kernels.detach(), time, first)
    assert_close(unfolded(u_bnc, kernels, time, first).detach(), wanted)
    assert_close(convolve(u_bnc, kernels, time, first).detach(), wanted)


@any_case
@any_kind
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_outputs_and_gradients_are_those_of_the_definition(
    case: tuple[int, ...], dynamic: bool, dtype: torch.dtype
) -> None:
    u_bnc, kernels = tensors(case, dynamic, dtype)
    time, first = case[1], case[-1]
    probe = noise(case[0], time, case[3], dtype=dtype, seed=2)
    answers = []
    for way in (convolve, unfolded):
        y_btc = way(u_bnc, kernels, time, first)
        assert y_btc.dtype == dtype
        answers.append((y_btc, *torch.autograd.grad(y_btc, [u_bnc, kernels], probe)))
    near: dict[str, Any] = {"atol": 0.1, "rtol": 0.05} if dtype == torch.bfloat16 else {}
    assert_close(answers[0], answers[1], **near)


@any_kind
def test_tensors_may_lie_anyhow(dynamic: bool) -> None:
    """Channels that are part of a wider stream, texts with time first, a gradient of one number."""
    wide_tbc = noise(7, 2, 20)
    u_btc = wide_tbc.transpose(0, 1)[..., 8:].requires_grad_()
    kernels = noise(7, 2, 4, 3, seed=1).transpose(0, 1) if dynamic else noise(3, 4, seed=1).T
    assert_close(convolve(u_btc, kernels, 7, -1), unfolded(u_btc, kernels, 7, -1))
    ours, theirs = (
        torch.autograd.grad(way(u_btc, kernels, 7, -1).sum(), u_btc) for way in (convolve, unfolded)
    )
    assert_close(ours, theirs)


@any_kind
def test_gradients_of_gradients_are_right(dynamic: bool) -> None:
    u_bnc, kernels = tensors((1, 3, 5, 4, 2, 3, -1), dynamic, torch.float64)
    assert torch.autograd.gradgradcheck(lambda u, k: convolve(u, k, 3, -1), (u_bnc, kernels))


@any_kind
def test_threads_change_no_bit(dynamic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "GRAIN", 1)
    u_bnc, kernels = tensors((3, 20, 20, 24, 4, 7, -6), dynamic, torch.float32)
    answers = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        y_btc = convolve(u_bnc, kernels, 20, -6)
        answers.append((y_btc, *torch.autograd.grad(y_btc.square().sum(), [u_bnc, kernels])))
    torch.set_num_threads(1)
    for one, other in zip(*answers, strict=True):
        assert torch.equal(one, other)


def test_without_a_compiler_the_definition_runs_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def none(*_: object, **__: object) -> None:
        raise extension.Unavailable("there is no C++ compiler; install one of g++")

    monkeypatch.setattr(extension, "load", none)
    for cached in (kernel.library, kernel.warn_of_copies):
        cached.cache_clear()
    u_bnc, kernels = tensors(CASES["causal"], True, torch.float64)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert torch.equal(convolve(u_bnc, kernels, 9, -3), unfolded(u_bnc, kernels, 9, -3))
    assert [r.message for r in caplog.records] == [
        "convolutions copy their neighbours, which takes several times as long: there is no C++ "
        "compiler; install one of g++"
    ]
    kernel.library.cache_clear()


def test_shapes_that_do_not_fit_are_refused() -> None:
    u_bnc = noise(2, 5, 12)
    with pytest.raises(InputError, match=r"have shape \(2, 4, 3, 3\), not \(2, 5, 3, 3\) or"):
        convolve(u_bnc, noise(2, 4, 3, 3), 5, 0)
    with pytest.raises(InputError, match="5 heads do not divide the 12 channels"):
        convolve(u_bnc, noise(5, 3), 5, 0)
