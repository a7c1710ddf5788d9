"""How do matrices in few bits become graphs that keep them in few bits?

onnxruntime multiplies by codes itself (`MatMulNBits` of com.microsoft): blocks of 32 neighbours in
a row, four or eight bits each, with a scale of their own. `compress` keeps the very same whole
numbers in another order, so nothing is rounded once more. How exactly onnxruntime multiplies is the
graph's to say: with whole inputs, or, several times as fast, with inputs of eight bits.
"""

# o outputs, i inputs, g blocks, k numbers of a block, n rows of inputs

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parformer.blocks.coded import GROUP, NARROW, STEPS, CodedLinear, in_groups, rounded_to

EXACT, FAST = 1, 4
"""Ways of onnxruntime to multiply: with inputs as they are, or rounded to eight bits."""


def packed(linear: CodedLinear) -> tuple[Tensor, Tensor]:
    """Codes (outputs, blocks, bytes) that nothing is below zero in, and a scale for every block."""
    whole_ogk = in_groups(linear.whole().to(torch.int16)) + (8 if linear.bits == NARROW else 128)
    scales_og = linear.scales.expand(-1, whole_ogk.shape[1])
    if linear.steps is not None:
        scales_og = linear.steps.float() * (linear.scales / STEPS)
        whole_ogk = whole_ogk[..., 0::2] + 16 * whole_ogk[..., 1::2]
    return whole_ogk.to(torch.uint8), scales_og.float().contiguous()


def unpacked(codes: Tensor, scales: Tensor, bits: int, inputs: int) -> Tensor:
    """Rows of numbers again: codes (…, blocks, bytes) by arithmetic that every runtime has."""
    found = codes.float()
    if bits == NARROW:
        high = torch.floor(found / 16)
        found = torch.stack((found - 16 * high, high), dim=-1).flatten(-2)
    offset = 8 if bits == NARROW else 128
    return ((found - offset) * scales[..., None]).flatten(-2)[..., :inputs]


@contextlib.contextmanager
def as_operators(model: nn.Module) -> Iterator[bool]:
    """Have all matrices in few bits traced as one operator each; whether there are any."""
    found = [module for module in model.modules() if isinstance(module, CodedLinear)]
    known: dict[int, tuple[Tensor, Tensor]] = {}
    for linear in found:
        place = linear.codes.data_ptr()
        if place not in known:
            known[place] = packed(linear)
        linear.forward = Multiplied(linear, *known[place])  # type: ignore[method-assign]
        linear.rows = LookedUp(linear, *known[place])  # type: ignore[method-assign]
    try:
        yield bool(found)
    finally:
        for linear in found:
            del linear.forward, linear.rows


class Packed:
    """A matrix as the graph holds it."""

    def __init__(self, linear: CodedLinear, codes: Tensor, scales: Tensor) -> None:
        self.linear, self.codes, self.scales = linear, codes, scales


class Multiplied(Packed):
    """What stands in the place of a coded matrix' `forward`."""

    def __call__(self, x: Tensor) -> Tensor:
        linear = self.linear
        if linear.reach is not None:
            x = rounded_to(x, linear.reach)
        if torch.compiler.is_exporting():
            y = self.operator(x)
        else:
            sizes = (linear.bits, linear.in_features)
            y = F.linear(x, unpacked(self.codes, self.scales, *sizes).to(x.dtype))
        return y if linear.bias is None else y + linear.bias

    def operator(self, x: Tensor) -> Tensor:
        """One operator of the graph; exact until somebody asks for less."""
        linear = self.linear
        sizes = {"K": linear.in_features, "N": linear.out_features, "bits": linear.bits}
        return torch.onnx.ops.symbolic(
            "com.microsoft::MatMulNBits",
            (x, self.codes, self.scales),
            {**sizes, "block_size": GROUP, "accuracy_level": EXACT},
            dtype=x.dtype,
            shape=[*x.shape[:-1], linear.out_features],
            version=1,
        )


class LookedUp(Packed):
    """What stands in the place of its `rows`."""

    def __call__(self, chosen: Tensor | None) -> Tensor:
        codes, scales = self.codes, self.scales
        if chosen is not None:
            codes, scales = codes[chosen], scales[chosen]
        return unpacked(codes, scales, self.linear.bits, self.linear.in_features)


def hurried(graph: bytes) -> bytes:
    """The same graph with inputs of its coded matrices rounded to eight bits, block by block."""
    import onnx

    model = onnx.load_from_string(graph)
    for body in (model.graph, *model.functions):
        for node in body.node:
            for attribute in node.attribute:
                if node.op_type == "MatMulNBits" and attribute.name == "accuracy_level":
                    attribute.i = FAST
    return bytes(model.SerializeToString())
