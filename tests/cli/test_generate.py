"""Does `parformer generate` write on, and show it as it comes?"""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from parformer.cli import main
from parformer.data.characters import Bytes
from parformer.generate import Sampling, generate_text
from parformer.model import build, load
from tests.conftest import lively, small_config


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "model"
    model = lively(build(small_config("llama", vocab_size=256)))
    model.save(path, Bytes().to_json())
    return path


def run(folder: Path, *arguments: object) -> int:
    return main(["generate", str(folder), *map(str, arguments), "--device", "cpu"])


def test_texts_are_those_of_the_model(folder: Path, capsys: Any) -> None:
    options = ("--tokens", 12, "--temperature", 0.7, "--top-k", 50, "--top-p", 0.9)
    more = ("--repetition-penalty", 1.2, "--seed", 3, "--stop", "zz", "--json")
    assert run(folder, "--prompt", "def ", "--prompt", "ü", *options, *more) == 0
    sampling = Sampling(temperature=0.7, top_k=50, top_p=0.9, repetition_penalty=1.2)
    prompts = ["def ", "ü"]
    expected = generate_text(
        load(folder), Bytes(), prompts, 12, sampling=sampling, seed=3, stop=["zz"]
    )
    found = json.loads(capsys.readouterr().out)
    assert found == [{"prompt": p, "text": t} for p, t in zip(prompts, expected, strict=True)]
    for change in (("--seed", 4), ("--top-k", 1), ("--temperature", 9), ("--stop", expected[0][2])):
        run(folder, "--prompt", "def ", "--prompt", "ü", *options, *more, *change)
        assert json.loads(capsys.readouterr().out) != found


def test_people_see_prompts_and_texts(folder: Path, capsys: Any) -> None:
    first, second = generate_text(load(folder), Bytes(), ["def ", "x"], 9)
    assert run(folder, "--prompt", "def ", "--prompt", "x", "--tokens", 9) == 0
    assert capsys.readouterr().out == f"def {first}\n\nx{second}\n"


def test_a_text_that_stops_at_once_leaves_its_prompt(folder: Path, capsys: Any) -> None:
    first = generate_text(load(folder), Bytes(), ["def "], 1, sampling=Sampling(temperature=0))[0]
    assert run(folder, "--prompt", "def ", "--tokens", 9, "--greedy", "--stop", first) == 0
    assert capsys.readouterr().out == "def \n"


def test_the_first_text_is_shown_piece_by_piece(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Screen(io.StringIO):
        pieces = 0

        def flush(self) -> None:
            self.pieces += 1

        def isatty(self) -> bool:
            return True

    screen = Screen()
    monkeypatch.setattr(sys, "stdout", screen)
    run(folder, "--prompt", "a\x1b[31m", "--tokens", 40, "--seed", 1)
    monkeypatch.undo()
    assert screen.pieces > 10
    text = generate_text(load(folder), Bytes(), ["a\x1b[31m"], 40, seed=1)[0]
    assert any(ord(c) < 9 for c in text)
    shown = screen.getvalue()
    assert shown.startswith("a\ufffd[31m")
    assert not any(ord(c) < 9 or c == "\x1b" for c in shown)
    assert len(shown) == len(f"a\x1b[31m{text}\n")


@pytest.mark.parametrize("prompt", [("--prompt", "-"), ()])
def test_a_prompt_may_come_by_standard_input_or_not_at_all(
    folder: Path, prompt: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("für\n".encode())))
    assert run(folder, *prompt, "--tokens", 4, "--json") == 0
    (found,) = json.loads(capsys.readouterr().out)
    given = "für\n" if prompt else ""
    expected = generate_text(load(folder), Bytes(), [given], 4)[0]
    assert found == {"prompt": given, "text": expected}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--greedy", "--temperature", 0.5), "contradict each other"),
        (("--prompt", "-", "--prompt", "-"), "give it once"),
        (("--tokens", 0), "tokens must be at least 1"),
        (("--top-p", 0), "top_p is a share"),
        (("--stop", ""), "stop string is empty"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_line(
    folder: Path, options: tuple[object, ...], words: str, capsys: Any
) -> None:
    assert run(folder, *options) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line


def test_input_that_is_no_text_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"ab\xff")))
    assert run(folder, "--prompt", "-") == 2
    assert "not UTF-8 at byte 2" in capsys.readouterr().err


def test_models_that_cannot_write_say_so(tmp_path: Path, capsys: Any) -> None:
    build(small_config("bert", vocab_size=256)).save(tmp_path / "bert", Bytes().to_json())
    assert run(tmp_path / "bert", "--prompt", "x") == 2
    assert "sees both sides" in capsys.readouterr().err
    build(small_config("llama", vocab_size=256)).save(tmp_path / "bare")
    assert run(tmp_path / "bare", "--prompt", "x") == 2
    assert "has no tokenizer.json" in capsys.readouterr().err
