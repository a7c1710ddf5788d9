"""Which model of a front is the best that fits?"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tomli_w

from parformer.errors import ConfigError, FolderError
from parformer.notation import shown
from parformer.recipe import Recipe, read_recipe
from parformer.records import Json
from parformer.search.limits import Limit, as_option, excess, in_words, read_limits
from parformer.search.sizes.request import PickRequest
from parformer.search.sizes.result import Member, SizesResult
from parformer.store.files import replace_file
from parformer.verbs import requested

OURS = re.compile(r"g[1-9][0-9]{0,5}")
"""What models of a front are called; their names become those of files."""


@dataclass(frozen=True, kw_only=True)
class Picked(Member):
    """A model of a front that was chosen, and written down."""

    config_file: Path
    limits: Mapping[str, float]
    """In seconds, bytes and counts."""

    def to_dict(self) -> Json:
        values = super().to_dict()
        return {**values, "config": values.pop("config_file"), "limits": values["limits"]}


def pick(request: PickRequest | None = None, **fields: Any) -> Picked:
    """Write the recipe of the best that fits; takes a request or its fields."""
    request = requested(PickRequest, request, fields)
    run = Path(request.run)
    found = read_result(run)
    limits = absolute_limits(read_limits(request.limits), found)
    members = found.front
    if request.name:
        members = tuple(one for one in members if one.name == request.name)
        if not members:
            names = ", ".join(one.name for one in found.front)
            raise ConfigError(f"no model {shown(request.name)} in the front; there are: {names}")
    member = best_within(members, limits)
    file = Path(request.output or run / f"{member.name}.toml")
    if not file.parent.is_dir():
        raise FolderError(f"cannot write {str(file)!r}: there is no folder {str(file.parent)!r}")
    replace_file(file, tomli_w.dumps(recipe_of(member, found).to_dict()))
    own = {name: getattr(member, name) for name in Member.__dataclass_fields__}
    return Picked(**own, config_file=file, limits=limits)


def read_result(run: Path) -> SizesResult:
    """What a search found; a file with names that are not ours is refused."""
    if not (run / SizesResult.FILE).is_file():
        raise FolderError(
            f"no finished search for sizes at {str(run)!r}: it has no {SizesResult.FILE}; "
            f"begin one with: parformer search sizes --run {shlex.quote(str(run))}"
        )
    found = SizesResult.load(run)
    for member in found.front:
        if not OURS.fullmatch(member.name):
            raise FolderError(
                f"{str(run / SizesResult.FILE)!r} has a model {shown(member.name)} in its front, "
                "and ours are called g1, g2, …; search again, or copy the file back"
            )
    return found


def best_within(members: Sequence[Member], limits: Mapping[str, float]) -> Member:
    """The best within limits; measured figures count, where there are any."""
    if not members:
        raise ConfigError("the front is empty; search again")
    over = [excess({name: known(one, name) for name in limits}, limits) for one in members]
    fitting = [one for one, much in zip(members, over, strict=True) if much == 0]
    if fitting:
        return max(fitting, key=lambda one: one.quality)
    nearest = members[min(range(len(members)), key=over.__getitem__)]
    broken = {name: known(nearest, name) for name in limits}
    broken = {name: value for name, value in broken.items() if value > limits[name]}
    has = " and ".join(f"{in_words(name, value)} of {name}" for name, value in broken.items())
    options = " ".join(f"--limit {as_option(name, value)}" for name, value in broken.items())
    raise ConfigError(
        f"no model of the front is within these limits; the nearest, {nearest.name}, has {has}; "
        f"try {options}"
    )


def known(member: Member, metric: str) -> float:
    value = member.figure(metric)
    if value is None:
        raise ConfigError(
            f"this search knows no {metric} of its models; limit flops, parameters or state"
        )
    return value


def absolute_limits(limits: Sequence[Limit], found: SizesResult) -> dict[str, float]:
    """Limits in seconds, bytes and counts; a multiple is of the model that the space is like,
    or of the deepest baseline where that one is beyond reach and was not measured.
    """
    if not any(limit.relative for limit in limits):
        return {limit.metric: limit.most for limit in limits}
    if not found.baseline:
        raise ConfigError("this search has no baseline to take a multiple of; give amounts")
    same = [one for one in found.baseline if one.pattern == found.space.like]
    base = (same or found.baseline)[-1]
    return {limit.metric: limit.of(known(base, limit.metric)).most for limit in limits}


def recipe_of(member: Member, found: SizesResult) -> Recipe:
    """How to train a model of a front: by the recipe of the model that the space is like."""
    model = member.config(found.space.model)
    if not found.space.recipe:
        return Recipe(model=model)
    return replace(read_recipe(found.space.recipe), model=model, search=None)
