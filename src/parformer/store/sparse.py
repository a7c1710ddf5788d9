"""How are tensors kept that are mostly zeros?

As a bit for every number, which says whether it is one, and the numbers that are: lossless, in any
type. Only where that takes fewer bytes.

>>> import torch
>>> x = torch.zeros(64, 100)
>>> x[3, 5] = 1.5
>>> kept = without_zeros({"w": x})
>>> {name: tuple(t.shape) for name, t in kept.items()}
{'w#there': (800,), 'w#values': (1,), 'w#shape': (2,)}
>>> torch.equal(with_zeros(kept)["w"], x)
True
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from parformer.errors import FolderError

LEAST = 4096
"""Numbers of a tensor that is worth it."""
THERE, VALUES, SHAPE = "#there", "#values", "#shape"


def without_zeros(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors, those in parts that are smaller so."""
    kept: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        flat = tensor.detach().cpu().contiguous().flatten()
        there = flat != 0
        values = flat[there]
        parts = -(-flat.numel() // 8) + values.numel() * values.element_size()
        if flat.numel() < LEAST or parts >= flat.numel() * flat.element_size():
            kept[name] = tensor
            continue
        bits = np.packbits(there.numpy())
        kept[name + THERE] = torch.from_numpy(bits)
        kept[name + VALUES] = values
        kept[name + SHAPE] = torch.tensor(tensor.shape)
    return kept


def with_zeros(kept: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Whole tensors again; parts that do not fit together are refused."""
    tensors: dict[str, Tensor] = {}
    for name, tensor in kept.items():
        if name.endswith((VALUES, SHAPE)) and name.partition("#")[0] + THERE in kept:
            continue
        if not name.endswith(THERE):
            tensors[name] = tensor
            continue
        whole = name.removesuffix(THERE)
        tensors[whole] = joined(whole, tensor, kept.get(whole + VALUES), kept.get(whole + SHAPE))
    return tensors


def joined(name: str, bits: Tensor, values: Tensor | None, shape: Tensor | None) -> Tensor:
    if values is None or shape is None or bits.dtype != torch.uint8 or shape.dtype != torch.int64:
        raise FolderError(f"the parts of {name!r} are not all there; copy the whole folder again")
    sizes = [int(size) for size in shape.flatten()]
    count = math.prod(sizes)
    if any(size < 0 for size in sizes) or bits.numel() != -(-count // 8):
        raise FolderError(f"the parts of {name!r} do not fit its shape {sizes}")
    there = torch.from_numpy(np.unpackbits(bits.flatten().numpy(), count=count)).bool()
    if int(there.sum()) != values.numel():
        raise FolderError(
            f"{name!r} has {values.numel():,} numbers for {int(there.sum()):,} places"
        )
    flat = values.new_zeros(count)
    flat[there] = values.flatten()
    return flat.view(sizes)
