"""Are scores what the tasks' authors, scikit-learn and scipy call them?"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from sklearn import metrics

from parformer.evaluate import official

labels = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=2, max_size=40)
halves = st.lists(st.tuples(st.integers(-4, 4), st.integers(-4, 4)), min_size=3, max_size=40)


@pytest.mark.filterwarnings("ignore:A single label was found")
@given(labels)
def test_labels_are_scored_as_scikit_learn_does(pairs: list[tuple[int, int]]) -> None:
    truth, told = map(list, zip(*pairs, strict=True))
    close = pytest.approx
    assert official.accuracy(truth, told) == close(metrics.accuracy_score(truth, told))
    assert official.matthews(truth, told) == close(
        metrics.matthews_corrcoef(truth, told), abs=1e-12
    )
    macro = metrics.f1_score(truth, told, average="macro", zero_division=0)
    assert official.macro_f1(truth, told) == close(macro)
    one, two = [int(x == 1) for x in truth], [int(x == 1) for x in told]
    assert official.f1(truth, told) == close(metrics.f1_score(one, two, zero_division=0))


@given(halves)
def test_scores_are_correlated_as_scipy_does_with_ties(pairs: list[tuple[int, int]]) -> None:
    one, two = (np.array(side) / 2 for side in zip(*pairs, strict=True))
    if len(set(one)) == 1 or len(set(two)) == 1:
        assert official.pearson(one, two) == official.spearman(one, two) == 0.0
        return
    assert official.pearson(one, two) == pytest.approx(stats.pearsonr(one, two)[0], abs=1e-12)
    assert official.spearman(one, two) == pytest.approx(stats.spearmanr(one, two)[0], abs=1e-12)
    assert official.ranks(one).tolist() == stats.rankdata(one).tolist()


def test_multirc_wants_all_answers_of_a_question() -> None:
    groups = ["a", "a", "b", "b", "c"]
    truth, told = [1, 0, 1, 1, 0], [1, 0, 1, 0, 0]
    assert official.all_right(truth, told, groups) == pytest.approx(2 / 3)
    assert official.f1(truth, told) == pytest.approx(2 * 2 / (3 + 2))


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The cat's hat.", "cats hat"),
        ("an  Apple\ta day", "apple day"),
        ("Theatre, another", "theatre another"),
        ("$1,000 – ten", "1000 – ten"),
        ("the", ""),
    ],
)
def test_answers_are_normalised_as_squad_does(text: str, normal: str) -> None:
    assert official.normal_answer(text) == normal


def test_squad_takes_the_best_of_all_answers() -> None:
    answers = [["Denver Broncos", "The Denver Broncos!"], ["Santa Clara, California"], ["1"]]
    told = ["denver broncos", "in Santa Clara", "2"]
    found = official.squad(answers, told)
    assert found["exact"] == pytest.approx(1 / 3)
    # "santa clara" of "santa clara california" and "in santa clara": 2 of 3, 2 of 3
    assert found["f1"] == pytest.approx((1 + 2 / 3 + 0) / 3)
    assert official.squad([["the"]], ["a"])["f1"] == 0.0  # no word in common: version 1.1


def test_squad_2_counts_questions_without_an_answer() -> None:
    answers: list[list[str]] = [["Paris"], [], ["the", "Rome"]]
    assert official.squad(answers, ["", "", "rome"], nulls=True) == {
        "f1": pytest.approx(2 / 3),
        "exact": pytest.approx(2 / 3),
    }
    assert official.squad([["the"]], [""], nulls=True)["f1"] == 1.0


def test_the_best_threshold_is_the_best_of_all() -> None:
    rng = np.random.default_rng(0)
    answers = [["x b c"] if rng.random() < 0.8 else [] for _ in range(40)]
    told = [str(rng.choice(["x b c", "x b", "x"])) for _ in range(40)]
    nulls = rng.normal(size=40).tolist()
    found, threshold = official.best_threshold(answers, told, nulls)
    every = {
        at: official.squad(
            answers, ["" if n > at else t for t, n in zip(told, nulls, strict=True)], nulls=True
        )["f1"]
        for at in [min(nulls) - 1, *nulls]
    }
    assert found == pytest.approx(max(every.values()))
    assert every[threshold] == pytest.approx(found)


def test_record_takes_the_likeliest_entity_of_a_question() -> None:
    groups, entities = ["q", "q", "r", "r"], ["Ann", "Bob Lee", "Ann", "Cy"]
    answers = [["Lee"], ["Lee"], ["Ann", "Anna"], ["Ann", "Anna"]]
    found = official.record(groups, entities, answers, [0.2, 0.7, 0.9, 0.1])
    assert found == {"f1": pytest.approx((2 / 3 + 1) / 2), "exact": 0.5}


def test_calibration_is_the_gap_between_confidence_and_truth() -> None:
    assert official.calibration_error([1.0, 1.0], [True, True]) == 0.0
    assert official.calibration_error([1.0, 1.0], [True, False]) == 0.5
    sure, right = [0.95, 0.95, 0.55, 0.55], [True, True, True, False]
    assert official.calibration_error(sure, right) == pytest.approx(0.05)
