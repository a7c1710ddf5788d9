"""How does a request become flags, and flags a request?

Every field of a request is a flag that says the field's own sentence; a table beside the verb
tells only what a type cannot: another name, how a value is written, which group it stands in.
"""

from __future__ import annotations

import argparse
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

from parformer.fields import field_types, sentences

Request = TypeVar("Request")
NUMBERS = {int: "N", float: "NUMBER", Path: "PATH"}


@dataclass(frozen=True, kw_only=True)
class Flag:
    """What is special about one field's flag."""

    name: str = ""
    """Another name than the field's: `--from`; without dashes it stands by its place."""
    metavar: str = ""
    read: Callable[[str], Any] | None = None
    """Makes a value of what was typed, in place of the field's type."""
    group: str = ""
    """The heading that it stands under."""
    default: str = ""
    """What happens without it, in words; the field's default unless given."""
    hidden: bool = False
    """Not for the command line."""


def add_flags(
    parser: argparse.ArgumentParser, request: type, special: Mapping[str, Flag] | None = None
) -> None:
    """A flag for every field of a request; none has a default, so that one sees what was given."""
    special = special or {}
    groups: dict[str, argparse._ActionsContainer] = {"": parser}
    hints, words = field_types(request), sentences(request)
    for field in fields(request):
        flag = special.get(field.name, Flag())
        if flag.hidden:
            continue
        if flag.group not in groups:
            groups[flag.group] = parser.add_argument_group(flag.group)
        told = words.get(field.name, "").rstrip(".")
        told = told[:1].lower() + told[1:]
        default = flag.default or _default(field.default)
        options = _options(hints[field.name], flag)
        options["help"] = (f"{told} (default {default})" if default else told).replace("%", "%%")
        if flag.name and not flag.name.startswith("-"):
            needed = field.default is MISSING and field.default_factory is MISSING
            several = "+" if needed else "*"
            many = several if options.pop("action", "") else None if needed else "?"
            options["metavar"] = flag.metavar or flag.name
            groups[flag.group].add_argument(field.name, nargs=many, default=None, **options)
        else:
            name = flag.name or f"--{field.name.replace('_', '-')}"
            groups[flag.group].add_argument(name, dest=field.name, default=None, **options)


def asked(arguments: argparse.Namespace, request: type[Request], **own: object) -> Request:
    """The request that a command line makes; `own` are fields that the verb sets itself."""
    return cast(Any, request)(**given(arguments, request) | own)  # type: ignore[no-any-return]


def given(arguments: argparse.Namespace, request: type) -> dict[str, object]:
    """The fields of a request that the command line sets."""
    values = {field.name: getattr(arguments, field.name, None) for field in fields(request)}
    return {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in values.items()
        if value is not None
    }


def _options(hint: Any, flag: Flag) -> dict[str, Any]:
    """What argparse has to know of a field's type."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        hint = next(one for one in typing.get_args(hint) if one is not type(None))
    options: dict[str, Any] = {}
    if typing.get_origin(hint) is tuple:
        options["action"] = "append"
        hint = typing.get_args(hint)[0]
    if flag.read is not None:
        return options | {"type": flag.read, "metavar": flag.metavar or None}
    if hint is bool:
        return {"action": argparse.BooleanOptionalAction}
    if typing.get_origin(hint) is Literal:
        options["choices"] = typing.get_args(hint)
        return options | ({"metavar": flag.metavar} if flag.metavar else {})
    return options | {"type": hint, "metavar": flag.metavar or NUMBERS.get(hint, "TEXT")}


def _default(value: Any) -> str:
    if value is MISSING or value is None or value in ("", (), False):
        return ""
    return "yes" if value is True else f"{value:g}" if isinstance(value, float) else str(value)
