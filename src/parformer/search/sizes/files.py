"""Which spaces of sizes come with Parformer, and how is one's own read?

>>> {"lts", "mobilebert", "pocket"} <= {*space_names()}
True
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from importlib import resources
from pathlib import Path
from types import MappingProxyType

from parformer.config import FAMILIES, ModelConfig, read_model
from parformer.errors import ConfigError
from parformer.fields import check_names, fit_type
from parformer.notation import shown
from parformer.records import Json

NAMES = ("title", "source", "like", "model", "extends", "layers", "unit", "fields",
         "inner_ratio", "alike", "bounds", "name", "encoder", "encoder_layers")  # fmt: skip
TABLES = ("fields", "bounds", "model")
KINDS = {"name": str, "title": str, "source": str, "like": str, "inner_ratio": float, "alike": bool}


def space_names() -> tuple[str, ...]:
    """The names of all built-in spaces."""
    return tuple(sorted(_files()))


def read_space_table(source: str | Json, like: str = "") -> tuple[Json, ModelConfig]:
    """What a space says, and the model that its candidates are like."""
    table = _extend(dict(source), ()) if isinstance(source, Mapping) else _read(source)
    table.setdefault("name", "unnamed")
    where = f"space {shown(table['name'])}"
    check_names(table, NAMES, f"name in {where}")
    for name in ("layers", "unit"):
        if name not in table:
            raise ConfigError(f"{where} has no {name}; 'parformer search sizes --spaces' shows one")
    if not isinstance(table["unit"], list):
        raise ConfigError(f"unit of {where} must be a list, such as ['s[heads=2|4]', 'f']")
    if not isinstance(table.get("encoder", []), list):
        raise ConfigError(f"encoder of {where} must be a list, such as ['s[heads=2|4]', 'f']")
    if bool(table.get("encoder")) != ("encoder_layers" in table):
        raise ConfigError(f"{where} needs both encoder and encoder_layers, or neither")
    for name in TABLES:
        if not isinstance(table.get(name, {}), dict):
            raise ConfigError(f"{name} of {where} must be a table")
    for name, kind in KINDS.items():
        if name in table:
            table[name] = fit_type(f"{name} of {where}", table[name], kind)
    if not 0 <= (ratio := table.get("inner_ratio", 0.0)) <= 1000:
        raise ConfigError(f"inner_ratio of {where} must be from 0 to 1000, got {ratio:g}")
    changes = table.get("model", {})
    check_names(changes, [f.name for f in fields(ModelConfig)], f"field of the model of {where}")
    if like:
        model, table = read_model(like), {**table, "like": like}
    elif "family" in changes:
        model = ModelConfig.from_dict(changes)
    elif "like" in table:
        model = read_model(table["like"], **changes)
    else:
        raise ConfigError(f'{where} does not say which model it is like; add like = "pocket"')
    bounds = table.get("bounds", {})
    if any(isinstance(values, Mapping) for values in bounds.values()):
        check_names(bounds, FAMILIES, f"family in the bounds of {where}")
        bounds = bounds.get(model.family, {})
        if not isinstance(bounds, Mapping):
            raise ConfigError(f"bounds.{model.family} of {where} must be a table")
    return {**table, "bounds": bounds}, model


def _read(source: str, above: tuple[str, ...] = ()) -> Json:
    if source in above:
        raise ConfigError(f"space {source!r} extends itself, by way of {', '.join(above)}")
    if source.endswith(".toml"):
        try:
            text = Path(source).read_text("utf-8")
        except OSError as error:
            raise ConfigError(f"cannot read {source!r}: {error.strerror}") from None
        except ValueError as error:
            raise ConfigError(f"cannot read {source!r}: {error}") from None
        name = Path(source).stem
    else:
        known = space_names()
        if source not in known:
            near = difflib.get_close_matches(source, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known spaces: {', '.join(known)}"
            raise ConfigError(f"unknown space {shown(source)}; {hint}")
        text, name = _files()[source], source
    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{source!r} is not TOML: {error}") from None
    return _extend({**table, "name": name}, (*above, source))


def _extend(table: Json, above: tuple[str, ...]) -> Json:
    """A space that extends another: its model and fields add to it, its other words win."""
    if "extends" not in table:
        return table
    parent, own = _read(str(table["extends"]), above), {**table}
    del own["extends"]
    for name in ("model", "fields"):
        if isinstance(parent.get(name), dict) and isinstance(own.get(name), dict):
            own[name] = parent[name] | own[name]
    return {**parent, **own}


@cache
def _files() -> Mapping[str, str]:
    folder = resources.files("parformer") / "spaces"
    found = {f.name: f.read_text("utf-8") for f in folder.iterdir() if f.name.endswith(".toml")}
    return MappingProxyType({name.removesuffix(".toml"): text for name, text in found.items()})
