"""Are the usual patterns usual, and does a regression find what makes patterns good?"""

from __future__ import annotations

from random import Random

import pytest

from parformer.search.trials.patterns import (
    draw,
    features,
    most_promising,
    neighbour,
    ordered,
    spelled,
    usual_picks,
)


@pytest.mark.parametrize(
    ("letters", "wanted"),
    [
        ("sfi", ["sfsfsfsf", "sffsffff"]),
        ("sf", ["sfsfsfsf", "sffsffff"]),
        ("rsfi", ["sfsfsfsf", "sffsffff", "rfrfrfrf", "rfsfrfsf"]),
        ("sfy", ["sfsfsfsf", "sffsffff", "yfyfyfyf"]),
        ("rfn", ["rfrfrfrf", "nrfrfrfr"]),
        ("ri", []),
    ],
)
def test_the_usual_ones_have_the_blocks_that_may_be_chosen(letters: str, wanted: list[str]) -> None:
    assert [spelled(picks, letters) for picks in usual_picks(8, letters)] == wanted


def test_one_pattern_is_always_spelled_alike() -> None:
    assert ordered((2, 0, 2, 1), "sfi") == (0, 1, 2, 2)
    rng = Random(0)
    for _ in range(50):
        picks = draw(7, "rsfi", rng)
        assert picks == ordered(picks, "rsfi")
        near = neighbour(picks, "rsfi", rng)
        assert near == ordered(near, "rsfi")
        assert len(picks) == len(near) == 7


def test_what_does_nothing_is_not_seen() -> None:
    assert features("sfsfii", "sfi") == features("sfsf", "sfi")
    assert features("sfsf", "sfi") != features("ssff", "sfi")


def test_the_regression_finds_what_lowers_the_loss() -> None:
    """Where every memory is worth 0.3, patterns with memories are the promising ones."""
    rng, letters = Random(3), "sfrn"
    known = {draw(8, letters, rng) for _ in range(24)}
    losses = {picks: 3 - 0.3 * spelled(picks, letters).count("n") for picks in known}
    pool = [draw(8, letters, rng) for _ in range(200)]
    found = most_promising(losses, pool, lambda one: features(spelled(one, letters), letters), 8)
    mean = sum(spelled(picks, letters).count("n") for picks in found) / 8
    anywhere = sum(spelled(picks, letters).count("n") for picks in pool) / len(pool)
    assert mean > 2 * anywhere
    assert not set(found) & set(losses)
    assert len(set(found)) == 8
