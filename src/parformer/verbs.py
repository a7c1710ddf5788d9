"""How is a verb called?

With a request, or with the request's fields; `pf.train` and the like are also the packages that
hold the verb's parts, so those are packages one can call.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from types import ModuleType
from typing import Any, TypeVar

from parformer.errors import ConfigError
from parformer.fields import check_names

Request = TypeVar("Request")


def requested(cls: type[Request], request: Request | None, given: Mapping[str, object]) -> Request:
    """The request that a verb was called with, or the one that its fields make."""
    if request is None:
        check_names(given, [field.name for field in fields(cls)], "field")  # type: ignore[arg-type]
        return cls(**given)
    if not isinstance(request, cls) or given:
        raise ConfigError(
            f"give a {cls.__name__}, or its fields by name and nothing else; got {request!r:.60}"
        )
    return request


@contextmanager
def within_memory(needs: Callable[[], str]) -> Iterator[None]:
    """Say in one line that there is not enough memory, and what the work needs."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and not NO_MEMORY.search(str(error)):
            raise
        raise ConfigError(f"not enough memory: {needs()}") from None


NO_MEMORY = re.compile(r"can't allocate memory|bad_alloc|out of memory", re.IGNORECASE)
"""How torch says so; its errors have no type of their own on a CPU."""


class Speaking(ModuleType):
    """A package that is its verb when it is called."""

    def __call__(self, *arguments: Any, **fields: Any) -> Any:
        home, _, name = self.__verb__.partition(":")
        return getattr(importlib.import_module(home), name)(*arguments, **fields)

    def __getattr__(self, name: str) -> Any:
        if home := self.__dict__.get("__late__", {}).get(name):
            return getattr(importlib.import_module(home), name)
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self.__dict__.get("__late__", {})})


def speak(package: str, verb: str, late: Mapping[str, str] | None = None) -> None:
    """Make a package callable as `module:function`; `late` names load when first asked for."""
    module = sys.modules[package]
    module.__class__ = Speaking
    module.__dict__.update(__verb__=verb, __late__=dict(late or {}), __all__=sorted(late or {}))
