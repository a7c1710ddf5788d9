"""Which model is the best? All are trained alike, and the best of those that fit is taken on.

By the clock the pace of finished updates decides what still fits: where a machine becomes busy,
finalists are left out, then trainings cut short, all alike; it never fails for want of time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate

import numpy as np

from parformer.fitting.kinds.language import EVALUATED
from parformer.fitting.ladder import SURVIVE
from parformer.fitting.phases import BASELINE, Contest, Contestant, Dropped
from parformer.fitting.rates import BEGUN
from parformer.fitting.rivals import PLAIN, early, in_equal_time, rival_of
from parformer.fitting.running import GLANCE, LOOKS, Running
from parformer.fitting.squeezing import SMALL
from parformer.fitting.training import going_on, rate_of, segments, slow_down
from parformer.train.plateau import SHORTEST
from parformer.train.schedule import top_of

CLOSE = 0.25
"""The share of the margin within which two models are as good, and the faster one is taken."""
FEWEST = 30
"""Updates that fewer finalists share the time for, rather than have less than these."""
QUICKER = 2
"""How many times as many updates there must be time for, for the contest to begin again."""
TIMED = 0.4
"""The share of a training that it takes to see a plain Transformer in the time of the best."""
RISEN = 1.03
"""By how much a loss rises where a rate is too high. Beside counts there is little left to learn,
and two looks at a sound training differ by 1%."""
NO_TIME = "there was no time left for it"


def contest(fit: Running) -> Contest:
    """All finalists a third of the way, then those that are not far behind to the end.

    What learned nothing is no rival and no baseline: it begins again at a lower rate.
    """
    fit.alike.tidy("rate-*")
    many = int(fit.progress.number("contest.entrants", lambda: entrants(fit)))
    steps = settled_steps(fit, many)
    third = third_of(steps)
    out: dict[str, Dropped] = {}
    losses: dict[str, float] = {}
    for place, name in enumerate(by_need(fit)):
        if place >= many or (place > 1 and not has_time(fit, name, losses, steps, third)):
            out[name] = Dropped(0, None, NO_TIME)
            fit.watch.notice(f"{name} does not take part: {NO_TIME}")
            continue
        fit.watch.notice(f"{name}: {fit.finalists[name].config.pattern}, {steps:,} updates")
        losses[name] = first_third(fit, name, steps, third)
        if name in PLAIN and fit.by_clock and not fit.alike.has(early(name)):
            fit.alike.keep(name, early(name))
    out |= {
        name: Dropped(third, None if math.isinf(losses[name]) else losses[name], why)
        for name, why in behind(fit, losses).items()
    }
    going = [name for name in losses if name not in out]
    end, unfinished = what_fits(fit, going, losses, steps, third)
    out |= {name: Dropped(third, losses[name], NO_TIME) for name in unfinished}
    found: dict[str, Contestant] = {}
    for name in fit.finalists:
        if name in out:
            found[name] = Contestant(out[name])
            if out[name].step:
                fit.watch.notice(f"{name} is dropped after {third:,} updates: {out[name].why}")
        else:
            found[name] = to_the_end(fit, name, steps, end)
    # in fewer updates a lower rate would only learn less
    if end >= SHORTEST and failed_alone(found) and slow_down(fit, BASELINE, "learned too little"):
        found[BASELINE] = to_the_end(fit, BASELINE, steps, end)
    best = best_of(fit, found)
    rival = rival_of(fit, found, best)
    return Contest(end, found, best, rival, in_equal_time(fit, found, best, rival, end))


def third_of(steps: int) -> int:
    return max(1, steps // LOOKS) * (LOOKS // 3)


def settled_steps(fit: Running, many: int) -> int:
    """Updates of each; decided again where the first ones are much quicker than was timed."""
    steps = int(fit.progress.number("contest.steps", lambda: contest_steps(fit, many)))
    if fit.by_clock and not fit.progress.has("contest.again"):
        first_third(fit, BASELINE, steps, third_of(steps))
    again = int(fit.progress.number("contest.again", lambda: contest_steps(fit, many)))
    if again < QUICKER * steps:
        return steps
    fit.watch.notice(f"Updates are quicker than was timed: {again:,} for each, not {steps:,}.")
    return again


def by_need(fit: Running) -> list[str]:
    """The finalists in the order in which they can least be done without."""
    rest = [name for name in fit.finalists if name != BASELINE]
    rest.sort(key=lambda name: name != SMALL)
    return [BASELINE, *sorted(rest, key=lambda name: not fit.finalists[name].eligible)]


def entrants(fit: Running) -> int:
    """How many finalists there is time for; at least the baseline and another one."""
    if not fit.by_clock:
        return len(fit.finalists)
    return next((n for n in range(len(fit.finalists), 2, -1) if affords(fit, n) >= FEWEST), 2)


def affords(fit: Running, many: int) -> int:
    """Updates of each that there is time for, with so many finalists."""
    names = by_need(fit)[:many]
    looking = len(names) * ((7 * GLANCE + EVALUATED) * fit.token_pace() + 1.0)
    together = SURVIVE * sum(map(fit.pace, names)) + TIMED * fit.pace(BASELINE)
    return int((fit.seconds_for("contest") - looking) / together)


def contest_steps(fit: Running, many: int) -> int:
    if fit.request.steps:
        return fit.request.steps
    steps = max(FEWEST, affords(fit, many) // LOOKS * LOOKS)
    return min(steps, max(FEWEST, fit.most_updates)) if fit.most_updates else steps


def has_time(fit: Running, name: str, losses: Mapping[str, float], steps: int, third: int) -> bool:
    """Whether a finalist can still be begun, and two of them come to their end."""
    if not fit.by_clock:
        return True
    ending = (steps - third) * 2 * max(map(fit.pace, losses))
    return third * fit.pace(name) + ending < fit.left_to_train


def behind(fit: Running, losses: Mapping[str, float]) -> dict[str, str]:
    """Who need not go on after a third, and why."""
    known = {name: loss for name, loss in losses.items() if math.isfinite(loss)}
    allowed = [name for name in fit.eligible if name in known] or list(known)
    levels = {name: fit.kind.level(loss, fit.facts) for name, loss in known.items()}
    # the plain Transformer that keeps the limits is what the best will be held against
    spared = [BASELINE, SMALL, *(name for name in PLAIN if name in fit.eligible)]
    far = losers(levels, spared, allowed, fit.kind.behind) if known else {}
    why = {name: f"{share:.1%} behind the best" for name, share in far.items()}
    return why | {name: "it diverged" for name in losses if name not in known}


def what_fits(
    fit: Running, going: Sequence[str], losses: Mapping[str, float], steps: int, third: int
) -> tuple[int, list[str]]:
    """After how many updates all end, and who is not finished, at the pace of now.

    The baseline and the best that may be chosen are always finished, if need be at once.
    """
    if not fit.by_clock or not going:
        return steps, []
    first = sorted(going, key=lambda n: (n != BASELINE, n not in fit.eligible, losses[n]))

    def fitting() -> int:
        looking = (GLANCE + EVALUATED) * fit.token_pace()
        takes = accumulate((steps - third) * fit.pace(name) + looking for name in first)
        return max(2, sum(seconds <= fit.left_to_train for seconds in takes))

    many = int(fit.progress.number("contest.going", fitting))

    def cut() -> int:
        each = sum(map(fit.pace, first[:many]))
        return min(steps, third + int(max(0.0, fit.left_to_train) / each))

    return int(fit.progress.number("contest.end", cut)), first[many:]


def first_third(fit: Running, name: str, steps: int, third: int) -> float:
    """The loss after a third of the training; infinite for numbers that are none."""
    while True:
        trained = fit.train(fit.recipe_of(name, steps, rate_of(fit, name)), name, until=third)
        # who was stopped later than this is judged by where all were judged
        loss = math.inf if trained is None else trained.loss_at(third)
        why = "diverged" if math.isinf(loss) else ""
        if third >= BEGUN and fit.stuck(loss):
            why = "learned nothing"
        elif (
            trained is not None
            and third >= BEGUN
            and has_risen(trained.loss_at(third // 2), loss)
            and not fit.kind.keeps_best
        ):
            why = "got worse"  # a rate that it cannot bear
        if not why or fit.late() or not slow_down(fit, name, why):
            return loss


def has_risen(before: float, now: float) -> bool:
    """Whether a model got worse by more than chance.

    >>> has_risen(0.996, 1.003), has_risen(1.7, 2.1)
    (False, True)
    """
    return now > RISEN * before


def to_the_end(fit: Running, name: str, steps: int, end: int) -> Contestant:
    """A finalist with all its training, and whether it learned more than pairs of tokens."""
    recipe = fit.recipe_of(name, steps, rate_of(fit, name))
    top = top_of(steps)
    if name in fit.eligible and top < end:
        paused = fit.train(recipe, name, until=top)
        if paused is not None and paused.steps == top and not paused.finished:
            fit.alike.keep(name, going_on(name))
    trained = fit.train(recipe, name, end=end)
    if trained is None:
        return Contestant(Dropped(end, None, "it diverged"))
    losses = segments(fit, trained.path)
    own = None if trained.steps == end else trained.steps
    return Contestant(None, tuple(losses.tolist()), fit.learned(float(losses.mean())), own)


def losers(
    losses: Mapping[str, float], spared: Sequence[str], eligible: Sequence[str], behind: float
) -> dict[str, float]:
    """Who is so far behind the best that may be chosen that it need not go on, and by how much.

    >>> losers({"a": 1.0, "b": 1.2, "base": 1.3}, ["base"], ["a", "b"], 0.05)
    {'b': 0.2}
    """
    best = min(losses[name] for name in eligible if name in losses)
    return {
        name: round(loss / best - 1, 6)
        for name, loss in losses.items()
        if name not in spared and loss > best * (1 + behind)
    }


def failed_alone(found: Mapping[str, Contestant]) -> bool:
    """Whether the baseline learned nothing while others did: no comparison with it is fair."""
    return not found[BASELINE].learned and any(one.learned for one in found.values())


def best_of(fit: Running, found: Mapping[str, Contestant]) -> str:
    """The best of those that may be chosen; the baseline if there is no other."""
    means = {
        name: float(np.mean(one.segments))
        for name, one in found.items()
        if name in fit.eligible and one.segments
    }
    learned = {name: loss for name, loss in means.items() if found[name].learned}
    latencies = {name: one.figures["latency"] for name, one in fit.finalists.items()}
    close = CLOSE * fit.request.margin
    return choose(learned or means, latencies, close) if means else BASELINE


def choose(losses: Mapping[str, float], latencies: Mapping[str, float], close: float) -> str:
    """The lowest loss; of those that are as good as the best, the fastest."""
    best = min(losses.values())
    near = [name for name, loss in losses.items() if loss <= best * (1 + close)]
    return min(near, key=lambda name: (latencies.get(name, 0.0), losses[name]))
