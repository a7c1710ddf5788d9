"""How does one machine measure for another?

Whoever searches posts jobs to the study's storage, each a study of its own with one slot; a
worker on the device takes them, measures, and puts the readings there. A worker that dies in
the middle leaves its job to the next one.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from parformer.config import ModelConfig, preset
from parformer.errors import ConfigError
from parformer.events import Preparing
from parformer.measure.device import Device
from parformer.measure.readings import Meter, Readings, Step
from parformer.records import Record
from parformer.search.sentences import measure_any
from parformer.search.sizes.record import Finished, Outcome
from parformer.search.sizes.study import Study, join_study, open_study, study_names
from parformer.search.sizes.work import work

PREFIX = "measuring"
WAIT = 5.0
"""Seconds without an answer after which a search says what it is waiting for."""
PAUSE = 0.5
"""Seconds between two looks at the storage."""

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Job(Record):
    """Which models to measure, and what of them."""

    configs: Mapping[str, ModelConfig]
    step: Step


class RemoteMeter:
    """Has models measured by whoever runs `parformer measure worker` on the same storage."""

    def __init__(self, storage: str, name: str, say: Say = lambda text: None) -> None:
        self.storage, self.name, self.say = storage, name, say
        self._told = False

    def __call__(
        self, configs: Mapping[str, ModelConfig], step: Step, progress: Preparing | None = None
    ) -> Readings:
        job = Job(configs=configs, step=step).to_dict()
        digest = hashlib.sha256(json.dumps(job, sort_keys=True).encode()).hexdigest()[:16]
        settings = {"objectives": ["latency"], "job": job}
        name = f"{self.name}-{PREFIX}-{digest}"
        with open_study(self.storage, name, settings, slots=1) as study:
            record = self._wait(study)
        if record.values is None:
            raise ConfigError(f"the worker could not measure {', '.join(configs)}: {record.why}")
        if progress is not None:
            progress("measured by a worker", 1.0)
        return Readings.from_dict(record.extra)

    def device(self, threads: int) -> Device:
        """The machine that measures."""
        step = Step(tgt_len=1, mem_len=0, threads=threads, rounds=8)
        readings = self({"greeting": preset("pocket", pattern="i")}, step)
        return readings.receipt.device

    def _wait(self, study: Study) -> Finished:
        began = time.monotonic()
        while not (records := study.records(1)):
            if not self._told and time.monotonic() - began >= WAIT:
                self._told = True
                self.say(
                    "Waiting for a worker; on the device run: parformer measure worker "
                    "--storage ADDRESS"
                )
            time.sleep(PAUSE)
        return records[0]


def serve(
    storage: str,
    name: str = "",
    *,
    meter: Meter = measure_any,
    idle: float = float("inf"),
    say: Say = lambda text: None,
    stop: Callable[[], bool] = lambda: False,
) -> int:
    """Measure what is asked for in a storage; how many jobs were done.

    Ends when nothing was to be done for `idle` seconds.
    """
    done, last = 0, time.monotonic()
    finished: set[str] = set()
    while not stop() and time.monotonic() - last < idle:
        for job in open_jobs(storage, name, finished):
            with join_study(storage, job) as study:
                done += serve_job(study, meter, say, stop)
            finished.add(job)
            last = time.monotonic()
        time.sleep(PAUSE)
    return done


def open_jobs(storage: str, name: str, finished: set[str]) -> list[str]:
    mark = f"-{PREFIX}-"
    return [
        study
        for study in study_names(storage)
        if mark in study and study not in finished and (not name or study.startswith(name + mark))
    ]


def serve_job(study: Study, meter: Meter, say: Say, stop: Callable[[], bool]) -> int:
    """Measure one job, unless somebody else does; 1 if it was done here."""
    done = []

    def evaluate(_: str) -> Outcome:
        job = Job.from_dict(study.settings["job"])
        say(f"measuring {', '.join(job.configs)}")
        try:
            readings = meter(job.configs, job.step)
        except ConfigError as error:
            return None, str(error), {}
        done.append(1)
        return (readings.readings[0].median,), "", readings.to_dict()

    work(study, lambda slot, records: "{}", evaluate, generations=lambda slot: (0, 1), stop=stop)
    return len(done)
