"""What may be asked for, and what is refused before anything is done?"""

from __future__ import annotations

from typing import Any

import pytest

from parformer.errors import ConfigError, ParformerError
from parformer.fitting.ask import FAMILIES, Ask


def test_without_limits_a_model_may_not_be_slower_than_the_baseline() -> None:
    (limit,) = Ask(corpus="x").bounds
    assert (limit.metric, limit.most, limit.relative) == ("latency", 1.0, True)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"corpus": ""}, "no text"),
        ({"time": 30.0}, "30 s are too short"),
        ({"margin": 0.0}, "--margin"),
        ({"margin": 1.5}, "1.5"),
        ({"family": "bert"}, "'bert'"),
        ({"choices": "fi"}, "lack 's'"),
        ({"choices": "si"}, "lack 'f'"),
        ({"choices": "s[heads=2]sfi"}, "letters alone"),
        ({"choices": "sfz"}, "'z'"),
        ({"limits": ("latency",)}, "latency=20ms"),
        ({"limits": ("latency=1ms", "latency=2ms")}, "two limits"),
        ({"seed": -1}, "seed"),
        ({"threads": 0}, "threads"),
        ({"price": -1.0}, "--price"),
        ({"tokenizer": "syllables"}, "syllables"),
    ],
)
def test_what_cannot_be_done_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ParformerError) as error:
        Ask(**{"corpus": "x", **changes})
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_a_fit_by_updates_needs_no_time() -> None:
    assert Ask(corpus="x", steps=5, time=0.0).steps == 5


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_has_a_recipe_of_this_text(family: str) -> None:
    recipe = Ask(corpus="mine.txt", family=family, seed=3).recipe()
    assert recipe.model.family == family
    assert (recipe.data.corpus, recipe.train.seed, recipe.train.compile) == ("mine.txt", 3, "off")
    assert recipe.data.tokenizer == "byte"


def test_what_is_stored_is_read_back_and_nothing_else() -> None:
    ask = Ask(corpus="x", limits=("memory=1MB", "latency=0.5x"), seed=2)
    assert Ask.from_dict(ask.to_dict()) == ask
    with pytest.raises(ConfigError, match="sede"):
        Ask.from_dict({**ask.to_dict(), "sede": 1})
