"""What does one update need, and what does it do?

A session holds the model, its optimizer, its batches and what the blocks remember of each
text. Update number n depends on these and on n alone: the batch, the learning rate and what
dropout drops all follow from it.
"""

# b batch, t time

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
from torch import Tensor, nn

from parformer.blocks.ngrams import NGramMemory
from parformer.config import ModelConfig
from parformer.data.batches import Batches, Tokens, number_for
from parformer.errors import ConfigError
from parformer.kernels import native
from parformer.measure.device import check_threads
from parformer.model import Model, build, build_from
from parformer.recipe import Recipe
from parformer.store.files import Json
from parformer.tasks import Task, find_task
from parformer.train.checkpoint import Checkpoint
from parformer.train.distributed import Workers, whole_weights
from parformer.train.objective import Distilling, Objective
from parformer.train.optimizers import (
    clip_gradients,
    freeze,
    load_state_tensors,
    make_optimizer,
    set_learning_rate,
    state_tensors,
)
from parformer.train.reading import Reading
from parformer.train.schedule import rate
from parformer.train.shape import OWN as SHAPING
from parformer.train.shape import Shaping
from parformer.train.start import start_model
from parformer.train.transfer import Paced, taken_over, transfer_of


class Session:
    """A model in training."""

    def __init__(
        self,
        recipe: Recipe,
        tokens: Tokens,
        *,
        workers: Workers,
        start: Checkpoint | None = None,
        objective: Callable[[Model, Task], nn.Module] | None = None,
    ) -> None:
        self.recipe, self.config, self.workers = recipe, recipe.train, workers
        self.task = find_task(recipe)
        self.rows = own_rows(recipe, workers)
        self.reading = self.read(self.task.batches(tokens))
        self.model = self.make_model(self.task.shape, start)
        self.model.train()
        freeze(self.model, self.config.frozen)
        if self.model.prior is not None:
            self.model.prior.learn(tokens, fresh=start is None)
        for module in self.model.modules():
            if isinstance(module, NGramMemory):
                module.sparse = self.can_name_rows
        native.enable(self.config.kernels == "native")
        self.shaping = None
        if recipe.compress is not None:
            self.shaping = Shaping(self.model, recipe.compress, self.config.steps)
        own = (objective or self.usual_objective)(self.model, self.task)
        self.pupil = own if isinstance(own, Distilling) else None
        if self.pupil is not None:
            read = self.reading.batches
            self.reading.batches = self.pupil.lessons(read, self.config.steps)
        self.transfer = transfer_of(recipe)
        self.paced = None if self.transfer is None else Paced(self.model, self.transfer)
        self.objective = self.wrap(own)
        self.parameters = list(self.model.parameters())
        self.optimizer = make_optimizer(self.model, self.config)
        if start is not None:
            self.go_on(start)

    def usual_objective(self, model: Model, task: Task) -> Objective:
        """The task's loss, or that and a teacher's."""
        wanted = self.recipe.compress
        if wanted is None or not wanted.teacher:
            return Objective(model, task)
        return Distilling(model, task, wanted)

    @property
    def can_name_rows(self) -> bool:
        """Whether gradients of tables may name rows: not where processes exchange them."""
        return self.workers.count == 1 and self.config.compile != "on"

    def make_model(self, shape: ModelConfig, start: Checkpoint | None) -> Model:
        """The model with its first weights, or those of a checkpoint."""
        if start is None and self.config.start:
            return start_model(shape, self.config).to(self.workers.device)
        if start is None:
            made = build(shape, seed=self.config.seed, device=self.workers.device)
            return taken_over(made, self.recipe)
        return build_from(shape, start.weights).to(self.workers.device)

    def wrap(self, objective: nn.Module) -> nn.Module:
        """What the update calls: compiled, and in agreement with other processes."""
        if self.config.compile == "on":
            # Static shapes: a run that goes on must get the very code that it began with.
            self.model.compile(dynamic=False)
        return self.workers.wrap(objective, self.model.blocks)

    def read(self, batches: Batches) -> Reading:
        config = self.config
        return Reading(
            batches,
            batch=config.batch,
            rows=self.rows,
            pieces=config.accumulate,
            workers=self.workers,
        )

    def go_on(self, start: Checkpoint) -> None:
        """Take the optimizer's state and the blocks' memory from a checkpoint."""
        known = {n: t for n, t in start.optimizer.items() if not n.startswith(SHAPING)}
        load_state_tensors(self.optimizer, self.model, known)
        if self.shaping is not None:
            self.shaping.restore(start.optimizer, start.step)
        self.reading.restore(self.model, start.memory, int(start.progress["position"]))

    def update(self, step: int) -> tuple[Tensor, Tensor]:
        """Update number `step`: the loss before it, and the norm of its gradient.

        The weights stay as they are where either is not finite; the caller has to ask.
        """
        if self.pupil is not None and self.transfer is not None:
            self.pupil.active = self.transfer.active(step)
        return self.move(step, self.gradient(self.reading, step, step))

    def rate_at(self, step: int) -> float:
        """The learning rate of an update."""
        return (
            rate(step, self.config)
            if self.transfer is None
            else self.transfer.rate(step, self.config)
        )

    def move(self, step: int, loss: Tensor) -> tuple[Tensor, Tensor]:
        """Move the weights by their gradients, if these and the loss are numbers."""
        norm = clip_gradients(self.parameters, self.config.clip)
        if bool(torch.isfinite(loss) & torch.isfinite(norm)):
            now = self.rate_at(step)
            set_learning_rate(self.optimizer, now)
            before = [] if self.paced is None else self.paced.before(step)
            self.optimizer.step()
            if self.paced is not None:
                self.paced.after(step, before)
            if self.shaping is not None:
                self.workers.average_gradients(self.shaping.learned)
                self.shaping.after(step, now / self.config.learning_rate)
        self.optimizer.zero_grad()
        return loss, norm

    def gradient(self, reading: Reading, index: int, step: int) -> Tensor:
        """Gradients of batch number `index` of a text, piece by piece; the mean loss."""
        torch.manual_seed(number_for(self.config.seed, "dropout", step, self.workers.rank))
        count = self.config.accumulate
        total = torch.zeros((), device=self.workers.device)
        for i, batch in enumerate(reading.pieces(index)):
            with self.gathering(last=i == count - 1), self.precision():
                loss, state = self.objective(batch, reading.states[i])
                (loss / count).backward()
            total += loss.detach() / count
            reading.keep(i, state)
        return self.workers.average(total)

    def gathering(self, *, last: bool) -> AbstractContextManager[Any]:
        """Where gradients are exchanged with other processes, if at all."""
        return cast(
            "AbstractContextManager[Any]", self.workers.gathering(self.objective, last=last)
        )

    def precision(self) -> AbstractContextManager[Any]:
        if self.config.precision != "bf16":
            return nullcontext()
        return torch.autocast(self.workers.device.type, torch.bfloat16)

    def settled(self, step: int) -> bool:
        """Whether there is nothing left to gain after so many updates."""
        return step >= self.config.steps

    @property
    def tokens_per_update(self) -> int:
        return self.task.tokens_per_update

    def checkpoint(self, step: int, progress: Json) -> Checkpoint:
        """Everything that update number `step` depends on; every process must ask."""
        memory, position = self.reading.memory()
        return Checkpoint(
            step,
            whole_weights(self.model),
            state_tensors(self.optimizer, self.model)
            | ({} if self.shaping is None else self.shaping.tensors()),
            memory,
            {**progress, "position": position},
        )


def own_rows(recipe: Recipe, workers: Workers) -> slice:
    """The rows of every batch that this process reads, in whole pieces."""
    rows = workers.rows(recipe.train.batch)
    if (rows.stop - rows.start) % recipe.train.accumulate:
        raise ConfigError(
            f"train.accumulate {recipe.train.accumulate} does not divide the "
            f"{rows.stop - rows.start} texts of each process; choose a divisor"
        )
    return rows


def refuse_misfits(recipe: Recipe, tokens: Tokens, workers: Workers) -> None:
    """Find what no session could be made of, before anything is written down."""
    check_threads(recipe.train.threads or None)
    if recipe.train.kernels == "native" and native.library() is None:
        raise ConfigError(
            f"train.kernels 'native' is not possible here: {native.failure}; "
            "leave it at 'auto', or take 'plain'"
        )
    batches = find_task(recipe).batches(tokens)
    if recipe.compress is not None and recipe.compress.teacher and batches.carries:
        raise ConfigError(
            "a teacher reads windows, not streams with a memory; set train.order=windows"
        )
    if recipe.compress is not None:
        refuse_unshapely(recipe, workers)
    own_rows(recipe, workers)


def refuse_unshapely(recipe: Recipe, workers: Workers) -> None:
    """Find what [compress] cannot be done to."""
    shaping = recipe.compress
    assert shaping is not None
    moves = shaping.prune_by != "magnitude"
    train = recipe.train
    if (shaping.sparsity or moves) and (train.patience or train.average):
        name = "train.patience" if train.patience else "train.average"
        raise ConfigError(
            f"zeros rise until the end, so weights from before it have too few of them; set {name} "
            "to 0"
        )
    if shaping.learns_ranges and train.patience + train.average:
        name = "train.patience" if train.patience else "train.average"
        raise ConfigError(
            f"weights are cut to their learned ranges in the end, so those from before it are not; "
            f"set {name} to 0"
        )
    if shaping.take != "nothing" and recipe.train.start:
        raise ConfigError(
            f"both train.start {recipe.train.start!r} and compress.take {shaping.take!r} say where "
            "the first weights come from; give one"
        )
    if shaping.progressive and recipe.model.source is not None:
        raise ConfigError(
            "layers are taught one by one in a single stack; set compress.progressive to 0 for a "
            "model with an encoder and a decoder"
        )
    if shaping.progressive and workers.shard:
        raise ConfigError("layers that learn one by one cannot be sharded; leave --shard out")
    if (moves or shaping.learns_ranges) and workers.shard:
        what = "scores of movements" if moves else "learned ranges"
        raise ConfigError(f"{what} cannot be sharded; leave --shard out")
    if shaping.prune_over == "model" and workers.shard:
        raise ConfigError(
            "the smallest weights of a whole model are not found in shards of it; leave --shard "
            "out, or set compress.prune_over to matrix"
        )
