"""Can a translator be told how long, how many and with which beginning, by every door?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import parformer as pf
from parformer.cli import main
from parformer.data.characters import Characters
from parformer.errors import InputError
from parformer.generate.sentences import text_options, translate_text
from parformer.model import Model
from tests.conftest import lively, small_config

LETTERS = Characters(" abcdefghijklmnopqrstuvwxyzEH", unknown=False)
SOURCES = ("ein Hund", "zwei", "drei Hunde laufen")


def small(**changes: Any) -> Model:
    marks = {"vocab_size": 32, "pad": 29, "start": 30, "end": 31}
    return lively(pf.build(small_config("transformer", pattern="sf | scf", **marks | changes)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "translator"
    small().save(path, LETTERS.to_json())
    return path


def run(folder: Path, *arguments: object) -> int:
    return main(["generate", str(folder), *map(str, arguments), "--device", "cpu"])


def told(capsys: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize(
    ("flags", "search"),
    [
        (("--max-len", 3), {"max_len": 3}),
        (("--tokens", 3), {"max_len": 3}),
        (("--tokens", 3, "--style", "imitkd"), {"max_len": 4, "style": "imitkd"}),
        (("--min-len", 40), {"min_len": 40}),
        (("--beam", 2, "--length-penalty", 3), {"beam": 2, "length_penalty": 3.0}),
        (("--no-repeat-ngram", 1, "--max-len", 20), {"no_repeat_ngram": 1, "max_len": 20}),
        (("--greedy", "--no-repeat-ngram", 1), {"greedy": True, "no_repeat_ngram": 1}),
    ],
)
def test_what_is_asked_of_a_search_reaches_it(
    folder: Path, flags: tuple[object, ...], search: dict[str, Any], capsys: Any
) -> None:
    sources = [word for source in SOURCES for word in ("--source", source)]
    assert run(folder, *sources, *flags, "--json") == 0
    found = [one["text"] for one in told(capsys)]
    assert found == translate_text(pf.load(folder), LETTERS, SOURCES, **search)
    assert found != translate_text(pf.load(folder), LETTERS, SOURCES)


def test_several_translations_stand_in_a_line_of_the_file(
    folder: Path, tmp_path: Path, capsys: Any
) -> None:
    (tmp_path / "in.txt").write_text("ein Hund\nzwei\n", "utf-8")
    files = ("--input", tmp_path / "in.txt", "--output", tmp_path / "out.txt")
    assert run(folder, *files, "--n-best", 3, "--max-len", 5, "--json") == 0
    found = told(capsys)
    wanted = text_options(pf.load(folder), LETTERS, ("ein Hund", "zwei"), n_best=3, max_len=5)
    assert [one["text"] for one in found] == [one.text for texts in wanted for one in texts]
    assert [one["prompt"] for one in found] == ["ein Hund"] * 3 + ["zwei"] * 3
    scores = [one["score"] for one in found[:3]]
    assert scores == sorted(scores, reverse=True)
    lines = (tmp_path / "out.txt").read_bytes().decode().split("\n")
    assert lines == [*("\t".join(one.text for one in texts) for texts in wanted), ""]


@pytest.mark.parametrize("prefix", [("a b",), ("a b", "c")])
def test_translations_begin_with_what_is_given(folder: Path, prefix: tuple[str, ...]) -> None:
    sources = ("zwei", "ein langer Hund")  # which are not read in this order
    found = pf.generate(model=folder, sources=sources, prefix=prefix, max_len=8)
    begun = prefix if len(prefix) > 1 else prefix * 2
    assert [one.text.startswith(start) for one, start in zip(found, begun, strict=True)] == [
        True,
        True,
    ]
    assert found[1].text != begun[1]


def test_a_short_source_may_have_to_become_a_long_text() -> None:
    """Translations are not much longer than their sources, unless `min_len` asks for it."""
    model = small(max_len=128)
    (found,) = text_options(model, LETTERS, ("a",), min_len=50, no_repeat_ngram=2)
    assert len(found[0].text) >= 49  # a start may be among its tokens, which is not shown
    (free,) = text_options(model, LETTERS, ("a",))
    assert len(free[0].text) < 50


def test_a_summary_is_decoded_as_published(tmp_path: Path, capsys: Any) -> None:
    """CNN/DailyMail's: 55 to 140 tokens and no trigram twice."""
    place = tmp_path / "summaries"
    small(max_len=256).save(place, LETTERS.to_json())
    flags = ("--beam", 4, "--min-len", 55, "--max-len", 140, "--no-repeat-ngram", 3)
    assert run(place, "--source", "ein Hund", *flags, "--length-penalty", 2, "--json") == 0
    (one,) = told(capsys)
    text = one["text"]
    trigrams = [text[i : i + 3] for i in range(len(text) - 2)]
    assert 54 <= len(text) <= 140
    assert len({*trigrams}) == len(trigrams)
    (free,) = pf.generate(model=place, sources=("ein Hund",))
    assert free.text != text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--source", "a", "--tokens", 5, "--max-len", 6), "are two lengths; give one"),
        (("--source", "a", "--tokens", 0), "tokens must be at least 1, got 0"),
        (("--source", "a", "--tokens", 90), "max_len 90 needs 91 places, and the model has 64"),
        (("--source", "a", "--stop", "x"), "--stop 'x' is for prompts"),
        (("--source", "a", "--n-best", 9), "n_best 9 exceeds beam 5; raise beam"),
        (("--source", "a", "--n-best", 0), "n_best must be at least 1, got 0"),
        (("--source", "a", "--min-len", 9, "--max-len", 3), "min_len 9 exceeds max_len 3"),
        (("--source", "a", "--prefix", "a", "--prefix", "b"), "2 prefixes for 1 sources"),
        (("--prompt", "a", "--prefix", "a"), "--prefix is for sources"),
        (("--prompt", "a", "--no-repeat-ngram", 3), "--no-repeat-ngram is for sources"),
        (("--prompt", "a", "--length-penalty", 2), "--length-penalty is for sources"),
        (("--prompt", "a", "--beam", 2), "--beam is for sources"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_line(
    folder: Path, options: tuple[object, ...], words: str, capsys: Any
) -> None:
    assert run(folder, *options) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line


def test_a_blank_line_among_sources_is_refused(folder: Path, tmp_path: Path, capsys: Any) -> None:
    for number, text in ((2, "ein Hund\n\nzwei\n"), (1, "  \nzwei"), (3, "a\nb\n\n")):
        (tmp_path / "in.txt").write_text(text, "utf-8")
        assert run(folder, "--input", tmp_path / "in.txt") == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert f"line {number} of" in line
        assert "is empty; each holds a source" in line
    (tmp_path / "in.txt").write_text("", "utf-8")
    assert run(folder, "--input", tmp_path / "in.txt") == 2
    assert "is empty; write a source in each line" in capsys.readouterr().err


def test_a_model_without_marks_translates_nothing(tmp_path: Path, capsys: Any) -> None:
    """Its vocabulary has no token that ends a text, or none that stands for no token."""
    for missing in ("end", "pad"):
        bare = small(**({"start": -1, "end": -1} if missing == "end" else {"pad": -1}))
        with pytest.raises(InputError, match="says neither how texts end nor what stands for"):
            translate_text(bare, LETTERS, ("a",))
        bare.save(tmp_path / missing, LETTERS.to_json())
        assert run(tmp_path / missing, "--source", "a") == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "it was not trained by the task 'translate'" in line
