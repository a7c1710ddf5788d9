"""What of a fit is done, and how much of its time is gone?

One small file, replaced whole after every phase: whoever comes back finds each phase either
done, with its result, or not begun. Trainings keep more than that, in run folders of their own.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from parformer.errors import ConfigError, FolderError, ParformerError
from parformer.fitting.phases import PhaseResult
from parformer.fitting.request import FitRequest
from parformer.records import Record
from parformer.store.faults import failpoint
from parformer.store.files import read_json, replace_file

FILE = "fit-notes.json"

Clock = Callable[[], float]
Found = TypeVar("Found", bound=PhaseResult)


@dataclass(frozen=True)
class Notes(Record):
    """What is known of one phase, or of a part of one."""

    seconds: float = 0.0
    result: Any = None
    """What it found, as JSON has it; None while it is not done."""
    left_out: str = ""
    """Why it was given up though it was planned."""


@dataclass(frozen=True)
class Journal(Record):
    """What the file holds."""

    ask: Any
    phases: dict[str, Notes]
    format: Literal["parformer-fit-notes-1"] = "parformer-fit-notes-1"


class Progress:
    """The journal of one fit."""

    def __init__(
        self, path: Path, request: FitRequest | None, clock: Clock = time.monotonic
    ) -> None:
        """Open what is there; without a request the run's own is taken."""
        self.path, self.clock = path, clock
        self._running: float | None = None
        self._phases: dict[str, Notes] = {}
        if (path / FILE).is_file():
            try:
                journal = Journal.from_dict(read_json(path / FILE), FILE)
                self.request = FitRequest.from_dict({**journal.ask, "run": str(path)})
            except (ParformerError, TypeError) as error:
                raise self._broken(str(error)) from None
            self._phases = journal.phases
            if request is not None:
                self.request.refuse_another(request, path)
        elif request is None:
            raise ConfigError(f"there is no fit at {str(path)!r} yet; name a CORPUS to fit")
        else:
            self.request = request
            self._write()

    def found(self, kind: type[Found]) -> Found | None:
        """What a phase found, if it is done."""
        if not self.has(kind.PHASE):
            return None
        try:
            return kind.from_dict(self._phases[kind.PHASE].result, f"{FILE}, {kind.PHASE}")
        except (ParformerError, TypeError, ValueError, KeyError) as error:
            raise self._broken(f"the phase {kind.PHASE!r} cannot be read: {error}") from None

    def need(self, kind: type[Found]) -> Found:
        """What a phase found that is done by now."""
        found = self.found(kind)
        assert found is not None, f"{kind.PHASE} was to be done before"
        return found

    def once(self, kind: type[Found], make: Callable[[], Found]) -> Found:
        """A phase's result, made now if it was not before."""
        if not self.has(kind.PHASE):
            self._store(kind.PHASE, lambda: make().to_dict())
        return self.need(kind)

    def number(self, name: str, make: Callable[[], float]) -> float:
        """Something that a clock decided, decided once."""
        if not self.has(name):
            self._store(name, lambda: {"value": make()})
        (value,) = self._phases[name].result.values()
        return float(value)

    def has(self, name: str) -> bool:
        """Whether a phase is done."""
        return name in self._phases and self._phases[name].result is not None

    def leave_out(self, name: str, why: str) -> None:
        """Write down that a phase, or a part of it, was given up for want of time."""
        self._phases[name] = replace(self._phases.get(name, Notes()), left_out=why)
        self._write()

    def left_out(self, name: str) -> str:
        """Why a phase was given up; empty if it was not."""
        return self._phases.get(name, Notes()).left_out

    def seconds(self, name: str) -> float | None:
        """How long a phase took so far; None if it was not begun."""
        return self._phases[name].seconds if name in self._phases else None

    @property
    def spent(self) -> float:
        """Seconds of all phases, whenever they ran; a part such as rates.paces is in its whole."""
        now = 0.0 if self._running is None else self.clock() - self._running
        return now + sum(one.seconds for name, one in self._phases.items() if "." not in name)

    def timed(self, name: str, work: Callable[[], Any]) -> Any:
        """Do something, and count its time as that of a phase."""
        began, outermost = self.clock(), self._running is None
        if outermost:
            self._running = began
        try:
            return work()
        finally:
            known = self._phases.get(name, Notes())
            self._phases[name] = replace(known, seconds=known.seconds + self.clock() - began)
            if outermost:
                self._running = None
            self._write()

    def _store(self, name: str, make: Callable[[], Any]) -> None:
        result = self.timed(name, make)
        # as it will be read back: no tuple, no key that is a number
        stored = json.loads(json.dumps(result))
        self._phases[name] = replace(self._phases[name], result=stored)
        self._write()
        failpoint("fit.after-phase")

    def _write(self) -> None:
        journal = Journal(self.request.to_dict(), self._phases)
        replace_file(self.path / FILE, json.dumps(journal.to_dict()) + "\n")

    def _broken(self, why: str) -> FolderError:
        return FolderError(
            f"{str(self.path / FILE)!r} is broken ({why}); remove {str(self.path)!r} and fit anew, "
            "or choose another --run"
        )
