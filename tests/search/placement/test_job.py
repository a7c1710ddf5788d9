"""Does a search end with the same pattern, however often it was broken off, and say all of it?"""

from __future__ import annotations

import json
import os
import shutil
import signal
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from parformer.errors import ConfigError, FolderError, TrainingError
from parformer.model import load
from parformer.pattern import Pattern
from parformer.recipe import Recipe
from parformer.search.placement import job
from parformer.search.placement.job import search_recipe
from parformer.search.placement.session import SearchSession
from parformer.train.job import train_model
from parformer.train.run import read_run
from tests.search.placement.trials import (
    FAMILIES,
    MODES,
    Clock,
    evidence,
    open_recipe,
    recurrence,
    rows,
)
from tests.train.nursery import Ended, Nursery, shared_nursery
from tests.train.trials import Breaker, free_port, make_text, prepare_folder


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a text and a cache that all tests share."""
    place = tmp_path_factory.mktemp("search")
    (place / "text.txt").write_text(make_text(), "utf-8")
    return place


@pytest.fixture
def here(text: Path, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PARFORMER_CACHE", str(text / "cache"))
    monkeypatch.chdir(tmp_path)
    shutil.copy(text / "text.txt", tmp_path)
    return tmp_path


class Stopper(Breaker):
    """Breaks off at a step of one seed, and counts what was done of each."""

    def __init__(self, stop: int = -1, seed: int = 0) -> None:
        super().__init__(-1)
        self.at, self.part = (seed, stop), -1
        self.steps: list[tuple[int, int]] = []

    def start(self, step: int, steps: int) -> None:
        super().start(step, steps)
        self.part += 1

    def step(self, step: int, loss: float, tokens_per_second: float) -> None:
        super().step(step, loss, tokens_per_second)
        self.steps.append((self.part, step))
        if self.steps[-1] == self.at:
            raise KeyboardInterrupt


@dataclass(frozen=True)
class Told:
    """How a search ended, and what its file says of it."""

    finished: bool
    found: dict[str, Any]
    step: int = 0
    where: str = ""


def search(recipe: Recipe | None, path: str | Path, **options: Any) -> Told:
    ended = search_recipe(recipe, Path(path), **options)
    found = {} if ended.found is None else ended.found.to_dict()
    return Told(ended.finished, found, ended.step, ended.where)


def written(path: Path) -> dict[str, Any]:
    """What search.json says."""
    found = json.loads((path / "search.json").read_text("utf-8"))
    assert found.pop("format") == "parformer-search-1"
    assert isinstance(found, dict)
    return found


def break_off(recipe: Recipe | None, path: str | Path, stop: int, seed: int = 0) -> Stopper:
    watch = Stopper(stop, seed)
    with pytest.raises(KeyboardInterrupt):
        search(recipe, path, watch=watch)
    return watch


def lasting(found: Any) -> dict[str, Any]:
    """What a search found, save for what a clock or a person said."""
    return {name: found[name] for name in found if name not in ("command", "date")}


def files(path: Path) -> dict[str, bytes]:
    return {str(f.relative_to(path)): f.read_bytes() for f in path.rglob("*") if f.is_file()}


# A whole search


def test_text_in_pattern_out(here: Path, clock: Clock) -> None:
    recipe = open_recipe(search__seeds=2, search__penalty="flops=0.1")
    watch = Stopper()
    done = search(recipe, "run", command="as typed", watch=watch)
    assert done.finished
    assert written(here / "run") == done.found
    assert done.found["command"] == "as typed"
    assert sorted(p.name for p in (here / "run").iterdir() if p.name != ".lock") == [
        *("config.toml", "device.json", "search.json", "seed-0", "seed-1", "tokenizer.json")
    ]
    for seed in (0, 1):
        place = here / "run" / f"seed-{seed}"
        result = json.loads((place / "result.json").read_text("utf-8"))
        told = done.found["seeds"][seed]
        assert told["seed"] == result["seed"] == seed
        assert {name: told[name] for name in told if name != "history"}.items() <= result.items()
        assert not (place / "model").exists()
    assert done.found["seeds"][0]["probabilities"] != done.found["seeds"][1]["probabilities"]
    assert watch.steps == [(seed, step) for seed in (0, 1) for step in range(1, 9)]
    assert "Seed 1, 2 of 2" in watch.notices
    assert f"seed 1: {done.found['seeds'][1]['pattern']}" in watch.notices
    kept = read_run(here / "run")
    assert kept.search == recipe.search
    assert kept.data.identity
    assert clock.asked == ["pace", "models"]


def test_every_line_of_metrics_tells_how_it_goes(here: Path) -> None:
    recipe = open_recipe(search__penalty="flops=0.5", search__ramp=0.5, train__log_every=2)
    watch = Stopper()
    search(recipe, "run", watch=watch)
    lines = rows(here / "run" / "seed-0")
    assert [row["step"] for row in lines] == [2, 4, 6, 8]
    for row in lines:
        assert row.keys() == {
            *("step", "loss", "gradient", "rate", "temperature", "tokens_per_second"),
            *("probabilities", "cost", "lambda"),
        }
        for layer in row["probabilities"]:
            assert sum(layer) == pytest.approx(1.0, abs=1e-4)
    # the third and the sixth update after the warm-up are the architecture's, whose loss is of
    # another text
    mean = {2: (1, 2), 4: (3, 4), 6: (6,), 8: (7,)}
    for row in lines:
        expected = [watch.losses[step] for step in mean[row["step"]]]
        assert row["loss"] == pytest.approx(sum(expected) / len(expected))
    assert [row["lambda"] for row in lines] == pytest.approx([0, 0.16667, 0.5, 0.5], abs=1e-5)
    assert [row["temperature"] for row in lines] == pytest.approx(
        [5.0 * (0.087 / 5.0) ** (max(0, step - 3) / 6) for step in (2, 4, 6, 8)], abs=1e-4
    )
    assert lines[0]["probabilities"] == [[0.33333] * 3] * 3
    assert lines[-1]["probabilities"] != lines[0]["probabilities"]
    history = json.loads((here / "run" / "search.json").read_text())["seeds"][0]["history"]
    assert history["loss"] == [row["loss"] for row in lines]
    assert history["lambda"] == [row["lambda"] for row in lines]


def test_a_search_may_end_early(here: Path) -> None:
    done = search(open_recipe(train__steps=40, search__patience=0.05), "run")
    (seed,) = done.found["seeds"]
    assert seed["early"]
    assert seed["steps"] < 40 == done.found["steps"]
    assert seed["steps"] - seed["changed"] >= 0.05 * 30
    assert seed["history"]["step"][-1] == seed["steps"]
    assert done.found["effort"]["seconds"] < 40 * done.found["effort"]["search_step_seconds"]


def test_what_was_written_down_is_what_was_learned(here: Path, monkeypatch: Any) -> None:
    sessions: list[SearchSession] = []

    class Kept(SearchSession):
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            sessions.append(self)

    monkeypatch.setattr(job, "SearchSession", Kept)
    done = search(open_recipe(search__limit="flops=0.8x"), "run")
    (session,) = sessions
    assert session.prices is not None
    assert session.target is not None
    (seed,) = done.found["seeds"]
    assert seed["probabilities"] == session.probabilities().tolist()
    assert seed["picks"] == session.decode() == done.found["picks"]
    assert seed["pattern"] == str(session.space.pattern(seed["picks"])) == done.found["pattern"]
    cost = session.relative_cost()
    assert cost is not None
    assert done.found["price"]["expected"] == float(cost.detach())
    assert done.found["price"]["found"] <= 0.8


def test_a_plain_recipe_may_be_searched_with(here: Path) -> None:
    """Without a [search] table the defaults hold, with as many layers as the pattern has."""
    recipe = replace(open_recipe(train__steps=30), search=None)
    recipe = recipe.replaced({"search.cycle": 3})
    done = search(recipe, "run")
    assert done.found["layers"] == 4
    with pytest.raises(ConfigError, match="30 updates end before the architecture's first turn"):
        search(replace(recipe, search=None), "other")  # a cycle would be an epoch
    assert not (here / "other").exists()


# Going on


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("mode", MODES)
def test_a_broken_search_ends_like_a_whole_one(family: str, mode: str, here: Path) -> None:
    recipe = open_recipe(family, search__mode=mode, search__limit="flops=0.9x")
    whole = search(recipe, "whole")
    for stop, resumed in ((1, 0), (3, 0), (5, 2), (6, 4), (7, 4)):
        assert break_off(recipe, "broken", stop).starts == [resumed]
    watch = Stopper()
    broken = search(recipe, "broken", watch=watch)
    assert watch.starts == [6]
    assert evidence(here / "broken" / "seed-0") == evidence(here / "whole" / "seed-0")
    assert lasting(broken.found) == lasting(whole.found)
    assert not any("Not bit-exact" in notice for notice in watch.notices)


def test_means_are_not_torn(here: Path) -> None:
    recipe = open_recipe(train__log_every=4)
    search(recipe, "whole")
    for stop in (3, 5, 7):
        break_off(recipe, "broken", stop)
    search(recipe, "broken")
    assert evidence(here / "broken" / "seed-0") == evidence(here / "whole" / "seed-0")


def test_a_run_goes_on_by_itself(here: Path, clock: Clock) -> None:
    """Its own recipe says everything; nothing is decided or measured anew."""
    recipe = open_recipe(search__limit="latency=0.8x", search__seeds=2)
    whole = search(recipe, "whole")
    assert clock.asked == ["blocks", "pace", "models"]
    break_off(recipe, "run", 5)
    before = (here / "run" / "device.json").read_bytes()
    clock.asked.clear()
    broken = search(None, "run")
    assert clock.asked == ["models"]
    assert (here / "run" / "device.json").read_bytes() == before
    assert lasting(broken.found) == lasting(whole.found)


def test_what_was_measured_is_measured_again_if_it_is_lost(here: Path, clock: Clock) -> None:
    """As after a kill between the recipe and what was measured for it."""
    recipe = open_recipe(search__limit="latency=0.8x")
    whole = search(recipe, "whole")
    break_off(recipe, "run", 5)
    (here / "run" / "device.json").unlink()
    clock.asked.clear()
    broken = search(recipe, "run")
    assert clock.asked == ["blocks", "pace", "models"]
    device = json.loads((here / "run" / "device.json").read_text())
    assert device["pace"] == clock.pace.to_dict()
    assert device["prices"]["metric"] == "latency"
    assert lasting(broken.found) == lasting(whole.found)


@pytest.mark.parametrize(
    "broken",
    ["{}", '{"prices": null}', '{"prices": {}, "pace": {}}', '{"prices": null, "pace": 3}'],
)
def test_what_was_measured_may_be_broken(here: Path, broken: str) -> None:
    break_off(open_recipe(), "run", 3)
    file = here / "run" / "device.json"
    file.write_text(broken)
    with pytest.raises(FolderError, match=r"device.json' is broken .* remove it") as caught:
        search(None, "run")
    assert "\n" not in str(caught.value)
    file.unlink()
    assert search(None, "run").finished


def test_finished_seeds_are_not_searched_again(here: Path, clock: Clock) -> None:
    recipe = open_recipe(search__seeds=3)
    whole = search(recipe, "whole")
    watch = break_off(recipe, "run", 4, seed=1)
    assert watch.steps[-1] == (1, 4)
    again = Stopper()
    done = search(recipe, "run", watch=again)
    # the first is finished; the second had been saved after two updates
    assert again.steps == [(0, n) for n in range(3, 9)] + [(1, n) for n in range(1, 9)]
    assert lasting(done.found) == lasting(whole.found)


def test_seeds_may_be_added_later(here: Path, clock: Clock) -> None:
    recipe = open_recipe(search__seeds=1)
    first = search(recipe, "run")
    watch = Stopper()
    more = recipe.replaced({"search.seeds": 2})
    second = search(more, "run", chosen={"search.seeds"}, watch=watch)
    assert watch.steps == [(0, step) for step in range(1, 9)]
    assert [seed["seed"] for seed in second.found["seeds"]] == [0, 1]
    assert second.found["seeds"][0] == first.found["seeds"][0]
    assert second.found["agreement"] is not None
    search(more, "both")
    for seed in (0, 1):
        place = f"seed-{seed}"
        assert evidence(here / "run" / place) == evidence(here / "both" / place)


def test_a_finished_search_is_left_alone(here: Path, clock: Clock) -> None:
    done = search(open_recipe(), "run")
    before = {name: raw for name, raw in files(here / "run").items() if name != ".lock"}
    clock.asked.clear()
    again = search(None, "run", command="another")
    assert again == done
    assert clock.asked == []
    assert {n: r for n, r in files(here / "run").items() if n != ".lock"} == before


def test_seeds_count_from_the_first(here: Path) -> None:
    done = search(open_recipe(train__seed=5, search__seeds=2), "run")
    assert [seed["seed"] for seed in done.found["seeds"]] == [5, 6]
    assert (here / "run" / "seed-6").is_dir()
    alone = search(open_recipe(train__seed=6), "alone")
    assert alone.found["seeds"][0] == done.found["seeds"][1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_after_the_update_in_hand(number: int, here: Path) -> None:
    recipe = open_recipe(search__seeds=2, train__checkpoint_every=100)

    class Caller(Stopper):
        def step(self, step: int, loss: float, tokens_per_second: float) -> None:
            super().step(step, loss, tokens_per_second)
            if self.steps[-1] == (1, 3):
                os.kill(os.getpid(), number)

    stopped = search(recipe, "run", watch=Caller())
    assert stopped == Told(False, {}, 3, "seed 1")
    assert not (here / "run" / "search.json").exists()
    watch = Stopper()
    assert search(recipe, "run", watch=watch).finished
    assert watch.steps == [(0, step) for step in range(4, 9)]


def test_a_recurrence_goes_on_with_the_same_command(here: Path) -> None:
    """What drawn paths change in the recipe must not look like another wish."""
    with recurrence() as letter:
        recipe = open_recipe(search__choices=f"s{letter}i", search__mode="sampled")
        watch = break_off(recipe, "run", 5)
        assert any(f"{letter} must run to remember" in notice for notice in watch.notices)
        kept = read_run(here / "run").train
        assert (kept.order, kept.mem_len) == ("windows", 0)
        assert search(recipe, "run").finished
        search(recipe, "whole")
    assert evidence(here / "run" / "seed-0") == evidence(here / "whole" / "seed-0")


def test_numbers_that_are_none_end_it(here: Path) -> None:
    wild = open_recipe(train__learning_rate=1e30, train__clip=0.0, train__steps=20)
    with pytest.raises(TrainingError, match=r"lower train\.learning_rate") as caught:
        search(wild, "run")
    assert caught.value.status == 3


# One run, one purpose


def test_another_wish_is_refused(here: Path) -> None:
    search(open_recipe(), "run")
    before = files(here / "run")
    for name, value in (
        ("search.layers", 5),
        ("search.choices", "sf"),
        ("search.mode", "sampled"),
        ("search.penalty", "flops=0.1"),
        ("search.share", 0.3),
        ("train.steps", 20),
        ("model.d_model", 32),
    ):
        asked = open_recipe().replaced({name: value})
        with pytest.raises(ConfigError, match=rf"{name} is .* in the run 'run' and .* now"):
            search(asked, "run", chosen={name})
    assert files(here / "run") == before


def test_a_training_is_no_search_and_a_search_no_training(here: Path) -> None:
    recipe = open_recipe()
    search(recipe, "search")
    train_model(recipe, Path("training"))
    before = files(here)
    for act, words in (
        (lambda: search(recipe, "training"), "'training' holds a training; go on with parformer"),
        (lambda: search(None, "training"), "holds a training; go on with: parformer train --run"),
        (lambda: train_model(recipe, Path("search")), "'search' holds a search; go on with"),
        (
            lambda: train_model(None, Path("search")),
            "holds a search; go on with: parformer search differentiable --run search",
        ),
    ):
        with pytest.raises(ConfigError, match=words) as caught:
            act()
        assert "\n" not in str(caught.value)
        assert caught.value.status == 2
    assert files(here) == before


def test_an_amount_is_refused_before_any_text_is_read(here: Path) -> None:
    before = files(here)
    recipe = open_recipe(search__limit="latency=20ms", data__corpus="nowhere.txt")
    with pytest.raises(ConfigError, match="amounts are for 'search sizes' and 'fit'"):
        search(recipe, "run")
    assert files(here) == before


def test_a_result_that_was_cut_off_is_made_again(here: Path, clock: Clock) -> None:
    done = search(open_recipe(), "run")
    file = here / "run" / "search.json"
    whole = file.read_text()
    for text in (whole[:100], "", "[]", '{"format": "parformer-search-1"}'):
        file.write_text(text)
        assert lasting(search(None, "run").found) == lasting(done.found)
        assert lasting(written(here / "run")) == lasting(done.found)


def test_a_cut_off_device_file_says_what_to_delete(here: Path) -> None:
    search(open_recipe(), "run")
    file = here / "run" / "device.json"
    file.write_text(file.read_text()[:40])
    with pytest.raises(FolderError, match=r"device.json' is broken .* remove it, and what it says"):
        search(None, "run")
    file.unlink()
    assert search(None, "run").finished


def test_what_cannot_be_searched_leaves_no_trace(here: Path) -> None:
    for changes in (
        {"search__limit": "flops=0.01x"},
        {"search__limit": "latency=20ms"},
        {"search__choices": "f"},
        {"train__compile": "on"},
        {"train__batch": 1000, "train__accumulate": 1},
        {"search__cycle": 50},
    ):
        with pytest.raises(Exception, match=r".") as caught:
            search(open_recipe(**changes), "run")
        assert caught.value.status == 2  # type: ignore[attr-defined]
        assert not (here / "run").exists()


# Training what was found


def test_what_was_found_is_trained_beside_its_rivals(here: Path, monkeypatch: Any) -> None:
    recipe = open_recipe(search__layers=4, search__penalty="flops=3.0", search__learning_rate=1.0)
    trained: list[str] = []
    real = job.train_model

    def note(own: Recipe, path: Path, **options: Any) -> Any:
        trained.append(str(own.model.pattern))
        assert own.search is None
        assert own.train.steps == recipe.train.steps
        return real(own, path, **options)

    monkeypatch.setattr(job, "train_model", note)
    done = search(recipe, "run", retrain=True)
    told = done.found["retrained"]
    assert [row["name"] for row in told] == ["found", "interleaved", "sandwich", "par"]
    assert [row["pattern"] for row in told] == [
        *(done.found["pattern"], "(sf)x2", "(s)x2 (f)x2", "s (f)x3")
    ]
    assert trained == list(dict.fromkeys(row["pattern"] for row in told))
    for row in told:
        assert row["steps"] == 8
        assert row["valid"]["bits"] > 0
        assert row["test"]["perplexity"] > 1
    place = here / "run" / "retrain" / "found"
    assert str(load(place / "model").config.pattern) == done.found["pattern"]
    result = json.loads((place / "result.json").read_text())
    assert told[0]["valid"]["loss"] == result["valid"]["loss"]
    assert written(here / "run") == done.found
    # once more: everything is there already, and is still told
    trained.clear()
    assert search(None, "run", retrain=True).found == done.found
    assert search(None, "run").found == done.found


def test_equal_patterns_are_trained_once(here: Path, monkeypatch: Any) -> None:
    """Of three layers, PAR's rule is what was found."""
    monkeypatch.setattr(job, "finished_search", lambda *_: None)
    real = job.summarise
    monkeypatch.setattr(
        job, "summarise", lambda *given: replace(real(*given), pattern=Pattern.parse("s (f)x2"))
    )
    done = search(open_recipe(), "run", retrain=True)
    told = {row["name"]: row for row in done.found["retrained"]}
    assert told["found"]["pattern"] == told["par"]["pattern"] == "s (f)x2"
    assert told["found"]["valid"] == told["par"]["valid"]
    assert sorted(p.name for p in (here / "run" / "retrain").iterdir()) == ["found", "interleaved"]


def test_training_afterwards_may_be_broken_off_too(here: Path) -> None:
    recipe = open_recipe()
    whole = search(recipe, "whole", retrain=True)

    class Caller(Stopper):
        def step(self, step: int, loss: float, tokens_per_second: float) -> None:
            super().step(step, loss, tokens_per_second)
            if self.steps[-1] == (2, 3):  # after the search and the found pattern
                os.kill(os.getpid(), signal.SIGTERM)

    stopped = search(recipe, "run", retrain=True, watch=Caller())
    assert stopped == Told(False, {}, 3, "training interleaved")
    watch = Stopper()
    done = search(recipe, "run", retrain=True, watch=watch)
    assert watch.starts[0] == 3
    assert lasting(done.found) == lasting(whole.found)


def test_words_have_no_bits_per_character(here: Path) -> None:
    recipe = open_recipe(data__tokenizer="word", train__batch=2, train__tgt_len=4)
    done = search(recipe.replaced({"data.vocab_size": 50}), "run", retrain=True)
    assert all(row["valid"]["bits"] is None for row in done.found["retrained"])


# Several processes


@pytest.fixture(scope="module")
def nursery() -> Nursery:
    return shared_nursery()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Dropout draws other numbers in another process, so there is none."""
    path = tmp_path_factory.mktemp("together")
    calm: dict[str, Any] = {"model__dropout": 0.0, "search__limit": "flops=0.9x"}
    recipes = {
        "soft": open_recipe(**calm, search__mode="soft"),
        "sampled": open_recipe("gpt2", **calm, search__mode="sampled", train__accumulate=1),
    }
    prepare_folder(path, recipes)
    return path


def alone(nursery: Nursery, place: Path, *words: object, **options: Any) -> Ended:
    return nursery.run("search", "differentiable", *words, cwd=place, **options)


def together(nursery: Nursery, place: Path, *words: object, **options: Any) -> list[Ended]:
    port = {"MASTER_PORT": str(free_port())}
    commands = [("search", "differentiable", *words)] * 2
    return nursery.run_together(commands, cwd=place, ranks=True, env=port, **options)


def assert_alike(run: Path, single: Path, lines: int = 8) -> None:
    """Losses, architecture and picks, line by line."""
    ours, theirs = rows(run / "seed-0"), rows(single / "seed-0")
    assert len(ours) == len(theirs) == lines
    for one, other in zip(ours, theirs, strict=True):
        for name in ("loss", "cost", "lambda"):
            assert one[name] == pytest.approx(other[name], abs=1e-4)
        for a, b in zip(one["probabilities"], other["probabilities"], strict=True):
            assert a == pytest.approx(b, abs=1e-4)
    found = [json.loads((path / "search.json").read_text()) for path in (run, single)]
    assert found[0]["picks"] == found[1]["picks"]


def single(nursery: Nursery, place: Path, mode: str) -> Path:
    """What one process finds."""
    run = place / f"{mode}-single"
    if not run.exists():
        ended = alone(nursery, place, f"{mode}.toml", "--run", run)
        assert ended.status == 0, ended.err
    return run


@pytest.mark.parametrize("mode", MODES)
def test_two_processes_follow_one(mode: str, nursery: Nursery, place: Path) -> None:
    both = together(nursery, place, f"{mode}.toml", "--run", f"{mode}-two")
    assert [e.status for e in both] == [0, 0], both[0].err + both[1].err
    assert (both[1].out, both[1].err) == ("", "")  # only the first talks
    assert_alike(place / f"{mode}-two", single(nursery, place, mode))


def test_from_one_process_to_two(nursery: Nursery, place: Path) -> None:
    killed = alone(nursery, place, "soft.toml", "--run", "more", failpoint="train.before-update:6")
    assert killed.status == -signal.SIGKILL, killed.err
    first, _ = together(nursery, place, "--run", "more")
    assert first.status == 0, first.err
    assert "Going on from step 4." in first.err
    assert "Not bit-exact from here on: processes was 1, now it is 2." in first.err
    assert_alike(place / "more", single(nursery, place, "soft"))


def test_a_supernet_that_learned_nothing_begins_again_slower(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = Stopper()
    monkeypatch.setattr(job.SeedRun, "stuck", lambda self, entropy: True)
    assert search(open_recipe(), "run", watch=watch).finished
    rates = [
        json.loads((here / "run" / place / "metrics.jsonl").read_text().splitlines()[-1])["rate"]
        for place in ("seed-0", "seed-0-slower-1", "seed-0-slower-2")
    ]
    assert rates == [pytest.approx(rates[0] / 4**n) for n in range(3)]
    assert not (here / "run" / "seed-0-slower-3").exists()
