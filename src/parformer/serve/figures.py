"""What does a server tell of itself? Counters and gauges in Prometheus' text format.

>>> figures = Figures()
>>> figures.count("POST", "/v1/completions", 200, 0.25)
>>> print(figures.text({"parformer_running": ("Texts being written.", 2)}).splitlines()[-1])
parformer_running 2
"""

from __future__ import annotations

import resource
import sys
from collections import Counter
from collections.abc import Mapping

BUCKETS = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0)
"""Seconds."""


class Figures:
    """Requests by route and status, and how long they took."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str, int]] = Counter()
        self.seconds: Counter[float] = Counter()
        self.total = 0.0

    def count(self, method: str, route: str, status: int, seconds: float) -> None:
        self.requests[method, route, status] += 1
        self.total += seconds
        for bucket in BUCKETS:
            self.seconds[bucket] += seconds <= bucket

    def text(self, gauges: Mapping[str, tuple[str, float]]) -> str:
        name = "parformer_requests_total"
        lines = [f"# HELP {name} Requests answered.", f"# TYPE {name} counter"]
        for (method, route, status), times in sorted(self.requests.items()):
            lines.append(f'{name}{{method="{method}",route="{route}",status="{status}"}} {times}')
        name, answered = "parformer_request_seconds", self.requests.total()
        lines += [f"# HELP {name} Time until the answer is complete.", f"# TYPE {name} histogram"]
        lines += [f'{name}_bucket{{le="{bucket}"}} {self.seconds[bucket]}' for bucket in BUCKETS]
        lines += [f'{name}_bucket{{le="+Inf"}} {answered}']
        lines += [f"{name}_sum {self.total:.6f}", f"{name}_count {answered}"]
        for name, (words, value) in gauges.items():
            kind = "counter" if name.endswith("_total") else "gauge"
            lines += [f"# HELP {name} {words}", f"# TYPE {name} {kind}", f"{name} {value:g}"]
        return "\n".join(lines) + "\n"


def peak_memory() -> int:
    """Bytes that this process held at most."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
