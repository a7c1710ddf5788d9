"""Who keeps the memory between two steps: the process, or the system?

A training step takes hundreds of megabytes and gives them back. The C library of Linux
hands large blocks to the system at once and asks for them again in the next step, and each
of their pages has to be cleared and mapped anew. Kept by the process, they are just there.
Sums do not depend on it: what torch asks for is aligned the same way in both cases.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD = -1, -2, -3
"""Names that malloc.h of the GNU C library gives to its settings."""
HUGE_PAGES = 14
"""The advice of sys/mman.h that memory should come in pages of 2 MB."""
HUGE_PAGE = 2**21

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
        library = ctypes.CDLL(None)
        mallopt = library.mallopt
        mallopt.argtypes, mallopt.restype = (ctypes.c_int, ctypes.c_int), ctypes.c_int
        # musl has the name, for the sake of linking, and answers 0
        settings = ((MMAP_THRESHOLD, MAPPED), (TRIM_THRESHOLD, LARGEST), (TOP_PAD, GROWTH))
        kept = all(mallopt(name, value) == 1 for name, value in settings)
        if kept:
            ask_for_huge_pages(library)
        return kept
    except (AttributeError, OSError):
        return False


def ask_for_huge_pages(library: Any) -> None:
    """Where the heap grows next, large pages save the processor a search for each small one.

    Address space alone is taken and given back; memory comes when it is used.
    """
    size = MAPPED - HUGE_PAGE
    library.malloc.argtypes, library.malloc.restype = (ctypes.c_size_t,), ctypes.c_void_p
    library.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    library.free.argtypes, library.free.restype = (ctypes.c_void_p,), None
    block = library.malloc(size)
    if block is None:
        return
    first = -(-block // HUGE_PAGE) * HUGE_PAGE
    library.madvise(first, (block + size - first) // HUGE_PAGE * HUGE_PAGE, HUGE_PAGES)
    library.free(block)
