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
from parformer.evaluate.counting import References
from parformer.events import Event, Listener, Notice, Phase, Planned, Step
from parformer.fitting import contest, training
from parformer.fitting.phases import Contestant
from parformer.fitting.rates import MOST_RATES
from parformer.fitting.request import FitRequest
from parformer.fitting.result import FitResult
from parformer.fitting.running import Running
from parformer.fitting.timetable import TITLES
from parformer.recipe import Recipe
from parformer.train.alike import Trained
from parformer.train.plateau import SLOWER
from parformer.train.run import read_run
from tests.fitting.office import (
    FakeMeter,
    counting_reaches,
    lenient,
    small_fit,
    small_request,
    write_text,
)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text(tmp_path_factory.mktemp("text") / "words.txt")


@pytest.fixture(scope="module")
def before_contest(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A fit that was stopped when its finalists had their rates; it goes on in a copy."""
    path = tmp_path_factory.mktemp("fit") / "run"
    with lenient(), pytest.raises(Stopped):
        small_fit(small_request(text, path), watch=StopAt("contest"))
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def whole(
    before_contest: Path, text: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    path = shutil.copytree(before_contest, tmp_path_factory.mktemp("fit") / "run")
    with lenient():
        small_fit(small_request(text, path), command="parformer fit words.txt")
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
    assert found["trials"]["pattern"]
    looks = found["looks"]
    assert looks is None or "".join(looks["tokens"]) in found["samples"][-1]["prompt"]
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
    assert small_fit(small_request(text, whole), meter=meter) == FitResult.load(whole)
    assert small_fit(FitRequest(run=str(whole)), meter=meter) == FitResult.load(whole)
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
    asked = small_request(text, whole)
    fitted = pf.fit(
        text, run=whole, limits=asked.limits, steps=asked.steps, choices="sfi", quiet=True
    )
    found = read(whole)
    assert fitted == pf.fit(asked, quiet=True)
    assert json.loads(json.dumps(fitted.to_dict())) == {
        key: value for key, value in found.items() if key != "format"
    }
    assert str(fitted.verdict).startswith(found["verdict"]["headline"])
    assert str(fitted.model.config.pattern) == fitted.pattern
    assert fitted.report.is_file()
    assert fitted.generate("pay", tokens=4).startswith("pay")


def test_another_question_in_the_same_folder_is_refused(whole: Path, text: Path) -> None:
    before = {p: p.stat().st_mtime_ns for p in whole.rglob("*") if p.is_file()}
    with pytest.raises(ConfigError, match="seed"):
        small_fit(small_request(text, whole, seed=3))
    after = {p: p.stat().st_mtime_ns for p in whole.rglob("*") if p.is_file()}
    assert {k: v for k, v in after.items() if k.name != ".lock"} == {
        k: v for k, v in before.items() if k.name != ".lock"
    }


class StopAt:
    """Presses Ctrl-C when a phase begins, or in the middle of its trainings."""

    def __init__(self, phase: str, updates: int = 0) -> None:
        self.name, self.updates, self.now = phase, updates, ""

    def __call__(self, event: Event) -> None:
        if isinstance(event, Phase):
            self.now = event.name
            if event.name == self.name and not self.updates:
                raise KeyboardInterrupt
        elif isinstance(event, Step) and self.now == self.name and self.updates:
            self.updates -= 1
            if not self.updates:
                raise KeyboardInterrupt


STOPS = [("text", 0), ("size", 0), ("search", 5), ("sizes", 0), ("rates", 2), ("contest", 3),
         ("contest", 1), ("contest", 9), ("winner", 0), ("winner", 5)]  # fmt: skip


def test_stopped_again_and_again_it_ends_as_if_it_never_was(
    whole: Path, text: Path, tmp_path: Path
) -> None:
    path = tmp_path / "run"
    for name, updates in STOPS:
        with lenient(), pytest.raises(Stopped, match="go on with: parformer fit --run") as stop:
            small_fit(small_request(text, path), watch=StopAt(name, updates))
        stopped = FitResult.load(path)
        assert not stopped.finished
        assert ("the best so far is in" in str(stop.value)) == (stopped.chosen is not None)
        assert "best so far" in (path / "report.html").read_text("utf-8").lower()
        if name == "winner":
            # what is handed over before the end is a model already
            assert pf.load(path / "model").config.vocab_size == 256
    with lenient():
        found = small_fit(FitRequest(run=str(path)))
    before = FitResult.load(whole)
    for kept in ("models", "chosen", "limits", "samples", "verdict"):
        assert getattr(found, kept) == getattr(before, kept), kept
    for name in ("model.safetensors", "config.json"):
        assert (path / "model" / name).read_bytes() == (whole / "model" / name).read_bytes()


def test_a_foreign_folder_is_left_alone(text: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    with pytest.raises(FolderError, match="holds no fit"):
        small_fit(small_request(text, tmp_path))
    assert [entry.name for entry in tmp_path.iterdir()] == ["mine.txt"]


def test_another_text_under_the_same_name_is_refused(tmp_path: Path) -> None:
    text, path = write_text(tmp_path / "words.txt"), tmp_path / "run"
    with pytest.raises(Stopped):
        small_fit(small_request(text, path), watch=StopAt("size"))
    write_text(text, words=5000)
    with pytest.raises(CorpusError, match="is not the one that the run"):
        small_fit(FitRequest(run=str(path)))
    assert (path / "fit-notes.json").is_file()


def test_a_text_that_is_too_short_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    text = tmp_path / "words.txt"
    text.write_text("too short")
    with pytest.raises(ParformerError) as error:
        small_fit(small_request(text, tmp_path / "run"))
    assert "\n" not in str(error.value)
    assert [entry.name for entry in tmp_path.iterdir()] == ["words.txt"]


def test_a_short_text_is_searched_like_any_other(tmp_path: Path) -> None:
    text = write_text(tmp_path / "words.txt", words=1600)
    found = small_fit(small_request(text, tmp_path / "run", steps=2))
    assert found.finished
    assert found.trials is not None
    assert {row.name for row in found.models} >= {"baseline", "interleaved", "par"}


def test_limits_that_nothing_keeps_name_what_comes_nearest(text: Path, tmp_path: Path) -> None:
    asked = small_request(text, tmp_path / "run", limits=("parameters=100",))
    seen: list[str] = []

    def listen(event: Event) -> None:
        seen.extend([event.name] if isinstance(event, Phase) else [])

    with pytest.raises(ConfigError) as error:
        small_fit(asked, watch=listen)
    assert seen == ["text", "size"]  # the cheapest models are asked first
    words = str(error.value)
    assert "of parameters where 100 is allowed; try --limit parameters=" in words
    assert "the nearest" in words
    assert not (tmp_path / "run").exists()


def test_where_nothing_was_learned_nobody_is_crowned(text: Path, tmp_path: Path) -> None:
    path = tmp_path / "run"
    # six updates: less than counting pairs gives
    found = small_fit(small_request(text, path, counts=False))
    assert found.verdict.headline == "Nothing was learned in this time."
    assert found.verdict.kind == "nothing learned"
    assert found.chosen is None
    assert all(row.learned is False for row in found.models if not row.dropped)
    assert all(row.against is None for row in found.models)
    known = found.references["valid"]
    assert known.ngram < known.bigram < known.unigram < known.uniform
    page = (path / "report.html").read_text("utf-8")
    assert "<h1>Nothing was learned in this time.</h1>" in page
    assert "bigram" in page
    assert pf.load(path / "model").config.vocab_size == 256  # to be looked at all the same


def test_a_model_that_loses_to_counting_is_told_so_first(whole: Path, tmp_path: Path) -> None:
    first = FitResult.load(whole)
    loss = first.final.loss("test") if first.final else None
    assert loss is not None
    path = shutil.copytree(whole, tmp_path / "copy")

    def concluded_after(references: dict[str, References]) -> FitResult:
        """The same fit, had counting reached this."""
        notes = json.loads((path / "fit-notes.json").read_text("utf-8"))
        text = notes["phases"]["text"]["result"]
        assert set(text["references"]) == set(references)
        text["references"] = {split: one.to_dict() for split, one in references.items()}
        (path / "fit-notes.json").write_text(json.dumps(notes))
        (path / "fit.json").unlink()
        return small_fit(FitRequest(run=str(path)))

    counted = counting_reaches(2 * loss)
    first_sentence = concluded_after(counted).verdict.sentences[0]
    assert re.match(r"It is 50\.0% ahead of plain counting: ", first_sentence)
    better = {split: replace(one, ngram=loss / 2) for split, one in counted.items()}
    headline = concluded_after(better).verdict.headline
    assert re.match(r"Counting is 100\.0% ahead of it: ", headline)
    assert "a counted 3-gram" in headline


def heard(said: list[str]) -> Listener:
    def listen(event: Event) -> None:
        said.extend([event.text] if isinstance(event, Notice) else [])

    return listen


def test_a_baseline_that_failed_is_tried_slower_and_never_compared_with(
    before_contest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    whole = contest.to_the_end

    def failing(fit: Any, name: str, steps: int, end: int) -> Contestant:
        return replace(whole(fit, name, steps, end), learned=name != "baseline")

    monkeypatch.setattr(contest, "to_the_end", failing)
    monkeypatch.setattr(contest, "SHORTEST", 6)
    path = shutil.copytree(before_contest, tmp_path / "run")
    found = small_fit(FitRequest(run=str(path)), watch=heard(said))
    assert sum("baseline learned too little" in line for line in said) == 1
    base = found.models[0]
    assert base.learned is False
    assert all(row.against is None for row in found.models)
    assert found.verdict.kind == "no baseline"
    assert "no baseline to compare with" in found.verdict.headline
    assert "better than the interleaved" not in str(found.verdict)
    slower = read_run(path / "trainings" / "baseline").train.learning_rate
    assert base.rate is not None
    assert slower == pytest.approx(base.rate / training.SLOWER)


@pytest.mark.parametrize(
    ("curve", "why"),
    [
        ({1: 2.0, 2: 2.5}, "got worse"),
        ({1: 9.0, 2: 9.0}, "learned nothing"),
        ({}, "diverged"),
    ],
)
def test_a_finalist_whose_loss_rises_begins_again_slower(
    curve: dict[int, float],
    why: str,
    before_contest: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever rate it began with, the model of the contest is that of a lower one."""
    said: list[str] = []
    first = {"par": True}
    whole = Running.train

    def rising(run: Running, recipe: Recipe, name: str, **more: Any) -> Trained | None:
        trained = whole(run, recipe, name, **more)
        if first.pop(name, False):
            return replace(trained, valid=tuple(curve.items())) if trained and curve else None
        return trained

    monkeypatch.setattr(Running, "train", rising)
    monkeypatch.setattr(contest, "BEGUN", 1)
    monkeypatch.setattr(Running, "stuck", lambda run, loss: loss == 9.0)
    path = shutil.copytree(before_contest, tmp_path / "run")
    found = small_fit(FitRequest(run=str(path)), watch=heard(said))
    rate = next(row.rate for row in found.models if row.name == "par")
    assert rate is not None
    assert f"par {why} at {rate:g}: once more at {rate / SLOWER:g}" in said
    assert sum("once more" in line for line in said) == 1
    stored = read_run(path / "trainings" / "par").train.learning_rate
    assert stored == pytest.approx(rate / SLOWER)


def test_a_stop_in_the_contest_leaves_the_best_so_far_and_a_page(
    text: Path, tmp_path: Path
) -> None:
    """The baseline has come to its end by then, and nothing else has."""
    path = tmp_path / "run"

    def stop(event: Event) -> None:
        done = [p for p in (path / "trainings").glob("*/result.json") if "rate" not in str(p)]
        if done and isinstance(event, Step):
            raise KeyboardInterrupt

    with lenient(), pytest.raises(Stopped, match="the best so far is in"):
        small_fit(small_request(text, path, limits=("latency=9x",)), watch=stop)
    found = FitResult.load(path)
    assert found.verdict.kind == "stopped"
    assert found.chosen == "baseline"
    assert "Stopped before the models could be compared" in (path / "report.html").read_text()
    assert pf.load(path / "model").config.vocab_size == 256


def test_a_truncated_result_or_model_is_made_again(whole: Path, tmp_path: Path) -> None:
    path = tmp_path / "copy"
    shutil.copytree(whole, path)
    weights = path / "model" / "model.safetensors"
    good = weights.read_bytes()
    (path / "fit.json").write_bytes((path / "fit.json").read_bytes()[:1000])
    with lenient():
        again = small_fit(FitRequest(run=str(path)))
    assert again.models == FitResult.load(whole).models
    weights.write_bytes(good[:100])
    with lenient():
        small_fit(FitRequest(run=str(path)))
    assert weights.read_bytes() == good


def test_a_finished_fit_needs_no_journal_and_a_report_no_search(
    whole: Path, tmp_path: Path
) -> None:
    path = tmp_path / "copy"
    shutil.copytree(whole, path)
    (path / "search" / "trials.json").write_text('{"patt')
    (path / "fit.json").unlink()
    with lenient():
        again = small_fit(FitRequest(run=str(path)))
    assert again.trials is None
    assert again.models == FitResult.load(whole).models
    (path / "fit-notes.json").write_text('{"form')
    assert small_fit(FitRequest(run=str(path))) == again


def test_a_model_that_is_broken_everywhere_is_no_good_news(whole: Path, tmp_path: Path) -> None:
    path = tmp_path / "copy"
    shutil.copytree(whole, path)
    for weights in path.rglob("model.safetensors"):
        weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(FolderError, match=r"model\.safetensors"):
        small_fit(FitRequest(run=str(path)))


def test_a_missing_text_is_refused_before_any_plan(tmp_path: Path) -> None:
    seen: list[Event] = []
    request = FitRequest(corpus=str(tmp_path / "none.txt"), run=str(tmp_path / "run"))
    with pytest.raises(CorpusError, match=r"none\.txt"):
        small_fit(request, watch=seen.append)
    assert not [event for event in seen if isinstance(event, Planned | Phase)]
    assert not (tmp_path / "run").exists()


def test_what_a_request_holds_is_not_given_twice(text: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="or its fields by name and nothing else"):
        pf.fit(small_request(text, tmp_path / "run"), seed=3)
    with pytest.raises(ConfigError, match="unknown field 'sede'"):
        pf.fit(text, sede=3)
