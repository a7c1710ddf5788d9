"""Language: every token is to be predicted from those before it."""

from __future__ import annotations

from parformer.config import ModelConfig
from parformer.counts.prior import PARTS
from parformer.data.batches import Batches, Streams, Tokens, Windows, sample
from parformer.data.tokens import Prepared
from parformer.errors import ConfigError
from parformer.evaluate.counting import entropy
from parformer.evaluate.perplexity import Score, evaluate
from parformer.model import Model
from parformer.tasks.base import Task, task


@task("language")
class Language(Task):
    """Streams for models that carry a memory, windows for others."""

    @classmethod
    def fits(cls, config: ModelConfig) -> bool:
        return config.causal and config.head == "lm" and config.source is None

    def batches(self, tokens: Tokens) -> Batches:
        config, shape = self.recipe.train, self.shape
        remembers = shape.causal and shape.positions in ("relative", "none") and shape.mem_len > 0
        if config.order == "streams" and not remembers:
            raise ConfigError(
                "train.order 'streams' needs a model with memory (relative positions, "
                "mem_len > 0); leave it at 'auto'"
            )
        size = {"batch": config.batch, "length": shape.tgt_len, "seed": config.seed}
        size["parts"] = PARTS if shape.counts else 0
        if remembers and config.order != "windows":
            return Streams(tokens, **size, roll=config.roll)
        return Windows(tokens, **size)

    def score(self, model: Model, prepared: Prepared, split: str, limit: int) -> Score:
        return score_text(model, prepared, split, limit)

    def ignorance(self, prepared: Prepared) -> float | None:
        return entropy(prepared.splits["train"].tokens, self.recipe.model.vocab_size)


def score_text(model: Model, prepared: Prepared, split: str, limit: int) -> Score:
    """The perplexity of some stretches of a split, from all over it."""
    text = prepared.splits[split]
    characters = text.bytes if prepared.tokenizer.made_of == "bytes" else text.characters
    tokens = sample(text.tokens, limit)
    share = len(tokens) / len(text.tokens)
    return evaluate(
        model,
        tokens,
        batch=8,
        characters=round(share * characters),
        words=round(share * text.words),
    )
