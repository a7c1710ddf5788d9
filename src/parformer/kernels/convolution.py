"""How does every channel mix a few neighbouring tokens without laying them out anew?

`unfolded` defines it: each place gets a copy of its neighbours, and a product with its kernel. On
a CPU with a compiler it happens in convolution.cpp instead, forward and backward, in place. On
other devices, and where there is no compiler, the definition runs as it stands, and says so.
"""

# b batch, t time, n places read, c channels, h heads, k taps

from __future__ import annotations

import ctypes
import logging
import math
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from parformer.errors import InputError
from parformer.kernels import extension
from parformer.kernels.operator import Operator

log = logging.getLogger(__name__)

SOURCE = Path(__file__).with_suffix(".cpp")
GRAIN = 2**20
"""Multiply-adds that are worth a thread of their own."""


def convolve(u_bnc: Tensor, kernels: Tensor, time: int, first: int) -> Tensor:
    """y[t] = Σ kernel[j] · u[t + j + first] for `time` places; beyond what was read are zeros.

    `kernels` is (batch, time, heads, taps), or (heads, taps) where all places share them. A head
    has neighbouring channels. The answer has the type of `u_bnc`.
    """
    if torch.compiler.is_exporting():
        return tap_by_tap(u_bnc, kernels, time, first)
    check_shapes(u_bnc, kernels, time)
    if has_kernel(u_bnc.device.type):
        y_btc: Tensor = fused(u_bnc, kernels, time, first)
        return y_btc
    return unfolded(u_bnc, kernels, time, first)


def unfolded(u_bnc: Tensor, kernels: Tensor, time: int, first: int) -> Tensor:
    """The definition."""
    heads, taps = kernels.shape[-2:]
    places = u_bnc.shape[1]
    u_bnc = u_bnc[:, max(0, first) :]
    after = first + time + taps - 1 - places
    u_bmc = F.pad(u_bnc, (0, 0, max(0, -first), max(0, after)))
    near_btck = u_bmc[:, : time + taps - 1].unfold(1, taps, 1)
    near_bthrk = torch.unflatten(near_btck, 2, (heads, -1))
    kernel_bthk1 = kernels.to(u_bnc.dtype).expand(*near_bthrk.shape[:3], taps)[..., None]
    return (near_bthrk @ kernel_bthk1).flatten(2)


def tap_by_tap(u_bnc: Tensor, kernels: Tensor, time: int, first: int) -> Tensor:
    """The same as a sum over the taps, for graphs of any length."""
    heads, taps = kernels.shape[-2:]
    if first:
        u_bnc = F.pad(u_bnc, (0, 0, -first, taps - 1 + first))
    u_bnhr = torch.unflatten(u_bnc, 2, (heads, -1))
    parts = [u_bnhr[:, tap : tap + time] * kernels[..., tap, None] for tap in range(taps)]
    return torch.stack(parts).sum(0).flatten(2)


def check_shapes(u_bnc: Tensor, kernels: Tensor, time: int) -> None:
    batch, _, width = u_bnc.shape
    heads, taps = kernels.shape[-2:]
    if kernels.shape not in ((batch, time, heads, taps), (heads, taps)):
        raise InputError(
            f"kernels of a convolution have shape {tuple(kernels.shape)}, not "
            f"{(batch, time, heads, taps)} or {(heads, taps)}"
        )
    if width % heads:
        raise InputError(f"{heads} heads do not divide the {width} channels of a convolution")


# Which way


class Library:
    """The compiled functions; tensors are given as their addresses."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.forward = extension.typed(library.convolution_forward, 4)
        self.backward = extension.typed(library.convolution_backward, 6)


@cache
def library() -> Library | str:
    """The compiled kernel, made on first use, or why there is none."""
    try:
        return Library(extension.load(SOURCE, seconds=1))
    except extension.Unavailable as reason:
        return str(reason)


def has_kernel(device: str) -> bool:
    """Whether a kind of device has one; where it could be faster, that is said once."""
    if device == "meta":
        return False
    if device != "cpu":
        return False  # a device's own products are fast enough
    found = library()
    if isinstance(found, str):
        warn_of_copies(found)
    return isinstance(found, Library)


# As in recurrence.py: its answer never changes, and torch.compile need not follow it.
has_kernel._dynamo_marked_constant = True  # type: ignore[attr-defined]


@cache
def warn_of_copies(reason: str) -> None:
    log.warning("convolutions copy their neighbours, which takes several times as long: %s", reason)


# The compiled way


class Shape(ctypes.Structure):
    """The struct of the same name in convolution.cpp."""

    _fields_ = [
        (name, ctypes.c_int64)
        for name in (
            *("batch", "time", "places", "width", "heads", "taps", "first"),
            *("u_batch", "u_place", "w_batch", "w_time", "dy_batch", "dy_time"),
            *("kind", "threads"),
        )
    ]


class Arguments:
    """Tensors as convolution.cpp takes them, and where they are."""

    def __init__(self, u_bnc: Tensor, kernels: Tensor, time: int, first: int) -> None:
        wide = torch.float64 if u_bnc.dtype == torch.float64 else torch.float32
        self.u_bnc = in_rows(u_bnc.to(wide))
        self.kernels = kernels.to(wide).contiguous()
        batch, places, width = u_bnc.shape
        heads, taps = kernels.shape[-2:]
        own = kernels.dim() == 4
        work = batch * time * width * taps
        self.shape = Shape(
            batch=batch,
            time=time,
            places=places,
            width=width,
            heads=heads,
            taps=taps,
            first=first,
            u_batch=self.u_bnc.stride(0),
            u_place=self.u_bnc.stride(1),
            w_batch=time * heads * taps if own else 0,
            w_time=heads * taps if own else 0,
            kind=int(wide == torch.float64),
            threads=max(1, min(torch.get_num_threads(), math.ceil(work / GRAIN))),
        )


def in_rows(x: Tensor) -> Tensor:
    """Channels must lie side by side; all else may lie as it does."""
    return x if x.stride(-1) == 1 else x.contiguous()


def run(u_bnc: Tensor, kernels: Tensor, time: int, first: int) -> Tensor:
    compiled = library()
    assert isinstance(compiled, Library)
    given = Arguments(u_bnc, kernels, time, first)
    y_btc = given.u_bnc.new_empty(u_bnc.shape[0], time, u_bnc.shape[2])
    places = (given.u_bnc, given.kernels, y_btc)
    compiled.forward(ctypes.addressof(given.shape), *(x.data_ptr() for x in places))
    return y_btc.to(u_bnc.dtype)


def run_gradient(
    dy_btc: Tensor, u_bnc: Tensor, kernels: Tensor, time: int, first: int
) -> list[Tensor]:
    """Gradients of what was read and of the kernels."""
    compiled = library()
    assert isinstance(compiled, Library)
    given = Arguments(u_bnc, kernels, time, first)
    dy_btc = in_rows(dy_btc.to(given.u_bnc.dtype))
    given.shape.dy_batch, given.shape.dy_time = dy_btc.stride(0), dy_btc.stride(1)
    du_bnc = given.u_bnc.new_empty(u_bnc.shape)
    # of each text on its own, so that the order of their sum does not depend on threads
    texts = () if kernels.dim() == 4 else (u_bnc.shape[0],)
    d_kernels = given.kernels.new_zeros(*texts, *kernels.shape)
    places = (given.u_bnc, given.kernels, dy_btc, du_bnc, d_kernels)
    compiled.backward(ctypes.addressof(given.shape), *(x.data_ptr() for x in places))
    if texts:
        d_kernels = d_kernels.sum(0)
    return [du_bnc.to(u_bnc.dtype), d_kernels.to(kernels.dtype)]


def outline(u_bnc: Tensor, kernels: Tensor, time: int, first: int) -> Tensor:
    return u_bnc.new_empty(u_bnc.shape[0], time, u_bnc.shape[2])


def outline_gradient(
    dy_btc: Tensor, u_bnc: Tensor, kernels: Tensor, time: int, first: int
) -> list[Tensor]:
    return [u_bnc.new_empty(u_bnc.shape), kernels.new_empty(kernels.shape)]


def keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    u_bnc, kernels, ctx.time, ctx.first = inputs
    ctx.save_for_backward(u_bnc, kernels)


def gradient(ctx: Any, dy_btc: Tensor) -> tuple[Tensor | None, ...]:
    u_bnc, kernels = ctx.saved_tensors
    if torch.is_grad_enabled():  # whoever wants the gradient of a gradient: by autograd
        wanted = [
            x for x, need in zip((u_bnc, kernels), ctx.needs_input_grad, strict=False) if need
        ]
        y_btc = unfolded(u_bnc, kernels, ctx.time, ctx.first)
        found = iter(torch.autograd.grad(y_btc, wanted, dy_btc, create_graph=True))
        both = tuple(next(found) if need else None for need in ctx.needs_input_grad[:2])
        return (*both, None, None)
    du_bnc, d_kernels = convolution_gradient(dy_btc, u_bnc, kernels, ctx.time, ctx.first)
    return du_bnc, d_kernels, None, None


convolution_gradient = Operator("convolution_gradient", run_gradient, outline_gradient)
fused = Operator("convolution", run, outline, keep=keep, gradient=gradient)
