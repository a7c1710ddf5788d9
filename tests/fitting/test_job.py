"""Does a fit come to its end, from any moment, and does what it hands over hold?"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import parformer as pf
from parformer.cli import main
from parformer.costs import cost
from parformer.errors import ConfigError, CorpusError, FolderError, ParformerError, Stopped
from parformer.events import Watch
from parformer.fitting import contest, designing, desk
from parformer.fitting.timetable import TITLES
from parformer.fitting.trainings import MOST_RATES
from parformer.train.run import read_run
from tests.fitting.office import (
    FakeMeter,
    counting_reaches,
    lenient,
    small_ask,
    small_fit,
    write_text,
)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text(tmp_path_factory.mktemp("text") / "words.txt")


@pytest.fixture(scope="module")
def whole(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("fit") / "run"
    with lenient():
        small_fit(small_ask(text), path, command="parformer fit words.txt")
    yield path
    shutil.rmtree(path)


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((path / "fit.json").read_text("utf-8"))
    return found


def test_everything_is_told(whole: Path) -> None:
    found = read(whole)
    assert found["finished"]
    assert [phase["name"] for phase in found["phases"]] == list(TITLES)
    names = [row["name"] for row in found["models"]]
    assert names[0] == "baseline"
    assert {"par"} <= set(names)
    assert found["chosen"] in names
    base = found["models"][0]
    assert found["limits"] == {"flops": pytest.approx(0.9 * base["flops"])}
    assert base["broken"] == {"flops": base["flops"]}
    for row in found["models"][1:]:
        assert row["eligible"] == (row["flops"] <= found["limits"]["flops"])
        assert 2 <= len(row["rates"]) <= MOST_RATES
        assert row["rate"] in [rate["rate"] for rate in row["rates"]]
        assert row["dropped"] or row["against"]["segments"] > 1
    chosen = next(row for row in found["models"] if row["name"] == found["chosen"])
    assert chosen["eligible"]
    assert [sample["name"] for sample in found["samples"]] == ["baseline", "final"]
    assert found["search"]["pattern"]
    assert set(found["pareto"]["visited"]) >= {"interleaved", "par"}
    assert found["verdict"]["headline"]
    assert "words" in found["step"]
    page = (whole / "report.html").read_text("utf-8")
    assert found["verdict"]["headline"] in page


def test_the_best_that_fits_is_chosen(whole: Path) -> None:
    found = read(whole)
    losses = {
        row["name"]: row["valid"]["loss"]
        for row in found["models"]
        if row["eligible"] and row["valid"]
    }
    assert losses[found["chosen"]] <= min(losses.values()) * 1.0025


def test_the_model_loads_and_runs(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = read(whole)
    model = pf.load(whole / "model")
    chosen = next(row for row in found["models"] if row["name"] == found["chosen"])
    assert str(model.config.pattern) == chosen["pattern"]
    assert cost(model.config).parameters == chosen["parameters"]
    assert main(["generate", str(whole), "--prompt", "pay", "--tokens", "5"]) == 0
    assert main(["evaluate", str(whole), "--split", "valid", "--json"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("pay")
    assert main(["cost", str(whole / "config.toml")]) == 0


def test_the_same_call_tells_the_same_again(whole: Path, text: Path) -> None:
    meter = FakeMeter()
    assert small_fit(small_ask(text), whole, meter=meter) == read(whole)
    assert small_fit(None, whole, meter=meter) == read(whole)
    assert meter.asked == []


def test_the_command_line_tells_it_too(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = read(whole)
    assert main(["fit", "--run", str(whole)]) == 0
    out = capsys.readouterr().out
    assert found["verdict"]["headline"] in " ".join(out.split())
    assert str(whole / "report.html") in out.replace("\n", "")
    assert found["samples"][-1]["prompt"] in out
    assert main(["fit", "--run", str(whole), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["chosen"] == found["chosen"]
    assert told["run"] == str(whole)


def test_a_notebook_has_the_same(whole: Path, text: Path) -> None:
    asked = small_ask(text)
    fitted = pf.fit(
        text, run=whole, limits=asked.limits, steps=asked.steps, choices="sfi", quiet=True
    )
    found = read(whole)
    assert fitted.found == found
    assert fitted.verdict.startswith(found["verdict"]["headline"])
    assert str(fitted.model.config.pattern) == fitted.pattern
    assert fitted.report.is_file()
    assert fitted.generate("pay", tokens=4).startswith("pay")


def test_another_question_in_the_same_folder_is_refused(whole: Path, text: Path) -> None:
    before = {p: p.stat().st_mtime_ns for p in whole.rglob("*") if p.is_file()}
    with pytest.raises(ConfigError, match="seed"):
        small_fit(small_ask(text, seed=3), whole)
    after = {p: p.stat().st_mtime_ns for p in whole.rglob("*") if p.is_file()}
    assert {k: v for k, v in after.items() if k.name != ".lock"} == {
        k: v for k, v in before.items() if k.name != ".lock"
    }


class StopAt(Watch):
    """Presses Ctrl-C when a phase begins, or in the middle of its trainings."""

    def __init__(self, phase: str, updates: int = 0) -> None:
        super().__init__()
        self.name, self.updates, self.now = phase, updates, ""

    def phase(self, phase: Any, number: int, of: int, left: float) -> None:
        self.now = phase.name
        if phase.name == self.name and not self.updates:
            raise KeyboardInterrupt

    def step(self, step: int, loss: float, tokens_per_second: float) -> None:
        if self.now == self.name and self.updates:
            self.updates -= 1
            if not self.updates:
                raise KeyboardInterrupt


STOPS = [("text", 0), ("size", 0), ("search", 5), ("sizes", 0), ("rates", 2), ("contest", 3),
         ("contest", 1), ("winner", 0), ("winner", 5)]  # fmt: skip


def test_stopped_again_and_again_it_ends_as_if_it_never_was(
    whole: Path, text: Path, tmp_path: Path
) -> None:
    path = tmp_path / "run"
    for name, updates in STOPS:
        with lenient(), pytest.raises(Stopped, match="go on with: parformer fit --run") as stop:
            small_fit(small_ask(text), path, watch=StopAt(name, updates))
        assert not read(path)["finished"]
        assert ("the best so far is in" in str(stop.value)) == (name == "winner")
        if name == "winner":
            # what is handed over before the end is a model already
            assert pf.load(path / "model").config.vocab_size == 256
            assert "best so far" in (path / "report.html").read_text("utf-8").lower()
    with lenient():
        found = small_fit(None, path)
    before = read(whole)
    for kept in ("models", "chosen", "limits", "samples", "verdict"):
        assert found[kept] == before[kept], kept
    for name in ("model.safetensors", "config.json"):
        assert (path / "model" / name).read_bytes() == (whole / "model" / name).read_bytes()


def test_a_foreign_folder_is_left_alone(text: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    with pytest.raises(FolderError, match="holds no fit"):
        small_fit(small_ask(text), tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["mine.txt"]


def test_another_text_under_the_same_name_is_refused(tmp_path: Path) -> None:
    text, path = write_text(tmp_path / "words.txt"), tmp_path / "run"
    with pytest.raises(Stopped):
        small_fit(small_ask(text), path, watch=StopAt("size"))
    write_text(text, words=5000)
    with pytest.raises(CorpusError, match="is not the one that the run"):
        small_fit(None, path)
    assert (path / "fit-notes.json").is_file()


def test_a_text_that_is_too_short_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    text = tmp_path / "words.txt"
    text.write_text("too short")
    with pytest.raises(ParformerError) as error:
        small_fit(small_ask(text), tmp_path / "run")
    assert "\n" not in str(error.value)
    assert [entry.name for entry in tmp_path.iterdir()] == ["words.txt"]


def test_a_text_too_short_for_a_search_is_fitted_by_rule(tmp_path: Path) -> None:
    text = write_text(tmp_path / "words.txt", words=1600)
    found = small_fit(small_ask(text, steps=2), tmp_path / "run")
    assert found["finished"]
    assert found["search"] is None
    assert [row["name"] for row in found["models"]] == ["baseline", "interleaved", "par"]


def test_limits_that_nothing_keeps_name_what_comes_nearest(text: Path, tmp_path: Path) -> None:
    ask = small_ask(text, limits=("parameters=100",))
    with pytest.raises(ConfigError) as error:
        small_fit(ask, tmp_path / "run")
    words = str(error.value)
    assert "of parameters where 100 is allowed; try --limit parameters=" in words
    assert "the nearest" in words
    assert not (tmp_path / "run").exists()


def test_where_nothing_was_learned_nobody_is_crowned(text: Path, tmp_path: Path) -> None:
    path = tmp_path / "run"
    found = small_fit(small_ask(text), path)  # six updates: less than counting pairs gives
    assert found["verdict"]["headline"] == "Nothing was learned in this time."
    assert found["verdict"]["kind"] == "nothing learned"
    assert found["chosen"] is None
    assert all(row["learned"] is False for row in found["models"] if not row["dropped"])
    assert all(row["against"] is None for row in found["models"])
    known = found["references"]["valid"]
    assert known["ngram"] < known["bigram"] < known["unigram"] < known["uniform"]
    page = (path / "report.html").read_text("utf-8")
    assert "<h1>Nothing was learned in this time.</h1>" in page
    assert "bigram" in page
    assert pf.load(path / "model").config.vocab_size == 256  # to be looked at all the same


def test_a_model_that_loses_to_counting_is_told_so_first(text: Path, tmp_path: Path) -> None:
    first = small_fit(small_ask(text), tmp_path / "first")
    loss = first["final"]["test"][
        "loss"
    ]  # another precision, chosen by the clock, moves it a little
    with lenient(2 * loss):
        ahead = small_fit(small_ask(text), tmp_path / "ahead")
    first_sentence = ahead["verdict"]["sentences"][0]
    assert re.match(r"It is (49|50)\.\d% ahead of plain counting: ", first_sentence)
    known = counting_reaches(2 * loss)["test"]
    with pytest.MonkeyPatch.context() as patch:
        better = {s: replace(known, ngram=loss / 2) for s in ("valid", "test")}
        for module in (desk, designing):
            patch.setattr(module, "count_references", lambda _: better)
        behind = small_fit(small_ask(text), tmp_path / "behind")
    headline = behind["verdict"]["headline"]
    assert re.match(r"Counting is (99|100|101)\.\d% ahead of it: ", headline)
    assert "a counted 3-gram" in headline


def test_a_baseline_that_failed_is_tried_slower_and_never_compared_with(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []

    class Ears(Watch):
        def notice(self, text: str) -> None:
            said.append(text)

    whole = contest.to_the_end

    def failing(desk: Any, name: str, steps: int) -> dict[str, Any]:
        return whole(desk, name, steps) | {"learned": name != "baseline"}

    monkeypatch.setattr(contest, "to_the_end", failing)
    monkeypatch.setattr(contest, "SHORTEST", 6)
    with lenient():
        found = small_fit(small_ask(text), tmp_path / "run", watch=Ears())
    assert sum("baseline learned too little" in line for line in said) == 1
    assert found["models"][0]["learned"] is False
    assert all(row["against"] is None for row in found["models"])
    assert found["verdict"]["kind"] == "no baseline"
    assert "no baseline to compare with" in found["verdict"]["headline"]
    assert "better than the interleaved" not in json.dumps(found["verdict"])
    slower = read_run(tmp_path / "run" / "trainings" / "baseline").train.learning_rate
    tried = found["models"][0]["rate"]
    assert slower == pytest.approx(tried / contest.SLOWER)
