"""Is a run folder taken for what it is, and never overwritten by something else?"""

from __future__ import annotations

import tomllib
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from parformer.data.characters import Bytes
from parformer.errors import ConfigError, FolderError
from parformer.model import build
from parformer.recipe import DataConfig, Recipe, SearchConfig, TrainConfig
from parformer.train import run as runs
from parformer.train.run import (
    FREE,
    agree,
    is_run,
    make_folder,
    only_one,
    open_run,
    read_result,
    read_run,
    read_run_tokenizer,
    start_run,
    write_result,
)
from tests.train.trials import make_recipe

OTHER: dict[str, Any] = {
    "model.family": "gpt2",
    "model.pattern": "sf",
    "model.d_model": 32,
    "model.dropout": 0.3,
    "model.mem_len": 4,
    "data.corpus": "other.txt",
    "data.tokenizer": "used-bytes",
    "data.vocab_size": 300,
    "data.min_count": 3,
    "data.pair": "de-en",
    "data.longest": 50,
    "data.ratio": 2.0,
    "data.lower": True,
    "data.source_words": 9,
    "data.identity": "of another text",
    "train.steps": 9,
    "train.time": 60.0,
    "train.seed": 7,
    "train.task": "masked",
    "train.batch": 8,
    "train.batch_tokens": 512,
    "train.label_smoothing": 0.1,
    "train.average": 3,
    "train.accumulate": 4,
    "train.tgt_len": 4,
    "train.mem_len": 3,
    "train.clamp_len": 2,
    "train.order": "windows",
    "train.roll": False,
    "train.mask": 0.2,
    "train.optimizer": "lamb",
    "train.learning_rate": 0.5,
    "train.beta1": 0.8,
    "train.beta2": 0.8,
    "train.eps": 1e-3,
    "train.weight_decay": 0.1,
    "train.clip": 0.5,
    "train.momentum": 0.5,
    "train.start": "elsewhere",
    "train.start_identity": "another",
    "train.epochs": 2.0,
    "train.frozen": 1,
    "train.layer_decay": 0.9,
    "train.class_weights": "balanced",
    "train.patience": 2,
    "train.warmup_share": 0.5,
    "train.mask_unit": "word",
    "train.mask_most": 20,
    "train.packed": True,
    "train.phases": ("steps=2 length=8 batch=4 rate=0.1",),
    "data.documents": "files",
    "data.field": "text",
    "data.texts": ("body",),
    "data.label": "stars",
    "data.vocabularies": "separate",
    "data.delimiter": ";",
    "data.stride": 64,
    "train.schedule": "linear",
    "train.warmup": 2,
    "train.final_rate": 1e-4,
    "train.first_step_full": True,
    "train.precision": "bf16",
    "train.compile": "on",
    "search.layers": 5,
    "search.encoder_layers": 3,
    "search.choices": "sf",
    "search.by": "trials",
    "search.mode": "sampled",
    "search.warmup": 0.1,
    "search.share": 0.3,
    "search.cycle": 7,
    "search.learning_rate": 0.5,
    "search.weight_decay": 0.1,
    "search.beta1": 0.8,
    "search.beta2": 0.8,
    "search.temperature": 3.0,
    "search.final_temperature": 1.0,
    "search.floor": 0.1,
    "search.patience": 0.5,
    "search.guard": 0.5,
    "search.penalty": "flops=0.2",
    "search.limit": "latency=0.5x",
    "search.ramp": 0.5,
    "search.steering": 0.5,
}
CHANGED_FREELY: dict[str, Any] = {
    "train.threads": 2,
    "train.kernels": "native",
    "train.log_every": 5,
    "train.evaluate_every": 3,
    "train.evaluate_tokens": 100,
    "train.final_tokens": 100,
    "train.checkpoint_every": 4,
    "train.keep": 3,
    "data.local": "elsewhere",
    "search.seeds": 3,
}


def recipe_for(name: str) -> Recipe:
    """A training, or a search where one of its fields is meant."""
    recipe = make_recipe()
    return replace(recipe, search=SearchConfig()) if name.startswith("search.") else recipe


def test_a_run_is_written_and_read_back(tmp_path: Path) -> None:
    recipe = make_recipe()
    assert not is_run(tmp_path)
    start_run(tmp_path, recipe, Bytes())
    assert is_run(tmp_path)
    assert read_run(tmp_path) == recipe
    assert read_run_tokenizer(tmp_path).to_json() == Bytes().to_json()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["config.toml", "tokenizer.json"]
    tables = tomllib.loads((tmp_path / "config.toml").read_text("utf-8"))
    assert tables["train"]["steps"] == 8


def test_the_configuration_comes_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever has a config.toml has everything else that a run needs."""
    order: list[str] = []
    real = runs.replace_file

    def note(path: Path, text: str) -> None:
        order.append(path.name)
        real(path, text)

    monkeypatch.setattr(runs, "replace_file", note)
    start_run(tmp_path, make_recipe(), Bytes())
    assert order == ["tokenizer.json", "config.toml"]


def test_the_table_of_changes_is_complete() -> None:
    assert set(CHANGED_FREELY) == FREE
    sections = {"data": DataConfig, "train": TrainConfig, "search": SearchConfig}
    for section, cls in sections.items():
        names = {f"{section}.{field.name}" for field in fields(cls)}
        assert names == {n for n in OTHER | CHANGED_FREELY if n.startswith(section)}


@pytest.mark.parametrize("name", sorted(OTHER))
def test_another_training_is_refused(name: str) -> None:
    stored = recipe_for(name)
    section, field = name.split(".")
    values = stored.to_dict()
    if name == "model.family":
        asked = make_recipe("gpt2", data__identity="")
    else:
        values[section][field] = OTHER[name]
        asked = Recipe.from_dict(values)
    for chosen in (set[str](), {name}):
        with pytest.raises(ConfigError, match=rf"{name} is .* in the run 'here' and .* now") as e:
            agree(stored, asked, chosen, Path("here"))
        assert "\n" not in str(e.value)


@pytest.mark.parametrize("name", sorted(CHANGED_FREELY))
def test_what_moves_no_weight_may_change(name: str) -> None:
    stored = recipe_for(name)
    asked = stored.replaced({name: CHANGED_FREELY[name]})
    assert agree(stored, asked, {name}, Path("here")) == asked
    assert agree(stored, asked, set(), Path("here")) == stored  # unless nobody asked for it


def test_a_search_and_a_training_do_not_mix() -> None:
    training, search = recipe_for("train.steps"), recipe_for("search.layers")
    for stored, asked, words in (
        (training, search, "holds a training; go on with parformer train, or choose another --run"),
        (search, training, "holds a search; go on with parformer search, or choose another --run"),
    ):
        with pytest.raises(ConfigError, match=words) as caught:
            agree(stored, asked, set(), Path("here"))
        assert "\n" not in str(caught.value)
    assert agree(search, search, set(), Path("here")) == search


def test_what_was_left_open_stays_as_it_was_decided() -> None:
    stored = make_recipe()
    open_ = stored.replaced(
        {
            "train.precision": "auto",
            "train.compile": "auto",
            "train.threads": 0,
            "train.evaluate_every": 0,
            "data.identity": "",
            "model.vocab_size": 999,
        }
    )
    assert agree(stored, open_, set(), Path("here")) == stored
    assert agree(stored, open_, {"train.precision", "train.threads"}, Path("here")) == stored
    with pytest.raises(ConfigError, match=r"model.vocab_size is 256 .* and 999 now"):
        agree(stored, open_, {"model.vocab_size"}, Path("here"))


def test_a_training_by_the_clock_keeps_its_steps() -> None:
    stored = make_recipe(train__time=60.0, train__steps=77, train__warmup=7)
    asked = make_recipe(train__time=60.0, train__steps=1000, train__warmup=100)
    assert agree(stored, asked, {"train.time"}, Path("here")) == stored
    with pytest.raises(ConfigError, match=r"train.time is 60 .* and 90 now"):
        agree(stored, asked.replaced({"train.time": 90.0}), {"train.time"}, Path("here"))


def test_a_folder_with_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(FolderError, match="is not empty and holds no run; choose another --run"):
        make_folder(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.txt"]
    with pytest.raises(FolderError, match="cannot make the run folder"):
        make_folder(tmp_path / "thesis.txt")
    with pytest.raises(FolderError, match="cannot make the run folder"):
        make_folder(tmp_path / "thesis.txt" / "below")


@pytest.mark.parametrize(
    "left", [".lock", "tokenizer.json", ".tokenizer.json.new", ".config.toml.new"]
)
def test_a_process_that_died_before_its_run_began_is_no_hindrance(
    tmp_path: Path, left: str
) -> None:
    (tmp_path / left).write_text("")
    make_folder(tmp_path)
    start_run(tmp_path, make_recipe(), Bytes())
    make_folder(tmp_path)
    assert read_run(tmp_path) == make_recipe()


def test_a_read_only_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda *_: False)  # nothing is read-only to root
    with pytest.raises(FolderError, match="it is read-only"):
        make_folder(tmp_path)
    monkeypatch.undo()

    def refuse(*_: Any) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("os.open", refuse)
    with (
        pytest.raises(FolderError, match=r"cannot write to the run folder .*: Permission denied"),
        only_one(tmp_path),
    ):
        pass


def test_one_process_at_a_time(tmp_path: Path) -> None:
    (tmp_path / runs.CONFIG).write_text("")
    with only_one(tmp_path):  # noqa: SIM117 - the second must fail while the first holds
        with (
            pytest.raises(FolderError, match="another process is training in") as caught,
            only_one(tmp_path),
        ):
            pass
    assert "\n" not in str(caught.value)
    with only_one(tmp_path):
        pass


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("model = [", "is broken: .* is not TOML"),
        ("[train]\nsteps = 3\n", "is broken: .* has no \\[model\\] table"),
        ('extends = "pocket"\n[train]\nstep = 3\n', "is broken: unknown field.*'steps'"),
        ('extends = "pocket"\n[train]\nsteps = 0\n', "is broken: train.steps must be at least 1"),
    ],
)
def test_a_broken_configuration_is_named(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "config.toml").write_text(text)
    with pytest.raises(FolderError, match=words) as caught:
        read_run(tmp_path)
    assert str(tmp_path / "config.toml") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_run_and_no_vocabulary(tmp_path: Path) -> None:
    with pytest.raises(FolderError, match=r"no run at .*: it has no config.toml"):
        read_run(tmp_path)
    with pytest.raises(FolderError, match=r"cannot read .*tokenizer.json'"):
        read_run_tokenizer(tmp_path)


def test_a_result_comes_back(tmp_path: Path) -> None:
    assert read_result(tmp_path) is None
    values = {"steps": 8, "valid": {"loss": 0.1 + 0.2, "a task's own": "words"}}
    write_result(tmp_path, values)
    found = read_result(tmp_path)
    assert found is not None
    assert found.to_dict() == values
    assert found.loss_on("valid") == 0.1 + 0.2


def test_a_run_is_opened_once_it_has_a_model(tmp_path: Path) -> None:
    recipe = make_recipe()
    run = tmp_path / "run"
    run.mkdir()
    start_run(run, recipe, Bytes())
    with pytest.raises(FolderError, match=f"has no model yet; .*parformer train --run {run}"):
        open_run(run)
    build(recipe.model).save(run / "model", Bytes().to_json())
    opened = open_run(run)
    assert (opened.folder, opened.recipe) == (run / "model", recipe)
    assert opened.identity == "of this text"
    assert opened.tokenizer is not None
    alone = open_run(run / "model")
    assert (alone.folder, alone.recipe, alone.identity) == (run / "model", None, "")
    assert alone.tokenizer is not None


def test_a_run_that_never_began_leaves_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "run"
    make_folder(path)
    with pytest.raises(ValueError, match="no text"), only_one(path):
        raise ValueError("no text")
    assert not path.exists()
