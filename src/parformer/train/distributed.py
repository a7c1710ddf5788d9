"""How do several processes train one model?

`torchrun` starts them and says who is who. Each reads its own rows of every batch; gradients
are averaged (DDP), and with `--shard` weights, gradients and the optimizer's memory are spread
over all of them (FSDP2). What is written to disk is always whole, so that a run may go on with
any number of processes.
"""

# b batch

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from parformer.errors import ConfigError
from parformer.measure.device import find_device
from parformer.weights import named_tensors


@dataclass(frozen=True, slots=True)
class Workers:
    """One process among those that train together."""

    rank: int = 0
    count: int = 1
    device: torch.device = torch.device("cpu")  # noqa: RUF009 - a plain value
    shard: bool = False

    @property
    def first(self) -> bool:
        """Whether this one writes files and talks to people."""
        return self.rank == 0

    def rows(self, batch: int) -> slice:
        """The rows of a batch that this process reads."""
        if batch % self.count:
            raise ConfigError(
                f"train.batch {batch} cannot be shared out to {self.count} processes; "
                "choose a multiple"
            )
        each = batch // self.count
        return slice(self.rank * each, (self.rank + 1) * each)

    def wrap(self, objective: nn.Module, blocks: nn.ModuleList) -> nn.Module:
        """The same module, which now agrees with its copies in the other processes."""
        if self.count == 1 and not self.shard:
            return objective
        if self.shard:
            from torch.distributed.fsdp import fully_shard

            for block in standing_alone(blocks):
                fully_shard(block)
            return cast(nn.Module, fully_shard(objective))
        from torch.nn.parallel import DistributedDataParallel

        idle = getattr(objective, "idle", True)
        return DistributedDataParallel(objective, find_unused_parameters=idle)

    def gathering(self, wrapped: nn.Module, *, last: bool) -> Any:
        """Gradients are exchanged once per update, after its last piece."""
        if last or self.count == 1:
            return nullcontext()
        if self.shard:
            return hold_gradients(wrapped)
        return cast(Any, wrapped).no_sync()

    def average(self, values: Tensor) -> Tensor:
        """The mean of every process' numbers."""
        if self.count > 1:
            dist.all_reduce(values)
            values /= self.count
        return values

    def average_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Exchange gradients that nothing has exchanged yet; all processes have the same ones."""
        if self.count == 1:
            return
        gradients = [p.grad for p in parameters if p.grad is not None]
        if not gradients:
            return
        flat = self.average(torch.cat([gradient.flatten() for gradient in gradients]))
        for gradient, part in zip(
            gradients, torch.split(flat, [g.numel() for g in gradients]), strict=True
        ):
            gradient.copy_(part.view_as(gradient))

    def agree(self, due: bool, stop: bool) -> tuple[bool, bool]:
        """Whether the first process finds something due, and whether any wants to stop."""
        if self.count == 1:
            return due, stop
        flags = torch.tensor([due and self.first, stop], dtype=torch.int32, device=self.device)
        dist.all_reduce(flags, dist.ReduceOp.MAX)
        return bool(flags[0]), bool(flags[1])

    def gather_rows(self, own_b: Tensor) -> Tensor:
        """The rows of all processes, in order."""
        if self.count == 1:
            return own_b
        parts = [torch.empty_like(own_b) for _ in range(self.count)]
        dist.all_gather(parts, own_b.contiguous())
        return torch.cat(parts)

    def share(self, text: str) -> str:
        """What the first process says, in all of them."""
        if self.count == 1:
            return text
        said = torch.tensor(list(text.encode()), dtype=torch.uint8, device=self.device)
        size = torch.tensor([len(said)], device=self.device)
        dist.broadcast(size, 0)
        if not self.first:
            said = torch.empty(int(size), dtype=torch.uint8, device=self.device)
        dist.broadcast(said, 0)
        return bytes(said.tolist()).decode()


def standing_alone(blocks: Iterable[nn.Module]) -> list[nn.Module]:
    """Blocks in one place that share no weight with another; the model as a whole has the rest."""
    places = Counter(blocks)
    users = Counter(weight for block in places for weight in block.parameters())
    return [
        block
        for block, count in places.items()
        if count == 1 and all(users[weight] == 1 for weight in block.parameters())
    ]


@contextmanager
def hold_gradients(wrapped: nn.Module) -> Iterator[None]:
    sharded = cast(Any, wrapped)
    sharded.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        sharded.set_requires_gradient_sync(True)


def whole(tensor: Tensor) -> Tensor:
    """A tensor with all its parts, wherever they lie; every process must ask."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def whole_weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: whole(p.detach()) for name, p in named_tensors(model).items()}


@contextmanager
def workers_from(
    environment: Mapping[str, str] = os.environ, *, device: str = "auto", shard: bool = False
) -> Iterator[Workers]:
    """Join the processes that `torchrun` started, or be the only one."""
    count = int(environment.get("WORLD_SIZE", "1"))
    local = int(environment.get("LOCAL_RANK", "0"))
    place = find_device(device, local)
    if count == 1 and not shard:
        yield Workers(device=place)
        return
    if count == 1 and "RANK" not in environment:
        raise ConfigError(
            "--shard spreads a model over processes, but there is only this one; start it with "
            "torchrun --nproc-per-node 2 -m -- parformer train …"
        )
    if place.type == "cuda":
        torch.cuda.set_device(place)
    dist.init_process_group("nccl" if place.type == "cuda" else "gloo")
    try:
        yield Workers(dist.get_rank(), dist.get_world_size(), place, shard)
    finally:
        dist.destroy_process_group()
