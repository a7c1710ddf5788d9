"""What do a task's authors call a score?

Each function is their definition to the last digit: what GLUE, SuperGLUE, SQuAD and RACE publish.
All are shares from 0 to 1, or correlations from -1 to 1.

>>> matthews([1, 1, 0, 0], [1, 0, 0, 0])
0.5773502691896258
>>> normal_answer("The  Cat's, hat!")
'cats hat'
"""

from __future__ import annotations

import math
import re
import string
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

BINS = 15
"""Stretches of confidence that a calibration error is taken over (Guo et al. 2017)."""

Numbers = Sequence[float] | NDArray[np.float64]
Labels = Sequence[int] | NDArray[np.int64]


def accuracy(truth: Labels, told: Labels) -> float:
    return float(np.mean(np.asarray(truth) == np.asarray(told)))


def f1(truth: Labels, told: Labels, positive: int = 1) -> float:
    """Of one class: the harmonic mean of precision and recall, 0 where nothing is right."""
    right, said = np.asarray(truth) == positive, np.asarray(told) == positive
    hits = int((right & said).sum())
    return 2 * hits / (int(right.sum()) + int(said.sum())) if hits else 0.0


def macro_f1(truth: Labels, told: Labels) -> float:
    """The mean over all classes that occur or are told."""
    known = sorted({*np.asarray(truth).tolist(), *np.asarray(told).tolist()})
    return float(np.mean([f1(truth, told, positive) for positive in known]))


def matthews(truth: Labels, told: Labels) -> float:
    """Matthews' correlation, of any number of classes; 0 where either side has a single one."""
    one, two = np.asarray(truth), np.asarray(told)
    known = np.union1d(one, two)
    table = np.array([[np.sum((one == a) & (two == b)) for b in known] for a in known], np.float64)
    true, said, total = table.sum(1), table.sum(0), table.sum()
    over = np.trace(table) * total - true @ said
    under = math.sqrt(total**2 - said @ said) * math.sqrt(total**2 - true @ true)
    return float(over / under) if under else 0.0


def pearson(truth: Numbers, told: Numbers) -> float:
    """The correlation; 0 where a side is constant."""
    one = np.asarray(truth, np.float64) - np.mean(truth)
    two = np.asarray(told, np.float64) - np.mean(told)
    under = math.sqrt(float(one @ one)) * math.sqrt(float(two @ two))
    return max(-1.0, min(1.0, float(one @ two) / under)) if under else 0.0


def spearman(truth: Numbers, told: Numbers) -> float:
    """The correlation of ranks; those that tie share the mean of their places."""
    return pearson(ranks(truth), ranks(told))


def ranks(values: Numbers) -> NDArray[np.float64]:
    """Places from 1 on in rising order.

    >>> ranks([10, 30, 10, 20]).tolist()
    [1.5, 4.0, 1.5, 3.0]
    """
    _, place_n, count_u = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    ends_u = np.cumsum(count_u)
    means_u = ends_u - (count_u - 1) / 2
    return np.asarray(means_u[place_n], np.float64)


def all_right(truth: Labels, told: Labels, groups: Sequence[str]) -> float:
    """The share of questions of which every answer is judged right (MultiRC's EM)."""
    right: dict[str, bool] = {}
    for group, wanted, said in zip(groups, truth, told, strict=True):
        right[group] = right.get(group, True) and wanted == said
    return float(np.mean(list(right.values())))


LABEL_METRICS: Mapping[str, Callable[[Labels, Labels], float]] = {
    "accuracy": accuracy,
    "f1": f1,
    "macro_f1": macro_f1,
    "matthews": matthews,
}
SCORE_METRICS: Mapping[str, Callable[[Numbers, Numbers], float]] = {
    "pearson": pearson,
    "spearman": spearman,
}


def calibration_error(sure_n: Numbers, right_n: Sequence[bool] | NDArray[np.bool_]) -> float:
    """How far the confidence of predictions is from the share that is right, on average.

    >>> calibration_error([0.9, 0.9, 0.6], [True, False, True])
    0.4
    """
    sure, right = np.asarray(sure_n, np.float64), np.asarray(right_n, np.float64)
    # the upper edge belongs to a bin, as 1.0 has to be in the last
    bin_n = np.clip(np.ceil(sure * BINS).astype(int) - 1, 0, BINS - 1)
    total = 0.0
    for one in np.unique(bin_n):
        inside = bin_n == one
        total += abs(float(sure[inside].mean()) - float(right[inside].mean())) * int(inside.sum())
    return round(total / len(sure), 12)


def normal_answer(text: str) -> str:
    """In small letters, without punctuation and articles, with single blanks (SQuAD)."""
    text = "".join(sign for sign in text.lower() if sign not in PUNCTUATION)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


PUNCTUATION = frozenset(string.punctuation)


def answer_exact(wanted: str, told: str) -> float:
    return float(normal_answer(wanted) == normal_answer(told))


def answer_f1(wanted: str, told: str, *, empty_counts: bool = False) -> float:
    """Of the words that both have; SQuAD 2.0 calls two answers without words equal."""
    one, two = normal_answer(wanted).split(), normal_answer(told).split()
    if empty_counts and not (one and two):
        return float(one == two)
    same = sum((Counter(one) & Counter(two)).values())
    if not same:
        return 0.0
    precision, recall = same / len(two), same / len(one)
    return 2 * precision * recall / (precision + recall)


def squad(
    answers: Sequence[Sequence[str]], told: Sequence[str], *, nulls: bool = False
) -> dict[str, float]:
    """Exact match and F1, each against the best of a question's answers.

    With `nulls` as SQuAD 2.0 has it: a question without an answer wants the empty one.
    """
    exact, common = [], []
    for wanted, said in zip(answers, told, strict=True):
        if nulls:
            wanted = [one for one in wanted if normal_answer(one)] or [""]
        exact.append(max(answer_exact(one, said) for one in wanted))
        common.append(max(answer_f1(one, said, empty_counts=nulls) for one in wanted))
    return {"f1": float(np.mean(common)), "exact": float(np.mean(exact))}


def best_threshold(
    answers: Sequence[Sequence[str]], told: Sequence[str], nulls_n: Sequence[float]
) -> tuple[float, float]:
    """SQuAD 2.0's best F1, and how sure of there being no answer one has to be for it.

    `nulls_n` tells how much likelier no answer is than the one that was told.
    """
    wanted = [[one for one in some if normal_answer(one)] for some in answers]
    current = float(sum(not some for some in wanted))
    best, threshold = current, 0.0
    for n in np.argsort(np.asarray(nulls_n), kind="stable").tolist():
        if wanted[n]:
            current += max(answer_f1(one, told[n], empty_counts=True) for one in wanted[n])
        elif told[n]:
            current -= 1
        if current > best:
            best, threshold = current, float(nulls_n[n])
    return best / len(told), threshold


def record(
    groups: Sequence[str],
    entities: Sequence[str],
    answers: Sequence[Sequence[str]],
    sure_n: Numbers,
) -> dict[str, float]:
    """ReCoRD's F1 and exact match: of every question the likeliest entity is the answer."""
    places: dict[str, list[int]] = defaultdict(list)
    for place, group in enumerate(groups):
        places[group].append(place)
    chosen = [max(some, key=lambda n: float(sure_n[n])) for some in places.values()]
    return squad([answers[n] for n in chosen], [entities[n] for n in chosen])
