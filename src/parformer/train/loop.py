"""Training: text in, model out.

The loop itself is short. Around it stands what makes a long run safe: it goes on from the
newest whole checkpoint, bit for bit; numbers that are not finite never reach the weights;
a signal ends it after the update in hand, with everything saved.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from parformer.data.tokens import Prepared
from parformer.errors import TrainingError
from parformer.evaluate.counting import References
from parformer.events import Watch
from parformer.measure.device import pinned_threads
from parformer.model import build_from
from parformer.recipe import Recipe, TrainConfig
from parformer.store.faults import failpoint
from parformer.train import checkpoint as checkpoints
from parformer.train import plateau
from parformer.train.averaging import averaged_steps, mean_of_last
from parformer.train.checkpoint import Checkpoint
from parformer.train.distributed import Workers, whole_weights
from parformer.train.metrics import Metrics
from parformer.train.result import RunResult, Written
from parformer.train.run import CHECKPOINTS, METRICS, MODEL, read_finished, write_result
from parformer.train.session import Session
from parformer.train.standing import (
    Best,
    Standing,
    Tally,
    compare_machines,
    digest_of,
    machine,
    refuse_other_vocabulary,
)

CHECKPOINT_SECONDS = 60.0
"""How often a run is saved when the recipe does not say."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a training ended."""

    step: int
    finished: bool
    result: RunResult | None = None
    """What a finished one found; the first of many processes knows, and a search none of it."""
    interrupted: bool = False
    """Whether somebody asked it to stop before it came to where it was to stop."""
    beside: Mapping[str, References] = field(default_factory=dict)
    """What counting reaches on the very tokens that each split's score is of, if asked for."""


def train(
    recipe: Recipe,
    prepared: Prepared,
    path: Path,
    *,
    workers: Workers | None = None,
    watch: Watch | None = None,
    until: int | None = None,
    make_session: Callable[..., Session] = Session,
    make_journal: Callable[..., Journal] | None = None,
) -> Outcome:
    """Train by a recipe that leaves nothing open, in a run folder, from where it stopped.

    With `until` it stops after that step, to go on another time; the schedule does not change.
    Other kinds of sessions, with journals of their own, train other things than models.
    """
    workers, watch, config = workers or Workers(), watch or Watch(), recipe.train
    if (done := read_finished(path, watch.notice)) is not None:
        return Outcome(done.steps, True, done)
    root = path / CHECKPOINTS
    with pinned_threads(config.threads or None), ExitStack() as stack:
        start = find_start(path, config, workers, watch)
        before = None if start is None else Standing.from_dict(start.progress, "the checkpoint")
        if before is not None:
            refuse_other_vocabulary(before, prepared, path)
        text = prepared.splits["train"]
        session = make_session(recipe, text.tokens, workers=workers, start=start)
        first = 0 if start is None else start.step
        tally, length = Tally(), 0
        if before is not None:
            compare_machines(before.machine, workers, watch)
            tally, length = Tally(*before.tally), before.metrics_bytes
        metrics = open_metrics(path, length, first, watch, stack) if workers.first else None
        stop = stack.enter_context(stop_signals())
        journal = (make_journal or Journal)(session, prepared, path, metrics, tally, watch)
        journal.best = None if before is None else before.best
        watch.start(first, config.steps)
        saved = began = time.monotonic()
        ended, settled = first, session.settled(first) or journal.gave_up()
        if until is not None and ended >= until and not settled:
            return Outcome(ended, False)
        while not settled:
            failpoint("train.before-update")
            loss, norm = session.update(ended)
            refuse_nonfinite(ended, loss, norm, root)
            failpoint("train.after-update")
            ended, now = ended + 1, time.monotonic()
            settled = session.settled(ended)
            speed = session.tokens_per_update * (ended - first) / max(now - began, 1e-9)
            journal.log(ended, float(loss), float(norm), speed, last=settled)
            if ended % config.evaluate_every == 0 and not settled:
                journal.validate(ended)
                settled = journal.gave_up()
            enough = bool(stop) or (until is not None and ended >= until)
            due, stopping = workers.agree(is_due(config, ended, now - saved), enough)
            if due or stopping or settled:
                journal.save(ended)
                saved = time.monotonic()
            if stopping and not settled:
                return Outcome(ended, False, interrupted=bool(stop))
        return Outcome(ended, True, journal.finish(ended))


def open_metrics(path: Path, length: int, step: int, watch: Watch, stack: ExitStack) -> Metrics:
    """The log of a run from a step on, until `stack` closes it."""
    board, notice = path / "tensorboard", watch.notice
    made = Metrics(path / METRICS, length, tensorboard=board, step=step, notice=notice)
    return stack.enter_context(closing(made))


def find_start(
    path: Path, config: TrainConfig, workers: Workers, watch: Watch
) -> Checkpoint | None:
    """The checkpoint to go on from, the same in every process; what a kill left is swept away."""
    root = path / CHECKPOINTS
    if not workers.first:
        name = workers.share("")
        return checkpoints.read_checkpoint(root / name) if name else None
    checkpoints.sweep(root)
    checkpoints.sweep(path, f"{MODEL}.")
    start = checkpoints.newest_checkpoint(root, watch.notice)
    checkpoints.rotate(root, config.keep, averaged_steps(config))
    workers.share("" if start is None else checkpoints.name_of(start.step))
    return start


class Journal:
    """What a training writes down: metrics, checkpoints, and in the end the model."""

    def __init__(
        self,
        session: Session,
        prepared: Prepared,
        path: Path,
        metrics: Metrics | None,
        tally: Tally,
        watch: Watch,
    ) -> None:
        self.session, self.prepared, self.path = session, prepared, path
        self.metrics, self.tally, self.watch = metrics, tally, watch
        self.config = session.config
        self.vocabulary = digest_of(prepared)
        self.best: Best | None = None

    def log(self, step: int, loss: float, norm: float, speed: float, *, last: bool) -> None:
        self.tally.add(loss)
        self.watch.step(step, loss, speed)
        if step % self.config.log_every and not last:
            return
        mean = self.tally.take()
        self.look_for_plateau(step, mean)
        if self.metrics is not None:
            row = {"loss": mean, "gradient": norm, "rate": self.session.rate_at(step - 1)}
            self.metrics.add(step, {**row, "tokens_per_second": round(speed, 1)})

    def look_for_plateau(self, step: int, loss: float) -> None:
        """Say so, once, where nothing but the frequencies of tokens was learned."""
        if not plateau.is_due(step, self.config.log_every, self.config.steps):
            return
        known = self.session.task.ignorance(self.prepared)
        if known is not None and plateau.on_plateau(loss, known):
            self.watch.notice(plateau.advice(self.session.recipe, step, loss, known))

    def validate(self, step: int) -> None:
        """Look at some of the valid split, with the lengths of training."""
        model, workers = self.session.model, self.session.workers
        weights = whole_weights(model) if workers.shard else None
        if self.metrics is None:
            return
        if weights is not None:
            model = build_from(model.config, weights).to(workers.device)
        score = self.session.task.score(model, self.prepared, "valid", self.config.evaluate_tokens)
        self.metrics.add(step, as_row("valid", score.to_dict()))
        self.watch.validated(step, score.loss)
        if self.config.patience:
            self.remember(step, self.session.task.compared(score), weights)

    def remember(self, step: int, value: float, weights: Mapping[str, Tensor] | None) -> None:
        """Keep the weights of the best validation."""
        if self.best is None or value < self.best.value:
            self.best = Best(step, value)
            checkpoints.write_best(self.path, step, weights or whole_weights(self.session.model))
        else:
            self.best = replace(self.best, since=self.best.since + 1)

    def gave_up(self) -> bool:
        """Whether so many validations brought nothing better that a training stops; all agree."""
        patience = self.config.patience
        if not patience:
            return False
        enough = self.best is not None and self.best.since >= patience
        return self.session.workers.share("yes" if enough else "") == "yes"

    def best_weights(self) -> Mapping[str, Tensor] | None:
        """Those of the best validation, where they are not the last ones."""
        if self.best is None:
            return None
        score = self.session.task.score(
            self.session.model, self.prepared, "valid", self.config.evaluate_tokens
        )
        if self.session.task.compared(score) <= self.best.value:
            return None
        found = checkpoints.read_best(self.path, self.best.step, self.watch.notice)
        if found is not None:
            self.watch.notice(f"The weights after {self.best.step:,} updates were the best.")
        return found

    def save(self, step: int) -> None:
        """A checkpoint, once every weight is known to be a number."""
        length = 0 if self.metrics is None else self.metrics.settle()
        tally = (self.tally.total, self.tally.count)
        standing = Standing(
            length, tally, self.vocabulary, machine(self.session.workers), self.best
        )
        snapshot = self.session.checkpoint(step, standing.to_dict())
        root = self.path / CHECKPOINTS
        for name, weight in snapshot.weights.items():
            if not bool(torch.isfinite(weight).all()):
                raise TrainingError(
                    f"the weight {name!r} is no longer finite at step {step:,}; "
                    f"{how_to_go_on(root)}"
                )
        if self.session.workers.first:
            spared = averaged_steps(self.config)
            checkpoints.write_checkpoint(root, snapshot, self.config.keep, spared)

    def finish(self, steps: int) -> RunResult | None:
        """Save the model as it is to be used, and say how good it is."""
        weights = whole_weights(self.session.model)
        if self.metrics is None:
            return None
        recipe = self.session.recipe
        better = self.best_weights()
        if better is None:
            better = mean_of_last(self.path / CHECKPOINTS, self.config, self.watch.notice)
        model = build_from(recipe.model, better or weights).to(self.session.workers.device)
        failpoint("train.before-model")
        model.save(self.path / MODEL, self.prepared.tokenizer.to_json())
        failpoint("train.before-result")
        scores: dict[str, Written] = {}
        limits = {"valid": self.config.evaluate_tokens, "test": self.config.final_tokens}
        for split, limit in limits.items():
            if split in self.prepared.splits:
                task = self.session.task
                score = task.score(model, self.prepared, split, limit)
                score = task.with_beside(score, self.prepared, split)
                scores[split] = Written(score.to_dict())
                self.metrics.add(steps, as_row(split, scores[split].values))
        self.metrics.settle()
        result = RunResult(steps, **scores)
        write_result(self.path, result.to_dict())
        return result


def as_row(split: str, told: Mapping[str, object]) -> dict[str, object]:
    """A score for a line of metrics: the loss, and what its task counts.

    >>> as_row("valid", {"loss": 0.5, "metrics": {"accuracy": 0.8}})
    {'valid_loss': 0.5, 'valid_accuracy': 0.8}
    """
    own = told.get("metrics", {})
    assert isinstance(own, Mapping)
    return {f"{split}_loss": told["loss"]} | {
        f"{split}_{name}": value for name, value in own.items()
    }


def is_due(config: TrainConfig, step: int, since: float) -> bool:
    """Whether it is time for a checkpoint."""
    if config.checkpoint_every:
        return step % config.checkpoint_every == 0
    return since > CHECKPOINT_SECONDS


def refuse_nonfinite(step: int, loss: Tensor, norm: Tensor, root: Path) -> None:
    """Stop before a number that is none reaches a weight or a checkpoint."""
    for what, value in (("loss", float(loss)), ("gradient's norm", float(norm))):
        if not math.isfinite(value):
            raise TrainingError(f"the {what} is {value} at step {step:,}; {how_to_go_on(root)}")


def how_to_go_on(root: Path) -> str:
    good = checkpoints.in_order(root)
    kept = f"the last good checkpoint is {good[-1].name}" if good else "there is no checkpoint yet"
    return (
        f"{kept}; start another --run with a lower train.learning_rate, a longer "
        "train.warmup or a smaller train.clip"
    )


@contextmanager
def stop_signals() -> Iterator[list[int]]:
    """Ctrl-C and SIGTERM end the training after the update in hand; a second Ctrl-C at once."""
    caught: list[int] = []

    def catch(number: int, _: object) -> None:
        if caught and number == signal.SIGINT:
            raise KeyboardInterrupt
        caught.append(number)

    kinds = (signal.SIGINT, signal.SIGTERM)
    try:
        before = {kind: signal.signal(kind, catch) for kind in kinds}
    except ValueError:  # not the main thread: whoever started it deals with signals
        yield caught
        return
    try:
        yield caught
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)
