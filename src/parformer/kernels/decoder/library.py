"""Which functions do the sources beside this file become, and for which instructions?

They are compiled for this very CPU, AVX-512 or AVX2 or whatever it has. `PARFORMER_NATIVE` may
ask for less: `avx2`, `portable`, or `off` for none at all.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path
from typing import Any

from parformer.kernels import extension
from parformer.kernels.extension import Unavailable

SOURCE = Path(__file__).with_name("decoder.cpp")
FLAGS = ("-ffp-contract=fast", "-pthread", "-Wno-psabi")
LEVELS = {
    "best": (),
    "avx2": ("-march=x86-64-v3",),
    "portable": ("-march=x86-64",),
    "sanitized": ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"),
}
"""What is compiled for: this CPU, or less than it has; or with every access checked."""

WORDS = 32
"""Whole numbers of one operation."""

NUMBER, ADDRESS = ctypes.c_int64, ctypes.c_void_p

SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "decoder_new": (
        ADDRESS,
        (ADDRESS, NUMBER, ADDRESS, NUMBER, ADDRESS, NUMBER, ADDRESS, NUMBER),
    ),
    "decoder_free": (None, (ADDRESS,)),
    "decoder_step": (NUMBER, (ADDRESS, ADDRESS, NUMBER, NUMBER, NUMBER)),
    "decoder_late": (NUMBER, (ADDRESS, ADDRESS, NUMBER)),
    "decoder_rows": (NUMBER, (ADDRESS, ADDRESS, NUMBER)),
    "cache_put": (NUMBER, (ADDRESS, NUMBER, ADDRESS, NUMBER, NUMBER, NUMBER)),
    "cache_length": (NUMBER, (ADDRESS, NUMBER)),
    "cache_take": (None, (ADDRESS, NUMBER, ADDRESS, NUMBER, NUMBER)),
    "cells_put": (NUMBER, (ADDRESS, NUMBER, ADDRESS, NUMBER)),
    "cells_take": (None, (ADDRESS, NUMBER, ADDRESS, NUMBER)),
    "recent_put": (NUMBER, (ADDRESS, NUMBER, ADDRESS, NUMBER, NUMBER)),
    "recent_known": (NUMBER, (ADDRESS, NUMBER)),
    "recent_take": (None, (ADDRESS, NUMBER, ADDRESS, NUMBER)),
    "source_put": (NUMBER, (ADDRESS, NUMBER, ADDRESS, ADDRESS, NUMBER, NUMBER)),
    "source_take": (None, (ADDRESS, NUMBER, ADDRESS, ADDRESS, NUMBER)),
    "source_places": (NUMBER, (ADDRESS, NUMBER)),
    "source_masked": (NUMBER, (ADDRESS, NUMBER)),
    "choose_tokens": (
        NUMBER,
        (ADDRESS, NUMBER, NUMBER, NUMBER, ADDRESS, NUMBER, ADDRESS, NUMBER, ADDRESS, ADDRESS),
    ),
}


class Off(Unavailable):
    """Somebody wants no native decoder."""


class Library:
    """The compiled functions; tensors are given as their addresses."""

    def __init__(self, compiled: ctypes.CDLL) -> None:
        self.functions: dict[str, Any] = {}
        for name, (answer, arguments) in SIGNATURES.items():
            function = getattr(compiled, name)
            function.restype, function.argtypes = answer, arguments
            self.functions[name] = function
        self.step = self.functions["decoder_step"]
        self.choose = self.functions["choose_tokens"]

    def checked(self, name: str, *arguments: Any) -> None:
        """Call a function that may lack memory."""
        if self.functions[name](*arguments):
            raise MemoryError(f"there is no memory left for what {name} has to remember")


def library(level: str = "") -> Library:
    """The functions for these instructions; `Unavailable` says why there are none."""
    wanted = level or os.environ.get("PARFORMER_NATIVE", "") or "best"
    if wanted == "off":
        raise Off("PARFORMER_NATIVE is off")
    if wanted not in LEVELS:
        raise Unavailable(f"PARFORMER_NATIVE is {wanted!r}; known: {', '.join(LEVELS)}, off")
    found = _built(wanted)
    if isinstance(found, str):
        raise Unavailable(found)
    return found


@cache
def _built(level: str) -> Library | str:
    """The functions, or why there are none: nobody tries twice."""
    try:
        headers = sorted(SOURCE.parent.glob("*.h"))
        flags = (*FLAGS, *LEVELS[level])
        return Library(extension.load(SOURCE, flags=flags, seconds=8, parts=headers))
    except Unavailable as error:
        return str(error)
