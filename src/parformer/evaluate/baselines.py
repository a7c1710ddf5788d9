"""What does whoever counts words reach on labelled texts?

Two answers beside every score: always the most frequent class (or the mean), and a linear model
of bags of n-grams, single tokens and pairs: naive Bayes for classes, ridge regression for scores.
Of two texts the tokens that both have are counted as well. Where an answer stands in a passage is
told by the words of its question around it.

>>> bags = [np.array([1, 2]), np.array([2, 3]), np.array([4, 5])]
>>> Bayes(bags, [0, 0, 1]).tell([np.array([2]), np.array([5])]).argmax(1).tolist()
[0, 1]
"""

# n examples, c classes, w buckets of words

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from parformer.data.labelled import Feature

Bag = NDArray[np.int64]
"""The buckets of an example's n-grams, each once."""

BUCKETS = 2**18
MOST = 2**23
"""Numbers of a table of classes and buckets, at most."""
MIX = np.uint64(0x9E3779B97F4A7C15)
RIDGE, TURNS = 10.0, 30
AROUND = 10
"""Tokens on either side of a stretch that are looked at for words of a question."""


def buckets_for(classes: int) -> int:
    """How many buckets a table for so many classes can have."""
    most: int = 1 << (MOST // max(1, classes)).bit_length() >> 1
    return max(2**10, min(BUCKETS, most))


def bag_of(feature: Feature, buckets: int, row: int = 0) -> Bag:
    """The n-grams of an example, or of one of its choices, without the marks around texts."""
    tokens, first = feature.rows[row]
    line = np.asarray(tokens, np.int64)
    one, two = line[1 : first - 1], line[first:-1]
    parts = [grams(one, 1)]
    if len(two):
        parts += [grams(two, 2), hashed(np.intersect1d(one, two), 3)]
    return np.unique(np.concatenate(parts) % np.uint64(buckets)).astype(np.int64)


def grams(line: NDArray[np.int64], salt: int) -> NDArray[np.uint64]:
    """Single tokens and pairs."""
    pairs = line[:-1] * np.int64(1_000_003) + line[1:] + np.int64(2**40)
    return hashed(np.concatenate((line, pairs)), salt)


def hashed(values: NDArray[np.int64], salt: int) -> NDArray[np.uint64]:
    return ((values.astype(np.uint64) + np.uint64(salt * 2**50)) * MIX) >> np.uint64(40)


class Bayes:
    """Naive Bayes with every n-gram counted once in a text (multinomial, smoothed by 1)."""

    def __init__(
        self, bags: Sequence[Bag], labels: Sequence[int], buckets: int = 2**10, classes: int = 0
    ) -> None:
        count = max(classes, max(labels) + 1)
        self.seen_cw = np.zeros((count, buckets))
        for bag, label in zip(bags, labels, strict=True):
            self.seen_cw[label, bag] += 1
        known = int((self.seen_cw.sum(0) > 0).sum())
        self.known_w = self.seen_cw.sum(0) > 0
        self.log_cw = np.log(self.seen_cw + 1) - np.log(self.seen_cw.sum(1, keepdims=True) + known)
        share_c = np.bincount(np.asarray(labels), minlength=count) / len(labels)
        self.prior_c = np.log(np.maximum(share_c, 1e-12))

    def tell(self, bags: Sequence[Bag]) -> NDArray[np.float64]:
        """Log-probabilities of the classes, up to a constant of each text."""
        told = [self.log_cw[:, bag[self.known_w[bag]]].sum(1) + self.prior_c for bag in bags]
        return np.stack(told)


class Ridge:
    """Linear regression on n-grams, drawn towards the mean."""

    def __init__(
        self, bags: Sequence[Bag], scores: Sequence[float], buckets: int = BUCKETS
    ) -> None:
        self.mean = float(np.mean(scores))
        target_n = np.asarray(scores, np.float64) - self.mean
        flat, counts = np.concatenate(bags), np.array([len(bag) for bag in bags])
        row_of = np.repeat(np.arange(len(bags)), counts)

        def down(values_n: NDArray[np.float64]) -> NDArray[np.float64]:
            return np.asarray(np.bincount(flat, values_n[row_of], buckets), np.float64)

        def both(weights_w: NDArray[np.float64]) -> NDArray[np.float64]:
            up_n = np.asarray(np.bincount(row_of, weights_w[flat], len(bags)), np.float64)
            return down(up_n) + RIDGE * weights_w

        self.weights_w = conjugate_gradients(both, down(target_n), TURNS)

    def tell(self, bags: Sequence[Bag]) -> NDArray[np.float64]:
        return np.array([self.mean + self.weights_w[bag].sum() for bag in bags])


def conjugate_gradients(
    both: Callable[[NDArray[np.float64]], NDArray[np.float64]],
    right_w: NDArray[np.float64],
    turns: int,
) -> NDArray[np.float64]:
    """Weights whose image under a positive map is nearly `right_w`."""
    found_w, left_w = np.zeros_like(right_w), right_w.copy()
    way_w, size = left_w.copy(), float(left_w @ left_w)
    for _ in range(turns):
        if size < 1e-12:
            break
        image_w = both(way_w)
        step = size / float(way_w @ image_w)
        found_w += step * way_w
        left_w -= step * image_w
        size, before = float(left_w @ left_w), size
        way_w = left_w + (size / before) * way_w
    return found_w


class Nearby:
    """The stretch of a passage with most words of a question beside it, and least inside.

    A sliding window with distances, as SQuAD's authors published beside theirs: words count less
    the farther away they are, and more the rarer they are in the passages that are given.

    >>> Nearby([np.array([1, 2, 3, 4, 1, 5])], length=1).tell(np.array([1, 2, 3, 4]), np.array([4]))
    2
    """

    def __init__(self, passages: Sequence[NDArray[np.int64]], length: int) -> None:
        count_v = np.bincount(np.concatenate(passages))
        self.weight_v = np.log1p(count_v.sum() / np.maximum(count_v, 1))
        self.length = length

    def tell(self, passage_t: NDArray[np.int64], question: NDArray[np.int64]) -> int:
        """The place of its first token."""
        known_t = np.minimum(passage_t, len(self.weight_v) - 1)
        weight_t = np.where(np.isin(passage_t, question), self.weight_v[known_t], 0.0)
        start = np.arange(max(1, len(passage_t) - self.length + 1))
        end = np.minimum(start + self.length, len(passage_t))
        before = np.concatenate(([0.0], np.cumsum(weight_t)))
        inside = before[end] - before[start]
        return int(
            (left_of(weight_t)[start] + left_of(weight_t[::-1])[::-1][end] - inside).argmax()
        )


def left_of(weight_t: NDArray[np.float64]) -> NDArray[np.float64]:
    """What stands before each place, and before the end, the nearer the more.

    >>> left_of(np.array([1.0, 0.0, 0.0])).tolist()
    [0.0, 1.0, 0.9, 0.8]
    """
    near = 1 - np.arange(AROUND) / AROUND
    return np.concatenate(([0.0], np.convolve(weight_t, near)[: len(weight_t)]))
