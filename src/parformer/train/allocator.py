"""Who keeps the memory between two steps: the process, or the system?

A training step takes hundreds of megabytes and gives them back. The C library of Linux
hands large blocks to the system at once and asks for them again in the next step, and each
of their pages has to be cleared and mapped anew. Kept by the process, they are just there.
Sums do not depend on it: what torch asks for is aligned the same way in both cases.
"""

from __future__ import annotations

import ctypes
import sys

TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD = -1, -2, -3
"""Names that malloc.h of the GNU C library gives to its settings."""

LARGEST = 2**31 - 1
"""The settings are C ints; free memory at the end of the heap below this is kept."""
MAPPED = 2**30
"""Blocks from here on are mapped alone, as the weights of a very large embedding may be."""
GROWTH = 2**26
"""How much the heap grows at once."""


def keep_memory() -> bool:
    """Let this process keep what it frees, from now on; whether that was possible.

    It takes the GNU C library. The most that the process ever needed at once stays its own
    until it ends.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
        mallopt.argtypes, mallopt.restype = (ctypes.c_int, ctypes.c_int), ctypes.c_int
        # musl has the name, for the sake of linking, and answers 0
        settings = ((MMAP_THRESHOLD, MAPPED), (TRIM_THRESHOLD, LARGEST), (TOP_PAD, GROWTH))
        return all([mallopt(name, value) == 1 for name, value in settings])
    except (AttributeError, OSError):
        return False
