"""Can codes be multiplied without becoming numbers in memory first?

Where there is a compiler, coded.cpp multiplies them as they are, sixteen rows side by side: inputs
become whole numbers of 16 bits, block by block, which is as good as exact, and weights stay the
bytes they are. Elsewhere, and for whoever wants a gradient, the codes are decoded first.
"""

from __future__ import annotations

import ctypes
import math
from functools import cache
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from parformer.kernels import extension, quantized
from parformer.kernels.decoder.library import FLAGS

SOURCE = Path(__file__).with_suffix(".cpp")
GRAIN = 2**19
"""Multiply-adds that are worth a thread of their own."""
INT8, INT4 = 2, 3
"""The kinds of matrix.h."""


class Panels:
    """A coded matrix as the kernel reads it."""

    def __init__(
        self, numbers_oi: Tensor, scales_o: Tensor, steps_og: Tensor | None, parts: int
    ) -> None:
        """`parts` is what a whole step is divided into."""
        rows, columns = numbers_oi.shape
        if steps_og is None:
            self.kind, self.weights = INT8, quantized.int8_panels(numbers_oi)
            self.scales, self.steps = quantized.whole_panels(scales_o), None
        else:
            self.kind, self.weights = INT4, quantized.int4_panels(numbers_oi)
            self.scales = quantized.whole_panels(scales_o / parts)
            self.steps = quantized.step_panels(steps_og)
        self.shape = (rows, columns)

    @property
    def bytes(self) -> int:
        return self.weights.numel() + 4 * self.scales.numel()


class Matrix(ctypes.Structure):
    """The struct of the same name in matrix.h."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("kind", "rows", "columns")),
        *((name, ctypes.c_void_p) for name in ("weights", "scales", "steps", "bias")),
    ]


class Coded(Protocol):
    """What the kernel has to know of a coded map."""

    @property
    def bias(self) -> Tensor | None: ...

    def panels(self) -> Panels: ...


@cache
def library() -> ctypes.CDLL | None:
    """The compiled kernel, made on first use; None where that is impossible."""
    headers = sorted((SOURCE.parent / "decoder").glob("*.h"))
    try:
        return extension.load(SOURCE, flags=FLAGS, seconds=3, parts=headers)
    except extension.Unavailable:
        return None


def able(x: Tensor) -> bool:
    """Whether the kernel may take these inputs."""
    plain = type(x) is Tensor and x.dtype == torch.float32 and x.device.type == "cpu"
    return plain and not torch.is_grad_enabled() and not torch.compiler.is_compiling()


def multiply(linear: Coded, x: Tensor) -> Tensor | None:
    """The product of a coded matrix, where there is a kernel for it."""
    if not able(x) or not x.numel():
        return None
    compiled = library()
    if compiled is None:
        return None
    panels = linear.panels()
    rows, columns = panels.shape
    x = x.contiguous()
    vectors = x.numel() // columns
    y = x.new_empty(*x.shape[:-1], rows)
    bias = linear.bias
    matrix = Matrix(
        kind=panels.kind,
        rows=rows,
        columns=columns,
        weights=panels.weights.data_ptr(),
        scales=panels.scales.data_ptr(),
        steps=0 if panels.steps is None else panels.steps.data_ptr(),
        bias=0 if bias is None else bias.data_ptr(),
    )
    work = vectors * rows * columns
    threads = max(1, min(torch.get_num_threads(), math.ceil(work / GRAIN)))
    call = compiled.coded_multiply
    call.restype = None
    call.argtypes = (ctypes.c_void_p,) * 3 + (ctypes.c_int64,) * 2
    call(ctypes.addressof(matrix), x.data_ptr(), y.data_ptr(), vectors, threads)
    return y
