"""Which model of a front is the best that fits?

>>> row = {"name": "g1", "quality": 5, "measured": {"latency": 0.01}, "predicted": None}
>>> pick({"front": [row]}, {"latency": 0.02})["name"]
'g1'
>>> pick({"front": [row]}, {"latency": 0.002})
Traceback (most recent call last):
parformer.errors.ConfigError: no model of the front is within these limits; the nearest, g1, ...
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from parformer.config import ModelConfig
from parformer.errors import ConfigError
from parformer.recipe import Recipe, read_recipe
from parformer.search.limits import Limit, as_option, excess, in_words

Row = dict[str, Any]
"""A model of a front or a baseline, as pareto.json has it."""


def figure(row: Row, metric: str) -> float | None:
    """Measured if it was, else predicted; or what was counted."""
    known = row["measured"] or row["predicted"]
    if metric in ("latency", "memory"):
        return None if known is None else float(known[metric])
    return float(row[{"state": "state_bytes"}.get(metric, metric)])


def pick(found: Mapping[str, Any], limits: Mapping[str, float]) -> Row:
    """The best of the front within limits; measured figures count, where there are any."""
    best: Row | None = None
    nearest: tuple[float, Row] | None = None
    for row in found["front"]:
        over = excess({name: known(row, name) for name in limits}, limits)
        if over == 0 and (best is None or row["quality"] > best["quality"]):
            best = row
        if nearest is None or over < nearest[0]:
            nearest = over, row
    if best is not None:
        return best
    if nearest is None:
        raise ConfigError("the front is empty; search again")
    row = nearest[1]
    broken = {name: known(row, name) for name in limits if known(row, name) > limits[name]}
    has = " and ".join(f"{in_words(name, value)} of {name}" for name, value in broken.items())
    options = " ".join(f"--limit {as_option(name, value)}" for name, value in broken.items())
    raise ConfigError(
        f"no model of the front is within these limits; the nearest, {row['name']}, has {has}; "
        f"try {options}"
    )


def known(row: Row, metric: str) -> float:
    value = figure(row, metric)
    if value is None:
        raise ConfigError(
            f"this search knows no {metric} of its models; limit flops, parameters or state"
        )
    return value


def relative_limits(limits: Sequence[Limit], found: Mapping[str, Any]) -> dict[str, float]:
    """Limits in seconds, bytes and counts; a multiple is of the model that the space is like,
    or of the deepest baseline where that one is beyond reach and was not measured.
    """
    if not any(limit.relative for limit in limits):
        return {limit.metric: limit.most for limit in limits}
    if not found["baseline"]:
        raise ConfigError("this search has no baseline to take a multiple of; give amounts")
    rows = found["baseline"]
    same = [row for row in rows if row["pattern"] == found["space"]["like"]]
    base = (same or rows)[-1]
    return {limit.metric: limit.of(known(base, limit.metric)).most for limit in limits}


def picked_recipe(row: Row, found: Mapping[str, Any]) -> Recipe:
    """How to train a model of a front: by the recipe of the model that the space is like."""
    like = ModelConfig.from_dict(found["space"]["model"])
    model = like.replaced(pattern=row["pattern"], **row["fields"])
    source = found["space"]["recipe"]
    if not source:
        return Recipe(model=model)
    return replace(read_recipe(source), model=model, search=None)
