"""Are tokens made once, kept whole, and never used when damaged?"""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parformer.data.characters import Bytes
from parformer.data.tokenizers import KINDS, Tokenizer, read_tokenizer
from parformer.data.tokens import Prepared, prepare
from parformer.data.words import Words
from parformer.errors import ConfigError, CorpusError, InputError
from parformer.store import cache as entries
from tests.data.test_tokenizers import Texts, join

TRAIN = "the cat sat on the mat\n\nnaïve 戦場 cat\n" * 5
PARTS = {"train": TRAIN, "valid": "the mat\n", "test": "a cat"}


def ready(cache: Path, kind: str = "word", corpus: Texts | None = None, **more: Any) -> Prepared:
    return prepare(corpus or Texts(**PARTS), kind, cache=cache, **more)  # type: ignore[arg-type]


def files_in(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"hf", "sides"}))
def test_every_split_has_the_tokens_of_its_text(kind: str, tmp_path: Path) -> None:
    prepared = ready(tmp_path, kind, vocab_size=300 if kind == "bpe" else 0)
    assert list(prepared.splits) == ["train", "valid", "test"]
    assert prepared.tokenizer.kind == kind
    assert prepared.identity == Texts(**PARTS).identity()
    for name, split in prepared.splits.items():
        expected = join(prepared.tokenizer.encode_chunks([PARTS[name].encode()]))
        assert split.tokens.tolist() == expected
        assert split.tokens.dtype == prepared.tokenizer.dtype
        assert split.bytes == len(PARTS[name].encode())
        assert split.characters == len(PARTS[name])
    assert [split.words for split in prepared.splits.values()] == [60, 3, 3]


def test_bytes_that_are_no_utf8_are_counted_as_they_are_shown(tmp_path: Path) -> None:
    split = ready(tmp_path, "byte", Texts(chunk=1, train=b"a\xff \xe6\x88\n\xe6\x88")).splits[
        "train"
    ]
    assert (split.bytes, split.characters, split.words) == (8, 6, 5)


def test_tokens_are_read_only(tmp_path: Path) -> None:
    mapped = ready(tmp_path).splits["train"].tokens
    assert type(mapped) is np.ndarray
    with pytest.raises(ValueError, match="read-only"):
        mapped[0] = 1
    with pytest.raises(ValueError, match="WRITEABLE"):
        mapped.setflags(write=True)


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"hf", "sides"}))
def test_a_second_time_reads_no_text(kind: str, tmp_path: Path) -> None:
    corpus = Texts(**PARTS)
    first = ready(tmp_path, kind, corpus)
    reads = corpus.reads
    assert reads > 0
    second = ready(tmp_path, kind, corpus)
    assert corpus.reads == reads
    assert second.folder == first.folder
    assert second.tokenizer == first.tokenizer
    assert np.array_equal(second.splits["train"].tokens, first.splits["train"].tokens)
    assert second.splits["test"].words == first.splits["test"].words


def test_whatever_changes_the_tokens_changes_the_folder(tmp_path: Path) -> None:
    other = Texts(**PARTS | {"test": "another cat"})
    renamed = Texts(train=TRAIN, valid="the mat\n", final="a cat")
    found = [
        ready(tmp_path),
        ready(tmp_path, vocab_size=5),
        ready(tmp_path, min_count=6),
        ready(tmp_path, "character"),
        ready(tmp_path, corpus=other),
        ready(tmp_path, corpus=renamed),
        ready(tmp_path, tokenizer=Words(["<eos>", "<unk>", "cat"])),
        ready(tmp_path, tokenizer=Words(["<eos>", "<unk>", "mat"])),
    ]
    assert len({prepared.folder for prepared in found}) == len(found)
    default = ready(tmp_path, "bpe")
    assert ready(tmp_path, "bpe", vocab_size=8192).folder == default.folder


def test_a_given_tokenizer_encodes(tmp_path: Path) -> None:
    tokenizer = Words(["<eos>", "<unk>", "cat"])
    prepared = ready(tmp_path, tokenizer=tokenizer)
    assert prepared.tokenizer == tokenizer
    assert prepared.splits["test"].tokens.tolist() == [1, 2, 0]
    with pytest.raises(ConfigError, match="a word tokenizer was given where 'byte' was asked for"):
        ready(tmp_path, "byte", tokenizer=tokenizer)


def test_a_run_that_goes_on_finds_its_tokens(tmp_path: Path) -> None:
    """Its tokenizer.json names the same entry as the settings it was trained with."""
    first = ready(tmp_path, vocab_size=5)
    corpus = Texts(**PARTS)
    stored = read_tokenizer(first.tokenizer.to_json(), "run")
    again = ready(tmp_path, corpus=corpus, tokenizer=stored, vocab_size=5)
    assert again.folder == first.folder
    assert corpus.reads == 0


@pytest.mark.parametrize("kind", ["byte", "character", "bpe"])
def test_a_split_without_tokens_is_refused(kind: str, tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="'valid' of 'texts' has no tokens"):
        ready(tmp_path, kind, Texts(train="a b", valid="", test="c"))
    assert not list(tmp_path.rglob("*.tokens"))


def test_a_failure_leaves_nothing_behind(tmp_path: Path) -> None:
    characters = ready(tmp_path, "character", Texts(train="abc")).tokenizer
    before = files_in(tmp_path)
    with pytest.raises(InputError, match="'x'"):
        ready(tmp_path, "character", Texts(train="ab", test="bax"), tokenizer=characters)
    assert files_in(tmp_path) == before
    assert not list((tmp_path / "tokens").glob(".*"))


def test_the_same_text_under_another_name_is_found(tmp_path: Path) -> None:
    first, other = ready(tmp_path), Texts("../../elsewhere", **PARTS)
    again = ready(tmp_path, corpus=other)
    assert other.reads == 0
    assert again.folder == first.folder
    assert (first.corpus, again.corpus) == ("texts", "../../elsewhere")


def test_odd_names_of_splits_stay_inside(tmp_path: Path) -> None:
    folder = ready(tmp_path, corpus=Texts(**{"../up": "a b", "down": "c"})).folder
    assert folder.parent == tmp_path / "tokens"
    assert {file.name for file in folder.glob("*.tokens")} == {"-up.tokens", "down.tokens"}


def kept_files(cache: Path) -> dict[str, Path]:
    """All files that must be right, by their names without what stands for their contents."""
    found = [p for p in cache.rglob("*") if p.is_file() and p.name != "checked.json"]
    return {f"{p.parent.name.rpartition('-')[0]}/{p.name}": p for p in sorted(found)}


KEPT = [
    "word-tokenizer/manifest.json",
    "word-tokenizer/tokenizer.json",
    "word/manifest.json",
    "word/test.tokens",
    "word/train.tokens",
    "word/valid.tokens",
]


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def empty(file: Path) -> None:
    file.write_bytes(b"")


def to_link(file: Path) -> None:
    away = file.with_name("x" * file.stat().st_size)  # so that the link is as long as the file
    file.rename(away)
    file.symlink_to(away.name)


@pytest.mark.parametrize("spoil", [truncate, flip, empty, Path.unlink, to_link])
@pytest.mark.parametrize("name", KEPT)
def test_a_damaged_entry_is_made_anew_with_a_notice(
    spoil: Any, name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = ready(tmp_path).splits["test"].tokens.tolist()
    good = {name: file.read_bytes() for name, file in kept_files(tmp_path).items()}
    assert sorted(good) == KEPT
    everything = files_in(tmp_path)
    if spoil is to_link and name.endswith("manifest.json"):
        pytest.skip("a manifest is sealed, wherever it lies")
    spoil(kept_files(tmp_path)[name])
    caplog.set_level(logging.WARNING)
    corpus = Texts(**PARTS)
    again = ready(tmp_path, corpus=corpus)
    assert corpus.reads > 0
    assert len(caplog.records) == 1
    assert "it is made anew" in caplog.text
    assert {name: file.read_bytes() for name, file in kept_files(tmp_path).items()} == good
    assert files_in(tmp_path) == everything
    assert again.splits["test"].tokens.tolist() == expected


def test_a_manifest_that_lies_is_found_out(tmp_path: Path) -> None:
    folder = ready(tmp_path).folder
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["facts"]["train"]["words"] += 1
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert ready(tmp_path).splits["train"].words == 60


@pytest.mark.parametrize("text", ["", "[]", "{}", "7", "null", "[" * 99_999, "\xff"])
def test_any_manifest_is_survived(text: str, tmp_path: Path) -> None:
    folder = ready(tmp_path).folder
    (folder / "manifest.json").write_text(text, "latin-1")
    assert ready(tmp_path).splits["train"].words == 60


def sealed(folder: Path, **changes: Any) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["seal"]
    for name, value in changes.items():
        manifest[name] = value
    manifest["seal"] = entries.digest(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    "changes",
    [
        {"facts": {}},
        {"facts": None},
        {"facts": {name: {"tokens": 2} for name in PARTS}},
        {"facts": {name: dict.fromkeys(("bytes", "characters", "words"), 9) for name in PARTS}},
        {"format": "parformer-entry-0"},
    ],
)
def test_even_a_sealed_manifest_must_fit(changes: dict[str, Any], tmp_path: Path) -> None:
    sealed(ready(tmp_path).folder, **changes)
    assert ready(tmp_path).splits["train"].words == 60


@pytest.fixture
def sums(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that are read in full; every file counts as large."""
    names: list[str] = []
    sha256 = entries.sha256

    def watch(file: Path) -> str:
        names.append(file.name)
        return sha256(file)

    monkeypatch.setattr(entries, "SMALL", 0)
    monkeypatch.setattr(entries, "EDGE", 4)
    monkeypatch.setattr(entries, "sha256", watch)
    return names


def test_a_large_file_is_read_in_full_only_after_it_changed(
    tmp_path: Path, sums: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    folder = ready(tmp_path).folder
    sums.clear()
    ready(tmp_path)
    assert sums == []
    train = folder / "train.tokens"
    os.utime(train, (1, 1))
    ready(tmp_path)
    assert sums == ["train.tokens"]
    ready(tmp_path)
    assert sums == ["train.tokens"]
    assert caplog.records == []
    flip(train)
    ready(tmp_path)
    assert "train.tokens is damaged" in caplog.text


def test_the_ends_of_a_large_file_are_always_compared(
    tmp_path: Path, sums: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    folder = ready(tmp_path).folder
    for at in (0, -1):
        data = bytearray((folder / "train.tokens").read_bytes())
        data[at] ^= 1
        (folder / "train.tokens").write_bytes(data)
        entries._remember(folder, json.loads((folder / "manifest.json").read_text())["files"])
        assert ready(tmp_path).splits["train"].words == 60
    assert caplog.text.count("train.tokens is damaged") == 2


def test_a_small_file_is_always_read_in_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(entries, "EDGE", 4)
    folder = ready(tmp_path).folder
    flip(folder / "train.tokens")
    entries._remember(folder, json.loads((folder / "manifest.json").read_text())["files"])
    ready(tmp_path)
    assert "train.tokens is damaged" in caplog.text


def test_a_lost_note_costs_one_reading(tmp_path: Path, sums: list[str]) -> None:
    folder = ready(tmp_path).folder
    for spoilt in (b"", b"[]", b'{"train.tokens": 7}'):
        (folder / "checked.json").write_bytes(spoilt)
        sums.clear()
        ready(tmp_path)
        assert "train.tokens" in sums
        sums.clear()
        ready(tmp_path)
        assert sums == []


class Full:
    """A disk that has no room for one kind of file."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, ending: str) -> None:
        sync = entries.sync

        def fail(path: Path) -> None:
            if path.name.endswith(ending):
                raise OSError(errno.ENOSPC, "No space left on device")
            sync(path)

        monkeypatch.setattr(entries, "sync", fail)


@pytest.mark.parametrize("ending", ["test.tokens", "manifest.json", "part"])
def test_a_full_disk_gives_one_line_and_leaves_nothing(
    ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        Full(patch, ending)
        with pytest.raises(CorpusError, match="No space left") as caught:
            ready(tmp_path, "byte")
    total = sum(len(part.encode()) for part in PARTS.values())
    assert str(tmp_path) in str(caught.value)
    assert f"{total:,} bytes needed" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert list((tmp_path / "tokens").iterdir()) == []
    assert ready(tmp_path, "byte").splits["train"].words == 60


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_write_that_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Path.open

    def onto_full(self: Path, mode: str = "r", **more: Any) -> Any:
        target = Path("/dev/full") if self.name == "train.tokens" and mode == "wb" else self
        return real(target, mode, **more)

    monkeypatch.setattr(Path, "open", onto_full)
    with pytest.raises(CorpusError, match="No space left on device"):
        ready(tmp_path, "byte")
    assert files_in(tmp_path) == []


def test_a_cache_in_an_impossible_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CorpusError, match="Not a directory"):
        ready(tmp_path / "file")


def test_a_text_that_cannot_be_read_is_not_blamed_on_the_cache(tmp_path: Path) -> None:
    class Gone(Texts):
        def chunks(self, split: str) -> Iterator[bytes]:
            raise OSError(errno.EIO, "Input/output error")

    with pytest.raises(CorpusError, match="cannot read 'train' of 'texts'"):
        ready(tmp_path, corpus=Gone(**PARTS))


def test_what_a_killed_process_left_is_swept_away(tmp_path: Path) -> None:
    prepared = ready(tmp_path)
    shutil.rmtree(prepared.folder)
    left = prepared.folder.parent / f".{prepared.folder.name}.abc.part"
    other = prepared.folder.parent / ".something-else.abc.part"
    for folder in (left, other):
        folder.mkdir()
        (folder / "train.tokens").write_text("half")
    ready(tmp_path)
    assert not left.exists()
    assert other.exists()


def test_an_entry_that_came_first_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where files cannot be locked, two processes do the work, and one entry stays."""

    def unsupported(handle: int, how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("parformer.store.lock.fcntl.flock", unsupported)
    seal = entries._seal

    def slow(beside: Path, facts: entries.Facts) -> None:
        seal(beside, facts)
        monkeypatch.setattr(entries, "_seal", seal)
        ready(tmp_path, "byte")

    monkeypatch.setattr(entries, "_seal", slow)
    assert ready(tmp_path, "byte").splits["train"].words == 60
    assert len(list((tmp_path / "tokens").iterdir())) == 1


def test_two_at_once_share_one_preparation(tmp_path: Path) -> None:
    inside, go_on = threading.Event(), threading.Event()

    class Slow(Texts):
        def chunks(self, split: str) -> Iterator[bytes]:
            inside.set()
            assert go_on.wait(20)
            yield from super().chunks(split)

    slow, second, heard = Slow(**PARTS), Texts(**PARTS), []
    answers: list[Prepared] = []

    def news(what: str, share: float) -> None:
        heard.append(what)
        go_on.set()

    def prepare_slowly() -> None:
        answers.append(ready(tmp_path, "byte", slow))

    first = threading.Thread(target=prepare_slowly)
    first.start()
    assert inside.wait(20)
    answers.append(ready(tmp_path, "byte", second, progress=news))
    first.join()
    assert heard == ["waiting for another process that does the same"]
    assert second.reads == 0
    assert {a.splits["train"].words for a in answers} == {60}
    assert len(list((tmp_path / "tokens").iterdir())) == 1


def test_many_processes_end_well(tmp_path: Path) -> None:
    program = """
import sys
from pathlib import Path
from tests.data.test_tokens import ready
print(ready(Path(sys.argv[1]), "byte").splits["train"].tokens.sum())
"""
    command = [sys.executable, "-c", program, str(tmp_path)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    answers = {process.communicate(timeout=60)[0] for process in running}
    assert answers == {f"{sum(TRAIN.encode())}\n"}
    assert len(list((tmp_path / "tokens").iterdir())) == 1


def test_a_read_only_cache_is_good_for_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sums: list[str]
) -> None:
    folder = ready(tmp_path).folder
    (folder / "checked.json").unlink()

    def refuse(self: Path, *rest: Any, **more: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    for name in ("write_text", "mkdir", "rename", "replace"):
        monkeypatch.setattr(Path, name, refuse)
    assert ready(tmp_path).splits["train"].words == 60
    assert "train.tokens" in sums
    with pytest.raises(CorpusError, match="Read-only file system"):
        ready(tmp_path, "byte")


def test_an_interruption_leaves_nothing(tmp_path: Path) -> None:
    def stop(what: str, share: float) -> None:
        if what == "tokenizing in test":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ready(tmp_path, "byte", progress=stop)
    assert list((tmp_path / "tokens").iterdir()) == []


def test_progress_tells_what_and_how_far(tmp_path: Path) -> None:
    heard: list[tuple[str, float]] = []
    corpus = Texts(chunk=10**6, **PARTS)
    ready(tmp_path, corpus=corpus, progress=lambda *news: heard.append(news))
    assert heard == [
        ("counting words in train", 1.0),
        ("tokenizing in train", 1.0),
        ("tokenizing in valid", 1.0),
        ("tokenizing in test", 1.0),
    ]


@pytest.mark.parametrize("tokenizer", [Bytes(), Words(["<eos>", "<unk>"])])
def test_a_large_corpus_needs_little_memory(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """Sixty-four mebibytes of text, of which only a few are ever in memory."""
    line = b"x" * 1023 + b"\n"

    class Large(Texts):
        def chunks(self, split: str) -> Iterator[bytes]:
            for _ in range(64):
                yield line * 2**10

        def size(self, split: str) -> int | None:
            return None

    tracemalloc.start()
    try:
        prepared = ready(tmp_path, tokenizer.kind, Large(train=""), tokenizer=tokenizer)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert prepared.splits["train"].bytes == 2**26
    assert peak < 2**24
