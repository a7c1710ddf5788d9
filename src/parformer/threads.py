"""How do threads wait for each other on a machine that has other work too?

OpenMP's threads spin while they wait. On a quiet machine that is right: the next piece of work is
there in microseconds, and a thread that sleeps wakes too late for it. Beside a busy neighbour it
burns the very core that the thread waited for needs, and a training falls to a small part of
its speed. So it is looked at all the time, by `Crowd`: while others need the cores, threads
sleep at once, and otherwise they spin.

GNU's OpenMP reads how to wait once, when it is loaded, but it also spins hardly at all while it has
more threads than there are cores. A second team of threads that does nothing makes it so, at any
moment, however the process was started, and what is computed stays the same to the last bit.

Whatever the user has set stays: `OMP_WAIT_POLICY=passive`, for one.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import NamedTuple

SPINS = "10000"
"""Turns that a waiting thread spins before it sleeps, where nobody tells what others do."""

KNOWN = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
"""How a user says how threads wait."""

MOST_PER_CORE = 8
"""More threads than this on every core only take memory from each other."""

LOOK = 0.5
"""Seconds between two looks at what others do."""
CROWDED, QUIET = 0.3, 0.15
"""Cores that others take beyond what is left to them: above the first threads sleep, below the
second they spin again."""

STAT = Path("/proc/stat")
IDLE = (3, 4)
"""Columns of time that nobody used: idle, and idle while a disk worked."""


class Times(NamedTuple):
    """Seconds since some moment, on all cores that this process may use."""

    total: float
    busy: float
    own: float
    """Those that this process took."""


def times_now() -> Times | None:
    """None where the system does not tell."""
    try:
        lines = STAT.read_text("ascii").splitlines()
        own, tick, allowed = os.times(), os.sysconf("SC_CLK_TCK"), os.sched_getaffinity(0)
    except (OSError, ValueError, AttributeError):
        return None
    total = busy = 0.0
    for line in lines:
        core = re.match(r"cpu(\d+) ", line)
        if core and int(core[1]) in allowed:
            spent = [int(word) / tick for word in line.split()[1:9]]
            total += sum(spent)
            busy += sum(spent) - sum(spent[column] for column in IDLE)
    return Times(total, busy, own.user + own.system)


def settle(environment: MutableMapping[str, str] | None = None) -> None:
    """Where nobody tells what others do: spin for a moment, then sleep.

    OpenMP reads this when torch is loaded, so it is said when parformer is imported.
    """
    environment = os.environ if environment is None else environment
    if any(name in environment for name in KNOWN) or times_now() is not None:
        return
    environment["GOMP_SPINCOUNT"] = SPINS
    environment["KMP_BLOCKTIME"] = "0"


class Ballast:
    """A team of threads that does nothing, so that OpenMP has more of them than cores."""

    def __init__(self) -> None:
        self._done: threading.Event | None = None

    def __bool__(self) -> bool:
        return self._done is not None

    def take(self) -> None:
        if self._done is None:
            self._done = threading.Event()
            threading.Thread(target=self._hold, args=[self._done], daemon=True).start()

    def drop(self) -> None:
        if self._done is not None:
            self._done.set()
            self._done = None

    @staticmethod
    def _hold(done: threading.Event) -> None:
        import torch

        torch.ones(1 << 18).mul_(2.0)  # large enough for a team, which lives as long as its thread
        done.wait()


class Crowd:
    """Looks again and again at what others need of the cores, and has threads wait accordingly."""

    def __init__(
        self,
        read: Callable[[], Times | None] = times_now,
        ballast: Ballast | None = None,
        using: Callable[[], int] | None = None,
    ) -> None:
        self.read, self.ballast = read, Ballast() if ballast is None else ballast
        self.using = using or threads_in_use
        self.last = read()

    def look(self) -> None:
        """Compare with the look before."""
        now, last = self.read(), self.last
        if now is None or last is None or now.total <= last.total:
            return
        self.last = now
        lasted = (now.total - last.total) / cores()
        others = ((now.busy - last.busy) - (now.own - last.own)) / lasted
        short = others + self.using() - cores()
        if short > CROWDED and self.using() > 1:
            self.ballast.take()
        elif short < QUIET:
            self.ballast.drop()

    def keep_looking(self) -> None:
        while True:
            time.sleep(LOOK)
            self.look()


_watched: int | None = None


def share_cores() -> None:
    """From now on threads wait as what others do calls for; once in a process."""
    global _watched
    if _watched == os.getpid() or any(name in os.environ for name in KNOWN):
        return
    if sys.platform != "linux" or times_now() is None:
        return
    _watched = os.getpid()
    threading.Thread(target=Crowd().keep_looking, name="crowd", daemon=True).start()


def threads_in_use() -> int:
    import torch

    return torch.get_num_threads()


def cores() -> int:
    """Cores that this process may use, which a container can make fewer than there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def most_threads() -> int:
    return MOST_PER_CORE * cores()
