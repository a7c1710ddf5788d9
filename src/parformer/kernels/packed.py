"""Can a linear map be faster when the number of rows is always the same?

On a CPU the weights can be laid out once, in the order in which the multiplication of so many
rows reads them, instead of in every step: by Intel's MKL on Intel's processors, by oneDNN on
others, where it is faster and can take a non-linearity along. The maths is `F.linear`; only the
order of memory differs, and the weights are there twice.

>>> import torch
>>> weight, x = torch.randn(6, 4), torch.randn(3, 4)
>>> packed = pack(weight, rows=3)
>>> packed is None or torch.allclose(packed.linear(x, weight, None), x @ weight.T, atol=1e-5)
True
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from parformer.kernels.activations import gelu_tanh, relu

PLAIN = ("none", "")
FUSED: Mapping[Callable[[Tensor], Tensor], tuple[str, str]] = {
    relu: ("relu", ""),
    F.gelu: ("gelu", "none"),
    gelu_tanh: ("gelu", "tanh"),
    F.silu: ("swish", ""),
}
"""Non-linearities that oneDNN can take along, and what it calls them."""

LEAST_ROWS = 8
"""With fewer rows the step only waits for the weights, in whatever order they lie."""


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """A weight laid out for a fixed number of rows."""

    layout: Tensor
    rows: int
    version: int
    """The weight's own count of changes when it was packed."""
    source: Tensor
    """The weight as it was, kept so that no other can come to lie in its place."""
    onednn: bool = False
    """Whose layout it is: oneDNN's, or MKL's."""

    def fits(self, x: Tensor, weight: Tensor) -> bool:
        """Whether the layout may stand in for the weight now."""
        return (
            x.numel() == self.rows * weight.shape[1]
            and weight.data_ptr() == self.source.data_ptr()
            and not weight.is_inference()
            and weight._version == self.version
            and not torch.is_grad_enabled()
            and not torch.compiler.is_compiling()
        )

    def linear(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, activation: tuple[str, str] = PLAIN
    ) -> Tensor:
        """The map, and with oneDNN's layout one of `FUSED` after it."""
        flat = x.reshape(self.rows, weight.shape[1])
        if self.onednn:
            kind, form = activation
            y = torch.ops.mkldnn._linear_pointwise(flat, self.layout, bias, kind, [], form)
        else:
            assert activation == PLAIN
            y = torch.ops.mkl._mkl_linear(flat, self.layout, weight, bias, self.rows)
        return cast(Tensor, y.view(*x.shape[:-1], weight.shape[0]))


def pack(weight: Tensor, rows: int) -> Packed | None:
    """Lay a weight out, or give None where that is impossible or would not help."""
    onednn = has_onednn() and not is_intel()
    able = (
        (onednn or has_mkl())
        and weight.device.type == "cpu"
        and weight.dtype == torch.float32
        and not weight.is_inference()  # it would not count its changes
    )
    if not able or rows < LEAST_ROWS:
        return None
    with torch.no_grad():
        if onednn:
            layout = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), rows)
        else:
            layout = torch.ops.mkl._mkl_reorder_linear_weight(weight.detach(), rows)
    return Packed(layout, rows, weight._version, weight.detach(), onednn)


def has_mkl() -> bool:
    able = torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
    return able and hasattr(torch.ops.mkl, "_mkl_linear")


def has_onednn() -> bool:
    able = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return able and hasattr(torch.ops.mkldnn, "_linear_pointwise")


@cache
def is_intel() -> bool:
    """Whether MKL knows this processor as its own; on others its products are a quarter slower."""
    try:
        return "GenuineIntel" in Path("/proc/cpuinfo").read_text("utf-8")
    except OSError:
        return "intel" in platform.processor().lower()
