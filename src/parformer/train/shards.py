"""What of a tensor does this process have, where several share it out among themselves (FSDP)?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
import torch.distributed as dist
from torch import Tensor

if TYPE_CHECKING:  # takes a second to import, and only several processes need it
    from torch.distributed.tensor import DTensor

PIECE = 2**16
"""Numbers that a CPU may sum in fp32; over many millions of them it would be off by percents."""


def whole_norms(parts: Sequence[Tensor], owners: Sequence[Tensor]) -> Tensor:
    """The norm of every tensor, of which this process has a part laid out as its owner says."""
    norms_n = torch.stack([norm_here(part) for part in parts])
    shards: dict[tuple[Any, int], list[int]] = {}
    for place, owner in enumerate(owners):
        if is_shared_out(owner):
            for axis, placement in enumerate(owner.placements):
                if placement.is_shard():
                    shards.setdefault((owner.device_mesh, axis), []).append(place)
    if not shards:
        return norms_n
    squares_n = norms_n.double().square()
    for (mesh, axis), places in shards.items():
        some_n = squares_n[places]
        dist.all_reduce(some_n, group=mesh.get_group(axis))
        squares_n[places] = some_n
    return squares_n.sqrt().to(norms_n.dtype)


def norm_here(tensor: Tensor) -> Tensor:
    dtype = torch.promote_types(tensor.dtype, torch.float32)
    if tensor.device.type == "cpu" and tensor.numel() > PIECE:
        pieces = torch.split(tensor.reshape(-1), PIECE)
        tensor = torch.stack(torch._foreach_norm(pieces, 2, dtype))
    norm: Tensor = torch.linalg.vector_norm(tensor, dtype=dtype)
    return norm


def is_shared_out(tensor: Tensor) -> TypeGuard[DTensor]:
    """Whether this process has a part of it only."""
    return hasattr(tensor, "device_mesh")


def locals_of(tensors: Iterable[Tensor]) -> list[Tensor]:
    """The parts that this process has, not copied."""
    return [t.to_local() if is_shared_out(t) else t for t in tensors]


def whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if is_shared_out(tensor) else tensor


def share_out(tensor: Tensor, *, like: Tensor) -> Tensor:
    """A whole tensor, which every process has, laid out as another one."""
    if not is_shared_out(like):
        return tensor
    from torch.distributed.tensor import DTensor, Replicate

    mesh = like.device_mesh
    everywhere = DTensor.from_local(tensor, mesh, [Replicate()] * mesh.ndim, run_check=False)
    return everywhere.redistribute(mesh, like.placements)
