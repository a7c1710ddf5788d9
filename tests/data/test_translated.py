"""Are published pairs fetched whole, taken apart as published, and is a smaller copy told?"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from parformer.cli import main
from parformer.data import corpora, find_corpus
from parformer.data.corpora import Corpus
from parformer.data.pairs import Filters, find_pairs
from parformer.data.translated import TRANSLATED, Fetched
from parformer.errors import CorpusError
from parformer.store import download
from tests.data.test_published import tarred
from tests.store.test_download import Handler, Server

TEXTS = {
    "train.de.gz": "ein Hund\nzwei Hunde\ndrei\n",
    "train.en.gz": "a dog\ntwo dogs\nthree\n",
    "val.de.gz": "eins\n",
    "val.en.gz": "one\n",
    "test_2016_flickr.de.gz": "vier\n",
    "test_2016_flickr.en.gz": "four\n",
}
FILES = {name: gzip.compress(text.encode()) for name, text in TEXTS.items()}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PARFORMER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(download.time, "sleep", lambda seconds: None)
    return tmp_path / "cache"


@pytest.fixture
def online(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[dict[str, bytes]], Server]]:
    """Files by the last part of their address."""
    servers: list[Server] = []

    def start(files: dict[str, bytes]) -> Server:
        def answer(handler: Handler, _: int) -> None:
            handler.send(files[handler.path.rpartition("/")[2]])

        servers.append(Server(answer))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def small(name: str, server: Server, files: dict[str, bytes], **changes: object) -> None:
    """A corpus with a few files in the place of the real ones."""
    host = server.address.rpartition("/")[0]
    known = {
        file: Fetched(
            address=f"{host}/{file}", size=len(data), sha256=hashlib.sha256(data).hexdigest()
        )
        for file, data in files.items()
    }
    TRANSLATED[name] = replace(TRANSLATED[name], files=known, **changes)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    before = dict(TRANSLATED)
    yield
    TRANSLATED.update(before)


def texts(corpus: Corpus) -> dict[str, str]:
    return {split: b"".join(corpus.chunks(split)).decode() for split in corpus.splits}


def test_pairs_are_fetched_once_and_checked(
    online: Callable[[dict[str, bytes]], Server], cache: Path
) -> None:
    server = online(FILES)
    counts = {"train": 3, "valid": 1, "test": 1}
    small("multi30k", server, FILES, counts=counts)
    found = find_pairs("multi30k", "de-en", Filters())
    wanted = {
        "train": "ein Hund\ta dog\nzwei Hunde\ttwo dogs\ndrei\tthree\n",
        "valid": "eins\tone\n",
        "test": "vier\tfour\n",
    }
    assert texts(found) == wanted
    assert "published" not in found.about
    assert len(server.seen) == 6
    again = find_pairs("multi30k", "en-de", Filters(lower=True))
    assert texts(again)["test"] == "four\tvier\n"
    assert len(server.seen) == 6
    assert {one.name: one.present for one in corpora()}["multi30k"]


def test_another_file_is_refused(online: Callable[[dict[str, bytes]], Server]) -> None:
    small("multi30k", online(FILES | {"val.en.gz": gzip.compress(b"two\n")}), FILES)
    with pytest.raises(CorpusError, match=r"val\.en\.gz"):
        find_pairs("multi30k", "de-en", Filters())
    assert not {one.name: one.present for one in corpora()}["multi30k"]


def test_a_copy_that_is_smaller_is_told(tmp_path: Path) -> None:
    for name, data in FILES.items():
        (tmp_path / name).write_bytes(data)
    found = find_pairs("multi30k", "de-en", Filters(), local=tmp_path)
    assert found.note == (
        "train has 3 pairs, published 29,000; valid has 1 pairs, published 1,014; "
        "test has 1 pairs, published 1,000"
    )


TALK = """<doc>
<url>http://ted</url>
<talkid>1</talkid>
<title>{0} title</title>
<description>TED Talk: {0}</description>
{1}
</doc>
"""


def talks(side: str, lines: int) -> bytes:
    said = "\n".join(f" {side} line {n} here " for n in range(lines))
    uneven = "one" if side == "de" else "one two three four"
    return TALK.format(side, f"{said}\n{uneven}").encode()


def test_iwslt14_is_split_as_fairseqs_script_does(
    online: Callable[[dict[str, bytes]], Server], cache: Path
) -> None:
    """Every 23rd pair that is left validates, beginning with the first; five sets are the test."""
    inside: dict[str, bytes] = {}
    for side in ("de", "en"):
        inside[f"de-en/train.tags.de-en.{side}"] = talks(side, 45)
        for year in ("tst2012", "dev2010", "tst2011", "dev2012", "tst2010"):
            segment = f'<doc><seg id="1"> {side} {year} </seg>\n<seg id="2">b</seg>\n</doc>\n'
            inside[f"de-en/IWSLT14.TED.{year}.de-en.{side}.xml"] = segment.encode()
    archive = tarred(inside)
    server = online({"de-en.tgz": archive})
    small("iwslt14", server, {"de-en.tgz": archive})
    found = find_pairs("iwslt14", "de-en", Filters())
    lines = {split: text.splitlines() for split, text in texts(found).items()}
    # title, description and 45 lines; the last is too uneven
    assert len(lines["train"]) == 44
    assert lines["valid"] == [
        "de title\ten title",
        "de line 21 here\ten line 21 here",
        "de line 44 here\ten line 44 here",
    ]
    assert lines["train"][0] == "TED Talk: de\tTED Talk: en"
    years = ("dev2010", "dev2012", "tst2010", "tst2011", "tst2012")
    assert lines["test"][::2] == [f"de {year}\ten {year}" for year in years]
    assert "train has 44 pairs, published 160,239" in found.note
    find_pairs("iwslt14", "de-en", Filters())
    assert len(server.seen) == 1
    assert not (cache / "downloads" / "de-en.tgz").exists()


def test_an_archive_of_something_else(tmp_path: Path) -> None:
    (tmp_path / "de-en.tgz").write_bytes(tarred({"de-en/readme": b"hello"}))
    with pytest.raises(CorpusError, match=r"cannot read .*de-en\.tgz"):
        find_pairs("iwslt14", "de-en", Filters(), local=tmp_path / "de-en.tgz")


def test_what_is_not_fetched_says_where_it_lies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train = ["train", "transformer-pocket-translation", "--data", "cnn-dailymail"]
    where = ["--pair", "article-highlights", "--run", str(tmp_path / "run")]
    assert main([*train, *where]) == 2
    said = capsys.readouterr().err
    assert "huggingface.co/datasets/abisee/cnn_dailymail" in said
    assert "--from FOLDER" in said
    assert not (tmp_path / "run").exists()
    assert main([*train, *where, "--from", str(tmp_path / "nothing")]) == 2
    assert "is no folder" in capsys.readouterr().err


def test_pairs_are_no_plain_text(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="--data multi30k --pair de-en"):
        find_corpus("multi30k")
    with pytest.raises(CorpusError, match="--from is for the published pairs"):
        find_pairs(str(tmp_path), "de-en", Filters(), local=tmp_path)
