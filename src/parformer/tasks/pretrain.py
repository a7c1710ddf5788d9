"""Pretraining on documents: hidden words, and whether two segments belong together (BERT, ALBERT).

The loss is that of the hidden tokens, at whose places alone the head works, and, where the model
has a head for pairs, that of next sentence or sentence order; both are means.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from parformer.config import ModelConfig
from parformer.data.batches import Batch, Batches, Tokens
from parformer.data.pretraining import Pretraining
from parformer.data.tokens import Prepared
from parformer.embedding import IGNORE
from parformer.errors import ConfigError
from parformer.evaluate.perplexity import at_rest, exp, finite_or_none
from parformer.model import Model
from parformer.phases import Phase, phase_at, phases_of
from parformer.recipe import Recipe
from parformer.state import Output, State
from parformer.tasks.base import Loss, Task, task

ROWS = 32
"""Segments that are scored at once."""


@dataclass(frozen=True, slots=True)
class PretrainScore:
    """How well hidden tokens are guessed, and pairs told apart."""

    loss: float
    """Nats per hidden token."""
    tokens: int
    """Hidden tokens that were guessed."""
    accuracy: float
    """The share of them that is right."""
    pairs: float | None = None
    """The share of pairs that is right, where the model tells."""

    kind = "pseudo-perplexity"

    def to_dict(self) -> dict[str, object]:
        metrics = {"masked_accuracy": self.accuracy}
        if self.pairs is not None:
            metrics["pair_accuracy"] = self.pairs
        values: dict[str, object] = {"kind": self.kind, "loss": finite_or_none(self.loss)}
        values |= {"perplexity": finite_or_none(exp(self.loss)), "tokens": self.tokens}
        return values | {"metrics": metrics}


@task("pretrain")
class Pretrain(Task):
    """Segments of documents with words hidden, one or two to a row."""

    steady = False

    def __init__(self, recipe: Recipe) -> None:
        super().__init__(recipe)
        if recipe.model.head != "masked":
            raise ConfigError(
                f"train.task 'pretrain' needs model.head='masked', got {recipe.model.head!r}; set "
                "it, or take a model such as bert-pocket-pretraining"
            )
        if recipe.train.packed and recipe.model.pair_head != "none":
            raise ConfigError(
                f"train.packed fills rows with documents, model.pair_head "
                f"{recipe.model.pair_head!r} wants pairs of segments; set one of them aside, such "
                "as model.pair_head=none"
            )
        for one in phases_of(recipe.train):
            if one.batch % recipe.train.accumulate:
                raise ConfigError(
                    f"train.accumulate {recipe.train.accumulate} does not divide a phase's batch "
                    f"of {one.batch}; choose a divisor"
                )

    @classmethod
    def fits(cls, config: ModelConfig) -> bool:
        return False  # plain text is read by windows unless somebody asks for documents

    def batches(self, tokens: Tokens) -> Batches:
        train = self.recipe.train
        parts = phases_of(train)
        if not parts:
            return self.reading(tokens, train.batch, self.shape.tgt_len, train.seed)
        return Phased(
            [self.reading(tokens, one.batch, one.length, train.seed) for one in parts],
            parts,
            train.batch,
        )

    def reading(self, tokens: Tokens, batch: int, window: int, seed: int) -> Pretraining:
        train = self.recipe.train
        return Pretraining(
            tokens,
            batch=batch,
            window=window,
            seed=seed,
            share=train.mask,
            unit=train.mask_unit,
            pairing=self.recipe.model.pair_head,
            most=train.mask_most,
            packed=train.packed,
        )

    def loss(self, model: Model, batch: Batch, state: State | None) -> Loss:
        out = read(model, batch)
        assert out.loss is not None
        if out.pair_logits is None:
            return Loss(out.loss)
        pair = F.cross_entropy(out.pair_logits.float(), batch.inputs["pair"])
        return Loss(out.loss + pair, parts={"masked": out.loss, "pair": pair})

    def score(self, model: Model, prepared: Prepared, split: str, limit: int) -> PretrainScore:
        """On the same hidden tokens every time: those of one epoch, or of some of its batches."""
        text = prepared.splits[split].tokens
        batches = self.reading(text, 1, self.shape.tgt_len, 0)
        count = batches.per_epoch
        if limit:
            count = max(1, min(count, limit // self.shape.tgt_len))
        device = next(model.parameters()).device
        total = right = hidden = pairs = 0.0
        with at_rest(model):
            for first in range(0, count, ROWS):
                rows = [
                    batches.at(n * batches.per_epoch // count)
                    for n in range(first, min(first + ROWS, count))
                ]
                batch = joined(rows).to(device)
                out = read(model, batch)
                assert out.losses is not None
                assert model.head is not None
                there = batch.targets != IGNORE
                told = model.head.logits(out.hidden[there][None])[0].argmax(-1)
                total += float(out.losses.double().sum())
                hidden += int(there.sum())
                right += int((told == batch.targets[there]).sum())
                if out.pair_logits is not None:
                    pairs += int((out.pair_logits.argmax(-1) == batch.inputs["pair"]).sum())
        known = pairs / count if model.pair_head is not None else None
        return PretrainScore(total / hidden, int(hidden), right / hidden, known)


def read(model: Model, batch: Batch) -> Output:
    """A step of a batch, with token types where the model has some."""
    types: Any = batch.inputs["types"] if model.config.token_types > 1 else None
    there = batch.inputs["padding"]
    padding = None if bool(there.all()) else there
    out: Output = model(batch.tokens_bt, None, batch.targets, token_types=types, padding=padding)
    return out


def joined(batches: list[Batch]) -> Batch:
    """Batches of one width as one."""
    names = batches[0].inputs
    inputs = {name: torch.cat([one.inputs[name] for one in batches]) for name in names}
    return Batch(inputs, torch.cat([one.targets for one in batches]))


class Phased(Batches):
    """Batches of one length after those of another; each begins its own epochs."""

    def __init__(self, parts: list[Pretraining], phases: tuple[Phase, ...], batch: int) -> None:
        self.parts, self.phases, self.batch = parts, phases, batch
        self.per_epoch = parts[0].per_epoch

    def at(self, index: int, rows: slice = slice(None)) -> Batch:
        """Who asks for some of `batch` rows gets that share of a phase's."""
        phase, index = phase_at(index, self.phases)
        if rows.stop is not None:
            edges = [phase.batch * edge // self.batch for edge in (rows.start or 0, rows.stop)]
            rows = slice(*edges)
        return self.parts[self.phases.index(phase)].at(index, rows)
