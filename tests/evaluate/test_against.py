"""Does a paired test call chance chance, and a difference a difference?"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from parformer.cli import main
from parformer.errors import ConfigError
from parformer.evaluate import against
from parformer.evaluate.against import compare_summaries, compare_translations, compared, paired
from parformer.evaluate.translation import Texts, TranslationScore
from parformer.recipe import read_recipe
from parformer.train.job import train_model

WORDS = ["a", "dog", "runs", "over", "the", "small", "green", "hill", "and", "sleeps"]


def texts(seed: int, errors: float, count: int = 25) -> Texts:
    """Sentences, some words of which are wrong."""
    rng, own = np.random.default_rng(7), np.random.default_rng(seed)
    wanted = [" ".join(rng.choice(WORDS, size=8)) for _ in range(count)]
    written = [
        " ".join(word if own.random() > errors else "cat" for word in line.split())
        for line in wanted
    ]
    return Texts(tuple(wanted), tuple(wanted), tuple(written))


def test_bleu_is_compared_as_by_drawing_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every draw is scored anew from the sentences themselves; sacreBLEU adds up counts."""
    import sacrebleu

    monkeypatch.setattr(against, "RESAMPLES", 60)
    one, two = texts(1, 0.30), texts(2, 0.22)
    found = {d.measure: d for d in compare_translations(one, two)}
    rng = np.random.default_rng(12345)
    draws = rng.choice(25, size=(60, 25), replace=True)
    for measure, score in (("BLEU", sacrebleu.corpus_bleu), ("chrF", sacrebleu.corpus_chrf)):

        def of(given: Texts, rows: np.ndarray, score: object = score) -> float:
            wanted = [[given.references[n] for n in rows]]
            return float(score([given.written[n] for n in rows], wanted).score)  # type: ignore[operator]

        every = np.arange(25)
        assert found[measure].first == pytest.approx(of(one, every))
        assert found[measure].second == pytest.approx(of(two, every))
        apart = np.array([abs(of(two, rows) - of(one, rows)) for rows in draws])
        real = abs(found[measure].difference)
        p = (np.sum(apart - apart.mean() > real) + 1) / 61
        assert found[measure].p == pytest.approx(p)


def test_the_interval_is_scipys() -> None:
    rng = np.random.default_rng(3)
    one = rng.normal(2.0, 1.0, 400)
    two = one + rng.normal(0.05, 0.3, 400)
    found = paired(one, two, "loss", lower_is_better=True)
    drawn = stats.bootstrap((two - one,), np.mean, n_resamples=4000, method="percentile")
    low, high = drawn.confidence_interval
    assert found.low == pytest.approx(low, abs=0.006)
    assert found.high == pytest.approx(high, abs=0.006)
    assert found.p == pytest.approx(stats.ttest_rel(two, one).pvalue, abs=0.01)
    assert found.verdict == "worse"
    assert paired(one, one).verdict == "cannot be told apart"
    assert paired(one, one).p == 1.0


def test_chance_is_seldom_called_a_difference() -> None:
    rng = np.random.default_rng(5)
    pairs = [rng.normal(size=(2, 60)) for _ in range(60)]
    assert sum(paired(*both).verdict != "cannot be told apart" for both in pairs) <= 8


def test_summaries_are_compared_text_by_text() -> None:
    found = compare_summaries(texts(1, 0.5), texts(2, 0.1))
    assert [one.measure for one in found] == ["ROUGE-1", "ROUGE-2", "ROUGE-L"]
    assert {one.verdict for one in found} == {"better"}


def test_other_references_are_refused() -> None:
    one, two = texts(1, 0.1), texts(1, 0.1, count=24)
    with pytest.raises(ConfigError, match="other references \\(25 and 24, 0 that differ\\)"):
        compare_translations(one, two)
    score = TranslationScore(1.0, 2, None, one)
    with pytest.raises(ConfigError, match="another text or other tokens"):
        compared("b", score, object(), None)
    with pytest.raises(ConfigError, match="only two translators"):
        compared("b", score, object(), (None, None))


def test_two_runs_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small: dict[str, object] = {
        "model.pattern": "sf", "model.d_model": 16, "model.d_inner": 16, "model.tgt_len": 32,
        "model.mem_len": 32, "data.corpus": "python-docs", "train.batch": 4,
        "train.precision": "fp32", "train.kernels": "plain", "train.compile": "off",
        "train.evaluate_tokens": 128, "train.final_tokens": 128,
    }  # fmt: skip
    for name, steps in (("a", 1), ("b", 15)):
        train_model(read_recipe("pocket", {**small, "train.steps": steps}), tmp_path / name)
    capsys.readouterr()
    names = [str(tmp_path / name) for name in ("a", "b")]
    assert main(["evaluate", *names, "--tokens", "5000", "--no-beside"]) == 0
    told = capsys.readouterr().out
    assert "better" in told
    assert "on the same 10 stretches" in told
    assert main(["evaluate", *names, "--tokens", "5000", "--no-beside", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["against"]["differences"][0]
    assert found["measure"] == "loss"
    assert found["second"] < found["first"]
    assert found["p"] < 0.05
