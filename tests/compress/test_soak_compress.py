"""Compressions that are killed by the system, at any moment; `make soak` runs this."""

from __future__ import annotations

import signal
from pathlib import Path
from random import Random

import pytest

from parformer.store.folder import WEIGHTS
from tests.train.nursery import Nursery, shared_nursery

pytestmark = pytest.mark.soak

SMALL = (
    *("model.pattern=(sf)x2", "model.d_model=64", "model.d_inner=128", "train.batch=4"),
    *("train.evaluate_tokens=2048", "train.final_tokens=2048", "train.compile=off"),
)
STEPS = ("1-shrink", "2-distil", "3-prune", "4-quantize")
TRIALS = 12


@pytest.fixture(scope="module")
def nursery() -> Nursery:
    return shared_nursery()


@pytest.fixture(scope="module")
def place(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained run, and what an undisturbed compression leaves of it."""
    folder = tmp_path_factory.mktemp("compressed")
    changes = [word for change in SMALL for word in ("--set", change)]
    trained = nursery.run(
        "train", "llama-pocket", "--corpus", "python-docs", "--steps", 30, "--run", "run", *changes,
        cwd=folder,
    )  # fmt: skip
    assert trained.status == 0, trained.err
    whole = nursery.run(*command("whole"), cwd=folder)
    assert whole.status == 0, whole.err
    (folder / "seconds").write_text(str(whole.seconds), "utf-8")
    return folder


def command(run: str) -> tuple[object, ...]:
    return (
        *("compress", "run", "--run", run, "--by", "shrink,distil,prune,quantize"),
        *("--limit", "size=0.2x", "--updates", 6, "--tokens", 4096, "--rounds", 6, "--threads", 1),
    )


@pytest.mark.parametrize("number", range(TRIALS))
def test_killed_at_random_moments(number: int, nursery: Nursery, place: Path) -> None:
    """Up to three times; whatever was done is found again, to the last bit."""
    random, run = Random(number), f"killed-{number}"
    longest = float((place / "seconds").read_text("utf-8"))
    for _ in range(random.randint(1, 3)):
        ended = nursery.run(*command(run), cwd=place, kill_after=random.uniform(0.05, 1) * longest)
        assert ended.status in (0, -signal.SIGKILL), ended.err
    ended = nursery.run(*command(run), cwd=place)
    assert ended.status == 0, ended.err
    for step in STEPS:
        ends = [place / name / "steps" / step / "model" / WEIGHTS for name in ("whole", run)]
        assert ends[0].read_bytes() == ends[1].read_bytes(), step
    ends = [place / name / "model" / WEIGHTS for name in ("whole", run)]
    assert ends[0].read_bytes() == ends[1].read_bytes()
