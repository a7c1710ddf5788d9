"""What is a half-precision linear map on a CPU that cannot multiply in half precision?

The same numbers multiplied in fp32: inputs, weights and results are rounded to bf16, the
sums are kept in fp32, as hardware for bf16 does it. Emulated bf16 takes several times as long.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from parformer.kernels.tiles import avoid_broken_tiles

# before anything is multiplied: oneDNN decides once
avoid_broken_tiles()


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`F.linear`; under autocast by the faster way that this CPU has."""
    if (
        SLOW_HALF
        and torch.is_autocast_enabled("cpu")
        and torch.get_autocast_dtype("cpu") == torch.bfloat16
        and x.device.type == "cpu"
        and x.dtype != torch.float64
    ):
        y: Tensor = WidenedLinear.apply(x, weight, bias)  # type: ignore[no-untyped-call]
        return y
    return F.linear(x, weight, bias)


def lacks_half() -> bool:
    """Whether this is an x86 CPU without instructions for bf16."""
    known: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    fast = known.get("avx512_bf16") or known.get("amx_bf16")
    return known.get("architecture") == "x86_64" and not fast


SLOW_HALF = lacks_half()


class WidenedLinear(torch.autograd.Function):
    """Rounded to bf16, multiplied in fp32."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.types = x.dtype, weight.dtype, None if bias is None else bias.dtype
        x, weight = x.bfloat16(), weight.bfloat16()
        ctx.save_for_backward(x, weight)
        with torch.autocast("cpu", enabled=False):
            rounded = None if bias is None else bias.bfloat16().float()
            return F.linear(x.float(), weight.float(), rounded).bfloat16()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        x, weight = ctx.saved_tensors
        x_type, weight_type, bias_type = ctx.types
        with torch.autocast("cpu", enabled=False):
            dy = gradients[0].float()
            flat = dy.flatten(0, -2)
            dx = (dy @ weight.float()).bfloat16().to(x_type)
            dw = (flat.T @ x.float().flatten(0, -2)).to(weight_type)
            db = None if bias_type is None else flat.sum(0).to(bias_type)
        return dx, dw, db
