"""Where is a study kept, and who may write to it?

`memory` and `notebook:PATH` are one process's own, and so is `journal:PATH`, in Optuna's own
format; `sqlite:PATH` is for many processes of one machine, `postgresql://…` for many machines.

>>> print(read_address("sqlite:runs/study.db"))
sqlite:runs/study.db
>>> print(read_address("postgresql://anna:secret@host/search"))
postgresql://anna:***@host/search

Optuna brings the tables, the caches and the heartbeats. What it lacks is here: one lock under
which every change of a study is made, on SQLite and PostgreSQL alike; workers of one machine
whose death shows at once.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import secrets
import sqlite3
import time
import warnings
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar, cast

from parformer.errors import ConfigError, FolderError, MissingExtra, ParformerError, need
from parformer.store.files import reason, sync
from parformer.store.lines import Lines

if TYPE_CHECKING:
    import optuna
    import sqlalchemy

KNOWN = "memory, notebook:PATH, journal:PATH, sqlite:PATH or postgresql://USER:PASSWORD@HOST/NAME"
BUSY = 60
"""Seconds that a database may be busy with others before that is an error."""
PATIENCE = 30.0
"""Seconds for which a database that does not answer is asked again."""
SCHEMA = "v3.2.0.a"
"""The layout of Optuna's tables that records are copied into."""
NUMBER_OF_LOCKS = 0x50A2F0
"""Sets our locks in a PostgreSQL database apart from those of other programs."""

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Address:
    """A storage as the user wrote it; as text it never shows a password."""

    kind: str
    """memory, notebook, journal, sqlite or postgresql."""
    path: Path = Path()
    url: str = ""

    def __str__(self) -> str:
        if self.kind == "memory":
            return self.kind
        return without_password(self.url) if self.url else f"{self.kind}:{self.path}"


def read_address(text: str) -> Address:
    kind, colon, rest = text.partition(":")
    if text == "memory":
        return Address(kind)
    if kind in ("notebook", "journal", "sqlite") and colon:
        place = rest[3:] if kind == "sqlite" and rest.startswith("///") else rest
        if not place or "\0" in place or place.startswith(("//", ":memory:")):
            raise ConfigError(f"no path in the storage {text!r}; write {kind}:PATH")
        return Address(kind, path=Path(place))
    if kind in ("postgres", "postgresql") or kind.startswith("postgresql+"):
        return Address("postgresql", url=text)
    raise ConfigError(f"unknown storage {without_password(text)!r}; known: {KNOWN}")


def without_password(text: str) -> str:
    """The same text with *** in place of what stands between a user's name and the host."""
    text = re.sub(r"(//[^:/@\s]*):[^\s]*@", r"\1:***@", text)
    return re.sub(r"(password=)[^&\s]*", r"\1***", text)


class Store(ABC):
    """An open storage of Optuna with what it lacks."""

    base: optuna.storages.BaseStorage

    def __init__(self, address: Address) -> None:
        self.address = address
        self.worker = f"{os.uname().nodename}:{os.getpid()}:{secrets.token_hex(6)}"
        """Whose trials are ours."""

    @abstractmethod
    def lock(self) -> contextlib.AbstractContextManager[object]:
        """Nobody else changes the study inside; not to be entered twice."""

    @abstractmethod
    def is_gone(self, worker: str) -> bool:
        """Whether a worker is known to be dead; where nobody can know, heartbeats decide."""

    def appear(self) -> None:  # noqa: B027
        """From now on others can see that this worker lives; called under the lock."""

    def beat(self, trial: int) -> None:  # noqa: B027
        """Say that a trial is being worked on."""

    def fail_stale(self, study: optuna.Study, heartbeat: float) -> None:  # noqa: B027
        """Fail the trials of this study whose worker has been silent for too long."""

    def settle(self) -> None:  # noqa: B027
        """What was written outlives a power cut."""

    @abstractmethod
    def add_finished(self, study: int, trials: Sequence[optuna.trial.FrozenTrial]) -> None:
        """Many trials of a new study at once."""

    @abstractmethod
    def close(self) -> None: ...


class JournalStore(Store):
    """Optuna's journal in a file of our own: no trial of another process can be alive."""

    def __init__(self, address: Address) -> None:
        super().__init__(address)
        optuna = load_optuna()
        self.mutex = Lock()
        self.lines = Lines(address.path, b'{"op_code":', read_operation)
        self.logs: list[dict[str, Any]] = self.lines.found
        try:
            self.base = optuna.storages.JournalStorage(cast(Any, self))
        except Exception as error:
            self.lines.close()
            raise FolderError(
                f"{str(address.path)!r} is not a journal of Optuna: {first_line(error)}"
            ) from None

    def read_logs(self, log_number_from: int) -> Iterable[dict[str, Any]]:
        """As Optuna's journals ask for it."""
        return self.logs[log_number_from:]

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """As Optuna's journals ask for it."""
        lines = [json.dumps(log, separators=(",", ":")) + "\n" for log in logs]
        self.lines.add("".join(lines).encode())
        # as others will read it: enumerations are numbers then
        self.logs += [json.loads(line) for line in lines]

    def lock(self) -> contextlib.AbstractContextManager[object]:
        return self.mutex

    def is_gone(self, worker: str) -> bool:
        return worker != self.worker

    def settle(self) -> None:
        self.lines.settle()

    def add_finished(self, study: int, trials: Sequence[optuna.trial.FrozenTrial]) -> None:
        for trial in trials:
            self.base.create_new_trial(study, trial)

    def close(self) -> None:
        self.lines.close()


def read_operation(line: bytes) -> dict[str, Any]:
    value = json.loads(line)
    if not isinstance(value, dict) or "op_code" not in value:
        raise ValueError("not an operation of Optuna's journal")
    return value


class TableStore(Store):
    """Optuna's tables in a database, with heartbeats."""

    base: optuna.storages.RDBStorage

    def open(self, url: str, **options: Any) -> None:
        optuna = load_optuna()
        # Optuna fills in {SCHEMA_VERSION}; a password may have braces of its own
        escaped = url.replace("{", "{{").replace("}", "}}")
        self.base = optuna.storages.RDBStorage(escaped, engine_kwargs=options)

    def beat(self, trial: int) -> None:
        self.base.record_heartbeat(trial)

    def fail_stale(self, study: optuna.Study, heartbeat: float) -> None:
        optuna = load_optuna()
        # Optuna's clock counts whole seconds here: two of them, and the third of a heartbeat
        # after which the next worker looks, must still fit into two heartbeats
        self.base.heartbeat_interval = max(1, int(heartbeat))
        self.base.grace_period = max(1, int(heartbeat * 5 / 3 - 2))
        optuna.storages.fail_stale_trials(study)

    def add_finished(self, study: int, trials: Sequence[optuna.trial.FrozenTrial]) -> None:
        """All in one transaction; one by one Optuna takes twenty times as long."""
        import sqlalchemy

        if self.base.get_current_version() != SCHEMA:
            raise ConfigError(
                f"{self.address} has tables of another version of Optuna; copy to journal:PATH"
            )
        tables = sqlalchemy.MetaData()
        names = ("trials", "trial_values", "trial_user_attributes")
        tables.reflect(self.base.engine, only=names)
        trial_table, value_table, attribute_table = (tables.tables[name] for name in names)
        now = datetime.now(UTC).replace(tzinfo=None)
        when = {"datetime_start": now, "datetime_complete": now}
        rows = [
            {"number": number, "study_id": study, "state": trial.state.name, **when}
            for number, trial in enumerate(trials)
        ]
        column = trial_table.c.trial_id
        added = sqlalchemy.insert(trial_table).returning(column, sort_by_parameter_order=True)
        with self.base.engine.begin() as connection:
            ids = connection.execute(added, rows).scalars() if rows else ()
            numbered = list(zip(ids, trials, strict=True))
            values = [
                {"trial_id": id_, "objective": place, "value": value, "value_type": "FINITE"}
                for id_, trial in numbered
                for place, value in enumerate(trial.values or ())
            ]
            attributes = [
                {"trial_id": id_, "key": key, "value_json": json.dumps(value)}
                for id_, trial in numbered
                for key, value in trial.user_attrs.items()
            ]
            for table, found in ((value_table, values), (attribute_table, attributes)):
                if found:
                    connection.execute(sqlalchemy.insert(table), found)

    def close(self) -> None:
        self.base.remove_session()
        self.base.engine.dispose()


class SqliteStore(TableStore):
    """One file, many processes of one machine. A locked file beside it shows who lives."""

    def __init__(self, address: Address) -> None:
        super().__init__(address)
        self.presence = -1
        self.refuse_foreign()
        with self.lock():
            self.sweep()
            self.open("sqlite:///study", creator=self.connect)

    def connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.address.path, timeout=BUSY, check_same_thread=False)
        try:
            # readers then never wait for writers, nor writers for readers
            ((mode,),) = connection.execute("PRAGMA journal_mode=WAL")
            # `settle` makes a result durable; what comes before it need not be
            connection.execute(f"PRAGMA synchronous={'NORMAL' if mode == 'wal' else 'FULL'}")
        except BaseException:
            connection.close()
            raise
        return connection

    def refuse_foreign(self) -> None:
        """Nothing is written beside or into a file that is not ours."""
        path = self.address.path
        if not path.exists():
            return
        with path.open("rb") as file:
            start = file.read(16)
        if start not in (b"", b"SQLite format 3\0"):
            raise FolderError(f"{str(path)!r} is not a database")
        with contextlib.closing(sqlite3.connect(path, timeout=BUSY)) as connection:
            found = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            names = {name for (name,) in found}
        if names and "studies" not in names:
            raise FolderError(f"{str(path)!r} is a database of another program")

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        # a file of its own: to close the database's would give up SQLite's own locks
        handle = os.open(f"{self.address.path}.lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def alive_file(self, worker: str) -> Path:
        return Path(f"{self.address.path}.{worker.rpartition(':')[2]}.alive")

    def appear(self) -> None:
        if self.presence < 0:
            self.presence = os.open(self.alive_file(self.worker), os.O_RDWR | os.O_CREAT, 0o644)
            fcntl.flock(self.presence, fcntl.LOCK_EX)

    def is_gone(self, worker: str) -> bool:
        return not is_held(self.alive_file(worker))

    def settle(self) -> None:
        with contextlib.suppress(FileNotFoundError):  # all in the database by now, and durable
            sync(Path(f"{self.address.path}-wal"))

    def sweep(self) -> None:
        """Remove what killed workers left behind."""
        for file in self.address.path.parent.glob(
            f"{glob_literal(self.address.path.name)}.*.alive"
        ):
            is_held(file)

    def close(self) -> None:
        super().close()
        if self.presence >= 0:
            self.alive_file(self.worker).unlink(missing_ok=True)
            os.close(self.presence)
            self.presence = -1


def glob_literal(name: str) -> str:
    return re.sub(r"([*?[])", r"[\1]", name)


def is_held(file: Path) -> bool:
    """Whether a living process has this file locked; if none has, it goes."""
    try:
        handle = os.open(file, os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(handle)
    file.unlink(missing_ok=True)
    return False


class PostgresStore(TableStore):
    """A server, many machines."""

    def __init__(self, address: Address, name: str) -> None:
        super().__init__(address)
        self.number = zlib.crc32(name.encode()) - 2**31
        url = postgres_url(address)
        import sqlalchemy

        options = {"connect_args": {"connect_timeout": 10}, "pool_pre_ping": True}
        engine = sqlalchemy.create_engine(url, **options)
        try:
            with self.hold(engine, 0):  # two that make the tables at once would collide
                self.open(url, **options)
        finally:
            engine.dispose()

    @contextlib.contextmanager
    def hold(self, engine: sqlalchemy.Engine, number: int) -> Iterator[None]:
        import sqlalchemy

        # a machine that falls silent inside gives the lock back when the server loses patience
        wait = f"set_config('lock_timeout', '{BUSY}s', true)"
        silence = f"set_config('idle_in_transaction_session_timeout', '{BUSY}s', true)"
        with engine.begin() as connection:
            connection.execute(sqlalchemy.text(f"SELECT {wait}, {silence}"))
            lock = f"SELECT pg_advisory_xact_lock({NUMBER_OF_LOCKS}, {number})"
            connection.execute(sqlalchemy.text(lock))
            yield

    def lock(self) -> contextlib.AbstractContextManager[object]:
        return self.hold(self.base.engine, self.number)

    def is_gone(self, worker: str) -> bool:
        return False


def postgres_url(address: Address) -> str:
    """The address with the driver that we bring."""
    import sqlalchemy

    try:
        url = sqlalchemy.make_url(address.url)
        if "@" in (url.host or ""):
            raise ValueError("the rest of a password")
    except (sqlalchemy.exc.ArgumentError, ValueError):
        raise ConfigError(
            f"cannot read the storage {str(address)!r}; write "
            "postgresql://USER:PASSWORD@HOST:PORT/NAME, and %40 for @ in a password"
        ) from None
    if url.drivername in ("postgres", "postgresql"):
        try:
            need("psycopg", extra="postgres")
        except ImportError:
            raise MissingExtra(
                "psycopg finds no libpq: pip install 'parformer[postgres]'"
            ) from None
        url = url.set(drivername="postgresql+psycopg")
    return url.render_as_string(hide_password=False)


def open_store(address: Address, name: str, *, new: bool) -> Store:
    """The storage at an address; with `new` it is made where there is none."""
    if address.kind != "postgresql" and not new and not address.path.is_file():
        raise ConfigError(f"there is no study at {address}: no such file")
    with translated(address):
        if address.kind == "journal":
            return JournalStore(address)
        if address.kind == "sqlite":
            return SqliteStore(address)
        return PostgresStore(address, name)


def load_optuna() -> Any:
    """Optuna, silent: what goes wrong is said by our own errors."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.CRITICAL)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    return optuna


@contextlib.contextmanager
def translated(address: Address) -> Iterator[None]:
    """Turn whatever a storage answers into one line without a password."""
    try:
        yield
    except (ParformerError, AssertionError):
        raise
    except ImportError as error:
        raise MissingExtra(
            f"no driver for {address}: {first_line(error)}; pip install 'parformer[postgres]'"
        ) from None
    except Exception as error:
        if not is_storage_error(error):
            raise
        kind = ConfigError if address.kind == "postgresql" else FolderError
        said = without_password(first_line(error))
        raise kind(f"cannot use the storage {str(address)!r}: {said}") from None


def is_storage_error(error: Exception) -> bool:
    import sqlalchemy

    optuna = load_optuna()
    if isinstance(error, RuntimeError):
        return "compatible with the table schema" in str(error)
    kinds = (sqlalchemy.exc.SQLAlchemyError, optuna.exceptions.StorageInternalError)
    return isinstance(error, (*kinds, sqlite3.Error, OSError))


def first_line(error: BaseException) -> str:
    """What the innermost error said first."""
    while error.__cause__ is not None:
        error = error.__cause__
    inner = getattr(error, "orig", None) or error
    text = reason(inner) if isinstance(inner, Exception) else str(inner)
    return (text.strip() or type(inner).__name__).splitlines()[0].strip()


def patiently(address: Address, action: Callable[[], Result]) -> Result:
    """Ask again while a database is away for a moment; the action may run more than once."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return action()
        except (ParformerError, AssertionError):
            raise
        except Exception as error:
            if not is_storage_error(error) or time.monotonic() > deadline:
                with translated(address):
                    raise
            time.sleep(1.0)
