"""In which phases is a model trained: short texts first, then long ones?

A phase is written as `steps=900 length=128 batch=64 rate=6e-3 warmup=200`: so many updates of so
many texts, with a schedule of its own. What the optimizer remembers is carried over.

>>> read_phase("steps=900 length=128 batch=64 rate=6e-3 warmup=200")
Phase(steps=900, length=128, batch=64, rate=0.006, warmup=200)
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Protocol

from parformer.errors import ConfigError
from parformer.fields import check_names


@dataclass(frozen=True, slots=True)
class Phase:
    """Some updates with one length of texts."""

    steps: int
    length: int
    batch: int
    rate: float
    warmup: int = 0


class HasPhases(Protocol):
    """What phases are a field of."""

    @property
    def phases(self) -> tuple[str, ...]: ...


def read_phase(text: str) -> Phase:
    """A phase from how it is written."""
    names = [field.name for field in fields(Phase)]
    given = dict(part.split("=", 1) for part in text.split() if "=" in part)
    check_names(given, names, "part of a phase")
    lacking = [name for name in names[:-1] if name not in given]
    if lacking or len(given) != len(text.split()):
        raise ConfigError(
            f"cannot read the phase {text!r:.60}; write it as steps=900 length=128 batch=64 "
            "rate=6e-3"
        )
    try:
        whole = {name: int(given[name]) for name in names if name in given and name != "rate"}
        found = Phase(rate=float(given["rate"]), **whole)
    except ValueError as error:
        raise ConfigError(f"the phase {text!r:.60} has a part that is no number: {error}") from None
    if min(found.steps, found.length, found.batch) < 1 or found.rate <= 0 or found.warmup < 0:
        raise ConfigError(f"the numbers of the phase {text!r:.60} must be above 0")
    return found


def phases_of(config: HasPhases) -> tuple[Phase, ...]:
    """The phases of a training; none where it is all alike."""
    return tuple(map(read_phase, config.phases))


def phase_at(step: int, phases: tuple[Phase, ...]) -> tuple[Phase, int]:
    """The phase of an update, and how many of its updates came before.

    >>> both = tuple(read_phase(f"steps={n} length=8 batch=1 rate=1") for n in (2, 9))
    >>> phase_at(3, both)[1]
    1
    """
    for phase in phases[:-1]:
        if step < phase.steps:
            return phase, step
        step -= phase.steps
    return phases[-1], step
