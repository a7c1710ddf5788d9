"""Does a value fit its field?

What every frozen configuration shares: types are checked against the annotations, names
against the fields, and a text from the command line becomes a value.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import itertools
import math
import re
import tomllib
import typing
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

from parformer.errors import ConfigError
from parformer.pattern import Pattern


def need_at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise ConfigError(f"{name} must be at least {least}, got {value}")


FEW = 12
"""So many names can all be told."""


def check_names(given: Iterable[str], known: Iterable[str], what: str) -> None:
    """Refuse the first unknown name and offer the nearest known ones."""
    known = list(known)
    for name in given:
        if name not in known:
            raise ConfigError(f"unknown {what} {str(name)!r:.80}; {nearest(str(name), known)}")


def nearest(name: str, known: Sequence[str]) -> str:
    """The way out for who typed a name that nobody knows.

    >>> nearest("par-bose", ["par-base", "par-large", "bert-base"])
    "did you mean 'par-base'?"
    """
    most = 1 if len(known) <= FEW else 3
    if near := [repr(one) for one in difflib.get_close_matches(name[:100], known, n=most)]:
        return f"did you mean {' or '.join(filter(None, (', '.join(near[:-1]), near[-1])))}?"
    if len(known) <= FEW:
        return f"known: {', '.join(known)}"
    near = difflib.get_close_matches(name[:100], known, n=most, cutoff=0.0)
    return f"there are {len(known)}, the nearest are {', '.join(near)}"


@cache
def field_types(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


@cache
def sentences(cls: type) -> dict[str, str]:
    """What the source says of every field, in the text that stands below it.

    >>> from parformer.recipe import DataConfig
    >>> sentences(DataConfig)["tokenizer"]
    'What a token is.'
    """
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__[:-1]):
        file = inspect.getsourcefile(base)
        if file is None:
            continue
        for node in ast.parse(Path(file).read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef) and node.name == base.__name__:
                found |= _below(node.body)
    return found


def _below(body: list[ast.stmt]) -> dict[str, str]:
    found = {}
    for field, text in itertools.pairwise(body):
        match field, text:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(words))),
            ):
                found[name] = " ".join(words.split())
    return found


def fit_type(name: str, value: Any, hint: Any) -> Any:
    """The value as the field's type, or a ConfigError that names both.

    >>> fit_type("cutoffs", [10, 20], tuple[int, ...])
    (10, 20)
    """
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ConfigError(f"{name} must fit into 64 bits, got a number of {value.bit_length()}")
    origin = typing.get_origin(hint)
    if type(None) in typing.get_args(hint):  # what may be left open
        (hint,) = (one for one in typing.get_args(hint) if one is not type(None))
        return None if value is None else fit_type(name, value, hint)
    if hint is Any:
        return value
    if origin is Literal:
        allowed = typing.get_args(hint)
        if value in allowed:
            return value
        raise ConfigError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}")
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise ConfigError(f"{name} must be a list, got {value!r}")
        return tuple(fit_type(name, item, typing.get_args(hint)[0]) for item in value)
    if hint is Pattern:
        return Pattern.parse(value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise ConfigError(f"{name} must be {TYPE_NAMES[hint]}, got {value!r}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{name} must be a finite number, got {value!r}")
    return value


def fit_fields(config: Any, section: str = "") -> None:
    """Fit every field of a frozen configuration to its type."""
    for name, hint in field_types(type(config)).items():  # type: ignore[arg-type]
        fitted = fit_type(f"{section}{name}", getattr(config, name), hint)
        object.__setattr__(config, name, fitted)


TYPE_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


def read_seconds(text: str) -> float:
    """A length of time as people write it: 90, 90s, 5m, 1.5h, 2d.

    >>> read_seconds("1.5m")
    90.0
    """
    parts = re.fullmatch(r"(\d+(?:\.\d*)?)\s*([smhd]?)", text.strip())
    if parts is None or float(parts[1]) <= 0:
        raise ConfigError(f"cannot read the time {text!r}; write it as 90s, 5m, 1.5h or 2d")
    return float(parts[1]) * {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}[parts[2]]


def parse_assignment(text: str) -> tuple[str, Any]:
    """Read `name=value` as the command line gives it; what is not a TOML value is a text.

    >>> parse_assignment("d_model=256"), parse_assignment("norm=pre")
    (('d_model', 256), ('norm', 'pre'))
    """
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise ConfigError(f"cannot read {text!r}; write it as field=value, such as d_model=256")
    try:
        read = tomllib.loads(f"value = {value}")
        return name.strip(), read["value"] if len(read) == 1 else value.strip()
    except (ValueError, RecursionError):  # TOML's own error is a ValueError too
        return name.strip(), value.strip()
