"""Long trials of what the other tests of training try briefly; `make soak` runs them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest

from parformer.train.checkpoint import read_checkpoint, write_checkpoint
from tests.train import test_checkpoint, test_distributed
from tests.train.nursery import Nursery, shared_nursery
from tests.train.trials import (
    FAMILIES,
    evidence,
    free_port,
    losses,
    make_recipe,
    prepare_folder,
)

pytestmark = pytest.mark.soak

LONGER: dict[str, Any] = {"train__steps": 12, "model__dropout": 0.1}
FAILPOINTS = (
    *("folder.file-written:1", "folder.file-written:3", "folder.file-written:6"),
    *("folder.file-written:10", "folder.file-written:17", "folder.file-written:25"),
    *("folder.before-manifest:1", "folder.before-manifest:4", "folder.before-manifest:7"),
    *("folder.before-rename:1", "folder.before-rename:5", "folder.before-rename:7"),
    *("folder.after-rename:2", "folder.after-rename:6", "folder.after-rename:7"),
    *("checkpoint.before-write:1", "checkpoint.before-write:4"),
    *("checkpoint.before-rotation:3", "checkpoint.during-rotation:1"),
    *("checkpoint.during-rotation:4", "checkpoint.after-rotation:6"),
    *("train.before-update:8", "train.after-update:7"),
    *("train.before-model:1", "train.before-result:1"),
)
assert len(FAILPOINTS) == len(set(FAILPOINTS)) == 25


@pytest.fixture(scope="module")
def nursery() -> Nursery:
    return shared_nursery()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("soak")
    prepare_folder(path, {family: make_recipe(family, **LONGER) for family in FAMILIES})
    return path


@pytest.fixture(scope="module")
def whole(nursery: Nursery, place: Path) -> dict[str, tuple[dict[str, Any], float]]:
    """What undisturbed runs leave, and how long they take."""
    found = {}
    for family in FAMILIES:
        ended = nursery.run("train", f"{family}.toml", "--run", f"whole-{family}", cwd=place)
        assert ended.status == 0, ended.err
        found[family] = evidence(place / f"whole-{family}"), ended.seconds
    return found


@pytest.mark.parametrize("number", range(25))
def test_killed_at_a_failpoint(number: int, nursery: Nursery, place: Path, whole: Any) -> None:
    family, failpoint = FAMILIES[number % 3], FAILPOINTS[number]
    run = place / f"failpoint-{number}"
    command = ("train", f"{family}.toml", "--run", run)
    killed = nursery.run(*command, cwd=place, failpoint=failpoint)
    assert killed.status == -signal.SIGKILL, killed.err
    ended = nursery.run(*command, cwd=place)
    assert ended.status == 0, ended.err
    assert evidence(run) == whole[family][0]


@pytest.mark.parametrize("number", range(25))
def test_killed_at_random_moments(number: int, nursery: Nursery, place: Path, whole: Any) -> None:
    """Killed until two kills went home, each anywhere between start and end."""
    family, rng = FAMILIES[number % 3], Random(number)
    run = place / f"moment-{number}"
    command = ("train", f"{family}.toml", "--run", run)
    kills = 0
    for _ in range(20):
        moment = rng.uniform(0.02, whole[family][1])
        ended = nursery.run(*command, cwd=place, kill_after=moment)
        kills += ended.status == -signal.SIGKILL
        if kills == 2 or ended.status == 0:
            break
        assert ended.status == -signal.SIGKILL, ended.err
    assert nursery.run(*command, cwd=place).status == 0
    assert evidence(run) == whole[family][0]


@pytest.mark.parametrize(("kind", "count"), [("cut", 300), ("flip", 1000)])
def test_every_damage_is_found(kind: str, count: int, tmp_path: Path) -> None:
    root = tmp_path / "checkpoints"
    for step in (2, 4):
        write_checkpoint(root, test_checkpoint.make_checkpoint(step), keep=2)
    test_checkpoint.try_damages(root, tmp_path / "spare", Random(2), kind, count)


@pytest.mark.parametrize("number", range(40))
def test_a_disk_that_is_full_at_any_byte(
    number: int, nursery: Nursery, place: Path, whole: Any
) -> None:
    run = place / f"full-{number}"
    command = ("train", "transformer-xl.toml", "--run", run)
    assert nursery.run(*command, cwd=place, failpoint="train.before-update:4").status < 0
    kept = run / "checkpoints" / "step-000000002"
    before = {file.name: file.read_bytes() for file in kept.iterdir()}
    largest = max(len(raw) for raw in before.values())
    metrics = (run / "metrics.jsonl").stat().st_size
    # from just above what the metrics have to one byte below the largest file
    limit = metrics + 300 + round((largest - 1 - metrics - 300) * number / 39)
    ended = nursery.run(*command, cwd=place, file_limit=limit)
    assert ended.status == 2, ended.err
    assert "Traceback" not in ended.err
    line = ended.err.splitlines()[-1]
    assert str(run) in line
    assert "bytes needed" in line
    assert {file.name: file.read_bytes() for file in kept.iterdir()} == before
    read_checkpoint(kept)
    ended = nursery.run(*command, cwd=place)
    assert ended.status == 0, ended.err
    assert evidence(run) == whole["transformer-xl"][0]


@pytest.mark.parametrize("room", [1, 40, 120])
def test_a_disk_that_is_full_for_the_metrics(
    room: int, nursery: Nursery, place: Path, whole: Any
) -> None:
    """The smallest file is the first that finds no room."""
    run = place / f"full-metrics-{room}"
    command = ("train", "transformer-xl.toml", "--run", run)
    assert nursery.run(*command, cwd=place, failpoint="train.before-update:4").status < 0
    limit = (run / "metrics.jsonl").stat().st_size + room
    ended = nursery.run(*command, cwd=place, file_limit=limit)
    assert ended.status == 2, ended.err
    assert "Traceback" not in ended.err
    assert "bytes needed" in ended.err.splitlines()[-1]
    assert nursery.run(*command, cwd=place).status == 0
    assert evidence(run) == whole["transformer-xl"][0]


MODELS: dict[str, dict[str, Any]] = {
    "transformer-xl": {},
    "adaptive": test_distributed.ADAPTIVE,
    "gpt2": {},
}


@pytest.mark.parametrize("model", sorted(MODELS))
@pytest.mark.parametrize("optimizer", ["adamw", "lamb", "muon"])
@pytest.mark.parametrize("pieces", [1, 2])
def test_two_processes_follow_one_for_fifty_steps(
    model: str, optimizer: str, pieces: int, nursery: Nursery, tmp_path: Path
) -> None:
    family = "gpt2" if model == "gpt2" else "transformer-xl"
    changes: dict[str, Any] = {"train__steps": 50, "train__evaluate_every": 25}
    changes |= {"train__optimizer": optimizer, "train__accumulate": pieces}
    recipe = test_distributed.calm(family, **MODELS[model] | changes, train__checkpoint_every=20)
    prepare_folder(tmp_path, {"it": recipe})
    words = ("it.toml", "--run")
    assert test_distributed.alone(nursery, tmp_path, *words, "single").status == 0
    for kind, option in (("ddp", ()), ("fsdp", ("--shard",))):
        both = test_distributed.together(nursery, tmp_path, *words, kind, *option)
        assert [e.status for e in both] == [0, 0], both[0].err + both[1].err
        found = test_distributed.gap(tmp_path / kind, tmp_path / "single")
        assert found < test_distributed.CLOSE, (kind, found)
        # from one process to two, and from two to one
        for first, second in ((1, 2), (2, 1)):
            run = f"{kind}-{first}-{second}"
            for count, failpoint in ((first, "train.before-update:31"), (second, "")):
                if count == 1:
                    ended = test_distributed.alone(
                        nursery, tmp_path, *words, run, failpoint=failpoint
                    )
                else:
                    ended, _ = test_distributed.together(
                        nursery, tmp_path, *words, run, *option, failpoint=failpoint
                    )
                assert (ended.status == 0) == (failpoint == ""), ended.err
            found = test_distributed.gap(tmp_path / run, tmp_path / "single")
            assert found < test_distributed.CLOSE, (run, found)


@pytest.mark.parametrize("option", [(), ("--shard",)])
def test_torchrun_itself(option: tuple[str, ...], nursery: Nursery, tmp_path: Path) -> None:
    """The -- keeps torchrun from reading our --run as a short form of its own --run-path."""
    prepare_folder(tmp_path, {"it": test_distributed.calm(train__steps=20)})
    assert test_distributed.alone(nursery, tmp_path, "it.toml", "--run", "single").status == 0
    environment = os.environ | {"PARFORMER_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    start = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    start += ["--master-port", str(free_port()), "-m", "--", "parformer"]
    done = subprocess.run(
        [*start, "train", "it.toml", "--run", "two", "--json", *option],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert (answer["finished"], answer["step"]) == (True, 20)
    assert test_distributed.gap(tmp_path / "two", tmp_path / "single") < test_distributed.CLOSE


def test_compiled_code_goes_on_bit_for_bit(tmp_path: Path) -> None:
    """Each start compiles anew; the code must be the same."""
    prepare_folder(tmp_path, {"it": make_recipe(train__compile="on")})
    environment = os.environ | {"PARFORMER_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    environment["TORCHINDUCTOR_CACHE_DIR"] = str(tmp_path / "inductor")

    def start(run: str, failpoint: str = "") -> int:
        return subprocess.run(
            [sys.executable, "-m", "parformer", "train", "it.toml", "--run", run],
            cwd=tmp_path,
            env=environment | {"PARFORMER_FAILPOINT": failpoint},
            capture_output=True,
            check=False,
        ).returncode

    assert start("whole") == 0
    assert start("broken", "train.before-update:6") == -signal.SIGKILL
    assert start("broken") == 0
    assert evidence(tmp_path / "broken") == evidence(tmp_path / "whole")


def test_a_long_run_keeps_two_checkpoints_and_every_step(nursery: Nursery, tmp_path: Path) -> None:
    recipe = make_recipe(train__steps=2000, train__checkpoint_every=20, train__evaluate_every=500)
    prepare_folder(tmp_path, {"it": recipe})
    assert nursery.run("train", "it.toml", "--run", "long", cwd=tmp_path).status == 0
    assert len(list((tmp_path / "long" / "checkpoints").iterdir())) == 2
    assert list(losses(tmp_path / "long")) == list(range(1, 2001))
