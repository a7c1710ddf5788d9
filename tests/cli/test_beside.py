"""Does every score come with what plain counting reaches on the same tokens?"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parformer.cli import main
from parformer.cli.beside import in_a_line, verdict
from parformer.data.splits import cut_points
from parformer.evaluate.counting import References, references
from tests.fitting.office import write_text

SMALL = [
    *("--set", "model.d_model=16", "--set", "model.d_inner=16", "--set", "model.n_head=2"),
    *("--pattern", "sf", "--steps", "3", "--set", "train.batch=2", "--set", "train.tgt_len=16"),
    *("--set", "model.tgt_len=16", "--set", "model.mem_len=16", "--set", "train.precision=fp32"),
]
KNOWN = References(
    uniform=5.0, unigram=3.0, bigram=2.0, ngram=1.0, order=6, orders=(3.0,), xz=None,
    tokens=9, counted=99,
)  # fmt: skip


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Path:
    monkeypatch.chdir(tmp_path)
    write_text(tmp_path / "words.txt")
    assert main(["train", "pocket", "--corpus", "words.txt", "--run", "first", *SMALL]) == 0
    out = capsys.readouterr().out
    assert out.count("counting: uniform 8.000, letter frequencies ") == 2  # valid and test
    assert "It learned less than counting pairs gives" in out
    return tmp_path / "first"


def test_training_without_it_counts_nothing(tmp_path: Path, capsys: Any) -> None:
    text = write_text(tmp_path / "words.txt")
    words = ["train", "pocket", "--corpus", str(text), "--run", str(tmp_path / "run")]
    assert main([*words, *SMALL, "--no-beside"]) == 0
    assert "counting" not in capsys.readouterr().out


def test_evaluation_counts_the_very_text_it_scores(run: Path, capsys: Any) -> None:
    assert main(["evaluate", str(run), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    text = (run.parent / "words.txt").read_bytes()
    valid, test = cut_points(len(text), lambda start, stop: text[start:stop])
    train, held_out = (np.frombuffer(part, np.uint8) for part in (text[:valid], text[test:]))
    want = references(train, {"test": held_out}, vocab_size=256)["test"]
    for name in ("uniform", "unigram", "bigram", "orders"):
        assert told["beside"][name] == pytest.approx(getattr(want, name))
    assert told["beside"]["tokens"] == told["tokens"]


def test_only_held_out_text_is_counted_beside(run: Path, capsys: Any) -> None:
    assert main(["evaluate", str(run), "--split", "train", "--tokens", "64", "--json"]) == 0
    assert "beside" not in json.loads(capsys.readouterr().out)
    assert main(["evaluate", str(run), "--no-beside", "--json"]) == 0
    assert "beside" not in json.loads(capsys.readouterr().out)
    assert main(["evaluate", str(run)]) == 0
    assert "counting: uniform 8.000" in capsys.readouterr().out


def test_units() -> None:
    bits = in_a_line(KNOWN, "bits", 2.0)
    assert bits.startswith(f"counting: uniform {2.5 / math.log(2):.3f}, letter frequencies ")
    assert bits.endswith(f"6-gram {0.5 / math.log(2):.3f} bits")
    words = in_a_line(KNOWN, "perplexity", 1.0)
    assert words == (
        "counting: uniform 148.4, token frequencies 20.09, bigram 7.389, 6-gram 2.718 perplexity"
    )


def test_what_a_score_is_worth() -> None:
    assert "less than counting pairs" in verdict(2.0, KNOWN)
    assert verdict(1.1, KNOWN) == "A counted 6-gram is still 10.0% better."
    assert verdict(0.9, KNOWN) == "It is 10.0% better than a counted 6-gram."
