"""How long does each take, measured side by side?

>>> comparison = measure_latency({"one": lambda: sum(range(99)), "two": lambda: None}, rounds=8)
>>> comparison["one"].median > 0
True

One round times every candidate once, in an order drawn anew, so that whatever the
machine is doing meanwhile falls on all of them alike; `statistics` builds on that lot.
Before its time is taken a candidate runs once untimed: it starts from its own warm
caches, whoever ran before. Candidates too quick for the clock are called many times per
sample, and a sample is the time of one call. One that is known to take long is spared both.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from itertools import repeat
from random import Random

import numpy as np
import torch

from parformer.errors import ConfigError
from parformer.measure import statistics
from parformer.measure.device import Receipt, pinned_threads
from parformer.measure.memory import collector_paused
from parformer.measure.neighbours import Neighbours
from parformer.records import Record

Work = Callable[[], object]
Clock = Callable[[], int]
"""Nanoseconds since some moment."""

FEWEST_ROUNDS = statistics.rounds_needed()
"""However small the budget: fewer rounds could only ever find ties."""

MOST_CALLS = 1 << 20
"""The most calls per sample, for a function that costs next to nothing."""


@dataclass(frozen=True, slots=True)
class Remade:
    """A candidate that is made anew for every sample and dropped after it.

    Where a model's weights happen to lie in memory can make it a few percent faster or
    slower for as long as it lives. Made anew, it draws that lot in every round, and what
    was a difference between copies becomes noise. Only one candidate exists at a time.
    """

    make: Callable[[], Work]


@dataclass(frozen=True, kw_only=True, slots=True)
class Timing(Record):
    """The time of one call of one candidate, in seconds."""

    name: str
    samples_seconds: tuple[float, ...]
    """One per round, in the order of the rounds."""

    median: float
    low: float
    high: float
    """Where the median lies, with 95% confidence."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Candidates timed in the same rounds, so that any two can be compared."""

    timings: tuple[Timing, ...]
    receipt: Receipt

    def __getitem__(self, name: str) -> Timing:
        for timing in self.timings:
            if timing.name == name:
                return timing
        known = ", ".join(timing.name for timing in self.timings)
        raise ConfigError(f"no candidate {name!r} was measured; there are: {known}")

    def difference(
        self,
        a: str,
        b: str,
        *,
        confidence: float = statistics.CONFIDENCE,
        smallest: float = statistics.SMALLEST,
    ) -> statistics.Difference:
        """Is a faster than b, slower, or is it a tie?"""
        return statistics.compare(
            self[a].samples_seconds,
            self[b].samples_seconds,
            confidence=confidence,
            smallest=smallest,
        )

    def ratio(self, a: str, baseline: str) -> float:
        """How many times the baseline's time a takes."""
        return self.difference(a, baseline).ratio

    def ties(self) -> tuple[str, ...]:
        """The fastest candidate and all that cannot be told from it, fastest first."""
        return statistics.ties({timing.name: timing.samples_seconds for timing in self.timings})

    def to_dict(self) -> dict[str, object]:
        return {
            "timings": [timing.to_dict() for timing in self.timings],
            "ties": list(self.ties()),
            "receipt": self.receipt.to_dict(),
        }


def measure_latency(
    candidates: Mapping[str, Work | Remade],
    *,
    rounds: int = 30,
    seconds: float | None = None,
    warmup: int = 3,
    threads: int | None = None,
    seed: int = 0,
    min_round_seconds: float = 0.002,
    long: Collection[str] = (),
    what: str = "latency",
    progress: Callable[[float], None] | None = None,
    clock: Clock = time.perf_counter_ns,
) -> Comparison:
    """Time the candidates in interleaved rounds.

    rounds: how many, unless `seconds` sets a budget for all; at least 8 are then taken.
    warmup: calls of each candidate before anything is timed.
    threads: PyTorch's threads while measuring; None leaves them as they are.
    seed: draws the order within each round.
    min_round_seconds: the least time that a candidate is timed for in each round; 0 times one call.
    long: candidates that have run before, and so long that caches say little: no untimed calls.
    what: the receipt's words for what was measured.
    progress: told the done fraction, from 0 to 1, after each round.
    """
    _check(candidates, rounds, seconds, warmup)
    rng, neighbours = Random(seed), Neighbours()
    order = list(candidates)
    samples: dict[str, list[float]] = {name: [] for name in candidates}
    start = clock()

    def done(finished: int) -> float:
        if seconds is None:
            return finished / rounds
        return min((clock() - start) / 1e9 / seconds, finished / FEWEST_ROUNDS)

    with pinned_threads(threads):
        calls = {
            name: _calls_per_sample(_made(candidate), warmup, min_round_seconds, clock)
            for name, candidate in candidates.items()
            if name not in long
        }
        finished = 0
        while done(finished) < 1:
            rng.shuffle(order)
            for name in order:
                timed, count = (_time_calls, 1) if name in long else (_time_warm, calls[name])
                nanoseconds = timed(_made(candidates[name]), count, clock)
                samples[name].append(nanoseconds / count / 1e9)
            finished += 1
            if progress is not None:
                progress(min(done(finished), 1.0))
        receipt = Receipt.issue(what, others=neighbours.share())
    return Comparison(
        timings=tuple(_timing(name, taken) for name, taken in samples.items()), receipt=receipt
    )


def _made(candidate: Work | Remade) -> Work:
    return candidate.make() if isinstance(candidate, Remade) else candidate


def _calls_per_sample(function: Work, warmup: int, least_seconds: float, clock: Clock) -> int:
    for _ in range(warmup):
        function()
    if least_seconds <= 0:
        return 1
    calls = 1
    while calls < MOST_CALLS:
        # the least of three: one stall would make a quick function look slow
        nanoseconds = min(_time_warm(function, calls, clock) for _ in range(3))
        if nanoseconds >= least_seconds * 1e9:
            break
        missing = least_seconds * 1e9 / max(nanoseconds, 1)
        calls = min(math.ceil(calls * min(1.1 * missing, 10)), MOST_CALLS)
    return calls


def _time_warm(function: Work, calls: int, clock: Clock) -> int:
    function()
    return _time_calls(function, calls, clock)


def _time_calls(function: Work, calls: int, clock: Clock) -> int:
    with collector_paused():
        _synchronize()
        start = clock()
        for _ in repeat(None, calls):
            function()
        _synchronize()
        return clock() - start


def _synchronize() -> None:
    """Wait for an accelerator, whose work goes on after a call has returned."""
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()


def _timing(name: str, samples: list[float]) -> Timing:
    low, high = statistics.median_interval(samples)
    return Timing(
        name=name,
        samples_seconds=tuple(samples),
        median=float(np.median(samples)),
        low=low,
        high=high,
    )


def _check(
    candidates: Mapping[str, object], rounds: int, seconds: float | None, warmup: int
) -> None:
    if not candidates:
        raise ConfigError("there is nothing to measure; give at least one candidate")
    if rounds < 1:
        raise ConfigError(f"rounds must be at least 1, got {rounds}")
    if seconds is not None and not seconds > 0:
        raise ConfigError(f"seconds must be positive, got {seconds}")
    if warmup < 0:
        raise ConfigError(f"warmup cannot be negative, got {warmup}")
