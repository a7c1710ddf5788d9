"""Are ranges and slots read as they are written, and is everything else refused in a line?"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from parformer.errors import ConfigError, PatternError
from parformer.pattern import BlockSpec
from parformer.search.sizes.ranges import (
    MOST,
    Range,
    Ranged,
    fitting,
    read_block,
    read_range,
    read_slot,
    split_choices,
)


@pytest.mark.parametrize(
    ("text", "values", "written"),
    [
        ("128..320/64", (128, 192, 256, 320), "128..320/64"),
        ("128..319/64", (128, 192, 256), "128..319/64"),
        (" 2 .. 4 ", (2, 3, 4), "2..4"),
        ("1k .. 3k / 1000", (1000, 2000, 3000), "1k..3k/1000"),
        ("7..7", (7,), "7..7"),
        ("8|2 | 4", (2, 4, 8), "8|2|4"),
        ("16", (16,), "16"),
        (16, (16,), "16"),
        ("2M|5k|1G", (5000, 2_000_000, 10**9), "2M|5k|1G"),
        ("4M..100M", (4_000_000, 100_000_000), "4M..100M"),
        (f"1..{MOST}", tuple(range(1, MOST + 1)), f"1..{MOST}"),
        (f"0..{MOST}", (0, MOST), f"0..{MOST}"),
        (f"10..{MOST * 10}/10", tuple(range(10, MOST * 10 + 1, 10)), f"10..{MOST * 10}/10"),
        ("pre|off|post", ("off", "post", "pre"), "pre|off|post"),
        ("fixed+dense_2.a|3", (3, "fixed+dense_2.a"), "fixed+dense_2.a|3"),
        ("007", (7,), "007"),
    ],
)
def test_a_range_holds_what_is_written(
    text: str | int, values: tuple[object, ...], written: str
) -> None:
    found = read_range(text, "size")
    assert found == Range(values, written)
    assert list(map(type, found.values)) == list(map(type, values))
    assert read_range(found.text, "size") == found


@given(st.integers(0, 400), st.integers(0, 400), st.integers(1, 80))
@settings(max_examples=60)
def test_a_stretch_steps_up_to_its_end(low: int, more: int, step: int) -> None:
    values, value = [], low
    while value <= low + more:
        values.append(value)
        value += step
    assert read_range(f"{low}..{low + more}/{step}", "size").values == tuple(values)


NO_RANGES: list[tuple[Any, str]] = [
    ("", "cannot read ''"),
    ("|", "cannot read"),
    ("2|", "cannot read"),
    ("2 4 8", "cannot read '2 4 8'"),
    ("1 28..256", "cannot read"),
    ("-4", "cannot read"),
    ("1.5.2", "cannot read"),
    ("1..2..3", "cannot read"),
    ("1..2/", "cannot read"),
    ("1..2k/1k", "cannot read"),
    ("..4", "cannot read"),
    ("True", "cannot read"),
    ("²", "cannot read"),
    ("٣", "cannot read"),
    ("2|4|2", "twice"),
    ("1k|1000", "twice"),
    ("8..4", "holds no value"),
    ("1k..1", "holds no value"),
    ("1..8/0", "holds no value"),
    (f"0..{MOST}/1", "holds more than 4,096 values"),
    ("0..999999999G/1", "holds more than 4,096 values"),
    ("|".join(map(str, range(MOST + 1))), "holds more than 4,096 values"),
    ("9" * 16, "cannot read"),
    ("9" * 5000, "cannot read"),
    ("1.." + "9" * 5000, "cannot read"),
    ("1..9/" + "9" * 5000, "cannot read"),
    (True, "must be a text or a whole number"),
    (None, "must be a text or a whole number"),
    (2.0, "must be a text or a whole number"),
    ([2, 4], "must be a text or a whole number"),
    (10**5000, "must be a text or a whole number"),
    (-3, "cannot read '-3'"),
]


@pytest.mark.parametrize(("text", "problem"), NO_RANGES, ids=range(len(NO_RANGES)))
def test_what_is_no_range_is_refused_in_a_line(text: str | int, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as refusal:
        read_range(text, "heads")
    assert "'heads'" in str(refusal.value)
    assert len(str(refusal.value)) < 250
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("s", ["s"]),
        ("s|f", ["s", "f"]),
        (" s[heads=2|4] |f [ inner=1|2 ]| i ", ["s[heads=2|4]", "f [ inner=1|2 ]", "i"]),
        ("s||i", ["s", "", "i"]),
        ("", [""]),
        ("s[2|4", ["s[2|4"]),
        ("s]|i", ["s]", "i"]),
        ("s[[a|b]|c]|i", ["s[[a|b]", "c]", "i"]),
    ],
)
def test_bars_in_brackets_do_not_split(text: str, parts: list[str]) -> None:
    assert split_choices(text) == parts


def test_a_slot_is_its_blocks_and_their_ranges() -> None:
    slot = read_slot("s [ kv_heads=1 , heads = 2|4 ] | r[full] | r[norm=pre] | f[inner=64..192/64]")
    assert [block.kind for block in slot] == ["s", "r", "r", "f"]
    assert slot[0].options == (("heads", Range((2, 4), "2|4")), ("kv_heads", Range((1,), "1")))
    assert slot[1].options == (("full", Range((True,), "True")),)
    assert slot[2].options == (("norm", Range(("pre",), "pre")),)
    assert [str(block) for block in slot] == [
        "s[heads=2|4,kv_heads=1]",
        "r[full]",
        "r[norm=pre]",
        "f[inner=64..192/64]",
    ]
    assert read_slot(" | ".join(map(str, slot))) == slot


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "unknown block ''"),
        ("s | ", "unknown block ''"),
        ("z", "unknown block 'z'"),
        ("sf", "unknown block 'sf'"),
        ("<s", "unpaired '<'"),
        ("<s>x2", "no single group"),
        ("<s>f", "no single group"),
        ("<", "unpaired '<'"),
        ("<s>[with=3]", "unknown option 'with'"),
        ("<s>[feed=both]", "unknown feed"),
        ("l[kernel=2.5]", "takes a whole number"),
        ("s[heads=2", "no closing bracket"),
        ("s[heads=2]x", "no closing bracket"),
        ("s[heads=2]]", "cannot read"),
        ("s[heads]", "takes a whole number"),
        ("s[heads=]", "cannot read ''"),
        ("s[inner=2]", "unknown option 'inner'"),
        ("s[=2]", "option name ''"),
        ("s[heads=2,heads=4]", "second option 'heads'"),
        ("s[heads=0..2]", "at least 1"),
        ("s[heads=off]", "takes a whole number"),
        ("f[inner=64|off]", "takes a whole number"),
        ("r[norm=2]", "takes a word"),
        ("r[full=2]", "takes no value"),
        ("f[inner=999999999999999G]", "up to 18 digits"),
        (None, "is no block"),
        (["s"], "is no block"),
    ],
    ids=str,
)
def test_what_is_no_slot_is_refused(text: str, problem: str) -> None:
    with pytest.raises((ConfigError, PatternError), match=problem):
        read_slot(text)


ALPHABET = "sfira<>yl[]()|,=./ \t\n0123456789kMGx_-+²٣\x00heads inner"
WORDS = [
    *"sfira[]|,=/ 02x",
    "..",
    "heads",
    "kv_heads",
    "inner",
    "norm",
    "full",
    "width",
    "64",
    "1k",
]
WORDS += ["4M", "pre", "9" * 30]


def strange_texts(count: int, seed: int) -> list[str]:
    """Half of them noise, half of them the words of the notation in any order."""
    rng = Random(seed)
    noise = ["".join(rng.choices(ALPHABET, k=rng.randint(0, 12))) for _ in range(count // 2)]
    return noise + ["".join(rng.choices(WORDS, k=rng.randint(0, 9))) for _ in range(count // 2)]


def test_ten_thousand_strange_texts_are_read_or_refused() -> None:
    read = 0
    for text in strange_texts(10_000, seed=1):
        try:
            found = read_range(text, "size")
            assert read_range(found.text, "size") == found
            assert list(found.values) == sorted(found.values, key=lambda v: (type(v) is str, v))
            read += 1
        except ConfigError as error:
            assert "\n" not in str(error)
        try:
            slot = read_slot(text)
            assert read_slot(" | ".join(map(str, slot))) == slot
            read += 1
        except (ConfigError, PatternError) as error:
            assert "\n" not in str(error)
    assert read > 100


@given(st.text(max_size=20))
@example("|" * 50_000)
@example("[" * 50_000)
@example("s[" + "|" * 50_000)
@example(" " * 50_000 + "1.." + " " * 50_000)
@example("s[heads=" + "2|" * 30_000 + "]")
@settings(max_examples=50)
def test_any_text_is_read_or_refused_at_once(text: str) -> None:
    for read in (lambda t: read_range(t, "size"), read_slot, read_block):
        try:
            read(text)
        except (ConfigError, PatternError) as error:
            assert len(str(error)) < 300


def test_one_is_not_a_bare_word() -> None:
    """To Python 1 == True, to a pattern they are two things."""
    one, bare = Ranged("s", (("heads", Range.of(1)),)), Ranged("r", (("full", Range.of(True)),))
    assert (str(one), str(bare)) == ("s[heads=1]", "r[full]")
    assert read_slot("s[heads=1]") == (one,)
    assert read_slot("r[full]") == (bare,)
    assert type(one.least(64, 0).options["heads"]) is int
    assert type(bare.least(64, 0).options["full"]) is bool


def test_inner_widths_are_at_least_their_share_of_the_width() -> None:
    inner = read_range("1..40", "inner")
    for width in range(1, 12):
        for tenths in range(40):
            naive = [value for value in range(1, 41) if 10 * value >= tenths * width]
            assert list(fitting("inner", inner, width, tenths / 10)) == naive
            assert fitting("heads", inner, width, tenths / 10) == inner.values


def test_corners_are_all_kinds_and_the_ends_of_inner_widths() -> None:
    (block,) = read_slot("f[inner=64..256/64]")
    assert [*map(str, block.corners(100, 1.0))] == ["f[inner=128]", "f[inner=256]"]
    (block,) = read_slot("s[heads=2|4|8,kv_heads=1|2]")
    assert len({*map(str, block.corners(64, 0))}) == block.count(64, 0) == 6
    assert str(block.least(64, 0)) == "s[heads=2,kv_heads=1]"


@pytest.mark.parametrize(
    ("one", "other", "overlap"),
    [
        ("s[heads=2|4]", "s[heads=4|8]", True),
        ("s[heads=2|4]", "s[heads=8]", False),
        ("s", "s", True),
        ("s", "s[heads=4]", False),
        ("s", "f", False),
        ("a[heads=2,width=4]", "a[heads=2,width=8]", False),
        ("a[heads=2|3,width=4]", "a[heads=2,width=8|4]", True),
    ],
)
def test_blocks_overlap_if_both_could_be_the_same(one: str, other: str, overlap: bool) -> None:
    (first,), (second,) = read_slot(one), read_slot(other)
    assert first.overlaps(second) is second.overlaps(first) is overlap


def test_a_text_of_two_blocks_is_not_one() -> None:
    assert read_block("s[heads=2]") == BlockSpec("s", {"heads": 2})
    with pytest.raises(ConfigError, match="is not one block"):
        read_block("sf")
