"""How good are summaries?

By ROUGE-1, ROUGE-2 and ROUGE-L as Google's `rouge-score` computes them, beside what the beginning
of each source would get: a model that writes no better than that has not learned to summarise.

>>> leads("A dog runs. It is small.", 2)
('A dog runs.', 'A dog')
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version

import numpy as np
from numpy.typing import NDArray

from parformer.errors import ConfigError, need
from parformer.fields import field_types
from parformer.records import Record

KINDS = ("rouge1", "rouge2", "rougeL")
SENTENCE = re.compile(r"(?<=[.!?])\s+")


@dataclass(frozen=True, slots=True)
class Shares(Record):
    """F1 of ROUGE, from 0 to 100, the mean over texts."""

    rouge1: float
    rouge2: float
    rougeL: float  # noqa: N815, as everybody writes it


@dataclass(frozen=True, slots=True)
class Rouge(Record):
    """What summaries have in common with references, and what sources' beginnings have."""

    rouge1: float
    rouge2: float
    rougeL: float  # noqa: N815, as everybody writes it
    sentences: int
    """Texts."""
    signature: str
    """How it was counted."""
    first_sentence: Shares
    """What the first sentence of each source gets."""
    first_words: Shares
    """What its first words get, as many as references have in the middle."""
    words: int
    """So many."""

    @property
    def leads(self) -> dict[str, Shares]:
        """What takes no model, by name."""
        return {
            "first sentence": self.first_sentence,
            f"first {self.words} words": self.first_words,
        }

    @property
    def verdict(self) -> str:
        """Whether the summaries are better than the beginnings of what they are of."""
        name, best = max(self.leads.items(), key=lambda one: one[1].rougeL)
        apart = round(self.rougeL - best.rougeL, 1)
        beside = f"ROUGE-L {self.rougeL:.1f}, the {name} of each text {best.rougeL:.1f}"
        if apart > 0:
            return f"{apart:.1f} points better than copying a beginning: {beside}."
        return f"No better than copying a beginning: {beside}."


def rouge_rows(
    written: Sequence[str], references: Sequence[str], *, stem: bool = True
) -> NDArray[np.float64]:
    """F1 of every text, a row of three each, from 0 to 100."""
    if len(written) != len(references) or not references:
        raise ConfigError(
            f"there are {len(written):,} summaries for {len(references):,} references"
        )
    scorers = need("rouge_score.rouge_scorer", extra="translate")
    scorer = scorers.RougeScorer(list(KINDS), use_stemmer=stem)
    found = [scorer.score(wanted, text) for wanted, text in zip(references, written, strict=True)]
    return np.array([[100 * one[kind].fmeasure for kind in KINDS] for one in found])


def rouge(written: Sequence[str], references: Sequence[str], sources: Sequence[str]) -> Rouge:
    """ROUGE of summaries, and of what their sources begin with."""
    words = int(np.median([len(text.split()) for text in references]))
    both = [leads(source, words) for source in sources]
    sentence, first = (mean_of([one[n] for one in both], references) for n in (0, 1))
    own = mean_of(written, references)
    return Rouge(
        **own.to_dict(),
        sentences=len(references),
        signature=f"rouge-score {version('rouge-score')}|F1|stemmed|mean over texts",
        first_sentence=sentence,
        first_words=first,
        words=words,
    )


def rouge_of(told: Mapping[str, object]) -> Rouge:
    """The same as a score was written down, with other figures around."""
    return Rouge.from_dict({name: told[name] for name in field_types(Rouge)})


def mean_of(written: Sequence[str], references: Sequence[str]) -> Shares:
    return Shares(*rouge_rows(written, references).mean(axis=0).tolist())


def leads(source: str, words: int) -> tuple[str, str]:
    """The first sentence of a text, and its first words."""
    return SENTENCE.split(source.strip(), maxsplit=1)[0], " ".join(source.split()[:words])
