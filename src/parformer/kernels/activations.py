"""What do non-linearities cost in training, and must they?

GELU by the tanh formula is computed once instead of twice: its slope is kept for the
gradient (native.cpp has the loop). ReLU is fast as it is, but torch.compile on a CPU stores
whether a number was positive bit by bit, which takes ten times as long as the ReLU itself;
as an operator of its own it is left alone.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from parformer.kernels import native
from parformer.kernels.operator import Operator

ROWS = 64
"""How many rows of a bias' gradient are added up at a time."""


def gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor | None:
    """GELU of a linear map, if it can take the compiled way; the bias is added on that way."""
    if (
        native.enabled
        and torch.is_grad_enabled()
        and bias is not None
        and x.dtype == weight.dtype == torch.float32
        and x.device.type == "cpu"
        and not torch.is_autocast_enabled("cpu")
    ):
        y: Tensor = gelu_with_slope(F.linear(x, weight), bias)[0]
        return y
    return None


def run_gelu(x: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    library = native.library()
    assert library is not None
    x, bias = x.contiguous(), bias.contiguous()
    y, slope = torch.empty_like(x), torch.empty_like(x)
    addresses = (x.data_ptr(), bias.data_ptr(), y.data_ptr(), slope.data_ptr())
    columns = bias.shape[0]
    library.gelu_forward(*addresses, x.numel() // columns, columns, torch.get_num_threads())
    return y, slope


def outline_gelu(x: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(x.shape)


def keep_slope(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(output[1])
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def run_gradient(dy: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
    library = native.library()
    assert library is not None
    dy, columns = dy.contiguous(), slope.shape[-1]
    rows = slope.numel() // columns
    dx, sums = torch.empty_like(slope), slope.new_empty(-(-rows // ROWS), columns)
    addresses = (dy.data_ptr(), slope.data_ptr(), dx.data_ptr(), sums.data_ptr())
    library.gelu_backward(*addresses, rows, columns, ROWS, torch.get_num_threads())
    return dx, sums.sum(0)


def outline_gradient(dy: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
    return slope.new_empty(slope.shape), slope.new_empty(slope.shape[-1:])


def gradients(ctx: Any, dy: Tensor | None, _: object) -> tuple[Tensor | None, Tensor | None]:
    if dy is None:
        return None, None
    dx, d_bias = times_slope(dy, ctx.saved_tensors[0])
    return dx, d_bias


times_slope = Operator("times_slope", run_gradient, outline_gradient)
gelu_with_slope = Operator(
    "gelu_with_slope", run_gelu, outline_gelu, keep=keep_slope, gradient=gradients
)


def relu(x: Tensor) -> Tensor:
    if torch.compiler.is_compiling() and torch.is_grad_enabled() and x.device.type == "cpu":
        y: Tensor = whole_relu(x)
        return y
    return torch.relu(x)


def run_relu(x: Tensor) -> Tensor:
    return torch.relu(x).contiguous()


def run_relu_gradient(dy: Tensor, y: Tensor) -> Tensor:
    dx: Tensor = torch.ops.aten.threshold_backward(dy, y, 0).contiguous()
    return dx


def outline_relu(x: Tensor) -> Tensor:
    return x.new_empty(x.shape)


def outline_relu_gradient(dy: Tensor, y: Tensor) -> Tensor:
    return y.new_empty(y.shape)


def keep_result(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(output)


def where_positive(ctx: Any, dy: Tensor) -> Tensor:
    dx: Tensor = relu_gradient(dy, ctx.saved_tensors[0])
    return dx


relu_gradient = Operator("relu_gradient", run_relu_gradient, outline_relu_gradient)
whole_relu = Operator("relu", run_relu, outline_relu, keep=keep_result, gradient=where_positive)
