"""Does a pattern's text always say what the pattern is?"""

from __future__ import annotations

import copy
import pickle
import random
import subprocess
import sys
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from parformer.errors import PatternError
from parformer.pattern import (
    ALPHABET,
    LAYER_TYPES,
    MAX_BLOCKS,
    MAX_CHARACTERS,
    MAX_DEPTH,
    MEGATRON,
    BlockSpec,
    Options,
    Pattern,
    Value,
    describe,
    interleaved,
    par,
    sandwich,
)

s, f = BlockSpec("s"), BlockSpec("f")

unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""A slow machine is no failure."""

words = st.from_regex(r"[a-z][a-z0-9_+.-]{0,6}", fullmatch=True)
values: st.SearchStrategy[Value] = st.one_of(
    st.just(True),
    st.integers(-(10**18) + 1, 10**18 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    words,
)
options = st.one_of(st.just({}), st.dictionaries(words, values, max_size=3))
plain_blocks = st.builds(BlockSpec, st.sampled_from(sorted(ALPHABET)), options)


def repetitive(blocks: st.SearchStrategy[BlockSpec]) -> st.SearchStrategy[Pattern]:
    """Patterns of a few kinds of blocks in repeated stretches, so that there is much to group."""

    def of(kinds: list[BlockSpec]) -> st.SearchStrategy[Pattern]:
        unit = st.lists(st.sampled_from(kinds), min_size=1, max_size=5)
        stretches = st.lists(st.tuples(unit, st.integers(1, 3)), min_size=1, max_size=3)
        return st.builds(
            lambda stretches, times: Pattern(
                [block for unit, repeats in stretches for block in unit * repeats] * times
            ),
            stretches,
            st.integers(1, 2),
        )

    return st.lists(blocks, min_size=1, max_size=3).flatmap(of)


def groups(patterns: st.SearchStrategy[Pattern]) -> st.SearchStrategy[BlockSpec]:
    small = patterns.map(lambda pattern: pattern[:2])
    return st.one_of(
        st.builds(lambda inside, told: BlockSpec("<", told, inside), small, options),
        st.builds(
            lambda inside, n: BlockSpec("{", inside=inside, times=n), small, st.integers(1, 3)
        ),
    )


stacks = repetitive(plain_blocks)
for _ in range(2):
    stacks = repetitive(st.one_of(plain_blocks, groups(stacks)))
patterns = st.one_of(stacks, st.builds(lambda one, two: Pattern(two.blocks, one), stacks, stacks))


class TwoLines:
    def __repr__(self) -> str:
        return "two\nlines"


def short(value: object) -> str | None:
    """A test's name for an argument that may be huge."""
    return f"{value[:16]}…" if isinstance(value, str) and len(value) > 16 else None


def read(text: str) -> Pattern | None:
    """A pattern that reads back, or None for a text that is refused."""
    try:
        pattern = Pattern.parse(text)
    except PatternError:
        return None
    assert Pattern.parse(str(pattern)) == pattern
    return pattern


def refusal(action: Callable[[], object]) -> str:
    """The one line with which an action is refused."""
    with pytest.raises(PatternError) as caught:
        action()
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 400
    return message


def spelled_out(blocks: list[BlockSpec]) -> str:
    """The canonical form exactly as the documentation words it, with no thought of speed."""
    pieces: list[str] = []
    at, after_plain = 0, False
    while at < len(blocks):
        best: tuple[int, int, int] = (0, 0, 0)
        for length in range(1, (len(blocks) - at) // 2 + 1):
            unit, times = blocks[at : at + length], 1
            while blocks[at + times * length : at + (times + 1) * length] == unit:
                times += 1
            if times > 1:
                best = max(best, (length * times, -length, times))
        covered, length, times = best[0] or 1, -best[1] or 1, best[2] or 1
        unit = blocks[at : at + length]
        plain = times == 1 and unit[0].letter not in ("<", "{")
        text = spelled_out_unit(unit)
        if length == 1 and unit[0].letter == "<" and times > 1:
            text = f"{text}x{times}"
        elif times > 1:
            text = f"({text})x{times}"
        if plain and after_plain:
            pieces[-1] += text
        else:
            pieces.append(text)
        at, after_plain = at + covered, plain
    return " ".join(pieces)


def spelled_out_group(block: BlockSpec) -> str:
    assert block.inside is not None
    inside = spelled_out_unit(list(block.inside))
    if block.letter == "<":
        return f"<{inside}>" + (f"[{block.options}]" if block.options else "")
    return f"{{{inside}}}" + (f"x{block.times}" if block.times > 1 else "")


def spelled_out_unit(blocks: list[BlockSpec]) -> str:
    plain = "".join(spelled_out_group(block) if block.inside else str(block) for block in blocks)
    return plain if len(blocks) == 1 else min(plain, spelled_out(blocks), key=len)


@unhurried
@given(patterns)
def test_a_printed_pattern_reads_back_as_itself(pattern: Pattern) -> None:
    again = Pattern.parse(str(pattern))
    assert again == pattern
    assert hash(again) == hash(pattern)
    assert [type(v) for b in again for v in b.options.values()] == [
        type(v) for b in pattern for v in b.options.values()
    ]
    assert str(again) == str(pattern)
    assert eval(repr(pattern).replace("Pattern(", "Pattern.parse(", 1)) == pattern


@unhurried
@given(stacks)
def test_printing_follows_the_rule_word_for_word(pattern: Pattern) -> None:
    assert str(pattern) == spelled_out(list(pattern))


@unhurried
@given(st.text("sf", min_size=1, max_size=60))
@example("s" * 7 + "fs" * 9 + "f" * 7)
def test_printing_two_letters_follows_the_rule_word_for_word(letters: str) -> None:
    pattern = Pattern.parse(letters)
    assert pattern.letters == letters
    assert str(pattern) == spelled_out(list(pattern))


@pytest.mark.parametrize(
    ("written", "printed"),
    [
        ("s", "s"),
        ("sff", "s (f)x2"),
        ("sfffsfff ff", "(sfff)x2 (f)x2"),
        ("(sfff)×6 (f)*8", "(sfff)x6 (f)x8"),
        ("sf" * 16, "(sf)x16"),
        ("(s)x6 (sf)x10 (f)x6", "(s)x7 (fs)x9 (f)x7"),
        ("((s)x12 f)x2", "((s)x12 f)x2"),
        ("(<sffff>)x24", "<sffff>x24"),
        ("<(s)x12 f>", "<(s)x12 f>"),
        ("s<ff>f", "s <ff> f"),
        ("(s<ff>f)x2", "(s<ff>f)x2"),
        ("<s><s> <f>", "<s>x2 <f>"),
        ("<<s>x2 f>x3", "<<s><s>f>x3"),
        ("(<sff> [ width=8, feed = shared ])x2", "<sff>[feed=shared,width=8]x2"),
        ("<s><s>[wide] x 2", "<s> <s>[wide]x2"),
        ("<<s>[a]f>[b]x3", "<<s>[a]f>[b]x3"),
        ("(rrrra)x2", "(rrrra)x2"),
        ("(r[full])x1 y[factored-dense+vanilla]", "r[full]y[factored-dense+vanilla]"),
        ("s[heads=2,head=64]", "s[head=64,heads=2]"),
        ("s[heads=02] f[drop=0.10]", "s[heads=2]f[drop=0.1]"),
        ("s[a=1e-5,b=-3,c=2.0]", "s[a=1e-05,b=-3,c=2.0]"),
        ("s[heads=2]f[inner=1472] s[heads=4]f", "s[heads=2]f[inner=1472]s[heads=4]f"),
        (" ( s [ heads = 2 , full ] f ) x 3\n< s >\t× 02 ", "(s[full,heads=2]f)x3 <s>x2"),
        ("(sf)x001", "sf"),
        ("(sf)x0000000000003", "(sf)x3"),
    ],
)
def test_the_canonical_form(written: str, printed: str) -> None:
    assert str(Pattern.parse(written)) == printed
    assert Pattern.parse(printed) == Pattern.parse(written)


@pytest.mark.parametrize(
    ("text", "column", "says"),
    [
        ("sfqf", 3, ["unknown block 'q'", "'sfqf'", "known blocks: a c f i l n r s y"]),
        ("sS", 2, ["unknown block 'S'"]),
        ("s3", 2, ["unknown block '3'"]),
        ("s\n\nq", 4, ["unknown block 'q'", r"'s\n\nq'"]),
        ("x3", 1, ["unknown block 'x'"]),
        ("(s)x3x3", 6, ["unknown block 'x'"]),
        ("", 1, ["no block", "at least one"]),
        (" \t ", 1, ["no block"]),
        ("(sf", 1, ["unpaired '('", "pairs"]),
        ("s<(f)", 2, ["unpaired '<'"]),
        ("sf)", 3, ["unpaired ')'"]),
        ("(sf>", 4, ["unpaired '>'"]),
        ("<sf)x2", 4, ["unpaired ')'"]),
        ("s()", 2, ["empty group", "at least one block"]),
        ("s<  >x3", 2, ["empty group"]),
        ("(s)x", 5, ["count missing", "1 or more"]),
        ("(s)x f", 6, ["count missing"]),
        ("(s)x0", 5, ["count 0"]),
        ("<s> * 000", 7, ["count 0"]),
        ("fsx3", 3, ["stray 'x'", "write (s)x3"]),
        ("s[heads=2] × 4", 12, ["stray '×'", "write (s[heads=2])x4"]),
        ("s*", 2, ["stray '*'", "write (s)x2"]),
        ("fs[", 3, ["stray '['", "s[heads=2]"]),
        ("s[a[b]]", 2, ["stray '['"]),
        ("s]", 2, ["stray ']'"]),
        ("[a]s", 1, ["stray '['"]),
        ("(s)[a]", 4, ["stray '['"]),
        ("{s}[a]", 4, ["stray '['"]),
        ("<s>x2[a]", 6, ["stray '['"]),
        ("<s>[", 4, ["stray '['", "or < >"]),
        ("<s>[a, Feed=x]", 8, ["option name 'Feed'"]),
        ("s[]", 3, ["option name ''"]),
        ("s[a=1,,b]", 7, ["option name ''"]),
        ("s[a,]", 5, ["option name ''"]),
        ("s[a, Heads=2]", 6, ["option name 'Heads'", "lower case"]),
        ("s[2]", 3, ["option name '2'"]),
        ("s[a b]", 3, ["option name 'a b'"]),
        ("s[é]", 3, ["option name 'é'"]),
        ("s[a=1, a]", 8, ["second option 'a'", "once"]),
        ("s[a=]", 3, ["value ''", "option 'a'"]),
        ("s[a=Big]", 3, ["value 'Big'"]),
        ("s[a=1=2]", 3, ["value '1=2'"]),
        ("s[a=1.2.3]", 3, ["value '1.2.3'"]),
        ("s[a=1_0]", 3, ["value '1_0'"]),
        ("s[a=1e999]", 3, ["value inf", "finite"]),
        ("s[a=²]", 3, ["value '²'"]),
        ("s[a=" + "9" * 19 + "]", 3, ["up to 18 digits"]),
        ("s[a=" + "9" * 90_000 + "]", 3, ["up to 18 digits", "…"]),
        ("(s)x4097", 3, ["4,097 blocks", "at most 4,096"]),
        ("s" * 4097, 4097, ["4,097 blocks"]),
        ("f(s)x4096", 4, ["4,097 blocks"]),
        ("<(s)x4096>", 10, ["4,097 blocks"]),
        ("<s>x2049", 3, ["4,098 blocks"]),
        ("<" * 8 + "s" + ">x4" * 8, 25, ["9,556 blocks"]),
        ("(s)x4096" * 12_000, 11, ["8,192 blocks"]),
        ("((((s)x999)x999)x999)x999", 11, ["998,001 blocks"]),
        ("(s)x" + "9" * 90_000, 3, ["blocks or more"]),
        ("(" * 100_000, 51, ["nested 51 deep", "at most 50"]),
        ("<(" * 26 + "s" + ")>" * 26, 51, ["nested 51 deep"]),
        ("s" * 100_001, 100_001, ["text too long", "at most 100,000"]),
        ("(" * 50 + "s" * 4000, 50, ["unpaired '('"]),
        ("sf" * 29 + "q", 59, ["'" + "sf" * 29 + "q'"]),
        ("sf" * 40 + "q" + "sf" * 40, 81, ["unknown block 'q'", "'…sf", "s…'"]),
    ],
    ids=short,
)
def test_a_malformed_text_is_refused_with_its_place(
    text: str, column: int, says: list[str]
) -> None:
    message = refusal(lambda: Pattern.parse(text))
    assert f" at column {column} of '" in message
    for words_ in says:
        assert words_ in message


@pytest.mark.parametrize("thing", [None, 3, b"sf", ["s"], 10**5000, object(), TwoLines()], ids=type)
def test_what_is_no_text_is_refused(thing: object) -> None:
    assert "like '(sf)x16'" in refusal(lambda: Pattern.parse(thing))  # type: ignore[arg-type]


def test_random_texts_are_refused_or_read_back() -> None:
    rng = random.Random(0)
    alphabet = "sffiralyq((()))<<>>xx×*0123  [[]]==,,.-+_\n"
    texts = ["".join(rng.choices(alphabet, k=rng.randint(0, 12))) for _ in range(10_000)]
    assert sum(read(text) is not None for text in texts) > 100


@unhurried
@given(patterns, st.integers(0, 10_000), st.sampled_from("sfx()<>[]=,2 q"))
def test_a_damaged_text_is_refused_or_read_back(pattern: Pattern, at: int, scar: str) -> None:
    text = str(pattern)
    at %= len(text)
    read(text[:at] + scar + text[at:])
    read(text[:at] + text[at + 1 :])


def thue_morse(letters: str, images: dict[str, str]) -> str:
    while len(letters) < MAX_BLOCKS:
        letters = "".join(images[letter] for letter in letters)
    return letters[:MAX_BLOCKS]


SQUARE_FREE = thue_morse("s", {"s": "sfr", "f": "sr", "r": "f"})
OVERLAP_FREE = thue_morse("s", {"s": "sf", "f": "fs"})
FIBONACCI = thue_morse("s", {"s": "sf", "f": "s"})


@pytest.mark.parametrize(
    "text",
    [
        SQUARE_FREE,
        OVERLAP_FREE,
        FIBONACCI,
        "f" * (MAX_BLOCKS - 1) + "s",
        "".join(random.Random(0).choices("sf", k=MAX_BLOCKS)),
        "".join(random.Random(0).choices("sfiraly", k=MAX_BLOCKS)),
        "s" + " " * (MAX_CHARACTERS - 2) + "f",
        f"({'s[' + 'a' * 90_000 + ']'})x{MAX_BLOCKS}",
        f"<({'s[' + 'a' * 90_000 + ']'})x4000>",
        "<" * 49 + f"({'s[' + 'a' * 90_000 + ']'})x4000" + ">" * 49,
        "s[" + ",".join(f"a{number}" for number in range(14_000)) + "]",
        "<" * MAX_DEPTH + "s" + ">" * MAX_DEPTH,
    ],
    ids=short,
)
def test_the_largest_patterns_read_back(text: str) -> None:
    pattern = Pattern.parse(text)
    assert Pattern.parse(str(pattern)) == pattern


def test_words_without_repeats_stand_as_they_are() -> None:
    assert str(Pattern.parse(SQUARE_FREE)) == SQUARE_FREE
    distinct = [BlockSpec("s", {"heads": heads}) for heads in range(MAX_BLOCKS)]
    assert str(Pattern(distinct)) == "".join(map(str, distinct))


def test_the_constructor_keeps_what_cannot_be_read_back_out() -> None:
    long = [BlockSpec("s", {f"{letter}{'a' * 40_000}": True}) for letter in "abc"]
    assert Pattern.parse(str(Pattern(long[:2]))) == Pattern(long[:2])
    assert "at most 100,000" in refusal(lambda: Pattern(long))
    nested = Pattern([s])
    for _ in range(MAX_DEPTH):
        nested = Pattern([BlockSpec("<", inside=nested)])
    assert Pattern.parse(str(nested)) == nested
    assert "nested 51 deep" in refusal(lambda: Pattern([BlockSpec("<", inside=nested)]))


def test_exactly_the_largest_text_is_read() -> None:
    text = f"s[{'a' * (MAX_CHARACTERS - 3)}]"
    assert len(str(Pattern.parse(text))) == MAX_CHARACTERS
    spread = f"(f)x2 {text[:-10]}] s"
    assert str(Pattern.parse(spread)) == f"(f)x2 {text[:-10]}]s"


@pytest.mark.parametrize(
    ("action", "says"),
    [
        (lambda: Pattern([]), "at least one"),
        (lambda: Pattern("sf"), "Pattern.parse"),
        (lambda: Pattern([s] * 4097), "more than 4,096"),
        (lambda: Pattern([BlockSpec("<", inside=Pattern([s] * 4096))]), "more than 4,096"),
        (lambda: Pattern([s]) * 0, "at least one"),
        (lambda: Pattern([s]) * -1, "at least one"),
        (lambda: Pattern([s]) * 10**30, "more than 4,096"),
        (lambda: Pattern([s, f])[2:], "at least one"),
        (lambda: BlockSpec("q"), "unknown block 'q'; known blocks: a c f i l n r s y"),
        (lambda: BlockSpec(3), "unknown block 3"),
        (lambda: BlockSpec(["s"]), "unknown block ['s']"),
        (lambda: BlockSpec("<"), "a pattern inside"),
        (lambda: BlockSpec("<", inside="sf"), "a pattern inside"),
        (lambda: BlockSpec("{", {"a": 1}, Pattern([s])), "no options"),
        (lambda: BlockSpec("s", inside=Pattern([s])), "only '<'"),
    ],
)
def test_a_pattern_that_cannot_be_is_refused(action: Callable[[], object], says: str) -> None:
    assert says in refusal(action)


@pytest.mark.parametrize(
    "values",
    [
        {"": 1},
        {"Heads": 1},
        {"heads ": 1},
        {"a,b": 1},
        {"2d": 1},
        {3: 1},
        {"heads": "64"},
        {"heads": "-1"},
        {"heads": "1e5"},
        {"heads": ""},
        {"heads": "Two"},
        {"heads": "a]"},
        {"heads": False},
        {"heads": None},
        {"heads": float("nan")},
        {"heads": float("inf")},
        {"heads": 10**18},
        {"heads": -(10**5000)},
        {"heads": [2]},
        {"heads": 2j},
    ],
)
def test_options_that_cannot_be_written_are_refused(values: dict[str, Value]) -> None:
    assert "option" in refusal(lambda: BlockSpec("s", values))


def test_options_are_an_immutable_mapping_sorted_by_name() -> None:
    options = Options({"heads": 2, "full": True, "head": 64})
    assert list(options.items()) == [("full", True), ("head", 64), ("heads", 2)]
    assert options.get("heads") == 2
    assert options.get("inner", 7) == 7
    assert options == {"head": 64, "heads": 2, "full": True}
    assert options == Options({"head": 64, "heads": 2, "full": True})
    assert options != {"heads": 2}
    assert options != "full"
    assert str(options) == "full,head=64,heads=2"
    assert eval(repr(options)) == options
    with pytest.raises(TypeError):
        options["heads"] = 3  # type: ignore[index]


def test_one_and_true_are_different_options() -> None:
    kinds = [BlockSpec("s", {"a": value}) for value in (1, 1.0, True, 0.0, -0.0)]
    assert len(set(kinds)) == len(kinds)
    assert Options({"a": 1}) != Options({"a": True})
    assert str(Pattern(kinds)) == "s[a=1]s[a=1.0]s[a]s[a=0.0]s[a=-0.0]"


def test_blocks_and_patterns_do_not_change() -> None:
    values = {"heads": 2}
    block = BlockSpec("s", values)
    values["heads"] = 3
    pattern = Pattern([block])
    assert str(block) == str(pattern) == "s[heads=2]"
    for thing, field in ((block, "letter"), (pattern, "blocks")):
        with pytest.raises(AttributeError):
            setattr(thing, field, "f")


@unhurried
@given(stacks)
def test_a_pattern_is_a_sequence(pattern: Pattern) -> None:
    blocks = list(pattern)
    assert len(pattern) == len(blocks)
    assert pattern == Pattern(blocks) == Pattern(iter(blocks))
    assert pattern != blocks
    assert pattern[0] == blocks[0]
    assert pattern[-1] == blocks[-1]
    assert pattern[:1] == Pattern(blocks[:1])
    assert pattern[::-1] == Pattern(reversed(blocks)) == Pattern(reversed(pattern))
    assert pattern + pattern == pattern * 2 == 2 * pattern == Pattern(blocks * 2)
    assert Pattern.parse(pattern) is pattern
    assert pickle.loads(pickle.dumps(pattern)) == pattern == copy.deepcopy(pattern)
    with pytest.raises(IndexError):
        pattern[len(pattern)]
    with pytest.raises(TypeError):
        pattern + "s"
    with pytest.raises(TypeError):
        pattern * "s"


def test_a_bottleneck_counts_itself_and_all_inside() -> None:
    pattern = Pattern.parse("s <sffff>x24 <<i>x2>")
    assert len(pattern) == 26
    assert pattern.letters == "s" + "<" * 25
    assert pattern[1].inside == Pattern.parse("sffff")
    assert [pattern.count(letter) for letter in "sfi<q"] == [25, 96, 2, 27, 0]
    assert pattern.size == 25 + 96 + 2 + 27
    assert pattern[1].size == 6


PUBLISHED = {
    (24, 5): "(sff)x5 (f)x9",
    (32, 5): "(sfff)x6 (f)x8",
    (36, 5): "(sfff)x7 (f)x8",
}


@pytest.mark.parametrize(("layers", "p"), PUBLISHED)
def test_par_writes_the_published_patterns(layers: int, p: int) -> None:
    assert str(par(layers, p)) == PUBLISHED[layers, p]
    assert par(layers) == par(layers, p=5)


def test_par_keeps_attention_in_the_first_two_thirds() -> None:
    for layers in range(1, 201):
        for p in (*range(2, 13), 2.5, 3.7, 1000):
            letters = par(layers, p).letters
            assert len(letters) == layers
            assert letters[0] == "s"
            assert 3 * letters.rindex("s") <= 2 * layers
            attention = letters.count("s")
            assert attention == max(1, round(layers / p))
            places = [place for place, letter in enumerate(letters) if letter == "s"]
            stride = places[1] if attention > 1 else 0
            assert places == [number * stride for number in range(attention)]
            assert 5 * attention * stride <= 4 * layers
            assert set(letters) <= {"s", "f"}


@pytest.mark.parametrize(("layers", "p", "letters"), [(1, 2, "s"), (3, 2, "ssf"), (5, 2, "sfsff")])
def test_par_rounds_a_half_to_the_even_number(layers: int, p: int, letters: str) -> None:
    assert par(layers, p).letters == letters


def test_sandwich_and_interleaved() -> None:
    assert str(sandwich(32, 6)) == "(s)x7 (fs)x9 (f)x7"
    assert str(interleaved(32)) == "(sf)x16"
    assert sandwich(8, 0) == interleaved(8)
    assert sandwich(8, 1).letters == "ssfsfsff"
    assert sandwich(8, 4).letters == "ssssffff"
    assert interleaved(2).letters == "sf"


@pytest.mark.parametrize(
    ("action", "says"),
    [
        (lambda: par(0), "layers must be a whole number from 1 to 4096, got 0"),
        (lambda: par(4097), "got 4097"),
        (lambda: par(10**5000), "more than 18 digits"),
        (lambda: par(32.0), "got 32.0"),
        (lambda: par(32, 1.9), "p must be a number from 2 up, got 1.9"),
        (lambda: par(32, float("nan")), "got nan"),
        (lambda: par(32, float("inf")), "got inf"),
        (lambda: par(32, "5"), "got '5'"),
        (lambda: sandwich(31, 3), "layers must be an even number from 2 to 4096, got 31"),
        (lambda: sandwich(32, 17), "k must be from 0 to 16, half the layers, got 17"),
        (lambda: sandwich(32, -1), "got -1"),
        (lambda: sandwich(32, 1.5), "got 1.5"),
        (lambda: interleaved(0), "got 0"),
        (lambda: interleaved(7), "got 7"),
    ],
)
def test_builders_refuse_what_makes_no_sense(action: Callable[[], object], says: str) -> None:
    assert says in refusal(action)


@unhurried
@given(st.text("sf", min_size=1, max_size=40))
def test_other_notations_read_back(letters: str) -> None:
    pattern = Pattern.parse(letters)
    assert Pattern.from_megatron(pattern.to_megatron()) == pattern
    assert Pattern.from_layer_types(pattern.to_layer_types()) == pattern


def test_other_notations() -> None:
    assert par(8, 4).to_megatron() == "*--*----"
    assert Pattern.parse("sf").to_layer_types() == ["full_attention", "mlp"]
    assert str(Pattern.from_megatron("*---" * 6 + "-" * 8)) == "(sfff)x6 (f)x8"
    assert str(Pattern.from_layer_types(("mlp", "mlp", "full_attention"))) == "(f)x2 s"


@pytest.mark.parametrize("table", [MEGATRON, LAYER_TYPES])
def test_the_tables_name_known_blocks_by_different_words(table: dict[str, str]) -> None:
    assert set(table) <= set(ALPHABET)
    assert len(set(table.values())) == len(table)


@pytest.mark.parametrize(
    ("action", "says"),
    [
        (lambda: Pattern.from_megatron("*-M-"), "unknown layer 3, 'M'; known layers: * -"),
        (lambda: Pattern.from_megatron("*-|*-"), "unknown layer 3, '|'"),
        (lambda: Pattern.from_megatron(""), "no block"),
        (lambda: Pattern.from_megatron(None), "None holds no layers"),
        (lambda: Pattern.from_megatron("-" * 5000), "4,097 blocks"),
        (lambda: Pattern.from_layer_types(["mlp", "mamba"]), "unknown layer 2, 'mamba'"),
        (lambda: Pattern.from_layer_types([["mlp"]]), "unknown layer 1, ['mlp']"),
        (lambda: Pattern.from_layer_types([]), "no block"),
        (lambda: Pattern.from_layer_types(None), "None holds no layers"),
        (lambda: Pattern.from_layer_types("mlp"), "unknown layer 1, 'm'"),
        (lambda: Pattern.parse("sr").to_megatron(), "block 2, 'r'; there are only * -"),
        (lambda: Pattern.parse("s[heads=2]").to_megatron(), "without options"),
        (lambda: Pattern.parse("s<f>").to_layer_types(), "block 2, '<f>'; there are only full"),
        (lambda: Pattern.parse("sif").to_megatron(), "pattern.without_identity()"),
        (lambda: Pattern.parse("(i)x3").without_identity(), "only identity blocks"),
        (lambda: Pattern.parse("s<i>").without_identity(), "only identity blocks"),
    ],
)
def test_what_other_notations_cannot_say_is_refused(
    action: Callable[[], object], says: str
) -> None:
    assert says in refusal(action)


def test_identity_blocks_can_be_dropped() -> None:
    assert str(Pattern.parse("sifi <sif>x2 i").without_identity()) == "sf <sf>x2"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "(sfff)x6 (f)x8",
            "32 blocks: 6 self-attention (19%), 26 feed-forward; attention in the first 21 of "
            "32 blocks (every 4th), the last third without it. This is PAR's rule for p = 5.",
        ),
        (
            "(sfff)x7 (f)x8",
            "36 blocks: 7 self-attention (19%), 29 feed-forward; attention in the first 25 of "
            "36 blocks (every 4th), the last 11 without it. This is PAR's rule for p = 5.",
        ),
        (
            "(sf)x16",
            "32 blocks: 16 self-attention (50%), 16 feed-forward. "
            "This is the interleaved Transformer.",
        ),
        (
            "(s)x6 (sf)x10 (f)x6",
            "32 blocks: 16 self-attention (50%), 16 feed-forward; attention in the first 25 of "
            "32 blocks, the last 7 without it. This is a Sandwich with k = 6.",
        ),
        (
            "ssff",
            "4 blocks: 2 self-attention (50%), 2 feed-forward; attention in the first 2 of "
            "4 blocks, the last 2 without it. This is a Sandwich with k = 1 and PAR's rule for "
            "p = 2.",
        ),
        (
            "s(f)x20 s(f)x20",
            "42 blocks: 2 self-attention (5%), 40 feed-forward; attention in the first 22 of "
            "42 blocks (every 21st), the last 20 without it.",
        ),
        (
            "s(f)x10 sff",
            "14 blocks: 2 self-attention (14%), 12 feed-forward; attention in the "
            "first 12 of 14 blocks (every 11th), the last 2 without it.",
        ),
        ("<sffff>x24", "120 blocks and 24 bottlenecks: 24 self-attention (20%), 96 feed-forward."),
        ("sff<f>", "4 blocks and 1 bottleneck: 1 self-attention (25%), 3 feed-forward."),
        ("(rrrra)x2", "10 blocks: 8 SRU recurrence, 2 SRU++ attention."),
        ("<i>", "1 block and 1 bottleneck: 1 identity."),
        ("s", "1 block: 1 self-attention (100%)."),
    ],
)
def test_a_pattern_in_words(text: str, words: str) -> None:
    assert describe(text) == describe(Pattern.parse(text)) == words


def test_the_papers_families_are_recognised() -> None:
    for layers in range(2, 80):
        for p in range(2, 13):
            assert "PAR's rule for p = " in describe(par(layers, p))
        for k in range(0 if layers % 2 else layers // 2):
            name = f"a Sandwich with k = {k}" if k else "the interleaved Transformer"
            assert f"This is {name}" in describe(sandwich(layers, k))


def test_a_pattern_needs_nothing_but_python() -> None:
    """So that the command line can answer at once."""
    check = (
        "import sys, parformer.pattern; sys.exit(any(m in sys.modules for m in ['torch', 'numpy']))"
    )
    subprocess.run([sys.executable, "-c", check], check=True)


# Groups that share, and two stacks


def test_a_shared_group_is_one_block_that_runs_several_times() -> None:
    pattern = Pattern.parse("{sf}x12 f")
    assert [block.letter for block in pattern] == ["{", "f"]
    assert pattern[0].times == 12
    assert (pattern.size, pattern.count("s"), pattern.count("f")) == (26, 12, 13)
    assert "".join(block.letter for block in pattern.steps) == "sf" * 12 + "f"
    assert str(Pattern.parse("{sf}x2{sf}x2")) == "({sf}x2)x2"
    assert Pattern.parse("{sf}x2") != Pattern.parse("(sf)x2")


def test_a_bar_stands_between_encoder_and_decoder() -> None:
    pattern = Pattern.parse("(sf)x2|scfscf")
    assert str(pattern) == "(sf)x2 | (scf)x2"
    assert pattern.encoder == Pattern.parse("sfsf")
    assert (len(pattern), pattern.size, pattern.count("s")) == (6, 10, 4)
    assert pattern != Pattern.parse("(scf)x2")
    assert pattern.without_identity() == pattern
    assert describe(pattern).startswith("Encoder: 4 blocks")
    assert "Decoder: 6 blocks" in describe(pattern)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("s|f|s", "a second '|' at column 4"),
        ("(s|f)", "unpaired '(' at column 1"),
        ("|s", "no block at column 1"),
        ("s|", "no block at column 2"),
        ("{}x2", "empty group at column 1"),
        ("{s)", "unpaired ')' at column 3"),
        ("{s}x0", "count 0 at column 5"),
        ("{sf}x4000", "8,000 blocks or more"),
        ("{s}x4000 | {s}x4000", "blocks or more"),
    ],
)
def test_groups_and_bars_that_cannot_be_are_refused(text: str, says: str) -> None:
    assert says in refusal(lambda: Pattern.parse(text))


def test_group_blocks_check_what_they_are_made_of() -> None:
    inside, both = Pattern.parse("sf"), Pattern.parse("s | f")
    assert "runs 0 times" in refusal(lambda: BlockSpec("{", inside=inside, times=0))
    assert "runs 2 times" in refusal(lambda: BlockSpec("<", inside=inside, times=2))
    assert "only '{' repeats" in refusal(lambda: BlockSpec("s", times=2))
    assert "stands outside" in refusal(lambda: BlockSpec("{", inside=both))
    assert "encoder of an encoder" in refusal(lambda: Pattern(inside, both))
    assert "no words for an encoder" in refusal(both.to_megatron)
