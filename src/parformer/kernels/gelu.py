"""GELU by the tanh formula, which keeps its slope for the gradient.

Computed once instead of twice; native.cpp has the loop.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from parformer.kernels import native


def gelu_tanh(x: Tensor) -> Tensor:
    if (
        native.enabled
        and torch.is_grad_enabled()
        and x.dtype == torch.float32
        and x.device.type == "cpu"
    ):
        y: Tensor = gelu(x)[0]
        return y
    return F.gelu(x, approximate="tanh")


@torch.library.custom_op("parformer::gelu", mutates_args=(), device_types="cpu")
def gelu(x: Tensor) -> tuple[Tensor, Tensor]:
    library = native.library()
    assert library is not None
    x = x.contiguous()
    y, slope = torch.empty_like(x), torch.empty_like(x)
    addresses = (x.data_ptr(), y.data_ptr(), slope.data_ptr())
    library.gelu_forward(*addresses, x.numel(), torch.get_num_threads())
    return y, slope


@gelu.register_fake
def _(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(x.shape)


def keep(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(output[1])
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def gradient(ctx: Any, dy: Tensor | None, _: object) -> Tensor | None:
    return None if dy is None else dy * ctx.saved_tensors[0]


gelu.register_autograd(gradient, setup_context=keep)
