"""Half precision through fp32 is rounded where half precision is, and nowhere else."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import parformer as pf
from parformer.kernels import half
from tests.conftest import lively, noise, small_config


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(half, "SLOW_HALF", True)


def run(x: Tensor, weight: Tensor, bias: Tensor | None) -> list[Tensor]:
    inputs = [p.clone().requires_grad_() for p in (x, weight, bias) if p is not None]
    with torch.autocast("cpu", torch.bfloat16):
        y = half.linear(*inputs[:2], inputs[2] if bias is not None else None)
    return [y.detach(), *torch.autograd.grad(y.float().square().sum(), inputs)]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_numbers_and_gradients_are_those_of_rounded_inputs(
    kind: torch.dtype, bias: bool, slow: None
) -> None:
    x = noise(2, 5, 12, dtype=torch.float32).to(kind)
    weight, shift = noise(7, 12, dtype=torch.float32), noise(7, dtype=torch.float32, seed=1)
    found = run(x, weight, shift if bias else None)
    # the sums in fp64, of what has been rounded to bf16
    exact = [p.bfloat16().double().requires_grad_() for p in (x, weight, shift)]
    y = F.linear(exact[0], exact[1], exact[2] if bias else None)
    rounded = y.detach().bfloat16()
    gradients = torch.autograd.grad(y, exact[: 3 if bias else 2], 2 * rounded.double())
    assert found[0].dtype == torch.bfloat16
    torch.testing.assert_close(found[0], rounded, rtol=2**-8, atol=1e-6)
    for mine, theirs, like in zip(found[1:], gradients, (x, weight, shift), strict=False):
        assert mine.dtype == like.dtype
        torch.testing.assert_close(mine.double(), theirs, rtol=2**-6, atol=2e-2)


def test_it_is_plain_where_nothing_asks_for_half(
    slow: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, weight = noise(3, 4, dtype=torch.float32), noise(5, 4, dtype=torch.float32)
    assert half.linear(x, weight, None).dtype == torch.float32
    monkeypatch.setattr(half.WidenedLinear, "apply", lambda *_: pytest.fail("not asked for"))
    with torch.autocast("cpu", torch.float16):
        assert half.linear(x, weight, None).dtype == torch.float16
    monkeypatch.setattr(half, "SLOW_HALF", False)
    with torch.autocast("cpu", torch.bfloat16):
        assert half.linear(x, weight, None).dtype == torch.bfloat16


@pytest.mark.parametrize("family", ["transformer-xl", "gpt2", "llama", "bert"])
def test_models_train_alike_both_ways(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = lively(pf.build(small_config(family))).train()
    tokens, targets = torch.arange(12).view(2, 6), torch.arange(12).view(2, 6) % 5

    def gradients(slow: bool) -> Tensor:
        monkeypatch.setattr(half, "SLOW_HALF", slow)
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(tokens, targets=targets).loss
        assert loss is not None
        found = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
        return torch.cat([loss[None], *(g.flatten() for g in found if g is not None)])

    mine, theirs = gradients(slow=True), gradients(slow=False)
    assert (mine - theirs).norm() < 0.05 * theirs.norm()
    assert not torch.equal(mine, theirs)
