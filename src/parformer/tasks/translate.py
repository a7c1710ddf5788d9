"""Translation: what is to be written for a source, token by token."""

# b batch, t time, v vocabulary

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from parformer.config import ModelConfig
from parformer.data.batches import Batch, Tokens
from parformer.data.paired import Paired, Row
from parformer.data.pairs import pairs_in
from parformer.data.tokens import Prepared
from parformer.embedding import IGNORE
from parformer.errors import ConfigError, CorpusError
from parformer.evaluate.perplexity import at_rest
from parformer.evaluate.summaries import Rouge
from parformer.evaluate.translation import (
    Overlap,
    Texts,
    TranslationScore,
    has_metrics,
    overlap,
    tokenised_bleu,
)
from parformer.generate.sentences import translate_all
from parformer.kernels.entropy import cross_entropy
from parformer.model import Model
from parformer.recipe import Recipe
from parformer.state import State
from parformer.tasks.base import Loss, Task, task, train_length

READ = 4096
"""Tokens that are scored at once."""


@task("translate")
class Translate(Task):
    """Pairs of about one length, the decoder told what stands before each token."""

    steady = False
    judge = "sacrebleu"
    """The package that counts what texts have in common."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__(recipe)
        config = recipe.model
        if config.source is None:
            raise ConfigError(
                f"train.task {self.name!r} needs a model with an encoder, and "
                f"{str(config.pattern)!r} has none; take one such as lite-pocket-translation"
            )
        need_pair(recipe)
        if recipe.train.accumulate > 1:
            raise ConfigError(
                f"train.accumulate {recipe.train.accumulate} would cut batches of pairs unevenly; "
                "leave it at 1 and lower train.batch_tokens"
            )

    @property
    def tokens_per_update(self) -> int:
        train = self.recipe.train
        return train.batch_tokens or train.batch * min(32, train_length(self.recipe))

    @classmethod
    def fits(cls, config: ModelConfig) -> bool:
        return config.source is not None and config.head == "lm"

    def batches(self, tokens: Tokens) -> Paired:
        config = self.recipe.train
        pairs = self.pairs(tokens)
        self.refuse_long(pairs)
        return self.paired(pairs, seed=config.seed, tokens=config.batch_tokens, batch=config.batch)

    def ends(self, tokens: Tokens) -> NDArray[np.int64]:
        return np.flatnonzero(np.asarray(tokens) == self.recipe.model.end) + 1

    def pairs(self, tokens: NDArray[Any]) -> list[Row]:
        model = self.recipe.model
        if model.end < 0:
            raise ConfigError("the model does not say which token ends a text; set model.end")
        return pairs_in(tokens, model.start, model.end)

    def paired(self, pairs: list[Row], **how: int) -> Paired:
        model = self.recipe.model
        return Paired(pairs, start=model.start, end=model.end, pad=model.pad, **how)

    def refuse_long(self, pairs: list[Row]) -> None:
        """Refuse what has more tokens than the model has places."""
        limit = self.recipe.model.max_len
        longest = max((max(map(len, pair)) for pair in pairs), default=0) + 1
        if self.recipe.model.numbered and longest > limit:
            raise CorpusError(
                f"a pair has {longest:,} tokens on a side, and the model {limit:,} places; raise "
                "model.max_len, or leave long pairs out with data.longest"
            )

    def loss(self, model: Model, batch: Batch, state: State | None) -> Loss:
        smoothing = self.recipe.train.label_smoothing
        losses_n = entropies(logits_of(model, batch), batch.targets, smoothing)
        return Loss(losses_n.sum() / (batch.targets != IGNORE).sum())

    def score(self, model: Model, prepared: Prepared, split: str, limit: int) -> TranslationScore:
        """The references' loss; of the test, BLEU too where sacreBLEU is at hand."""
        found = self.reference_loss(model, prepared, split, limit)
        if split != "test" or not has_metrics(self.judge):
            return found
        pairs = within(self.pairs(prepared.splits[split].tokens), limit)
        texts = self.written(model, prepared, pairs)
        return TranslationScore(found.loss, found.tokens, self.judged(texts), texts)

    def reference_loss(
        self, model: Model, prepared: Prepared, split: str, limit: int
    ) -> TranslationScore:
        return self.lost(model, within(self.pairs(prepared.splits[split].tokens), limit))

    def lost(self, model: Model, pairs: list[Row]) -> TranslationScore:
        """The loss of what was to be written."""
        self.refuse_long(pairs)
        device = next(model.parameters()).device
        total, count = 0.0, 0
        with at_rest(model):
            for _, batch in self.paired(pairs, seed=0, tokens=READ).in_order():
                here = batch.to(device)
                total += float(entropies(logits_of(model, here), here.targets).sum())
                count += int((batch.targets != IGNORE).sum())
        return TranslationScore(total / count, count)

    def written(self, model: Model, prepared: Prepared, pairs: list[Row], **search: Any) -> Texts:
        """What the model makes of some sources, beside what was wanted."""
        known = prepared.tokenizer
        sources = [source.tolist() for source, _ in pairs]
        return Texts(
            sources=tuple(map(known.source.decode, sources)),
            references=tuple(known.target.decode(target.tolist()) for _, target in pairs),
            written=tuple(map(known.target.decode, translate_all(model, sources, **search))),
        )

    def judged(self, texts: Texts, *, bootstrap: bool = False) -> Overlap | Rouge:
        """How much of the references was written; with `bootstrap` in all detail."""
        found = overlap(texts.written, texts.references, bootstrap=bootstrap)
        if not bootstrap:
            return found
        compounds = self.recipe.data.pair == "en-de"
        own, how = tokenised_bleu(texts.written, texts.references, compounds=compounds)
        return replace(found, tokenised=own, tokenised_signature=how)


def need_pair(recipe: Recipe) -> None:
    """Refuse a translator that is not told what its pairs are."""
    if recipe.model.source is not None and not recipe.data.pair:
        raise ConfigError(
            f"a model with an encoder, {str(recipe.model.pattern)!r}, needs to know which texts "
            "are a pair; give --pair, such as de-en"
        )


def logits_of(model: Model, batch: Batch) -> Tensor:
    logits_btv: Tensor | None = model(batch.tokens_bt, source=batch.inputs["source"]).logits
    assert logits_btv is not None
    return logits_btv


def entropies(logits_btv: Tensor, targets_bt: Tensor, smoothing: float = 0.0) -> Tensor:
    """Losses of all places in fp32, 0 where nothing is wanted."""
    return cross_entropy(logits_btv.flatten(0, 1).float(), targets_bt.flatten(), smoothing)


def within(pairs: list[Row], limit: int) -> list[Row]:
    """Pairs from all over, with about so many tokens of targets; all of them for 0."""
    total = sum(len(target) + 1 for _, target in pairs)
    if not limit or total <= limit:
        return pairs
    count = max(1, len(pairs) * limit // total)
    return [pairs[n] for n in torch.linspace(0, len(pairs) - 1, count).long().tolist()]
