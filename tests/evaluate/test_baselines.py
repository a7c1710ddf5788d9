"""Is counting words what scikit-learn makes of the same words?"""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import Ridge as TheirRidge
from sklearn.naive_bayes import MultinomialNB

from parformer.data.labelled import Feature
from parformer.evaluate.baselines import (
    AROUND,
    RIDGE,
    Bag,
    Bayes,
    Nearby,
    Ridge,
    bag_of,
    buckets_for,
)


def bags(count: int, buckets: int, seed: int) -> list[Bag]:
    rng = np.random.default_rng(seed)
    return [np.unique(rng.integers(buckets, size=rng.integers(1, 9))) for _ in range(count)]


def table(some: list[Bag], buckets: int) -> np.ndarray:
    found = np.zeros((len(some), buckets))
    for row, bag in zip(found, some, strict=True):
        row[bag] = 1
    return found


def test_naive_bayes_is_scikit_learns() -> None:
    train, here = bags(60, 30, 0), bags(20, 30, 1)
    labels = [n % 3 for n in range(60)]
    ours = Bayes(train, labels, 30)
    theirs = MultinomialNB().fit(table(train, 30), labels)
    logs = ours.tell(here)
    logs -= np.logaddexp.reduce(logs, axis=1, keepdims=True)
    np.testing.assert_allclose(logs, theirs.predict_log_proba(table(here, 30)), atol=1e-9)


def test_ridge_is_scikit_learns() -> None:
    train, here = bags(80, 20, 2), bags(9, 20, 3)
    scores = np.random.default_rng(4).normal(3.0, 1.0, 80).tolist()
    ours = Ridge(train, scores, 20)
    theirs = TheirRidge(alpha=RIDGE, fit_intercept=False, tol=1e-12)
    theirs.fit(table(train, 20), np.array(scores) - np.mean(scores))
    expected = theirs.predict(table(here, 20)) + np.mean(scores)
    np.testing.assert_allclose(ours.tell(here), expected, atol=1e-6)


def test_a_bag_has_no_marks_and_knows_its_sides() -> None:
    def one(first: list[int], second: list[int]) -> set[int]:
        row = [1, *first, 2, *second, *([2] if second else [])]
        return set(bag_of(Feature(((row, len(first) + 2),), (0, 0), 0), 2**18).tolist())

    assert len(one([5, 6], [])) == 3  # two tokens and their pair
    assert one([5, 6], []) != one([6, 5], [])
    assert len(one([5], [5])) == 3  # on this side, on that, on both
    assert one([5], [6]) != one([6], [5])
    assert len(one([5], [6])) == 2


def test_answers_are_looked_for_among_the_words_of_their_question() -> None:
    rng = np.random.default_rng(0)
    passages = [rng.integers(0, 30, size) for size in (40, 25, 3, 1)]
    counted = Nearby(passages, length=2)
    flat = np.concatenate(passages).tolist()
    for passage in passages:
        question = rng.integers(0, 40, 6)
        weight = [
            np.log1p(len(flat) / flat.count(token)) if token in question else 0.0
            for token in passage.tolist()
        ]
        scores = []
        for start in range(max(1, len(passage) - 1)):
            end = min(start + 2, len(passage))
            left, right = weight[max(0, start - AROUND) : start][::-1], weight[end : end + AROUND]
            beside = [w * (1 - n / AROUND) for side in (left, right) for n, w in enumerate(side)]
            scores.append(sum(beside) - sum(weight[start:end]))
        assert scores[counted.tell(passage, question)] == pytest.approx(max(scores))
    assert 0 <= counted.tell(np.array([99, 98, 99]), np.array([99])) < 3  # never seen


@pytest.mark.parametrize(("classes", "buckets"), [(2, 2**18), (100, 2**16), (10**6, 2**10)])
def test_many_classes_get_fewer_buckets(classes: int, buckets: int) -> None:
    assert buckets_for(classes) == buckets
