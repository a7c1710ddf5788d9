"""Does what is found for a translator always read its source, within its limit, and say so?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from parformer.errors import ConfigError
from parformer.pattern import BlockSpec, Pattern
from parformer.search.placement.choices import Choices
from parformer.search.placement.duties import cheapest, duties_of, duty_words, keep, looks, mixes
from parformer.search.placement.prices import exact, refuse_unreachable
from parformer.search.placement.session import likeliest
from parformer.search.placement.target import read_target
from tests.search.placement.pairs import SPACE, make_recipe


def rows_of(picks: Sequence[int], more: dict[tuple[int, int], float] | None = None) -> Any:
    """Log-probabilities that favour these picks."""
    rows = [
        [0.0 if pick == picks[layer] else -9.0 for pick in range(len(choices))]
        for layer, choices in enumerate(SPACE.layers)
    ]
    for (layer, pick), value in (more or {}).items():
        rows[layer][pick] = value
    return rows


def free(rows: Any) -> list[int]:
    return likeliest(rows, None, None)


def test_the_likeliest_layer_looks_and_another_mixes() -> None:
    duties = duties_of(SPACE)
    rows = rows_of([1, 2, 0, 2, 3], {(1, 0): -3.0, (3, 1): -4.0})
    picks, kept = keep(rows, duties, free)
    assert picks == [1, 0, 0, 1, 3]
    assert {layer: duty.words for layer, duty in kept.items()} == {
        1: "mix tokens",
        3: "look at the source",
    }
    reads, looking = duty_words(kept, SPACE, picks)
    assert reads.startswith("Encoder layer 2 has s: no layer of the encoder had settled on a block")
    assert looking.startswith("Decoder layer 2 has c: no layer of the decoder had settled on a")
    met = rows_of([0, 2, 3, 3, 1])
    assert keep(met, duties, free) == ([0, 2, 3, 3, 1], {})


def test_an_encoder_without_mixers_is_at_least_not_empty() -> None:
    space = Choices.of_sides([(2, "fi"), (2, "ci")])
    rows = [[-9.0, 0.0], [-8.0, 0.0], [0.0, -9.0], [0.0, -9.0]]
    picks, kept = keep(rows, duties_of(space), free)
    assert picks == [1, 0, 0, 0]
    assert [duty.words for duty in kept.values()] == ["read"]


def test_duties_are_done_within_a_limit() -> None:
    config, target = make_recipe().model, read_target("", "flops=0.9x")
    prices, duties, rng = exact("flops", config, SPACE), duties_of(SPACE), Random(0)
    nearest = prices.total(cheapest(prices.choices, duties))
    assert target is not None
    for _ in range(60):
        limit = replace(target, limit=rng.uniform(nearest, 1.0))
        rows = [[math.log(rng.random()) for _ in choices] for choices in SPACE.layers]
        picks, _ = keep(rows, duties, lambda rows, limit=limit: likeliest(rows, prices, limit))
        assert all(duty.met(picks) for duty in duties)
        assert prices.total(picks) <= limit.limit


def test_the_nearest_pattern_of_a_limit_translates() -> None:
    prices = exact("flops", make_recipe().model, SPACE)
    with pytest.raises(ConfigError, match=r"the nearest, s \| c, costs"):
        refuse_unreachable(prices, SPACE, prices.relative_fixed)


@pytest.mark.parametrize(
    ("text", "sees", "others"),
    [("c", True, True), ("s", False, True), ("f", False, False), ("a", False, True),
     ("a[source]", True, True), ("{fc}x2", True, True), ("{ff}x2", False, False)],
)  # fmt: skip
def test_what_looks_and_what_mixes(text: str, sees: bool, others: bool) -> None:
    (spec,) = Pattern.parse(text)
    assert isinstance(spec, BlockSpec)
    assert (looks(spec), mixes(spec)) == (sees, others)
