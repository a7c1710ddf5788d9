"""Does `parformer search` teach, answer bad input in one line, and go on after anything?"""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from parformer.cli import main
from parformer.cli.search import PLACEMENT_EXAMPLES
from parformer.recipe import read_recipe
from parformer.report.search import search_page
from parformer.search.placement.request import PlacementRequest
from parformer.search.placement.result import PlacementResult
from parformer.train.run import read_run
from tests.search.placement.trials import Clock, open_recipe
from tests.train.nursery import Nursery, shared_nursery
from tests.train.trials import prepare_folder


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A text and a small recipe; nothing is measured."""
    prepare_folder(tmp_path, {"small": open_recipe()})
    monkeypatch.setenv("PARFORMER_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def do(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    try:
        status = main(["search", "differentiable", *map(str, words), "--device", "cpu"])
    except SystemExit as leaving:
        assert isinstance(leaving.code, int)
        status = leaving.code
    said = capsys.readouterr()
    return status, said.out, said.err


def refused(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    status, out, err = do(capsys, *words)
    assert status == 2, err
    assert out == ""
    assert "Traceback" not in err
    line = err.splitlines()[-1]
    assert line.startswith("parformer search")
    return line


def test_text_in_pattern_out(here: Path, clock: Clock, capsys: Any) -> None:
    status, out, err = do(capsys, "small.toml", "--run", "first", "--seeds", 2)
    assert status == 0, err
    found = json.loads((here / "first" / "search.json").read_text())
    assert found["layers"] == 3  # the recipe's own, not the model's four
    assert found["pattern"] in out
    assert "report: first/report.html" in out
    assert f"--pattern {shlex.quote(found['pattern'])}" in out
    assert "3 layers choose from sfi, soft" in err
    assert "8 updates of 4 × 8 tokens, 2 seeds, run first" in err
    assert (here / "first" / "report.html").read_text("utf-8") == search_page(
        PlacementResult.load(here / "first")
    )
    assert found["command"] == (
        "parformer search differentiable small.toml --run first --seeds 2 --device cpu"
    )


def test_json_is_for_machines(here: Path, clock: Clock, capsys: Any) -> None:
    status, out, _ = do(capsys, "small.toml", "--run", "first", "--seeds", 2, "--json")
    assert status == 0
    answer = json.loads(out)
    found = json.loads((here / "first" / "search.json").read_text())
    assert (answer["run"], answer["finished"]) == ("first", True)
    assert answer["patterns"] == [seed["pattern"] for seed in found["seeds"]]
    assert "seeds" not in answer  # the long history stays in the file
    for name in found.keys() - {"seeds", "format"}:
        assert answer[name] == found[name]


def test_the_options_are_the_recipes_fields(here: Path, clock: Clock, capsys: Any) -> None:
    options = ("--layers", 5, "--choices", "s f[inner=9] i", "--mode", "sampled", "--seed", 7)
    more = ("--steps", 12, "--penalty", "parameters=0.2", "--precision", "fp32")
    fields = ("--set", "search.warmup=0.5", "--set", "train.learning_rate=0.002")
    status, out, err = do(capsys, "small.toml", "--run", "r", *options, *more, *fields, "--json")
    assert status == 0, err
    recipe = read_run(here / "r")
    search, train = recipe.search, recipe.train
    assert search is not None
    assert (search.layers, search.choices, search.mode) == (5, "s f[inner=9] i", "sampled")
    assert (search.penalty, search.limit, search.warmup) == ("parameters=0.2", "", 0.5)
    assert (train.steps, train.seed, train.learning_rate) == (12, 7, 0.002)
    answer = json.loads(out)
    assert answer["choices"] == ["s", "f[inner=9]", "i"]
    assert answer["target"] == {"metric": "parameters", "penalty": 0.2}
    # the same command goes on, and a finished search is only told again
    again = do(capsys, "small.toml", "--run", "r", *options, *more, *fields, "--json")
    assert again[0] == 0
    assert json.loads(again[1]) == answer


def test_a_limit_takes_the_place_of_the_recipes_penalty(
    here: Path, clock: Clock, capsys: Any
) -> None:
    prepare_folder(here, {"priced": open_recipe(search__penalty="flops=0.1")})
    status, out, err = do(capsys, "priced.toml", "--run", "r", "--limit", "flops=0.9x", "--json")
    assert status == 0, err
    answer = json.loads(out)
    assert answer["target"] == {"metric": "flops", "limit": 0.9}
    assert answer["price"]["found"] <= 0.9
    prepare_folder(here, {"limited": open_recipe(search__limit="flops=0.9x")})
    status, out, err = do(capsys, "limited.toml", "--run", "q", "--penalty", "flops=1", "--json")
    assert status == 0, err
    assert json.loads(out)["target"] == {"metric": "flops", "penalty": 1.0}


def test_time_instead_of_steps(here: Path, clock: Clock, capsys: Any) -> None:
    """The clock says 22 ms an update; the same command goes on with the steps that were found."""
    status, _, err = do(capsys, "small.toml", "--run", "r", "--time", "2s")
    assert status == 0, err
    assert " ms fit into 2 s." in err
    recipe = read_run(here / "r")
    assert recipe.train.time == 2.0
    assert 20 < recipe.train.steps < 90
    assert do(capsys, "small.toml", "--run", "r", "--time", "2s")[0] == 0


def test_more_seeds_later(here: Path, clock: Clock, capsys: Any) -> None:
    assert do(capsys, "small.toml", "--run", "r")[0] == 0
    status, out, err = do(capsys, "--run", "r", "--seeds", 2, "--json")
    assert status == 0, err
    assert len(json.loads(out)["patterns"]) == 2
    assert "Seed 1, 2 of 2" in err


def test_the_found_pattern_is_trained_on_request(here: Path, clock: Clock, capsys: Any) -> None:
    status, out, err = do(capsys, "small.toml", "--run", "r", "--retrain", "--json")
    assert status == 0, err
    assert [row["name"] for row in json.loads(out)["retrained"]] == ["found", "interleaved", "par"]
    assert "Training found from scratch: " in err
    assert "Training interleaved from scratch: sfs" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--choices", "s"), "every layer has only one choice"),
        (("--choices", ""), "no block at column 1"),
        (("--choices", "sfq"), "unknown block 'q'"),
        (("--choices", "sfs"), "'s' twice"),
        (("--choices", "s[heads=5]f"), "heads"),
        (("--choices", "s[hats=5]f"), "unknown option 'hats'"),
        (("--limit", "flops=0.01x"), "the nearest, i, costs"),
        (("--limit", "flops=0.3x", "--choices", "sf"), "the nearest, (f)x3, costs"),
        (("--limit", "latency=5ms"), "latency=0.7x"),
        (("--limit", "flops"), "flops"),
        (("--limit", "speed=0.7x"), "'speed'; known: flops, parameters, state, latency"),
        (("--limit", "flops=-1x"), "flops=0.7x"),
        (("--penalty", "speed=1"), "'speed'"),
        (("--penalty", "flops=much"), "flops=0.1"),
        (
            ("--penalty", "flops=1", "--limit", "flops=0.7x"),
            "both a penalty, 'flops=1', and a limit",
        ),
        (("--limit", "flops=0.7x", "--set", "search.penalty=flops=1"), "two ways to the same end"),
        (("--layers", "2"), "search.layers 2 cannot be cut into thirds"),
        (("--layers", "1"), "give at least 3"),
        (("--layers", "-3"), "search.layers must be at least 0, got -3"),
        (("--layers", "many"), "invalid int value: 'many'"),
        (("--layers", "1000"), "from 1 to 512, got 1000"),
        (("--steps", "0"), "train.steps must be at least 1, got 0"),
        (("--steps", "3"), "3 updates end before the architecture's first turn"),
        (("--steps", "9", "--time", "1m"), "steps 9 and time 60 s are two lengths; give one"),
        (("--time", "soon"), "cannot read the time 'soon'"),
        (("--seeds", "0"), "search.seeds must be at least 1, got 0"),
        (("--mode", "hard"), "invalid choice: 'hard'"),
        (("--set", "search.share=1.5"), "search.share is a share between 0 and 1, got 1.5"),
        (("--set", "search.layer=3"), "unknown field of [search] 'layer'; did you mean 'layers'?"),
        (("--set", "layers=3"), "did you mean search.layers?"),
        (("--set", "search.layers=3", "--layers", "4"), "search.layers is given twice"),
        (("--set", "train.compile=on"), "train.compile 'on' does not go with a search"),
        (("--corpus", "nowhere.txt"), "nowhere.txt"),
        (("--corpus", "short.txt"), "but a search with 4 texts of 8 needs 192"),
        (("--device", "toaster"), "cannot use the device 'toaster'"),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, tuple) else "",
)
def test_bad_input_is_one_line(
    words: tuple[str, ...], said: str, here: Path, capsys: Any, monkeypatch: Any
) -> None:
    (here / "short.txt").write_text("so short\n" * 12)
    before = set(here.iterdir())
    if "--device" in words:
        monkeypatch.setattr("tests.cli.test_search.do", do_plainly)
    assert said in refused(capsys, "small.toml", "--run", "r", *words)
    left = {path.name for path in set(here.iterdir()) - before}
    assert left <= {"cache"}  # no run was begun


def do_plainly(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    status = main(["search", "differentiable", *map(str, words)])
    said = capsys.readouterr()
    return status, said.out, said.err


def test_recipes_that_nobody_knows(here: Path, capsys: Any) -> None:
    assert "did you mean 'pocket-search', " in refused(capsys, "poket-search")
    assert "smal.toml" in refused(capsys, "smal.toml")
    (here / "broken.toml").write_text('extends = "pocket"\n[search]\nshares = 3\n')
    assert "'shares'; did you mean 'share'?" in refused(capsys, "broken.toml")
    status = 0
    try:
        main(["search"])
    except SystemExit as leaving:
        status = int(str(leaving.code))
    assert status == 2
    assert "WAY" in capsys.readouterr().err


def test_a_search_and_a_training_keep_apart(here: Path, clock: Clock, capsys: Any) -> None:
    assert do(capsys, "small.toml", "--run", "s")[0] == 0
    assert main(["train", "small.toml", "--run", "t", "--device", "cpu"]) == 0
    capsys.readouterr()
    for words in (("small.toml", "--run", "t"), ("--run", "t"), ("--run", "t", "--seeds", "2")):
        assert "the run 't' holds a training; go on with" in refused(capsys, *words)
    for words in (("train", "small.toml", "--run", "s"), ("train", "--run", "s")):
        assert main([*words, "--device", "cpu"]) == 2
        said = capsys.readouterr().err.splitlines()[-1]
        assert "the run 's' holds a search; go on with" in said


def test_another_wish_is_refused(here: Path, clock: Clock, capsys: Any) -> None:
    assert do(capsys, "small.toml", "--run", "r")[0] == 0
    for words, name in (
        (("--layers", "5"), "search.layers"),
        (("--choices", "sf"), "search.choices"),
        (("--mode", "sampled"), "search.mode"),
        (("--penalty", "flops=1"), "search.penalty"),
        (("--limit", "flops=0.9x"), "search.limit"),
        (("--steps", "9"), "train.steps"),
        (("--seed", "1"), "train.seed"),
    ):
        for model in (("small.toml",), ()):
            line = refused(capsys, *model, "--run", "r", *words)
            assert f"{name} is " in line, line


@pytest.fixture(scope="module")
def nursery() -> Nursery:
    return shared_nursery()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_says_how_to_go_on(number: int, nursery: Nursery, here: Path) -> None:
    options = ("--steps", "4000", "--set", "train.checkpoint_every=0", "--retrain")
    lines = here / "r" / "seed-0" / "metrics.jsonl"
    ended = nursery.run(
        *("search", "differentiable", "small.toml", "--run", "r", *options),
        cwd=here,
        signal_at=(number, lines, 5),
    )
    assert ended.status == 130, ended.err
    step = len(lines.read_text().splitlines())
    assert ended.err.splitlines()[-1] == (
        f"parformer search: stopped in seed 0 after step {step:,}, everything is saved; "
        "go on with: parformer search placement --run r --retrain"
    )
    again = nursery.run(
        *("search", "differentiable", "--run", "r", "--json"),
        cwd=here,
        signal_at=(number, lines, step + 3),
    )
    assert again.status == 130
    assert f"Going on from step {step:,}." in again.err
    answer = json.loads(again.out)
    assert answer["finished"] is False
    assert answer["step"] > step


# Help


def test_help_teaches_and_answers_at_once() -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "parformer", "search", "differentiable", "-h"],
        capture_output=True,
        text=True,
        check=True,
    )
    imported = {line.rpartition("|")[2].strip().split(".")[0] for line in done.stderr.splitlines()}
    assert "argparse" in imported
    assert not imported & {"torch", "numpy", "plotly"}
    for line in PLACEMENT_EXAMPLES.splitlines():
        assert line in done.stdout
    for option in re.findall(r"--[a-z]+", PLACEMENT_EXAMPLES):
        assert f"{option} " in done.stdout
    for word in ("PAR", "search.json", "report.html", "goes on", "s attention", "flops=0.1"):
        assert word in " ".join(done.stdout.split())


def test_help_names_the_ways_to_search(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leaving:
        main(["search", "--help"])
    assert leaving.value.code == 0
    said = capsys.readouterr().out
    assert "placement (differentiable)" in said
    assert "sizes (pareto)" in said
    assert "examples:" in said


def test_runs_have_names() -> None:
    recipe = read_recipe("pocket-search")
    seeded = recipe.replaced({"train.seed": 3, "data.corpus": "some notes/of mine.txt"})
    for name, asked, folder in (
        ("", recipe, "pocket-search-python-source"),
        ("pocket-search", recipe, "pocket-search-python-source"),
        ("here/mine.toml", seeded, "search-mine-of-mine-3"),
        ("pocket", recipe, "search-pocket-python-source"),
    ):
        assert PlacementRequest(recipe=name).folder(asked) == Path("runs") / folder


def test_the_examples_name_what_exists() -> None:
    for line in PLACEMENT_EXAMPLES.splitlines():
        words = line.split()
        assert words[:2] == ["parformer", "search"]
        assert words[2] == "placement"
        if not words[3].startswith("-"):
            read_recipe(words[3])
