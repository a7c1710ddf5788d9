"""Does a recipe say all that it should, and nothing that nobody knows?"""

from __future__ import annotations

import ast
import tomllib
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from parformer.config import ModelConfig, presets
from parformer.errors import ConfigError
from parformer.fields import parse_assignment
from parformer.recipe import DataConfig, Recipe, SearchConfig, TrainConfig, read_recipe
from tests.train.test_run import CHANGED_FREELY, OTHER


@pytest.mark.parametrize("name", presets())
def test_every_preset_has_a_recipe_that_survives_toml(name: str) -> None:
    recipe = read_recipe(name)
    assert Recipe.from_dict(tomllib.loads(tomli_w.dumps(recipe.to_dict()))) == recipe
    assert recipe.train.steps > 0


def test_a_file_that_extends_a_preset_changes_only_what_it_says(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('extends = "par-base"\n[train]\nsteps = 5\n[data]\ntokenizer = "byte"\n')
    mine, theirs = read_recipe(str(file)), read_recipe("par-base")
    assert mine.train.steps == 5
    assert mine.data.tokenizer == "byte"
    changes = {"train.steps": 5, "data.tokenizer": "byte"}
    assert mine == theirs.replaced(changes) == read_recipe("par-base", changes)


@pytest.mark.parametrize("name", sorted(OTHER | CHANGED_FREELY))
def test_every_field_can_be_set(name: str) -> None:
    value = (OTHER | CHANGED_FREELY)[name]
    word = str(value).lower() if isinstance(value, bool) else str(value)
    word = str(list(value)) if isinstance(value, tuple) else word
    read_name, read = parse_assignment(f"{name}={word}")
    assert read_name == name
    section, field = name.split(".")
    base = {"model.max_len": 256, "model.mem_len": 0} if name == "model.family" else {}
    base |= {"train.optimizer": "adamw"} if name == "train.layer_decay" else {}  # muon has none
    recipe = read_recipe("pocket", {**base, name: read})
    found = getattr(getattr(recipe, section), field)
    assert (str(found) if name == "model.pattern" else found) == value
    before = getattr(read_recipe("pocket"), section) or SearchConfig()
    assert found != getattr(before, field)
    assert read_recipe("pocket").replaced({**base, name: read}) == recipe


@pytest.mark.parametrize("field", [f.name for f in fields(ModelConfig)])
def test_every_field_of_the_model_can_be_named(field: str) -> None:
    recipe = read_recipe("pocket")
    value = getattr(recipe.model, field)
    assert recipe.replaced({f"model.{field}": value}) == recipe


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"train.stpes": 3}, r"unknown field of \[train\] 'stpes'; did you mean 'steps'\?"),
        ({"data.corpsu": "x"}, r"unknown field of \[data\] 'corpsu'; did you mean 'corpus'\?"),
        ({"model.d_modle": 3}, r"'d_modle'; did you mean 'd_model'\?"),
        ({"trian.steps": 3}, r"unknown section 'trian'; did you mean 'train'\?"),
        ({"steps": 3}, r"'steps' lacks its section.* did you mean train.steps\?"),
        ({"pattern": "sf"}, r"did you mean model.pattern\?"),
        (
            {"nonsense": 1},
            "'nonsense' lacks its section, one of model, data, train, search, compress; such as",
        ),
        ({"train.steps": 0}, "train.steps must be at least 1, got 0"),
        ({"train.steps": 1.5}, "train.steps must be a whole number, got 1.5"),
        ({"train.steps": "many"}, "train.steps must be a whole number, got 'many'"),
        ({"train.batch": 0}, "train.batch must be at least 1"),
        ({"train.batch": 6, "train.accumulate": 4}, "accumulate 4 does not divide train.batch 6"),
        ({"train.keep": 1}, "train.keep must be at least 2, got 1"),
        ({"train.seed": -1}, "train.seed must be at least 0"),
        ({"train.mem_len": -2}, "train.mem_len must be at least -1"),
        ({"train.learning_rate": -1.0}, "train.learning_rate must not be negative, got -1"),
        ({"train.learning_rate": float("nan")}, "must be a finite number"),
        ({"train.beta2": 1.0}, "train.beta2 is a share from 0 to below 1, got 1"),
        ({"train.mask": 0.0}, "train.mask is a share between 0 and 1, got 0"),
        ({"train.final_rate": 1.0}, "train.final_rate 1 is above train.learning_rate"),
        ({"train.optimizer": "sgd"}, "train.optimizer must be one of 'adam', .* got 'sgd'"),
        ({"search.layers": 2}, "search.layers 2 cannot be cut into thirds .* give at least 3"),
        ({"search.layers": -1}, "search.layers must be at least 0, got -1"),
        ({"search.seeds": 0}, "search.seeds must be at least 1, got 0"),
        ({"search.cycle": 1}, "search.cycle 1 leaves no turn for the architecture"),
        ({"search.cycle": -1}, "search.cycle must be at least 0"),
        ({"search.mode": "hard"}, "search.mode must be one of 'soft', 'sampled', got 'hard'"),
        ({"search.warmup": 1.0}, "search.warmup is a share from 0 to below 1, got 1"),
        ({"search.ramp": -0.1}, "search.ramp is a share from 0 to below 1, got -0.1"),
        ({"search.floor": 1.0}, "search.floor is a share from 0 to below 1, got 1"),
        ({"search.share": 0.0}, "search.share is a share between 0 and 1, got 0"),
        ({"search.share": 1.0}, "search.share is a share between 0 and 1, got 1"),
        ({"search.patience": 0.0}, "search.patience is a share above 0, got 0"),
        ({"search.patience": 1.1}, "search.patience is a share"),
        ({"search.guard": -0.1}, "search.guard must not be negative, got -0.1"),
        ({"search.beta1": 1.0}, "search.beta1 is a share from 0 to below 1, got 1"),
        ({"search.learning_rate": 0.0}, "search.learning_rate must be above 0, got 0"),
        ({"search.temperature": -5.0}, "search.temperature must be above 0, got -5"),
        ({"search.final_temperature": 0.0}, "search.final_temperature must be above 0, got 0"),
        ({"search.steering": 0.0}, "search.steering must be above 0, got 0"),
        ({"search.weight_decay": -1.0}, "search.weight_decay must not be negative, got -1"),
        (
            {"search.temprature": 1.0},
            r"field of \[search\] 'temprature'; did you mean 'temperature'",
        ),
        (
            {"search.penalty": "flops=1", "search.limit": "flops=0.5x"},
            "search.penalty 'flops=1' and search.limit 'flops=0.5x' are two ways",
        ),
        ({"data.corpus": ""}, "data.corpus is empty"),
        ({"data.vocab_size": -1}, "data.vocab_size must be at least 0"),
        ({"data.tokenizer": "words"}, "data.tokenizer must be one of"),
    ],
)
def test_what_nobody_knows_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        read_recipe("pocket", changes)
    assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match=words):
        read_recipe("pocket").replaced(changes)


def test_a_table_that_is_none_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('extends = "pocket"\ntrain = 3\n')
    with pytest.raises(ConfigError, match=r"'train' in .* must be a table, \[train\]"):
        read_recipe(str(file))


def test_every_field_is_described() -> None:
    """A line of help stands below each field, in the source where people look for it."""
    folder = Path(__file__).parents[1] / "src" / "parformer"
    trees = [
        ast.parse((folder / f"{name}.py").read_text("utf-8")) for name in ("recipe", "placing")
    ]
    nodes = [node for tree in trees for node in tree.body]
    classes = {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}
    for cls in (DataConfig, TrainConfig, SearchConfig):
        body = classes[cls.__name__].body
        described = {
            line.target.id
            for line, below in pairwise(body)
            if isinstance(line, ast.AnnAssign)
            and isinstance(line.target, ast.Name)
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
        }
        assert described == {field.name for field in fields(cls)}


def test_a_search_is_part_of_a_recipe_only_where_it_is_asked_for() -> None:
    plain = read_recipe("pocket")
    assert plain.search is None
    assert "search" not in plain.to_dict()
    asked = plain.replaced({"search.seeds": 2})
    assert asked.search == SearchConfig(seeds=2)
    assert asked == read_recipe("pocket", {"search.seeds": 2})
    assert Recipe.from_dict(asked.to_dict()) == asked
    for name in ("pocket-search", "par-search"):
        assert read_recipe(name).search is not None
