"""What may a model cost at most, in the user's words?

>>> read_limit("latency=20ms").most, read_limit("memory=200MB").most
(0.02, 200000000.0)
>>> read_limit("latency=0.5x").of(0.010).most
0.005
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from parformer.errors import ConfigError
from parformer.fields import check_names
from parformer.notation import shown
from parformer.records import Record

METRICS = ("latency", "memory", "flops", "parameters", "state", "size")
"""What can be limited: seconds of a step, bytes at its worst moment, FLOPs of a step, parameters,
bytes of state with memory full, and bytes of the saved model."""
SEARCHED = METRICS[:-1]
"""What a search for sizes tells of its models; their size follows from their parameters."""
CLOCKED = ("latency", "memory")
"""What only a clock knows, or a profile of the device."""

COUNTS = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
BYTES = {"B": 1.0} | {f"{unit}B": size for unit, size in COUNTS.items() if unit}
BYTES |= {"KB": 1e3, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30}
SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6}


@dataclass(frozen=True, slots=True)
class Written:
    """How people write amounts of a metric."""

    kind: str
    example: str
    units: Mapping[str, float]
    printed: tuple[str, ...]
    """The units that `as_option` takes, largest first."""


WRITTEN = {
    "latency": Written("a time", "20ms", SECONDS, ("s", "ms", "us")),
    "memory": Written("bytes", "200MB", BYTES, ("GB", "MB", "kB", "B")),
    "state": Written("bytes", "1MB", BYTES, ("GB", "MB", "kB", "B")),
    "size": Written("bytes", "4MB", BYTES, ("GB", "MB", "kB", "B")),
    "flops": Written("a count", "5G", COUNTS, ("T", "G", "M", "k", "")),
    "parameters": Written("a count", "50M", COUNTS, ("G", "M", "k", "")),
}
UNITS = {metric: written.units for metric, written in WRITTEN.items()}
_AMOUNT = re.compile(r"((?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d{1,2})?)\s*([A-Za-zµ]*)")


@dataclass(frozen=True, slots=True)
class Limit(Record):
    """An upper bound; a relative one is a multiple of what the baseline costs."""

    metric: str
    most: float
    relative: bool = False

    def of(self, baseline: float) -> Limit:
        """The same in the metric's own unit."""
        return replace(self, most=self.most * baseline, relative=False) if self.relative else self


def read_limit(text: str, metrics: Sequence[str] = METRICS) -> Limit:
    """A limit from the command line, such as `memory=64MB` or `latency=0.7x`."""
    metric, equals, amount = (part.strip() for part in text.partition("="))
    if not equals:
        raise ConfigError(f"cannot read limit {shown(text)}; write it as latency=20ms")
    check_names([metric], metrics, "metric of a limit")
    found = _AMOUNT.fullmatch(amount)
    if found is None or not 0 < float(found[1]) < math.inf:
        raise ConfigError(f"limit {shown(text)} must be an amount above 0, {_ways(metric)}")
    if found[2] == "x":
        return Limit(metric, float(found[1]), relative=True)
    if found[2] not in UNITS[metric]:
        raise ConfigError(f"limit {shown(text)} {_wrong_unit(metric, found[2])}, {_ways(metric)}")
    return Limit(metric, float(found[1]) * UNITS[metric][found[2]])


def _ways(metric: str) -> str:
    return (
        f"such as {metric}={WRITTEN[metric].example}, or a multiple of the baseline's, "
        f"such as {metric}=0.7x"
    )


def _wrong_unit(metric: str, unit: str) -> str:
    """Why an amount of a metric cannot be written so."""
    kind, known = WRITTEN[metric].kind, ", ".join(filter(None, UNITS[metric]))
    if not unit:
        return f"has no unit; {metric} is {kind}, in {known}"
    others = [other.kind for other in WRITTEN.values() if unit in other.units]
    if others:
        return f"has {shown(unit)}, which is for {others[0]}; {metric} is {kind}, in {known}"
    return f"has the unknown unit {shown(unit)}; {metric} is {kind}, in {known}"


def read_limits(texts: str | Iterable[str]) -> tuple[Limit, ...]:
    """Every limit once."""
    limits: dict[str, Limit] = {}
    for text in [texts] if isinstance(texts, str) else texts:
        limit = read_limit(text)
        if limit.metric in limits:
            raise ConfigError(
                f"two limits of {limit.metric}; give one, the second is {shown(text)}"
            )
        limits[limit.metric] = limit
    return tuple(limits.values())


def excess(figures: Mapping[str, float], limits: Mapping[str, float]) -> float:
    """How far all limits together are exceeded, as shares of them; 0 if they are kept."""
    return sum(max(0.0, figures[name] / most - 1) for name, most in limits.items())


def in_words(metric: str, amount: float) -> str:
    """An amount of a metric, for people.

    >>> in_words("latency", 0.0213), in_words("parameters", 41_000_000), in_words("memory", 2.5e8)
    ('21.3 ms', '41 M', '250 MB')
    """
    if metric == "latency":
        steps = {"s": 1.0, "ms": 1e-3, "µs": 1e-6}
    elif metric in ("memory", "state", "size"):
        steps = {"GB": 1e9, "MB": 1e6, "kB": 1e3, "B": 1.0}
    else:
        steps = {"G": 1e9, "M": 1e6, "k": 1e3, "": 1.0}
    unit = next((u for u, size in steps.items() if abs(amount) >= size), [*steps][-1])
    return f"{amount / steps[unit]:.3g} {unit}".strip()


def as_option(metric: str, amount: float) -> str:
    """An amount as `--limit` takes it, rounded up.

    >>> as_option("latency", 0.02131)
    'latency=21.4ms'
    """
    sizes, printed = UNITS[metric], WRITTEN[metric].printed
    unit = next((u for u in printed if amount >= sizes[u]), printed[-1])
    digits = f"{1.0005 * amount / sizes[unit]:.3g}"
    if float(digits) * sizes[unit] < amount:
        digits = f"{1.006 * amount / sizes[unit]:.3g}"
    return f"{metric}={float(digits):g}{unit}"
