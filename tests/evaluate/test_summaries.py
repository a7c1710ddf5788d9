"""Is ROUGE what its authors' package counts, and what a naive count gives?"""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import pytest

from parformer.errors import ConfigError
from parformer.evaluate.summaries import leads, rouge, rouge_of, rouge_rows

WRITTEN = ["the dog runs over the hill", "a meeting on monday", "nothing", "cats and dogs"]
WANTED = ["a dog runs up the hill fast", "meeting moved to monday", "budget", "dogs and cats"]
SOURCES = ["The dog runs. Then it stops.", "Monday it is! See you there.", "no end", "dogs, cats"]


def naive(text: str, wanted: str) -> list[float]:
    """F1 of common words, common pairs of words, and of the longest common row of words."""
    one, two = (re.findall(r"[a-z0-9]+", part.lower()) for part in (text, wanted))

    def f1(common: int, first: int, second: int) -> float:
        return 200 * common / (first + second) if common else 0.0

    found = []
    for size in (1, 2):
        grams = [
            Counter(tuple(words[i : i + size]) for i in range(len(words) - size + 1))
            for words in (one, two)
        ]
        found.append(f1((grams[0] & grams[1]).total(), grams[0].total(), grams[1].total()))
    lengths = np.zeros((len(one) + 1, len(two) + 1), int)
    for i, a in enumerate(one):
        for j, b in enumerate(two):
            longer = max(lengths[i, j + 1], lengths[i + 1, j])
            lengths[i + 1, j + 1] = lengths[i, j] + 1 if a == b else longer
    return [*found, f1(int(lengths[-1, -1]), len(one), len(two))]


def test_rouge_is_what_a_naive_count_gives() -> None:
    wanted = [naive(*pair) for pair in zip(WRITTEN, WANTED, strict=True)]
    np.testing.assert_allclose(rouge_rows(WRITTEN, WANTED, stem=False), wanted, rtol=1e-12)


def test_beginnings_stand_beside() -> None:
    found = rouge(WRITTEN, WANTED, SOURCES)
    assert found.words == 3  # the middle of 7, 4, 1 and 3, cut to a whole word
    rows = rouge_rows(["The dog runs.", "Monday it is!", "no end", "dogs, cats"], WANTED)
    assert list(found.first_sentence.to_dict().values()) == pytest.approx(rows.mean(axis=0))
    rows = rouge_rows(["The dog runs.", "Monday it is!", "no end", "dogs, cats"], WANTED)
    assert list(found.first_words.to_dict().values()) == pytest.approx(rows.mean(axis=0))
    assert found.signature.startswith("rouge-score ")


def test_the_verdict_is_against_the_better_beginning() -> None:
    told = rouge(WRITTEN, WANTED, SOURCES).to_dict() | {"loss": 1.0, "kind": "translation"}
    told |= {"rougeL": 14.04, "words": 3}
    told["first_sentence"] = {"rouge1": 1.0, "rouge2": 1.0, "rougeL": 20.0}
    told["first_words"] = {"rouge1": 30.0, "rouge2": 1.0, "rougeL": 14.0}
    assert rouge_of(told).verdict == (
        "No better than copying a beginning: ROUGE-L 14.0, the first sentence of each text 20.0."
    )
    assert rouge_of(told | {"rougeL": 20.04}).verdict.startswith("No better than copying")
    told["first_sentence"] = {"rouge1": 40.0, "rouge2": 1.0, "rougeL": 9.0}
    assert rouge_of(told | {"rougeL": 16.5}).verdict == (
        "2.5 points better than copying a beginning: ROUGE-L 16.5, the first 3 words of each "
        "text 14.0."
    )


def test_leads_of_odd_texts() -> None:
    assert leads("  one two. three", 5) == ("one two.", "one two. three")
    assert leads("", 3) == ("", "")


def test_as_many_summaries_as_references() -> None:
    with pytest.raises(ConfigError, match="2 summaries for 1 references"):
        rouge_rows(["a", "b"], ["a"])
