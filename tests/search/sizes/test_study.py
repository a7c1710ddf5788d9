"""Are the records of a study the same for any number of workers, killed at any moment?

The workers of these tests are processes: a helper forks for each, so that they start quickly
and may be killed anywhere.
"""

from __future__ import annotations

import atexit
import contextlib
import gzip
import importlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from random import Random
from threading import Thread
from typing import Any

import pytest

from parformer.errors import ConfigError, FolderError, MissingExtra, ParformerError
from parformer.search.sizes import storage as storage_module
from parformer.search.sizes import study as study_module
from parformer.search.sizes.record import Finished, Outcome
from parformer.search.sizes.storage import read_address
from parformer.search.sizes.study import Claim, Study, join_study, open_study
from parformer.search.sizes.work import TRIES, evenly, work

ROOT = Path(__file__).parents[3]
SETTINGS = {"objectives": ["loss", "cost"], "seed": 3, "space": {"depth": [1, 2], "wide": True}}
GENERATION, SLOTS = 3, 8
KINDS = ("memory", "sqlite")


# A small search


def propose(slot: int, records: list[Finished]) -> str:
    """A child of one of the best so far; another history gives other children."""
    rng = Random(f"3 {slot}")
    best = sorted((r.values, r.genome) for r in records if r.values is not None)[:3]
    genes = json.loads(rng.choice(best)[1]) if best else [rng.randrange(50) for _ in range(3)]
    genes[rng.randrange(3)] += rng.randrange(-5, 6)
    return json.dumps(genes, separators=(",", ":"))


def evaluate(genome: str) -> Outcome:
    genes = json.loads(genome)
    if sum(genes) % 5 == 0:
        return None, "a sum of fives", {}
    return (sum((g - 7) ** 2 for g in genes) / 3, 1 / (1 + abs(genes[0]))), "", {"genes": genes[0]}


@cache
def expected(slots: int = SLOTS, generation: int = GENERATION) -> tuple[Finished, ...]:
    """What a study must come to, worked out without one."""
    records: list[Finished] = []
    for first in range(0, slots, generation):
        earlier = list(records)
        for slot in range(first, min(first + generation, slots)):
            genome = propose(slot, earlier)
            values, why, extra = evaluate(genome)
            numbers = None if values is None else tuple(values)
            records.append(Finished(slot, genome, numbers, why, dict(extra)))
    return tuple(records)


def place(kind: str, folder: Path) -> str:
    return kind if kind == "memory" else f"{kind}:{folder / f'study.{kind}'}"


def opened(storage: str, slots: int = SLOTS, **changes: Any) -> Study:
    return open_study(storage, "it", {**SETTINGS, **changes}, slots=slots)


def finish(study: Study, **options: Any) -> list[Finished]:
    """Work on a study to its end; the records that this brought in."""
    brought: list[Finished] = []
    work(study, propose, evaluate, generations=GENERATION, on_record=brought.append, **options)
    return brought


# Workers that may be killed


class Crew:
    """The helper that forks, seen from a test."""

    def __init__(self) -> None:
        environment = os.environ | {
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(filter(None, (*sys.path, str(ROOT)))),
        }
        environment.pop("PARFORMER_FAILPOINT", None)
        command = [sys.executable, "-W", "error", "-m", "tests.search.sizes.test_study"]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, env=environment, cwd=ROOT, text=True
        )

    def run(self, *jobs: dict[str, Any], patience: float = 60) -> list[int]:
        """Several workers at once; their exit statuses, or minus the signal."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"jobs": jobs, "patience": patience}) + "\n")
        self.process.stdin.flush()
        statuses: list[int] = json.loads(self.process.stdout.readline())
        return statuses

    def end(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()


@cache
def shared_crew() -> Crew:
    crew = Crew()
    atexit.register(crew.end)
    return crew


@pytest.fixture
def crew() -> Crew:
    return shared_crew()


def job(storage: str, diary: Path, **options: Any) -> dict[str, Any]:
    """One worker: it writes down what it evaluates, and what it was told is safe."""
    return {"storage": storage, "diary": str(diary), "slots": SLOTS, **options}


def labour(wish: dict[str, Any]) -> None:
    """A worker's whole life."""
    diary = os.open(wish["diary"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    brought: list[Finished] = []

    def note(kind: str, what: object) -> None:
        os.write(diary, f"{kind} {what}\n".encode())

    def slow_evaluate(genome: str) -> Outcome:
        note("evaluate", genome)
        time.sleep(wish.get("seconds", 0.0))
        return evaluate(genome)

    def on_record(record: Finished) -> None:
        note("safe", record.slot)
        brought.append(record)

    with joined(wish) if wish.get("join") else opened_as(wish) as study:
        while wish.get("watch"):
            os.write(diary, f"{study.finished()}\n".encode())
            if study.finished() == study.slots:
                return
            time.sleep(0.05)
        work(
            study,
            propose,
            slow_evaluate,
            generations=wish.get("generation", GENERATION),
            stop=lambda: len(brought) >= wish.get("limit", 10**6),
            on_record=on_record,
        )


def opened_as(wish: dict[str, Any]) -> Study:
    name, heartbeat = wish.get("name", "it"), wish.get("heartbeat", 60)
    return open_study(wish["storage"], name, SETTINGS, slots=wish["slots"], heartbeat=heartbeat)


def joined(wish: dict[str, Any]) -> Study:
    """A worker that waits for its study to be made."""
    while True:
        with contextlib.suppress(ConfigError):
            return join_study(wish["storage"], wish.get("name", "it"))
        time.sleep(0.05)


def serve() -> None:
    """The helper's own part."""
    with (
        tempfile.TemporaryDirectory() as name,  # what is loaded late is loaded now
        opened(f"sqlite:{name}/study.db", slots=1) as study,
    ):
        finish(study)
    for line in sys.stdin:
        wish = json.loads(line)
        children = [fork(one) for one in wish["jobs"]]
        print(json.dumps(wait_for(children, wish["patience"])), flush=True)


def fork(wish: dict[str, Any]) -> int:
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        os.environ["PARFORMER_FAILPOINT"] = wish.get("failpoint", "")
        # the same module again: whoever imported its function sees the new wish
        importlib.reload(importlib.import_module("parformer.store.faults"))
        os.dup2(os.open(os.devnull, os.O_RDWR), 0)
        labour(wish)
        status = 0
    except BaseException:
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(status)


def wait_for(children: Sequence[int], patience: float) -> list[int]:
    deadline = time.monotonic() + patience
    results: dict[int, int] = {}
    while len(results) < len(children):
        for child in set(children) - set(results):
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                results[child] = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > deadline:
                os.kill(child, signal.SIGKILL)
        time.sleep(0.002)
    return [results[child] for child in children]


def diary_of(path: Path) -> tuple[list[str], list[int]]:
    """The genomes that were evaluated, and the slots that were said to be safe."""
    rows = [line.split(" ", 1) for line in path.read_text("utf-8").splitlines()]
    return [w for k, w in rows if k == "evaluate"], [int(w) for k, w in rows if k == "safe"]


# The contract


@pytest.mark.parametrize("kind", KINDS)
def test_a_study_is_worked_off_and_read_back(kind: str, tmp_path: Path) -> None:
    where = place(kind, tmp_path)
    with opened(where) as study:
        assert study.settings == SETTINGS
        assert (study.finished(), study.records(SLOTS)) == (0, [])
        brought = finish(study)
        assert brought == study.records(SLOTS) == list(expected())
        assert study.records(5) == list(expected())[:5]
        assert study.finished() == SLOTS
        assert study.records(100) == list(expected())
        assert finish(study) == []
    assert any(record.values is None and record.why for record in expected())
    if kind != "memory":
        with join_study(where, "it") as again:
            assert again.records(SLOTS) == list(expected())
            assert (again.settings, again.slots, again.finished()) == (SETTINGS, SLOTS, SLOTS)


@pytest.mark.parametrize("kind", KINDS)
def test_proposals_know_the_earlier_generations_and_nothing_else(kind: str, tmp_path: Path) -> None:
    seen: dict[int, list[int]] = {}

    def look(slot: int, records: list[Finished]) -> str:
        seen[slot] = [record.slot for record in records]
        return str(slot)

    with opened(place(kind, tmp_path), slots=5) as study:
        work(study, look, lambda genome: ((1.0, 2.0), "", {}), generations=2)
    assert seen == {0: [], 1: [], 2: [0, 1], 3: [0, 1], 4: [0, 1, 2, 3]}


@pytest.mark.parametrize("kind", KINDS)
def test_values_come_back_bit_for_bit(kind: str, tmp_path: Path) -> None:
    awkward = [(0.1 + 0.2, 1e-308), (5e-324, 1.7976931348623157e308), (-0.0, 2**53 + 1.0)]
    numbers = iter(awkward)
    extra = {"a": [1, None, "ü\0"], "b": {"c": 0.1}}
    where = place(kind, tmp_path)
    with opened(where, slots=3) as study:
        work(study, lambda s, r: f'"{s}ü"', lambda g: (next(numbers), "", extra), generations=9)
        found = study.records(3)
    if kind != "memory":
        with join_study(where, "it") as again:
            assert again.records(3) == found
    awkward[2] = (0.0, awkward[2][1])  # no minus nought: version 0.1 had none either
    assert [str(record.values) for record in found] == [str(pair) for pair in awkward]
    assert [record.genome for record in found] == ['"0ü"', '"1ü"', '"2ü"']
    assert found[0].extra == extra


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_finite_cannot_be_evaluated(kind: str, tmp_path: Path) -> None:
    numbers = iter([(1.0, float("nan")), (float("inf"), 1.0), (float("-inf"), float("nan"))])
    with opened(place(kind, tmp_path), slots=3) as study:
        work(study, lambda s, r: str(s), lambda g: (next(numbers), "", {}), generations=3)
        assert [(record.values, record.why) for record in study.records(3)] == [
            (None, "objective 2 is nan"),
            (None, "objective 1 is inf"),
            (None, "objective 1 is -inf"),
        ]


def test_extra_is_what_json_keeps() -> None:
    made = Finished.make(0, "1", ([1], "", {"pair": (1, 2), "by": {3: 4}}))
    assert made == Finished(0, "1", (1.0,), "", {"pair": [1, 2], "by": {"3": 4}})


@pytest.mark.parametrize("kind", KINDS[1:])
def test_slots_may_be_added_and_never_taken_away(kind: str, tmp_path: Path) -> None:
    where = place(kind, tmp_path)
    with opened(where, slots=4) as study:
        assert len(finish(study)) == 4
    with opened(where, slots=SLOTS) as study:
        assert [record.slot for record in finish(study)] == [4, 5, 6, 7]
        assert study.records(3) == list(expected())[:3]
    with opened(where, slots=2) as study:
        assert study.slots == SLOTS
        assert finish(study) == []
    with join_study(where, "it") as study:
        assert study.slots == SLOTS


def test_a_worker_sees_slots_that_were_added_meanwhile(tmp_path: Path) -> None:
    where = place("sqlite", tmp_path)
    with opened(where, slots=2) as study:
        finish(study)
        opened(where, slots=3).close()
        assert [record.slot for record in finish(study)] == [2]


@pytest.mark.parametrize("kind", KINDS)
def test_a_stop_keeps_what_is_done(kind: str, tmp_path: Path) -> None:
    where, calls = place(kind, tmp_path), iter(range(100))
    with opened(where) as study:
        brought = finish(study, stop=lambda: next(calls) == 5)
        assert [record.slot for record in brought] == [0, 1, 2, 3, 4]
        assert study.finished() == 5
        if kind == "memory":
            finish(study)
            assert study.records(SLOTS) == list(expected())
            return
    with opened(where) as study:
        assert study.finished() == 5
        assert [record.slot for record in finish(study)] == [5, 6, 7]
        assert study.records(SLOTS) == list(expected())


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_gives_the_slot_back_at_once(kind: str, tmp_path: Path) -> None:
    def fall(genome: str) -> Outcome:
        raise KeyboardInterrupt

    with opened(place(kind, tmp_path)) as study:
        for _ in range(TRIES + 1):
            with pytest.raises(KeyboardInterrupt):
                work(study, propose, fall, generations=GENERATION)
        finish(study)
        assert study.records(SLOTS) == list(expected())


@pytest.mark.parametrize("kind", KINDS)
def test_threads_may_share_a_study(kind: str, tmp_path: Path) -> None:
    def slow(genome: str) -> Outcome:
        time.sleep(0.002)
        return evaluate(genome)

    brought: list[Finished] = []
    with opened(place(kind, tmp_path)) as study:
        options: dict[str, Any] = {"generations": GENERATION, "on_record": brought.append}
        threads = [
            Thread(target=work, args=(study, propose, slow), kwargs=options) for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert study.records(SLOTS) == list(expected())
    assert sorted(record.slot for record in brought) == list(range(SLOTS))


# Many workers, and workers that die


@pytest.mark.parametrize("count", [2, 3])
def test_any_number_of_workers_come_to_the_same(count: int, crew: Crew, tmp_path: Path) -> None:
    where, diary = place("sqlite", tmp_path), tmp_path / "diary"
    assert crew.run(*[job(where, diary, seconds=0.01)] * count) == [0] * count
    with join_study(where, "it") as study:
        assert study.records(SLOTS) == list(expected())
    evaluated, safe = diary_of(diary)
    assert sorted(evaluated) == sorted(record.genome for record in expected())
    assert sorted(safe) == list(range(SLOTS))
    assert not list(tmp_path.glob("*.alive"))


FAILPOINTS = (
    *("study.created:1", "study.during-claim:1", "study.during-claim:5", "study.after-claim:4"),
    *("study.after-propose:5", "study.before-tell:3", "study.during-tell:2", "study.after-tell:8"),
)


@pytest.mark.parametrize("failpoint", FAILPOINTS)
def test_a_killed_worker_costs_one_try_at_most(failpoint: str, crew: Crew, tmp_path: Path) -> None:
    where, diary = place("sqlite", tmp_path), tmp_path / "diary"
    assert crew.run(job(where, diary, failpoint=failpoint)) == [-signal.SIGKILL]
    assert crew.run(job(where, diary), patience=20) == [0]
    check_after_kill(where, diary, failpoint)


@pytest.mark.parametrize("failpoint", ["study.after-propose:2"])
def test_the_others_take_over_what_a_dead_worker_left(
    failpoint: str, crew: Crew, tmp_path: Path
) -> None:
    where, diary = place("sqlite", tmp_path), tmp_path / "diary"
    jobs = job(where, diary, failpoint=failpoint), job(where, diary, seconds=0.01)
    assert crew.run(*jobs, patience=20) == [-signal.SIGKILL, 0]
    check_after_kill(where, diary, failpoint)


def check_after_kill(where: str, diary: Path, failpoint: str) -> None:
    with join_study(where, "it") as study:
        assert study.records(SLOTS) == list(expected())
        rows = slots_of(study)
    evaluated, safe = diary_of(diary)
    # killed with a genome in hand: that one is evaluated again, and none other
    lost = failpoint.startswith(("study.before-tell", "study.during-tell"))
    again = len(evaluated) - len({*evaluated})
    assert again == lost
    assert len(safe) == len({*safe})
    assert [state for _, state, _ in rows] == ["finished"] * SLOTS
    proposed = failpoint.startswith("study.after-propose")
    assert sum(deaths for *_, deaths in rows) == (lost or proposed)


def test_a_genome_that_kills_every_worker_is_given_up(tmp_path: Path) -> None:
    with opened(place("sqlite", tmp_path)) as study:
        for deaths in range(TRIES):
            claim = claimed(study)
            assert (claim.slot, claim.deaths) == (0, deaths)
            study.note(claim, "deadly")
            set_heartbeats(tmp_path, 3600)
        asked: list[str] = []
        work(study, propose, lambda g: asked.append(g) or evaluate(g), generations=GENERATION)
        given_up, *others = study.records(SLOTS)
    why = f"{TRIES} workers died while they evaluated it"
    assert given_up == Finished(0, propose(0, []), None, why, {})
    assert others[:2] == list(expected())[1:3]
    assert given_up.genome not in asked


# A worker that is thought dead


def claimed(study: Study) -> Claim:
    claim = study.claim(evenly(GENERATION))
    assert claim is not None
    return claim


def slots_of(study: Study) -> list[tuple[int, str, int]]:
    """Slot, what is with it, and how many workers died of it."""
    rows = study.database.ask(
        "SELECT slot, worker, record IS NOT NULL, deaths FROM parformer_slots "
        "WHERE study = ? ORDER BY slot",
        study.name,
    )
    return [
        (slot, "finished" if done else "claimed" if worker else "free", deaths)
        for slot, worker, done, deaths in rows
    ]


def mine(text: str, slot: int = 0) -> Finished:
    return Finished(slot, text, (1.0, 2.0), "", {"who": text})


@contextlib.contextmanager
def two_workers(folder: Path) -> Iterator[tuple[Study, Claim, Study, Claim]]:
    """The first was thought dead while it worked on slot 0, which the second has now."""
    where = place("sqlite", folder)
    with opened(where, slots=2) as first, opened(where, slots=2) as second:
        early = claimed(first)
        set_heartbeats(folder, 3600)
        late = claimed(second)
        assert (early.slot, late.slot) == (0, 0)
        assert slots_of(second) == [(0, "claimed", 0)]
        yield first, early, second, late


def set_heartbeats(folder: Path, ago: float) -> None:
    with contextlib.closing(sqlite3.connect(folder / "study.sqlite")) as connection, connection:
        connection.execute("UPDATE parformer_slots SET beat = ?", (time.time() - ago,))


def test_a_worker_thought_dead_may_still_be_the_first(tmp_path: Path) -> None:
    with two_workers(tmp_path) as (first, early, second, late):
        first.note(early, "early")
        assert first.tell(early, mine("early")) == [mine("early")]
        assert second.records(2) == [mine("early")]
        assert second.tell(late, mine("late")) == []
        assert first.records(2) == second.records(2) == [mine("early")]
        assert slots_of(first) == [(0, "finished", 0)]
        assert claimed(first).slot == 1


def test_a_worker_thought_dead_comes_too_late(tmp_path: Path) -> None:
    with two_workers(tmp_path) as (first, early, second, late):
        assert second.tell(late, mine("late")) == [mine("late")]
        assert first.tell(early, mine("early")) == []
        assert first.records(2) == second.records(2) == [mine("late")]
        assert slots_of(first) == [(0, "finished", 0)]


def test_a_result_told_twice_is_there_once(tmp_path: Path) -> None:
    with opened(place("sqlite", tmp_path), slots=2) as study:
        claim = claimed(study)
        assert study.tell(claim, mine("a")) == [mine("a")]
        assert study.tell(claim, mine("a")) == [mine("a")]  # the first answer got lost
        study.release(claim)
        assert study.records(2) == [mine("a")]
        assert slots_of(study) == [(0, "finished", 0)]


def test_silence_for_two_heartbeats_frees_a_slot_and_less_does_not(tmp_path: Path) -> None:
    with opened(place("sqlite", tmp_path), slots=2) as study:
        claimed(study)
        set_heartbeats(tmp_path, 95)
        study.beat(None)
        assert slots_of(study) == [(0, "claimed", 0)]
        set_heartbeats(tmp_path, 101)
        study.beat(None)
        assert slots_of(study) == [(0, "free", 0)]
        assert claimed(study).slot == 0


def test_a_beating_heart_keeps_a_slot(tmp_path: Path) -> None:
    with opened(place("sqlite", tmp_path), slots=2) as study:
        claim = claimed(study)
        set_heartbeats(tmp_path, 3600)
        study.beat(claim)
        assert slots_of(study) == [(0, "claimed", 0)]


def test_the_heart_beats_while_a_genome_is_evaluated(tmp_path: Path) -> None:
    study = open_study(place("sqlite", tmp_path), "it", SETTINGS, slots=1, heartbeat=3)
    study.heartbeat = 0.15
    beats: list[float] = []

    def slow(genome: str) -> Outcome:
        set_heartbeats(tmp_path, -3600)
        time.sleep(0.4)
        beats.extend(*study.database.ask("SELECT beat FROM parformer_slots"))
        return (1.0, 2.0), "", {}

    with study:
        work(study, propose, slow, generations=1)
        assert slots_of(study) == [(0, "finished", 0)]
    assert beats[0] < time.time() + 60


# Files of version 0.1

FILES = Path(__file__).parents[1] / "files"
TOLD = FILES / "pareto-counted-0.1.json"


@pytest.mark.parametrize("kind", ["notebook", "journal", "sqlite"])
def test_a_study_of_version_0_1_goes_on(kind: str, tmp_path: Path) -> None:
    """All three were written by the same search in the three storages of that version."""
    file = tmp_path / "study.old"
    if kind == "sqlite":
        file.write_bytes(gzip.decompress((FILES / "study-0.1.db.gz").read_bytes()))
    else:
        source = {"notebook": "study-0.1.jsonl", "journal": "study-0.1.journal"}[kind]
        file.write_bytes((FILES / source).read_bytes())
    before = file.read_bytes()
    with join_study(f"{kind}:{file}", "pareto") as study:
        assert (study.slots, study.finished()) == (26, 26)
        assert study.settings["objectives"] == ["quality", "flops", "state"]
        settings, records = study.settings, study.records(26)
    visited = json.loads(TOLD.read_text())["visited"]
    assert [record.extra["flops"] for record in records] == visited["flops"]
    with open_study(f"{kind}:{file}", "pareto", settings, slots=30) as study:
        assert (study.slots, study.finished()) == (30, 26)
        assert study.claim(evenly(30)) == Claim(26, 0)
    if kind != "sqlite":  # the old file stays as it was, and the database lies beside it
        assert file.read_bytes() == before
        assert (tmp_path / "study.db").is_file()
    with pytest.raises(ConfigError):
        join_study(f"{kind}:{file}", "other")


def test_a_damaged_file_of_version_0_1_is_named(tmp_path: Path) -> None:
    lines = (FILES / "study-0.1.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "study.jsonl").write_bytes(b"".join([lines[0], b"{broken}\n", *lines[1:]]))
    with pytest.raises(FolderError, match=r"line 2 of .* is damaged; copy the file back"):
        join_study(f"notebook:{tmp_path / 'study.jsonl'}", "pareto")


def test_a_new_study_in_an_old_place_is_a_database(tmp_path: Path) -> None:
    with opened(f"notebook:{tmp_path / 'sizes.jsonl'}") as study:
        finish(study)
    assert [entry.name for entry in tmp_path.iterdir()] == ["sizes.db"]


# Settings and storages that do not fit


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 4}, "seed is 3 in the study at .* and 4 now; leave it as it was, or choose "),
        (
            {"space": {"depth": [1, 3], "wide": True}},
            r"space.depth is \[1, 2\] .* and \[1, 3\] now",
        ),
        ({"space": {"depth": [1, 2]}}, "space.wide is true .* and absent now"),
        ({"more": "x" * 200}, r"more is absent .* and \"x+\.\.\. now; .* --run or --storage"),
        ({"space": {"depth": [1, 2], "wide": 1}}, "space.wide is true .* and 1 now"),
    ],
)
def test_other_settings_are_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    where = place("sqlite", tmp_path)
    opened(where).close()
    with pytest.raises(ConfigError, match=message):
        opened(where, **changes)
    opened(where).close()


def test_several_studies_live_in_one_storage(tmp_path: Path) -> None:
    where = place("sqlite", tmp_path)
    open_study(where, "a", SETTINGS, slots=1).close()
    open_study(where, "b", SETTINGS, slots=2).close()
    with join_study(where, "b") as study:
        assert (study.name, study.slots) == ("b", 2)
    with pytest.raises(ConfigError, match=r"there is no study 'c' in .*; it has: a, b"):
        join_study(where, "c")


@pytest.mark.parametrize("kind", ["sqlite", "notebook", "journal"])
def test_nobody_joins_what_is_not_there(kind: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        join_study(place(kind, tmp_path), "it")
    assert not list(tmp_path.iterdir())
    with pytest.raises(ConfigError, match="belongs to the process that made it"):
        join_study("memory", "it")


def test_studies_of_somebody_else_are_left_alone(tmp_path: Path) -> None:
    import optuna

    where = place("sqlite", tmp_path)
    other = optuna.create_study(
        study_name="it", storage=f"sqlite:///{tmp_path / 'study.sqlite'}", directions=["minimize"]
    )
    other.add_trial(optuna.trial.create_trial(values=[1.0]))
    with opened(where) as study:
        finish(study)
        assert study.records(SLOTS) == list(expected())
    assert [trial.values for trial in other.trials] == [[1.0]]


def test_a_newer_format_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where = place("sqlite", tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(study_module, "FORMAT", "parformer-study-9")
        opened(where).close()
    for again in (lambda: opened(where), lambda: join_study(where, "it")):
        with pytest.raises(ConfigError, match="'parformer-study-9', and this version reads"):
            again()


@pytest.mark.parametrize(
    ("storage", "message"),
    [
        ("redis://host", "unknown storage 'redis://host'; known: memory, sqlite:PATH"),
        ("mysql://me:secret@host/x", r"unknown storage 'mysql://me:\*\*\*@host/x'"),
        ("", "unknown storage ''"),
        ("memory:", "unknown storage"),
        ("sqlite:", "no path in the storage 'sqlite:'; write sqlite:PATH"),
        ("sqlite://", "no path"),
        ("sqlite:///", "no path"),
        ("sqlite:///:memory:", "no path"),
        ("journal:a\0b", "no path"),
        ("postgresql://me:secret@host:port/x", r"cannot read the storage 'postgresql://me:\*\*\*@"),
        ("postgresql://me:sec@ret@127.0.0.1:1/x", r"me:\*\*\*@127.0.0.1:1/x'; .*and %40 for @"),
        ("postgresql://me@127.0.0.1:1/x?password=secret", r"x\?password=\*\*\*': .*refused"),
        ("postgresql://me:s{cr}t%25@127.0.0.1:1/x", r"me:\*\*\*@127.0.0.1:1/x': .*refused"),
    ],
)
def test_a_storage_that_cannot_be_used(storage: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        opened(storage)
    text = str(caught.value)
    assert "\n" not in text
    assert not [word for word in ("secret", "ret@", "{cr}") if word in text]


def test_the_path_of_a_database() -> None:
    assert read_address("sqlite:a/b.db").path == Path("a/b.db")
    assert read_address("sqlite:///a/b.db").path == Path("a/b.db")
    assert read_address("sqlite:////a/b.db").path == Path("/a/b.db")
    assert read_address("sqlite:/a/b.db").path == Path("/a/b.db")


def test_odd_names_of_files(tmp_path: Path) -> None:
    for name in ("[a]* {b} %41?c=d&e#ü",):
        (tmp_path / name).mkdir()
        for kind in KINDS[1:]:
            where = f"{kind}:{tmp_path / name / name}.{kind}"
            with opened(where, slots=1) as study:
                finish(study)
            with join_study(where, "it") as study:
                assert study.finished() == 1
            assert Path(f"{tmp_path / name / name}.{kind}").is_file()


def test_a_path_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    for path in (tmp_path / "file" / "x", tmp_path / "missing" / "x", tmp_path):
        with pytest.raises(FolderError) as caught:
            opened(f"sqlite:{path}")
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("text", ["just\nsome\ntext\n", "x", "{}\n"])
def test_a_file_of_something_else_is_not_touched(text: str, tmp_path: Path) -> None:
    file = tmp_path / "study.sqlite"
    file.write_text(text)
    with pytest.raises(FolderError, match="is not a database"):
        opened(f"sqlite:{file}")
    assert file.read_text() == text
    assert len(list(tmp_path.iterdir())) == 1


def test_a_database_of_another_program_is_not_touched(tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "study.sqlite")) as connection, connection:
        connection.execute("CREATE TABLE songs (title TEXT)")
    before = (tmp_path / "study.sqlite").read_bytes()
    with pytest.raises(FolderError, match="is a database of another program"):
        opened(place("sqlite", tmp_path))
    assert (tmp_path / "study.sqlite").read_bytes() == before


def test_a_driver_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingExtra, match=r"psycopg is missing: pip install 'parformer\[postgres"):
        opened("postgresql://me:secret@127.0.0.1:1/x")
    monkeypatch.setitem(sys.modules, "optuna", None)
    with opened("memory") as study, pytest.raises(MissingExtra, match=r"parformer\[optuna\]"):
        study.copy_to_optuna("journal:copy", "it")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: open_study("memory", "", SETTINGS, slots=1), "a printable name .* got ''"),
        (lambda: open_study("memory", "a\nb", SETTINGS, slots=1), "a printable name"),
        (lambda: open_study("memory", "a" * 201, SETTINGS, slots=1), "up to 200 letters"),
        (lambda: open_study("memory", "a", SETTINGS, slots=0), "at least one slot, got 0"),
        (lambda: open_study("memory", "a", SETTINGS, slots=1, heartbeat=2), "at least 3 seconds"),
        (
            lambda: open_study("memory", "a", SETTINGS, slots=1, heartbeat=float("nan")),
            "at least 3 seconds, got nan",
        ),
    ],
)
def test_arguments_that_make_no_sense(call: Callable[[], Study], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        call()


def test_settings_without_objectives_are_refused() -> None:
    for objectives in ([], None, "loss"):
        with pytest.raises(ConfigError, match="settings need a list of objectives"):
            opened("memory", objectives=objectives)


def test_a_database_that_is_away_for_a_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage_module.time, "sleep", lambda seconds: None)
    with opened(place("sqlite", tmp_path)) as study:
        troubles = [sqlite3.OperationalError("database is locked")] * 3
        ask = study.database.ask

        def busy(question: str, *values: object) -> Any:
            if troubles and "SELECT" in question:
                raise troubles.pop()
            return ask(question, *values)

        monkeypatch.setattr(study.database, "ask", busy)
        assert finish(study) == list(expected())
        assert not troubles
        monkeypatch.setattr(storage_module, "PATIENCE", -1.0)
        troubles.append(sqlite3.OperationalError("disk I/O error"))
        with pytest.raises(
            FolderError, match=r"cannot use the storage 'sqlite:.*': disk I/O error"
        ):
            study.claim(evenly(GENERATION))


# Copies


@pytest.mark.parametrize("target", ["sqlite", "journal"])
def test_a_copy_is_there_for_optunas_dashboard(target: str, tmp_path: Path) -> None:
    import optuna

    where = place(target, tmp_path)
    with opened("memory") as study:
        finish(study)
        study.copy_to_optuna(where, "it")
        with pytest.raises(ConfigError, match="has a study 'it' already; choose another name"):
            study.copy_to_optuna(where, "it")
        with pytest.raises(ConfigError, match="is copied to journal:, sqlite: or postgresql:"):
            study.copy_to_optuna("memory", "it")
    file = str(tmp_path / f"study.{target}")
    storage: Any = f"sqlite:///{file}"
    if target == "journal":
        backend = optuna.storages.journal.JournalFileBackend(file)
        storage = optuna.storages.JournalStorage(backend)
    seen = optuna.load_study(study_name="it", storage=storage)
    assert [trial.user_attrs["slot"] for trial in seen.trials] == list(range(SLOTS))
    values = [None if trial.values is None else tuple(trial.values) for trial in seen.trials]
    assert values == [record.values for record in expected()]
    assert seen.metric_names == ["loss", "cost"]
    assert len(seen.best_trials) >= 1


# Quiet and quick


def test_nothing_heavy_is_needed(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from parformer.search.sizes.work import open_study, work\n"
        f"study = open_study({place('sqlite', tmp_path)!r}, 'it', {SETTINGS}, slots=2)\n"
        "work(study, lambda s, r: str(s), lambda g: ((1, 2), '', {}), generations=1)\n"
        "assert study.finished() == 2\n"
        "sys.exit(bool({'optuna', 'torch', 'sqlalchemy'} & {*sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_nothing_is_said_on_the_way(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for kind in KINDS:
        with opened(place(kind, tmp_path)) as study:
            finish(study)
    with pytest.raises(ParformerError):
        opened("postgresql://me:secret@127.0.0.1:1/x")
    assert capfd.readouterr() == ("", "")


def test_workers_leave_nothing_beside_a_database(tmp_path: Path) -> None:
    where = place("sqlite", tmp_path)
    left = tmp_path / "study.sqlite.0123456789ab.alive"
    left.touch()
    with opened(where) as study:
        assert not left.exists()
        finish(study)
        assert len(list(tmp_path.glob("*.alive"))) == 1
        opened(where).close()  # sweeps, and spares the living
        assert len(list(tmp_path.glob("*.alive"))) == 1
    assert {entry.name for entry in tmp_path.iterdir()} == {"study.sqlite"}


if __name__ == "__main__":
    serve()
