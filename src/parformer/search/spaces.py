"""Which spaces of sizes come with Parformer, and how is one's own read?

>>> sorted(space_names())
['lts', 'lts-as-run', 'lts-homogeneous', 'opt-350m', 'pocket', 'pocket-mixed']
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Any

from parformer.config import FAMILIES, ModelConfig, read_model
from parformer.errors import ConfigError
from parformer.fields import check_names
from parformer.notation import shown

NAMES = ("title", "source", "like", "model", "extends", "layers", "unit", "fields",
         "inner_ratio", "alike", "bounds", "name")  # fmt: skip


def space_names() -> tuple[str, ...]:
    """The names of all built-in spaces."""
    return tuple(sorted(_files()))


def read_space_table(
    source: str | Mapping[str, Any], like: ModelConfig | None = None
) -> tuple[dict[str, Any], ModelConfig]:
    """What a space says, and the model that its candidates are like."""
    table = dict(source) if isinstance(source, Mapping) else _read(source)
    where = f"space {shown(table.get('name', '?'))}"
    check_names(table, NAMES, f"name in {where}")
    for name in ("layers", "unit"):
        if name not in table:
            raise ConfigError(
                f"{where} has no {name}; 'parformer search pareto --spaces' shows one"
            )
    if not isinstance(table["unit"], list):
        raise ConfigError(f"unit of {where} must be a list, such as ['s[heads=2|4]', 'f']")
    for name, kind in (("fields", dict), ("bounds", dict), ("model", dict)):
        if not isinstance(table.get(name, {}), kind):
            raise ConfigError(f"{name} of {where} must be a table")
    try:
        ratio = float(table.get("inner_ratio", 0))
    except (TypeError, ValueError):
        ratio = -1.0
    if not 0 <= ratio <= 1000:
        raise ConfigError(
            f"inner_ratio of {where} must be a number from 0, got {table['inner_ratio']!r}"
        )
    changes = table.get("model", {})
    if like is not None:
        model = like
    elif "like" in table:
        model = read_model(str(table["like"]), **changes)
    elif "family" in changes:
        model = ModelConfig.from_dict(changes)
    else:
        raise ConfigError(f'{where} does not say which model it is like; add like = "pocket"')
    bounds = table.get("bounds", {})
    if any(isinstance(values, Mapping) for values in bounds.values()):
        check_names(bounds, FAMILIES, f"family in the bounds of {where}")
        bounds = bounds.get(model.family, {})
    return {**table, "bounds": bounds}, model


def _read(source: str) -> dict[str, Any]:
    if source.endswith(".toml"):
        try:
            text = Path(source).read_text("utf-8")
        except (OSError, ValueError) as error:
            raise ConfigError(f"cannot read {source!r}: {error}") from None
        name = Path(source).stem
    else:
        known = space_names()
        if source not in known:
            near = difflib.get_close_matches(source, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known spaces: {', '.join(known)}"
            raise ConfigError(f"unknown space {source!r}; {hint}")
        text, name = _files()[source], source
    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{source!r} is not TOML: {error}") from None
    if "extends" in table:
        if table["extends"] == name:
            raise ConfigError(f"{source!r} extends itself")
        table = {**_read(str(table.pop("extends"))), **table}
    return {**table, "name": name}


@cache
def _files() -> Mapping[str, str]:
    folder = resources.files("parformer") / "spaces"
    found = {f.name: f.read_text("utf-8") for f in folder.iterdir() if f.name.endswith(".toml")}
    return MappingProxyType({name.removesuffix(".toml"): text for name, text in found.items()})
