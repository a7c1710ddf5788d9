"""Where is a study kept, and who may write to it?

Two tables of ours, in memory or in a database: `sqlite:PATH` for the processes of one machine,
`postgresql://…` for many machines.

>>> print(read_address("sqlite:runs/study.db"))
sqlite:runs/study.db
>>> print(read_address("postgresql://anna:secret@host/search"))
postgresql://anna:***@host/search

Every change of a study is one transaction under one lock: all of it is there, or nothing.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import sqlite3
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import RLock
from typing import Any, TypeAlias, TypeVar

from parformer.errors import ConfigError, FolderError, MissingExtra, ParformerError, need
from parformer.store.files import reason, sync
from parformer.store.lock import Held, lock

KNOWN = "memory, sqlite:PATH or postgresql://USER:PASSWORD@HOST/NAME"
OLD = ("notebook", "journal")
"""Files that version 0.1 kept studies in; they live on in a database beside them."""
BUSY = 60
"""Seconds that a database may be busy with others before that is an error."""
PATIENCE = 30.0
"""Seconds for which a database that does not answer is asked again."""
SYNCED = 1.0
"""Seconds of results that a power cut may take; nothing else takes any."""
NUMBER = 0x50A2F0
"""Sets our lock in a PostgreSQL database apart from those of other programs."""

TABLES = (
    """CREATE TABLE IF NOT EXISTS parformer_studies (
        name TEXT PRIMARY KEY,
        format TEXT NOT NULL,
        settings TEXT NOT NULL,
        slots INTEGER NOT NULL,
        heartbeat DOUBLE PRECISION NOT NULL)""",
    """CREATE TABLE IF NOT EXISTS parformer_slots (
        study TEXT NOT NULL,
        slot INTEGER NOT NULL,
        worker TEXT NOT NULL,
        beat DOUBLE PRECISION NOT NULL,
        deaths INTEGER NOT NULL DEFAULT 0,
        genome TEXT,
        record TEXT,
        PRIMARY KEY (study, slot))""",
)
"""A slot has a row once somebody claimed it: its worker and when that was last heard of, the
genome that it evaluates, and in the end the record."""

Row: TypeAlias = tuple[Any, ...]
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Address:
    """A storage as the user wrote it; as text it never shows a password."""

    kind: str
    """memory, sqlite, postgresql, or one of OLD."""
    path: Path = Path()
    url: str = ""

    def __str__(self) -> str:
        if self.kind == "memory":
            return self.kind
        return without_password(self.url) if self.url else f"{self.kind}:{self.path}"

    @property
    def database(self) -> Address:
        """Where its study lives now."""
        return Address("sqlite", self.path.with_suffix(".db")) if self.kind in OLD else self


def read_address(text: str) -> Address:
    kind, colon, rest = text.partition(":")
    if text == "memory":
        return Address(kind)
    if kind in (*OLD, "sqlite") and colon:
        place = rest[3:] if kind == "sqlite" and rest.startswith("///") else rest
        if not place or "\0" in place or place.startswith(("//", ":memory:")):
            raise ConfigError(f"no path in the storage {text!r}; write {kind}:PATH")
        return Address(kind, path=Path(place))
    if kind.partition("+")[0] in ("postgres", "postgresql"):  # with any driver, which is ours
        return Address("postgresql", url=f"postgresql:{rest}")
    raise ConfigError(f"unknown storage {without_password(text)!r}; known: {KNOWN}")


def without_password(text: str) -> str:
    """The same text with *** in place of what stands between a user's name and the host."""
    text = re.sub(r"(//[^:/@\s]*):[^\s]*@", r"\1:***@", text)
    return re.sub(r"(password=)[^&\s]*", r"\1***", text)


class Database(ABC):
    """Our tables, and what a database of this kind lacks."""

    now: str
    """The seconds of its clock, in SQL."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.mutex = RLock()
        self.worker = f"{os.uname().nodename}:{os.getpid()}:{secrets.token_hex(6)}"

    @abstractmethod
    def ask(self, question: str, *values: object) -> list[Row]:
        """What a question in SQL is answered with; `?` stands for each of the values."""

    @abstractmethod
    def change(self, study: str) -> contextlib.AbstractContextManager[None]:
        """Nobody else changes the study inside; all of it is kept, or nothing."""

    @abstractmethod
    def has_table(self, name: str) -> bool: ...

    @abstractmethod
    def close(self) -> None: ...

    def is_gone(self, worker: str) -> bool:
        """Whether a worker is known to be dead; where nobody can know, heartbeats decide."""
        return False

    def appear(self) -> None:  # noqa: B027
        """From now on others can see that this worker lives; called inside a change."""

    def settle(self) -> None:  # noqa: B027
        """What was kept outlives a power cut."""

    def patiently(self, action: Callable[[], Answer]) -> Answer:
        """Ask again while the database is away for a moment; an action may run more than once."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                return action()
            except Exception as error:
                if not is_trouble(error) or time.monotonic() > deadline:
                    with translated(self.address):
                        raise
                time.sleep(1.0)


class Sqlite(Database):
    """One file, many processes of one machine; a locked file beside it shows who lives."""

    now = "(julianday('now') - 2440587.5) * 86400.0"

    def __init__(self, address: Address) -> None:
        super().__init__(address)
        self.path = address.path
        self.shared = address.kind != "memory"
        self.presence, self.settled = contextlib.ExitStack(), 0.0
        self.present = False
        if self.shared:
            self.refuse_foreign()
        place = str(self.path) if self.shared else ":memory:"
        self.connection = sqlite3.connect(
            place, timeout=BUSY, isolation_level=None, check_same_thread=False
        )
        try:
            mode = self.write_ahead()
            # `settle` makes a result durable; what comes before it need not be
            self.ask(f"PRAGMA synchronous={'FULL' if mode == 'delete' else 'NORMAL'}")
            with self.change(""):
                self.sweep()
                for table in TABLES:
                    self.ask(table)
        except BaseException:
            self.connection.close()
            raise

    def write_ahead(self) -> str:
        """Readers then never wait for writers, nor writers for readers; the mode that it is in."""
        until = time.monotonic() + BUSY
        while True:
            try:
                ((mode,),) = self.ask("PRAGMA journal_mode=WAL")
                return str(mode)
            except sqlite3.OperationalError as error:
                # while others open a new file SQLite does not wait by itself
                if "locked" not in str(error) or time.monotonic() > until:
                    raise
                time.sleep(0.02)

    def refuse_foreign(self) -> None:
        """Nothing is written beside or into a file that is not ours."""
        if not self.path.parent.is_dir():
            raise FolderError(
                f"cannot use the storage {str(self.address)!r}: "
                f"there is no folder {str(self.path.parent)!r}"
            )
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            start = file.read(16)
        if start not in (b"", b"SQLite format 3\0"):
            raise FolderError(f"{str(self.path)!r} is not a database")
        with contextlib.closing(sqlite3.connect(self.path, timeout=BUSY)) as connection:
            found = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            names = {name for (name,) in found}
        if names and not names & {"parformer_studies", "studies"}:
            raise FolderError(f"{str(self.path)!r} is a database of another program")

    def ask(self, question: str, *values: object) -> list[Row]:
        with self.mutex:
            return self.connection.execute(question, values).fetchall()

    @contextlib.contextmanager
    def change(self, study: str) -> Iterator[None]:
        with self.mutex:
            self.ask("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self.ask("ROLLBACK")
                raise
            self.ask("COMMIT")

    def has_table(self, name: str) -> bool:
        return bool(self.ask("SELECT 1 FROM sqlite_master WHERE name = ?", name))

    def alive_file(self, worker: str) -> Path:
        return Path(f"{self.path}.{worker.rpartition(':')[2]}.alive")

    def appear(self) -> None:
        if self.shared and not self.present:
            self.presence.enter_context(lock(self.alive_file(self.worker), leave=False))
            self.present = True

    def is_gone(self, worker: str) -> bool:
        return self.shared and not is_held(self.alive_file(worker))

    def sweep(self) -> None:
        """Remove what killed workers left behind."""
        literal = re.sub(r"([*?[])", r"[\1]", self.path.name)
        for file in self.path.parent.glob(f"{literal}.*.alive") if self.shared else ():
            is_held(file)

    def settle(self) -> None:
        if self.shared and time.monotonic() - self.settled > SYNCED:
            with contextlib.suppress(FileNotFoundError):  # all in the database, and durable
                sync(Path(f"{self.path}-wal"))
            self.settled = time.monotonic()

    def close(self) -> None:
        with self.mutex:
            self.settled = 0.0
            self.settle()
            self.connection.close()
            self.presence.close()
            self.present = False


def is_held(file: Path) -> bool:
    """Whether a living process has this file locked; if none has, it goes."""
    if not file.exists():
        return False
    try:
        with lock(file, leave=False) as locked:
            return not locked
    except Held:
        return True


class Postgres(Database):
    """A server, many machines."""

    now = "CAST(extract(epoch from clock_timestamp()) AS double precision)"

    def __init__(self, address: Address) -> None:
        super().__init__(address)
        try:
            self.psycopg = need("psycopg", extra="postgres")
        except ImportError:
            raise MissingExtra(
                "psycopg finds no libpq: pip install 'parformer[postgres]'"
            ) from None
        self.url = checked_url(address)
        self.connection = self.connect()
        try:
            with self.connection.transaction():
                # two that make the tables at once would collide
                self.ask("SELECT pg_advisory_xact_lock(?, 0)", NUMBER)
                for table in TABLES:
                    self.ask(table)
        except BaseException:
            self.connection.close()
            raise

    def connect(self) -> Any:
        # a machine that falls silent gives its lock back when the server loses patience
        patience = f"-c lock_timeout={BUSY}s -c idle_in_transaction_session_timeout={BUSY}s"
        return self.psycopg.connect(
            self.url,
            connect_timeout=10,
            autocommit=True,
            options=patience,
            client_encoding="utf8",
        )

    def ask(self, question: str, *values: object) -> list[Row]:
        with self.mutex:
            if self.connection.closed:
                self.connection = self.connect()
            cursor = self.connection.execute(question.replace("?", "%s"), values)
            return cursor.fetchall() if cursor.description else []

    @contextlib.contextmanager
    def change(self, study: str) -> Iterator[None]:
        with self.mutex:
            self.ask("SELECT 1")  # opens a connection that was lost
            with self.connection.transaction():
                self.ask("SELECT pg_advisory_xact_lock(?, hashtext(?))", NUMBER, study)
                yield

    def has_table(self, name: str) -> bool:
        ((found,),) = self.ask("SELECT to_regclass(?)::text", name)
        return found is not None

    def close(self) -> None:
        with self.mutex:
            self.connection.close()


def checked_url(address: Address) -> str:
    """The address for psycopg, which would tell half a password where there is an @ in it."""
    rest = address.url.partition("://")[2].partition("?")[0].partition("/")[0]
    host = rest.rpartition("@")[2]
    if rest.count("@") > 1 or not re.fullmatch(r"[^:]*(:\d+)?|\[.*\](:\d+)?", host):
        raise ConfigError(
            f"cannot read the storage {str(address)!r}; write "
            "postgresql://USER:PASSWORD@HOST:PORT/NAME, and %40 for @ in a password"
        )
    return address.url


def open_database(address: Address, *, new: bool) -> Database:
    """The database at an address; with `new` it is made where there is none."""
    if address.kind == "sqlite" and not new and not address.path.is_file():
        raise ConfigError(f"there is no study at {address}: no such file")
    with translated(address):
        return Postgres(address) if address.kind == "postgresql" else Sqlite(address)


@contextlib.contextmanager
def translated(address: Address) -> Iterator[None]:
    """Turn whatever a database answers into one line without a password."""
    try:
        yield
    except Exception as error:
        if not is_trouble(error):
            raise
        kind = ConfigError if address.kind == "postgresql" else FolderError
        text = reason(error).strip() or type(error).__name__
        said = without_password(text.splitlines()[0].strip())
        raise kind(f"cannot use the storage {str(address)!r}: {said}") from None


def is_trouble(error: Exception) -> bool:
    """Whether this is a database's or a disk's, and none of ours."""
    if isinstance(error, ParformerError):
        return False
    kinds: tuple[type[Exception], ...] = (sqlite3.Error, OSError)
    if "psycopg" in sys.modules:
        kinds += (sys.modules["psycopg"].Error,)
    return isinstance(error, kinds)
