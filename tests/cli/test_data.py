"""Does `parformer data` list every corpus, and say of one what is in it?"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from parformer.cli import main
from parformer.cli.data import compared, readable
from parformer.data.corpora import corpora
from parformer.data.overlap import Overlap

TRAIN = "the cat sat on the mat\n\nnaïve cats [bold] nap\n" * 40


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PARFORMER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path / "cache"


@pytest.fixture
def folder(tmp_path: Path) -> str:
    path = tmp_path / "texts"
    path.mkdir()
    (path / "train.txt").write_text(TRAIN)
    (path / "valid.txt").write_text("the mat\n")
    (path / "test.txt").write_text("a cat")
    return str(path)


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(["data", *argv]) == 0
    return capsys.readouterr().out


def run_json(capsys: pytest.CaptureFixture[str], *argv: str) -> Any:
    return json.loads(run(capsys, *argv, "--json"))


def refuse(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(["data", *argv]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("parformer data: ")
    return err


def test_without_a_name_all_corpora_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    listing = run(capsys)
    rows = run_json(capsys)
    assert [row["name"] for row in rows] == [known.name for known in corpora()]
    for row in rows:
        assert row["name"] in listing
        assert row["licence"] in listing
    source = next(line for line in listing.splitlines() if line.split()[:1] == ["python-source"])
    assert source.rstrip().endswith("yes")
    assert "python-source-0.1" not in listing
    wanted = next(row for row in rows if row["name"] == "enwik8")
    assert wanted["present"] is False
    assert re.search(r"enwik8 .*100 MB .*no, 36 MB to fetch", listing)


def test_a_corpus_is_measured(capsys: pytest.CaptureFixture[str], folder: str, cache: Path) -> None:
    facts = run_json(capsys, folder, "--tokenizer", "word")
    assert facts["corpus"] == folder
    assert facts["tokenizer"] == "word"
    assert facts["vocab_size"] == 11
    assert facts["cutoffs"] == []
    train = facts["splits"]["train"]
    size = len(TRAIN.encode())
    assert train["bytes"] == size
    assert train["characters"] == len(TRAIN) == size - 40
    assert train["words"] == train["tokens"] == 13 * 40
    assert train["bytes_per_token"] == pytest.approx(size / 520)
    assert train["tokens_per_word"] == 1
    assert facts["splits"]["test"]["tokens"] == 3
    assert facts["common"][0] == {"token": 0, "text": "\n", "count": 120}
    assert facts["common"][1] == {"token": 1, "text": "the", "count": 80}
    assert [row["count"] for row in facts["common"][2:]] == [40] * 8
    assert facts["excerpt"] == TRAIN[:240]
    assert Path(facts["cache"]).parent == cache / "tokens"


def test_the_same_is_shown_to_people(capsys: pytest.CaptureFixture[str], folder: str) -> None:
    shown = run(capsys, folder, "--tokenizer", "word", "--vocab-size", "4")
    assert re.search(r"train +1,880 +1,840 +520 +520 +3\.615 +1\.000", shown)
    assert "word, 4 tokens" in shown
    assert "'<unk>' 280" in shown
    assert "the cat <unk> <unk> the <unk>" in shown
    assert "none: the vocabulary needs no cutting" in shown
    plain = run(capsys, folder)
    assert "byte, 256 tokens" in plain
    assert "cats [bold] nap" in plain
    assert re.search(r"train +1,880 +1,840 +520 +1,880 +1\.000 +3\.615", plain)


def test_what_stands_in_train_too_is_told(capsys: pytest.CaptureFixture[str], folder: str) -> None:
    unlike = "".join(f"{i} {i * i} {i**3}\n" for i in range(60))
    Path(folder, "test.txt").write_text(TRAIN[500:800] + unlike)
    facts = run_json(capsys, folder)["overlap"]
    assert list(facts) == ["valid", "test"]
    assert facts["valid"] == {"windows": 0, "shared": 0.0, "longest": 0, "crowded": False}
    share = facts["test"]["shared"]
    assert share > 0.05
    assert facts["test"]["crowded"]
    longest = facts["test"]["longest"]
    assert 300 <= longest < 310
    shown = run(capsys, folder)
    assert "valid  shorter than 50 bytes, so not looked for in train" in shown
    line = (
        f"test   {share:.1%} of its 50-byte windows stand in train word for word; "
        f"longest match {longest} bytes"
    )
    assert line in shown
    assert "Warning: more than 5% of test stands in train" in shown
    assert "remove copies, or split by document" in shown


def test_little_in_common_is_no_warning(capsys: pytest.CaptureFixture[str], folder: str) -> None:
    Path(folder, "test.txt").write_text("".join(f"{i} {i * i}\n" for i in range(99)))
    shown = run(capsys, folder)
    assert "test   none of its 50-byte windows stands in train word for word" in shown
    assert "Warning" not in shown


def test_of_a_long_split_it_is_told_how_much_was_looked_for() -> None:
    found = Overlap(windows=8_388_559, shared=0.012, longest=80)
    assert compared(found, 8_388_608).endswith("longest match 80 bytes")
    assert compared(found, 9_000_000).endswith("80 bytes (its first 8.4 MB were looked for)")


def test_rare_words_are_left_out(capsys: pytest.CaptureFixture[str], folder: str) -> None:
    facts = run_json(capsys, folder, "--tokenizer", "word", "--min-count", "80")
    assert facts["vocab_size"] == 3
    assert facts["common"][0]["text"] == "<unk>"


def test_a_vocabulary_without_a_word_is_refused(
    capsys: pytest.CaptureFixture[str], folder: str
) -> None:
    assert main(["data", folder, "--tokenizer", "word", "--min-count", "1000000"]) == 2
    assert "occurs 1,000,000 times; lower min_count" in capsys.readouterr().err


def test_any_kind_can_be_chosen(capsys: pytest.CaptureFixture[str], folder: str) -> None:
    sizes = {
        kind: run_json(capsys, folder, "--tokenizer", kind)["vocab_size"]
        for kind in ("byte", "used-bytes", "character", "bpe")
    }
    assert sizes["byte"] == 256
    assert sizes["character"] == len(set(TRAIN))
    assert sizes["used-bytes"] == len(set(TRAIN.encode()))
    assert sizes["bpe"] > 256


def test_mistakes_get_one_line(
    capsys: pytest.CaptureFixture[str], folder: str, cache: Path
) -> None:
    assert "did you mean 'word'" in refuse(capsys, folder, "--tokenizer", "wrod")
    assert "mean nothing to the tokenizer 'byte'" in refuse(capsys, folder, "--vocab-size", "9")
    bpe = refuse(capsys, folder, "--tokenizer", "bpe", "--vocab-size", "9")
    assert "must be at least 256, got 9" in bpe
    assert "did you mean 'python-source'" in refuse(capsys, "python-sauce")
    assert "--from is for" in refuse(capsys, folder, "--from", "here")
    assert "--tokenizer word needs a corpus" in refuse(capsys, "--tokenizer", "word")
    assert "--vocab-size 0 needs a corpus" in refuse(capsys, "--vocab-size", "0")
    Path(folder, "train.txt").write_bytes(b"abc\xff")
    broken = refuse(capsys, folder, "--tokenizer", "character")
    assert "byte 0xff at offset 3 of 'train'" in broken
    assert not list(cache.rglob("*.tokens"))


def test_sizes_are_readable() -> None:
    sizes = (0, 999, 1000, 9_949, 9_999, 999_500, 4_475_746, 181_000_000_000_000)
    assert [readable(size) for size in sizes] == [
        "0 B",
        "999 B",
        "1.0 kB",
        "9.9 kB",
        "10 kB",
        "1.0 MB",
        "4.5 MB",
        "181000 GB",
    ]
