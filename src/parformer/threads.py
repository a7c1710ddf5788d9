"""How do threads wait for each other on a machine that has other work too?

OpenMP's threads spin while they wait, for as long as a time slice may last. Beside a busy
neighbour that burns the very core which the thread waited for needs, and a training falls to
a small part of its speed. Here they spin for a moment, which a quiet machine never exceeds, and
then sleep. OpenMP reads this once, when torch is loaded, so it is set when `parformer` is
imported; whatever the user has set stays.
"""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping

SPINS = "10000"
"""Turns that a waiting thread spins before it sleeps: some ten microseconds."""

KNOWN = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
"""How a user says how threads wait."""

MOST_PER_CORE = 8
"""More threads than this on every core only take memory from each other."""

_late = False


def settle(
    environment: MutableMapping[str, str] | None = None, *, loaded: bool | None = None
) -> None:
    """Say how threads wait, as long as torch is not there and the user has not said it."""
    global _late
    environment = os.environ if environment is None else environment
    if any(name in environment for name in KNOWN):
        return
    if "torch" in sys.modules if loaded is None else loaded:
        _late = True
        return
    environment["GOMP_SPINCOUNT"] = SPINS
    environment["KMP_BLOCKTIME"] = "0"


def too_late() -> str:
    """What cannot be changed any more in this process, in a sentence; empty if nothing is."""
    if not _late:
        return ""
    return (
        "torch was loaded before parformer, so its threads spin while they wait: beside other work "
        f"that is slow. Import parformer first, or start Python with GOMP_SPINCOUNT={SPINS}."
    )


def cores() -> int:
    """Cores that this process may use, which a container can make fewer than there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def most_threads() -> int:
    return MOST_PER_CORE * cores()
