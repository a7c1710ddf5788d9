"""Is there a compiler, so that training can use kernels made for this very CPU?

`enable()` compiles native.cpp (a second or two, once) and loads it; from then on, attention and
GELU of this process take the compiled way wherever a gradient is wanted. Without a compiler,
or with a torch that lacks a matrix multiplication to call, all goes the plain way: the same
maths, with other roundings. So whoever wants the same numbers again has to choose alike.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch

from parformer.kernels.extension import Unavailable, load, typed

SOURCE = Path(__file__).with_suffix(".cpp")
PARTS = (Path(__file__).with_name("halves.h"),)
TYPES = (torch.float32, torch.bfloat16, torch.float16)
"""What the kernels take; they compute in fp32, but for products of what is bf16."""


class Library:
    """The compiled functions; tensors are given as their addresses."""

    def __init__(self, library: ctypes.CDLL, gemm: int) -> None:
        self.gemm = gemm
        self.attention_forward = typed(library.attention_forward, 11)
        self.attention_backward = typed(library.attention_backward, 16)
        self.multiply_halves = typed(library.multiply_halves, 9)
        self.multiply_halves.restype = ctypes.c_int64  # type: ignore[attr-defined]
        self.gelu_forward = typed(library.gelu_forward, 7)
        self.gelu_backward = typed(library.gelu_backward, 8)
        self.cross_entropy_forward = typed(library.cross_entropy_forward, 8)
        self.cross_entropy_backward = typed(library.cross_entropy_backward, 9)


_library: Library | None = None
failure = ""
"""Why there are no compiled kernels, once that was found out."""
enabled = False
"""Whether training takes the compiled way."""


def enable(on: bool = True) -> bool:
    """Take the compiled way from now on, or the plain one again; whether it is compiled."""
    global enabled
    enabled = on and library() is not None
    return enabled


def library() -> Library | None:
    """The compiled kernels, made on first use; None where that is impossible."""
    global _library, failure
    if _library is None and not failure:
        try:
            _library = build()
        except Unavailable as error:
            failure = str(error)
    return _library


def build() -> Library:
    gemm = find_gemm()
    if gemm is None:
        raise Unavailable("this torch has no matrix multiplication to call")
    return Library(load(SOURCE, seconds=2, parts=PARTS), gemm)


def find_gemm() -> int | None:
    """The address of the matrix multiplication (sgemm, with 32-bit sizes) inside torch."""
    path = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        return ctypes.cast(ctypes.CDLL(str(path)).sgemm_, ctypes.c_void_p).value
    except (OSError, AttributeError):
        return None
