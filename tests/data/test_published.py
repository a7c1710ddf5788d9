"""Is a published corpus what it claims to be, from the network or from the user's own copy?"""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import io
import lzma
import os
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from parformer.data import Corpus, corpora, find_corpus, published
from parformer.data.archives import unpack
from parformer.data.published import LM1B, PUBLISHED, Published
from parformer.errors import CorpusError
from parformer.store import download
from tests.store.test_download import Answer, Server

SPLITS = ("train", "valid", "test")
NAMES = pytest.mark.parametrize("name", PUBLISHED)

BYTES = bytes(range(1, 201)) * 5
"""What stands for enwik8: a thousand bytes."""

EVIL = {"../evil": b"evil", "/tmp/evil": b"evil", "..\\evil": b"evil", "a/../../evil": b"evil"}


def zipped(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return out.getvalue()


def tarred(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    return out.getvalue()


WIKI = {f"wikitext-2/wiki.{s}.tokens": b" = %s = \n \n some words \n" % s.encode() for s in SPLITS}
NEWS = {
    f"{LM1B}/training-monolingual.tokenized.shuffled/news.en-{i:05}-of-00100": b"shard %d\n" % i
    for i in range(99, 0, -1)
} | {
    f"{LM1B}/heldout-monolingual.tokenized.shuffled/news.en.heldout-{i:05}-of-00050": b"held %d\n"
    % i
    for i in range(5)
}
INSIDE = {"enwik8": {"enwik8": BYTES}, "wikitext-2": WIKI, "lm1b": NEWS}
EXPECTED = {
    "enwik8": {"train": BYTES[:900], "valid": BYTES[900:950], "test": BYTES[950:]},
    "wikitext-2": {s: WIKI[f"wikitext-2/wiki.{s}.tokens"] for s in SPLITS},
    "lm1b": {
        "train": b"".join(b"shard %d\n" % i for i in range(1, 100)),
        "valid": b"held 1\n",
        "test": b"held 0\n",
    },
}
ARCHIVES = {
    name: (tarred if name == "lm1b" else zipped)(EVIL | files) for name, files in INSIDE.items()
}
SMALL = pytest.mark.parametrize("name", INSIDE)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small world: archives of a few bytes in the place of the real ones."""
    monkeypatch.setenv("PARFORMER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(download.time, "sleep", lambda seconds: None)
    changes: dict[str, dict[str, Any]] = {
        "enwik8": {
            "cuts": {"train": (0, 900), "valid": (900, 950), "test": (950, 1000)},
            "text_size": 1000,
            "text_sha256": hashlib.sha256(BYTES).hexdigest(),
        },
        "wikitext-2": {"lines": dict.fromkeys(SPLITS, 3)},
        "lm1b": {"lines": {"train": 99}},
    }
    for name, archive in ARCHIVES.items():
        small = replace(
            PUBLISHED[name],
            size=len(archive),
            sha256=hashlib.sha256(archive).hexdigest(),
            addresses=("http://127.0.0.1:9/" + PUBLISHED[name].archive,),
            **changes[name],
        )
        monkeypatch.setitem(PUBLISHED, name, small)
    return tmp_path / "cache"


@pytest.fixture
def online(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, Answer], Server]]:
    servers: list[Server] = []

    def start(name: str, answer: Answer) -> Server:
        servers.append(Server(answer))
        host = servers[-1].address.rpartition("/")[0]
        here = replace(PUBLISHED[name], addresses=(f"{host}/{PUBLISHED[name].archive}",))
        monkeypatch.setitem(PUBLISHED, name, here)
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def texts(corpus: Corpus) -> dict[str, bytes]:
    return {split: b"".join(corpus.chunks(split)) for split in corpus.splits}


def write(root: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


def refused(name: str, local: Path | None = None) -> str:
    with pytest.raises(CorpusError) as caught:
        find_corpus(name, local=local)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def is_present(name: str) -> bool:
    return {listing.name: listing.present for listing in corpora()}[name]


# From the network


@SMALL
def test_a_corpus_is_downloaded_once(
    name: str, online: Callable[[str, Answer], Server], tmp_path: Path, cache: Path
) -> None:
    server = online(name, lambda self, n: self.send(ARCHIVES[name], cut=100))
    assert not is_present(name)
    told: list[tuple[str, float]] = []
    corpus = find_corpus(name, progress=lambda *step: told.append(step))
    assert texts(corpus) == EXPECTED[name]
    assert is_present(name)
    assert {what.split()[0] for what, _ in told} == {"downloading", "unpacking"}
    asked = len(server.seen)
    assert find_corpus(name).identity() == corpus.identity()
    assert len(server.seen) == asked > 1
    assert [p.name for p in (cache / "downloads").iterdir() if p.suffix != ".lock"] == []
    assert not list(tmp_path.rglob("*evil*"))
    assert not Path("/tmp/evil").exists()


def test_the_next_address_is_tried(
    online: Callable[[str, Answer], Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = online("enwik8", lambda self, n: self.send(ARCHIVES["enwik8"]))
    good = PUBLISHED["enwik8"].addresses[0]
    both = replace(PUBLISHED["enwik8"], addresses=("http://127.0.0.1:9/enwik8.zip", good))
    monkeypatch.setitem(PUBLISHED, "enwik8", both)
    assert texts(find_corpus("enwik8")) == EXPECTED["enwik8"]
    assert len(server.seen) == 1


def test_no_network_says_what_to_do(cache: Path) -> None:
    said = refused("enwik8")
    assert "http://127.0.0.1:9/enwik8.zip" in said
    assert "download it yourself and give --from PATH" in said


def test_a_wrong_archive_is_not_unpacked(
    online: Callable[[str, Answer], Server], cache: Path
) -> None:
    wrong = bytearray(ARCHIVES["enwik8"])
    wrong[-1] ^= 1
    online("enwik8", lambda self, n: self.send(bytes(wrong)))
    assert "SHA-256" in refused("enwik8")
    assert not is_present("enwik8")
    assert not list(cache.rglob("enwik8"))


def test_a_cache_that_lost_a_file_is_filled_again(
    online: Callable[[str, Answer], Server], cache: Path
) -> None:
    online("wikitext-2", lambda self, n: self.send(ARCHIVES["wikitext-2"]))
    find_corpus("wikitext-2")
    (cache / "corpora" / "wikitext-2" / "wiki.test.tokens").unlink()
    assert not is_present("wikitext-2")
    assert texts(find_corpus("wikitext-2")) == EXPECTED["wikitext-2"]


# From a local copy


@SMALL
def test_a_local_archive(name: str, tmp_path: Path) -> None:
    archive = tmp_path / "mine" / PUBLISHED[name].archive
    write(tmp_path, {str(archive): ARCHIVES[name]})
    assert texts(find_corpus(name, local=archive)) == EXPECTED[name]
    assert not list(tmp_path.rglob("*evil*"))


@SMALL
def test_a_folder_with_the_archive(name: str, tmp_path: Path) -> None:
    write(tmp_path / "mine", {PUBLISHED[name].archive: ARCHIVES[name]})
    assert texts(find_corpus(name, local=tmp_path / "mine")) == EXPECTED[name]


@SMALL
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_an_unpacked_archive(name: str, tmp_path: Path, ending: str) -> None:
    pack: Callable[[bytes], bytes] = gzip.compress if ending else bytes
    files = {member + ending: pack(data) for member, data in INSIDE[name].items()}
    root = write(tmp_path / "mine", files)
    corpus = find_corpus(name, local=root)
    assert texts(corpus) == EXPECTED[name]
    top = next(iter(files)).split("/")[0]
    deeper = find_corpus(name, local=root / top)
    assert texts(deeper) == EXPECTED[name]
    archive = tmp_path / PUBLISHED[name].archive
    archive.write_bytes(ARCHIVES[name])
    assert find_corpus(name, local=archive).identity() == corpus.identity() == deeper.identity()


@SMALL
def test_a_folder_with_splits(name: str, tmp_path: Path) -> None:
    files = {f"{split}.txt.xz": lzma.compress(data) for split, data in EXPECTED[name].items()}
    root = write(tmp_path / "mine", files | {"README.md": b"about\n"})
    corpus = find_corpus(name, local=str(root))
    assert texts(corpus) == EXPECTED[name]
    archive = tmp_path / PUBLISHED[name].archive
    archive.write_bytes(ARCHIVES[name])
    assert find_corpus(name, local=archive).identity() == corpus.identity()


def test_only_the_splits_that_are_there(tmp_path: Path) -> None:
    files = {f"enwik8.{s}.bytes-{s}.xz": lzma.compress(EXPECTED["enwik8"][s]) for s in SPLITS[1:]}
    root = write(tmp_path / "mine", files | {"enwik8.first.xz": lzma.compress(BYTES[:100])})
    corpus = find_corpus("enwik8", local=root)
    assert corpus.splits == ("valid", "test")
    assert texts(corpus) == {s: EXPECTED["enwik8"][s] for s in SPLITS[1:]}
    with pytest.raises(CorpusError, match="no split 'train'; it has valid, test"):
        corpus.chunks("train")
    wiki = write(tmp_path / "wiki", {"wiki.valid.tokens": EXPECTED["wikitext-2"]["valid"]})
    assert find_corpus("wikitext-2", local=wiki).splits == ("valid",)


@pytest.mark.parametrize("ending", ["", ".gz", ".xz"])
def test_one_local_text(tmp_path: Path, ending: str) -> None:
    pack: Callable[[bytes], bytes] = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}[ending]
    file = tmp_path / f"any name{ending}"
    file.write_bytes(pack(BYTES))
    corpus = find_corpus("enwik8", local=file)
    assert texts(corpus) == EXPECTED["enwik8"]
    assert [corpus.size(split) for split in SPLITS] == [900, 50, 50]
    file.write_bytes(pack(BYTES[:-1]))
    assert refused("enwik8", file) == f"{str(file)!r} holds 999 bytes, but enwik8 has 1,000"
    file.write_bytes(pack(BYTES[::-1]))
    assert "another text: its SHA-256" in refused("enwik8", file)


def test_splits_of_another_size_are_refused(tmp_path: Path) -> None:
    root = write(tmp_path / "mine", {f"{s}.txt": EXPECTED["enwik8"][s] for s in SPLITS})
    (root / "valid.txt").write_bytes(b"x" * 49)
    place = repr(str(root / "valid.txt"))
    assert refused("enwik8", root) == f"{place} holds 49 bytes, but valid of enwik8 has 50"
    said = refused("wikitext-2", root)
    assert "lines, but train of wikitext-2 has 3" in said


def test_a_wrong_local_archive_is_refused(tmp_path: Path) -> None:
    archive = tmp_path / "enwik8.zip"
    archive.write_bytes(ARCHIVES["enwik8"] + b"more")
    size = len(ARCHIVES["enwik8"])
    assert f"it has {size + 4:,} bytes, not {size:,}" in refused("enwik8", archive)
    archive.write_bytes(bytes(size))
    assert "its SHA-256 is" in refused("enwik8", archive)


def test_local_copies_that_are_none(tmp_path: Path) -> None:
    assert "No such file" in refused("enwik8", tmp_path / "nothing")
    root = write(tmp_path / "mine", {"notes.md": b"text\n"})
    said = refused("enwik8", root)
    assert "holds neither enwik8.zip nor enwik8 nor files for train, valid or test" in said
    assert "is one file" in refused("wikitext-2", root / "notes.md")
    with pytest.raises(CorpusError, match="--from is for the published corpora enwik8, "):
        find_corpus("python-docs", local=root)


def test_links_out_of_a_local_copy_are_not_followed(tmp_path: Path) -> None:
    outside = write(tmp_path / "outside", {"enwik8": BYTES, "train.txt": BYTES[:900]})
    root = write(tmp_path / "mine", {})
    root.mkdir()
    (root / "enwik8").symlink_to(outside / "enwik8")
    (root / "train.txt").symlink_to(outside / "train.txt")
    (root / "wikitext-2").symlink_to(outside)
    assert "holds neither" in refused("enwik8", root)


# Archives


@pytest.mark.parametrize("kind", ["zip", "tar.gz"])
def test_only_expected_members_leave_an_archive(tmp_path: Path, kind: str) -> None:
    pack = zipped if kind == "zip" else tarred
    archive = tmp_path / f"x.{kind}"
    archive.write_bytes(pack(EVIL | {"a/text": b"good\n", "text": b"not asked for\n"}))
    unpack(archive, {"a/text": "mine"}, tmp_path / "in" / "out", None)
    found = [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")]
    assert sorted(found) == ["in", "in/out", "in/out/mine", f"x.{kind}"]
    assert (tmp_path / "in" / "out" / "mine").read_bytes() == b"good\n"


def test_links_in_an_archive_are_no_members(tmp_path: Path) -> None:
    archive = tmp_path / "x.tar.gz"
    archive.write_bytes(tarred({"a": b"a"}))
    with pytest.raises(CorpusError, match="lacks link"):
        unpack(archive, {"link": "mine"}, tmp_path / "out", None)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", ["zip", "tar.gz"])
def test_damaged_archives_leave_nothing(tmp_path: Path, kind: str) -> None:
    pack = zipped if kind == "zip" else tarred
    whole = pack({"a": os.urandom(5000), "b": os.urandom(5000)})
    archive = tmp_path / f"x.{kind}"
    flipped = whole[:3000] + bytes([whole[3000] ^ 1]) + whole[3001:]
    for damaged in (whole[:3000], b"nonsense" * 100, flipped):
        archive.write_bytes(damaged)
        with pytest.raises(CorpusError) as caught:
            unpack(archive, {"a": "a", "b": "b"}, tmp_path / "out", None)
        assert str(archive) in str(caught.value)
        assert [path.name for path in tmp_path.iterdir()] == [archive.name]


def test_a_folder_that_another_process_made_first_is_kept(tmp_path: Path) -> None:
    archive = tmp_path / "x.zip"
    archive.write_bytes(zipped({"a": b"ours"}))
    write(tmp_path / "out", {"a": b"theirs"})
    unpack(archive, {"a": "a"}, tmp_path / "out", None)
    assert (tmp_path / "out" / "a").read_bytes() == b"theirs"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "x.zip"]


def test_a_place_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    write(tmp_path, {"x.zip": zipped({"a": b"a"}), "file": b""})
    with pytest.raises(CorpusError, match=r"cannot unpack .*; name another folder"):
        unpack(tmp_path / "x.zip", {"a": "a"}, tmp_path / "file" / "out", None)


# The registry


@NAMES
def test_every_entry_can_be_checked(name: str) -> None:
    entry = {corpus.name: corpus for corpus in _real()}[name]
    assert entry.name == name
    assert entry.size > 10**6
    assert len(entry.sha256) == 64
    assert int(entry.sha256, 16) > 0
    assert tuple(entry.members) == SPLITS
    assert len({address.rpartition("/")[2] for address in entry.addresses}) == 1
    assert all(address.startswith(("https://", "http://")) for address in entry.addresses)
    assert len({member.rpartition("/")[2] for member in entry.wanted}) == len(entry.wanted)
    if entry.cuts:
        assert list(entry.cuts) == list(SPLITS)
        starts = [start for start, _ in entry.cuts.values()]
        stops = [stop for _, stop in entry.cuts.values()]
        assert starts == [0, *stops[:-1]]
        assert stops[-1] == entry.text_size
        assert len(entry.text_sha256) == 64


def _real() -> list[Published]:
    """The registry as it is written, without this file's small world."""
    spec = importlib.util.spec_from_file_location("published_as_written", published.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[spec.name]
    return list(module.PUBLISHED.values())


def test_what_the_benchmarks_are() -> None:
    """Splits as every paper has them; enwik8's sums as the Hutter Prize publishes the file."""
    real = {corpus.name: corpus for corpus in _real()}
    for name in ("enwik8", "text8"):
        sizes = [stop - start for start, stop in real[name].cuts.values()]
        assert sizes == [90_000_000, 5_000_000, 5_000_000]
    assert real["enwik8"].text_sha256.startswith("2b49720ec4d78c3c9fabaee6e4179a5e")
    assert real["wikitext-103"].lines == {"train": 1_801_350, "valid": 3_760, "test": 4_358}
    assert len(real["lm1b"].members["train"]) == 99
    assert real["lm1b"].members["test"][0].endswith("news.en.heldout-00000-of-00050")
    assert real["lm1b"].members["valid"] != real["lm1b"].members["test"]
