"""What is done with the time that a contest leaves: more seeds, and a longer training?"""

from __future__ import annotations

import math
from statistics import fmean

from parformer.fitting.kinds.language import EVALUATED
from parformer.fitting.phases import BASELINE, Contest, Seeds, Winner
from parformer.fitting.running import GLANCE, Running
from parformer.fitting.training import going_on, rate_of, segments
from parformer.recipe import Recipe
from parformer.train.alike import Trained
from parformer.train.run import read_result
from parformer.train.schedule import DECAY, top_of

LONGER = 1.3
"""How much longer than in the contest a winner's training must be to be worth while."""
LOOKS = 12
"""Validations of its training; the weights of the best one are kept, as a text that ends unlike
it begins, or a short one, makes a longer training worse."""
MOST_SEEDS = 4
"""Seeds besides the first, however long the time."""
AGAIN = 1.02
"""By how much more or fewer updates must fit in the end for their number to be decided anew."""
WINNER = "winner"
"""The folder of the winner's longer training."""
ENDS = "winner.ends"
"""After how many updates it really ends."""


def seeds(fit: Running) -> Seeds:
    """The best and its rival again, with as many other seeds as there is time for."""
    ended = fit.progress.need(Contest)
    both = (ended.rival, ended.best)
    if not fit.planned["seeds"] or ended.best == BASELINE:
        return Seeds({})
    if not all(ended.models[name].learned for name in both):
        return Seeds({})

    def affordable() -> float:
        each = ended.steps * sum(map(fit.pace, both)) + 2 * EVALUATED * fit.token_pace()
        return min(MOST_SEEDS, int(fit.seconds_for("seeds") / each))

    count = int(fit.progress.number("seeds.count", affordable))
    if not count:
        fit.leave_out("seeds")
    found: dict[int, dict[str, tuple[float, ...]]] = {}
    for seed in range(1, count + 1):
        losses = {}
        for name in both:
            fit.watch.notice(f"{name} with seed {fit.request.seed + seed}")
            recipe = fit.recipe_of(name, ended.steps, rate_of(fit, name), seed=seed)
            trained = fit.train(recipe, f"{name}-seed-{seed}")
            # one that the time ended early has no rival of as many updates
            if trained is not None and trained.steps == ended.steps:
                losses[name] = tuple(segments(fit, trained.path).tolist())
        if len(losses) == 2:
            found[seed] = losses
    return Seeds(found)


def winner(fit: Running) -> Winner:
    """The best for longer, from where its rate began to fall, if the time allows that."""
    ended = fit.progress.need(Contest)
    name, steps = ended.best, ended.steps_of(ended.best)
    kept = Winner(name, name, steps, False)
    copy = going_on(name)

    def affordable() -> float:
        if fit.request.steps:
            return 2 * fit.request.steps
        looking = (LOOKS + 1) * GLANCE * fit.token_pace() + 1.0
        more = max(0, int((fit.seconds_for("winner") - looking) / fit.pace(name)))
        longest = more + (top_of(steps) if fit.alike.has(copy) else 0)
        return min(longest, fit.most_updates or longest)

    longer = int(fit.progress.number("winner.steps", affordable))
    if longer < LONGER * steps:
        return kept
    recipe = longer_recipe(fit, name, longer)
    if not fit.progress.has(ENDS):
        fit.alike.lengthen(copy, WINNER, recipe)
    trained = fit.train(with_time_left(fit, name, recipe), WINNER)
    if trained is None or not improved(fit, trained, name):
        return kept  # longer was not better
    return Winner(name, WINNER, trained.steps, True)


def longer_recipe(fit: Running, name: str, steps: int) -> Recipe:
    """How the best is trained for so many updates."""
    warmup = max(1, fit.progress.need(Contest).steps // 10)
    recipe = fit.recipe_of(name, steps, rate_of(fit, name), warmup=warmup, looks=LOOKS)
    return recipe.replaced({"train.patience": LOOKS + steps // LOOKS + 1})  # never gives up


def with_time_left(fit: Running, name: str, recipe: Recipe) -> Recipe:
    """Its updates decided again before its rate falls: by then its own pace is known."""
    steps, copy = recipe.train.steps, going_on(WINNER)
    if not fit.by_clock:
        return recipe
    if not fit.progress.has(ENDS):
        paused = fit.train(recipe, WINNER, until=top_of(steps))
        if paused is None or paused.finished:
            return recipe
        fit.alike.keep(WINNER, copy)

    def fitting() -> float:
        looking = (1 + LOOKS * DECAY) * GLANCE * fit.token_pace() + 1.0
        more = max(1, int((fit.seconds_for("winner") - looking) / fit.pace(name)))
        found = min(top_of(steps) + more, fit.most_updates or math.inf)
        return found if max(found / steps, steps / found) > AGAIN else steps

    again = int(fit.progress.number(ENDS, fitting))
    if again == steps:
        return recipe
    fit.watch.notice(f"There is time for {again:,} updates, not {steps:,}.")
    recipe = longer_recipe(fit, name, again)
    fit.alike.lengthen(copy, WINNER, recipe)
    return recipe


def improved(fit: Running, trained: Trained, name: str) -> bool:
    """Whether a longer training ended better than the contest's, by what models are compared by."""
    if fit.request.kind == "text":
        before = read_result(fit.alike.root / name)
        return before is not None and trained.loss < before.loss_on("valid")
    known = fit.progress.need(Contest).models[name].segments
    return not known or float(segments(fit, trained.path).mean()) < fmean(known)
