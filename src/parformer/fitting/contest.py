"""Which model is the best? All are trained alike, and the best of those that fit is taken on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from parformer.config import read_model
from parformer.fitting.desk import BASELINE, Desk
from parformer.fitting.notes import Result
from parformer.fitting.trainings import (
    EVALUATED,
    GLANCE,
    LOOKS,
    SURVIVE,
    Tried,
    best_rate,
    last_validation,
    losers,
    read_curves,
    sweep,
)
from parformer.fitting.verdict import choose
from parformer.train.distributed import Workers
from parformer.train.plan import step_seconds, token_seconds
from parformer.train.plateau import MOST_SLOWER, SHORTEST, SLOWER
from parformer.train.schedule import rate_for

BEHIND = 0.04
"""How far behind the best a model is dropped after a third of its training."""
LONGER = 1.3
"""How much longer than in the contest a winner's training must be to be worth while."""
CLOSE = 0.25
"""The share of the margin within which two models are as good, and the faster one is taken."""
TRIALS = 2.5
"""Rates that a finalist tries, about."""
BEGUN = 20
"""Updates before which no model has left the plateau of letter frequencies."""
MOST_SEEDS = 4
"""Seeds besides the first, however long the time."""


def paces_of(desk: Desk) -> dict[str, float]:
    """Seconds of an update of every finalist; and of a token in validation."""
    if desk.ask.steps:
        return {**dict.fromkeys(desk.models, 1.0), "token": 0.0}
    tokens, found = desk.prepared.splits["train"].tokens, {}
    for number, name in enumerate(desk.models):
        desk.watch.preparing("timing updates", number / len(desk.models))
        found[name] = step_seconds(desk.recipe_of(name, 100, 1e-3), tokens, Workers())
    return found | {"token": token_seconds(desk.recipe, tokens, Workers())}


def share_of(desk: Desk, phase: str) -> float:
    """The seconds of a training phase: its share of what is left for all of them."""
    planned = desk.planned
    order = ("rates", "contest", "seeds", "winner")
    ahead = order[order.index(phase) :]
    left = desk.left - planned["report"]
    return max(0.0, left) * planned[phase] / sum(planned[name] for name in ahead)


def rates(desk: Desk) -> Result:
    """The learning rate of each finalist: by its size, and where there is time by trials."""
    names = list(desk.models)
    paces = desk.notes.once("rates.paces", lambda: paces_of(desk))
    if not desk.planned["rates"] and not desk.ask.steps:
        given = {name: {"rates": [], "rate": first_rate(desk, name)} for name in names}
        return {"steps": 0, "models": given}
    steps = max(2, desk.ask.steps // 6)
    if not desk.ask.steps:
        looking = TRIALS * len(names) * (2 * GLANCE * paces["token"] + 0.5)
        together = TRIALS * sum(paces[name] for name in names)
        steps = max(10, int((share_of(desk, "rates") - looking) / together))
    steps = desk.notes.once("rates.steps", lambda: {"steps": steps})["steps"]
    found = {}
    for number, name in enumerate(names, start=1):
        desk.watch.notice(f"Learning rate of {name}, {number} of {len(names)}")

        def score(rate: float, name: str = name) -> Tried:
            recipe = desk.recipe_of(name, steps, rate, looks=1)
            path, outcome = desk.trainings.run(recipe, f"rate-{name}-{rate:.3g}")
            loss = None if outcome is None else outcome.result["valid"]["loss"]
            # a few updates leave nobody on a plateau: they have only begun
            stuck = steps >= BEGUN and loss is not None and desk.stuck(loss)
            return Tried(rate, loss, stuck, read_curves(path)["curve"])

        tried = sweep(score, first_rate(desk, name))
        found[name] = {"rates": [asdict(one) for one in tried], "rate": best_rate(tried)}
    return {"steps": steps, "models": found}


def first_rate(desk: Desk, name: str) -> float:
    """The rate that a finalist's size calls for, of two digits."""
    usual, known = desk.recipe.train.learning_rate, read_model(desk.preset)
    return float(f"{rate_for(desk.models[name], usual, known):.2g}")


def rate_of(desk: Desk, name: str) -> float:
    """The rate that a finalist is trained with by now."""
    rate = float(desk.result("rates")["models"][name]["rate"])
    slower = 0
    while desk.notes.has(slower_note(name, slower)):
        rate, slower = rate / SLOWER, slower + 1
    return rate


def slower_note(name: str, times: int) -> str:
    return f"contest.slower.{name}.{times}"


def slow_down(desk: Desk, name: str, why: str) -> bool:
    """Give up a training for one at a lower rate, unless that was done too often already."""
    for times in range(MOST_SLOWER):
        if not desk.notes.has(slower_note(name, times)):
            rate = rate_of(desk, name)
            desk.watch.notice(f"{name} {why} at {rate:g}: once more at {rate / SLOWER:g}")
            desk.notes.once(slower_note(name, times), lambda rate=rate: {"rate": rate / SLOWER})  # type: ignore[misc]
            return True
    return False


def contest_steps(desk: Desk) -> dict[str, int]:
    paces = desk.result("rates.paces")
    names = list(desk.models)
    if desk.ask.steps:
        return {"steps": desk.ask.steps}
    looking = len(names) * ((7 * GLANCE + EVALUATED) * paces["token"] + 1.0)
    together = SURVIVE * sum(paces[name] for name in names)
    steps = int((share_of(desk, "contest") - looking) / together)
    return {"steps": max(30, steps // LOOKS * LOOKS)}


def contest(desk: Desk) -> Result:
    """All finalists a third of the way, then those that are not far behind to the end.

    What learned nothing is no rival and no baseline: it begins again at a lower rate.
    """
    desk.trainings.tidy("rate-*")
    steps = desk.notes.once("contest.steps", lambda: contest_steps(desk))["steps"]
    third = max(1, steps // LOOKS) * (LOOKS // 3)
    losses: dict[str, float] = {}
    for name in desk.models:
        desk.watch.notice(f"{name}: {desk.models[name].pattern}, {steps:,} updates")
        losses[name] = first_third(desk, name, steps, third)
    known = {name: loss for name, loss in losses.items() if math.isfinite(loss)}
    out = losers(known, [BASELINE], desk.eligible, BEHIND) if known else {}
    found: dict[str, Any] = {}
    for name, loss in losses.items():
        if name in out or not math.isfinite(loss):
            why = f"{out[name]:.1%} behind the best" if name in out else "it diverged"
            found[name] = {"dropped": {"step": third, "loss": known.get(name), "why": why}}
            desk.watch.notice(f"{name} is dropped after {third:,} updates: {why}")
            continue
        found[name] = to_the_end(desk, name, steps)
    # in fewer updates a lower rate would only learn less
    if (
        steps >= SHORTEST
        and failed_alone(found)
        and slow_down(desk, BASELINE, "learned too little")
    ):
        found[BASELINE] = to_the_end(desk, BASELINE, steps)
    return {"steps": steps, "models": found, "best": best_of(desk, found)}


def first_third(desk: Desk, name: str, steps: int, third: int) -> float:
    """The loss after a third of the training; infinite for numbers that are none."""
    while True:
        recipe = desk.recipe_of(name, steps, rate_of(desk, name))
        path, outcome = desk.trainings.run(recipe, name, until=third)
        # who was stopped later than this is judged by where all were judged
        loss = math.inf if outcome is None else last_validation(path, until=third)
        why = "diverged" if math.isinf(loss) else ""
        if third >= BEGUN and desk.stuck(loss):
            why = "learned nothing"
        elif third >= BEGUN and loss > last_validation(path, until=third // 2):
            why = "got worse"  # a rate that it cannot bear
        if not why or not slow_down(desk, name, why):
            return loss


def to_the_end(desk: Desk, name: str, steps: int) -> dict[str, Any]:
    """A finalist with all its training, and whether it learned more than pairs of tokens."""
    recipe = desk.recipe_of(name, steps, rate_of(desk, name))
    path, outcome = desk.trainings.run(recipe, name)
    if outcome is None:
        return {"dropped": {"step": steps, "loss": None, "why": "it diverged"}}
    segments = desk.trainings.segments(path)
    return {
        "dropped": None,
        "segments": segments.tolist(),
        "learned": desk.learned(float(segments.mean())),
    }


def failed_alone(found: Mapping[str, Any]) -> bool:
    """Whether the baseline learned nothing while others did: no comparison with it is fair."""
    learned = {name: one.get("learned", False) for name, one in found.items()}
    return not learned[BASELINE] and any(learned.values())


def best_of(desk: Desk, found: Mapping[str, Any]) -> str:
    """The best of those that may be chosen; the baseline if there is no other."""
    means = {
        name: float(np.mean(found[name]["segments"]))
        for name in desk.eligible
        if found.get(name, {}).get("segments")
    }
    learned = {name: loss for name, loss in means.items() if found[name]["learned"]}
    rows = desk.result("sizes")["models"]
    latencies = {row["name"]: row["figures"]["latency"] for row in rows}
    return choose(learned or means, latencies, CLOSE * desk.ask.margin) if means else BASELINE


def seeds(desk: Desk) -> Result:
    """Baseline and best again, with as many other seeds as there is time for."""
    contest, paces = desk.result("contest"), desk.result("rates.paces")
    best, steps = contest["best"], contest["steps"]
    learned = [contest["models"][name].get("learned", True) for name in (BASELINE, best)]
    if not desk.planned["seeds"] or best == BASELINE or not all(learned):
        return {"seeds": {}}
    both = steps * (paces[BASELINE] + paces[best]) + 2 * EVALUATED * paces["token"]
    count = min(MOST_SEEDS, int(share_of(desk, "seeds") / both))
    count = desk.notes.once("seeds.count", lambda: {"count": count})["count"]
    found: dict[str, Any] = {}
    for seed in range(1, count + 1):
        found[str(seed)] = {}
        for name in (BASELINE, best):
            desk.watch.notice(f"{name} with seed {desk.ask.seed + seed}")
            recipe = desk.recipe_of(name, steps, rate_of(desk, name), seed=seed)
            path, outcome = desk.trainings.run(recipe, f"{name}-seed-{seed}")
            if outcome is not None:
                found[str(seed)][name] = desk.trainings.segments(path).tolist()
    return {"seeds": {s: both for s, both in found.items() if len(both) == 2}}


def winner(desk: Desk) -> Result:
    """The best once more, from scratch and for longer, if the time allows that."""
    contest, paces = desk.result("contest"), desk.result("rates.paces")
    name, steps = contest["best"], contest["steps"]
    if desk.ask.steps:
        longer = 2 * steps
    else:
        looking = 7 * GLANCE * paces["token"] + 1.0
        longer = int((share_of(desk, "winner") - looking) / paces[name])
    longer = desk.notes.once("winner.steps", lambda: {"steps": longer})["steps"]
    kept = {"name": name, "run": name, "steps": steps, "retrained": False}
    if longer < LONGER * steps:
        return kept
    recipe = desk.recipe_of(name, longer, rate_of(desk, name))
    _, outcome = desk.trainings.run(recipe, "winner")
    if outcome is None or outcome.result["valid"]["loss"] >= last_validation(
        desk.trainings.root / name
    ):
        return kept  # longer was not better
    return {"name": name, "run": "winner", "steps": longer, "retrained": True}
