"""Does the same text come as the same splits, whole, wherever and however it lies?"""

from __future__ import annotations

import gzip
import hashlib
import json
import lzma
import os
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import zstandard

from parformer.data import Corpus, builtin, corpora, digests, find_corpus
from parformer.data.digests import INDEX, Digests
from parformer.data.overlap import overlaps
from parformer.data.reading import CHUNK, Piece, read_pieces
from parformer.errors import CorpusError
from parformer.store.files import cache_folder

SPLITS = ("train", "valid", "test")

COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.ZstdCompressor().compress,
}
ENDINGS = pytest.mark.parametrize("ending", COMPRESS)
REALLY = pytest.mark.parametrize("ending", [".gz", ".xz", ".zst"])

LINES = b"".join(b"line %04d: %s\n" % (i, "äöü€".encode() * (i % 5)) for i in range(5000))


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("PARFORMER_CACHE", str(path))
    return path


def text(corpus: Corpus, split: str) -> bytes:
    return b"".join(corpus.chunks(split))


def texts(corpus: Corpus) -> dict[str, bytes]:
    return {split: text(corpus, split) for split in corpus.splits}


def write(root: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


def refused(source: str | Path, **options: Any) -> str:
    with pytest.raises(CorpusError) as caught:
        find_corpus(str(source), **options).identity()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def settle(*files: Path) -> None:
    """Let files look as if they had not been touched for a while."""
    for file in files:
        os.utime(file, ns=(10**18, file.stat().st_mtime_ns - 10**10))


# Built in


@pytest.mark.parametrize("name", [*builtin.ABOUT, *builtin.OLDER])
def test_built_in_corpora_are_text_in_three_splits(name: str) -> None:
    corpus = find_corpus(name)
    assert corpus.splits == SPLITS
    found = texts(corpus)
    whole = sum(map(len, found.values()))
    for split, data in found.items():
        data.decode("utf-8")
        assert data.endswith(b"\n")
        assert corpus.size(split) == len(data)
    for split in ("valid", "test"):
        assert 0.04 < len(found[split]) / whole < 0.06


def test_built_in_corpora_are_the_same_in_another_process() -> None:
    code = (
        "from parformer.data import find_corpus;"
        "from parformer.data.builtin import ABOUT, OLDER;"
        "print(*(find_corpus(n).identity() for n in (*ABOUT, *OLDER)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONHASHSEED": "7", "PARFORMER_CACHE": "/dev/null/cache"},
    )
    names = [*builtin.ABOUT, *builtin.OLDER]
    assert done.stdout.split() == [find_corpus(name).identity() for name in names]


def test_python_docs_hold_every_topic_once() -> None:
    from pydoc_data.topics import topics

    found = texts(find_corpus("python-docs"))
    whole = b"".join(found.values())
    assert len(topics) > 50
    for name, topic in topics.items():
        assert sum(topic.encode() in data for data in found.values()) == 1, name
    ends = sum(not topic.endswith("\n") for topic in topics.values())
    assert len(whole) == sum(len(topic.encode()) for topic in topics.values()) + ends


def test_python_source_leaves_out_what_is_not_the_library(tmp_path: Path) -> None:
    kept = {"os.py": b"1\n", "json/tool.py": b"2\n", "turtledemo/x.py": b"3\n"}
    dropped = {
        f"{folder}/x.py": b"0\n"
        for folder in (
            "test",
            "json/tests",
            "idlelib/idle_test",
            "site-packages",
            "dist-packages",
            "__pycache__",
            "lib2to3/tests/data",
            "ensurepip/_bundled",
            "config-3.11-x86",
        )
    }
    dropped |= {"_sysconfigdata__linux.py": b"0\n", "latin.py": b"# \xe4\n", "readme.txt": b"0\n"}
    write(tmp_path, kept | dropped)
    (tmp_path / "link.py").symlink_to("os.py")
    (tmp_path / "gone.py").symlink_to("nowhere")
    assert list(builtin.library_files(tmp_path)) == sorted(kept)


def test_python_source_is_real_code() -> None:
    whole = builtin.library_files(builtin.standard_library())
    files, families = builtin.builtin_files("python-source")
    assert {"os.py", "json/decoder.py", "argparse.py", "encodings/idna.py"} <= set(files)
    assert not [name for name in files if {"test", "tests"} & set(name.split("/"))]
    assert not {"encodings/cp852.py", "encodings/koi8_r.py", "pydoc_data/topics.py"} & set(files)
    assert len(files) > 0.75 * len(whole)
    assert any({"ntpath.py", "posixpath.py"} <= set(family) for family in families)
    assert max(map(len, families)) < 20
    assert sum(find_corpus("python-source").size(split) or 0 for split in SPLITS) > 5_000_000


def test_hardly_anything_of_python_source_is_held_out_and_trained_on() -> None:
    corpus = find_corpus("python-source")
    for found in overlaps(corpus).values():
        assert found.windows > 100_000
        assert found.shared < 0.05
        assert found.longest < 2_000


def prose(seed: int, count: int = 40) -> list[str]:
    rng = Random(seed)
    return [f"line = {rng.randbytes(9).hex()}" for _ in range(count)]


def module(*lines: str) -> bytes:
    return "".join(f"    {line}\n" for line in lines).encode()


def test_tables_and_copies_are_left_out() -> None:
    table = [f"0x{i:04x}: 0x{i + 7:04x}, # LETTER" for i in range(40)]
    words = [f"'word number {i}': {i}," for i in range(40)]
    files: dict[str, Path | bytes] = {
        "a.py": module(*prose(1)),
        "b.py": module(*prose(1)[:21], *prose(2)[:19]),
        "c.py": module(*prose(1)[:19], *prose(3)[:21]),
        "codes.py": module("import codecs", *table),
        "empty.py": b"",
        "pydoc_data/topics.py": module(*prose(4)),
        "strings.py": module(*prose(5, 30), *words[:15]),
        "words.py": module("words = {", *words),
    }
    kept, families = builtin.without_copies(files)
    assert list(kept) == ["a.py", "c.py", "empty.py", "strings.py"]
    assert families == [["a.py", "c.py"]]


def test_files_with_much_in_common_are_a_family_and_common_lines_make_none() -> None:
    everywhere = prose(0, 30)
    files: dict[str, Path | bytes] = {
        f"{i:02}.py": module(*everywhere, *prose(i + 1, 100)) for i in range(25)
    }
    assert builtin.without_copies(files) == (files, [])
    files["30.py"] = module(*prose(3)[:12], *prose(31, 80))
    files["31.py"] = module(*prose(9)[:12], *prose(31, 80)[:20], *prose(32, 60))
    files["32.py"] = module(*prose(10)[:5], *prose(33, 80))
    kept, families = builtin.without_copies(files)
    assert kept == files
    assert families == [["02.py", "08.py", "30.py", "31.py"]]


# What a name stood for before


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small standard library with copies in it."""
    files = {f"{i:02}.py": module(*prose(i)) for i in range(30)}
    copies = {f"copy-{i:02}.py": module(*prose(i)[1:]) for i in range(30)}
    root = write(tmp_path / "library", files | copies)
    monkeypatch.setattr(builtin, "standard_library", lambda: root)
    return root


def test_the_text_of_version_0_1_has_a_name_of_its_own(library: Path) -> None:
    new, old = find_corpus("python-source"), find_corpus("python-source-0.1")
    assert sum(len(data) for data in texts(old).values()) == sum(
        file.stat().st_size for file in library.iterdir()
    )
    assert new.identity() != old.identity()
    assert "0.1" in old.about
    assert overlaps(old)["test"].crowded
    assert not overlaps(new)["test"].crowded


def test_an_identity_tells_which_text_is_meant(library: Path) -> None:
    new, old = find_corpus("python-source"), find_corpus("python-source-0.1")

    def found(name: str, identity: str) -> str:
        return find_corpus(name, identity=identity).identity()

    assert found("python-source", new.identity()) == new.identity()
    assert found("python-source", old.identity()) == old.identity()
    assert found("python-source", "") == found("python-source", "0" * 64) == new.identity()
    assert found("python-source-0.1", new.identity()) == old.identity()
    docs = find_corpus("python-docs").identity()
    assert found("python-docs", old.identity()) == docs


def test_a_run_of_version_0_1_goes_on_with_its_text(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    from parformer.cli import main
    from parformer.recipe import read_recipe
    from parformer.train.job import train_model

    recipe = read_recipe(
        "pocket",
        {
            "model.pattern": "sf",
            "model.d_model": 16,
            "model.d_inner": 16,
            "train.steps": 2,
            "train.batch": 2,
            "train.tgt_len": 16,
            "train.evaluate_tokens": 64,
            "train.final_tokens": 64,
            "train.compile": "off",
        },
    )
    assert recipe.data.corpus == "python-source"
    old = find_corpus("python-source-0.1").identity()
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(builtin, "without_copies", lambda files: (files, []))
        assert not train_model(recipe, run, until=1).finished
    builtin._library.cache_clear()
    assert train_model(None, run).finished
    assert main(["evaluate", str(run), "--tokens", "64", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["corpus"], answer["identity"]) == ("python-source-0.1", old)
    (library / "00.py").write_bytes(b"changed = True\n")
    with pytest.raises(CorpusError, match="'python-source' is not the one that the run"):
        train_model(None, run)
    assert main(["evaluate", str(run)]) == 2
    assert "'python-source' is not the text of this run any more" in capsys.readouterr().err


def test_a_python_without_its_source_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builtin, "standard_library", lambda: tmp_path)
    assert "no source files" in refused("python-source")


# One file


@ENDINGS
def test_a_file_is_cut_at_line_ends(tmp_path: Path, ending: str) -> None:
    file = tmp_path / f"notes{ending}"
    file.write_bytes(COMPRESS[ending](LINES))
    corpus = find_corpus(str(file))
    found = texts(corpus)
    assert b"".join(found.values()) == LINES
    for split, data in found.items():
        assert data.endswith(b"\n")
        assert corpus.size(split) == len(data)
    for split in ("valid", "test"):
        assert abs(len(found[split]) / len(LINES) - 0.05) < 0.01


def test_the_same_text_has_the_same_identity_wherever_it_lies(tmp_path: Path) -> None:
    found = set()
    for ending, compress in COMPRESS.items():
        file = tmp_path / f"other{ending}" / f"name{ending}"
        write(tmp_path, {str(file): compress(LINES)})
        found.add(find_corpus(str(file)).identity())
    splits = texts(find_corpus(str(tmp_path / "other" / "name")))
    write(tmp_path / "folder", {f"{split}.txt": data for split, data in splits.items()})
    found.add(find_corpus(str(tmp_path / "folder")).identity())
    assert len(found) == 1
    assert len(found.pop()) == 64


@pytest.mark.parametrize("at", [0, -1, len(LINES) // 2])
def test_another_text_has_another_identity(tmp_path: Path, at: int) -> None:
    changed = bytearray(LINES)
    changed[at] ^= 1
    write(tmp_path, {"a": LINES, "b": bytes(changed)})
    first, second = (find_corpus(str(tmp_path / name)).identity() for name in "ab")
    assert first != second


def test_another_splitting_is_another_identity(tmp_path: Path) -> None:
    splits = texts(find_corpus(str(write(tmp_path, {"a": LINES}) / "a")))
    moved = {
        "train.txt": splits["train"] + splits["valid"][:1],
        "valid.txt": splits["valid"][1:],
        "test.txt": splits["test"],
    }
    write(tmp_path / "moved", moved)
    assert (
        find_corpus(str(tmp_path / "moved")).identity()
        != find_corpus(str(tmp_path / "a")).identity()
    )


@ENDINGS
def test_chunks_are_bounded(tmp_path: Path, ending: str) -> None:
    data = b"0123456789abcdef" * (CHUNK // 16) * 3 + b"end\n"
    file = tmp_path / f"big{ending}"
    file.write_bytes(COMPRESS[ending](data))
    chunks = list(find_corpus(str(file)).chunks("train"))
    assert max(map(len, chunks)) <= CHUNK
    assert len(chunks) >= 3
    assert data.startswith(b"".join(chunks))


@REALLY
def test_memory_stays_small(tmp_path: Path, ending: str) -> None:
    block = b"a line that comes again and again, and again\n" * 23_302  # a mebibyte
    file = tmp_path / f"big{ending}"
    if ending == ".zst":
        with file.open("wb") as out, zstandard.ZstdCompressor().stream_writer(out) as big:
            for _ in range(64):
                big.write(block)
    else:
        opener: Any = gzip.open if ending == ".gz" else lzma.open
        options = {"compresslevel": 1} if ending == ".gz" else {"preset": 0}
        with opener(file, "wb", **options) as big:
            for _ in range(64):
                big.write(block)
    tracemalloc.start()
    try:
        corpus = find_corpus(str(file))
        sizes = {split: sum(map(len, corpus.chunks(split))) for split in SPLITS}
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert sum(sizes.values()) == 64 * len(block) > 64_000_000
    assert peak < 16 * 2**20


@REALLY
@pytest.mark.parametrize("damage", ["cut", "cut short", "flipped", "nonsense"])
def test_damaged_streams_are_named(tmp_path: Path, ending: str, damage: str) -> None:
    whole = COMPRESS[ending](Random(0).randbytes(200_000).replace(b"\0", b"0"))
    middle = len(whole) // 2
    flipped = whole[:middle] + bytes([whole[middle] ^ 255]) + whole[middle + 1 :]
    damaged = {
        "cut": whole[:middle],
        "cut short": whole[:-1],
        "flipped": flipped,
        "nonsense": b"this was never compressed",
    }[damage]
    if ending == ".zst" and damage == "flipped":
        # Only frames with a checksum can tell.
        damaged = bytearray(
            zstandard.ZstdCompressor(write_checksum=True).compress(b"text\n" * 1000)
        )
        damaged[-1] ^= 255
    file = tmp_path / f"bad{ending}"
    file.write_bytes(damaged)
    said = refused(file)
    assert repr(str(file)) in said
    assert f"damaged or no {ending[1:]} file" in said


def test_a_zstandard_file_cut_anywhere_is_damaged(tmp_path: Path) -> None:
    """Stored as it is, written in runs, or really compressed; with a checksum or without."""
    for data in (Random(0).randbytes(300), b"a" * 300, LINES[:300]):
        for checksum in (False, True):
            whole = zstandard.ZstdCompressor(write_checksum=checksum).compress(data)
            for stop in range(1, len(whole)):
                file = tmp_path / "cut.zst"
                file.write_bytes(whole[:stop])
                with pytest.raises(CorpusError, match=r"'.*cut\.zst' is damaged"):
                    list(read_pieces([Piece(file)]))


def test_several_frames_are_one_text(tmp_path: Path) -> None:
    for ending in (".gz", ".xz", ".zst"):
        half = len(LINES) // 2
        file = tmp_path / f"two{ending}"
        file.write_bytes(COMPRESS[ending](LINES[:half]) + COMPRESS[ending](LINES[half:]))
        assert b"".join(texts(find_corpus(str(file))).values()) == LINES


def test_a_file_that_shrinks_meanwhile_is_said(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_bytes(LINES)
    corpus = find_corpus(str(file))
    file.write_bytes(LINES[:1000])
    with pytest.raises(CorpusError, match=r"ends at byte 1,000, not at .*changed meanwhile"):
        text(corpus, "train")
    file.unlink()
    with pytest.raises(CorpusError, match=r"cannot read .*No such file"):
        corpus.identity()


def test_bytes_that_are_no_utf8_stay_as_they_are(tmp_path: Path) -> None:
    data = bytes(range(1, 256)) * 100
    file = tmp_path / "latin"
    file.write_bytes(data)
    assert b"".join(texts(find_corpus(str(file))).values()) == data


# Folders


def many(count: int = 60) -> dict[str, bytes]:
    return {f"sub-{i % 3}/{i:03}.txt": b"file %d\n" % i * (i + 5) for i in range(count)}


def test_a_folder_shares_out_whole_files(tmp_path: Path) -> None:
    files = many()
    found = texts(find_corpus(str(write(tmp_path, files))))
    assert list(found) == list(SPLITS)
    assert sum(map(len, found.values())) == sum(map(len, files.values()))
    for data in files.values():
        assert sum(data in text for text in found.values()) == 1


def test_a_folder_is_the_same_in_any_order_and_at_any_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = many()
    first = find_corpus(str(write(tmp_path / "a", files))).identity()
    names = list(files)
    Random(1).shuffle(names)
    write(tmp_path / "b" / "deeper", {name: files[name] for name in names})
    for name in names[:10]:
        os.utime(tmp_path / "b" / "deeper" / name, (0, 0))
    real = Path.iterdir
    monkeypatch.setattr(Path, "iterdir", lambda self: iter(sorted(real(self), reverse=True)))
    assert find_corpus(str(tmp_path / "b" / "deeper")).identity() == first
    monkeypatch.undo()


def test_compressing_some_files_changes_nothing(tmp_path: Path, cache: Path) -> None:
    files = many()
    plain = texts(find_corpus(str(write(tmp_path / "a", files))))
    packed = {}
    for i, (name, data) in enumerate(files.items()):
        ending = list(COMPRESS)[i % 4]
        packed[name + ending] = COMPRESS[ending](data)
    assert texts(find_corpus(str(write(tmp_path / "b", packed)))) == plain


def test_names_that_differ_only_by_compression_are_two_files(tmp_path: Path) -> None:
    files = {"a.txt": b"a\n", "a.txt.gz": gzip.compress(b"b\n"), "c.txt": b"c\n"}
    found = texts(find_corpus(str(write(tmp_path, files))))
    assert sorted(found.values()) == [b"a\n", b"b\n", b"c\n"]


def test_missing_line_ends_are_added_when_files_are_joined(tmp_path: Path) -> None:
    files = {f"{i:02}": b"word" for i in range(40)} | {"zz": gzip.compress(b"")}
    corpus = find_corpus(str(write(tmp_path / "many", files)))
    assert b"".join(texts(corpus).values()) == b"word\n" * 40
    assert sum(corpus.size(split) or 0 for split in SPLITS) == 200
    two = {"b.gz": gzip.compress(b"second" * 50), "a": b"first\n" * 50 + b"end"}
    corpus = find_corpus(str(write(tmp_path / "two", two)))
    assert b"".join(texts(corpus).values()) == b"first\n" * 50 + b"end\n" + b"second" * 50 + b"\n"
    assert sum(corpus.size(split) or 0 for split in SPLITS) == 605


@pytest.mark.parametrize("count", [1, 2])
def test_fewer_than_three_files_are_cut_like_one(tmp_path: Path, count: int) -> None:
    write(tmp_path / "folder", {f"{i}.txt": LINES for i in range(count)} | {"z.txt": b""})
    (tmp_path / "one").write_bytes(LINES * count)
    folder, one = (find_corpus(str(tmp_path / name)) for name in ("folder", "one"))
    assert texts(folder) == texts(one)
    assert folder.identity() == one.identity()


@pytest.mark.parametrize(
    "names",
    [
        ("train.txt", "valid.txt", "test.txt"),
        ("wiki.train.tokens", "wiki.valid.tokens", "wiki.test.tokens"),
        ("train", "dev", "test"),
        ("train.txt.gz", "validation.txt.xz", "test.txt.zst"),
        ("train.text", "val.text", "test.text"),
    ],
    ids=str,
)
def test_a_folder_may_bring_its_splits(tmp_path: Path, names: tuple[str, ...]) -> None:
    files = {}
    for name in names:
        ending = name[name.rfind(".") :] if "." in name else ""
        files[name] = COMPRESS.get(ending, bytes)(b"the text of %s" % name.encode())
    write(tmp_path, files | {"README.md": b"about\n", "more/train.txt": b"no\n"})
    corpus = find_corpus(str(tmp_path))
    expected = [b"the text of %s" % name.encode() for name in names]
    assert list(texts(corpus).items()) == list(zip(SPLITS, expected, strict=True))
    corpus.identity()


def test_the_size_of_a_compressed_split_is_known_once_it_was_read(tmp_path: Path) -> None:
    files = {f"{split}.txt.gz": gzip.compress(LINES) for split in SPLITS}
    corpus = find_corpus(str(write(tmp_path, files)))
    settle(*tmp_path.iterdir())
    assert corpus.size("train") is None
    corpus.identity()
    assert corpus.size("train") == len(LINES)


def test_two_files_for_one_split_are_refused(tmp_path: Path) -> None:
    names = ("train.txt", "train-2.txt", "valid.txt", "test.txt")
    write(tmp_path, dict.fromkeys(names, b"text\n"))
    said = refused(tmp_path)
    assert "train-2.txt, train.txt" in said
    corpus = find_corpus(str(tmp_path / "*.txt"))
    assert sum(map(len, texts(corpus).values())) == 20


def test_code_called_train_and_test_is_no_split(tmp_path: Path) -> None:
    write(tmp_path, {f"{name}.py": b"x = 1\n" for name in ("train", "valid", "test", "dev")})
    assert sum(map(len, texts(find_corpus(str(tmp_path))).values())) == 24


def test_hidden_and_binary_files_are_left_out(tmp_path: Path) -> None:
    files = many(10)
    first = find_corpus(str(write(tmp_path, files))).identity()
    extra = {".hidden": b"h\n", ".git/config": b"h\n", "sub-1/.x/y": b"h\n"}
    extra |= {"image.png": b"\x89PNG\0\0", "table.gz": gzip.compress(b"a\0b"), "empty": b""}
    write(tmp_path, extra)
    os.mkfifo(tmp_path / "pipe")
    assert find_corpus(str(tmp_path)).identity() == first


# Links and patterns


def test_links_lead_nowhere(tmp_path: Path) -> None:
    outside = write(
        tmp_path / "outside", {"secret.txt": b"SECRET\n", "sub/secret.txt": b"SECRET\n"}
    )
    root = write(tmp_path / "root", many(12))
    first = find_corpus(str(root)).identity()
    (root / "file.txt").symlink_to(outside / "secret.txt")
    (root / "folder").symlink_to(outside)
    (root / "sub-1" / "up").symlink_to("../..")
    (root / "loop").symlink_to(".")
    (root / "gone").symlink_to("nowhere")
    assert find_corpus(str(root)).identity() == first
    everything = find_corpus(str(root / "**"))
    assert everything.identity() == first
    for pattern in ("fold*/*", "f*/**", "*/secret.txt", "file.tx?", "**/secret*"):
        assert "no text file matches" in refused(root / pattern)


def test_splits_that_are_links_stay_inside(tmp_path: Path) -> None:
    outside = write(tmp_path / "outside", {"test.txt": b"SECRET\n"})
    root = write(tmp_path / "root", {"v1/train.txt": b"a\n", "valid.txt": b"b\n", "c.txt": b"c\n"})
    (root / "train.txt").symlink_to("v1/train.txt")
    (root / "test.txt").symlink_to(outside / "test.txt")
    assert b"SECRET" not in b"".join(texts(find_corpus(str(root))).values())
    (root / "test.txt").unlink()
    (root / "test.txt").symlink_to("c.txt")
    assert texts(find_corpus(str(root))) == {"train": b"a\n", "valid": b"b\n", "test": b"c\n"}


def test_the_folder_itself_may_be_a_link(tmp_path: Path) -> None:
    root = write(tmp_path / "root", many(12))
    (tmp_path / "link").symlink_to(root)
    assert find_corpus(str(tmp_path / "link")).identity() == find_corpus(str(root)).identity()


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*.txt", "a b"),
        ("?.txt", "a b"),
        ("[b-z].txt", "b"),
        ("*/*.txt", "c d"),
        ("**/*.txt", "a b c d e"),
        ("x/**", "c d e"),
        ("**/y/*", "e"),
        ("x/**/*.txt", "c d e"),
        ("[!a]*", "b"),
    ],
)
def test_patterns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pattern: str, expected: str
) -> None:
    names = {"a.txt": "a", "b.txt": "b", "x/c.txt": "c", "x/d.txt": "d", "x/y/e.txt": "e"}
    write(tmp_path, {name: word.encode() + b"\n" for name, word in names.items()})
    write(tmp_path, {".hidden.txt": b"h\n", "x/.z/f.txt": b"h\n"})
    monkeypatch.chdir(tmp_path)
    for given in (pattern, str(tmp_path / pattern)):
        found = b"".join(texts(find_corpus(given)).values())
        assert sorted(found.decode().split()) == expected.split()


def test_a_pattern_does_not_climb(tmp_path: Path) -> None:
    write(tmp_path, {"root/a.txt": b"a\n", "secret.txt": b"SECRET\n"})
    assert "'..' after a pattern" in refused(tmp_path / "r*" / ".." / "secret.txt")
    before = find_corpus(str(tmp_path / "root" / ".." / "sec*"))
    assert b"".join(texts(before).values()) == b"SECRET\n"


def test_a_name_with_signs_of_a_pattern_is_a_name_first(tmp_path: Path) -> None:
    write(tmp_path, {"notes[1].txt": b"in brackets\n", "notes1.txt": b"no\n"})
    corpus = find_corpus(str(tmp_path / "notes[1].txt"))
    assert b"".join(texts(corpus).values()) == b"in brackets\n"


# Errors


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("enwik9", "did you mean 'enwik8'?"),
        ("wikitext", "did you mean 'wikitext-2'?"),
        ("python-doc", "did you mean 'python-docs'?"),
        ("no/such/file.txt", "no corpus, file or folder 'no/such/file.txt'; known by name: python"),
        ("no/such/*.txt", "no text file matches 'no/such/*.txt'"),
        ("", "name a corpus"),
        ("nul\0", "no corpus, file or folder"),
        ("x" * 5000, "File name too long"),
        ("/dev/zero", "neither a plain file nor a folder"),
    ],
)
def test_unknown_sources(source: str, said: str) -> None:
    assert said in refused(source)


@ENDINGS
def test_an_empty_file_is_refused(tmp_path: Path, ending: str) -> None:
    file = tmp_path / f"empty{ending}"
    file.write_bytes(COMPRESS[ending](b""))
    assert refused(file) == f"{str(file)!r} holds no text"


def test_empty_folders_are_refused(tmp_path: Path) -> None:
    assert "holds no text" in refused(tmp_path)
    write(tmp_path, {"image.png": b"\0", "nothing.txt": b"", ".hidden": b"text\n"})
    assert "holds no text" in refused(tmp_path)


def test_empty_splits_are_refused(tmp_path: Path) -> None:
    write(tmp_path, {f"{split}.txt": b"" for split in SPLITS})
    assert "holds no text" in refused(tmp_path)


def test_a_binary_file_is_refused(tmp_path: Path) -> None:
    write(tmp_path, {"x.zip": b"PK\3\4\0\0"})
    assert "NUL" in refused(tmp_path / "x.zip")


@pytest.mark.parametrize("name", ["a.txt", "c.txt.gz"])
def test_an_unreadable_file_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    write(tmp_path, {"a.txt": b"a\n", "b.txt": b"b\n", "c.txt.gz": gzip.compress(b"c\n")})
    real = Path.open

    def denied(self: Path, *arguments: Any, **options: Any) -> Any:
        if self.name == name:
            raise PermissionError(13, "Permission denied")
        return real(self, *arguments, **options)

    monkeypatch.setattr(Path, "open", denied)
    assert refused(tmp_path) == f"cannot read {str(tmp_path / name)!r}: Permission denied"


def test_an_unknown_split_is_refused() -> None:
    corpus = find_corpus("python-docs")
    for ask in (corpus.chunks, corpus.size):
        with pytest.raises(CorpusError, match="no split 'dev'; it has train, valid, test"):
            ask("dev")


# Memory of what was read


def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Fills with the number of pieces whenever a text is counted."""
    counted: list[int] = []
    real = Digests._count

    def count(self: Digests, pieces: Any, name: str) -> Any:
        counted.append(len(pieces))
        return real(self, pieces, name)

    monkeypatch.setattr(Digests, "_count", count)
    return counted


@ENDINGS
def test_unchanged_files_are_not_read_again(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    file = tmp_path / f"notes{ending}"
    file.write_bytes(COMPRESS[ending](LINES))
    settle(file)
    first = find_corpus(str(file)).identity()
    assert json.loads((cache / INDEX).read_text())["texts"]
    counted = reads(monkeypatch)
    assert find_corpus(str(file)).identity() == first
    assert counted == []
    same = file.stat()
    file.write_bytes(COMPRESS[ending](LINES.replace(b"0001", b"1000")))
    os.utime(file, ns=(same.st_atime_ns, same.st_mtime_ns + 1))
    assert find_corpus(str(file)).identity() != first
    assert counted


def test_a_moved_file_of_the_same_look_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Same path, length and time of change, but another inode."""
    file, other = tmp_path / "a", tmp_path / "b"
    file.write_bytes(LINES)
    other.write_bytes(LINES.replace(b"0001", b"1000"))
    settle(file)
    first = find_corpus(str(file)).identity()
    os.utime(other, ns=(0, file.stat().st_mtime_ns))
    other.replace(file)
    assert find_corpus(str(file)).identity() != first


def test_files_just_written_are_not_trusted(tmp_path: Path, cache: Path) -> None:
    """Clocks tick slowly: a second change might not show."""
    file = tmp_path / "notes"
    file.write_bytes(LINES)
    first, state = find_corpus(str(file)).identity(), file.stat()
    file.write_bytes(LINES.replace(b"0001", b"1000"))
    os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert time.time_ns() - state.st_mtime_ns < digests.SETTLED_NS
    assert find_corpus(str(file)).identity() != first


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        b'{"format": "parformer-digests-1"}',
        b'{"format": "parformer-digests-1", "texts": []}',
        b'{"format": "other", "texts": {}}',
        b"[" * 100_000,
    ],
    ids=range(8),
)
def test_a_damaged_index_is_built_anew(tmp_path: Path, cache: Path, damage: bytes) -> None:
    file = tmp_path / "notes.gz"
    file.write_bytes(gzip.compress(LINES))
    settle(file)
    first = find_corpus(str(file)).identity()
    whole = (cache / INDEX).read_bytes()
    (cache / INDEX).write_bytes(damage)
    assert find_corpus(str(file)).identity() == first
    assert json.loads((cache / INDEX).read_text()) == json.loads(whole)


@pytest.mark.parametrize(
    "record", [[1, 2], [1, 2, True, "short"], ["1", 2, True, "0" * 64], [1, 2, 3, "0" * 64], None]
)
def test_records_that_make_no_sense_are_not_believed(
    tmp_path: Path, cache: Path, record: Any
) -> None:
    file = tmp_path / "notes.gz"
    file.write_bytes(gzip.compress(LINES))
    settle(file)
    first = find_corpus(str(file)).identity()
    index = json.loads((cache / INDEX).read_text())
    index["texts"] = dict.fromkeys(index["texts"], record)
    (cache / INDEX).write_text(json.dumps(index))
    assert find_corpus(str(file)).identity() == first


def test_a_cache_that_cannot_be_written_is_no_hindrance(tmp_path: Path) -> None:
    write(tmp_path, {"cache": b"a file in the way", "notes.gz": gzip.compress(LINES)})
    settle(tmp_path / "notes.gz")
    corpus = find_corpus(str(tmp_path / "notes.gz"), cache=tmp_path / "cache")
    assert len(corpus.identity()) == 64


def test_the_index_is_written_whole_or_not_at_all(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, {"a": LINES, "b": LINES + b"more\n"})
    settle(tmp_path / "a", tmp_path / "b")
    find_corpus(str(tmp_path / "a")).identity()
    before = (cache / INDEX).read_bytes()

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    find_corpus(str(tmp_path / "b")).identity()
    assert (cache / INDEX).read_bytes() == before
    assert [path.name for path in cache.iterdir()] == [INDEX]


def test_the_index_forgets_what_is_oldest(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digests, "LIMIT", 5)
    for i in range(4):
        file = tmp_path / f"{i}.txt"
        file.write_bytes(LINES + b"%d\n" % i)
        settle(file)
        find_corpus(str(file)).identity()
    assert len(json.loads((cache / INDEX).read_text())["texts"]) == 5
    counted = reads(monkeypatch)
    find_corpus(str(file)).identity()
    assert counted == []


def test_progress_is_told(tmp_path: Path) -> None:
    told: list[tuple[str, float]] = []
    file = tmp_path / "notes.gz"
    file.write_bytes(gzip.compress(LINES * 20))
    find_corpus(str(file), progress=lambda *step: told.append(step))
    assert told
    assert told[-1][0].startswith("reading notes.gz, ")


# Pieces, the list and the cache


def test_pieces_are_read_in_order_from_start_to_stop(tmp_path: Path) -> None:
    for ending, compress in COMPRESS.items():
        file = tmp_path / f"x{ending}"
        file.write_bytes(compress(b"0123456789" * 300_000))
        pieces = [Piece(file, 2_000_003, 2_999_999), Piece(b"abcdef", 1, 4), Piece(file, 5, 5)]
        read = b"".join(read_pieces([*pieces, Piece(file, 2_999_990)]))
        whole = b"0123456789" * 300_000
        assert read == whole[2_000_003:2_999_999] + b"bcd" + whole[-10:]


def test_files_are_closed_when_reading_stops(tmp_path: Path) -> None:
    for ending, compress in COMPRESS.items():
        file = tmp_path / f"x{ending}"
        file.write_bytes(compress(LINES))
        before = len(list(Path("/proc/self/fd").iterdir()))
        chunks = find_corpus(str(file)).chunks("train")
        next(chunks)
        del chunks
        assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_all_names_are_listed(cache: Path) -> None:
    listed = {listing.name: listing for listing in corpora()}
    assert list(listed) == [
        "python-docs",
        "python-source",
        "enwik8",
        "text8",
        "wikitext-2",
        "wikitext-103",
        "lm1b",
        *("multi30k", "iwslt14", "wmt14-en-de", "wmt14-en-fr", "cnn-dailymail"),
    ]
    for name, listing in listed.items():
        assert listing.about
        assert listing.licence
        assert listing.built_in == listing.present == (not listing.address) == ("python" in name)
    docs = find_corpus("python-docs")
    assert listed["python-docs"].bytes == sum(docs.size(split) or 0 for split in SPLITS)
    assert listed["enwik8"].bytes == 100_000_000


def test_the_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    monkeypatch.setenv("PARFORMER_CACHE", "/own")
    assert cache_folder() == Path("/own")
    monkeypatch.setenv("PARFORMER_CACHE", "~/mine")
    assert cache_folder() == tmp_path / "mine"
    monkeypatch.setenv("PARFORMER_CACHE", "")
    assert cache_folder() == Path("/xdg/parformer")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == tmp_path / ".cache" / "parformer"


def test_neither_torch_nor_numpy_is_needed() -> None:
    code = (
        "import sys; from parformer.data import find_corpus;"
        "find_corpus('python-source').identity();"
        "sys.exit(bool({'torch', 'numpy', 'zstandard'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_identity_is_what_it_says(tmp_path: Path) -> None:
    """It stands in the manifests of models: it must not change from version to version."""
    write(tmp_path, {f"{split}.txt": split.encode() for split in SPLITS})
    expected = hashlib.sha256(b"parformer-corpus-1\n")
    for split in SPLITS:
        digest = hashlib.sha256(split.encode()).hexdigest()
        expected.update(f"{split} {len(split)} {digest}\n".encode())
    assert find_corpus(str(tmp_path)).identity() == expected.hexdigest()


def test_files_that_are_no_text_are_counted(tmp_path: Path) -> None:
    write(tmp_path, {f"{i}.txt": b"plain text\n" * 9 for i in range(4)})
    write(tmp_path, {"other.txt": "a few words".encode("utf-16-le")})
    corpus = find_corpus(str(tmp_path))
    assert corpus.left_out == 1
    assert corpus.about.startswith("a folder of 4 text files; 1 left out for NUL bytes")


def test_a_name_that_is_not_utf8_is_refused_at_once() -> None:
    with pytest.raises(CorpusError, match="is not UTF-8") as caught:
        find_corpus("caf\udce9.txt")
    str(caught.value).encode()
