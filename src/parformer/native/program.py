"""What does a model do, as a list of operations that C++ can run?

A `Program` is written block by block. It owns an arena for all numbers in between, knows every
matrix, and checks shapes, types and places before an address leaves Python: what is in the
program is in bounds. `kernels/decoder/program.h` has the same operations, field by field.
"""

# n rows: batch × time

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from parformer.blocks.coded import NARROW, STEPS, WIDE, CodedLinear
from parformer.blocks.linear import Affine, plain_weight
from parformer.kernels import quantized
from parformer.kernels.decoder.library import WORDS

Weights: TypeAlias = Literal["float32", "bfloat16", "int8", "int4"]
"""How matrices are kept; what is computed is fp32."""
BITS = {"int8": WIDE, "int4": NARROW}

LaidOut: TypeAlias = tuple[int, Tensor, Tensor | None, Tensor | None]
"""What a matrix is, its numbers, the scales of its rows, the steps of its groups."""

CODES = {
    name: number
    for number, name in enumerate(
        (
            *("look_up", "place", "turns", "linear", "norm", "attend", "gate", "mix"),
            *("recur", "grams", "cross", "convolve", "synthesize", "last", "clusters", "hints"),
        )
    )
}
ACTIVATIONS = ("", "relu", "gelu", "gelu-tanh", "silu", "sigmoid")
NORMS = ("layer", "rms", "affine")
FP32, BF16, INT8, INT4 = range(4)
MATRIX = 7
"""Whole numbers of one matrix."""
CACHE, CELLS, RECENT, SOURCE = range(4)


class NoForm(Exception):
    """Why a model has no native form; the ordinary step goes on in its stead."""


class NotMeant(NoForm):
    """What a native form was never made for, so that nobody need be told."""


@dataclass(frozen=True, slots=True)
class Span:
    """A buffer of the arena: where it begins, how wide it is, how far its rows lie apart."""

    offset: int
    width: int
    step: int

    def part(self, first: int, width: int) -> Span:
        """Some neighbouring columns."""
        assert 0 <= first <= first + width <= self.width, (self, first, width)
        return Span(self.offset + first, width, self.step)

    @property
    def words(self) -> tuple[int, int]:
        return self.offset, self.step


NOWHERE = (-1, 0)
"""In the place of a span that is not there."""


def bits(number: float) -> int:
    """A number of 64 bits as a whole number."""
    return int(struct.unpack("<q", struct.pack("<d", number))[0])


class Program:
    """Operations, matrices, states and the arena of a model that is being compiled."""

    def __init__(self, batch: int, time: int, memory: int, weights: Weights) -> None:
        """For at most `batch` texts and `time` tokens at once, with so much memory."""
        self.batch, self.time, self.memory, self.weights = batch, time, memory, weights
        self.rows = batch * time
        self.size = 0
        """Numbers of the arena."""
        self.ops: list[int] = []
        self.matrices: list[int] = []
        self.states: list[int] = []
        self.counts = [0, 0, 0, 0]
        self.kept: list[Tensor] = []
        """Whatever an address points to."""
        self.bytes = 0
        """Of matrices, as they are read in every step."""
        self._free: dict[int, list[Span]] = {}
        self._known: dict[tuple[int, ...], int] = {}
        self._columns: dict[int, tuple[int, int]] = {}
        self._turns: dict[tuple[int, float], Span] = {}

    # The arena

    def take(self, width: int, rows: int = 0) -> Span:
        """A buffer for a number of every row, or of so many rows."""
        free = self._free.get(width)
        if free and not rows:
            return free.pop()
        wide = -(-width // 16) * 16
        span = Span(self.size, width, wide)
        self.size += wide * (rows or self.rows)
        return span

    def give(self, *spans: Span) -> None:
        """Buffers that nobody reads any more."""
        for span in spans:
            assert span not in self._free.get(span.width, ())
            self._free.setdefault(span.width, []).append(span)

    # What addresses point to

    def address(self, tensor: Tensor, *shape: int, dtype: torch.dtype = torch.float32) -> int:
        """Where the numbers of a tensor of just this shape and type are."""
        if tuple(tensor.shape) != shape or tensor.device.type != "cpu":
            raise NoForm(f"a tensor of shape {tuple(tensor.shape)} stands where {shape} belongs")
        tensor = tensor.detach().to(dtype).contiguous()
        self.kept.append(tensor)
        return tensor.data_ptr()

    def vector(self, tensor: Tensor | None, width: int) -> int:
        return 0 if tensor is None else self.address(tensor, width)

    def pointers(self, numbers: Sequence[int]) -> int:
        """The place of some whole numbers."""
        return self.address(
            torch.tensor(numbers, dtype=torch.int64), len(numbers), dtype=torch.int64
        )

    def matrix(self, weight: Tensor, bias: Tensor | None = None) -> int:
        """The number of a matrix (outputs, inputs), the same however often it is used."""
        if weight.dim() != 2 or weight.device.type != "cpu" or not weight.is_floating_point():
            raise NoForm(f"{weight.dtype} of shape {tuple(weight.shape)} is no matrix here")
        key = (weight.data_ptr(), *weight.shape, *weight.stride())
        key += (0 if bias is None else bias.data_ptr(),)
        if key not in self._known:
            self.kept += [weight, *([] if bias is None else [bias])]
            self._known[key] = self._add_matrix(self._laid_out(weight), weight.shape, bias)
        return self._known[key]

    def coded(self, module: CodedLinear) -> int:
        """The number of a matrix that is kept in few bits."""
        if module.reach is not None or module.hooked or module.codes.device.type != "cpu":
            raise NoForm("a coded matrix rounds its inputs too")
        bias = module.bias
        key = (module.codes.data_ptr(), 0 if bias is None else bias.data_ptr())
        if key not in self._known:
            self.kept += [module.codes, *([] if bias is None else [bias])]
            shape = (module.out_features, module.in_features)
            self._known[key] = self._add_matrix(from_codes(module), shape, bias)
        return self._known[key]

    def _add_matrix(
        self,
        laid_out: LaidOut,
        shape: Sequence[int],
        bias: Tensor | None,
    ) -> int:
        kind, *tensors = laid_out
        rows, columns = shape
        known = [tensor for tensor in tensors if tensor is not None]
        self.kept += known
        self.bytes += sum(tensor.numel() * tensor.element_size() for tensor in known)
        places = [0 if tensor is None else tensor.data_ptr() for tensor in tensors]
        self.matrices += [kind, rows, columns, *places, self.vector(bias, rows)]
        number = len(self.matrices) // MATRIX - 1
        self._columns[number] = (rows, columns)
        return number

    def _laid_out(self, weight: Tensor) -> LaidOut:
        weight = weight.detach()
        if self.weights in BITS:
            return from_codes(CodedLinear.of(weight.float(), None, bits=BITS[self.weights]))
        if self.weights == "bfloat16" or weight.dtype == torch.bfloat16:
            return BF16, weight.to(torch.bfloat16).contiguous(), None, None
        return FP32, weight.float().contiguous(), None, None

    # States

    def state(self, kind: int, *sizes: int) -> int:
        """The number of something to remember, counted by its kind."""
        self.states += [kind, *sizes, *([0] * (3 - len(sizes)))]
        self.counts[kind] += 1
        return self.counts[kind] - 1

    # Operations

    def add(self, name: str, *words: int) -> None:
        assert len(words) < WORDS, name
        self.ops += [CODES[name], *words, *([0] * (WORDS - 1 - len(words)))]

    def linear(
        self,
        module: nn.Module,
        x: Span,
        *,
        activation: str = "",
        plus: Span | None = None,
        out: Span | None = None,
    ) -> Span:
        """A linear map of x, activated, and added to something else."""
        if isinstance(module, CodedLinear):
            number = self.coded(module)
        elif (found := plain_weight(module)) is not None:
            number = self.matrix(*found)
        else:
            raise NoForm(f"{type(module).__name__} is no plain linear map")
        return self.map(number, x, activation=activation, plus=plus, out=out)

    def map(
        self,
        matrix: int,
        x: Span,
        *,
        activation: str = "",
        plus: Span | None = None,
        out: Span | None = None,
    ) -> Span:
        rows, columns = self._columns[matrix]
        out = self.take(rows) if out is None else out
        assert (x.width, out.width) == (columns, rows), (x, out, rows, columns)
        assert plus is None or (plus.width == rows and plus.offset != out.offset)
        assert x.offset != out.offset
        added = NOWHERE if plus is None else plus.words
        self.add(*("linear", matrix, *x.words, *out.words, *added, ACTIVATIONS.index(activation)))
        return out

    def norm(self, module: nn.Module | None, x: Span, out: Span | None = None) -> Span:
        """A norm of x, in a buffer of its own unless told otherwise."""
        out = self.take(x.width) if out is None else out
        kind, weight, bias, eps = norm_parts(module)
        own: Any = (self.vector(weight, x.width), self.vector(bias, x.width), bits(eps))
        self.add("norm", NORMS.index(kind), x.width, *x.words, *out.words, *own)
        return out

    def turns(self, width: int, base: float) -> Span:
        """Cosines and sines of this step's places, made once for all blocks that turn alike;
        of every text, as some may have begun later than others.
        """
        if (width, base) not in self._turns:
            half = width // 2
            rates = base ** (-torch.arange(0, width, 2).double() / width)
            out = self.take(width, self.rows)
            self._turns[width, base] = out
            place = self.address(rates, half, dtype=torch.float64)
            self.add("turns", *out.words, half, place)
        return self._turns[width, base]


def from_codes(module: CodedLinear) -> LaidOut:
    """Codes as C++ reads them."""
    numbers_oi, scales_o = module.whole(), module.scales[:, 0]
    if module.steps is None:
        return INT8, quantized.int8_panels(numbers_oi), quantized.whole_panels(scales_o), None
    scales, steps = quantized.whole_panels(scales_o / STEPS), quantized.step_panels(module.steps)
    return INT4, quantized.int4_panels(numbers_oi), scales, steps


def norm_parts(module: nn.Module | None) -> tuple[str, Tensor | None, Tensor | None, float]:
    """What a norm is, its weight, its bias and what keeps it from dividing by zero."""
    hooked = module is None or module._forward_hooks or module._forward_pre_hooks
    own = {} if module is None else module._parameters
    if own.get("weight") is None or hooked:
        raise NoForm(f"{type(module).__name__} is no norm with a weight of its own")
    if isinstance(module, nn.LayerNorm):
        return "layer", own["weight"], own["bias"], module.eps
    if isinstance(module, nn.RMSNorm) and module.eps is not None:
        return "rms", own["weight"], None, module.eps
    if isinstance(module, Affine):
        return "affine", own["weight"], own["bias"], 0.0
    raise NoForm(f"{type(module).__name__} is no norm that is known here")
