"""What may be asked for, and what is refused before anything is done?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from parformer.errors import ConfigError, ParformerError
from parformer.fitting.request import FAMILIES, FitRequest


def test_without_limits_a_model_may_not_be_slower_than_the_baseline() -> None:
    (limit,) = FitRequest(corpus="x").bounds
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
        ({"steps": 0}, "--steps must be at least 1, got 0"),
        ({"steps": -3}, "-3"),
        ({"steps": 5, "time": 100.0}, "two lengths"),
        ({"steps": "5"}, "a whole number"),
        ({"run": "a\0b"}, "NUL"),
        ({"corpus": "a\0b"}, "NUL"),
        ({"run": 3}, "a text or a path"),
    ],
)
def test_what_cannot_be_done_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ParformerError) as error:
        FitRequest(**{"corpus": "x", **changes})
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_a_fit_by_updates_needs_no_time() -> None:
    request = FitRequest(corpus="x", steps=5)
    assert (request.steps, request.seconds) == (5, 0.0)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_has_a_recipe_of_this_text(family: str) -> None:
    recipe = FitRequest(corpus="mine.txt", family=family, seed=3).recipe()
    assert recipe.model.family == family
    assert (recipe.data.corpus, recipe.train.seed, recipe.train.compile) == ("mine.txt", 3, "off")
    assert recipe.data.tokenizer == "byte"


def test_what_is_stored_is_read_back_and_nothing_else() -> None:
    request = FitRequest(corpus="x", limits=("memory=1MB", "latency=0.5x"), seed=2)
    assert FitRequest.from_dict(request.to_dict()).to_dict() == request.to_dict()
    with pytest.raises(ConfigError, match="sede"):
        FitRequest.from_dict({**request.to_dict(), "sede": 1})


def test_a_single_limit_may_be_a_plain_text() -> None:
    assert FitRequest(corpus="x", limits="latency=5ms").limits == ("latency=5ms",)  # type: ignore[arg-type]
    assert FitRequest(corpus="x", limits=["latency=5ms"]).limits == ("latency=5ms",)  # type: ignore[arg-type]


def test_paths_are_as_good_as_names() -> None:
    request = FitRequest(corpus=Path("a/b.txt"), run=Path("r"))  # type: ignore[arg-type]
    assert (request.corpus, request.folder) == ("a/b.txt", Path("r"))
    assert FitRequest(corpus="notes/**/*.md").folder == Path("runs/fit")
    assert FitRequest(corpus="books/emma.txt").folder == Path("runs/fit-emma")


def test_to_go_on_a_run_is_enough_and_all_there_may_be() -> None:
    assert FitRequest(run="r").folder == Path("r")
    with pytest.raises(ConfigError, match="name a CORPUS"):
        FitRequest()
    with pytest.raises(ConfigError, match="--seed belongs to a new fit"):
        FitRequest(run="r", seed=3)


def test_what_version_0_1_stored_is_read() -> None:
    stored = json.loads((Path(__file__).parent / "files" / "fit-notes-0.1.json").read_text())
    request = FitRequest.from_dict(stored["ask"])
    assert (request.corpus, request.steps, request.limits) == ("some.txt", 30, ("flops=0.9x",))
    assert request.to_dict() == stored["ask"] | {"counts": True}
    by_clock = FitRequest.from_dict({**stored["ask"], "steps": 0, "time": 600.0})
    assert (by_clock.seconds, by_clock.steps) == (600.0, None)
