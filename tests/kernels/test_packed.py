"""A packed weight gives what the plain one gives, and steps aside when it may not stand in."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

import parformer as pf
from parformer.blocks.linear import ACTIVATIONS, Linear, activated
from parformer.kernels import packed as packed_module
from parformer.kernels.packed import Packed, has_mkl, has_onednn, pack

needs_packing = pytest.mark.skipif(
    pack(torch.randn(4, 4), rows=8) is None, reason="weights are packed by MKL or oneDNN"
)


def spoil(packed: Packed) -> Packed:
    """The same promise over other numbers, so that using it shows."""
    other = pack(torch.zeros_like(packed.source), rows=packed.rows)
    assert other is not None
    return replace(packed, layout=other.layout)


@needs_packing
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("inputs", "outputs", "shape"), [(3, 5, (2, 4)), (16, 33, (1, 9))])
def test_it_computes_the_same(
    inputs: int, outputs: int, shape: tuple[int, int], bias: bool
) -> None:
    linear = Linear(inputs, outputs, bias=bias)
    x = torch.randn(*shape, inputs)
    assert linear.pack(shape[0] * shape[1])
    with torch.no_grad():
        expected = F.linear(x, linear.weight, linear.bias)
        torch.testing.assert_close(linear(x), expected)
        torch.testing.assert_close(linear(x.transpose(0, 1)), expected.transpose(0, 1))


@pytest.mark.skipif(not has_onednn(), reason="needs oneDNN")
@pytest.mark.parametrize("intel", [False, True])
@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_it_takes_non_linearities_along(
    name: str, intel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_module, "is_intel", lambda: intel and has_mkl())
    linear, x = Linear(16, 33), torch.randn(1, 9, 16)
    assert linear.pack(9)
    assert linear.packed is not None
    assert linear.packed.onednn == (not intel or not has_mkl())
    with torch.no_grad():
        expected = ACTIVATIONS[name](F.linear(x, linear.weight, linear.bias))
        torch.testing.assert_close(activated(linear, x, ACTIVATIONS[name]), expected)
        if linear.packed.onednn:
            linear.packed = spoil(linear.packed)
            assert not torch.allclose(activated(linear, x, ACTIVATIONS[name]), expected)
            handle = linear.register_forward_hook(lambda *_: None)
            linear.packed = None
            torch.testing.assert_close(activated(linear, x, ACTIVATIONS[name]), expected)
            handle.remove()


@needs_packing
def test_it_steps_aside_for_other_rows_gradients_and_changed_weights() -> None:
    linear = Linear(3, 5)
    assert linear.pack(8)
    assert linear.packed is not None
    linear.packed = spoil(linear.packed)
    x = torch.randn(8, 3)

    def is_right(x: torch.Tensor) -> bool:
        return torch.allclose(linear(x), F.linear(x, linear.weight, linear.bias), atol=1e-6)

    with torch.no_grad():
        assert not is_right(x)  # so that the checks below can fail
        assert is_right(torch.randn(9, 3))
    assert is_right(x)
    with torch.no_grad():
        linear.weight.add_(1)
        assert is_right(x)


@needs_packing
@pytest.mark.parametrize("name", ["transformer-xl-base", "gpt2-small", "llama-pocket"])
def test_a_packed_model_gives_the_same_loss(name: str) -> None:
    adaptive = {"cutoffs": [20, 40]} if name.startswith("transformer") else {}
    config = pf.preset(
        name,
        vocab_size=60,
        d_model=32,
        n_head=2,
        n_kv_head=2,
        d_inner=48,
        pattern="(sf)x2",
        **adaptive,
    )
    model = pf.build(config)
    tokens = torch.randint(60, (2, 8), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        expected = model(tokens, targets=tokens).losses
        assert model.pack(16)
        assert expected is not None
        torch.testing.assert_close(model(tokens, targets=tokens).losses, expected)


def test_few_rows_and_other_precisions_are_not_packed() -> None:
    assert pack(torch.randn(4, 4), rows=7) is None
    assert pack(torch.randn(4, 4, dtype=torch.bfloat16), rows=64) is None
    assert not pf.build(pf.preset("pocket")).pack(1)
