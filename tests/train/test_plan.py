"""Is everything decided once, and written down?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from parformer.data.characters import Bytes
from parformer.kernels import native
from parformer.recipe import Recipe, read_recipe
from parformer.train import plan
from parformer.train.distributed import Workers
from parformer.train.plan import can_compile, decide, fit_vocabulary, shortened
from tests.train.trials import make_prepared, make_recipe

TOKENS = make_prepared().splits["train"].tokens

OPEN: dict[str, Any] = {
    "train__precision": "auto",
    "train__kernels": "auto",
    "train__compile": "auto",
    "train__threads": 0,
    "train__evaluate_every": 0,
}


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """What a step takes here, with compiled code or without."""
    known = {"off": 0.05, "on": 0.03}

    def measured(recipe: Recipe, *_: object) -> float:
        return known[recipe.train.compile]

    monkeypatch.setattr(plan, "step_seconds", measured)
    monkeypatch.setattr(plan, "token_seconds", lambda *_: 0.0)
    monkeypatch.setattr(plan, "can_compile", lambda _: True)
    return known


def made(recipe: Recipe) -> tuple[Recipe, list[str]]:
    notices: list[str] = []
    return decide(recipe, TOKENS, Workers(), notices.append), notices


@pytest.mark.parametrize("family", ["transformer-xl", "gpt2", "bert"])
def test_nothing_is_left_open(family: str) -> None:
    recipe, notices = made(make_recipe(family, **OPEN))
    train = recipe.train
    assert train.precision in ("fp32", "bf16")
    assert train.compile == "off"  # eight steps never gain what compiling costs
    assert train.kernels == ("plain" if native.library() is None else "native")
    assert train.threads >= 1
    assert train.evaluate_every == 1
    assert recipe.replaced({n.replace("__", "."): v for n, v in OPEN.items()}) == make_recipe(
        family, **OPEN
    )
    assert sum("Precision: " in notice for notice in notices) == 1
    again, silent = made(recipe)
    assert again == recipe
    assert silent == []


def test_what_the_recipe_says_is_not_decided() -> None:
    recipe = make_recipe()
    assert made(recipe) == (recipe, [])


def test_ten_validations(seconds: dict[str, float]) -> None:
    for steps, every in ((100, 10), (101, 11), (7, 1), (8000, 800)):
        recipe, _ = made(make_recipe(**OPEN | {"train__precision": "fp32"}, train__steps=steps))
        assert recipe.train.evaluate_every == every


def test_compiling_is_for_long_runs(seconds: dict[str, float]) -> None:
    def chosen(**changes: Any) -> str:
        return made(make_recipe(train__compile="auto", **changes))[0].train.compile

    limit = 1.5 * plan.COMPILE_SECONDS / plan.COMPILE_GAIN / seconds["off"]
    assert chosen(train__steps=int(limit) - 1) == "off"
    assert chosen(train__steps=int(limit) + 1) == "on"
    assert chosen(train__time=3600.0) == "on"
    assert chosen(train__time=60.0) == "off"


def test_as_many_steps_as_the_time_allows(seconds: dict[str, float]) -> None:
    recipe, notices = made(make_recipe(train__time=100.0))
    assert recipe.train.steps == pytest.approx(100 * (1 - plan.RESERVE) / 0.05, abs=2)
    assert any("updates of 50 ms fit into 100 s" in notice for notice in notices)
    faster, _ = made(make_recipe(train__time=4000.0, train__compile="auto"))
    assert faster.train.compile == "on"
    assert faster.train.steps > 4000 * (1 - plan.RESERVE) / 0.05
    short, _ = made(make_recipe(train__time=0.001, train__warmup=50))
    assert (short.train.steps, short.train.warmup) == (1, 1)
    kept, _ = made(make_recipe(train__time=100.0, train__warmup=50))
    assert kept.train.warmup == 50
    cut, _ = made(make_recipe(train__time=2.0, train__warmup=50))
    assert cut.train.warmup == cut.train.steps // 10


def test_validation_has_its_share_of_the_time(
    seconds: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = {"train__evaluate_tokens": 9_000, "train__final_tokens": 10_000}  # 100,000 in all
    monkeypatch.setattr(plan, "token_seconds", lambda *_: 1e-4)
    recipe, _ = made(make_recipe(train__time=100.0, **looks))
    assert recipe.train.steps == pytest.approx((100 * (1 - plan.RESERVE) - 10) / 0.05, abs=2)
    assert recipe.train.evaluate_tokens == 9_000
    monkeypatch.setattr(plan, "token_seconds", lambda *_: 3e-4)
    recipe, _ = made(make_recipe(train__time=100.0, **looks))
    assert recipe.train.steps == pytest.approx((100 * (1 - plan.RESERVE) - 15) / 0.05, abs=2)
    assert (recipe.train.evaluate_tokens, recipe.train.final_tokens) == (4_500, 5_000)


def test_a_token_is_really_timed() -> None:
    for family in ("transformer-xl", "gpt2", "bert"):
        assert 1e-7 < plan.token_seconds(make_recipe(family), TOKENS, Workers()) < 0.1


def test_a_step_is_really_timed() -> None:
    recipe = make_recipe()
    assert 1e-4 < plan.step_seconds(recipe, TOKENS, Workers()) < 10


def test_a_sharded_model_goes_without_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not can_compile(Workers(shard=True))
    monkeypatch.setattr("shutil.which", lambda _: None)
    assert not can_compile(Workers())
    monkeypatch.setattr("shutil.which", lambda name: name if name == "c++" else None)
    assert can_compile(Workers())


@pytest.mark.parametrize("name", ["pocket", "par-base", "bert-base", "gpt2-small"])
def test_the_trial_model_is_small(name: str) -> None:
    config = read_recipe(name).model
    small = shortened(config)
    assert small.vocab_size <= 4096
    assert len(small.pattern.blocks) <= 4
    assert (small.d_model, small.family) == (config.d_model, config.family)


def test_the_model_gets_the_vocabulary_of_the_text() -> None:
    notices: list[str] = []
    masked = fit_vocabulary(make_recipe("bert", model__vocab_size=99), Bytes(), notices.append)
    assert masked.model.vocab_size == 257  # one more for the mask
    assert notices == ["The vocabulary has 257 tokens, in place of the preset's 99."]
    same = make_recipe()
    assert fit_vocabulary(same, Bytes(), notices.append) is same
    words = fit_vocabulary(read_recipe("par-base"), Bytes(), notices.append)
    assert words.model.vocab_size == 256
    assert all(cut < 256 for cut in words.model.cutoffs)
    adaptive = {"model__embedding": "adaptive", "model__cutoffs": [90, 290]}
    cut = fit_vocabulary(make_recipe(**adaptive, model__vocab_size=300), Bytes(), notices.append)
    assert cut.model.cutoffs == (90,)


def test_decisions_end_in_the_configuration(tmp_path: Path) -> None:
    from parformer.train.run import agree, read_run, start_run

    asked = make_recipe(**OPEN, data__identity="")
    recipe, _ = made(asked)
    start_run(tmp_path, recipe, Bytes())
    stored = read_run(tmp_path)
    assert stored == recipe
    assert agree(stored, asked, set(), tmp_path) == recipe
