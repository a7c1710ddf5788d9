"""Does `parformer evaluate` read the right text with the right lengths?"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import parformer.train.run
from parformer.cli import main
from parformer.data.characters import Bytes
from parformer.evaluate.perplexity import evaluate
from parformer.model import build, load
from parformer.recipe import DataConfig, Recipe
from parformer.train.run import Opened
from tests.conftest import lively, small_config

TEXT = "".join(f"line {i} of a text für alle\n" for i in range(120))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model folder beside text.txt, and a cache that goes with them."""
    monkeypatch.setenv("PARFORMER_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text(TEXT, "utf-8")
    config = small_config("transformer-xl", vocab_size=256, mem_len=8, tgt_len=16)
    lively(build(config)).save(tmp_path / "model", Bytes().to_json())
    return tmp_path / "model"


def answer(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    assert main(["evaluate", *map(str, arguments), "--device", "cpu", "--json"]) == 0
    value: dict[str, Any] = json.loads(capsys.readouterr().out)
    return value


def refusal(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main(["evaluate", *map(str, arguments), "--device", "cpu"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_the_score_is_that_of_the_split(folder: Path, capsys: Any) -> None:
    found = answer(capsys, folder, "--corpus", "text.txt")
    tokens = np.frombuffer(TEXT.encode()[-found["tokens"] - 1 :], np.uint8)
    expected = evaluate(load(folder), tokens)
    assert found["loss"] == pytest.approx(expected.loss, rel=1e-9)
    assert found["bits_per_character"] == pytest.approx(expected.loss / math.log(2), rel=1e-9)
    assert (found["split"], found["corpus"]) == ("test", "text.txt")
    assert (found["tgt_len"], found["mem_len"], found["same_length"]) == (16, 8, False)
    assert found["word_perplexity"] is None  # words are for tokens that make them up


def test_lengths_split_and_limit_are_heeded(folder: Path, capsys: Any) -> None:
    options = ("--tgt-len", 4, "--mem-len", 24, "--clamp-len", 5, "--same-length", "--tokens", 90)
    found = answer(capsys, folder, "--corpus", "text.txt", "--split", "train", *options)
    model = load(folder, mem_len=24, clamp_len=5, same_length=True)
    expected = evaluate(model, np.frombuffer(TEXT.encode()[:90], np.uint8), tgt_len=4)
    assert found["loss"] == pytest.approx(expected.loss, rel=1e-9)
    assert (found["tokens"], found["tgt_len"], found["mem_len"]) == (89, 4, 24)
    assert (found["clamp_len"], found["same_length"]) == (5, True)


def test_people_see_the_same(folder: Path, capsys: Any) -> None:
    found = answer(capsys, folder, "--corpus", "text.txt")
    assert main(["evaluate", str(folder), "--corpus", "text.txt"]) == 0
    shown = capsys.readouterr().out
    for part in ("test of text.txt", f"{found['tokens']:,} tokens", f"{found['loss']:.4f} nats"):
        assert part in shown
    assert f"{found['bits_per_character']:.4f}" in shown
    assert "bits per byte" in shown


@pytest.fixture
def a_run(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> dict[str, Any]:
    """Lets any run be one on text.txt, with the identity that this holds."""
    known = {"identity": answer(capsys, folder, "--corpus", "text.txt")["identity"]}
    recipe = Recipe(model=load(folder).config, data=DataConfig(corpus="text.txt"))

    def open_run(path: Path) -> Opened:
        return Opened(folder, recipe, known["identity"], Bytes())

    monkeypatch.setattr(parformer.train.run, "open_run", open_run)
    return known


def test_a_run_is_tried_on_its_own_text(a_run: dict[str, Any], capsys: Any) -> None:
    assert answer(capsys, "run")["corpus"] == "text.txt"


def test_a_text_that_changed_is_refused_unless_it_is_named(
    a_run: dict[str, Any], capsys: Any
) -> None:
    a_run["identity"] = "0" * 64
    line = refusal(capsys, "run")
    assert "'text.txt' is not the text of this run any more" in line
    assert "--corpus text.txt" in line
    assert answer(capsys, "run", "--corpus", "text.txt")["tokens"] > 9


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "belongs to no run; name a text with --corpus"),
        (("--corpus", "text.txt", "--split", "nix"), "no split 'nix'; it has train, valid, test"),
        (("--corpus", "text.txt", "--batch", "0"), "batch must be at least 1"),
        (("--corpus", "text.txt", "--tokens", "1"), "tokens must be at least 2"),
        (("--corpus", "text.txt", "--tokens", "0"), "tokens must be at least 2"),
        (("--corpus", "text.txt", "--mem-len", "-1"), "mem_len must be at least 0"),
        (("--corpus", "text.txt", "--device", "warp"), "cannot use the device 'warp'"),
        (("--corpus", "text.txt", "--max-len", "9"), "--max-len is for models that translate"),
        (("--corpus", "text.txt", "--min-len", "9", "--max-len", "3"), "min_len 9 exceeds max_len"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_line(
    folder: Path, options: tuple[str, ...], words: str, capsys: Any
) -> None:
    assert main(["evaluate", str(folder), *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line


def test_a_folder_without_a_tokenizer_reads_no_text(folder: Path, capsys: Any) -> None:
    load(folder).save("bare")
    assert "has no tokenizer.json" in refusal(capsys, "bare", "--corpus", "text.txt")


def test_a_window_is_no_memory_to_set(folder: Path, capsys: Any) -> None:
    config = small_config("gpt2", vocab_size=256)
    build(config).save("gpt2", Bytes().to_json())
    line = refusal(capsys, "gpt2", "--corpus", "text.txt", "--mem-len", 9)
    assert "--mem-len 9 means nothing to learned positions" in line
