"""What can one ask about compiled kernels, and what comes of it?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from parformer.errors import ConfigError
from parformer.events import Listener, Watch, nobody
from parformer.kernels import extension, prebuilt
from parformer.kernels.cpu import cpu_flags
from parformer.kernels.wheel import build_here, make_wheel
from parformer.records import Record
from parformer.verbs import requested


@dataclass(frozen=True, kw_only=True)
class KernelsRequest:
    """Whether kernels can be compiled here, or a wheel of them for machines without a compiler."""

    action: Literal["show", "build"] = "show"
    """Tell how kernels come about here; or compile them all now, for this very CPU."""
    wheel: Path | None = None
    """Folder for a wheel of all kernels, compiled for every level of instructions."""
    level: tuple[str, ...] = ()
    """Instructions to compile for: x86-64-v4-vnni, x86-64-v4 (AVX-512), x86-64-v3 (AVX2),
    x86-64; may be repeated."""

    def __post_init__(self) -> None:
        for name in self.level:
            if name not in prebuilt.LEVELS:
                known = ", ".join(prebuilt.LEVELS)
                raise ConfigError(f"no level of instructions is called {name!r}; known: {known}")
        if self.wheel is not None and self.action != "build":
            raise ConfigError("a wheel has to be built: parformer kernels build --wheel FOLDER")
        if self.level and self.wheel is None:
            raise ConfigError("--level says what a wheel is compiled for; give --wheel FOLDER too")


@dataclass(frozen=True, slots=True)
class Kernels(Record):
    """How kernels come about on this machine, and the wheel that was made."""

    compilers: tuple[str, ...]
    package: str
    """Where compiled ones are installed; empty where they are not."""
    runs: tuple[str, ...]
    """Levels of instructions that this CPU has."""
    built: int = 0
    """Kernels that this machine has ready now."""
    wheel: str = ""
    libraries: tuple[prebuilt.Built, ...] = ()


def kernels(
    request: KernelsRequest | None = None, *, watch: Listener = nobody, **given: Any
) -> Kernels:
    """Tell how kernels come about here; with `wheel`, compile them for other machines."""
    asked = requested(KernelsRequest, request, given)
    flags, place = cpu_flags(), prebuilt.installed()
    found = Kernels(
        tuple(extension.find_compilers()),
        "" if place is None else str(place),
        tuple(name for name, needs in prebuilt.LEVELS.items() if needs <= flags),
    )
    told = Watch(watch)
    if asked.action == "show":
        return found
    if asked.wheel is None:
        try:
            return replace(found, built=build_here(told.preparing))
        except extension.Unavailable as error:
            raise ConfigError(str(error)) from None
    levels = asked.level or tuple(prebuilt.LEVELS)
    path, made = make_wheel(Path(asked.wheel), levels, told.preparing)
    return replace(found, wheel=str(path), libraries=made)
