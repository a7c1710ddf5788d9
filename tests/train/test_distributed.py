"""Do several processes train the very model that one would?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from parformer.errors import ConfigError
from parformer.measure.device import find_device
from parformer.recipe import Recipe
from parformer.train.checkpoint import read_checkpoint
from parformer.train.distributed import Workers, workers_from
from tests.train.nursery import Ended, Nursery, shared_nursery
from tests.train.trials import free_port, losses, make_recipe, metrics, prepare_folder

ADAPTIVE: dict[str, Any] = {
    "model__embedding": "adaptive",
    "model__cutoffs": [100, 110],
    "model__div_val": 2,
}
UNTIED: dict[str, Any] = {"model__tie_weights": False, "model__tie_projections": "none"}
SHARING: dict[str, Any] = {
    "model__pattern": "{sf}x2 (s[share=a]f)x2 {<sf>[feed=shared]s[share=a]}x2",
    "model__d_embed": 8,
    "model__d_bottleneck": 8,
}
CLOSE = 1e-4


def calm(family: str = "transformer-xl", **changes: Any) -> Recipe:
    """Dropout draws other numbers in another process, so there is none."""
    fixed: dict[str, Any] = {"model__dropout": 0.0, "train__steps": 6}
    return make_recipe(family, **fixed | changes)


CASES = {
    "xl-lamb": calm(**ADAPTIVE, train__optimizer="lamb", train__weight_decay=0.1),
    "gpt2-adamw": calm("gpt2", train__accumulate=1, train__optimizer="adamw"),
    "bert-adam": calm("bert", train__optimizer="adam"),
    "albert-lamb": calm("albert", train__optimizer="lamb", train__weight_decay=0.1, **SHARING),
    "xl-muon": calm(**ADAPTIVE, **UNTIED, train__optimizer="muon", train__accumulate=1),
}


@pytest.fixture(scope="module")
def nursery() -> Nursery:
    return shared_nursery()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("together")
    prepare_folder(path, CASES)
    return path


def alone(nursery: Nursery, place: Path, *words: object, **options: Any) -> Ended:
    return nursery.run("train", *words, cwd=place, **options)


def together(nursery: Nursery, place: Path, *words: object, **options: Any) -> list[Ended]:
    port = {"MASTER_PORT": str(free_port())}
    return nursery.run_together([("train", *words)] * 2, cwd=place, ranks=True, env=port, **options)


def gap(run: Path, other: Path) -> float:
    one, two = losses(run), losses(other)
    assert one.keys() == two.keys()
    return max(abs(one[step] - two[step]) for step in one)


@pytest.mark.parametrize("name", sorted(CASES))
def test_two_processes_follow_one(name: str, nursery: Nursery, place: Path) -> None:
    file, single = f"{name}.toml", place / f"{name}-single"
    ended = alone(nursery, place, file, "--run", single)
    assert ended.status == 0, ended.err
    for kind, option in (("ddp", ()), ("fsdp", ("--shard",))):
        run = place / f"{name}-{kind}"
        both = together(nursery, place, file, "--run", run, *option)
        assert [e.status for e in both] == [0, 0], both[0].err + both[1].err
        assert (both[1].out, both[1].err) == ("", "")  # only the first talks
        assert "arning" not in both[0].err
        assert gap(run, single) < CLOSE
        for part in ("weights", "optimizer", "memory"):
            one, two = (getattr(newest(path), part) for path in (single, run))
            assert {n: t.shape for n, t in one.items()} == {n: t.shape for n, t in two.items()}
        scores = [[row for row in metrics(path) if "loss" not in row] for path in (single, run)]
        assert [row["step"] for row in scores[0]] == [row["step"] for row in scores[1]]
        for one, two in zip(*scores, strict=True):
            assert one == pytest.approx(two, abs=CLOSE)


def newest(run: Path) -> Any:
    return read_checkpoint(sorted((run / "checkpoints").iterdir())[-1])


@pytest.mark.parametrize("kinds", ["one to ddp", "fsdp to one", "ddp to fsdp"])
def test_a_run_goes_on_with_another_number_of_processes(
    kinds: str, nursery: Nursery, place: Path
) -> None:
    name = "xl-lamb"
    file, run, single = f"{name}.toml", place / kinds.replace(" ", "-"), place / f"{name}-single"
    if not single.exists():
        assert alone(nursery, place, file, "--run", single).status == 0

    def start(kind: str, failpoint: str = "") -> Ended:
        words = (file, "--run", run, *(("--shard",) if kind == "fsdp" else ()))
        if kind == "one":
            return alone(nursery, place, *words, failpoint=failpoint)
        return together(nursery, place, *words, failpoint=failpoint)[0]

    first, second = kinds.split(" to ")
    assert start(first, "train.before-update:6").status < 0
    ended = start(second)
    assert ended.status == 0, ended.err
    assert "Going on from step 4." in ended.err
    assert ("Not bit-exact from here on: processes was" in ended.err) == ("one" in kinds)
    assert ("Not bit-exact from here on: sharded was" in ended.err) == ("fsdp" in kinds)
    assert gap(run, single) < CLOSE


def test_a_run_of_two_goes_on_bit_for_bit(nursery: Nursery, place: Path) -> None:
    whole, broken = place / "two-whole", place / "two-broken"
    for run in (whole, broken):
        failpoint = "train.before-update:6" if run is broken else ""
        together(nursery, place, "xl-lamb.toml", "--run", run, failpoint=failpoint)
    both = together(nursery, place, "xl-lamb.toml", "--run", broken)
    assert [e.status for e in both] == [0, 0]
    assert "Not bit-exact" not in both[0].err
    assert metrics(broken) == metrics(whole)
    one, two = newest(broken), newest(whole)
    for part in ("weights", "optimizer", "memory"):
        a, b = getattr(one, part), getattr(two, part)
        assert a.keys() == b.keys()
        assert all(torch.equal(a[n], b[n]) for n in a), part


def test_a_batch_must_go_round(nursery: Nursery, place: Path) -> None:
    options = ("--set", "train.batch=5", "--set", "train.accumulate=1")
    first, _ = together(nursery, place, "gpt2-adamw.toml", "--run", "odd", *options)
    assert first.status == 2
    assert "train.batch 5 cannot be shared out to 2 processes" in first.err.splitlines()[-1]
    assert not (place / "odd" / "config.toml").exists()


def test_rows_are_shared_out_in_order() -> None:
    parts = [Workers(rank=rank, count=4).rows(12) for rank in range(4)]
    assert [list(range(12))[rows] for rows in parts] == [
        [0, 1, 2],
        [3, 4, 5],
        [6, 7, 8],
        [9, 10, 11],
    ]
    assert [Workers(rank=rank, count=2).first for rank in range(2)] == [True, False]


def test_one_process_needs_nobody() -> None:
    with workers_from({}, device="cpu") as workers:
        assert workers == Workers()
        assert workers.share("word") == "word"
        assert workers.agree(True, False) == (True, False)
        rows_b = torch.arange(3.0)
        assert workers.average(rows_b) is rows_b
        assert workers.gather_rows(rows_b) is rows_b
    with (
        pytest.raises(ConfigError, match="there is only this one; start it with torchrun"),
        workers_from({}, device="cpu", shard=True),
    ):
        pass


def test_a_device_that_is_not_there_is_named() -> None:
    assert find_device("cpu") == torch.device("cpu")
    for name in ("toaster", "cuda:99"):
        with pytest.raises(ConfigError, match=f"cannot use the device '{name}': ") as caught:
            find_device(name)
        assert "\n" not in str(caught.value)
