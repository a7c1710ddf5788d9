"""Does a layer keep what it cannot do without, and nothing else?"""

from __future__ import annotations

import json

import pytest

from parformer.errors import FolderError
from parformer.pattern import Pattern
from parformer.search.placement.choices import Choices
from parformer.search.placement.removal import needed_kinds, overruled, put_back, read_removal
from parformer.search.placement.summarise import average

SPACE = Choices.uniform(4, "sfi")


def test_needed_is_what_the_loss_would_grow_by_enough_without() -> None:
    removal = ((0.1, 0.0, 0.0), (0.0999, 0.0, 0.0), (0.0, 0.5, 0.0), (-0.5, -0.1, 0.0))
    assert needed_kinds(removal, SPACE, 0.1) == {0: "s", 2: "f"}
    assert needed_kinds(removal, SPACE, 0.6) == {}


def test_nobody_needs_nothing() -> None:
    """Without the identity a layer loses its way past the blocks, not a block."""
    assert needed_kinds(((0.0, 0.0, 0.9),) * 4, SPACE, 0.1) == {}


def test_a_layer_that_needs_several_kinds_gets_the_rarer_one() -> None:
    rows = ((0.2, 0.9, 0.0), (0.0, 0.9, 0.0), (0.0, 0.9, 0.0), (0.0, 0.0, 0.0))
    assert needed_kinds(rows, SPACE, 0.1) == {0: "s", 1: "f", 2: "f"}
    flipped = tuple((f, s, i) for s, f, i in rows)
    assert needed_kinds(flipped, SPACE, 0.1) == {0: "f", 1: "s", 2: "s"}
    # as many of each: attention first, as in the alphabet
    even = ((0.2, 0.9, 0.0), (0.2, 0.9, 0.0), (0.0, 0.0, 0.0), (0.0, 0.0, 0.0))
    assert needed_kinds(even, SPACE, 0.1) == {0: "s", 1: "s"}


def test_blocks_of_one_kind_count_together() -> None:
    """Which attention it is, the search decides; that it is one, the guard."""
    space = Choices(tuple(Pattern.parse(c).blocks for c in ("s[heads=1]s[heads=2]f", "sf")))
    removal = ((0.0, 0.3, 0.0), (0.0, 0.0))
    needs = needed_kinds(removal, space, 0.1)
    assert needs == {0: "s"}
    assert overruled([0, 1], needs, space) == overruled([1, 1], needs, space) == []
    assert overruled([2, 1], needs, space) == [0]
    rows = put_back([[-3.0, -2.0, -0.1], [-1.0, -0.5]], needs, space)
    assert rows[0][:2] == [-3.0, -2.0]
    assert rows[0][2] < -100
    assert rows[1] == [-1.0, -0.5]


def test_probabilities_stay_as_they_were() -> None:
    given = [[-1.0, -2.0, -3.0]] * 4
    put_back(given, {1: "f"}, SPACE)
    assert given == [[-1.0, -2.0, -3.0]] * 4
    assert put_back(given, {}, SPACE) == given


def test_layers_are_told_in_order() -> None:
    needs = {3: "s", 0: "f", 2: "s"}
    assert overruled([0, 0, 1, 2], needs, SPACE) == [0, 2, 3]
    assert overruled([1, 0, 0, 0], needs, SPACE) == []


def test_a_test_survives_json_and_several_are_averaged() -> None:
    removal = ((0.125, 0.25), (0.375, -0.5))
    assert read_removal(json.loads(json.dumps(removal))) == removal
    other = ((0.375, 0.0), (0.125, 0.0))
    assert average([removal, other]) == ((0.25, 0.125), (0.25, -0.25))
    assert average([removal]) == removal


@pytest.mark.parametrize("broken", [3, [1.0], [["much"]], [[None]]])
def test_a_broken_test_is_named(broken: object) -> None:
    with pytest.raises(FolderError, match="the stored removal test is broken") as caught:
        read_removal(broken)
    assert "\n" not in str(caught.value)
