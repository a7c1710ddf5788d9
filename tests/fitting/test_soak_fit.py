"""A fit that is killed, at any phase and in the middle of its trainings; `make soak` runs it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.fitting.office import write_text
from tests.train.nursery import Nursery, shared_nursery

pytestmark = pytest.mark.soak

AGAIN = "fit.after-phase:1"
KILLS = (
    *(AGAIN, AGAIN, AGAIN, "train.after-update:4", "train.before-update:9", AGAIN, AGAIN),
    *("train.after-update:1", "train.before-result:1", "folder.before-rename:2", AGAIN, AGAIN),
    *("train.after-update:2", "checkpoint.before-rotation:1", "train.before-model:2", AGAIN),
)
"""Each begins where the one before was killed, so counts are from there."""


@pytest.fixture(scope="module")
def nursery() -> Nursery:
    return shared_nursery()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("soak")
    write_text(path / "words.txt")
    return path


def fit(run: str) -> list[object]:
    return ["fit", "words.txt", "--steps", 6, "--limit", "flops=0.9x", "--choices", "sfi",
            "--run", run]  # fmt: skip


def evidence(run: Path) -> dict[str, Any]:
    """What does not depend on the clock."""
    found = json.loads((run / "fit.json").read_text("utf-8"))
    kept = ("name", "pattern", "flops", "rates", "rate", "steps", "dropped", "valid", "against")
    return {
        "finished": found["finished"],
        "models": [{name: row[name] for name in kept} for row in found["models"]],
        "baseline": (run / "trainings/baseline/model/model.safetensors").read_bytes(),
        "search": json.loads((run / "search/trials.json").read_text("utf-8"))["pattern"],
    }


def test_killed_again_and_again_it_ends_as_if_it_never_was(nursery: Nursery, place: Path) -> None:
    assert nursery.run(*fit("whole"), cwd=place).status == 0
    killed = 0
    for failpoint in KILLS:
        ended = nursery.run(*fit("killed"), cwd=place, failpoint=failpoint)
        killed += ended.status < 0
        assert ended.status <= 0, ended.err
    assert killed >= 12
    assert nursery.run("fit", "--run", "killed", cwd=place).status == 0
    killed_run, whole_run = evidence(place / "killed"), evidence(place / "whole")
    for one, other in zip(killed_run["models"], whole_run["models"], strict=True):
        assert {n: (one[n], other[n]) for n in one if one[n] != other[n]} == {}, one["name"]
    assert killed_run == whole_run


def test_a_signal_leaves_the_best_so_far(nursery: Nursery, place: Path) -> None:
    metrics = place / "stopped" / "trainings" / "par" / "metrics.jsonl"
    command = ["fit", "words.txt", "--steps", 60, "--limit", "flops=0.9x", "--choices", "sf",
               "--run", "stopped"]  # fmt: skip
    ended = nursery.run(*command, cwd=place, signal_at=(2, metrics, 2))
    assert ended.status == 130
    assert "go on with: parformer fit --run stopped" in ended.err
    assert not json.loads((place / "stopped" / "fit.json").read_text("utf-8"))["finished"]
    assert (place / "stopped" / "report.html").is_file()
