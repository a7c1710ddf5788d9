"""Which learning rate does each finalist get: by its size, and where there is time by trials?"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from parformer.fitting.ladder import FINALISTS
from parformer.fitting.phases import BASELINE, Paces, Rates, RatesOf, Tried
from parformer.fitting.running import GLANCE, Running
from parformer.tasks import find_task
from parformer.train.alike import read_curve
from parformer.train.distributed import Workers
from parformer.train.plan import step_seconds, token_seconds

MOST_RATES = 5
"""Rates that a sweep tries at most."""
UNDECIDED = 0.01
"""Losses within this share of the lowest do not decide between rates."""
TRIALS = 2.5
"""Rates that a finalist tries, about."""
BEGUN = 20
"""Updates before which no model has left the plateau of letter frequencies."""
FEWEST = 10
"""Updates below which a trial says nothing about a rate."""


def paces_of(fit: Running) -> Paces:
    """Seconds of an update of every finalist; and of a token in validation."""
    if not fit.by_clock:
        return Paces(dict.fromkeys(fit.finalists, 1.0), 0.0)
    tokens, found = fit.prepared.splits["train"].tokens, {}
    for number, name in enumerate(fit.finalists):
        fit.watch.preparing("timing updates", number / len(fit.finalists))
        found[name] = step_seconds(fit.recipe_of(name, 100, 1e-3), tokens, Workers())
    task = find_task(fit.baseline.recipe)
    if task.steady:
        return Paces(found, token_seconds(fit.baseline.recipe, tokens, Workers()))
    task.batches(tokens)  # which tell the task how long its texts are
    # without gradients a token takes about a third of what it takes with them
    return Paces(found, found[BASELINE] / 3 / task.tokens_per_update)


def rates(fit: Running) -> Rates:
    """The learning rate of each finalist."""
    fit.progress.once(Paces, lambda: paces_of(fit))
    steps = int(fit.progress.number("rates.steps", lambda: trial_steps(fit)))
    if not steps:
        if fit.planned["rates"]:
            fit.leave_out("rates")
        return Rates(0, {name: RatesOf((), first_rate(fit, name)) for name in fit.finalists})
    found = {}
    for number, name in enumerate(fit.finalists, start=1):
        fit.watch.notice(f"Learning rate of {name}, {number} of {len(fit.finalists)}")

        def score(rate: float, name: str = name) -> Tried:
            run = f"rate-{name}-{rate:.3g}"
            trained = fit.train(fit.recipe_of(name, steps, rate, looks=1), run)
            loss = None if trained is None else trained.loss
            # a few updates leave nobody on a plateau: they have only begun
            stuck = steps >= BEGUN and loss is not None and fit.stuck(loss)
            return Tried(rate, loss, stuck, read_curve(fit.alike.root / run, "loss"))

        tried = sweep(score, first_rate(fit, name))
        found[name] = RatesOf(tuple(tried), best_rate(tried))
    return Rates(steps, found)


def trial_steps(fit: Running) -> int:
    """Updates of a trial; 0 where there is no time for any."""
    if not fit.by_clock:
        return max(2, (fit.request.steps or 0) // 6)
    looking = TRIALS * len(fit.finalists) * (2 * GLANCE * fit.token_pace() + 0.5)
    together = TRIALS * sum(map(fit.pace, fit.finalists))
    steps = int((fit.seconds_for("rates") - looking) / together)
    return steps if steps >= FEWEST else 0


def first_rate(fit: Running, name: str) -> float:
    """The rate that a finalist's size calls for, of two digits."""
    usual, config = fit.baseline.recipe.train.learning_rate, fit.finalists[name].config
    updates = fit.request.steps or int(fit.seconds_for("contest") / FINALISTS / fit.pace(name))
    return float(f"{fit.kind.rate(config, usual, updates):.2g}")


def sweep(score: Callable[[float], Tried], start: float, *, factor: float = 2.0) -> list[Tried]:
    """The usual rate and lower ones, as long as lower is better or nothing was learned.

    A short training flatters high rates: one of 40 updates was best at four times the rate that
    800 updates could bear. So none above the usual rate is tried.

    >>> tried = sweep(lambda rate: Tried(rate, abs(rate - 1)), 4.0)
    >>> [one.rate for one in tried], best_rate(tried)
    ([0.5, 1.0, 2.0, 4.0], 1.0)
    """
    tried = [score(start), score(start / factor)]
    while len(tried) < MOST_RATES:
        hopeless = all(math.isinf(one.standing) for one in tried)
        if not hopeless and best_rate(tried) > tried[-1].rate:
            break
        if not hopeless and tried[-1].standing >= tried[-2].standing:
            break  # lower is no better any more, only as good
        tried.append(score(tried[-1].rate / (factor**2 if hopeless else factor)))
    return sorted(tried, key=lambda one: one.rate)


def best_rate(tried: Sequence[Tried]) -> float:
    """The rate with the lowest loss; the lowest rate of those that are as good, or if none is.

    A short training flatters high rates, and a rate that is too high fails altogether.

    >>> best_rate([Tried(1.0, 2.01), Tried(2.0, 2.0), Tried(4.0, 1.9, stuck=True)])
    1.0
    """
    best = min(one.standing for one in tried)
    near = [one.rate for one in tried if one.standing <= best * (1 + UNDECIDED)]
    return min(near)
