"""Masked words: some tokens are hidden, and to be guessed from both sides (BERT)."""

from __future__ import annotations

from parformer.config import ModelConfig
from parformer.data.batches import Batches, MaskedWindows, Tokens
from parformer.data.masking import mask_token
from parformer.data.tokens import Prepared
from parformer.errors import ConfigError
from parformer.evaluate.counting import entropy
from parformer.evaluate.perplexity import Score
from parformer.model import Model
from parformer.tasks.base import Task, task
from parformer.tasks.language import score_text


@task("masked")
class Masked(Task):
    """Windows with a share of their tokens hidden."""

    @classmethod
    def fits(cls, config: ModelConfig) -> bool:
        return config.head == "masked"

    def batches(self, tokens: Tokens) -> Batches:
        config, shape = self.recipe.train, self.shape
        if config.order == "streams":
            raise ConfigError(
                "train.order 'streams' needs a model with memory (relative positions, "
                "mem_len > 0); leave it at 'auto'"
            )
        return MaskedWindows(
            tokens,
            batch=config.batch,
            length=shape.tgt_len,
            seed=config.seed,
            vocab_size=shape.vocab_size,
            mask_id=mask_token(shape.vocab_size),
            share=config.mask,
        )

    def score(self, model: Model, prepared: Prepared, split: str, limit: int) -> Score:
        return score_text(model, prepared, split, limit)

    def ignorance(self, prepared: Prepared) -> float | None:
        return entropy(prepared.splits["train"].tokens, self.recipe.model.vocab_size)
