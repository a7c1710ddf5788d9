"""What does one update need, and what does it do?

A session holds the model, its optimizer, its batches and what the blocks remember of each
text. Update number n depends on these and on n alone: the batch, the learning rate and what
dropout drops all follow from it.
"""

# b batch, t time

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields
from typing import Any, cast

import torch
from torch import Tensor, nn

from parformer.blocks.base import Block, BlockState
from parformer.config import ModelConfig
from parformer.data.batches import Batches, MaskedWindows, Streams, Tokens, Windows, number_for
from parformer.errors import ConfigError, FolderError
from parformer.kernels import native
from parformer.model import Model, State, build, build_from
from parformer.recipe import Recipe
from parformer.train.checkpoint import Checkpoint
from parformer.train.distributed import Workers, whole_weights
from parformer.train.optimizers import (
    clip_gradients,
    load_state_tensors,
    make_optimizer,
    set_learning_rate,
    state_tensors,
)
from parformer.train.schedule import rate


class Objective(nn.Module):
    """A model and what it is to get better at: the mean loss of its targets.

    Anything with this forward can be trained: distillation, a supernet.
    """

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model
        self.idle = model.config.pooler
        """Whether some parameters may go without a gradient, which DDP has to know."""

    def forward(
        self, tokens_bt: Tensor, targets_bt: Tensor, state: State | None
    ) -> tuple[Tensor, State | None]:
        out = self.model(tokens_bt, state, targets_bt)
        assert out.loss is not None
        return out.loss, out.state


class Session:
    """A model in training."""

    def __init__(
        self,
        recipe: Recipe,
        tokens: Tokens,
        *,
        workers: Workers,
        start: Checkpoint | None = None,
        objective: Callable[[Model], nn.Module] = Objective,
    ) -> None:
        self.recipe, self.config, self.workers = recipe, recipe.train, workers
        shape = training_shape(recipe)
        self.batches = make_batches(recipe, tokens)
        self.rows = own_rows(recipe, workers)
        if start is None:
            self.model = build(shape, seed=self.config.seed, device=workers.device)
        else:
            self.model = build_from(shape, dict(start.weights)).to(workers.device)
        self.model.train()
        native.enable(self.config.kernels == "native")
        plain = objective(self.model)
        if self.config.compile == "on":
            # Static shapes: a run that goes on must get the very code that it began with.
            self.model.compile(dynamic=False)
        self.objective = workers.wrap(plain, self.model.blocks)
        self.parameters = list(self.model.parameters())
        self.optimizer = make_optimizer(self.model, self.config)
        self.carries = isinstance(self.batches, Streams)
        self.states: list[State | None] = [None] * self.config.accumulate
        if start is not None:
            load_state_tensors(self.optimizer, self.model, dict(start.optimizer))
            if start.memory:
                self._restore_memory(start.memory, int(start.progress["position"]))

    def update(self, step: int) -> tuple[Tensor, Tensor]:
        """Update number `step`: the loss before it, and the norm of its gradient.

        The weights stay as they are where either is not finite; the caller has to ask.
        """
        loss = self.gradient(step)
        norm = clip_gradients(self.parameters, self.config.clip)
        if bool(torch.isfinite(loss) & torch.isfinite(norm)):
            set_learning_rate(self.optimizer, rate(step, self.config))
            self.optimizer.step()
        self.optimizer.zero_grad()
        return loss, norm

    def gradient(self, step: int) -> Tensor:
        """Gradients of update number `step`, piece by piece; the mean loss."""
        torch.manual_seed(number_for(self.config.seed, "dropout", step, self.workers.rank))
        batch = self.batches.at(step, self.rows)
        if batch.fresh:
            self.states = [None] * len(self.states)
        pieces = len(self.states)
        total = torch.zeros((), device=self.workers.device)
        parts = zip(batch.tokens_bt.chunk(pieces), batch.targets_bt.chunk(pieces), strict=True)
        for i, (tokens_bt, targets_bt) in enumerate(parts):
            with (
                self.workers.gathering(self.objective, last=i == pieces - 1),
                self.precision(),
            ):
                loss, state = self.objective(
                    tokens_bt.to(self.workers.device, non_blocking=True),
                    targets_bt.to(self.workers.device, non_blocking=True),
                    self.states[i],
                )
                (loss / pieces).backward()
            total += loss.detach() / pieces
            self.states[i] = state if self.carries else None
        return self.workers.average(total)

    def precision(self) -> AbstractContextManager[Any]:
        if self.config.precision != "bf16":
            return nullcontext()
        return torch.autocast(self.workers.device.type, torch.bfloat16)

    @property
    def tokens_per_update(self) -> int:
        return self.config.batch * train_length(self.recipe)

    def checkpoint(self, step: int, progress: Mapping[str, Any]) -> Checkpoint:
        """Everything that update number `step` depends on; every process must ask."""
        memory, position = self._memory()
        return Checkpoint(
            step,
            whole_weights(self.model),
            state_tensors(self.optimizer, self.model),
            memory,
            {**progress, "position": position},
        )

    def _memory(self) -> tuple[dict[str, Tensor], int]:
        """What the blocks remember, all texts of the batch in order."""
        states = [state for state in self.states if state is not None]
        if not states:
            return {}, 0
        parts: dict[str, list[Tensor]] = {}
        for state in states:
            for i, remembered in enumerate(state.blocks):
                for name, tensor in named_tensors(remembered).items():
                    parts.setdefault(f"{i}/{name}", []).append(tensor)
        gathered = {n: self.workers.gather_rows(torch.cat(t)) for n, t in parts.items()}
        return gathered, states[0].position

    def _restore_memory(self, memory: Mapping[str, Tensor], position: int) -> None:
        by_block: dict[int, dict[str, Tensor]] = {}
        for name, tensor in memory.items():
            number, _, part = name.partition("/")
            if len(tensor) != self.config.batch or not number.isdigit():
                raise FolderError(
                    f"the checkpoint's memory {name!r} has {len(tensor)} rows, the batch "
                    f"{self.config.batch}; it belongs to another run"
                )
            by_block.setdefault(int(number), {})[part] = tensor[self.rows]
        pieces = len(self.states)
        for i in range(pieces):
            blocks = tuple(
                restore(cast(Block, block), by_block.get(n, {}), i, pieces, self.workers.device)
                for n, block in enumerate(self.model.blocks)
            )
            batch = (self.rows.stop - self.rows.start) // pieces
            config = self.model.config
            self.states[i] = State(batch, config, config.memory, position, blocks)


def named_tensors(remembered: BlockState | None) -> dict[str, Tensor]:
    if remembered is None:
        return {}
    return {f.name: getattr(remembered, f.name) for f in fields(cast(Any, remembered))}


def restore(
    block: Block, tensors: Mapping[str, Tensor], piece: int, pieces: int, device: torch.device
) -> BlockState | None:
    """One block's memory of one piece of the batch."""
    if not tensors:
        return None
    if block.training_state is None:
        raise FolderError(f"the checkpoint remembers something for a block {block.letter!r}")
    own = {name: t.chunk(pieces)[piece].clone().to(device) for name, t in tensors.items()}
    return block.training_state(**own)


def training_shape(recipe: Recipe) -> ModelConfig:
    """The model with the lengths that it trains with."""
    config, length, limit = recipe.train, train_length(recipe), recipe.model.max_len
    if limit and length > limit:
        raise ConfigError(
            f"train.tgt_len {length} exceeds the model's window of {limit}; "
            "lower it or raise model.max_len"
        )
    return recipe.model.replaced(
        tgt_len=length,
        mem_len=recipe.model.mem_len if config.mem_len < 0 else config.mem_len,
        clamp_len=config.clamp_len,
        same_length=False,
    )


def train_length(recipe: Recipe) -> int:
    return recipe.train.tgt_len or recipe.model.step_len


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
    make_batches(recipe, tokens)
    own_rows(recipe, workers)


def make_batches(recipe: Recipe, tokens: Tokens) -> Batches:
    """Streams for models that carry a memory, windows for others."""
    config, shape = recipe.train, training_shape(recipe)
    length = train_length(recipe)
    remembers = shape.causal and shape.positions in ("relative", "none") and shape.mem_len > 0
    if config.order == "streams" and not remembers:
        raise ConfigError(
            "train.order 'streams' needs a model with memory (relative positions, mem_len > 0); "
            "leave it at 'auto'"
        )
    size: dict[str, int] = {"batch": config.batch, "length": length, "seed": config.seed}
    if shape.head == "masked":
        return MaskedWindows(
            tokens,
            **size,
            vocab_size=shape.vocab_size,
            mask_id=shape.vocab_size - 1,
            share=config.mask,
        )
    if remembers and config.order != "windows":
        return Streams(tokens, **size, roll=config.roll)
    return Windows(tokens, **size)
