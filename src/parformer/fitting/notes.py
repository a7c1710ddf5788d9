"""What of a fit is done, and how much of its time is gone?

One small file, replaced whole after every phase: whoever comes back finds each phase either
done, with its result, or not begun. Trainings keep more than that, in run folders of their own.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from parformer.errors import ConfigError, FolderError
from parformer.fitting.ask import Ask
from parformer.store import folder
from parformer.store.faults import failpoint
from parformer.store.files import replace_file

FILE = "fit-notes.json"
FORMAT = "parformer-fit-notes-1"

Result = dict[str, Any]


class Notes:
    """The notes of one run."""

    def __init__(self, path: Path, ask: Ask | None) -> None:
        """Open what is there; without an ask the run's own is taken."""
        self.path = path
        self._running: float | None = None
        self._values: dict[str, Any] = {"format": FORMAT, "ask": None, "phases": {}}
        if (path / FILE).is_file():
            self._values = self._read()
            self.ask = Ask.from_dict(self._values["ask"])
            if ask is not None:
                refuse_another(self.ask, ask, path)
        elif ask is None:
            raise ConfigError(f"there is no fit at {str(path)!r} yet; name a CORPUS to fit")
        else:
            self.ask = ask
            self._values["ask"] = ask.to_dict()
            self._write()

    def once(self, name: str, make: Callable[[], Result]) -> Result:
        """A phase's result, made now if it was not before."""
        known = self._values["phases"].get(name)
        if known is not None and "result" in known:
            found: Result = known["result"]
            return found
        began = time.monotonic()
        outermost = self._running is None
        if outermost:
            self._running = began
        try:
            result = make()
        except BaseException:
            self._count(name, time.monotonic() - began)
            raise
        finally:
            if outermost:
                self._running = None
        self._count(name, time.monotonic() - began, result)
        failpoint("fit.after-phase")
        stored: Result = self._values["phases"][name]["result"]
        return stored

    def has(self, name: str) -> bool:
        return "result" in self._values["phases"].get(name, {})

    def seconds(self, name: str) -> float | None:
        """How long a phase took so far; None if it was not begun."""
        known = self._values["phases"].get(name)
        return None if known is None else float(known["seconds"])

    @property
    def spent(self) -> float:
        """Seconds of all phases, whenever they ran; a part such as rates.paces is in its whole."""
        phases = self._values["phases"].items()
        now = 0.0 if self._running is None else time.monotonic() - self._running
        return now + sum(float(phase["seconds"]) for name, phase in phases if "." not in name)

    def _count(self, name: str, seconds: float, result: Result | None = None) -> None:
        phase = self._values["phases"].setdefault(name, {"seconds": 0.0})
        phase["seconds"] += seconds
        if result is not None:
            # as it will be read back: no tuple, no key that is a number
            phase["result"] = json.loads(json.dumps(result))
        self._write()

    def _write(self) -> None:
        replace_file(self.path / FILE, json.dumps(self._values) + "\n")

    def _read(self) -> dict[str, Any]:
        values = folder.read_json(self.path, FILE)
        if not isinstance(values, dict) or values.get("format") != FORMAT:
            raise FolderError(f"{str(self.path / FILE)!r} was not written by a fit")
        if not isinstance(values.get("phases"), dict) or not isinstance(values.get("ask"), Mapping):
            raise FolderError(f"{str(self.path / FILE)!r} is broken; choose another --run")
        return values


def refuse_another(stored: Ask, asked: Ask, path: Path) -> None:
    """A run answers one question; what only its report says may change."""
    for name in ("watts", "grid", "price", "currency", "local"):
        asked = Ask.from_dict({**asked.to_dict(), name: getattr(stored, name)})
    if stored == asked:
        return
    old, new = stored.to_dict(), asked.to_dict()
    name = next(name for name in old if old[name] != new[name])
    raise ConfigError(
        f"{name} is {old[name]!r} in the run {str(path)!r} and {new[name]!r} now; "
        "leave it as it was, or choose another --run"
    )
