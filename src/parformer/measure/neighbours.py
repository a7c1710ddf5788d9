"""How much of the processor did others take while something was measured?

>>> watched = Neighbours(lambda: Times(total=0.0, busy=0.0, own=0.0))
>>> watched.read = lambda: Times(total=20.0, busy=19.0, own=9.0)
>>> watched.share()
0.5
"""

from __future__ import annotations

from collections.abc import Callable

from parformer.threads import Times, times_now


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
