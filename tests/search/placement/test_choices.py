"""Does a search space hold what was written, and refuse what no search could use?"""

from __future__ import annotations

from itertools import product

import pytest

from parformer.errors import ConfigError, PatternError
from parformer.notation import add_letter, drop_letter
from parformer.pattern import BlockSpec, Pattern
from parformer.search.placement.choices import MAX_CHOICES, MAX_LAYERS, Choices


def specs(text: str) -> tuple[BlockSpec, ...]:
    return Pattern.parse(text).blocks


RAGGED = Choices((specs("sfi"), specs("fi"), specs("is")))


@pytest.mark.parametrize("text", ["sfi", "ifs", "fs", "s[heads=2] s[heads=4] f"])
def test_choices_keep_the_order_in_which_they_were_written(text: str) -> None:
    space = Choices.uniform(3, text)
    assert space.layers == (specs(text),) * 3
    assert Choices.uniform(3, Pattern.parse(text)) == space
    for pick, spec in enumerate(specs(text)):
        assert space.pattern([pick] * 3).blocks == ((spec,) if spec.letter == "i" else (spec,) * 3)


def test_every_sequence_of_picks_is_the_pattern_that_it_spells() -> None:
    seen = set()
    for picks in product(range(3), repeat=3):
        spelled = "".join("sfi"[pick] for pick in picks).replace("i", "") or "i"
        assert Choices.uniform(3, "sfi").pattern(picks) == Pattern.parse(spelled)
        seen.add(spelled)
    assert len(seen) == 15


def test_layers_may_have_different_choices() -> None:
    assert RAGGED.size == 3 * 2 * 2
    assert str(RAGGED.pattern([2, 0, 1])) == "fs"
    assert str(RAGGED.pattern([2, 1, 0])) == "i"


def test_the_size_is_exact_however_large() -> None:
    assert Choices.uniform(300, "sfi").size == 3**300


def test_lists_become_tuples() -> None:
    listed = Choices([list(specs("sfi")), list(specs("fi")), list(specs("is"))])  # type: ignore[arg-type]
    assert listed == RAGGED
    assert hash(listed) == hash(RAGGED)


@pytest.mark.parametrize("layers", [0, -1, MAX_LAYERS + 1, 2.0, "12"])
def test_a_strange_number_of_layers_is_refused(layers: int) -> None:
    with pytest.raises(ConfigError, match=f"from 1 to {MAX_LAYERS}, got '?{layers}'?$"):
        Choices.uniform(layers, "sfi")


def test_a_space_has_at_least_one_layer_and_not_too_many() -> None:
    with pytest.raises(ConfigError, match=f"from 1 to {MAX_LAYERS}, got 0$"):
        Choices(())
    with pytest.raises(ConfigError, match=f"got {MAX_LAYERS + 1}$"):
        Choices((specs("sf"),) * (MAX_LAYERS + 1))
    assert len(Choices.uniform(MAX_LAYERS, "sf").layers) == MAX_LAYERS


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("s", "every layer has only one choice, 's'; give two blocks or more, such as sfi"),
        ("sfs", "every layer has the choice 's' twice, in 'sfs'; give it once"),
        ("(s)x2", r"every layer has the choice 's' twice, in '\(s\)x2'; give it once"),
        ("s[heads=2] f s[heads=2]", r"the choice 's\[heads=2\]' twice"),
        ("sfi[a=1]", r"unknown option 'a' in 'i\[a=1\]'; known options: share"),
        ("s[heads=no]f", r"option 'heads' in 's\[heads=no\]' takes a whole number, got 'no'"),
        ("s[heads=0]f", r"option 'heads' in 's\[heads=0\]' must be at least 1, got 0"),
    ],
)
def test_choices_that_are_none_are_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        Choices.uniform(4, text)
    assert "\n" not in str(error.value)


def test_a_letter_without_a_block_is_refused() -> None:
    add_letter("k", "a guest that stayed away")
    try:
        with pytest.raises(ConfigError, match="no block 'k' is registered; import the file"):
            Choices.uniform(4, "sfk")
    finally:
        drop_letter("k")


def test_text_that_is_no_pattern_is_refused_as_one() -> None:
    for text in ("sq", "", "s,f"):
        with pytest.raises(PatternError):
            Choices.uniform(4, text)


def test_too_many_choices_are_refused() -> None:
    many = "".join(f"f[inner={inner}]" for inner in range(1, MAX_CHOICES + 1))
    assert Choices.uniform(1, many).size == MAX_CHOICES
    with pytest.raises(ConfigError, match=f"has {MAX_CHOICES + 1} choices; give at most"):
        Choices.uniform(1, many + "s")


def test_the_layer_at_fault_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^layer 2 has only one choice, 'f'"):
        Choices((specs("sf"), specs("f")))
    with pytest.raises(ConfigError, match=r"^layer 3 has the choice 'f' twice"):
        Choices((specs("sf"), specs("fi"), specs("fsf")))
    with pytest.raises(ConfigError, match=r"^layer 2 has no choices; give two"):
        Choices((specs("sf"), ()))
    with pytest.raises(PatternError, match="'s' is no BlockSpec"):
        Choices(("sf", "sfi"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("picks", "message"),
    [
        ([0, 0], "2 picks for 3 layers; give one each"),
        ([0, 0, 0, 0], "4 picks for 3 layers"),
        ([0, 2, 0], "pick 2 of layer 2; its choices are 0 to 1"),
        ([-1, 0, 0], "pick -1 of layer 1; its choices are 0 to 2"),
    ],
)
def test_picks_that_are_none_are_refused(picks: list[int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RAGGED.pattern(picks)
