"""Which corpora do the papers measure on, and how do we know that we have them?

Every archive's address, length and SHA-256 stands here, and so does what is inside: each is
what at least one public project states. It is downloaded once and checked. A local copy serves
as well: the archive, the text itself, or a folder with its splits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from parformer.data.archives import check_archive, unpack
from parformer.data.digests import Digests
from parformer.data.files import inside, split_files
from parformer.data.reading import Piece, unreadable
from parformer.errors import CorpusError
from parformer.events import Preparing
from parformer.store.download import WAY_OUT, fetch


@dataclass(frozen=True, kw_only=True, slots=True)
class Published:
    """A corpus as its authors published it."""

    name: str
    about: str
    licence: str
    addresses: tuple[str, ...]
    """Where the same archive lies; the first that answers is taken."""
    size: int
    sha256: str
    """Length and SHA-256 of the archive."""
    members: Mapping[str, tuple[str, ...]]
    """The members of the archive that make up each split."""
    cuts: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """For one text that is cut into splits: from which byte to which."""
    text_sha256: str = ""
    """SHA-256 of that one text."""
    text_size: int | None = None
    """Bytes of all splits together, where known."""
    lines: Mapping[str, int] = field(default_factory=dict)
    """Lines per split, where known; copies differ in blanks, not in lines."""

    @property
    def archive(self) -> str:
        return self.addresses[0].rpartition("/")[2]

    @property
    def wanted(self) -> tuple[str, ...]:
        """Every member that is read."""
        return tuple(dict.fromkeys(name for names in self.members.values() for name in names))


HUTTER = {"train": (0, 90_000_000), "valid": (90_000_000, 95_000_000)}
HUTTER["test"] = (95_000_000, 100_000_000)


def _hutter(name: str, about: str, size: int, sha256: str, text_sha256: str) -> Published:
    return Published(
        name=name,
        about=about,
        licence="CC BY-SA and GFDL (Wikipedia)",
        addresses=tuple(f"{web}://mattmahoney.net/dc/{name}.zip" for web in ("https", "http")),
        size=size,
        sha256=sha256,
        members=dict.fromkeys(HUTTER, (name,)),
        cuts=HUTTER,
        text_sha256=text_sha256,
        text_size=100_000_000,
    )


def _wikitext(number: int, words: str, train_lines: int, size: int, sha256: str) -> Published:
    name = f"wikitext-{number}"
    mirrors = (
        "https://wikitext.smerity.com",
        "https://s3.amazonaws.com/research.metamind.io/wikitext",
    )
    return Published(
        name=name,
        about=f"Good and Featured articles of Wikipedia, {words} words, rare ones as <unk>",
        licence="CC BY-SA 3.0 and GFDL (Wikipedia)",
        addresses=tuple(f"{mirror}/{name}-v1.zip" for mirror in mirrors),
        size=size,
        sha256=sha256,
        members={split: (f"{name}/wiki.{split}.tokens",) for split in ("train", "valid", "test")},
        lines={"train": train_lines, "valid": 3_760, "test": 4_358},
    )


LM1B = "1-billion-word-language-modeling-benchmark-r13output"

PUBLISHED = {
    corpus.name: corpus
    for corpus in (
        _hutter(
            "enwik8",
            "the first 100 MB of Wikipedia's XML of 2006, as bytes",
            36_445_475,
            "547994d9980ebed1288380d652999f38a14fe291a6247c157c3d33d4932534bc",
            "2b49720ec4d78c3c9fabaee6e4179a5e997302b3a70029f30f2d582218c024a8",
        ),
        _hutter(
            "text8",
            "100 MB of Wikipedia of 2006 in the letters a to z and blanks",
            31_344_016,
            "a6640522afe85d1963ad56c05b0ede0a0c000dddc9671758a6cc09b7a38e5232",
            "6e890197040d37d85beb962ae1f041ff1d9a9ca8d20c7d99c85027eebf51dca7",
        ),
        _wikitext(
            2,
            "2 million",
            36_718,
            4_475_746,
            "92675f1d63015c1c8b51f1656a52d5bdbc33aafa60cc47a218a66e7ee817488c",
        ),
        _wikitext(
            103,
            "103 million",
            1_801_350,
            190_229_076,
            "242ba0f20b329cfdf1ccc61e9e9e5b59becf189db7f7a81cd2a0e2fc31539590",
        ),
        Published(
            name="lm1b",
            about="the One Billion Word Benchmark: sentences from news, almost a billion words",
            licence="none stated (WMT 2011 News Crawl)",
            addresses=tuple(
                f"{web}://www.statmt.org/lm-benchmark/{LM1B}.tar.gz" for web in ("https", "http")
            ),
            size=1_792_209_805,
            sha256="01ba60381110baf7f189dfd2b8374de371e8c9a340835793f190bdae9e90a34e",
            # The usual test set is held-out shard 0. Transformer-XL also validates on it; we take
            # shard 1 for that, so that nothing is chosen by looking at the test.
            members={
                "train": tuple(
                    f"{LM1B}/training-monolingual.tokenized.shuffled/news.en-{i:05}-of-00100"
                    for i in range(1, 100)
                ),
                "valid": (
                    f"{LM1B}/heldout-monolingual.tokenized.shuffled/news.en.heldout-00001-of-00050",
                ),
                "test": (
                    f"{LM1B}/heldout-monolingual.tokenized.shuffled/news.en.heldout-00000-of-00050",
                ),
            },
            lines={"train": 30_301_028},
        ),
    )
}

Texts = dict[str, tuple[Piece, ...]]
"""The pieces of every split."""


def unpacked_folder(corpus: Published, cache: Path) -> Path:
    return cache / "corpora" / corpus.name


def is_present(corpus: Published, cache: Path) -> bool:
    """Whether the cache holds a published corpus."""
    folder = unpacked_folder(corpus, cache)
    return all((folder / _flat(name)).is_file() for name in corpus.wanted)


def published_texts(corpus: Published, cache: Path, progress: Preparing | None) -> Texts:
    """A published corpus from the cache, downloaded first where it is not there."""
    if not is_present(corpus, cache):
        archive = _download(corpus, cache / "downloads" / corpus.archive, progress)
        _unpack(corpus, archive, cache, progress)
        archive.unlink(missing_ok=True)
    return _texts(corpus, _unpacked(corpus, cache))


def local_texts(
    corpus: Published, local: Path, cache: Path, digests: Digests, progress: Preparing | None
) -> Texts:
    """A published corpus from a copy of the user's: archive, text or folder."""
    local = local.expanduser()
    try:
        local = local.resolve(strict=True)
    except (OSError, ValueError) as error:
        raise unreadable(local, error) from None
    if local.is_dir():
        if found := _found_members(corpus, local):
            return _checked(corpus, _texts(corpus, found), digests)
        if splits := split_files(local) or split_files(local, any_ending=True):
            texts: Texts = {s: (Piece(splits[s]),) for s in corpus.members if s in splits}
            return _checked(corpus, texts, digests)
        archive = inside(local, corpus.archive)
        if archive is None:
            raise CorpusError(
                f"{str(local)!r} holds neither {corpus.archive} nor {corpus.wanted[0]} nor files "
                "for train, valid or test"
            )
        local = archive
    if local.name.endswith((".zip", ".tar.gz", ".tgz")):
        if not is_present(corpus, cache):
            check_archive(local, corpus.archive, corpus.size, corpus.sha256)
            _unpack(corpus, local, cache, progress)
        return _texts(corpus, _unpacked(corpus, cache))
    if len(corpus.wanted) > 1:
        raise CorpusError(
            f"{str(local)!r} is one file; give {corpus.archive} or a folder with the splits of "
            f"{corpus.name}"
        )
    return _checked(corpus, _texts(corpus, {corpus.wanted[0]: local}), digests)


def _texts(corpus: Published, files: Mapping[str, Path]) -> Texts:
    """The pieces of all splits of which every file is there."""
    return {
        split: tuple(Piece(files[name], *corpus.cuts.get(split, ())) for name in names)
        for split, names in corpus.members.items()
        if all(name in files for name in names)
    }


def _flat(member: str) -> str:
    return member.rpartition("/")[2]


def _unpacked(corpus: Published, cache: Path) -> dict[str, Path]:
    folder = unpacked_folder(corpus, cache)
    return {name: (folder / _flat(name)).resolve() for name in corpus.wanted}


def _found_members(corpus: Published, folder: Path) -> dict[str, Path]:
    """What lies in a folder as it came out of the archive, at any depth of its path."""
    found = {}
    for member in corpus.wanted:
        parts = member.split("/")
        tails = ("/".join(parts[i:]) for i in range(len(parts)))
        path = next((path for tail in tails if (path := inside(folder, tail))), None)
        if path is not None:
            found[member] = path
    return found


def _checked(corpus: Published, texts: Texts, digests: Digests) -> Texts:
    """The same texts, after what is known about them was found right."""
    if not texts:
        raise CorpusError(f"no split of {corpus.name} is complete there; {WAY_OUT}")
    whole = {piece.source for pieces in texts.values() for piece in pieces if piece.stop}
    for source in whole:
        facts = digests.facts([Piece(source)], corpus.name)
        if facts.size != corpus.text_size:
            raise CorpusError(
                f"{str(source)!r} holds {facts.size:,} bytes, but {corpus.name} has "
                f"{corpus.text_size:,}"
            )
        if facts.sha256 != corpus.text_sha256:
            raise CorpusError(
                f"{str(source)!r} is as long as {corpus.name} but another text: its SHA-256 is "
                f"{facts.sha256}, not {corpus.text_sha256}"
            )
    for split, pieces in texts.items():
        if whole or (split not in corpus.cuts and split not in corpus.lines):
            continue
        facts = digests.facts(pieces, f"{corpus.name} {split}")
        place = str(pieces[0].source if len(pieces) == 1 else Path(str(pieces[0].source)).parent)
        if split in corpus.cuts:
            start, stop = corpus.cuts[split]
            has, should, what = facts.size, stop - start, "bytes"
        else:
            has, should, what = facts.lines, corpus.lines[split], "lines"
        if has != should:
            raise CorpusError(
                f"{place!r} holds {has:,} {what}, but {split} of {corpus.name} has {should:,}"
            )
    return texts


def _download(corpus: Published, archive: Path, progress: Preparing | None) -> Path:
    failure: CorpusError | None = None
    for address in corpus.addresses:
        try:
            return fetch(
                address, archive, size=corpus.size, sha256=corpus.sha256, progress=progress
            )
        except CorpusError as error:
            failure = failure or error
    assert failure is not None, "every corpus has an address"
    raise failure


def _unpack(corpus: Published, archive: Path, cache: Path, progress: Preparing | None) -> None:
    members = {name: _flat(name) for name in corpus.wanted}
    unpack(archive, members, unpacked_folder(corpus, cache), progress)
