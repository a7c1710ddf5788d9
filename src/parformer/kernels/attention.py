"""What does the compiled attention compute, and what is its gradient?

softmax(scale · q kᵀ) v, over the keys that a query may see. With relative positions the
score of a query and a key at distance i is scale · ((q + content) k + (q + position) r_i).
The weights of attention are kept for the gradient. native.cpp has the loops; here they
become operators, which autograd knows and `torch.compile` calls as they are.
"""

# b batch, t time, n keys, d width, h heads, g key-value heads, k head width

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from parformer.kernels import native
from parformer.kernels.operator import Operator

MOST_KEYS = 1024
"""With more keys the weights take too much memory to be worth keeping."""


class Shape(ctypes.Structure):
    """The struct of the same name in native.cpp."""

    _fields_ = [
        (name, ctypes.c_int64)
        for name in (
            *("batch", "time", "keys", "heads", "groups", "width"),
            *("q_batch", "q_row", "kv_batch", "kv_row"),
            *("causal", "limit", "threads", "half"),
        )
    ]


def usable(x: Tensor, keys: int, dropout: float) -> bool:
    """Whether attention of such tensors can and should take the compiled way."""
    return (
        native.enabled
        and torch.is_grad_enabled()
        and not dropout
        and x.device.type == "cpu"
        and x.dtype in native.TYPES
        and keys <= MOST_KEYS
    )


def attend(
    q_btd: Tensor,
    kv_bnd: Tensor | None,
    relative: tuple[Tensor, Tensor, Tensor] | None,
    present_bn: Tensor | None,
    *,
    heads: int,
    groups: int,
    causal: bool,
    limit: int,
) -> Tensor:
    """The answers (batch, time, heads × head width) of attention.

    `kv_bnd` has all keys, then all values; without it `q_btd` goes on with them. `relative`
    are distances r (heads, keys, head width), content and position bias (heads, head width).
    """
    r_hnk, content_hk, position_hk = (None, None, None) if relative is None else relative
    y_btd: Tensor
    y_btd, _ = attention(
        q_btd, kv_bnd, r_hnk, content_hk, position_hk, present_bn, heads, groups, causal, limit
    )
    return y_btd


def run_attention(
    q_btd: Tensor,
    kv_bnd: Tensor | None,
    r_hnk: Tensor | None,
    content_hk: Tensor | None,
    position_hk: Tensor | None,
    present_bn: Tensor | None,
    heads: int,
    groups: int,
    causal: bool,
    limit: int,
) -> tuple[Tensor, Tensor]:
    library = native.library()
    assert library is not None
    shape = make_shape(q_btd, kv_bnd, heads, groups, causal, limit)
    inputs = [plain(x) for x in (q_btd, kv_bnd, r_hnk, content_hk, position_hk)]
    present = None if present_bn is None else present_bn.contiguous()
    y_btd = q_btd.new_empty(shape.batch, shape.time, heads * shape.width, dtype=torch.float32)
    weights_bhtn = y_btd.new_empty(shape.batch, heads, shape.time, shape.keys)
    library.attention_forward(
        library.gemm,
        ctypes.addressof(shape),
        *places(shape, inputs[0], inputs[1]),
        *map(address, (*inputs[2:], present, y_btd, weights_bhtn)),
    )
    return y_btd.to(q_btd.dtype), weights_bhtn


def run_gradient(
    dy_btd: Tensor,
    weights_bhtn: Tensor,
    q_btd: Tensor,
    kv_bnd: Tensor | None,
    r_hnk: Tensor | None,
    content_hk: Tensor | None,
    position_hk: Tensor | None,
    heads: int,
    groups: int,
    causal: bool,
    limit: int,
) -> list[Tensor]:
    """Gradients of those of the five inputs that are there."""
    library = native.library()
    assert library is not None
    shape = make_shape(q_btd, kv_bnd, heads, groups, causal, limit)
    given = (q_btd, kv_bnd, r_hnk, content_hk, position_hk)
    inputs = [plain(x) for x in given]
    dy, weights = plain(dy_btd), plain(weights_bhtn)
    assert inputs[0] is not None
    dq = torch.empty_like(inputs[0])
    dkv = None if inputs[1] is None else torch.empty_like(inputs[1])
    # of each text on its own, so that the order of their sum does not depend on threads
    shared = [None if x is None else x.new_zeros(shape.batch, *x.shape) for x in inputs[2:]]
    library.attention_backward(
        library.gemm,
        ctypes.addressof(shape),
        *places(shape, inputs[0], inputs[1]),
        *map(address, (*inputs[2:], weights, dy)),
        *places(shape, dq, dkv),
        *map(address, shared),
    )
    found = (dq, dkv, *(None if x is None else x.sum(0) for x in shared))
    return [
        gradient.to(like.dtype)
        for gradient, like in zip(found, given, strict=True)
        if gradient is not None and like is not None
    ]


def make_shape(
    q_btd: Tensor, kv_bnd: Tensor | None, heads: int, groups: int, causal: bool, limit: int
) -> Shape:
    batch, time, columns = q_btd.shape
    width = columns // (heads + (2 * groups if kv_bnd is None else 0))
    keys, kv_columns = (time, columns) if kv_bnd is None else kv_bnd.shape[1:]
    threads = torch.get_num_threads()
    steps = (time * columns, columns, keys * kv_columns, kv_columns)
    half = q_btd.dtype == torch.bfloat16
    return Shape(batch, time, keys, heads, groups, width, *steps, causal, limit, threads, half)


def places(shape: Shape, q_btd: Tensor | None, kv_bnd: Tensor | None) -> tuple[int, int, int]:
    """Where queries, keys and values begin."""
    assert q_btd is not None
    q, size = q_btd.data_ptr(), q_btd.element_size()
    k = q + shape.heads * shape.width * size if kv_bnd is None else kv_bnd.data_ptr()
    return q, k, k + shape.groups * shape.width * size


def plain(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.float().contiguous()


def address(x: Tensor | None) -> int | None:
    return None if x is None else x.data_ptr()


def outline_attention(
    q_btd: Tensor,
    kv_bnd: Tensor | None,
    r_hnk: Tensor | None,
    content_hk: Tensor | None,
    position_hk: Tensor | None,
    present_bn: Tensor | None,
    heads: int,
    groups: int,
    causal: bool,
    limit: int,
) -> tuple[Tensor, Tensor]:
    batch, time, columns = q_btd.shape
    inside = columns if kv_bnd is not None else columns // (heads + 2 * groups) * heads
    keys = time if kv_bnd is None else kv_bnd.shape[1]
    weights = q_btd.new_empty(batch, heads, time, keys, dtype=torch.float32)
    return q_btd.new_empty(batch, time, inside), weights


def outline_gradient(
    dy_btd: Tensor,
    weights_bhtn: Tensor,
    q_btd: Tensor,
    kv_bnd: Tensor | None,
    r_hnk: Tensor | None,
    content_hk: Tensor | None,
    position_hk: Tensor | None,
    heads: int,
    groups: int,
    causal: bool,
    limit: int,
) -> list[Tensor]:
    given = (q_btd, kv_bnd, r_hnk, content_hk, position_hk)
    return [x.new_empty(x.shape) for x in given if x is not None]


def keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, _, heads, groups, causal, limit = inputs
    ctx.save_for_backward(output[1], *tensors)
    ctx.sizes = heads, groups, causal, limit
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def gradient(ctx: Any, dy_btd: Tensor | None, _: object) -> tuple[Tensor | None, ...]:
    if dy_btd is None:
        return (None,) * 10
    weights_bhtn, *tensors = ctx.saved_tensors
    found = iter(attention_gradient(dy_btd, weights_bhtn, *tensors, *ctx.sizes))
    return (*(None if x is None else next(found) for x in tensors), *(None,) * 5)


attention_gradient = Operator("attention_gradient", run_gradient, outline_gradient)
attention = Operator("attention", run_attention, outline_attention, keep=keep, gradient=gradient)
