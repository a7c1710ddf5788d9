"""How good are translations?

By the loss of the references, and by BLEU and chrF as sacreBLEU computes them, whose signature
says how; the interval is that of its bootstrap over sentences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from parformer.errors import ConfigError, MissingExtra, need
from parformer.evaluate.perplexity import exp, finite_or_none
from parformer.evaluate.summaries import Rouge
from parformer.records import Record

RESAMPLES = 1000
"""Samples of the bootstrap, sacreBLEU's own number."""
FEWEST = 2
"""Sentences that a bootstrap needs."""


@dataclass(frozen=True, slots=True)
class Overlap(Record):
    """How much of the references translations have in common with them."""

    bleu: float
    chrf: float
    sentences: int
    signature: str
    """How BLEU was counted, in sacreBLEU's words."""
    chrf_signature: str
    low: float | None = None
    """The lower end of BLEU's 95% interval, where it was asked for."""
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Texts:
    """What was read, what was to be written for it, and what a model wrote."""

    sources: tuple[str, ...]
    references: tuple[str, ...]
    written: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TranslationScore:
    """How well a model predicts references, and translates by itself."""

    loss: float
    """Nats per token of the references, without smoothing."""
    tokens: int
    overlap: Overlap | Rouge | None = None
    """None where nothing was translated."""
    texts: Texts | None = None

    kind = "translation"

    def to_dict(self) -> dict[str, object]:
        values: dict[str, object] = {
            "kind": self.kind,
            "loss": finite_or_none(self.loss),
            "perplexity": finite_or_none(exp(self.loss)),
            "tokens": self.tokens,
        }
        return values | ({} if self.overlap is None else self.overlap.to_dict())


def overlap(
    translations: Sequence[str],
    references: Sequence[str],
    *,
    lowercase: bool = False,
    bootstrap: bool = False,
) -> Overlap:
    """BLEU and chrF of whole sentences, one reference each."""
    if len(translations) != len(references) or not references:
        raise ConfigError(
            f"there are {len(translations):,} translations for {len(references):,} references"
        )
    metrics = need("sacrebleu.metrics", extra="translate")
    bleu, chrf = metrics.BLEU(lowercase=lowercase), metrics.CHRF(lowercase=lowercase)
    sure = bootstrap and len(references) >= FEWEST
    resamples = {"n_bootstrap": RESAMPLES} if sure else {}
    found = bleu.corpus_score(list(translations), [list(references)], **resamples)
    middle, reach = getattr(found, "_mean", 0.0), getattr(found, "_ci", 0.0)
    return Overlap(
        bleu=float(found.score),
        chrf=float(chrf.corpus_score(list(translations), [list(references)]).score),
        sentences=len(references),
        signature=str(bleu.get_signature()),
        chrf_signature=str(chrf.get_signature()),
        low=float(middle - reach) if sure else None,
        high=float(middle + reach) if sure else None,
    )


def has_metrics(package: str = "sacrebleu") -> bool:
    """Whether whoever counts is installed."""
    try:
        need(package, extra="translate")
    except MissingExtra:
        return False
    return True
