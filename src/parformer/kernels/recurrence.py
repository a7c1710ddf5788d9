"""How does the recurrence of SRU run at the speed of memory?

steps.py defines it, one step of time after the other, in many small operations of torch. On a
CPU with a compiler it happens in recurrence.cpp instead: in one pass forward and one backward,
which computes the gates again and so needs no more than every eighth cell. On other devices,
and where there is no compiler, the definition runs as it stands, and says so.
"""

# b batch, t time, k projections (candidate, forget, reset and perhaps skip), d width,
# g gates (forget, reset), n blocks of time

from __future__ import annotations

import ctypes
import logging
import math
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from parformer.errors import InputError
from parformer.kernels import extension
from parformer.kernels.operator import Operator
from parformer.kernels.steps import find_type, measure_steps, step_by_step

log = logging.getLogger(__name__)

SOURCE = Path(__file__).with_suffix(".cpp")
BLOCK = 8
"""Steps between two cells that are kept for the gradient."""
CHANNELS = 2048
"""Channels that a thread takes at once; what a block of time needs of them fits its cache."""
FLAGS = ("-ffp-contract=off", f"-DBLOCK_STEPS={BLOCK}", f"-DTURN_CHANNELS={CHANNELS}")
GRAIN = 2**19
"""Outputs that are worth a thread of their own: a millisecond or two. On a busy machine a second
thread may have to wait longer than that for its turn, and the first one for it."""

TYPES = {
    (torch.float32, torch.float32): 0,
    (torch.bfloat16, torch.bfloat16): 1,
    (torch.bfloat16, torch.float32): 2,
    (torch.float64, torch.float64): 3,
}
"""Types of u and x that recurrence.cpp reads as they are, by its number for them."""


def recurrence(
    u_btkd: Tensor,
    x_btd: Tensor | None,
    weight_gd: Tensor,
    bias_gd: Tensor,
    cell_bd: Tensor | None = None,
    *,
    mask_bd: Tensor | None = None,
    scale: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Outputs h (batch, time, width) and the last cell (batch, width).

    `u_btkd` has the candidate, then what goes to the forget and to the reset gate. `x_btd` is
    what is skipped to, times `scale`; without it, `u_btkd` has it as a fourth. The cell starts as
    zeros unless given. `mask_bd` multiplies the reset gate: dropout, with no gradient of its own.

    Outputs have the type of `x_btd`. All is computed in fp32, and the cell stays so, whatever
    the inputs are; with float64 among `u_btkd` and `x_btd` it is float64 throughout.
    """
    check_shapes(u_btkd, x_btd, weight_gd, bias_gd, cell_bd, mask_bd)
    mask_bd = None if mask_bd is None else mask_bd.detach()
    tensors = (u_btkd, x_btd, weight_gd, bias_gd, cell_bd, mask_bd)
    if has_kernel(u_btkd.device.type):
        h_btd, last_bd, _ = fused(*tensors, scale)
        return h_btd, last_bd
    return step_by_step(*tensors, scale)


def check_shapes(
    u_btkd: Tensor,
    x_btd: Tensor | None,
    weight_gd: Tensor,
    bias_gd: Tensor,
    cell_bd: Tensor | None,
    mask_bd: Tensor | None,
) -> None:
    batch, steps, _, width = u_btkd.shape
    wanted = {
        "u": (u_btkd, (batch, steps, 4 if x_btd is None else 3, width)),
        "x": (x_btd, (batch, steps, width)),
        "weight": (weight_gd, (2, width)),
        "bias": (bias_gd, (2, width)),
        "cell": (cell_bd, (batch, width)),
        "mask": (mask_bd, (batch, width)),
    }
    for name, (tensor, shape) in wanted.items():
        if tensor is not None and tensor.shape != shape:
            raise InputError(
                f"{name} of a recurrence has shape {tuple(tensor.shape)}, not {tuple(shape)}"
            )
        if tensor is not None and tensor.device != u_btkd.device:
            raise InputError(f"{name} of a recurrence is on {tensor.device}, u on {u_btkd.device}")


# Which way


class Library:
    """The compiled functions; tensors are given as their addresses."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.forward = extension.typed(library.recurrence_forward, 9)
        self.backward = extension.typed(library.recurrence_backward, 12)


@cache
def library() -> Library | str:
    """The compiled kernel, made on first use, or why there is none."""
    # vectors and what remains beside them must be rounded alike
    try:
        return Library(extension.load(SOURCE, flags=FLAGS, seconds=2))
    except extension.Unavailable as reason:
        return str(reason)


def has_kernel(device: str) -> bool:
    """Whether a kind of device has one; where it could be faster, that is said once."""
    if device == "meta":
        return False
    if device != "cpu":
        warn_of_steps(device, "there is no kernel for such a device yet")
        return False
    found = library()
    if isinstance(found, str):
        warn_of_steps(device, found)
    return isinstance(found, Library)


# Its answer never changes, and what it does is not for torch.compile to follow. This is what
# torch.compiler.assume_constant_result does, once it has loaded a compiler for two seconds.
has_kernel._dynamo_marked_constant = True  # type: ignore[attr-defined]


@cache
def warn_of_steps(device: str, reason: str) -> None:
    cost = ""
    if device == "cpu":
        cost = f", about {measure_steps():.0f} times slower here than compiled"
    log.warning("on %s the recurrence runs step by step%s: %s", device, cost, reason)


# The compiled way


class Shape(ctypes.Structure):
    """The struct of the same name in recurrence.cpp."""

    _fields_ = [
        *(
            (name, ctypes.c_int64)
            for name in (
                *("batch", "time", "width", "u_batch", "u_time", "u_kind", "x_batch", "x_time"),
                *("dh_batch", "dh_time", "du_time", "dx_time", "types", "threads"),
            )
        ),
        ("scale", ctypes.c_double),
    ]


class Arguments:
    """Tensors as recurrence.cpp takes them, and where they are."""

    def __init__(
        self,
        u_btkd: Tensor,
        x_btd: Tensor | None,
        weight_gd: Tensor,
        bias_gd: Tensor,
        scale: float,
    ) -> None:
        wide = find_type(u_btkd, x_btd)
        types = (u_btkd.dtype, u_btkd.dtype if x_btd is None else x_btd.dtype)
        if types not in TYPES:
            types = (wide, wide)
        self.wide = wide
        self.u_btkd = in_rows(u_btkd.to(types[0]))
        self.x_btd = self.u_btkd[:, :, 3] if x_btd is None else in_rows(x_btd.to(types[1]))
        self.gates = torch.cat((weight_gd.to(wide), bias_gd.to(wide)))
        batch, steps, _, width = u_btkd.shape
        enough = math.ceil(batch * steps * width / GRAIN)
        self.shape = Shape(
            batch=batch,
            time=steps,
            width=width,
            u_batch=self.u_btkd.stride(0),
            u_time=self.u_btkd.stride(1),
            u_kind=self.u_btkd.stride(2),
            x_batch=self.x_btd.stride(0),
            x_time=self.x_btd.stride(1),
            types=TYPES[types],
            threads=max(1, min(torch.get_num_threads(), enough)),
            scale=scale,
        )

    def wide_or_none(self, x: Tensor | None) -> Tensor | None:
        return None if x is None else x.to(self.wide).contiguous()

    @property
    def blocks(self) -> int:
        return -(-self.u_btkd.shape[1] // BLOCK)


def in_rows(x: Tensor) -> Tensor:
    """Channels must lie side by side; all else may lie as it does."""
    return x if x.stride(-1) == 1 else x.contiguous()


def address(x: Tensor | None) -> int | None:
    return None if x is None else x.data_ptr()


def run(
    u_btkd: Tensor,
    x_btd: Tensor | None,
    weight_gd: Tensor,
    bias_gd: Tensor,
    cell_bd: Tensor | None,
    mask_bd: Tensor | None,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs, last cell, and the cells at the start of each block of time."""
    compiled = library()
    assert isinstance(compiled, Library)
    given = Arguments(u_btkd, x_btd, weight_gd, bias_gd, scale)
    batch, steps, _, width = u_btkd.shape
    h_btd = given.x_btd.new_empty(batch, steps, width)
    last_bd = h_btd.new_empty(batch, width, dtype=given.wide)
    starts_bnd = h_btd.new_empty(batch, given.blocks, width, dtype=given.wide)
    first_bd, mask_bd = given.wide_or_none(cell_bd), given.wide_or_none(mask_bd)
    places = (given.u_btkd, given.x_btd, given.gates, first_bd, mask_bd, h_btd, starts_bnd, last_bd)
    if u_btkd.shape[0] * width:
        compiled.forward(ctypes.addressof(given.shape), *map(address, places))
    return h_btd.to(u_btkd.dtype if x_btd is None else x_btd.dtype), last_bd, starts_bnd


def run_gradient(
    dh_btd: Tensor | None,
    d_last_bd: Tensor | None,
    starts_bnd: Tensor,
    u_btkd: Tensor,
    x_btd: Tensor | None,
    weight_gd: Tensor,
    bias_gd: Tensor,
    mask_bd: Tensor | None,
    scale: float,
) -> list[Tensor]:
    """Gradients of u, of x if there is one, of weights, biases and the first cell."""
    compiled = library()
    assert isinstance(compiled, Library)
    given = Arguments(u_btkd, x_btd, weight_gd, bias_gd, scale)
    batch, steps, kinds, width = u_btkd.shape
    dh_btd = given.x_btd.new_zeros(()) if dh_btd is None else dh_btd.to(given.x_btd.dtype)
    dh_btd = in_rows(dh_btd.expand(batch, steps, width))
    du_btkd = given.u_btkd.new_empty(batch, steps, kinds, width)
    dx_btd = du_btkd[:, :, 3] if x_btd is None else given.x_btd.new_empty(batch, steps, width)
    # of each text on its own, so that the order of their sum does not depend on threads
    d_gates_bkd = starts_bnd.new_zeros(batch, 4, width)
    d_first_bd = starts_bnd.new_empty(batch, width)
    shape = given.shape
    shape.dh_batch, shape.dh_time = dh_btd.stride(0), dh_btd.stride(1)
    shape.du_time, shape.dx_time = du_btkd.stride(1), dx_btd.stride(1)
    d_last_bd, mask_bd = given.wide_or_none(d_last_bd), given.wide_or_none(mask_bd)
    inputs = (given.u_btkd, given.x_btd, given.gates, mask_bd, starts_bnd, dh_btd, d_last_bd)
    if batch * width:
        places = (*inputs, du_btkd, dx_btd, d_gates_bkd, d_first_bd)
        compiled.backward(ctypes.addressof(shape), *map(address, places))
    d_weight_gd, d_bias_gd = d_gates_bkd.sum(0).chunk(2)
    found = [du_btkd.to(u_btkd.dtype)]
    if x_btd is not None:
        found.append(dx_btd.to(x_btd.dtype))
    gates = (d_weight_gd.to(weight_gd.dtype).clone(), d_bias_gd.to(bias_gd.dtype).clone())
    return [*found, *gates, d_first_bd]


def outline(
    u_btkd: Tensor,
    x_btd: Tensor | None,
    weight_gd: Tensor,
    bias_gd: Tensor,
    cell_bd: Tensor | None,
    mask_bd: Tensor | None,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    batch, steps, _, width = u_btkd.shape
    kind = find_type(u_btkd, x_btd)
    like = u_btkd if x_btd is None else x_btd
    return (
        like.new_empty(batch, steps, width),
        like.new_empty(batch, width, dtype=kind),
        like.new_empty(batch, (steps + BLOCK - 1) // BLOCK, width, dtype=kind),
    )


def outline_gradient(
    dh_btd: Tensor | None,
    d_last_bd: Tensor | None,
    starts_bnd: Tensor,
    u_btkd: Tensor,
    x_btd: Tensor | None,
    weight_gd: Tensor,
    bias_gd: Tensor,
    mask_bd: Tensor | None,
    scale: float,
) -> list[Tensor]:
    likes = [like for like in (u_btkd, x_btd, weight_gd, bias_gd) if like is not None]
    first_bd = starts_bnd.new_empty(u_btkd.shape[0], u_btkd.shape[-1])
    return [*(like.new_empty(like.shape) for like in likes), first_bd]


def keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    *tensors, ctx.scale = inputs
    ctx.save_for_backward(output[2], *tensors)
    ctx.mark_non_differentiable(output[2])
    ctx.set_materialize_grads(False)


def gradient(
    ctx: Any, dh_btd: Tensor | None, d_last_bd: Tensor | None, _: object
) -> tuple[Tensor | None, ...]:
    if dh_btd is None and d_last_bd is None:
        return (None,) * 7
    starts_bnd, *tensors = ctx.saved_tensors
    if torch.is_grad_enabled():
        return differentiable_gradient(ctx, tensors, dh_btd, d_last_bd)
    *gated, cell_bd, mask_bd = tensors
    found = recurrence_gradient(dh_btd, d_last_bd, starts_bnd, *gated, mask_bd, ctx.scale)
    *gradients, d_first_bd = found
    if gated[1] is None:
        gradients.insert(1, None)
    d_cell_bd = None if cell_bd is None else d_first_bd.to(cell_bd.dtype)
    return (*gradients, d_cell_bd, None, None)


def differentiable_gradient(
    ctx: Any, tensors: list[Any], dh_btd: Tensor | None, d_last_bd: Tensor | None
) -> tuple[Tensor | None, ...]:
    """For whoever wants the gradient of a gradient: slowly, by autograd."""
    u_btkd, x_btd, weight_gd, bias_gd, cell_bd, mask_bd = tensors
    outputs = step_by_step(u_btkd, x_btd, weight_gd, bias_gd, cell_bd, mask_bd, ctx.scale)
    given = [(y, d) for y, d in zip(outputs, (dh_btd, d_last_bd), strict=True) if d is not None]
    wanted = [x for x, need in zip((*tensors, None), ctx.needs_input_grad, strict=True) if need]
    ys, ds = zip(*given, strict=True)
    found = iter(torch.autograd.grad(ys, wanted, ds, create_graph=True, allow_unused=True))
    return tuple(next(found) if need else None for need in ctx.needs_input_grad)


recurrence_gradient = Operator("recurrence_gradient", run_gradient, outline_gradient)
fused = Operator("recurrence", run, outline, keep=keep, gradient=gradient)
