"""Does `parformer reproduce` list, compare and refuse, each in its own words?"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from parformer.cli import main
from parformer.cli.screen import Screen
from parformer.events import Watch
from parformer.reproduce.published import read_pages
from tests.reproduce.benches import write_models


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "140")


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["reproduce", *words]) == 0
    return capsys.readouterr().out


def complaint(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["reproduce", *words]) == 2
    caught = capsys.readouterr()
    assert caught.out == ""
    assert caught.err.count("\n") == 1
    return caught.err


def test_the_list_has_every_study(capsys: pytest.CaptureFixture[str]) -> None:
    shown = answer(capsys, "list")
    for name in read_pages():
        assert re.search(rf"^ {name} ", shown, re.MULTILINE), name
    listed = json.loads(answer(capsys, "list", "--json"))
    assert [row["name"] for row in listed] == list(read_pages())
    assert {"title", "work", "minutes", "rows"} <= listed[0].keys()


def test_the_list_answers_without_torch() -> None:
    code = "import sys; from parformer.cli import main; main(['reproduce', 'list'])"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; sys.exit('torch' in sys.modules)"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_table_of_counts_takes_no_folder(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    shown = answer(capsys, "par-table-a1", "srupp-table-5")
    assert "6 rows: 6 exactly." in shown
    assert "differs, as is known" in shown
    assert "the released script" in shown
    assert list(tmp_path.iterdir()) == []


def test_json_has_everything(capsys: pytest.CaptureFixture[str]) -> None:
    whole = json.loads(answer(capsys, "srupp-table-6", "--json"))
    assert whole["command"] == "parformer reproduce srupp-table-6 --json"
    (study,) = whole["studies"]
    row = study["rows"][0]
    assert row["published"]["text"] == "328"
    assert row["ours"] == pytest.approx(328.314, abs=1e-3)
    assert (row["verdict"], row["how"]) == ("within rounding", "exact count")
    assert study["rows"][2]["ours"] is None
    assert whole["report"] is None


def test_a_run_gets_a_page_and_the_results(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    shown = answer(capsys, "lts-table-5", "--run", "here")
    assert "report: here/report.html" in shown
    page = (tmp_path / "here/report.html").read_text()
    assert "Architectures of the Transformer-XL front" in page
    stored = json.loads((tmp_path / "here/reproduced.json").read_text())
    assert stored["studies"][0]["name"] == "lts-table-5"
    assert len(stored["studies"][0]["rows"]) == 37


def test_a_table_of_models_is_read(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    table = write_models(tmp_path / "models.csv")
    shown = answer(capsys, "lts-figure-3", "--models", str(table))
    assert "8 trained models of random_TransXL" in shown


def test_the_papers_scale_prints_commands(capsys: pytest.CaptureFixture[str]) -> None:
    whole = json.loads(answer(capsys, "srupp-table-6", "--scale", "paper", "--run", "r", "--json"))
    commands = [row["command"] for row in whole["studies"][0]["rows"] if row["command"]]
    assert commands == [
        f"torchrun --nproc-per-node 8 -m -- parformer train {name} --run r/{name}"
        for name in ("srupp-base-lm1b", "srupp-large-k5-lm1b")
    ]


def test_bad_input_gets_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "the nearest are par-table-1" in complaint(capsys, "par-tabel-1")
    assert "see 'parformer reproduce list'" in complaint(capsys, "zzzzzz")
    assert "list stands alone" in complaint(capsys, "list", "par-table-1")
    assert "archai" in complaint(capsys, "lts-figure-3")
    assert "no such file" in complaint(capsys, "lts-figure-3", "--models", "none.csv")
    wrong = tmp_path / "wrong.csv"
    wrong.write_text("a,b\n1,2\n3,4\n5,6\n")
    assert "wrong.csv" in complaint(capsys, "lts-figure-3", "--models", str(wrong))
    wrong.write_bytes(b"\x1f\x8b\x00")
    assert "wrong.csv" in complaint(capsys, "lts-figure-3", "--models", str(wrong))
    assert "--seeds must be at least 1" in complaint(capsys, "par-table-a1", "--seeds", "0")
    assert "cannot read the time" in complaint(capsys, "par-table-a1", "--time", "soon")
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert "cannot make" in complaint(capsys, "par-table-a1", "--run", str(blocked / "run"))


def test_the_bar_says_what_is_going_on_through_trainings() -> None:
    screen = Screen(quiet=True, doing="", brief=True)
    watch = Watch(screen)
    watch.preparing("timing updates", 0.5)
    watch.preparing("training par", 0.0)
    watch.start(0, 200)
    (task,) = screen.bar.tasks
    assert (task.description, task.total) == ("training par", 200)
    watch.step(7, 2.0, 1000.0)
    watch.preparing("measuring", 0.25)
    (task,) = screen.bar.tasks
    assert (task.description, task.total, task.completed) == ("measuring", 1.0, 0.25)
