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

from parformer import threads
from parformer.config import ModelConfig, preset, presets
from parformer.pattern import Pattern, interleaved, par, sandwich

if TYPE_CHECKING:
    from parformer import convert as convert
    from parformer.compress.job import compress as compress
    from parformer.compress.teaching import teach as teach
    from parformer.costs import cost as cost
    from parformer.data.request import prepare as prepare
    from parformer.evaluate.attention import attention as attention
    from parformer.evaluate.request import evaluate as evaluate
    from parformer.export.request import export as export
    from parformer.fitting.job import fit as fit
    from parformer.generate.request import generate as generate
    from parformer.generate.translating import translate as translate
    from parformer.hub import load as load
    from parformer.measure.request import measure as measure
    from parformer.model import build as build
    from parformer.naming import design as design
    from parformer.naming import show as show
    from parformer.predict.request import predict as predict
    from parformer.reproduce.job import reproduce as reproduce
    from parformer.search.placement.job import search_placement as search_placement
    from parformer.search.ranking.job import proxies as proxies
    from parformer.search.sizes.job import search_sizes as search_sizes
    from parformer.search.sizes.picking import pick as pick
    from parformer.serve.request import serve as serve
    from parformer.train.request import train as train

threads.settle()

__version__ = "0.1.0"

__all__ = [
    "ModelConfig",
    "Pattern",
    "attention",
    "build",
    "compress",
    "convert",
    "cost",
    "design",
    "evaluate",
    "export",
    "fit",
    "generate",
    "interleaved",
    "load",
    "measure",
    "par",
    "pick",
    "predict",
    "prepare",
    "preset",
    "presets",
    "proxies",
    "reproduce",
    "sandwich",
    "search_placement",
    "search_sizes",
    "serve",
    "show",
    "teach",
    "train",
    "translate",
]

# Names that bring torch or much else with them: they load when first used.
LATE = {
    "attention": "parformer.evaluate.attention",
    "build": "parformer.model",
    "cost": "parformer.costs",
    "design": "parformer.naming",
    "fit": "parformer.fitting.job",
    "load": "parformer.hub",
    "pick": "parformer.search.sizes.picking",
    "prepare": "parformer.data.request",
    "proxies": "parformer.search.ranking.job",
    "search_placement": "parformer.search.placement.job",
    "search_sizes": "parformer.search.sizes.job",
    "show": "parformer.naming",
    "teach": "parformer.compress.teaching",
    "translate": "parformer.generate.translating",
}
PACKAGES = (
    "compress",
    "convert",
    "evaluate",
    "export",
    "generate",
    "measure",
    "predict",
    "reproduce",
    "serve",
    "train",
)
"""Verbs that are packages one can call, and the package for weights from elsewhere."""


def __getattr__(name: str) -> Any:
    if name in PACKAGES:
        return importlib.import_module(f"parformer.{name}")
    if name in LATE:
        return getattr(importlib.import_module(LATE[name]), name)
    raise AttributeError(f"module 'parformer' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
