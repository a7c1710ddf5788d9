"""Which slots of a search are done, and who works on the next?

A study works off slots 0, 1, 2, … What a slot proposes depends on the settings and on the
results of earlier generations alone, so any number of workers, killed at any moment, come to
the same records.

>>> study = open_study("memory", "squares", {"objectives": ["square"]}, slots=4)
>>> def propose(slot, records):
...     return str(slot + 10 * len(records))
>>> def evaluate(genome):
...     return (float(genome) ** 2,), "", {}
>>> work(study, propose, evaluate, generations=2)
>>> [(record.genome, record.values) for record in study.records(below=4)]
[('0', (0.0,)), ('1', (1.0,)), ('22', (484.0,)), ('23', (529.0,))]

A slot is claimed only when every slot of the generations before it is finished. A trial of
Optuna is one try at a slot: RUNNING while its worker lives, FAIL once that is dead, COMPLETE
with values, PRUNED where the genome cannot be evaluated. Every change is made under one lock,
and a slot has the result that was told first, even if its worker was thought dead meanwhile.

Failpoints: study.created, study.during-claim, study.after-claim, study.after-propose,
study.before-tell, study.during-tell, study.after-tell; notebook.before-write and
notebook.after-write.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Any, Self

from parformer.errors import ConfigError, FolderError, ParformerError
from parformer.search.sizes.storage import (
    Address,
    Store,
    load_optuna,
    open_store,
    patiently,
    read_address,
    translated,
)
from parformer.store.faults import failpoint
from parformer.store.lines import SEAL, Lines, seal, unseal

if TYPE_CHECKING:
    from optuna import Study as OptunaStudy
    from optuna.trial import FrozenTrial

FORMAT = "parformer-study-1"
SETTINGS, SLOTS = "parformer", "slots"
"""Attributes of a study of Optuna."""
SLOT, GENOME, WHY, EXTRA, WORKER, RELEASED = "slot", "genome", "why", "extra", "worker", "released"
"""Attributes of its trials."""
TRIES = 5
"""Workers that may die of one genome before it counts as one that cannot be evaluated."""
PAUSES = (0.02, 1.0)
"""Seconds between two looks at what others do: at first, and at most."""

Bounds = Callable[[int], tuple[int, int]]
"""Where the generation of a slot begins, and where the next one does."""

Outcome = tuple[Sequence[float] | None, str, Mapping[str, Any]]
"""Values or None, why there are none, and figures worth keeping."""


@dataclass(frozen=True)
class Record:
    """A finished slot."""

    slot: int
    genome: str
    """As canonical JSON."""
    values: tuple[float, ...] | None
    """One per objective; None if it cannot be evaluated."""
    why: str = ""
    """Why there are no values."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Further figures, small enough for JSON."""

    @classmethod
    def make(cls, slot: int, genome: str, outcome: Outcome) -> Record:
        """What will be read back later: values must be finite, and extra is what JSON keeps."""
        values, why, extra = outcome
        # SQLite has no minus nought
        numbers = None if values is None else tuple(float(value) + 0.0 for value in values)
        for place, number in enumerate(numbers or ()):
            if not math.isfinite(number):
                numbers, why = None, why or f"objective {place + 1} is {number}"
                break
        return cls(slot, genome, numbers, why, json.loads(json.dumps(extra)))


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to work on a slot."""

    slot: int
    first: int
    """The first slot of its generation."""
    until: int
    """The first slot of the next."""
    trial: int = -1
    deaths: int = 0
    """Workers that died while they evaluated it."""


class Study(ABC):
    """Slots, and what was found in those that are finished."""

    def __init__(self, name: str, settings: dict[str, Any], slots: int) -> None:
        self.name, self.settings, self.slots = name, settings, slots
        self.heartbeat = 60.0
        self.earlier: list[Record] = []

    @abstractmethod
    def found(self) -> Mapping[int, Record]:
        """The finished slots as of now."""

    def records(self, below: int) -> list[Record]:
        """The finished slots below this one, in order."""
        if len(self.earlier) != below:
            found = self.found()
            records = [found[slot] for slot in range(below) if slot in found]
            if len(records) < below:
                return records
            self.earlier = records  # finished generations stay as they are
        return list(self.earlier)

    def finished(self) -> int:
        return sum(slot < self.slots for slot in self.found())

    @abstractmethod
    def claim(self, generations: Bounds) -> Claim | None:
        """The lowest slot that nobody works on; None if there is none for now."""

    @abstractmethod
    def is_over(self) -> bool:
        """Whether the last call of `claim` found all slots finished."""

    def note(self, claim: Claim, genome: str) -> None:  # noqa: B027
        """Write down what is being evaluated."""

    @abstractmethod
    def tell(self, claim: Claim, record: Record) -> list[Record]:
        """Keep a result; the records that are safe from now on and were not before."""

    @abstractmethod
    def release(self, claim: Claim) -> None:
        """Give a slot back, unfinished."""

    def settle(self) -> list[Record]:
        """Write down what is not yet written; the records that are safe from now on."""
        return []

    def beat(self, claim: Claim | None) -> None:  # noqa: B027
        """Say that this worker lives, and see whether the others do."""

    def copy_to(self, storage: str, name: str) -> None:
        """The same study in a storage of Optuna, where its dashboard can show it."""
        address = read_address(storage)
        if address.kind in ("memory", "notebook"):
            raise ConfigError(
                f"a study is copied to journal:, sqlite: or postgresql:, not {address}"
            )
        store = open_store(address, checked_name(name), new=True)
        with contextlib.closing(store), translated(address):
            fill_study(store, self, name, self.records(self.slots))

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Notebook(Study):
    """A study of one process, in memory; a file has a line per generation.

    For objectives that cost nothing: a process that is killed evaluates at most one generation
    again. Its records are safe, and told to `on_record`, once their line is written.
    """

    def __init__(
        self, address: Address, name: str, settings: dict[str, Any] | None, slots: int
    ) -> None:
        self.mutex = Lock()
        self.written: dict[int, Record] = {}
        self.waiting: dict[int, Record] = {}
        self.returned: set[int] = set()
        self.lines = Lines(address.path, SEAL, unseal) if address.kind == "notebook" else None
        try:
            super().__init__(name, *self.read(address, name, settings, slots))
        except BaseException:
            self.close()
            raise
        self.next = 0

    def read(
        self, address: Address, name: str, settings: dict[str, Any] | None, slots: int
    ) -> tuple[dict[str, Any], int]:
        """Settings and slots, after everything in the file is known."""
        found = self.lines.found if self.lines else []
        stored, known = None, 0
        try:
            for entry in found:
                if "format" in entry:
                    check_format(entry["format"], address)
                    if entry["name"] != name:
                        raise ConfigError(
                            f"{address} has the study {entry['name']!r} and no {name!r}; "
                            "choose another --run"
                        )
                    stored = entry["settings"]
                known = max(known, entry.get("slots", 0))
                for row in entry.get("records", ()):
                    record = read_record(row)
                    self.written.setdefault(record.slot, record)
        except (KeyError, TypeError, AttributeError) as error:
            raise FolderError(f"{address} is not a notebook of ours: {error!r}") from None
        if settings is None and stored is None:
            raise ConfigError(f"there is no study {name!r} in {address}")
        if settings is None:
            return stored or {}, known
        if stored is None:
            self.write({"format": FORMAT, "name": name, "settings": settings, "slots": slots})
            return settings, slots
        check_settings(stored, settings, address)
        if slots > known:
            self.write({"slots": slots})
        return stored, max(slots, known)

    def write(self, entry: dict[str, Any]) -> None:
        if self.lines is not None:
            self.lines.add(seal(json.dumps(entry)))
            self.lines.settle()

    def found(self) -> Mapping[int, Record]:
        return self.written

    def claim(self, generations: Bounds) -> Claim | None:
        with self.mutex:
            while self.next in self.written or self.next in self.waiting:
                self.next += 1
            slot = min(self.returned, default=self.next)
            first, until = generations(slot)
            # nothing waits to be written of earlier generations, nor is it being worked on
            if slot >= self.slots or len(self.written) < first:
                return None
            self.returned.discard(slot)
            self.next = max(self.next, slot + 1)
            return Claim(slot, first, min(until, self.slots))

    def is_over(self) -> bool:
        return len(self.written) >= self.slots

    def tell(self, claim: Claim, record: Record) -> list[Record]:
        with self.mutex:
            self.waiting[claim.slot] = record
            if len(self.written) + len(self.waiting) < claim.until:
                return []
            return self.put_down()

    def release(self, claim: Claim) -> None:
        with self.mutex:
            self.returned.add(claim.slot)

    def settle(self) -> list[Record]:
        with self.mutex:
            return self.put_down()

    def put_down(self) -> list[Record]:
        records = [self.waiting[slot] for slot in sorted(self.waiting)]
        if records:
            failpoint("notebook.before-write")
            self.write({"records": [asdict(record) for record in records]})
            failpoint("notebook.after-write")
            self.written = self.written | self.waiting  # another thread may be reading the old
            self.waiting = {}
        return records

    def close(self) -> None:
        if self.lines is not None:
            self.lines.close()


@dataclass(frozen=True, slots=True)
class View:
    """What the trials of a study say about its slots."""

    finished: dict[int, Record]
    winners: dict[int, int]
    """The trial that finished a slot."""
    running: dict[int, list[FrozenTrial]]
    enqueued: dict[int, int]
    """Trials of workers that died while they claimed a slot."""
    deaths: dict[int, int]


class SharedStudy(Study):
    """A study in a storage of Optuna."""

    def __init__(self, store: Store, name: str) -> None:
        self.store = store
        optuna = load_optuna()
        self.states = optuna.trial.TrialState
        self.id = store.base.get_study_id_from_name(name)
        attributes = store.base.get_study_user_attrs(self.id)
        stored = attributes[SETTINGS]
        super().__init__(name, stored["settings"], int(attributes[SLOTS]))
        self.heartbeat = float(stored["heartbeat"])
        self.study: OptunaStudy = optuna.load_study(study_name=name, storage=store.base)
        self.known: dict[int, Record] = {}
        self.over = False

    def view(self) -> View:
        view = View({}, {}, {}, {}, {})
        for trial in self.study.get_trials(deepcopy=False):
            slot, id_ = trial.user_attrs.get(SLOT), trial._trial_id
            if not isinstance(slot, int):
                continue  # not of ours
            if trial.state in (self.states.COMPLETE, self.states.PRUNED):
                if id_ not in self.known:
                    self.known[id_] = record_of(trial, slot)
                view.finished.setdefault(slot, self.known[id_])
                view.winners.setdefault(slot, id_)
            elif trial.state == self.states.RUNNING:
                view.running.setdefault(slot, []).append(trial)
            elif trial.state == self.states.WAITING:
                view.enqueued[slot] = id_
            elif GENOME in trial.user_attrs and RELEASED not in trial.user_attrs:
                view.deaths[slot] = view.deaths.get(slot, 0) + 1
        return view

    def found(self) -> Mapping[int, Record]:
        return patiently(self.store.address, lambda: self.view().finished)

    def living_view(self) -> View:
        """The view after all trials of dead workers have been failed; under the lock."""
        self.store.fail_stale(self.study, self.heartbeat)
        view = self.view()
        running = [trial for trials in view.running.values() for trial in trials]
        gone = [t for t in running if self.store.is_gone(str(t.user_attrs.get(WORKER, "")))]
        for trial in gone:
            self.store.base.set_trial_state_values(trial._trial_id, self.states.FAIL)
        return self.view() if gone else view

    def claim(self, generations: Bounds) -> Claim | None:
        return patiently(self.store.address, lambda: self.try_to_claim(generations))

    def try_to_claim(self, generations: Bounds) -> Claim | None:
        with self.store.lock():
            self.store.appear()
            view = self.living_view()
            slot = first_gap(view.finished)
            if slot >= self.slots:
                self.slots = int(self.store.base.get_study_user_attrs(self.id)[SLOTS])
            self.over = slot >= self.slots
            first, until = generations(slot)
            until = min(until, self.slots)
            taken = view.finished.keys() | view.running.keys()
            slot = next((free for free in range(slot, until) if free not in taken), until)
            if slot >= until:
                return None
            trial = self.start_trial(slot, view.enqueued.get(slot))
            return Claim(slot, first, until, trial, view.deaths.get(slot, 0))

    def start_trial(self, slot: int, enqueued: int | None) -> int:
        """A running trial with its first heartbeat; one without would never be missed."""
        optuna, base = load_optuna(), self.store.base
        if enqueued is None:
            attributes = {SLOT: slot, WORKER: self.store.worker}
            trial = optuna.trial.create_trial(state=self.states.WAITING, user_attrs=attributes)
            enqueued = base.create_new_trial(self.id, trial)
        else:
            base.set_trial_user_attr(enqueued, WORKER, self.store.worker)
        failpoint("study.during-claim")
        self.store.beat(enqueued)
        base.set_trial_state_values(enqueued, self.states.RUNNING)
        return enqueued

    def is_over(self) -> bool:
        return self.over

    def note(self, claim: Claim, genome: str) -> None:
        errors = load_optuna().exceptions

        def write() -> None:
            # a worker that was thought dead goes on: its result may still be the first
            with contextlib.suppress(errors.UpdateFinishedTrialError), self.store.lock():
                self.store.base.set_trial_user_attr(claim.trial, GENOME, genome)

        patiently(self.store.address, write)

    def tell(self, claim: Claim, record: Record) -> list[Record]:
        return patiently(self.store.address, lambda: self.try_to_tell(claim, record))

    def try_to_tell(self, claim: Claim, record: Record) -> list[Record]:
        base = self.store.base
        with self.store.lock():
            view = self.view()
            running = {trial._trial_id: trial for trial in view.running.get(claim.slot, ())}
            own = running.get(claim.trial)
            if claim.slot in view.finished:
                if own is not None:
                    base.set_trial_state_values(claim.trial, self.states.FAIL)
                return [record] if view.winners[claim.slot] == claim.trial else []
            if own is not None:
                for key, value in attributes_of(record).items():
                    if own.user_attrs.get(key) != value:
                        base.set_trial_user_attr(claim.trial, key, value)
                failpoint("study.during-tell")
                state = self.states.PRUNED if record.values is None else self.states.COMPLETE
                base.set_trial_state_values(claim.trial, state, record.values)
            else:  # thought dead, and yet the first with a result
                base.create_new_trial(self.id, trial_of(record))
            self.store.settle()
        return [record]

    def release(self, claim: Claim) -> None:
        def write() -> None:
            errors = load_optuna().exceptions
            with contextlib.suppress(errors.UpdateFinishedTrialError), self.store.lock():
                self.store.base.set_trial_user_attr(claim.trial, RELEASED, True)
                self.store.base.set_trial_state_values(claim.trial, self.states.FAIL)

        patiently(self.store.address, write)

    def beat(self, claim: Claim | None) -> None:
        if claim is not None:
            self.store.beat(claim.trial)  # at once: whoever queues for the lock seems dead
        with self.store.lock():
            self.living_view()

    def close(self) -> None:
        self.store.close()


def first_gap(found: Mapping[int, object]) -> int:
    slot = 0
    while slot in found:
        slot += 1
    return slot


def attributes_of(record: Record) -> dict[str, Any]:
    found: dict[str, Any] = {SLOT: record.slot, GENOME: record.genome}
    if record.why:
        found[WHY] = record.why
    if record.extra:
        found[EXTRA] = record.extra
    return found


def trial_of(record: Record) -> FrozenTrial:
    optuna = load_optuna()
    state = optuna.trial.TrialState
    trial: FrozenTrial = optuna.trial.create_trial(
        state=state.PRUNED if record.values is None else state.COMPLETE,
        values=record.values,
        user_attrs=attributes_of(record),
    )
    return trial


def record_of(trial: FrozenTrial, slot: int) -> Record:
    attributes = trial.user_attrs
    genome, values = attributes.get(GENOME), trial.values
    if not isinstance(genome, str):
        raise ConfigError(f"trial {trial.number} has a slot and no genome; was it made by hand?")
    numbers = None if values is None else tuple(map(float, values))
    return Record(slot, genome, numbers, attributes.get(WHY, ""), attributes.get(EXTRA, {}))


def read_record(row: dict[str, Any]) -> Record:
    values = None if row["values"] is None else tuple(map(float, row["values"]))
    return Record(int(row["slot"]), row["genome"], values, row["why"], row["extra"])


def open_study(
    storage: str, name: str, settings: dict[str, Any], *, slots: int, heartbeat: float = 60
) -> Study:
    """Make a study, or go on with the one that is there if its settings are these.

    `settings["objectives"]` names what is to be made small. `slots` may grow from one call to
    the next; `heartbeat` stays what it was when the study was made. No trial stays running for
    more than two heartbeats after its worker's last, as long as one worker lives.
    """
    address = read_address(storage)
    settings = json.loads(json.dumps(settings))
    checked_name(name)
    if slots < 1:
        raise ConfigError(f"a study needs at least one slot, got {slots}")
    if not 3 <= heartbeat < math.inf:
        raise ConfigError(f"a heartbeat takes at least 3 seconds, got {heartbeat:g}")
    objectives = settings.get("objectives")
    if not objectives or not isinstance(objectives, list):
        raise ConfigError(f"settings need a list of objectives, got {objectives!r}")
    if address.kind in ("memory", "notebook"):
        return Notebook(address, name, settings, slots)
    store = open_store(address, name, new=True)
    with closed_on_error(store), translated(address):
        with store.lock():
            create_study(store, name, settings, slots, heartbeat)
        return SharedStudy(store, name)


def join_study(storage: str, name: str) -> Study:
    """The study that is there, for one more worker or a reader."""
    address = read_address(storage)
    checked_name(name)
    if address.kind == "memory":
        raise ConfigError("a study in memory belongs to the process that made it")
    if address.kind == "notebook":
        if not address.path.is_file():
            raise ConfigError(f"there is no study at {address}: no such file")
        return Notebook(address, name, None, 0)
    store = open_store(address, name, new=False)
    with closed_on_error(store), translated(address):
        names = sorted(study.study_name for study in store.base.get_all_studies())
        if name not in names:
            known = ", ".join(names[:20]) or "none"
            raise ConfigError(f"there is no study {name!r} in {address}; it has: {known}")
        stored = stored_settings(store, name)
        if stored is None:
            raise ConfigError(f"the study {name!r} in {address} was not made by Parformer")
        return SharedStudy(store, name)


def study_names(storage: str) -> list[str]:
    """All studies in a database or journal."""
    address = read_address(storage)
    if address.kind in ("memory", "notebook"):
        raise ConfigError(f"{address} holds one study only; give sqlite:FILE or postgresql://…")
    store = open_store(address, "", new=True)
    with contextlib.closing(store), translated(address):
        return sorted(study.study_name for study in store.base.get_all_studies())


@contextlib.contextmanager
def closed_on_error(store: Store) -> Iterator[None]:
    try:
        yield
    except BaseException:
        store.close()
        raise


def create_study(
    store: Store, name: str, settings: dict[str, Any], slots: int, heartbeat: float
) -> None:
    """Under the lock: everything that a study needs, or the proof that it is this one."""
    id_, base = make_study(store, name, settings), store.base
    stored = stored_settings(store, name)
    if stored is None:
        if base.get_all_trials(id_, deepcopy=False):
            raise ConfigError(
                f"the study {name!r} in {store.address} was not made by Parformer, "
                "or not copied to its end; choose another --run or --storage"
            )
        set_settings(store, id_, settings, slots, heartbeat)
        return
    check_settings(stored, settings, store.address)
    if base.get_study_user_attrs(id_)[SLOTS] < slots:
        base.set_study_user_attr(id_, SLOTS, slots)
    store.settle()


def make_study(store: Store, name: str, settings: dict[str, Any]) -> int:
    """The number of the study with this name, which may be new and empty."""
    optuna, base, objectives = load_optuna(), store.base, settings["objectives"]
    with contextlib.suppress(KeyError):
        id_ = base.get_study_id_from_name(name)
        if len(base.get_study_directions(id_)) != len(objectives):
            raise ConfigError(
                f"the study {name!r} in {store.address} has another number of objectives; "
                "choose another --run or --storage"
            )
        return id_
    study = optuna.create_study(
        study_name=name, storage=base, directions=["minimize"] * len(objectives)
    )
    study.set_metric_names([str(objective) for objective in objectives])
    failpoint("study.created")
    return base.get_study_id_from_name(name)


def set_settings(
    store: Store, id_: int, settings: dict[str, Any], slots: int, heartbeat: float
) -> None:
    """What makes an empty study one of ours."""
    stored = {"format": FORMAT, "settings": settings, "heartbeat": heartbeat}
    store.base.set_study_user_attr(id_, SLOTS, slots)
    store.base.set_study_user_attr(id_, SETTINGS, stored)
    store.settle()


def fill_study(store: Store, source: Study, name: str, records: Sequence[Record]) -> None:
    """Copy records into a new study; its settings come last and say that it is whole."""
    with store.lock():
        id_, base = make_study(store, name, source.settings), store.base
        if stored_settings(store, name) is not None:
            raise ConfigError(f"{store.address} has a study {name!r} already; choose another name")
        trials = base.get_all_trials(id_, deepcopy=False)
        if any(SLOT not in trial.user_attrs for trial in trials):
            raise ConfigError(f"the study {name!r} in {store.address} was not made by Parformer")
        if trials:  # a copy that was not finished
            base.delete_study(id_)
            id_ = make_study(store, name, source.settings)
        store.add_finished(id_, [trial_of(record) for record in records])
        set_settings(store, id_, source.settings, source.slots, source.heartbeat)


def stored_settings(store: Store, name: str) -> dict[str, Any] | None:
    id_ = store.base.get_study_id_from_name(name)
    stored = store.base.get_study_user_attrs(id_).get(SETTINGS)
    if stored is None:
        return None
    if not isinstance(stored, dict) or not isinstance(stored.get("settings"), dict):
        raise ConfigError(f"the study {name!r} in {store.address} was not made by Parformer")
    check_format(stored.get("format"), store.address)
    settings: dict[str, Any] = stored["settings"]
    return settings


def check_format(found: object, address: Address) -> None:
    if found != FORMAT:
        raise ConfigError(f"{address} has the format {found!r}, and this version reads {FORMAT!r}")


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


class Heart:
    """A thread that says three times per heartbeat that this worker lives."""

    def __init__(self, study: Study) -> None:
        self.study = study
        self.claim: Claim | None = None
        self.stopped = Event()
        self.thread = Thread(target=self.run, daemon=True)

    def run(self) -> None:
        while not self.stopped.wait(self.study.heartbeat / 3):
            # the storage may be away for a moment; whoever needs it will say so
            with contextlib.suppress(Exception):
                self.study.beat(self.claim)

    def __enter__(self) -> Self:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped.set()
        self.thread.join()


def work(
    study: Study,
    propose: Callable[[int, list[Record]], str],
    evaluate: Callable[[str], Outcome],
    *,
    generations: int | Bounds,
    stop: Callable[[], bool] = lambda: False,
    on_record: Callable[[Record], None] = lambda record: None,
) -> None:
    """Work on a study until all its slots are finished, or `stop` says so.

    Any number of processes may do so at once. `propose` is given the records of all earlier
    generations, and `on_record` those that this worker brought in, once they are safe.
    """
    pause, longest = PAUSES
    bounds = evenly(generations) if isinstance(generations, int) else generations
    try:
        with Heart(study) as heart:
            while not stop():
                claim = study.claim(bounds)
                if claim is None and study.is_over():
                    return
                if claim is None:
                    time.sleep(pause)
                    pause = min(1.5 * pause, longest)
                    continue
                pause = PAUSES[0]
                failpoint("study.after-claim")
                heart.claim = claim
                record = try_slot(study, claim, propose, evaluate)
                failpoint("study.before-tell")
                safe = study.tell(claim, record)
                heart.claim = None
                failpoint("study.after-tell")
                for one in safe:
                    on_record(one)
    finally:
        for one in study.settle():
            on_record(one)


def evenly(size: int) -> Bounds:
    """Generations that are all of one size."""
    return lambda slot: (slot - slot % size, slot - slot % size + size)


def try_slot(
    study: Study,
    claim: Claim,
    propose: Callable[[int, list[Record]], str],
    evaluate: Callable[[str], Outcome],
) -> Record:
    """Propose and evaluate; whoever cannot gives the slot back to the others."""
    try:
        genome = propose(claim.slot, study.records(claim.first))
        if claim.deaths >= TRIES:
            why = f"{claim.deaths} workers died while they evaluated it"
            return Record.make(claim.slot, genome, (None, why, {}))
        study.note(claim, genome)
        failpoint("study.after-propose")
        record = Record.make(claim.slot, genome, evaluate(genome))
        assert record.values is None or len(record.values) == len(study.settings["objectives"])
        return record
    except BaseException:
        with contextlib.suppress(ParformerError):
            study.release(claim)
        raise
