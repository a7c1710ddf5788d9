"""How does something small learn beside a model, so that a stop costs nothing?

Update number n depends on what a checkpoint holds and on n alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.optim import Optimizer

from parformer.data.batches import Batch
from parformer.events import Watch
from parformer.model import Model
from parformer.store.faults import failpoint
from parformer.tasks import Task
from parformer.tasks.labelled import LabelTask, label_logits
from parformer.train.checkpoint import Checkpoint, newest_checkpoint, sweep, write_checkpoint
from parformer.train.objective import READ
from parformer.train.optimizers import load_state_tensors, state_tensors
from parformer.weights import named_tensors

SAVED_EVERY = 30.0
"""Seconds between two checkpoints."""
TIMED = 3
"""Updates that are timed to see how many fit into a time."""


def learn(
    module: nn.Module,
    optimizer: Optimizer,
    update: Callable[[int], None],
    *,
    steps: int,
    root: Path,
    watch: Watch,
    what: str,
) -> None:
    """All updates, from the newest checkpoint on; the last one is kept."""
    sweep(root)
    start = newest_checkpoint(root, watch.notice)
    first = 0 if start is None else start.step
    if start is not None:
        with torch.no_grad():
            for name, tensor in named_tensors(module).items():
                tensor.copy_(start.weights[name])
        load_state_tensors(optimizer, module, dict(start.optimizer))

    def save(done: int) -> None:
        weights = {name: tensor.detach() for name, tensor in named_tensors(module).items()}
        kept = Checkpoint(done, weights, state_tensors(optimizer, module), {}, {})
        write_checkpoint(root, kept, keep=2)

    saved = time.monotonic()
    for step in range(first, steps):
        failpoint("replace.before-update")
        watch.preparing(what, step / steps)
        update(step)
        if time.monotonic() - saved > SAVED_EVERY or step + 1 == steps:
            save(step + 1)
            saved = time.monotonic()


def seconds_of(update: Callable[[int], None]) -> float:
    """Of an update, by a few that change what is thrown away."""
    taken = []
    for step in range(1 + TIMED):
        began = time.perf_counter()
        update(step)
        taken.append(time.perf_counter() - began)
    return sorted(taken[1:])[TIMED // 2]


def read(model: Model, task: Task, batch: Batch) -> None:
    """Let a model read a batch, for those who listen to its blocks."""
    if isinstance(task, LabelTask):
        label_logits(model, batch)
        return
    given = {name: batch.inputs[name] for name in READ if name in batch.inputs}
    model(batch.tokens_bt, last_only=True, **given)
