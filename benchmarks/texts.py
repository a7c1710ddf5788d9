"""Which texts are the trials of learning and fitting made of?

    python benchmarks/texts.py TEXTS --data DATA [--pages PAGES]

Writes one file a text into the folder TEXTS: prose, newspaper, code, logs, tables, JSON, a made-up
genome, and manual pages in other scripts. DATA holds public corpora as packed files (enwik8,
wikitext-2, wiki_en_2015, summarization, squad, translation, multi30k, each a folder); PAGES is
where Debian's manpages-zh, manpages-ja and manpages-ru were unpacked. What is not there is left
out, and said. The made-up texts are the same on every machine; `code` and `log` are this one's.
"""

from __future__ import annotations

import argparse
import gzip
import json
import lzma
import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from parformer.data.corpora import find_corpus

MB = 1_000_000


def packed(file: Path) -> bytes:
    opener = gzip.open if file.suffix == ".gz" else lzma.open
    with opener(file, "rb") as stream:
        return bytes(stream.read())


def rows(file: Path) -> Iterator[dict[str, str]]:
    for line in packed(file).splitlines():
        yield json.loads(line)


def captions(data: Path) -> bytes:
    return packed(data / "multi30k" / "train.en.gz")[:100_000]


def wikitext(data: Path) -> bytes:
    return packed(data / "wikitext-2" / "train.txt.xz").decode().lower().encode()[: 5 * MB]


def enwik8(data: Path) -> bytes:
    return packed(data / "enwik8" / "enwik8.first10MB.xz")


def wikipedia(data: Path) -> bytes:
    return packed(data / "wiki_en_2015" / "wiki2015.AC.0.txt.xz")[: 20 * MB]


def newspaper(data: Path) -> bytes:
    folder = data / "summarization"
    names = ("bbc_news_summary.jsonl.xz", "cnn_dailymail.validation-1000.jsonl.xz")
    articles = [row["article"].strip() for name in names for row in rows(folder / name)]
    return "\n\n".join(articles).encode()


def short_newspaper(data: Path) -> bytes:
    return newspaper(data)[:50_000].decode("utf-8", "ignore").encode()


def german(data: Path) -> bytes:
    lines = packed(data / "translation" / "tatoeba2018.en-de.tsv.xz").decode().splitlines()
    return "\n".join(line.split("\t")[1] for line in lines).encode()


def one_json(data: Path) -> bytes:
    return packed(data / "squad" / "dev-v1.1.json.xz")


def pages(language: str) -> Callable[[Path], bytes]:
    def read(folder: Path) -> bytes:
        files = sorted(folder.glob(f"usr/share/man/{language}/man*/*.gz"))
        text = b"\n".join(gzip.decompress(file.read_bytes()) for file in files)
        if not text:
            raise FileNotFoundError(f"no manual pages in {folder / 'usr/share/man' / language}")
        return text[: 6 * MB].decode("utf-8", "ignore").encode()

    return read


def code(_: Path) -> bytes:
    corpus = find_corpus("python-source")
    return b"".join(part for name in corpus.splits for part in corpus.chunks(name))


def log(_: Path) -> bytes:
    """Names, sizes, owners and times of this machine's files, in the order of their times."""
    found = []
    for folder, _names, files in os.walk("/usr"):
        for name in files:
            path = Path(folder, name)
            if not path.is_symlink() and len(found) < 40_000:
                kept = path.stat()
                found.append((kept.st_mtime, str(path), kept.st_size, kept.st_uid, kept.st_mode))
    stamp = "%Y-%m-%dT%H:%M:%S"
    lines = [
        f"{datetime.fromtimestamp(at, UTC):{stamp}} INFO uid={uid} mode={mode:o} size={size} {path}"
        for at, path, size, uid, mode in sorted(found)
    ]
    return "\n".join(lines).encode("utf-8", "replace")


def table(_: Path) -> bytes:
    """Times, stations, and numbers that depend on each other."""
    rng = np.random.default_rng(0)
    stations = ["north", "harbour", "airport", "old-town", "hill"]
    level = np.zeros(len(stations))
    lines = ["time,station,temperature,humidity,pressure,wind"]
    for hour in range(40_000):
        place = hour % len(stations)
        level[place] = 0.95 * level[place] + rng.normal()
        warm = 12 + 8 * np.sin(hour / 5 * 2 * np.pi / 24) + level[place]
        damp = np.clip(90 - 1.5 * warm + rng.normal(0, 3), 5, 100)
        when = np.datetime64("2020-01-01T00:00") + np.timedelta64(12 * hour, "m")
        lines.append(
            f"{when},{stations[place]},{warm:.1f},{damp:.0f},"
            f"{1013 - level[place]:.1f},{abs(rng.normal(4, 2)):.1f}"
        )
    return "\n".join(lines).encode()


def dna(_: Path) -> bytes:
    """Four letters: motifs that recur with mutations, between stretches of chance."""
    rng = np.random.default_rng(0)
    letters = np.frombuffer(b"ACGT", np.uint8)
    motifs = [rng.integers(0, 4, int(size)) for size in rng.integers(40, 400, 60)]
    parts, size = [], 0
    while size < 2 * MB:
        motif = motifs[int(rng.integers(len(motifs)))].copy()
        changed = rng.random(len(motif)) < 0.05
        motif[changed] = rng.integers(0, 4, int(changed.sum()))
        parts += [motif, rng.integers(0, 4, int(rng.integers(20, 300)))]
        size += len(parts[-1]) + len(motif)
    return letters[np.concatenate(parts)][: 2 * MB].tobytes()


TEXTS: dict[str, Callable[[Path], bytes]] = {
    "captions-100kB": captions,
    "code": code,
    "csv": table,
    "dna": dna,
    "enwik8": enwik8,
    "german": german,
    "json": one_json,
    "log": log,
    "newspaper": newspaper,
    "newspaper-50kB": short_newspaper,
    "wikipedia": wikipedia,
    "wikitext-2": wikitext,
}
PAGES = {"chinese": pages("zh_CN"), "japanese": pages("ja"), "russian": pages("ru")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("texts", type=Path, help="the folder to write")
    parser.add_argument("--data", type=Path, required=True, help="where the corpora are")
    parser.add_argument("--pages", type=Path, help="where manual pages were unpacked")
    given = parser.parse_args()
    given.texts.mkdir(parents=True, exist_ok=True)
    jobs = [(name, make, given.data) for name, make in TEXTS.items()]
    jobs += [(name, make, given.pages) for name, make in PAGES.items() if given.pages]
    for name, make, source in jobs:
        try:
            text = make(source)
        except OSError as error:
            print(f"{name}: left out, {error}")
            continue
        (given.texts / f"{name}.txt").write_bytes(text)
        print(f"{name}: {len(text) / MB:.1f} MB")


if __name__ == "__main__":
    main()
