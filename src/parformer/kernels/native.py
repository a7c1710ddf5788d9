"""Is there a compiler, so that training can use kernels made for this very CPU?

`enable()` compiles native.cpp (a second or two) and loads it; from then on, attention and
GELU of this process take the compiled way wherever a gradient is wanted. Without a compiler,
or with a torch that lacks a matrix multiplication to call, all goes the plain way: the same
maths, with other roundings. So whoever wants the same numbers again has to choose alike.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

COMPILERS = ("g++", "clang++", "c++")
FLAGS = (
    *("-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", "-std=c++17"),
    # vectors need these two; anything freer would let zeros and infinities come out wrong
    *("-fno-math-errno", "-fno-trapping-math"),
)
TYPES = (torch.float32, torch.bfloat16, torch.float16)
"""What the kernels take; they compute in fp32."""


class Library:
    """The compiled functions; tensors are given as their addresses."""

    def __init__(self, path: Path, gemm: int) -> None:
        library = ctypes.CDLL(str(path))
        self.gemm = gemm
        self.attention_forward = typed(library.attention_forward, 11)
        self.attention_backward = typed(library.attention_backward, 16)
        self.gelu_forward = typed(library.gelu_forward, 7)
        self.gelu_backward = typed(library.gelu_backward, 8)
        self.cross_entropy_forward = typed(library.cross_entropy_forward, 7)
        self.cross_entropy_backward = typed(library.cross_entropy_backward, 8)


def typed(function: Callable[..., None], arguments: int) -> Callable[..., None]:
    """Addresses and counts alike are 64 bits wide."""
    function.argtypes = (ctypes.c_void_p,) * arguments  # type: ignore[attr-defined]
    function.restype = None  # type: ignore[attr-defined]
    return function


_library: Library | None = None
_failed = False
enabled = False
"""Whether training takes the compiled way."""


def enable(on: bool = True) -> bool:
    """Take the compiled way from now on, or the plain one again; whether it is compiled."""
    global enabled
    enabled = on and library() is not None
    return enabled


def library() -> Library | None:
    """The compiled kernels, made on first use; None where that is impossible."""
    global _library, _failed
    if _library is None and not _failed:
        _library = build()
        _failed = _library is None
    return _library


def build() -> Library | None:
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    gemm = find_gemm()
    if compiler is None or gemm is None or not sys.platform.startswith("linux"):
        return None
    source = Path(__file__).with_name("native.cpp")
    # a private folder: nobody else can put a file into its place, and none goes stale
    with tempfile.TemporaryDirectory(prefix="parformer-") as folder:
        target = Path(folder) / "native.so"
        command = [compiler, *FLAGS, str(source), "-o", str(target)]
        done = subprocess.run(command, capture_output=True, check=False)
        if done.returncode:
            return None
        try:
            return Library(target, gemm)
        except (OSError, AttributeError):
            return None


def find_gemm() -> int | None:
    """The address of the matrix multiplication (sgemm, with 32-bit sizes) inside torch."""
    path = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        return ctypes.cast(ctypes.CDLL(str(path)).sgemm_, ctypes.c_void_p).value
    except (OSError, AttributeError):
        return None
