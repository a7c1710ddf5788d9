"""Which plain Transformer is the best model held against, and what if both had the same time?

The one that anybody would take instead: attention and feed-forward in turn, of those that keep the
limits the better one. Models of the contest have as many updates each; in equal time whoever is
quicker has more of them.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from parformer.fitting.kinds.language import EVALUATED
from parformer.fitting.phases import BASELINE, Contestant, EqualTime
from parformer.fitting.running import GLANCE, Running
from parformer.fitting.training import rate_of, segments
from parformer.train.schedule import top_of

PLAIN = (BASELINE, "interleaved")
"""Finalists that are Transformers as everybody knows them."""
ALIKE = 0.03
"""Paces that differ by less are the same."""
MOST = 0.25
"""The share of the time that is left which a training of equal time may take."""
TOO_LONG = f"that would have taken more than {MOST:.0%} of the time that was left"
TOO_LATE = "the time was over before that was done"
DIVERGED = "the plain one diverged"


def rival_of(fit: Running, found: Mapping[str, Contestant], best: str) -> str:
    """The best plain Transformer that keeps the limits; the baseline where there is no other."""
    means = {
        name: float(np.mean(one.segments))
        for name, one in found.items()
        if name in PLAIN and name in fit.eligible and name != best and one.segments and one.learned
    }
    return min(means, key=means.__getitem__) if means and best not in PLAIN else BASELINE


def early(name: str) -> str:
    """The folder of a plain Transformer as it was after a third of its training."""
    return f"{name}-early"


def in_equal_time(
    fit: Running, found: Mapping[str, Contestant], best: str, rival: str, steps: int
) -> EqualTime | None:
    """The rival after as much time as the best took, or why not; None where nobody asks."""
    own = found[rival]
    if not fit.by_clock or best == rival or not own.segments or not own.learned:
        return None

    def affordable() -> float:
        updates = round(steps * fit.pace(best) / fit.pace(rival))
        if abs(updates / steps - 1) < ALIKE:
            return steps
        begun = steps // 3 if fit.alike.has(early(rival)) and top_of(updates) >= steps // 3 else 0
        looking = (7 * GLANCE + EVALUATED) * fit.token_pace()
        takes = (updates - begun) * fit.pace(rival) + looking
        return updates if takes < MOST * fit.left_to_train else 0

    updates = int(fit.progress.number("contest.equal-time", affordable))
    if not updates:
        return EqualTime(0, (), TOO_LONG)
    if updates == steps:
        return EqualTime(steps, own.segments)
    fit.watch.notice(f"{rival} for as long as {best} took: {updates:,} updates")
    recipe = fit.recipe_of(rival, updates, rate_of(fit, rival), warmup=max(1, steps // 10))
    name = f"{rival}-timed"
    fit.alike.lengthen(early(rival), name, recipe)
    trained = fit.train(recipe, name)
    if trained is None or trained.steps != updates:
        return EqualTime(0, (), DIVERGED if trained is None else TOO_LATE)
    return EqualTime(updates, tuple(segments(fit, trained.path).tolist()))
