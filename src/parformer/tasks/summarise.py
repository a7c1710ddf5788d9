"""Summaries: what is to be written for a long text, which is read from its beginning."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from parformer.config import ModelConfig
from parformer.data.paired import Row
from parformer.evaluate.summaries import Rouge, rouge
from parformer.evaluate.translation import Overlap, Texts
from parformer.tasks.base import task
from parformer.tasks.translate import Translate


@task("summarise")
class Summarise(Translate):
    """Trained as a translator is, and judged by ROUGE beside the beginnings of the sources."""

    judge = "rouge_score"

    @classmethod
    def fits(cls, config: ModelConfig) -> bool:
        return False

    def pairs(self, tokens: NDArray[Any]) -> list[Row]:
        """Sources only as long as the model has places, their end counted."""
        model = self.recipe.model
        limit = model.max_len - 1 if model.numbered else None
        return [(source[:limit], target) for source, target in super().pairs(tokens)]

    def judged(self, texts: Texts, *, bootstrap: bool = False) -> Overlap | Rouge:
        return rouge(texts.written, texts.references, texts.sources)
