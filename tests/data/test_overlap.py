"""Are shared windows counted, and the longest shared stretch found, as a plain search would?"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from parformer.data import Corpus, find_corpus
from parformer.data import overlap as module
from parformer.data.overlap import Overlap, overlap, overlaps
from parformer.data.reading import Piece
from parformer.errors import CorpusError


def naive(train: bytes, split: bytes, window: int) -> Overlap:
    """The same by sets of slices, and the longest common stretch by its table of lengths."""
    known = {train[i : i + window] for i in range(len(train) - window + 1)}
    found = [split[i : i + window] in known for i in range(len(split) - window + 1)]
    longest, before = 0, [0] * (len(split) + 1)
    for byte in train:
        row = [0] + [before[j] + 1 if byte == other else 0 for j, other in enumerate(split)]
        longest, before = max(longest, *row), row
    share = sum(found) / len(found) if found else 0.0
    return Overlap(len(found), share, longest if longest >= window else 0)


def same(train: bytes, split: bytes, window: int, block: int) -> Overlap:
    expected = naive(train, split, window)
    found = overlap([train], split, window=window, block=block)
    assert (found.windows, found.longest) == (expected.windows, expected.longest)
    assert found.shared == pytest.approx(expected.shared)
    return found


def cut(text: bytes, rng: Random) -> list[bytes]:
    ends = sorted(rng.randrange(len(text) + 1) for _ in range(5))
    return [text[a:b] for a, b in zip([0, *ends], [*ends, len(text)], strict=True)]


LETTERS = st.text("ab", max_size=60).map(str.encode)


@settings(max_examples=300)
@given(LETTERS, LETTERS, st.integers(1, 9), st.integers(1, 40))
@example(b"a" * 60, b"a" * 30, 3, 7)
@example(b"ab" * 30, b"ab" * 9 + b"ba" * 9, 5, 4)
def test_it_finds_what_a_plain_search_finds(
    train: bytes, split: bytes, window: int, block: int
) -> None:
    same(train, split, window, block)


@pytest.mark.parametrize("seed", range(20))
def test_planted_copies_are_found_across_all_borders(seed: int) -> None:
    rng = Random(seed)
    train, split = bytearray(rng.randbytes(600)), bytearray(rng.randbytes(300))
    for _ in range(3):
        length = rng.randrange(1, 130)
        to, at = rng.randrange(600 - length), rng.randrange(300 - length)
        train[to : to + length] = split[at : at + length]
    for block in (1, 7, 49, 50, 64, 10_000):
        same(bytes(train), bytes(split), 50, block)


def test_a_row_of_shared_windows_is_no_match_by_itself() -> None:
    """Train joins what stands apart in the split, so its row of known windows is longer."""
    rng = Random(1)
    a, b, c = (rng.randbytes(80) for _ in range(3))
    joint = a[-49:] + b[:49]
    found = same(a + b, a + b[:49] + c + a[-49:] + b, 50, 10_000)
    assert found.longest == len(a) + 49
    assert same(a + b, a + c + joint + c + b, 50, 33).longest == 98


@pytest.mark.parametrize("block", [100, 1000, 2**20])
def test_the_same_text_is_shared_from_end_to_end(block: int) -> None:
    text = Random(2).randbytes(20_000)
    assert overlap([text], text, block=block) == Overlap(20_000 - 49, 1.0, 20_000)
    assert overlap([b"x" * 333, text, b"y"], text, block=block).longest == 20_000


def test_different_texts_share_nothing() -> None:
    rng = Random(3)
    found = overlap([rng.randbytes(10_000)], rng.randbytes(5_000))
    assert found == Overlap(5_000 - 49, 0.0, 0)
    assert not found.crowded


def test_the_same_byte_over_and_over_is_no_trouble() -> None:
    assert overlap([b"a" * 300_000], b"a" * 100_000, block=4096).longest == 100_000
    assert overlap([b"a" * 1000], b"a" * 100_000, block=64).longest == 1000


@pytest.mark.parametrize("length", [0, 1, 49])
def test_a_text_shorter_than_a_window_has_none(length: int) -> None:
    assert overlap([b"a" * 1000], b"a" * length) == Overlap(0, 0.0, 0)
    assert overlap([b"a" * length], b"a" * 60) == Overlap(11, 0.0, 0)
    assert overlap([], b"a" * 60) == Overlap(11, 0.0, 0)


def test_just_one_window_is_looked_at_in_fifty_bytes() -> None:
    text = Random(4).randbytes(50)
    assert overlap([text], text) == Overlap(1, 1.0, 50)
    assert overlap([text[:49], b"\0", text[49:]], text) == Overlap(1, 0.0, 0)


def test_it_does_not_matter_where_train_is_cut() -> None:
    rng = Random(5)
    split = rng.randbytes(2_000)
    train = rng.randbytes(3_000) + split[500:1_400] + rng.randbytes(3_000)
    expected = overlap([train], split)
    assert expected.longest == 900
    for _ in range(10):
        assert overlap(cut(train, rng), split, block=rng.randrange(1, 3_000)) == expected


def test_more_than_a_twentieth_is_crowded() -> None:
    assert not Overlap(100, 0.05, 80).crowded
    assert Overlap(100, 0.051, 80).crowded


def write(folder: Path, **splits: bytes) -> str:
    folder.mkdir()
    for name, data in splits.items():
        (folder / f"{name}.txt").write_bytes(data)
    return str(folder)


def test_a_corpus_is_compared_split_by_split(tmp_path: Path) -> None:
    rng = Random(6)
    train, valid = rng.randbytes(5_000).replace(b"\0", b"0"), rng.randbytes(400)
    valid = valid.replace(b"\0", b"0")
    source = write(tmp_path / "text", train=train, valid=valid, test=valid + train[70:200])
    told: list[str] = []
    corpus = find_corpus(source, cache=tmp_path / "cache")
    found = overlaps(corpus, lambda what, share: told.append(what))
    assert found == {
        "valid": Overlap(351, 0.0, 0),
        "test": Overlap(481, 81 / 481, 130),
    }
    assert {"looking for valid in train", "looking for test in train"} <= set(told)


def test_without_train_there_is_nothing_to_compare(tmp_path: Path) -> None:
    pieces = {"valid": (Piece(b"v" * 99),), "test": (Piece(b"t" * 99),)}
    for texts in (pieces, {"train": pieces["valid"]}):
        corpus = Corpus(name="odd", about="", texts=texts, cache=tmp_path / "cache")
        assert overlaps(corpus) == {}
    assert not (tmp_path / "cache").exists()


def test_what_was_worked_out_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write(tmp_path / "text", train=b"a" * 99, valid=b"b" * 99, test=b"a" * 60)
    corpus = find_corpus(source, cache=tmp_path / "cache")
    first = overlaps(corpus)
    monkeypatch.setattr(module, "overlap", None)
    assert overlaps(corpus) == first
    (tmp_path / "text" / "test.txt").write_bytes(b"a" * 61)
    with pytest.raises(TypeError):
        overlaps(corpus)


def test_a_cache_that_cannot_be_written_to_is_fine(tmp_path: Path) -> None:
    source = write(tmp_path / "text", train=b"a" * 99, valid=b"b" * 99, test=b"a" * 60)
    write(tmp_path / "cache", train=b"")
    (tmp_path / "cache" / "overlap").write_bytes(b"no folder")
    found = overlaps(find_corpus(source, cache=tmp_path / "cache"))
    assert found["test"] == Overlap(11, 1.0, 60)
    (tmp_path / "text" / "train.txt").unlink()
    corpus = Corpus(
        name="gone",
        about="",
        texts={s: (Piece(tmp_path / "text" / f"{s}.txt"),) for s in ("train", "test")},
        cache=tmp_path / "cache",
    )
    with pytest.raises(CorpusError, match=r"cannot read .*train\.txt"):
        overlaps(corpus)


def test_of_a_long_split_the_start_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOKED_AT", 100)
    source = write(tmp_path / "text", train=b"a" * 99, valid=b"b" * 500, test=b"b" * 200)
    assert overlaps(find_corpus(source, cache=tmp_path / "cache"))["valid"].windows == 51
