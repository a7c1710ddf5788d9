"""How is the time shared out, and what is left out when there is little?

>>> [phase.name for phase in plan(70.0) if not phase.planned]
['profile', 'search', 'rates', 'seeds']
>>> [phase.name for phase in plan(3600.0) if not phase.planned]
[]
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from parformer.events import Part

TITLES = {
    "text": "read and tokenize the text",
    "size": "size a model for the time there is",
    "profile": "profile this device",
    "search": "search which blocks belong where",
    "sizes": "search sizes within the limits, measure the finalists",
    "rates": "find each finalist's learning rate",
    "contest": "train the finalists with equal budget",
    "seeds": "train the best and its rival with other seeds",
    "winner": "train the winner with the rest of the time",
    "report": "measure everything, write the report",
}

SHARES = {
    "text": 0.03,
    "size": 0.02,
    "profile": 0.07,
    "search": 0.10,
    "sizes": 0.04,
    "rates": 0.08,
    "contest": 0.20,
    "seeds": 0.08,
    "winner": 0.34,
    "report": 0.04,
}
"""Of the time for everything; what a phase that is left out would have had goes to others."""

MOST = {"text": 60.0, "size": 30.0, "profile": 180.0, "sizes": 180.0, "report": 180.0}
"""Seconds that more time does not make better use of."""

LEAST = {"profile": 12.0, "search": 60.0, "rates": 60.0, "seeds": 60.0}
"""Seconds below which a phase says nothing."""

WITHOUT = {
    "profile": "too short to measure the costs of blocks: sizes are counted in FLOPs, "
    "and the finalists measured",
    "search": "too short for a search to settle: only placements by rule take part",
    "rates": "too short to try several: each model has the rate that its size calls for",
    "seeds": "one seed: how much seeds differ is taken from experience",
}
"""What follows when a phase is left out."""

SHORT_SEARCH = 180.0
"""Seconds of a search that is known to be shorter than it should be."""


def share_out(seconds: float, phases: Iterable[str] = tuple(TITLES)) -> dict[str, float]:
    """Seconds for each of some phases, which are all there is still to do.

    >>> share_out(66.0, ["contest", "winner"])["winner"] > 33
    True
    """
    shares = {name: SHARES[name] for name in phases}
    whole = sum(shares.values())
    wanted = {name: share / whole * seconds for name, share in shares.items()}
    for name, least in LEAST.items():
        if name in wanted and wanted[name] < least:
            wanted[name] = 0.0
    capped = {name: min(each, MOST.get(name, each)) for name, each in wanted.items()}
    free = {name: each for name, each in capped.items() if name not in MOST}
    left = seconds - sum(each for name, each in capped.items() if name in MOST)
    scale = left / (sum(free.values()) or 1.0)
    return {name: each * (scale if name in free else 1.0) for name, each in capped.items()}


def plan(time: float, without: Mapping[str, str] = MappingProxyType({})) -> tuple[Part, ...]:
    """Every phase with its seconds; what is left out says why.

    `without` are those that this fit has no use for, and why.
    """
    seconds = share_out(time, [name for name in TITLES if name not in without])
    notes = {name: without.get(name) or _note(name, seconds[name]) for name in TITLES}
    return tuple(Part(name, TITLES[name], seconds.get(name, 0.0), notes[name]) for name in TITLES)


def counted(without: Mapping[str, str] = MappingProxyType({})) -> tuple[Part, ...]:
    """The phases of a fit by updates, which asks no clock."""
    usual = {"profile": "a fit by updates: sizes are counted in FLOPs", "seeds": WITHOUT["seeds"]}
    notes = {**usual, **without}
    return tuple(Part(name, TITLES[name], 0.0, notes.get(name, "")) for name in TITLES)


def _note(name: str, seconds: float) -> str:
    if not seconds:
        return WITHOUT[name]
    if name == "search" and seconds < SHORT_SEARCH:
        return "shortened: take its placement as a suggestion, the contest decides"
    return ""
