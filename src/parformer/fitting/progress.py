"""What of a fit is done, and how much of its time is gone?

One small file, replaced whole after every phase: whoever comes back finds each phase either
done, with its result, or not begun. Trainings keep more than that, in run folders of their own.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from parformer.errors import ConfigError, FolderError, ParformerError
from parformer.fitting.phases import PhaseResult
from parformer.fitting.request import FitRequest
from parformer.store.faults import failpoint
from parformer.store.files import read_json, replace_file

FILE = "fit-notes.json"
FORMAT = "parformer-fit-notes-1"

Clock = Callable[[], float]
Found = TypeVar("Found", bound=PhaseResult)


class Progress:
    """The journal of one fit."""

    def __init__(
        self, path: Path, request: FitRequest | None, clock: Clock = time.monotonic
    ) -> None:
        """Open what is there; without a request the run's own is taken."""
        self.path, self.clock = path, clock
        self._running: float | None = None
        self._values: dict[str, Any] = {"format": FORMAT, "ask": None, "phases": {}}
        if (path / FILE).is_file():
            self._values = self._read()
            self.request = FitRequest.from_dict({**self._values["ask"], "run": str(path)})
            if request is not None:
                self.request.refuse_another(request, path)
        elif request is None:
            raise ConfigError(f"there is no fit at {str(path)!r} yet; name a CORPUS to fit")
        else:
            self.request = request
            self._values["ask"] = request.to_dict()
            self._write()

    def found(self, kind: type[Found]) -> Found | None:
        """What a phase found, if it is done."""
        known = self._values["phases"].get(kind.PHASE, {}).get("result")
        try:
            return None if known is None else kind.from_dict(known, f"{FILE}, {kind.PHASE}")
        except (ParformerError, TypeError, ValueError, KeyError) as error:
            raise self._broken(f"the phase {kind.PHASE!r} cannot be read: {error}") from None

    def need(self, kind: type[Found]) -> Found:
        """What a phase found that is done by now."""
        found = self.found(kind)
        assert found is not None, f"{kind.PHASE} was to be done before"
        return found

    def once(self, kind: type[Found], make: Callable[[], Found]) -> Found:
        """A phase's result, made now if it was not before."""
        if kind.PHASE not in self._done():
            self._store(kind.PHASE, lambda: make().to_dict())
        return self.need(kind)

    def number(self, name: str, make: Callable[[], float]) -> float:
        """Something that a clock decided, decided once."""
        if name not in self._done():
            self._store(name, lambda: {"value": make()})
        (value,) = self._values["phases"][name]["result"].values()
        return float(value)

    def has(self, name: str) -> bool:
        return name in self._done()

    def leave_out(self, name: str, why: str) -> None:
        """Write down that a phase, or a part of it, was given up for want of time."""
        self._values["phases"].setdefault(name, {"seconds": 0.0})["left_out"] = why
        self._write()

    def left_out(self, name: str) -> str:
        """Why a phase was given up; empty if it was not."""
        return str(self._values["phases"].get(name, {}).get("left_out", ""))

    def seconds(self, name: str) -> float | None:
        """How long a phase took so far; None if it was not begun."""
        known = self._values["phases"].get(name)
        return None if known is None else float(known["seconds"])

    @property
    def spent(self) -> float:
        """Seconds of all phases, whenever they ran; a part such as rates.paces is in its whole."""
        phases = self._values["phases"].items()
        now = 0.0 if self._running is None else self.clock() - self._running
        return now + sum(float(phase["seconds"]) for name, phase in phases if "." not in name)

    def timed(self, name: str, work: Callable[[], object]) -> None:
        """Do what leaves no result here, and count its time."""
        self._timed(name, work)

    def _done(self) -> set[str]:
        return {name for name, phase in self._values["phases"].items() if "result" in phase}

    def _store(self, name: str, make: Callable[[], dict[str, Any]]) -> None:
        result = self._timed(name, make)
        # as it will be read back: no tuple, no key that is a number
        self._values["phases"][name]["result"] = json.loads(json.dumps(result))
        self._write()
        failpoint("fit.after-phase")

    def _timed(self, name: str, make: Callable[[], Any]) -> Any:
        began, outermost = self.clock(), self._running is None
        if outermost:
            self._running = began
        try:
            return make()
        finally:
            phase = self._values["phases"].setdefault(name, {"seconds": 0.0})
            phase["seconds"] += self.clock() - began
            if outermost:
                self._running = None
            self._write()

    def _write(self) -> None:
        replace_file(self.path / FILE, json.dumps(self._values) + "\n")

    def _read(self) -> dict[str, Any]:
        try:
            values = read_json(self.path / FILE)
        except FolderError as error:
            raise self._broken(str(error)) from None
        if values.get("format") != FORMAT:
            raise self._broken("it was not written by a fit")
        phases = values.get("phases")
        whole = isinstance(phases, dict) and all(map(_is_phase, phases.values()))
        if not whole or not isinstance(values.get("ask"), Mapping):
            raise self._broken("its phases or its request are missing")
        return values

    def _broken(self, why: str) -> FolderError:
        return FolderError(
            f"{str(self.path / FILE)!r} is broken ({why}); remove {str(self.path)!r} and fit anew, "
            "or choose another --run"
        )


def _is_phase(value: object) -> bool:
    return (
        isinstance(value, Mapping)
        and isinstance(value.get("seconds"), int | float)
        and isinstance(value.get("result", {}), Mapping)
    )
