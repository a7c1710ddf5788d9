"""How is a study worked off?

>>> study = open_study("memory", "squares", {"objectives": ["square"]}, slots=4)
>>> def propose(slot, records):
...     return str(slot + 10 * len(records))
>>> def evaluate(genome):
...     return (float(genome) ** 2,), "", {}
>>> work(study, propose, evaluate, generations=2)
>>> [(record.genome, record.values) for record in study.records(below=4)]
[('0', (0.0,)), ('1', (1.0,)), ('22', (484.0,)), ('23', (529.0,))]

Failpoints: study.after-claim, study.after-propose, study.before-tell, study.after-tell.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from threading import Event, Thread
from typing import Self

from parformer.errors import ParformerError
from parformer.search.sizes.record import Finished, Outcome
from parformer.search.sizes.study import Bounds, Claim, Study
from parformer.search.sizes.study import open_study as open_study
from parformer.store.faults import failpoint

TRIES = 5
"""Workers that may die of one genome before it counts as one that cannot be evaluated."""
PAUSES = (0.02, 1.0)
"""Seconds between two looks at what others do: at first, and at most."""


class Heart:
    """A thread that says three times per heartbeat that this worker lives."""

    def __init__(self, study: Study) -> None:
        self.study = study
        self.claim: Claim | None = None
        self.stopped = Event()
        self.thread = Thread(target=self.run, daemon=True)

    def run(self) -> None:
        while not self.stopped.wait(self.study.heartbeat / 3):
            # the storage may be away for a moment; whoever needs it will say so
            with contextlib.suppress(Exception):
                self.study.beat(self.claim)

    def __enter__(self) -> Self:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped.set()
        self.thread.join()


def work(
    study: Study,
    propose: Callable[[int, list[Finished]], str],
    evaluate: Callable[[str], Outcome],
    *,
    generations: int | Bounds,
    stop: Callable[[], bool] = lambda: False,
    on_record: Callable[[Finished], None] = lambda record: None,
) -> None:
    """Work on a study until all its slots are finished, or `stop` says so.

    Any number of processes may do so at once. `propose` is given the records of all earlier
    generations, and `on_record` those that this worker brought in, once they are kept.
    """
    pause, longest = PAUSES
    bounds = evenly(generations) if isinstance(generations, int) else generations
    with Heart(study) as heart:
        while not stop():
            claim = study.claim(bounds)
            if claim is None and study.over:
                return
            if claim is None:
                time.sleep(pause)
                pause = min(1.5 * pause, longest)
                continue
            pause = PAUSES[0]
            failpoint("study.after-claim")
            heart.claim = claim
            record = try_slot(study, claim, propose, evaluate)
            failpoint("study.before-tell")
            kept = study.tell(claim, record)
            heart.claim = None
            failpoint("study.after-tell")
            for one in kept:
                on_record(one)


def evenly(size: int) -> Bounds:
    """Generations that are all of one size."""
    return lambda slot: (slot - slot % size, slot - slot % size + size)


def try_slot(
    study: Study,
    claim: Claim,
    propose: Callable[[int, list[Finished]], str],
    evaluate: Callable[[str], Outcome],
) -> Finished:
    """Propose and evaluate; whoever cannot gives the slot back to the others."""
    try:
        genome = propose(claim.slot, study.records(claim.first))
        if claim.deaths >= TRIES:
            why = f"{claim.deaths} workers died while they evaluated it"
            return Finished.make(claim.slot, genome, (None, why, {}))
        study.note(claim, genome)
        failpoint("study.after-propose")
        record = Finished.make(claim.slot, genome, evaluate(genome))
        assert record.values is None or len(record.values) == len(study.settings["objectives"])
        return record
    except BaseException:
        with contextlib.suppress(ParformerError):
            study.release(claim)
        raise
