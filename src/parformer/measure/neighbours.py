"""How much of the processor did others take while something was measured?

>>> watched = Neighbours(lambda: Times(total=0.0, busy=0.0, own=0.0))
>>> watched.read = lambda: Times(total=20.0, busy=19.0, own=9.0)
>>> watched.share()
0.5
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

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


class Neighbours:
    """Looks at the clocks twice."""

    def __init__(self, read: Callable[[], Times | None] = times_now) -> None:
        self.read, self.start = read, read()

    def share(self) -> float | None:
        """What others took of all that the cores could do; None where nobody tells."""
        now = self.read()
        if now is None or self.start is None or now.total <= self.start.total:
            return None
        others = (now.busy - self.start.busy) - (now.own - self.start.own)
        return min(max(others / (now.total - self.start.total), 0.0), 1.0)
