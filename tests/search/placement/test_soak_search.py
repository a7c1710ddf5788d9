"""Long trials of what the other tests of searching try briefly; `make soak` runs them."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.search.placement import test_job, test_session
from tests.search.placement.trials import FAMILIES, MODES, evidence, open_recipe
from tests.train.nursery import Nursery, shared_nursery
from tests.train.trials import prepare_folder

pytestmark = pytest.mark.soak

CASES = tuple(f"{family}-{mode}" for family in FAMILIES for mode in MODES)
FAILPOINTS = (
    *("folder.file-written:1", "folder.file-written:6", "folder.file-written:17"),
    *("folder.before-manifest:2", "folder.before-rename:3", "folder.after-rename:5"),
    *("checkpoint.before-write:1", "checkpoint.before-write:6"),
    *("checkpoint.before-rotation:3", "checkpoint.during-rotation:1"),
    *("checkpoint.during-rotation:4", "checkpoint.after-rotation:7"),
    *("train.before-update:1", "train.after-update:5", "train.before-update:15"),
    "train.after-update:16",
)


def recipe_of(case: str) -> Any:
    family, _, mode = case.rpartition("-")
    target = {"search__limit": "flops=0.9x"} if mode == "soft" else {"search__penalty": "flops=0.2"}
    return open_recipe(family, search__mode=mode, search__seeds=2, **target)


@pytest.fixture(scope="module")
def nursery() -> Nursery:
    return shared_nursery()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("soak")
    prepare_folder(path, {case: recipe_of(case) for case in CASES})
    return path


@pytest.fixture(scope="module")
def whole(nursery: Nursery, place: Path) -> dict[str, tuple[Any, float]]:
    """What undisturbed searches leave, and how long they take."""
    found = {}
    for case in CASES:
        ended = nursery.run(*command(case, f"whole-{case}"), cwd=place)
        assert ended.status == 0, ended.err
        found[case] = left_by(place / f"whole-{case}"), ended.seconds
    return found


def command(case: str, run: object) -> tuple[object, ...]:
    return ("search", "differentiable", f"{case}.toml", "--run", run)


def left_by(run: Path) -> Any:
    """Everything but what a clock said."""
    found = json.loads((run / "search.json").read_text("utf-8"))
    timed = ("effort", "compared", "command", "date")
    return (
        [evidence(run / f"seed-{seed}") for seed in (0, 1)],
        {name: value for name, value in found.items() if name not in timed},
    )


@pytest.mark.parametrize("number", range(len(FAILPOINTS)))
def test_killed_at_a_failpoint(number: int, nursery: Nursery, place: Path, whole: Any) -> None:
    case, run = CASES[number % len(CASES)], place / f"failpoint-{number}"
    killed = nursery.run(*command(case, run), cwd=place, failpoint=FAILPOINTS[number])
    assert killed.status == -signal.SIGKILL, killed.err
    ended = nursery.run(*command(case, run), cwd=place)
    assert ended.status == 0, ended.err
    assert left_by(run) == whole[case][0]


@pytest.mark.parametrize("number", range(24))
def test_killed_at_random_moments(number: int, nursery: Nursery, place: Path, whole: Any) -> None:
    """Killed until two kills went home, each anywhere between start and end."""
    case, rng = CASES[number % len(CASES)], Random(number)
    run, kills = place / f"moment-{number}", 0
    for _ in range(20):
        moment = rng.uniform(0.02, whole[case][1])
        ended = nursery.run(*command(case, run), cwd=place, kill_after=moment)
        kills += ended.status == -signal.SIGKILL
        if kills == 2 or ended.status == 0:
            break
        assert ended.status == -signal.SIGKILL, ended.err
    assert nursery.run(*command(case, run), cwd=place).status == 0
    assert left_by(run) == whole[case][0]


@pytest.mark.parametrize("seed", range(1, 5))
def test_other_seeds_find_where_attention_is_needed(seed: int) -> None:
    test_session.try_to_find(seed)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("pieces", [1, 2])
def test_two_processes_follow_one_for_forty_updates(
    mode: str, family: str, pieces: int, nursery: Nursery, tmp_path: Path
) -> None:
    recipe = open_recipe(
        family,
        model__dropout=0.0,
        train__steps=40,
        train__accumulate=pieces,
        search__mode=mode,
        search__limit="flops=0.9x",
    )
    prepare_folder(tmp_path, {"it": recipe})
    assert test_job.alone(nursery, tmp_path, "it.toml", "--run", "one").status == 0
    both = test_job.together(nursery, tmp_path, "it.toml", "--run", "two")
    assert [e.status for e in both] == [0, 0], both[0].err + both[1].err
    test_job.assert_alike(tmp_path / "two", tmp_path / "one", lines=40)
    # from one process to two
    options = {"failpoint": "train.before-update:31"}
    assert test_job.alone(nursery, tmp_path, "it.toml", "--run", "more", **options).status < 0
    both = test_job.together(nursery, tmp_path, "it.toml", "--run", "more")
    assert [e.status for e in both] == [0, 0], both[0].err + both[1].err
    test_job.assert_alike(tmp_path / "more", tmp_path / "one", lines=40)
