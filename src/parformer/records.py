"""How does a typed result become JSON, and JSON a typed result?

A record is a frozen dataclass of numbers, texts, other records, and tuples and tables of them.
What an older version did not write gets its default, and what nobody reads any more is passed
over; what is there must fit its type.

>>> @dataclass(frozen=True)
... class Point(Record):
...     x: float
...     tags: tuple[str, ...] = ()
>>> Point.from_dict({"x": 2, "colour": "red"})
Point(x=2.0, tags=())
>>> Point(1.5, ("a",)).to_dict()
{'x': 1.5, 'tags': ['a']}
"""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from parformer.errors import FolderError
from parformer.fields import TYPE_NAMES, field_types
from parformer.pattern import Pattern
from parformer.store.files import Json as Json
from parformer.store.files import read_json, replace_file


class Record:
    """A frozen dataclass that can be written down."""

    __slots__ = ()

    def to_dict(self) -> Json:
        """Plain values, ready for JSON; what is worked out from the others is none of them."""
        own = [field.name for field in fields(self) if field.init]  # type: ignore[arg-type]
        return {name: plain(getattr(self, name)) for name in own}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], place: str = "") -> Self:
        """Read what `to_dict` gave, now or in an older version."""
        place = place or cls.__name__
        if not isinstance(values, Mapping):
            raise FolderError(f"{place} must be a table, got {values!r:.60}")
        hints = field_types(cls)  # type: ignore[arg-type]
        given: Json = {}
        for field in (one for one in fields(cls) if one.init):  # type: ignore[arg-type]
            if field.name in values:
                inside = f"{place}.{field.name}"
                given[field.name] = typed(values[field.name], hints[field.name], inside)
            elif field.default is MISSING and field.default_factory is MISSING:
                raise FolderError(f"{place} lacks {field.name!r}")
        return cls(**given)


@dataclass(frozen=True, kw_only=True)
class Result(Record):
    """What a verb gives back, in a file of its run folder."""

    FILE: ClassVar[str]
    FORMAT: ClassVar[str]

    def save(self, folder: Path) -> None:
        """Write it whole or not at all."""
        text = json.dumps({"format": self.FORMAT} | self.to_dict())
        replace_file(folder / self.FILE, text + "\n")

    @classmethod
    def load(cls, folder: Path) -> Self:
        """What a run found; any version's."""
        values = read_json(folder / cls.FILE)
        if values.get("format", cls.FORMAT) != cls.FORMAT:
            raise FolderError(f"{str(folder / cls.FILE)!r} says {values['format']!r}, not ours")
        return cls.from_dict(values, cls.FILE)


def plain(value: Any) -> Any:
    """A value as JSON has it."""
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if isinstance(value, Pattern | Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): plain(inside) for key, inside in value.items()}
    if isinstance(value, tuple | list):
        return [plain(inside) for inside in value]
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    return value


def typed(value: Any, hint: Any, place: str) -> Any:
    """A value from JSON as its type, or an error that names the place."""
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if origin in (typing.Union, types.UnionType):
        return _one_of(value, inside, place)
    if origin is Literal:
        if value not in inside:
            known = ", ".join(map(repr, inside))
            raise FolderError(f"{place} must be one of {known}, got {value!r:.60}")
        return value
    if origin in (tuple, list):
        return _sequence(value, origin, inside, place)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        _need(isinstance(value, Mapping), place, "a table", value)
        kind, hint = inside
        return {kind(key): typed(one, hint, f"{place}.{key}") for key, one in value.items()}
    if isinstance(hint, type) and issubclass(hint, Record):
        return hint.from_dict(value, place)
    if hasattr(hint, "from_dict"):
        _need(isinstance(value, Mapping), place, "a table", value)
        return hint.from_dict(value)
    if hint is Pattern:
        _need(isinstance(value, str), place, "a pattern", value)
        return Pattern.parse(value)
    if hint is Path:
        _need(isinstance(value, str), place, "a path", value)
        return Path(value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    fits = isinstance(value, hint) and (hint in (bool, object) or not isinstance(value, bool))
    _need(fits, place, TYPE_NAMES.get(hint, str(hint)), value)
    return value


def _one_of(value: Any, hints: tuple[Any, ...], place: str) -> Any:
    if value is None and type(None) in hints:
        return None
    errors = []
    for hint in (hint for hint in hints if hint is not type(None)):
        try:
            return typed(value, hint, place)
        except FolderError as error:
            errors.append(error)
    raise errors[0]


def _sequence(value: Any, origin: type, inside: tuple[Any, ...], place: str) -> Any:
    _need(isinstance(value, list | tuple), place, "a list", value)
    if origin is tuple and inside[-1] is not Ellipsis:
        _need(len(value) == len(inside), place, f"a list of {len(inside)}", value)
        hints = inside
    else:
        hints = (inside[0],) * len(value)
    pairs = enumerate(zip(value, hints, strict=True))
    return origin(typed(one, hint, f"{place}[{index}]") for index, (one, hint) in pairs)


def _need(fits: bool, place: str, what: str, value: Any) -> None:
    if not fits:
        raise FolderError(f"{place} must be {what}, got {value!r:.60}")
