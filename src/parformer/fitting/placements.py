"""Which blocks in which order does a search put into the contest?"""

from __future__ import annotations

from dataclasses import replace

from parformer.errors import ConfigError, CorpusError, TrainingError
from parformer.fitting.phases import Placed
from parformer.fitting.rules import placements as placements
from parformer.fitting.running import OutOfTime, Running
from parformer.recipe import Recipe, SearchConfig
from parformer.search.trials.job import search_trials as search_by

SEARCH = "search"
"""The folder of the search, and the name of its phase."""
SEARCHING = 0.85
"""The share of its time that a search is told."""
REACH = (0.3, 0.97)
"""Limits between these multiples of the baseline steer the search for placements."""


def search(fit: Running) -> Placed:
    """What short trainings of many patterns find; nothing where there is no time or text for it.

    Of all ways to search that were tried this one loses least for the time it takes
    (docs/experiments/placement.md).
    """
    seconds = fit.seconds_for(SEARCH)
    if SEARCH in fit.kind.without or (fit.by_clock and not seconds):
        return Placed()
    try:
        found = search_by(
            search_recipe(fit, seconds),
            fit.path / SEARCH,
            watch=fit.impatient(),
            prepared=fit.prepared,
            command="parformer fit",
        )
    except OutOfTime:
        fit.leave_out(SEARCH)
        return Placed()
    except (ConfigError, CorpusError, TrainingError) as error:
        fit.watch.notice(f"No search for placements, only those by rule: {error}")
        fit.progress.leave_out(SEARCH, f"only placements by rule take part: {error}")
        return Placed()
    return Placed(str(found.pattern) if found.learned else "")


def search_recipe(fit: Running, seconds: float) -> Recipe:
    search = SearchConfig(by="trials", choices=fit.request.choices, limit=steering(fit))
    recipe = fit.baseline.recipe
    rate = fit.kind.rate(recipe.model, recipe.train.learning_rate, 0)
    return replace(recipe, search=search).replaced(
        {
            "train.learning_rate": float(f"{rate:.2g}"),
            "train.time": SEARCHING * seconds,
            "train.steps": max(16, fit.request.steps or 0),
            "train.seed": fit.request.seed,
        }
    )


def steering(fit: Running) -> str:
    """The limit that the search for placements is told, as a multiple of the baseline."""
    for metric in ("latency", "flops", "parameters", "state"):
        if metric in fit.limits:
            share = fit.limits[metric] / fit.baseline.figures[metric]
            if REACH[0] <= share <= REACH[1]:
                return f"{metric}={share:.4g}x"
    return ""
