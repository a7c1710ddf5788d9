"""Is one model better than another, or was it the choice of sentences?

Both answer the same questions, and the questions are drawn anew a thousand times: how often does
the difference between the two turn out as large by chance alone? For translations that is
sacreBLEU's paired bootstrap (Koehn 2004); for summaries and for losses of stretches of a text the
same is done with the mean of paired differences.

>>> found = paired([1.0, 2.0, 3.0, 4.0] * 9, [1.5, 2.5, 3.4, 4.6] * 9)
>>> round(found.difference, 3), 0.46 < found.low < 0.5 < found.high < 0.54, found.p < 0.01
(0.5, True, True)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from parformer.errors import ConfigError, need
from parformer.evaluate.summaries import KINDS, Rouge, rouge_rows
from parformer.evaluate.translation import Texts, TranslationScore
from parformer.records import Record

Losses = tuple[NDArray[np.float64] | None, NDArray[np.float64] | None]
"""Of every stretch of a text, in nats per token, by either model."""

RESAMPLES = 1000
SEED = 12345
"""sacreBLEU's own numbers."""
SURE = 0.05
"""Differences that chance makes more seldom than this are called one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference(Record):
    """One measure of two models on the same questions."""

    measure: str
    first: float
    second: float
    p: float
    """How often chance alone makes a difference as large."""
    lower_is_better: bool = False
    low: float | None = None
    high: float | None = None
    """The 95% interval of the difference, where it is a mean of differences."""

    @property
    def difference(self) -> float:
        return self.second - self.first

    @property
    def verdict(self) -> str:
        """Of the second model."""
        if self.p >= SURE or not self.difference:
            return "cannot be told apart"
        return "better" if (self.difference > 0) != self.lower_is_better else "worse"


@dataclass(frozen=True, kw_only=True, slots=True)
class Against(Record):
    """How a second model compares with the first."""

    model: str
    count: int
    unit: str
    """What was drawn: so many sentences, or stretches of a text."""
    differences: tuple[Difference, ...]


def paired(
    first: ArrayLike, second: ArrayLike, measure: str = "", *, lower_is_better: bool = False
) -> Difference:
    """The mean of paired differences, and how sure it is, by drawing pairs anew."""
    first_n, second_n = np.asarray(first, np.float64), np.asarray(second, np.float64)
    apart_n = second_n - first_n
    rng = np.random.default_rng(SEED)
    means = [
        apart_n[rng.integers(len(apart_n), size=len(apart_n))].mean() for _ in range(RESAMPLES)
    ]
    found = float(apart_n.mean())
    low, high = np.percentile(means, [2.5, 97.5])
    by_chance = np.abs(np.array(means) - found) >= abs(found)
    return Difference(
        measure=measure,
        first=float(first_n.mean()),
        second=float(second_n.mean()),
        p=(int(by_chance.sum()) + 1) / (RESAMPLES + 1),
        lower_is_better=lower_is_better,
        low=float(low),
        high=float(high),
    )


def compared(name: str, first: object, second: object, losses: Losses | None) -> Against:
    """What two scores are worth beside each other; `losses` are those of the same tokens."""
    if isinstance(first, TranslationScore) and isinstance(second, TranslationScore):
        assert first.texts is not None
        assert second.texts is not None
        compare = compare_summaries if isinstance(first.overlap, Rouge) else compare_translations
        told = compare(first.texts, second.texts)
        return Against(
            model=name, count=len(first.texts.references), unit="sentences", differences=told
        )
    if losses is None:
        raise ConfigError(
            f"{name!r} reads another text or other tokens, so its loss per token means something "
            "else; compare models of one text and one tokenizer"
        )
    if losses[0] is None or losses[1] is None:
        raise ConfigError(
            f"{name!r} cannot be compared: only two translators, two summarisers or two language "
            "models can"
        )
    told = (paired(losses[0], losses[1], "loss", lower_is_better=True),)
    return Against(model=name, count=len(losses[0]), unit="stretches", differences=told)


def compare_translations(first: Texts, second: Texts) -> tuple[Difference, ...]:
    """BLEU and chrF by sacreBLEU's paired bootstrap."""
    same_questions(first.references, second.references)
    metrics = need("sacrebleu.metrics", extra="translate")
    significance = need("sacrebleu.significance", extra="translate")
    test = significance.PairedTest(
        [("first", list(first.written)), ("second", list(second.written))],
        {"BLEU": metrics.BLEU(), "chrF": metrics.CHRF()},
        [list(first.references)],
        test_type="bs",
        n_samples=RESAMPLES,
    )
    _, found = test()
    return tuple(
        Difference(
            measure={"chrF2": "chrF"}.get(name, name),
            first=float(one.score),
            second=float(two.score),
            p=float(two.p_value),
        )
        for name, (one, two) in found.items()
        if name != "System"
    )


def compare_summaries(first: Texts, second: Texts) -> tuple[Difference, ...]:
    """ROUGE of every text."""
    same_questions(first.references, second.references)
    rows = [rouge_rows(texts.written, texts.references) for texts in (first, second)]
    return tuple(
        paired(rows[0][:, n], rows[1][:, n], kind.replace("rouge", "ROUGE-"))
        for n, kind in enumerate(KINDS)
    )


def same_questions(first: Sequence[str], second: Sequence[str]) -> None:
    if first != second:
        count = sum(one != two for one, two in zip(first, second, strict=False))
        raise ConfigError(
            f"the two runs have other references ({len(first):,} and {len(second):,}, {count:,} "
            "that differ); name one test set for both with --corpus, and train both with the same "
            "data.lower"
        )
