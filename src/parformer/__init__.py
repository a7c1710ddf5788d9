"""Where does a language model need attention?

>>> import parformer as pf
>>> pf.par(32, 5)
Pattern('(sfff)x6 (f)x8')
>>> pf.cost(pf.preset("par-base")).parameters
199840218
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from parformer.config import ModelConfig, preset, presets
from parformer.pattern import Pattern, interleaved, par, sandwich

if TYPE_CHECKING:
    from parformer import convert as convert
    from parformer.costs import cost as cost
    from parformer.fitting.notebook import fit as fit
    from parformer.model import build as build
    from parformer.model import load as load

__version__ = "0.1.0"

__all__ = [
    "ModelConfig",
    "Pattern",
    "build",
    "convert",
    "cost",
    "fit",
    "interleaved",
    "load",
    "par",
    "preset",
    "presets",
    "sandwich",
]

# Names that bring torch with them, which takes seconds: they load when first used.
LATE = {
    "build": "parformer.model",
    "cost": "parformer.costs",
    "fit": "parformer.fitting.notebook",
    "load": "parformer.model",
}


def __getattr__(name: str) -> Any:
    if name == "convert":
        return importlib.import_module("parformer.convert")
    if name in LATE:
        return getattr(importlib.import_module(LATE[name]), name)
    raise AttributeError(f"module 'parformer' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
