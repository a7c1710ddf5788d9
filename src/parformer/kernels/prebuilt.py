"""Which kernels that were compiled elsewhere run here?

A machine without a compiler may have the package `parformer_kernels` installed: libraries of every
kernel for some levels of instructions, with an index that tells for which source each was made.
`wheel.py` writes that package on a machine that has a compiler.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from parformer.kernels.cpu import cpu_flags
from parformer.records import Record

PACKAGE, INDEX = "parformer_kernels", "index.json"
V3 = {"avx2", "fma", "bmi1", "bmi2", "f16c", "movbe"}
V4 = {*V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
LEVELS = {
    "x86-64-v4-vnni": {*V4, "avx512_vnni"},
    "x86-64-v4": V4,
    "x86-64-v3": V3,
    "x86-64": set[str](),
}
"""Instructions that a library may use, and what a CPU's flags must name for it; best first."""


@dataclass(frozen=True, slots=True)
class Built(Record):
    """One library of the package."""

    name: str
    key: str
    """Of its source and flags."""
    level: str
    file: str
    digest: str


def key_of(code: bytes, flags: Sequence[str]) -> str:
    return hashlib.sha256(code + "\0".join(flags).encode()).hexdigest()[:24]


def find(name: str, code: bytes, flags: Sequence[str]) -> ctypes.CDLL | None:
    """The library of a kernel from the installed package, the best that this CPU runs."""
    folder = installed()
    if folder is None:
        return None
    key, known = key_of(code, flags), cpu_flags()
    with suppress(OSError, ValueError, KeyError, TypeError):
        rows = json.loads((folder / INDEX).read_text("utf-8"))["libraries"]
        found = [Built.from_dict(row) for row in rows]
        order = list(LEVELS)
        for one in sorted(found, key=lambda one: order.index(one.level)):
            path = folder / Path(one.file).name
            if (one.name, one.key) != (name, key) or not LEVELS[one.level] <= known:
                continue
            if hashlib.sha256(path.read_bytes()).hexdigest() == one.digest:
                with suppress(OSError):  # such as one that needs a newer C library
                    return ctypes.CDLL(str(path))
    return None


def installed() -> Path | None:
    found = importlib.util.find_spec(PACKAGE)
    places = None if found is None else found.submodule_search_locations
    return Path(next(iter(places))) if places else None
