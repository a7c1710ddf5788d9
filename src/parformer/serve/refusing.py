"""What can a request say, within which bounds, and how is the rest refused?

>>> body = Body({"n": 3, "model": "notes"})
>>> body.whole("n", 1, 1, 16), body.text("model", "")
(3, 'notes')
>>> body.refuse_rest()
>>> Body({"n": 10**9}).whole("n", 1, 1, 16)
Traceback (most recent call last):
...
parformer.serve.refusing.Refused: n is a whole number from 1 to 16, got 1000000000
"""

from __future__ import annotations

import json
import math
from typing import Any

from parformer.fields import nearest
from parformer.store.files import Json

MAX_BODY = 2**22
"""Bytes of a request."""
MAX_TEXT = 2**20
"""Characters of one text in it."""


class Refused(Exception):
    """A request that is answered with an error of the kind that OpenAI's clients read."""

    def __init__(
        self, message: str, *, status: int = 400, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code

    def to_dict(self) -> Json:
        kinds = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        told = {
            "message": str(self),
            "type": kinds.get(self.status, kind),
            "param": self.param,
            "code": self.code,
        }
        return {"error": told}


def read_json(raw: bytes) -> Json:
    """The object that a request holds."""
    try:
        value = json.loads(raw.decode("utf-8"), parse_constant=no_number)
    except UnicodeDecodeError as error:
        raise Refused(f"the body is no UTF-8 at byte {error.start}") from None
    except (ValueError, RecursionError) as error:
        raise Refused(f"the body is no JSON: {str(error) or 'nested too deep'!s:.120}") from None
    if not isinstance(value, dict):
        raise Refused(f"the body must be a JSON object, got {kind_of(value)}")
    return value


def no_number(name: str) -> float:
    raise ValueError(f"{name} is no number")


def kind_of(value: object) -> str:
    """What JSON calls it."""
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false"}
    return "null" if value is None else names.get(type(value), "a number")


class Body:
    """The fields of a request, which notes what was asked for."""

    def __init__(self, values: Json) -> None:
        self.values, self.known = values, set[str]()

    def take(self, name: str) -> Any:
        """A field as it is; null where it is not there."""
        self.known.add(name)
        return self.values.get(name)

    def whole(self, name: str, default: int, low: int, high: int) -> int:
        value = self.take(name)
        if value is None:
            return default
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if type(value) is not int or not low <= value <= high:
            raise Refused(
                f"{name} is a whole number from {low} to {high}, got {shown(value)}", param=name
            )
        return value

    def number(self, name: str, default: float, low: float, high: float) -> float:
        value = self.take(name)
        if value is None:
            return default
        fits = type(value) in (int, float) and low <= value <= high and math.isfinite(value)
        if not fits:
            raise Refused(
                f"{name} is a number from {low:g} to {high:g}, got {shown(value)}", param=name
            )
        return float(value)

    def flag(self, name: str) -> bool:
        value = self.take(name)
        if value is not None and type(value) is not bool:
            raise Refused(f"{name} is true or false, got {shown(value)}", param=name)
        return bool(value)

    def text(self, name: str, default: str) -> str:
        value = self.take(name)
        return default if value is None else text_of(name, value)

    def texts(self, name: str, most: int, longest: int) -> tuple[str, ...]:
        """One text, or a list of some."""
        value = self.take(name)
        several = [] if value is None else value if isinstance(value, list) else [value]
        if len(several) > most:
            raise Refused(f"{name} holds {len(several)} texts, {most} at most", param=name)
        found = tuple(text_of(name, one) for one in several)
        if any(not 0 < len(one) <= longest for one in found):
            raise Refused(f"{name} holds texts of 1 to {longest} characters each", param=name)
        return found

    def neutral(self, *names: str) -> None:
        """Fields that clients send and that mean nothing here, as long as they ask for nothing."""
        for name in names:
            if (value := self.take(name)) not in (None, False, "", [], {}):
                raise Refused(
                    f"{name} is not supported, got {shown(value)}; leave it out", param=name
                )

    def ignore(self, *names: str) -> None:
        """Fields that change nothing about the answer."""
        self.known |= {*names}

    def refuse_rest(self) -> None:
        """Name a field that nobody knows."""
        for name in self.values:
            if name not in self.known:
                way_out = nearest(name[:80], sorted(self.known))
                raise Refused(f"unknown field {name!r:.80}; {way_out}", param=name[:80])


def text_of(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise Refused(f"{name} must be a text, got {kind_of(value)}", param=name)
    if len(value) > MAX_TEXT:
        raise Refused(f"{name} has {len(value):,} characters, {MAX_TEXT:,} at most", param=name)
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise Refused(
            f"{name} has half of a surrogate pair, which is no text", param=name
        ) from None
    return value


def shown(value: object) -> str:
    """A value for a message, however long it is."""
    if isinstance(value, dict | list):
        return kind_of(value)
    if isinstance(value, int) and abs(value) >= 10**40:
        return "a number of more than 40 digits"
    return f"{value!r:.60}"
