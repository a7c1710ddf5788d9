"""Which model is the best? All are trained alike, and the best of those that fit is taken on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from parformer.fitting.desk import BASELINE, Desk
from parformer.fitting.notes import Result
from parformer.fitting.trainings import (
    EVALUATED,
    GLANCE,
    LOOKS,
    SURVIVE,
    last_validation,
    losers,
    sweep,
)
from parformer.fitting.verdict import choose
from parformer.train.distributed import Workers
from parformer.train.plan import step_seconds, token_seconds

BEHIND = 0.04
"""How far behind the best a model is dropped after a third of its training."""
LONGER = 1.3
"""How much longer than in the contest a winner's training must be to be worth while."""
CLOSE = 0.25
"""The share of the margin within which two models are as good, and the faster one is taken."""
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
    """The learning rate of each finalist, by three short trainings."""
    paces = desk.notes.once("rates.paces", lambda: paces_of(desk))
    names = list(desk.models)
    steps = max(2, desk.ask.steps // 6)
    if not desk.ask.steps:
        looking = 3 * len(names) * (2 * GLANCE * paces["token"] + 0.5)
        together = 3 * sum(paces[name] for name in names)
        steps = max(10, int((share_of(desk, "rates") - looking) / together))
    steps = desk.notes.once("rates.steps", lambda: {"steps": steps})["steps"]
    start = desk.recipe.train.learning_rate * math.sqrt(128 / desk.recipe.model.d_model)
    found = {}
    for number, name in enumerate(names, start=1):
        desk.watch.notice(f"Learning rate of {name}, {number} of {len(names)}")

        def score(rate: float, name: str = name) -> float | None:
            recipe = desk.recipe_of(name, steps, rate, looks=1)
            _, outcome = desk.trainings.run(recipe, f"rate-{name}-{rate:.3g}")
            loss = None if outcome is None else outcome.result["valid"]["loss"]
            return None if loss is None else float(loss)

        rows, best = sweep(score, float(f"{start:.2g}"))
        found[name] = {"rates": rows, "rate": best}
    return {"steps": steps, "models": found}


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
    """All finalists a third of the way, then those that are not far behind to the end."""
    desk.trainings.tidy("rate-*")
    steps = desk.notes.once("contest.steps", lambda: contest_steps(desk))["steps"]
    rates = desk.result("rates")["models"]
    third = max(1, steps // LOOKS) * (LOOKS // 3)
    losses: dict[str, float] = {}
    for name in desk.models:
        desk.watch.notice(f"{name}: {desk.models[name].pattern}, {steps:,} updates")
        recipe = desk.recipe_of(name, steps, rates[name]["rate"])
        path, outcome = desk.trainings.run(recipe, name, until=third)
        # who was stopped later than this is judged by where all were judged
        losses[name] = math.inf if outcome is None else last_validation(path, until=third)
    known = {name: loss for name, loss in losses.items() if math.isfinite(loss)}
    out = losers(known, [BASELINE], desk.eligible, BEHIND) if known else {}
    found: dict[str, Any] = {}
    for name, loss in losses.items():
        if name in out or not math.isfinite(loss):
            why = f"{out[name]:.1%} behind the best" if name in out else "it diverged"
            found[name] = {"dropped": {"step": third, "loss": known.get(name), "why": why}}
            desk.watch.notice(f"{name} is dropped after {third:,} updates: {why}")
            continue
        recipe = desk.recipe_of(name, steps, rates[name]["rate"])
        path, outcome = desk.trainings.run(recipe, name)
        if outcome is None:
            found[name] = {"dropped": {"step": steps, "loss": None, "why": "it diverged"}}
            continue
        found[name] = {"dropped": None, "segments": desk.trainings.segments(path).tolist()}
    best = best_of(desk, found)
    return {"steps": steps, "models": found, "best": best}


def best_of(desk: Desk, found: Mapping[str, Any]) -> str:
    """The best of those that may be chosen; the baseline if there is no other."""
    means = {
        name: float(np.mean(found[name]["segments"]))
        for name in desk.eligible
        if found.get(name, {}).get("segments")
    }
    rows = desk.result("sizes")["models"]
    latencies = {row["name"]: row["figures"]["latency"] for row in rows}
    return choose(means, latencies, CLOSE * desk.ask.margin) if means else BASELINE


def seeds(desk: Desk) -> Result:
    """Baseline and best again, with as many other seeds as there is time for."""
    contest, paces = desk.result("contest"), desk.result("rates.paces")
    best, steps = contest["best"], contest["steps"]
    if not desk.planned["seeds"] or best == BASELINE:
        return {"seeds": {}}
    both = steps * (paces[BASELINE] + paces[best]) + 2 * EVALUATED * paces["token"]
    count = min(MOST_SEEDS, int(share_of(desk, "seeds") / both))
    count = desk.notes.once("seeds.count", lambda: {"count": count})["count"]
    rates = desk.result("rates")["models"]
    found: dict[str, Any] = {}
    for seed in range(1, count + 1):
        found[str(seed)] = {}
        for name in (BASELINE, best):
            desk.watch.notice(f"{name} with seed {desk.ask.seed + seed}")
            recipe = desk.recipe_of(name, steps, rates[name]["rate"], seed=seed)
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
    rate = desk.result("rates")["models"][name]["rate"]
    _, outcome = desk.trainings.run(desk.recipe_of(name, longer, rate), "winner")
    if outcome is None or outcome.result["valid"]["loss"] >= last_validation(
        desk.trainings.root / name
    ):
        return kept  # longer was not better
    return {"name": name, "run": "winner", "steps": longer, "retrained": True}
