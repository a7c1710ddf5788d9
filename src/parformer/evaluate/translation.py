"""How good are translations?

By the loss of the references, and by BLEU and chrF as sacreBLEU computes them, whose signature
says how; the interval is that of its bootstrap over sentences. BLEU of tokenised text, which the
papers have, is a figure of its own: it depends on who cut the words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from parformer.errors import ConfigError, MissingExtra, need
from parformer.evaluate.perplexity import exp, finite_or_none
from parformer.evaluate.summaries import Rouge
from parformer.records import Record

RESAMPLES = 1000
"""Samples of the bootstrap, sacreBLEU's own number."""
FEWEST = 2
"""Sentences that a bootstrap needs."""
STOPS = (".", "!", "?")
APART = 0.9
"""The share of last stops that stand by themselves in a text whose words are cut already."""


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
    tokenised: float | None = None
    """BLEU of tokenised text, as papers have it, where it was asked for."""
    tokenised_signature: str = ""
    """How that was counted, and who cut the words."""


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


def tokenised_bleu(
    translations: Sequence[str], references: Sequence[str], *, compounds: bool = False
) -> tuple[float, str]:
    """BLEU of words without smoothing, the case as it is, and how it was counted.

    The words are those between blanks where the references are tokenised already, as fairseq's
    are, and else nltk's, as in the code that SRU++ was scored by. With `compounds` what a hyphen
    joins is cut too, as papers on English to German do.
    """
    cut, who = word_cutter(references)
    if compounds:
        who += ", compounds split at hyphens"
    sides = [[cut(line) for line in lines] for lines in (translations, references)]
    if compounds:
        sides = [[split_compounds(line) for line in side] for side in sides]
    metrics = need("sacrebleu.metrics", extra="translate")
    bleu = metrics.BLEU(tokenize="none", smooth_method="none", force=True)
    found = bleu.corpus_score(sides[0], [sides[1]])
    return float(found.score), f"{bleu.get_signature()}, {who}"


def word_cutter(references: Sequence[str]) -> tuple[Callable[[str], str], str]:
    """What puts blanks between the words of a line, and its name."""
    if is_tokenised(references):
        return str.strip, "words between blanks"
    treebank = need("nltk.tokenize.destructive", extra="translate").NLTKWordTokenizer()

    def cut(line: str) -> str:
        return " ".join(treebank.tokenize(line))

    return cut, "words by nltk's Treebank rules"


def is_tokenised(lines: Sequence[str]) -> bool:
    """Whether the stops at the ends of lines stand by themselves.

    >>> is_tokenised(["a dog runs ."]), is_tokenised(["A dog runs."]), is_tokenised(["a dog"])
    (True, False, False)
    """
    ends = [line.split()[-1] for line in lines if line.strip().endswith(STOPS)]
    return bool(ends) and sum(end in STOPS for end in ends) >= APART * len(ends)


def split_compounds(line: str) -> str:
    """Hyphens inside words as words of their own.

    >>> split_compounds("a well-known U-Bahn - no")
    'a well ##AT##-##AT## known U ##AT##-##AT## Bahn - no'
    """
    return re.sub(r"(?<=\S)-(?=\S)", " ##AT##-##AT## ", line)


def has_metrics(package: str = "sacrebleu") -> bool:
    """Whether whoever counts is installed."""
    try:
        need(package, extra="translate")
    except MissingExtra:
        return False
    return True
