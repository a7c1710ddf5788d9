"""Does a fit by the clock keep its time, also where the machine becomes busy in the middle?"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch

import parformer as pf
from parformer.config import ModelConfig
from parformer.errors import ConfigError, Stopped
from parformer.events import Event, Notice, Phase, Planned, Step
from parformer.fitting import ladder, placements, rates
from parformer.fitting.request import FitRequest
from parformer.fitting.result import FitResult
from parformer.measure import readings as measure
from parformer.measure.readings import Readings
from parformer.train.session import Session
from tests.fitting.office import FakeMeter, lenient, small_fit, write_text

PACE, TOKEN = 0.4, 1e-5
"""Seconds of an update and of a token in validation, while nobody else works here."""
MEASURING = 0.1
"""Seconds that it takes to measure a model, likewise."""


class Machine:
    """A clock that updates move, each by what it takes while others work here too."""

    def __init__(self, busy: Callable[[float, str], float]) -> None:
        self.now, self.phase, self.busy = 0.0, "", busy
        self.said: list[str] = []
        self.planned: dict[str, float] = {}

    def __call__(self) -> float:
        return self.now

    @property
    def load(self) -> float:
        return self.busy(self.now, self.phase)

    def listen(self, event: Event) -> None:
        if isinstance(event, Step):
            self.now += PACE * self.load
        elif isinstance(event, Phase):
            self.phase = event.name
        elif isinstance(event, Notice):
            self.said.append(event.text)
        elif isinstance(event, Planned):
            self.planned = {part.name: part.planned for part in event.parts}


class SlowMeter(FakeMeter):
    """A measurement takes its time, and a busy machine a longer one."""

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self.machine = machine

    def __call__(
        self, configs: Mapping[str, ModelConfig], step: measure.Step, progress: Any = None
    ) -> Readings:
        self.machine.now += MEASURING * len(configs) * self.machine.load
        if progress is not None:
            progress("measuring", 1.0)
        return super().__call__(configs, step)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text(tmp_path_factory.mktemp("text") / "words.txt")


def run(
    machine: Machine, text: Path, path: Path, patch: pytest.MonkeyPatch, **more: Any
) -> FitResult:
    for module in (ladder, rates):
        patch.setattr(module, "step_seconds", lambda *_: PACE * machine.load)
    patch.setattr(rates, "token_seconds", lambda *_: TOKEN * machine.load)
    # what is learned does not matter here, only how long it takes
    patch.setattr(Session, "update", lambda *_: (torch.tensor(5.0), torch.tensor(1.0)))
    asked: dict[str, Any] = {"time": 300.0, "limits": ("flops=0.9x",), "choices": "sfi"}
    request = FitRequest(corpus=str(text), run=str(path), **(asked | more))
    with lenient():
        return small_fit(
            request,
            watch=machine.listen,
            clock=machine,
            meter=SlowMeter(machine),
            cache=path.parent / "cache",
        )


def quiet(now: float, phase: str) -> float:
    return 1.0


def test_nobody_else_means_as_planned(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(quiet)
    found = run(machine, text, tmp_path / "run", monkeypatch)
    assert found.finished
    assert 200 < machine.now <= 300
    assert not any(phase.left_out for phase in found.phases)
    result = json.loads((tmp_path / "run/trainings/winner/result.json").read_text())
    assert result["steps"] > 1.3 * (found.models[0].steps or 0)
    assert all(row.steps == found.models[0].steps for row in found.models if not row.dropped)
    told_beforehand(tmp_path / "run", found)


def told_beforehand(path: Path, found: FitResult) -> None:
    """What the profile said of each finalist stands beside what was measured of it."""
    baseline, *others = found.models
    assert baseline.predicted is None  # it was measured first
    off = []
    for row in others:
        assert row.predicted is not None
        assert row.latency is not None
        off.append(abs(row.predicted / row.latency.seconds - 1))
    assert found.profile is not None
    assert found.profile.finalists_error == pytest.approx(median(off))
    page = (path / "report.html").read_text("utf-8")
    assert f"before they were built, were off by {median(off):.1%} in the median" in page
    # what earlier versions wrote has neither
    values = json.loads((path / "fit.json").read_text("utf-8"))
    del values["profile"]["finalists_error"]
    for one in values["models"]:
        del one["predicted"]
    old = FitResult.from_dict(values)
    assert old.profile is not None
    assert old.profile.finalists_error is None
    assert {row.predicted for row in old.models} == {None}


@pytest.mark.parametrize(
    "busy",
    [
        lambda now, phase: 6.0 if phase == "contest" else 1.0,
        lambda now, phase: 6.0 if now > 60 else 1.0,
        lambda now, phase: 8.0 if phase == "winner" else 1.0,
        lambda now, phase: 12.0 if now > 40 else 1.0,
        lambda now, phase: 25.0 if now > 100 else 1.0,
        lambda now, phase: 40.0,
    ],
    ids=["in the contest", "after a minute", "in the end", "early", "much", "from the start"],
)
def test_a_busy_machine_costs_models_and_updates_but_never_the_result(
    busy: Callable[[float, str], float],
    text: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine, path = Machine(busy), tmp_path / "run"
    found = run(machine, text, path, monkeypatch)
    assert machine.now <= 360, machine.said
    assert found.finished
    assert pf.load(path / "model").config.vocab_size == 256
    assert found.verdict.kind != "stopped"
    compared = [row for row in found.models if row.against]
    assert all(row.steps == found.models[0].steps for row in compared)
    for row in found.models:
        if row.dropped and not row.dropped.step:
            assert any(line.startswith(f"{row.name} does not take part") for line in machine.said)
    page = (path / "report.html").read_text("utf-8")
    assert found.verdict.headline in page


def test_a_machine_that_was_busy_while_it_was_timed_gets_its_updates_all_the_same(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(lambda now, phase: 8.0 if phase in ("size", "sizes", "rates") else 1.0)
    found = run(machine, text, tmp_path / "run", monkeypatch)
    assert any(line.startswith("Updates are quicker than was timed") for line in machine.said)
    assert (found.models[0].steps or 0) > 60
    assert machine.now <= 310


def test_the_same_run_is_not_planned_anew_when_it_goes_on(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine, path = Machine(lambda now, phase: 12.0 if now > 40 else 1.0), tmp_path / "run"
    first = run(machine, text, path, monkeypatch)
    (path / "fit.json").unlink()
    again = run(Machine(quiet), text, path, monkeypatch)
    assert again.models == first.models
    assert again.chosen == first.chosen


def test_a_search_that_takes_too_long_is_given_up_and_said(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine, path = Machine(quiet), tmp_path / "run"

    def endless(recipe: Any, folder: Path, *, watch: Any, **_: Any) -> None:
        for step in range(10**6):
            watch.step(step, 1.0, 1.0)
        raise AssertionError("nobody stopped it")

    monkeypatch.setattr(placements, "search_by", endless)
    found = run(machine, text, path, monkeypatch, time=900.0)
    assert machine.now <= 1000
    left_out = {phase.name: phase.left_out for phase in found.phases}
    assert left_out["search"].startswith("left out")
    assert any("search which blocks belong where" in line for line in machine.said)
    assert "left out" in (path / "report.html").read_text("utf-8")


def test_a_search_that_cannot_be_made_costs_nothing_but_itself(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise ConfigError("2 updates are too few for a search")

    monkeypatch.setattr(placements, "search_by", refused)
    found = run(Machine(quiet), text, tmp_path / "run", monkeypatch, time=900.0)
    assert found.finished
    assert "2 updates" in {phase.name: phase.left_out for phase in found.phases}["search"]


@pytest.mark.parametrize("before", [3.0, 0.8], ids=["quicker", "slower"])
def test_the_winner_ends_when_its_own_pace_says_so(
    before: float, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(now: float, phase: str) -> float:
        return 1.0 if phase == "winner" else before

    machine, path = Machine(busy), tmp_path / "run"
    run(machine, text, path, monkeypatch, time=600.0)
    (said,) = [line for line in machine.said if line.startswith("There is time for")]
    wanted, planned = (int(n.replace(",", "")) for n in re.findall(r"[\d,]*\d", said))
    assert (wanted > planned) == (before > 1)
    winner = json.loads((path / "trainings/winner/result.json").read_text())
    assert winner["steps"] == wanted
    report = machine.planned["report"]
    assert 600 - 22 - 1.5 * report < machine.now <= 600, machine.said


def test_a_winner_that_was_stopped_keeps_its_new_end(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stopping(Machine):
        def listen(self, event: Event) -> None:
            super().listen(event)
            if isinstance(event, Step) and self.said and self.said[-1].startswith("There is time"):
                raise KeyboardInterrupt

    path = tmp_path / "run"
    machine = Stopping(lambda now, phase: 1.0 if phase == "winner" else 3.0)
    with pytest.raises(Stopped):
        run(machine, text, path, monkeypatch, time=600.0)
    said = machine.said[-1]
    wanted = int(re.findall(r"[\d,]*\d", said)[0].replace(",", ""))
    machine = Machine(quiet)
    run(machine, text, path, monkeypatch, time=600.0)
    assert said in machine.said
    winner = json.loads((path / "trainings/winner/result.json").read_text())
    assert winner["steps"] == wanted
