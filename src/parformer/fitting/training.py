"""What do the trainings of a fit share: rates, copies to go on from, how they are judged?"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from parformer.fitting.phases import Rates
from parformer.fitting.running import Running
from parformer.train.plateau import MOST_SLOWER, SLOWER


def going_on(name: str) -> str:
    """The folder of a finalist as it was before its rate fell."""
    return f"{name}-on"


def segments(fit: Running, path: Path) -> NDArray[np.float64]:
    """The losses of a trained model on stretches of the valid split."""
    return fit.kind.losses(fit.baseline.recipe, fit.load(path), fit.prepared)


def rate_of(fit: Running, name: str) -> float:
    """The rate that a finalist is trained with by now."""
    rate, slower = fit.progress.need(Rates).models[name].rate, 0
    while fit.progress.has(_slower(name, slower)):
        rate, slower = rate / SLOWER, slower + 1
    return rate


def _slower(name: str, times: int) -> str:
    return f"contest.slower.{name}.{times}"


def slow_down(fit: Running, name: str, why: str) -> bool:
    """Give up a training for one at a lower rate, unless that was done too often already."""
    for times in range(MOST_SLOWER):
        if not fit.progress.has(_slower(name, times)):
            rate = rate_of(fit, name)
            fit.watch.notice(f"{name} {why} at {rate:g}: once more at {rate / SLOWER:g}")
            fit.progress.number(_slower(name, times), (rate / SLOWER).__float__)
            return True
    return False
