"""Is every byte in exactly one split, and about a twentieth kept back twice?"""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parformer.data.splits import cut_points, share, split_word


def cuts(text: bytes) -> tuple[int, int]:
    def read(start: int, stop: int) -> bytes:
        assert 0 <= start < stop <= len(text)
        assert stop - start <= 2**20 + 2
        return text[start:stop]

    return cut_points(len(text), read)


@given(st.text(st.characters(codec="utf-8"), max_size=2000))
def test_cuts_are_in_order_and_keep_characters_whole(text: str) -> None:
    data = text.encode()
    valid, test = cuts(data)
    assert 0 <= valid <= test <= len(data)
    for part in (data[:valid], data[valid:test], data[test:]):
        part.decode()


@settings(max_examples=20)
@given(st.lists(st.integers(0, 40), min_size=200, max_size=400))
def test_cuts_are_at_line_ends(lengths: list[int]) -> None:
    lines = [b"x" * length + b"\n" for length in lengths]
    data = b"".join(lines)
    valid, test = cuts(data)
    assert data[valid - 1] == data[test - 1] == ord("\n")
    for kept in (test - valid, len(data) - test):
        assert abs(kept - len(data) / 20) <= 82


@pytest.mark.parametrize("count", [3, 4, 5, 7, 10, 20])
def test_a_few_lines_leave_no_split_empty(count: int) -> None:
    data = b"a line\n" * count
    valid, test = cuts(data)
    assert 0 < valid < test < len(data)
    assert valid % 7 == test % 7 == 0


def test_the_last_start_of_a_line_before_the_target_is_taken() -> None:
    data = bytearray(b"x" * 1000)
    data[899] = data[948] = data[950] = ord("\n")
    assert cuts(bytes(data)) == (900, 949)


def test_one_long_line_is_cut_between_characters() -> None:
    data = b"title\n" + "ä".encode() * 100_000
    valid, test = cuts(data)
    assert abs(valid - 0.9 * len(data)) < 3
    assert abs(test - 0.95 * len(data)) < 3
    assert valid % 2 == test % 2 == 0


@pytest.mark.parametrize("data", [b"", b"a", b"ab", b"abc", b"\nab", b"\n\n\n", b"\x80" * 9])
def test_next_to_nothing_can_be_cut(data: bytes) -> None:
    valid, test = cuts(data)
    assert 0 <= valid <= test <= len(data)


@settings(max_examples=50)
@given(st.dictionaries(st.text(max_size=9), st.integers(1, 10**6), min_size=3))
def test_every_file_has_one_split(sizes: dict[str, int]) -> None:
    shares = share(sizes)
    assert list(shares) == ["train", "valid", "test"]
    assert sorted(name for names in shares.values() for name in names) == sorted(sizes)
    assert all(shares.values())
    assert all(names == sorted(names) for names in shares.values())


def test_a_twentieth_of_the_bytes_is_kept_back_twice() -> None:
    rng = Random(0)
    sizes = {f"file-{i}": rng.randrange(1, 10_000) for i in range(1000)}
    shares = share(sizes)
    for split in ("valid", "test"):
        kept = sum(sizes[name] for name in shares[split]) / sum(sizes.values())
        assert 0.049 < kept <= 0.05
        assert 20 < len(shares[split]) < 100


def test_the_order_of_the_files_does_not_matter() -> None:
    sizes = {f"file-{i}": i + 1 for i in range(100)}
    names = list(sizes)
    Random(3).shuffle(names)
    assert share({name: sizes[name] for name in names}) == share(sizes)


def test_names_decide_and_not_their_order() -> None:
    shares = share({f"{i:03}": 1 for i in range(200)})
    assert len(shares["test"]) == len(shares["valid"]) == 10
    assert shares["test"] != [f"{i:03}" for i in range(10)]
    assert int(shares["valid"][-1]) - int(shares["valid"][0]) > 50


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(1, 1000), st.integers(1, 6)), min_size=3, max_size=40))
def test_a_family_is_never_parted(made: list[tuple[int, int]]) -> None:
    families = [[f"{i}-{j}" for j in range(count)] for i, (_, count) in enumerate(made)]
    sizes = {n: made[i][0] for i, family in enumerate(families) for n in family}
    shares = share(sizes, families)
    assert sorted(name for names in shares.values() for name in names) == sorted(sizes)
    assert all(shares.values())
    for names in shares.values():
        assert names == sorted(names)
        held = set(names)
        assert all(held.issuperset(f) or held.isdisjoint(f) for f in families)


def test_families_of_one_change_nothing() -> None:
    sizes = {f"file-{i}": i + 1 for i in range(100)}
    assert share(sizes, [[name] for name in sizes]) == share(sizes)


def test_a_family_counts_like_one_file_of_its_first_name() -> None:
    sizes = {f"{i:03}": 1 for i in range(200)}
    first = share(sizes)["test"][0]
    larger = share(sizes | {"other": 1}, [["other", first]])
    assert {"other", first} <= set(larger["test"])
    assert larger["test"] == sorted({*share(sizes | {first: 2})["test"], "other"})


def test_families_too_few_for_three_splits_are_parted() -> None:
    sizes = {"a": 10, "b": 10, "c": 10, "d": 10}
    assert share(sizes, [["a", "b", "c"]]) == share(sizes)


def test_a_huge_file_is_for_training() -> None:
    for i in range(20):
        assert share({f"huge-{i}": 10**9, "a": 10, "b": 10, "c": 10})["train"][-1] == f"huge-{i}"


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("train.txt", "train"),
        ("training.txt", "train"),
        ("TRAIN", "train"),
        ("wiki.train.tokens", "train"),
        ("train1.txt", "train"),
        ("valid.txt", "valid"),
        ("validation.txt", "valid"),
        ("val_v2.txt", "valid"),
        ("my-dev.txt", "valid"),
        ("ptb.test.txt", "test"),
        ("latest.txt", None),
        ("testament.txt", None),
        ("trainspotting.txt", None),
        ("valley.txt", None),
        ("devil.txt", None),
        ("notes.txt", None),
    ],
)
def test_names_that_speak_of_a_split(name: str, split: str | None) -> None:
    assert split_word(name) == split
