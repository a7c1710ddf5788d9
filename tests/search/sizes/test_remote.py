"""Does a device measure what a search elsewhere asks for, even if a worker dies?"""

from __future__ import annotations

from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from parformer.config import preset
from parformer.errors import ConfigError
from parformer.measure.readings import Readings, Step
from parformer.search.sizes.remote import RemoteMeter, serve
from tests.search.sizes.test_job import FakeMeter, outcome, search, wish

STEP = Step(tgt_len=4, mem_len=0, rounds=8)
MODEL = preset("pocket", pattern="sf", d_model=16, d_inner=16)


@pytest.fixture
def storage(tmp_path: Path) -> str:
    return f"sqlite:{tmp_path / 'jobs.db'}"


class Serving:
    """A worker in a thread, for as long as the test needs it."""

    def __init__(self, storage: str, meter: Any, name: str = "pareto") -> None:
        self.done = False
        self.thread = Thread(
            target=serve,
            args=(storage, name),
            kwargs={"meter": meter, "stop": lambda: self.done},
            daemon=True,
        )

    def __enter__(self) -> Serving:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.done = True
        self.thread.join(20)
        assert not self.thread.is_alive()


def test_readings_come_back_as_they_were_taken(storage: str) -> None:
    fake = FakeMeter()
    with Serving(storage, fake):
        readings = RemoteMeter(storage, "pareto")({"a": MODEL, "b": MODEL}, STEP)
    assert readings.readings == FakeMeter()({"a": MODEL, "b": MODEL}, STEP).readings
    assert fake.calls == 1
    # what is known is not asked for again: no worker is left to answer
    assert RemoteMeter(storage, "pareto")({"a": MODEL, "b": MODEL}, STEP) == readings


def test_a_search_measured_elsewhere_finds_the_same(tmp_path: Path, storage: str) -> None:
    alone = search(tmp_path / "alone")
    with Serving(storage, FakeMeter()):
        meter = RemoteMeter(storage, "pareto")
        device = meter.device(threads=1)
        far = search(tmp_path / "far", wish(), meter=meter, device=device)
    assert outcome(far) == outcome(alone)


def test_a_worker_keeps_to_its_own_study(storage: str) -> None:
    fake = FakeMeter()
    meter = RemoteMeter(storage, "pareto")
    with Serving(storage, fake, "other"), Serving(storage, FakeMeter()):
        meter({"a": MODEL}, STEP)
    assert fake.calls == 0


def test_what_cannot_be_measured_is_told(storage: str) -> None:
    def broken(*_: Any) -> Readings:
        raise ConfigError("no such precision here")

    with (
        Serving(storage, broken),
        pytest.raises(ConfigError, match="could not measure a: no such precision here"),
    ):
        RemoteMeter(storage, "pareto")({"a": MODEL}, STEP)


def test_a_worker_stops_when_nothing_is_to_be_done(storage: str) -> None:
    with Serving(storage, FakeMeter()):
        RemoteMeter(storage, "pareto")({"a": MODEL}, STEP)
    assert serve(storage, "pareto", meter=FakeMeter(), idle=0.1) == 0


def test_a_waiting_search_says_so(storage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    meter = RemoteMeter(storage, "pareto", said.append)
    monkeypatch.setattr("parformer.search.sizes.remote.WAIT", 0.0)
    thread = Thread(target=lambda: meter({"a": MODEL}, STEP), daemon=True)
    thread.start()
    while not said:
        thread.join(0.05)
    with Serving(storage, FakeMeter()):
        thread.join(20)
    assert said == [
        "Waiting for a worker; on the device run: parformer measure worker --storage ADDRESS"
    ]
