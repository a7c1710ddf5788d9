"""Does `parformer train` survive what happens to long runs: kills, full disks, changed minds?"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from parformer.cli import main
from parformer.errors import ConfigError
from parformer.fields import read_seconds
from parformer.kernels import native
from parformer.recipe import read_recipe
from parformer.train.checkpoint import read_checkpoint
from parformer.train.request import run_name
from parformer.train.run import only_one, read_run
from tests.train.nursery import Ended, Nursery, shared_nursery
from tests.train.trials import (
    FAMILIES,
    evidence,
    losses,
    make_recipe,
    make_text,
    metrics,
    prepare_folder,
    write_toml,
)

RECIPES = {family: make_recipe(family) for family in FAMILIES}


@pytest.fixture(scope="module")
def nursery() -> Nursery:
    return shared_nursery()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """text.txt, a recipe for each family, and a cache."""
    path = tmp_path_factory.mktemp("train")
    prepare_folder(path, RECIPES)
    return path


@pytest.fixture(scope="module")
def whole(nursery: Nursery, place: Path) -> dict[str, dict[str, Any]]:
    """What runs leave that nobody disturbs."""
    found = {}
    for family in FAMILIES:
        ended = nursery.run("train", f"{family}.toml", "--run", f"whole-{family}", cwd=place)
        assert ended.status == 0, ended.err
        found[family] = evidence(place / f"whole-{family}")
        found[family]["seconds"] = ended.seconds
    return found


def same(run: Path, whole: dict[str, Any]) -> bool:
    return evidence(run) == {name: value for name, value in whole.items() if name != "seconds"}


def one_line(ended: Ended) -> str:
    """The refusal; whatever stands before it are notices."""
    assert "Traceback" not in ended.err
    line = ended.err.splitlines()[-1]
    assert line.startswith("parformer train: ")
    return line


@pytest.mark.parametrize(
    ("family", "failpoint"),
    [
        ("transformer-xl", "folder.file-written:6"),
        ("gpt2", "folder.before-rename:2"),
        ("bert", "checkpoint.during-rotation:1"),
        ("transformer-xl", "train.after-update:5"),
        ("gpt2", "folder.file-written:18"),
        ("transformer-xl", "train.before-result:1"),
    ],
)
def test_a_killed_run_ends_like_a_whole_one(
    family: str, failpoint: str, nursery: Nursery, place: Path, whole: dict[str, Any]
) -> None:
    run = place / f"{family}-{failpoint.replace(':', '-')}"
    command = ("train", f"{family}.toml", "--run", run)
    killed = nursery.run(*command, cwd=place, failpoint=failpoint)
    assert killed.status == -signal.SIGKILL, killed.err
    assert not (run / "result.json").exists()
    ended = nursery.run(*command, cwd=place)
    assert ended.status == 0, ended.err
    assert same(run, whole[family])


def test_killed_twice_at_any_moment(nursery: Nursery, place: Path, whole: dict[str, Any]) -> None:
    command = ("train", "transformer-xl.toml", "--run", "any-moment")
    for share in (0.4, 0.6):
        moment = share * whole["transformer-xl"]["seconds"]
        nursery.run(*command, cwd=place, kill_after=moment)
    assert nursery.run(*command, cwd=place).status == 0
    assert same(place / "any-moment", whole["transformer-xl"])


def test_a_fresh_process_gives_the_same_weights(place: Path, whole: dict[str, Any]) -> None:
    """Not a fork of anything, and with another seed for Python's own hashes."""
    environment = os.environ | {
        "PARFORMER_CACHE": str(place / "other-cache"),
        "PYTHONHASHSEED": "77",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "parformer", "train", "transformer-xl.toml", "--run", "fresh"]
    subprocess.run(command, cwd=place, env=environment, check=True, capture_output=True)

    def digest(run: str) -> str:
        return hashlib.sha256(
            (place / run / "model" / "model.safetensors").read_bytes()
        ).hexdigest()

    assert digest("fresh") == digest("whole-transformer-xl")
    assert same(place / "fresh", whole["transformer-xl"])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_says_how_to_go_on(number: int, nursery: Nursery, place: Path) -> None:
    run = f"signal-{number}"
    options = ("--set", "train.steps=3000", "--set", "train.checkpoint_every=0")
    ended = nursery.run(
        *("train", "transformer-xl.toml", "--run", run, *options),
        cwd=place,
        signal_at=(number, place / run / "metrics.jsonl", 5),
    )
    assert ended.status == 130, ended.err
    (line,) = [line for line in ended.err.splitlines() if "saved" in line]
    assert line == ended.err.splitlines()[-1]
    assert f"parformer train --run {run}" in line
    (kept,) = (place / run / "checkpoints").iterdir()
    step = read_checkpoint(kept).step
    assert f"step {step:,}" in line
    assert list(losses(place / run)) == list(range(1, step + 1))
    again = nursery.run(
        *("train", "--run", run, "--json"),
        cwd=place,
        signal_at=(number, place / run / "metrics.jsonl", step + 3),
    )
    assert again.status == 130
    assert f"Going on from step {step:,}." in again.err
    answer = json.loads(again.out)
    assert answer["finished"] is False
    assert answer["step"] > step


def kept_sizes(run: Path) -> dict[str, int]:
    newest = sorted((run / "checkpoints").iterdir())[-1]
    return {file.name: file.stat().st_size for file in newest.iterdir()}


@pytest.mark.parametrize("share", [0.0, 0.3, 0.999])
@pytest.mark.parametrize("name", ["weights.safetensors", "optimizer.safetensors"])
def test_a_full_disk_leaves_the_checkpoint_before(
    share: float, name: str, nursery: Nursery, place: Path, whole: dict[str, Any]
) -> None:
    run = place / f"full-{name}-{share}"
    command = ("train", "transformer-xl.toml", "--run", run)
    assert nursery.run(*command, cwd=place, failpoint="train.before-update:4").status < 0
    before = evidence_of_checkpoints(run)
    limit = max(2000, int(share * kept_sizes(run)[name]))
    ended = nursery.run(*command, cwd=place, file_limit=limit)
    assert ended.status == 2, ended.err
    line = one_line(ended)
    assert "step-000000004" in line
    assert "bytes needed" in line
    assert evidence_of_checkpoints(run) == before
    assert [p.name for p in (run / "checkpoints").iterdir()] == ["step-000000002"]
    assert nursery.run(*command, cwd=place).status == 0
    assert same(run, whole["transformer-xl"])


def evidence_of_checkpoints(run: Path) -> dict[str, bytes]:
    files = (run / "checkpoints").rglob("*")
    return {str(file): file.read_bytes() for file in files if file.is_file()}


def test_a_loss_that_is_no_number_has_its_own_status(nursery: Nursery, place: Path) -> None:
    wild = ("--set", "train.learning_rate=1e30", "--set", "train.clip=0.0")
    ended = nursery.run("train", "transformer-xl.toml", "--run", "wild", *wild, cwd=place)
    assert ended.status == 3, ended.err
    assert "checkpoint" in one_line(ended)
    assert not (place / "wild" / "model").exists()
    for path in (place / "wild").glob("checkpoints/*"):
        assert all(bool(t.isfinite().all()) for t in read_checkpoint(path).weights.values())


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    prepare_folder(tmp_path, {"small": make_recipe(train__steps=4, train__evaluate_every=4)})
    monkeypatch.setenv("PARFORMER_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def do(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    status = main(["train", *map(str, words), "--device", "cpu"])
    said = capsys.readouterr()
    return status, said.out, said.err


def refused(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    status, out, err = do(capsys, *words)
    assert status == 2, err
    assert out == ""
    line = err.splitlines()[-1]
    assert line.startswith("parformer train: ")
    return line.removeprefix("parformer train: ")


def files(path: Path) -> dict[str, bytes]:
    return {
        str(f): f.read_bytes() for f in path.rglob("*") if f.is_file() and "cache" not in f.parts
    }


def test_text_in_model_out(here: Path, capsys: Any) -> None:
    status, out, err = do(capsys, "small.toml", "--run", "first")
    assert status == 0
    assert "4 updates of 4 × 8 tokens" in err
    assert "model: first/model" in out
    status, out, _ = do(capsys, "--run", "first", "--json")
    answer = json.loads(out)
    assert status == 0
    assert (answer["run"], answer["step"], answer["finished"]) == ("first", 4, True)
    assert answer["valid"] == json.loads((here / "first" / "result.json").read_text())["valid"]


def test_a_run_with_another_wish_is_refused(here: Path, capsys: Any) -> None:
    assert do(capsys, "small.toml", "--run", "r")[0] == 0
    before = files(here)
    for words, name in (
        (("--pattern", "sf"), "model.pattern"),
        (("--steps", "9"), "train.steps"),
        (("--time", "9s"), "train.time"),
        (("--seed", "1"), "train.seed"),
        (("--set", "train.learning_rate=0.5"), "train.learning_rate"),
        (("--set", "model.d_model=32"), "model.d_model"),
        (("--tokenizer", "character"), "data.tokenizer"),
        (("--precision", "bf16"), "train.precision"),
    ):
        for model in (("small.toml",), ()):
            line = refused(capsys, *model, "--run", "r", *words)
            assert line.startswith(f"{name} is "), line
            assert "'r'" in line
    assert files(here) == before
    status, _, _ = do(capsys, "--run", "r", "--set", "train.log_every=3", "--set", "train.keep=4")
    assert status == 0


def test_a_changed_text_is_refused(here: Path, capsys: Any, nursery: Nursery) -> None:
    command = ("train", "small.toml", "--run", "r")
    assert nursery.run(*command, cwd=here, failpoint="train.before-update:4").status < 0
    text = here / "text.txt"
    text.write_text(make_text().replace("alpha", "omega"), "utf-8")
    before = files(here)
    assert "'text.txt' is not the one that the run 'r' was started with" in refused(
        capsys, "small.toml", "--run", "r"
    )
    assert files(here) == before
    text.unlink()
    assert "text.txt" in refused(capsys, "--run", "r")
    text.write_text(make_text(), "utf-8")
    assert do(capsys, "--run", "r")[0] == 0


@pytest.mark.parametrize(
    ("text", "words", "said"),
    [
        (b"", (), "text.txt"),
        (b"\n", (), "text.txt"),
        (b"far too short\n" * 3, (), "lower train.batch or train.tgt_len"),
        (b"caf\xe9 \xff\xfe und so weiter\n" * 300, ("--tokenizer", "word"), "UTF-8"),
    ],
)
def test_a_text_that_cannot_be_trained_on(
    here: Path, capsys: Any, text: bytes, words: tuple[str, ...], said: str
) -> None:
    (here / "text.txt").write_bytes(text)
    assert said in refused(capsys, "small.toml", "--run", "r", *words)
    assert not (here / "r" / "config.toml").exists()
    (here / "text.txt").write_text(make_text(), "utf-8")
    assert do(capsys, "small.toml", "--run", "r")[0] == 0  # nothing stands in the way


def test_wishes_that_make_no_sense(here: Path, capsys: Any) -> None:
    for words, said in (
        (("small.toml", "--steps", "0"), "train.steps must be at least 1, got 0"),
        ((), "name a MODEL to train, such as pocket, a --start, or the --run"),
        (("--run", "none"), "there is no run at 'none' yet; name a MODEL"),
        (("small.toml", "--time", "soon"), "cannot read the time 'soon'"),
        (("smal.toml",), "smal.toml"),
        (("pokcet",), "did you mean 'pocket'"),
        (("small.toml", "--corpus", "nowhere.txt"), "nowhere.txt"),
        (("small.toml", "--set", "steps=3"), "did you mean train.steps?"),
        (("small.toml", "--set", "train.steps=3", "--steps", "4"), "train.steps is given twice"),
        (("small.toml", "--set", "trian.steps=3"), "unknown section 'trian'"),
        (("small.toml", "--shard"), "torchrun --nproc-per-node 2"),
    ):
        assert said in refused(capsys, *words), words
    # a place was made for the text that was not there, and nothing was put into it
    left = {str(p.relative_to(here)) for p in here.rglob("*") if p.is_file() and p.name != ".lock"}
    assert {name for name in left if not name.startswith("cache")} == {"small.toml", "text.txt"}


def test_a_folder_of_something_else_is_left_alone(here: Path, capsys: Any) -> None:
    (here / "thesis").mkdir()
    (here / "thesis" / "chapter.txt").write_text("years")
    before = files(here)
    assert "holds no run" in refused(capsys, "small.toml", "--run", "thesis")
    assert "cannot make the run folder" in refused(capsys, "small.toml", "--run", "text.txt")
    assert files(here) == before


def test_two_cannot_train_in_one_folder(here: Path, capsys: Any) -> None:
    assert do(capsys, "small.toml", "--run", "r")[0] == 0
    before = files(here)
    with only_one(here / "r"):
        assert "another process is training in 'r'" in refused(capsys, "small.toml", "--run", "r")
    assert files(here) == before


def test_a_second_process_is_refused_while_the_first_goes_on(nursery: Nursery, place: Path) -> None:
    command = ("train", "gpt2.toml", "--run", "both", "--set", "train.steps=40")
    ended = nursery.run_together([command] * 3, cwd=place)
    assert sorted(e.status for e in ended) == [0, 2, 2], [e.err for e in ended]
    for loser in (e for e in ended if e.status == 2):
        assert "another process is training in 'both'" in one_line(loser)
    assert list(losses(place / "both")) == list(range(1, 41))


@pytest.mark.parametrize("name", ["metrics.jsonl", "checkpoints"])
def test_a_run_does_not_reach_outside_through_a_link(
    name: str, here: Path, capsys: Any, nursery: Nursery
) -> None:
    command = ("train", "small.toml", "--run", "r")
    assert nursery.run(*command, cwd=here, failpoint="train.before-update:4").status < 0
    (here / "r" / name).rename(here / "outside")
    (here / "r" / name).symlink_to(here / "outside")
    before = files(here)
    assert "is a link; nothing is written through it" in refused(capsys, "--run", "r")
    assert files(here) == before


def test_wishes_that_this_machine_cannot_grant(
    here: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "cores, got 100000" in refused(capsys, "small.toml", "--set", "train.threads=100000")
    monkeypatch.setattr(native, "library", lambda: None)
    monkeypatch.setattr(native, "failure", "there is no compiler")
    said = refused(capsys, "small.toml", "--set", "train.kernels=native")
    assert "'native' is not possible here: there is no compiler" in said


def test_a_damaged_run_is_refused(here: Path, capsys: Any, nursery: Nursery) -> None:
    command = ("train", "small.toml", "--run", "r")
    assert nursery.run(*command, cwd=here, failpoint="train.before-update:4").status < 0
    good = here / "good"
    shutil.copytree(here / "r", good)
    for name, raw in (("config.toml", b"model = "), ("tokenizer.json", b"{}")):
        (here / "r" / name).write_bytes(raw)
        assert name in refused(capsys, "small.toml", "--run", "r")
        shutil.copy(good / name, here / "r" / name)
    for path in (here / "r" / "checkpoints").iterdir():
        (path / "memory.safetensors").write_bytes(b"")
    before = files(here / "r")
    assert "none of the 1 checkpoints" in refused(capsys, "small.toml", "--run", "r")
    assert files(here / "r") == before


def test_steps_by_the_clock_are_decided_once(here: Path, capsys: Any, nursery: Nursery) -> None:
    command = ("train", "small.toml", "--run", "clock", "--time", "1s")
    killed = nursery.run(*command, cwd=here, failpoint="train.before-update:4")
    assert killed.status < 0
    assert "fit into 1 s" in killed.err
    steps = read_run(here / "clock").train.steps
    assert steps > 4
    ended = nursery.run(*command, cwd=here)
    assert ended.status == 0
    assert "fit into" not in ended.err
    assert read_run(here / "clock").train.steps == steps == list(losses(here / "clock"))[-1]
    assert [row["step"] for row in metrics(here / "clock") if "test_loss" in row] == [steps]


def test_killed_before_the_run_began(here: Path, nursery: Nursery, capsys: Any) -> None:
    """Whatever a first start leaves, the second takes the folder."""
    for moment in (0.01, 0.05, 0.1, 0.15):
        nursery.run("train", "small.toml", "--run", "early", cwd=here, kill_after=moment)
        assert do(capsys, "small.toml", "--run", "early")[0] == 0
        shutil.rmtree(here / "early")


def test_times_and_names() -> None:
    times = {"90": 90, "90s": 90, "5m": 300, "1.5h": 5400, " 2 m ": 120, "2d": 172_800}
    assert {text: read_seconds(text) for text in times} == times
    for bad in ("", "0", "-3", "m", "1w", "1e3"):
        with pytest.raises(ConfigError, match="cannot read the time"):
            read_seconds(bad)
    recipe = read_recipe("pocket", {"data.corpus": "books/two tales.txt"})
    assert run_name("a b/mine.toml", recipe.replaced({"train.seed": 3})) == "mine-two-tales-3"
    assert run_name("pocket", read_recipe("pocket")) == "pocket-python-source"


def test_a_recipe_of_ones_own_is_written_as_toml(here: Path, capsys: Any) -> None:
    """The run's config.toml is itself a recipe that can be trained again, to the same weights."""
    assert do(capsys, "small.toml", "--run", "a")[0] == 0
    write_toml(here / "again.toml", read_run(here / "a"))
    assert do(capsys, "again.toml", "--run", "b")[0] == 0
    assert evidence(here / "a") == evidence(here / "b")
