"""What is the only door to a matrix?

Blocks call their linear maps and know nothing of what stands behind: a weight, a packed one, a
mask, a parametrization, or another module that somebody put in its place. `parts` and `activated`
take a shorter way where a plain `Linear` is found, and the long one everywhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parformer.kernels import half
from parformer.kernels.activations import gelu_tanh, linear_gelu, relu
from parformer.kernels.packed import FUSED, Packed, pack

Activation = Callable[[Tensor], Tensor]

ACTIVATIONS: Mapping[str, Activation] = {
    "relu": relu,
    "gelu": F.gelu,
    "gelu-tanh": gelu_tanh,
    "silu": F.silu,
}


class Direct(nn.Module):
    """A module that reaches its maths by the shortest way when nothing hooks into it.

    Generating one token is mostly Python between small kernels; the detour through
    `Module.__call__` would take a tenth of it.
    """

    def __call__(self, *inputs: Any) -> Any:
        if self.hooked:
            return super().__call__(*inputs)
        return self.forward(*inputs)

    @property
    def hooked(self) -> bool:
        return bool(
            self._forward_hooks
            or self._forward_pre_hooks
            or self._backward_hooks
            or self._backward_pre_hooks
        )


class Linear(Direct, nn.Linear):
    """A linear map, whose weight may be packed for steps of one size."""

    packed: Packed | None = None
    shown: Callable[[Tensor], Tensor] | None = None
    """What is seen in the weight's place, such as what few bits make of it; for training."""

    def forward(self, x: Tensor) -> Tensor:
        own = self._parameters
        weight = own.get("weight")
        if weight is None or "bias" not in own:  # pruned or parametrized: computed from others
            return super().forward(x)
        if self.shown is not None:
            return half.linear(x, self.shown(weight), own["bias"])
        if self.packed is not None and self.packed.fits(x, weight):
            return self.packed.linear(x, weight, own["bias"])
        if half.SLOW_HALF and torch.is_autocast_enabled("cpu"):
            return half.linear(x, weight, own["bias"])
        return F.linear(x, weight, own["bias"])

    def pack(self, rows: int) -> bool:
        """Lay the weight out for this many rows; whether that was possible."""
        weight = self._parameters.get("weight")
        self.packed = None if weight is None else pack(weight, rows)
        return self.packed is not None


class LayerNorm(Direct, nn.LayerNorm):
    """A layer norm."""

    def forward(self, x: Tensor) -> Tensor:
        own = self._parameters
        if len(own) < 2:
            return super().forward(x)
        return torch.layer_norm(x, self.normalized_shape, own["weight"], own["bias"], self.eps)


class Affine(Direct):
    """A scale and a shift for every channel in the place of a norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addcmul(self.bias, x, self.weight)


class FedProjection(nn.Module):
    """Queries and keys of one input, values of another; all of them side by side."""

    def __init__(self, inputs: tuple[int, int], outputs: tuple[int, int], *, bias: bool) -> None:
        super().__init__()
        self.qk = Linear(inputs[0], outputs[0], bias=bias)
        self.v = Linear(inputs[1], outputs[1], bias=bias)

    def forward(self, *inputs: Tensor) -> Tensor:
        """Of both inputs, or of one that has them side by side."""
        narrow, wide = inputs if len(inputs) == 2 else self.split(inputs[0])
        return torch.cat((self.qk(narrow), self.v(wide)), dim=-1)

    def split(self, both: Tensor) -> tuple[Tensor, Tensor]:
        width = self.qk.in_features
        return both[..., :width], both[..., width:]

    def parts(self, sizes: Sequence[int], inputs: Sequence[Tensor]) -> list[Tensor]:
        """Queries of the first input, keys and values of the second."""
        first, (narrow, wide) = self.split(inputs[0])[0], self.split(inputs[1])
        keys = self.qk.out_features - sizes[0]
        q, k = parts(self.qk, [sizes[0], keys], [first, narrow])
        return [q, torch.cat((k, self.v(wide)), dim=-1)]


def plain_weight(linear: nn.Module) -> tuple[Tensor, Tensor | None] | None:
    """A map's own weight and bias, if they are all there is to it."""
    if type(linear) is not Linear or linear.hooked or linear.shown is not None:
        return None
    own = linear._parameters
    if own.get("weight") is None or "bias" not in own:
        return None
    return cast(Tensor, own["weight"]), own["bias"]


def parts(linear: nn.Module, sizes: Sequence[int], inputs: Sequence[Tensor]) -> list[Tensor]:
    """Consecutive stretches of a map's outputs, each of an input of its own."""
    if isinstance(linear, FedProjection):
        return linear.parts(sizes, inputs)
    found = plain_weight(linear)
    if found is None:
        starts = [sum(sizes[:i]) for i in range(len(sizes))]
        return [
            linear(x)[..., start : start + size]
            for start, size, x in zip(starts, sizes, inputs, strict=True)
        ]
    weights = torch.split(found[0], list(sizes))
    biases = [None] * len(weights) if found[1] is None else torch.split(found[1], list(sizes))
    return [half.linear(*each) for each in zip(inputs, weights, biases, strict=True)]


def stretch(linear: nn.Module, x: Tensor, first: int, count: int) -> Tensor:
    """Some consecutive outputs of a map; what nobody asks for is not computed."""
    found = plain_weight(linear)
    if found is None:
        outputs: Tensor = linear(x)
        return outputs[..., first : first + count]
    weight, bias = found
    chosen = slice(first, first + count)
    return half.linear(x, weight[chosen], None if bias is None else bias[chosen])


class HeadLinear(nn.Module):
    """A linear map for every head, of numbers (batch, heads, time, inputs) of its own."""

    def __init__(self, heads: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.outputs = outputs
        self.maps = nn.ModuleList(Linear(inputs, outputs, bias=False) for _ in range(heads))

    def forward(self, x_bhti: Tensor, first: int = 0, count: int = 0) -> Tensor:
        """All outputs, or `count` of them from `first` on."""
        count = count or self.outputs
        plain = [plain_weight(each) for each in self.maps]
        weights = [found[0][first : first + count] for found in plain if found and found[1] is None]
        if len(weights) < len(plain):
            pairs = zip(self.maps, x_bhti.unbind(1), strict=True)
            return torch.stack([stretch(each, x, first, count) for each, x in pairs], dim=1)
        batch, heads, time, _ = x_bhti.shape
        y_hmo = torch.bmm(x_bhti.transpose(0, 1).flatten(1, 2), torch.stack(weights).mT)
        return y_hmo.view(heads, batch, time, count).transpose(0, 1)


def activated(linear: nn.Module, x: Tensor, activation: Activation) -> Tensor:
    """A non-linearity of a linear map, in one step where there is a kernel for it."""
    if type(linear) is Linear and linear.packed is not None and activation in FUSED:
        own = plain_weight(linear)
        if own is not None and linear.packed.onednn and linear.packed.fits(x, own[0]):
            return linear.packed.linear(x, *own, FUSED[activation])
    found = plain_weight(linear) if activation is gelu_tanh else None
    y = None if found is None else linear_gelu(x, *found)
    return activation(linear(x)) if y is None else y
