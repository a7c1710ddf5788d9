"""Which slots of a search are done, and who works on the next?

A study works off slots 0, 1, 2, … What a slot proposes depends on the settings and on the
results of earlier generations alone, so any number of workers, killed at any moment, come to
the same records.

>>> study = open_study("memory", "squares", {"objectives": ["square"]}, slots=4)
>>> claim = study.claim(lambda slot: (0, 4))
>>> study.tell(claim, Finished(claim.slot, "genome", (1.0,)))
[Finished(slot=0, genome='genome', values=(1.0,), why='', extra={})]

A slot is claimed only when every slot of the generations before it is finished. A worker that
dies loses its claim to the next one, and a slot has the result that was told first, even if its
worker was thought dead meanwhile.

Failpoints: study.created, study.during-claim, study.during-tell.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Self

from parformer.errors import ConfigError
from parformer.records import Json
from parformer.search.sizes.exchange import read_old, write_optuna
from parformer.search.sizes.record import FORMAT, Finished
from parformer.search.sizes.storage import (
    OLD,
    Address,
    Database,
    open_database,
    read_address,
    translated,
)
from parformer.store.faults import failpoint

HEARTBEAT = 60
"""Seconds in which a worker is heard of three times."""
SILENCE = 5 / 3
"""Heartbeats without a word after which a worker is dead; the next look comes a third later."""

Bounds = Callable[[int], tuple[int, int]]
"""Where the generation of a slot begins, and where the next one does."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to work on a slot."""

    slot: int
    first: int
    """The first slot of its generation."""
    deaths: int = 0
    """Workers that died while they evaluated it."""


class Study:
    """Slots, and what was found in those that are finished."""

    def __init__(self, database: Database, name: str) -> None:
        self.database, self.name = database, name
        ((form, settings, self.slots, self.heartbeat),) = database.ask(
            "SELECT format, settings, slots, heartbeat FROM parformer_studies WHERE name = ?", name
        )
        if form != FORMAT:
            raise ConfigError(
                f"{database.address} has the format {form!r}, and this version reads {FORMAT!r}"
            )
        self.settings: Json = json.loads(settings)
        self.known: dict[int, Finished] = {}
        self.gap = 0
        """The first slot that is not known to be finished."""
        self.over = False
        """Whether the last call of `claim` found all slots finished."""

    def found(self) -> Mapping[int, Finished]:
        """The finished slots as of now."""
        return self.database.patiently(self.look)

    def look(self) -> Mapping[int, Finished]:
        rows = self.database.ask(
            "SELECT slot, record FROM parformer_slots "
            "WHERE study = ? AND slot >= ? AND record IS NOT NULL",
            self.name,
            self.gap,
        )
        for slot, record in rows:
            if slot not in self.known:
                self.known[slot] = Finished.from_dict(json.loads(record))
        gap = self.gap
        while gap in self.known:
            gap += 1
        self.gap = gap
        return self.known

    def records(self, below: int) -> list[Finished]:
        """The finished slots below this one, in order."""
        found = self.known if self.gap >= below else self.found()
        return [found[slot] for slot in range(below) if slot in found]

    def finished(self) -> int:
        return sum(slot < self.slots for slot in self.found())

    def claim(self, generations: Bounds) -> Claim | None:
        """The lowest slot that nobody works on; None if there is none for now."""
        return self.database.patiently(lambda: self.try_to_claim(generations))

    def try_to_claim(self, generations: Bounds) -> Claim | None:
        with self.database.change(self.name):
            self.database.appear()
            taken = self.free_the_dead() | self.look().keys()
            if self.gap >= self.slots:
                ((self.slots,),) = self.database.ask(
                    "SELECT slots FROM parformer_studies WHERE name = ?", self.name
                )
            self.over = self.gap >= self.slots
            first, until = generations(self.gap)
            slots = range(self.gap, min(until, self.slots))
            slot = next((free for free in slots if free not in taken), None)
            return None if slot is None else self.take(slot, first)

    def take(self, slot: int, first: int) -> Claim:
        ((deaths,),) = self.database.ask(
            "INSERT INTO parformer_slots (study, slot, worker, beat) "
            f"VALUES (?, ?, ?, {self.database.now}) ON CONFLICT (study, slot) "
            "DO UPDATE SET worker = excluded.worker, beat = excluded.beat RETURNING deaths",
            self.name,
            slot,
            self.database.worker,
        )
        failpoint("study.during-claim")
        return Claim(slot, first, deaths)

    def free_the_dead(self) -> set[int]:
        """The slots that are worked on, after those of dead workers were given back."""
        rows = self.database.ask(
            f"SELECT slot, worker, {self.database.now} - beat FROM parformer_slots "
            "WHERE study = ? AND slot >= ? AND record IS NULL AND worker <> ''",
            self.name,
            self.gap,
        )
        dead = {
            slot
            for slot, worker, silent in rows
            if silent > SILENCE * self.heartbeat
            or (worker != self.database.worker and self.database.is_gone(worker))
        }
        for slot in dead:  # one that had proposed nothing yet did not die of it
            self.update(
                slot, "worker = '', genome = NULL, deaths = deaths + "
                "CASE WHEN genome IS NULL THEN 0 ELSE 1 END"
            )  # fmt: skip
        return {slot for slot, *_ in rows} - dead

    def update(self, slot: int, changes: str, *values: object, mine: bool = False) -> None:
        """Change the row of a slot that is not finished; with `mine` only this worker's own."""
        whose = " AND worker = ?" if mine else ""
        self.database.ask(
            f"UPDATE parformer_slots SET {changes} "
            f"WHERE study = ? AND slot = ? AND record IS NULL{whose}",
            *values,
            self.name,
            slot,
            *([self.database.worker] if mine else []),
        )

    def note(self, claim: Claim, genome: str) -> None:
        """Write down what is being evaluated."""
        self.database.patiently(
            lambda: self.update(claim.slot, "genome = ?", genome, mine=True)
        )  # fmt: skip

    def tell(self, claim: Claim, record: Finished) -> list[Finished]:
        """Keep a result, if it is the first; then it is in the list."""
        return self.database.patiently(lambda: self.try_to_tell(claim, record))

    def try_to_tell(self, claim: Claim, record: Finished) -> list[Finished]:
        worker = self.database.worker
        with self.database.change(self.name):
            # whoever was thought dead may still be the first with a result
            self.update(
                claim.slot,
                "record = ?, worker = ?, genome = NULL",
                json.dumps(record.to_dict()),
                worker,
            )
            failpoint("study.during-tell")
            ((teller,),) = self.database.ask(
                "SELECT worker FROM parformer_slots WHERE study = ? AND slot = ?",
                self.name,
                claim.slot,
            )
        self.database.settle()
        return [record] if teller == worker else []

    def release(self, claim: Claim) -> None:
        """Give a slot back, unfinished."""
        self.database.patiently(
            lambda: self.update(claim.slot, "worker = '', genome = NULL", mine=True)
        )

    def beat(self, claim: Claim | None) -> None:
        """Say that this worker lives, and see whether the others do."""
        if claim is not None:
            self.update(claim.slot, f"beat = {self.database.now}", mine=True)
        with self.database.change(self.name):
            self.free_the_dead()

    def copy_to_optuna(self, storage: str, name: str) -> None:
        """The same study where Optuna's dashboard can show it: journal:, sqlite:, postgresql:."""
        address = read_address(storage)
        write_optuna(address, checked_name(name), self.settings, self.records(self.slots))

    def close(self) -> None:
        self.database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_study(
    storage: str,
    name: str,
    settings: Json,
    *,
    slots: int,
    heartbeat: float = HEARTBEAT,
    today: Callable[[Json], Json] = lambda stored: stored,
) -> Study:
    """Make a study, or go on with the one that is there if its settings are these.

    `settings["objectives"]` names what is to be made small. `slots` may grow from one call to
    the next; `heartbeat` stays what it was when the study was made. No slot stays claimed for
    more than two heartbeats after its worker's last, as long as one worker lives. `today` writes
    settings of an earlier version as this one would.
    """
    address = read_address(storage)
    asked: Json = json.loads(json.dumps(settings))
    checked_name(name)
    if slots < 1:
        raise ConfigError(f"a study needs at least one slot, got {slots}")
    if not 3 <= heartbeat < math.inf:
        raise ConfigError(f"a heartbeat takes at least 3 seconds, got {heartbeat:g}")
    objectives = asked.get("objectives")
    if not objectives or not isinstance(objectives, list):
        raise ConfigError(f"settings need a list of objectives, got {objectives!r}")
    database = open_database(address.database, new=True)
    with closed_on_error(database), translated(address):
        with database.change(name):
            bring_over(database, address, name)
            make_study(database, name, asked, slots, heartbeat)
            failpoint("study.created")
            study = Study(database, name)
            check_settings(today(study.settings), asked, address)
            study.slots = max(slots, study.slots)
            database.ask("UPDATE parformer_studies SET slots = ? WHERE name = ?", study.slots, name)
        return study


def join_study(storage: str, name: str) -> Study:
    """The study that is there, for one more worker or a reader."""
    address = read_address(storage)
    checked_name(name)
    if address.kind == "memory":
        raise ConfigError("a study in memory belongs to the process that made it")
    if address.kind in OLD and not address.path.is_file():
        raise ConfigError(f"there is no study at {address}: no such file")
    database = open_database(address.database, new=address.kind in OLD)
    with closed_on_error(database), translated(address):
        with database.change(name):
            bring_over(database, address, name)
            names = names_in(database)
        if name not in names:
            known = ", ".join(names[:20]) or "none"
            raise ConfigError(f"there is no study {name!r} in {address}; it has: {known}")
        return Study(database, name)


def study_names(storage: str) -> list[str]:
    """All studies in a database."""
    address = read_address(storage)
    if address.kind == "memory":
        raise ConfigError("a study in memory has no name for others; give sqlite:FILE")
    database = open_database(address.database, new=True)
    with contextlib.closing(database), translated(address):
        return names_in(database)


def names_in(database: Database) -> list[str]:
    return [name for (name,) in database.ask("SELECT name FROM parformer_studies ORDER BY name")]


def bring_over(database: Database, address: Address, name: str) -> None:
    """A study that version 0.1 kept goes on here."""
    if name in names_in(database):
        return
    kept = address.kind in OLD or database.has_table("studies")
    old = read_old(address, name) if kept else None
    if old is None:
        return
    make_study(database, name, old.settings, old.slots)
    for record in old.records:
        database.ask(
            "INSERT INTO parformer_slots (study, slot, worker, beat, record) "
            "VALUES (?, ?, '', 0, ?)",
            name,
            record.slot,
            json.dumps(record.to_dict()),
        )


def make_study(
    database: Database, name: str, settings: Json, slots: int, heartbeat: float = HEARTBEAT
) -> None:
    """Write a study down, where there is none of this name yet."""
    database.ask(
        "INSERT INTO parformer_studies (name, format, settings, slots, heartbeat) "
        "VALUES (?, ?, ?, ?, ?) ON CONFLICT (name) DO NOTHING",
        name,
        FORMAT,
        json.dumps(settings),
        slots,
        heartbeat,
    )


@contextlib.contextmanager
def closed_on_error(database: Database) -> Iterator[None]:
    try:
        yield
    except BaseException:
        database.close()
        raise


def checked_name(name: str) -> str:
    if not name or not name.isprintable() or len(name) > 200:
        raise ConfigError(f"a study needs a printable name of up to 200 letters, got {name!r}")
    return name


def check_settings(stored: object, asked: object, address: Address) -> None:
    found = difference(stored, asked)
    if found is not None:
        field_, before, now = found
        raise ConfigError(
            f"{field_} is {shown(before)} in the study at {address} and {shown(now)} now; "
            "leave it as it was, or choose another --run or --storage"
        )


def difference(stored: object, asked: object, where: str = "") -> tuple[str, object, object] | None:
    """The first field in which two settings differ, with both values."""
    if isinstance(stored, dict) and isinstance(asked, dict):
        for key in [*stored, *(key for key in asked if key not in stored)]:
            inside = f"{where}.{key}" if where else str(key)
            found = difference(stored.get(key), asked.get(key), inside)
            if found is not None:
                return found
        return None
    # as text, for True is not 1
    return None if json.dumps(stored) == json.dumps(asked) else (where, stored, asked)


def shown(value: object) -> str:
    text = "absent" if value is None else json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
