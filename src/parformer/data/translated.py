"""Which pairs of texts do the papers measure on, and where do they lie?

What can be fetched as it is needed has its addresses here, with length and SHA-256 where they are
known; of the rest it is said where it lies, and `--from` takes a copy. How many pairs each split
has as published is compared with what is found, and a difference is told.
"""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from parformer.data.reading import unreadable
from parformer.errors import CorpusError
from parformer.events import Preparing
from parformer.store.download import fetch
from parformer.store.files import replace_file

Pair = tuple[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Fetched:
    """A file of a corpus."""

    address: str
    size: int | None = None
    sha256: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class TranslatedCorpus:
    """Pairs as their authors published them."""

    name: str
    about: str
    licence: str
    pair: str
    """The names of both sides, such as de-en."""
    address: str
    """Where one reads about it."""
    counts: Mapping[str, int]
    """Pairs of each split as published."""
    files: Mapping[str, Fetched] = field(default_factory=dict)
    """What is fetched, by the name that it gets; nothing where that is left to the user."""
    archive: str = ""
    """The one of them that has to be taken apart."""

    @property
    def size(self) -> int:
        return sum(file.size or 0 for file in self.files.values())


CAPTIONS = "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw"
STANFORD = "https://nlp.stanford.edu/projects/nmt/data/wmt14.en-de"
TED = "http://dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz"


def _captions(name: str, size: int, sha256: str) -> tuple[str, Fetched]:
    return name, Fetched(address=f"{CAPTIONS}/{name}", size=size, sha256=sha256)


TRANSLATED = {
    corpus.name: corpus
    for corpus in (
        TranslatedCorpus(
            name="multi30k",
            about="captions of pictures, German and English (Elliott et al. 2016)",
            licence="CC BY-NC-SA 4.0, as its authors say",
            pair="de-en",
            address="https://github.com/multi30k/dataset",
            counts={"train": 29_000, "valid": 1_014, "test": 1_000},
            files=dict(
                (
                    _captions(
                        "train.de.gz",
                        637_044,
                        "726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6",
                    ),
                    _captions(
                        "train.en.gz",
                        568_929,
                        "d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f",
                    ),
                    _captions(
                        "val.de.gz",
                        24_681,
                        "f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a",
                    ),
                    _captions(
                        "val.en.gz",
                        21_650,
                        "14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28",
                    ),
                    _captions(
                        "test_2016_flickr.de.gz",
                        22_890,
                        "9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8",
                    ),
                    _captions(
                        "test_2016_flickr.en.gz",
                        21_077,
                        "611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9",
                    ),
                )
            ),
        ),
        TranslatedCorpus(
            name="iwslt14",
            about="talks, German and English, in fairseq's splits (Cettolo et al. 2014)",
            licence="CC BY-NC-ND 4.0 (TED)",
            pair="de-en",
            address=TED,
            counts={"train": 160_239, "valid": 7_283, "test": 6_750},
            files={"de-en.tgz": Fetched(address=TED)},
            archive="de-en.tgz",
        ),
        TranslatedCorpus(
            name="wmt14-en-de",
            about="news and parliament, English and German, as Stanford tokenized them",
            licence="none stated (WMT 2014)",
            pair="en-de",
            address=STANFORD,
            counts={"train": 4_468_840, "valid": 3_000, "test": 2_737},
            files={
                f"{split}.{side}": Fetched(address=f"{STANFORD}/{name}.{side}")
                for split, name in (
                    ("train", "train"),
                    ("valid", "newstest2013"),
                    ("test", "newstest2014"),
                )
                for side in ("en", "de")
            },
        ),
        TranslatedCorpus(
            name="wmt14-en-fr",
            about="news and parliament, English and French",
            licence="none stated (WMT 2014)",
            pair="en-fr",
            address="https://www.statmt.org/wmt14/translation-task.html",
            counts={"test": 3_003},
        ),
        TranslatedCorpus(
            name="cnn-dailymail",
            about="news articles and their highlights, version 3.0.0 (See et al. 2017)",
            licence="Apache-2.0, as the data set's card says",
            pair="article-highlights",
            address="https://huggingface.co/datasets/abisee/cnn_dailymail",
            counts={"train": 287_113, "valid": 13_368, "test": 11_490},
        ),
    )
}


def pairs_folder(corpus: TranslatedCorpus, cache: Path) -> Path:
    return cache / "pairs" / corpus.name


def is_here(corpus: TranslatedCorpus, cache: Path) -> bool:
    """Whether the cache holds it."""
    names = [f"{s}.{t}" for s in corpus.counts for t in corpus.pair.split("-")]
    wanted = names if corpus.archive else list(corpus.files)
    folder = pairs_folder(corpus, cache)
    return bool(wanted) and all((folder / name).is_file() for name in wanted)


def find_folder(
    corpus: TranslatedCorpus, local: Path | None, cache: Path, progress: Preparing | None
) -> Path:
    """A folder with the corpus' files: the user's own, or the cache's, fetched where it must be."""
    target = pairs_folder(corpus, cache)
    if local is not None:
        local = local.expanduser()
        if local.is_dir():
            return local
        if not corpus.archive or not local.is_file():
            other = f", or from {corpus.archive}" if corpus.archive else ""
            raise CorpusError(
                f"--from {str(local)!r} is no folder; {corpus.name} is read from one with files "
                f"for {', '.join(corpus.counts)}{other}"
            )
        take_apart(corpus, local, target)
        return target
    if not corpus.files:
        raise CorpusError(
            f"{corpus.name} is not fetched by itself; it is described at {corpus.address}: put "
            "it into a folder, such as train.jsonl, valid.jsonl and test.jsonl with the texts "
            f"{corpus.pair.replace('-', ' and ')!r}, and give --from FOLDER"
        )
    if not is_here(corpus, cache):
        for name, file in corpus.files.items():
            place = cache / "downloads" / name if corpus.archive else target / name
            fetch(file.address, place, size=file.size, sha256=file.sha256, progress=progress)
        if corpus.archive:
            archive = cache / "downloads" / corpus.archive
            take_apart(corpus, archive, target)
            archive.unlink(missing_ok=True)
    return target


def differences(corpus: TranslatedCorpus, found: Mapping[str, int]) -> str:
    """How the number of pairs differs from what was published; empty if it does not."""
    apart = [
        f"{split} has {found.get(split, 0):,} pairs, published {count:,}"
        for split, count in corpus.counts.items()
        if found.get(split, 0) != count
    ]
    return "; ".join(apart)


EVERY = 23
"""Of so many pairs of IWSLT'14 one is for validation, the first among them."""
LONGEST, RATIO = 175, 1.5
"""Words of a side, and of the longer for one of the shorter, that its script leaves in train."""
TAGS = ("<url>", "<talkid>", "<keywords>", "<speaker>", "<reviewer", "<translator", "<doc", "</doc")
TESTS = ("dev2010", "dev2012", "tst2010", "tst2011", "tst2012")


def take_apart(corpus: TranslatedCorpus, archive: Path, target: Path) -> None:
    """IWSLT'14 as fairseq's script splits it, its text left as it is.

    The script counts words after Moses' tokenizer and this at blanks, so some pairs are kept or
    dropped here alone.
    """
    names = corpus.pair.split("-")
    try:
        with tarfile.open(archive) as opened:
            sides = [list(spoken(opened, f"train.tags.{corpus.pair}.{name}")) for name in names]
            tests = [list(segments(opened, f".{corpus.pair}.{name}.xml")) for name in names]
    except (OSError, tarfile.TarError, KeyError, UnicodeDecodeError) as error:
        raise unreadable(archive, error) from None
    if len(sides[0]) != len(sides[1]) or len(tests[0]) != len(tests[1]) or not sides[0]:
        raise CorpusError(
            f"{str(archive)!r} has {len(sides[0]):,} and {len(sides[1]):,} lines to train on, "
            f"{len(tests[0]):,} and {len(tests[1]):,} to test; it is not {corpus.archive} of "
            f"{corpus.address}"
        )
    kept = [pair for pair in zip(*sides, strict=True) if is_even(pair)]
    splits = {
        "train": [pair for n, pair in enumerate(kept) if n % EVERY],
        "valid": kept[::EVERY],
        "test": list(zip(*tests, strict=True)),
    }
    target.mkdir(parents=True, exist_ok=True)
    for split, pairs in splits.items():
        for side, name in enumerate(names):
            text = "".join(f"{pair[side]}\n" for pair in pairs)
            replace_file(target / f"{split}.{name}", text)


def is_even(pair: Pair) -> bool:
    counts = sorted(len(side.split()) for side in pair)
    return counts[0] > 0 and counts[1] <= LONGEST and counts[1] <= RATIO * counts[0]


def spoken(opened: tarfile.TarFile, name: str) -> Iterator[str]:
    """The lines of a talk, without what tells of it."""
    for line in lines_of(opened, name):
        if not line.lstrip().startswith(TAGS):
            yield re.sub(r"</?(title|description)>", "", line).strip()


def segments(opened: tarfile.TarFile, ending: str) -> Iterator[str]:
    """The sentences of all test sets of one language, in the order of their years."""
    for test in TESTS:
        for member in sorted(opened.getnames()):
            if member.endswith(ending) and f".{test}." in member:
                for line in lines_of(opened, member.rpartition("/")[2]):
                    if found := re.search(r"<seg id[^>]*>(.*?)</seg>", line):
                        yield found[1].strip()


def lines_of(opened: tarfile.TarFile, name: str) -> list[str]:
    found = [one for one in opened.getmembers() if one.name.rpartition("/")[2] == name]
    stream = opened.extractfile(found[0]) if found else None
    if stream is None:
        raise KeyError(name)
    return stream.read().decode("utf-8").split("\n")[:-1]
