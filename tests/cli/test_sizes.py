"""Do `search pareto`, `search join`, `measure worker` and `pick` do what they say?"""

from __future__ import annotations

import json
import shlex
import time
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any

import pytest

from parformer.cli import main
from parformer.recipe import read_recipe
from tests.search.sizes.test_job import FakeMeter

FILES = Path(__file__).parents[1] / "search" / "files"
SPACE = """\
like = "pocket"
layers = "1..3"
unit = ["s[heads=2|4]", "f[inner=32..96/32]"]

[fields]
d_model = "16..48/16"
"""
SMALL = "search pareto tiny.toml --population 10 --iterations 3 --run run"
COUNTED = f"{SMALL} --objectives quality,flops,state"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PARFORMER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("parformer.measure.readings.measure_here", FakeMeter())
    (tmp_path / "tiny.toml").write_text(SPACE)
    return tmp_path


def say(command: str) -> int:
    return main(shlex.split(command))


def answer(command: str, capsys: pytest.CaptureFixture[str]) -> Any:
    capsys.readouterr()
    assert say(f"{command} --json") == 0
    return json.loads(capsys.readouterr().out)


def complaint(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert say(command) == 2
    error = capsys.readouterr().err.strip()
    assert "Traceback" not in error
    return error.splitlines()[-1]


def test_a_search_leaves_a_front_a_page_and_a_model_to_train(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert say(SMALL) == 0
    out = capsys.readouterr().out
    assert "report: run/report.html" in out
    found = json.loads((place / "run" / "pareto.json").read_text())
    assert found["command"] == f"parformer {SMALL}"
    assert found["front"][0]["measured"]["latency"] > 0
    page = (place / "run" / "report.html").read_text()
    assert found["front"][-1]["pattern"] in page
    middle = found["front"][len(found["front"]) // 2]["measured"]["latency"]
    picked = answer(f"pick run --limit latency={middle * 1e6 + 1:.0f}us", capsys)
    assert picked["measured"]["latency"] <= middle + 1e-6
    recipe = read_recipe(picked["config"])
    assert str(recipe.model.pattern) == picked["pattern"]
    assert say(f"cost {picked['config']}") == 0


def test_the_same_command_measures_nothing_twice(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = answer(SMALL, capsys)
    again = FakeMeter(stop_after=0)
    monkeypatch.setattr("parformer.measure.readings.measure_here", again)
    second = answer(SMALL, capsys)
    assert again.calls == 0
    assert first["front"] == second["front"]


def test_ctrl_c_keeps_what_is_there(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parformer.measure.readings.measure_here", FakeMeter(stop_after=1))
    assert say(SMALL) == 130
    assert f"go on with: parformer {SMALL}" in capsys.readouterr().err
    monkeypatch.setattr("parformer.measure.readings.measure_here", FakeMeter())
    assert say(SMALL) == 0


def test_spaces_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    listed = {space["name"]: space for space in answer("search pareto --spaces", capsys)}
    assert listed["lts"]["size"] > 1e36
    assert say("search pareto --spaces") == 0
    assert "lts-as-run" in capsys.readouterr().out


def test_a_model_can_be_picked_by_name(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert say(COUNTED) == 0
    assert answer("pick run --name g2 --output mine.toml", capsys)["name"] == "g2"
    assert (place / "mine.toml").is_file()
    assert say("pick run --limit flops=0.2x") == 0
    assert "train:   parformer train run/g" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (f"{COUNTED} --limit flops=1k", "nothing in the space 'tiny' is within the limits"),
        (f"{COUNTED} --limit speed=1", "unknown metric of a limit 'speed'"),
        (f"{COUNTED} --proxy snap", "unknown proxy 'snap'; did you mean 'snip'?"),
        (f"{COUNTED} --population 3", "population must be at least 5, got 3"),
        (f"{COUNTED} --workers 0", "workers must be at least 1, got 0"),
        (f"{COUNTED} --storage nowhere:x", "unknown storage"),
        (f"{COUNTED} --like nothing", "unknown preset 'nothing'"),
        (f"{SMALL} --objectives flops", "a search weighs quality against something else"),
        (f"{SMALL} --objectives quality,speed", "unknown objective 'speed'"),
        (f"{SMALL} --measure-on worker", "needs a --storage that the worker can reach"),
        (f"{SMALL} --tgt-len 0", "tgt_len must be"),
        ("search pareto pockets", "unknown space 'pockets'; did you mean 'pocket'?"),
        ("search pareto none.toml", "cannot read 'none.toml'"),
        ("search pareto pocket-mixed", "here the mix varies"),
        ("search join --storage sqlite:none.db", "no such file"),
        ("measure worker", "add --storage"),
        ("measure pocket --storage sqlite:x", "--storage belongs to a worker"),
        ("pick nowhere", "no finished search for sizes at 'nowhere'"),
    ],
)
def test_bad_input_is_one_line(
    command: str, words: str, capsys: pytest.CaptureFixture[str], place: Path
) -> None:
    assert words in complaint(command, capsys)


def test_a_search_does_not_mix_with_others(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "run").mkdir()
    (place / "run" / "thesis.txt").write_text("mine")
    assert "not empty and holds no search for sizes" in complaint(COUNTED, capsys)
    assert [p.name for p in (place / "run").iterdir()] == ["thesis.txt"]
    other = COUNTED.replace("--run run", "--run other")
    assert say(other) == 0
    assert "seed" in complaint(f"{other} --seed 9", capsys)
    assert "choose another" in complaint(f"{other} --sampler random", capsys)


def test_a_pick_that_cannot_be_made_says_what_is_nearest(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert say(COUNTED) == 0
    words = complaint("pick run --limit flops=10", capsys)
    assert "no model of the front is within these limits; the nearest, g1" in words
    assert say("pick run " + words.partition("try ")[2]) == 0
    assert "no model 'g99' in the front" in complaint("pick run --name g99", capsys)
    assert "no folder" in complaint("pick run --output no/such/x.toml", capsys)
    assert "knows no latency" in complaint("pick run --limit latency=1s", capsys)
    (place / "run" / "pareto.json").write_text('{"format": "else"}')
    assert "says 'else', not ours" in complaint("pick run", capsys)


@pytest.mark.parametrize("name", ["../../evil", "/tmp/evil", "g1\x1b[31m", "", "g1/x", "g0"])
def test_names_that_are_not_ours_write_nothing(
    name: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert say(COUNTED) == 0
    file = place / "run" / "pareto.json"
    found = json.loads(file.read_text())
    found["front"][-1]["name"] = name
    file.write_text(json.dumps(found))
    before = set(place.parent.rglob("*.toml"))
    words = complaint("pick run", capsys)
    assert "ours are called g1, g2, …" in words
    assert words.isprintable()
    assert set(place.parent.rglob("*.toml")) == before


def test_a_storage_in_a_missing_folder_leaves_nothing_behind(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "there is no folder 'no/such'" in complaint(
        f"{COUNTED} --storage sqlite:no/such/x.db", capsys
    )
    assert not (place / "no").exists()


def test_a_search_of_version_0_1_goes_on(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its study and its result are there; nothing is looked at again."""
    (place / "run").mkdir()
    (place / "run" / "study.jsonl").write_bytes((FILES / "study-0.1.jsonl").read_bytes())
    old = json.loads((FILES / "pareto-counted-0.1.json").read_text())
    (place / "run" / "pareto.json").write_text(json.dumps(old))
    assert answer("pick run --name g2", capsys)["pattern"] == old["front"][1]["pattern"]
    again = answer(COUNTED, capsys)
    assert [row["digest"] for row in again["front"]] == [row["digest"] for row in old["front"]]
    assert again["hypervolume"] == old["hypervolume"]
    assert again.keys() == old.keys() - {"visited", "format"} | {"run"}
    longer = answer(f"{COUNTED.replace('iterations 3', 'iterations 4')}", capsys)
    assert longer["evaluated"] == 34


def test_a_device_elsewhere_measures_for_a_search(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = answer(SMALL, capsys)
    monkeypatch.setattr("parformer.search.sizes.remote.PAUSE", 0.05)
    storage, late = "--storage sqlite:jobs.db", Event()
    now = time.monotonic
    clock = SimpleNamespace(monotonic=lambda: now() + 1000 * late.is_set(), sleep=time.sleep)
    monkeypatch.setattr("parformer.search.sizes.remote.time", clock)
    worker = Thread(target=say, args=(f"measure worker {storage} --idle 500s",), daemon=True)
    worker.start()
    there = answer(
        f"{SMALL.replace('--run run', '--run far')} {storage} --measure-on worker", capsys
    )
    late.set()
    worker.join(30)
    assert not worker.is_alive()
    assert [row["pattern"] for row in there["front"]] == [row["pattern"] for row in here["front"]]


def test_joining_a_finished_search_changes_nothing(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    storage = "--storage sqlite:s.db"
    first = answer(f"{COUNTED} {storage}", capsys)
    joined = answer(f"search join {storage}", capsys)
    assert joined == {"study": "pareto", "finished": 26, "slots": 26}
    assert answer(f"{COUNTED} {storage}", capsys)["front"] == first["front"]
