"""SRU++'s tables and figures: counts, settings, and what is measured."""

from __future__ import annotations

from collections.abc import Mapping

from parformer.config import ModelConfig, preset
from parformer.costs import cost, step_shape
from parformer.measure.device import pinned_threads
from parformer.measure.models import Reader
from parformer.measure.operations import time_by_kind
from parformer.model import build
from parformer.reproduce.pairs import compare_pairs, reader
from parformer.reproduce.study import Found, Ours
from parformer.reproduce.workbench import Workbench, settings, study

LAYERS = 10
PROFILED = 4
"""Steps that the profiler looks at."""


def millions(config: ModelConfig) -> Ours:
    return Ours(cost(config).parameters / 1e6, "exact count")


def preset_sizes(names: Mapping[str, str]) -> dict[str, Ours]:
    return {f"parameters-{key}": millions(preset(name)) for key, name in names.items()}


def attention_in(layers: set[int], heads: int = 1) -> str:
    """Ten layers with attention in some, counted from the input.

    >>> attention_in({5, 10}), attention_in({10}, heads=2)
    ('rrrrarrrra', 'rrrrrrrrra[heads=2]')
    """
    block = "a" if heads == 1 else f"a[heads={heads}]"
    return "".join(block if layer in layers else "r" for layer in range(1, LAYERS + 1))


def wide(config: ModelConfig, d: int, inside: int) -> ModelConfig:
    return config.replaced(d_model=d, d_attention=inside, d_inner=d)


@study("srupp-table-3")
def table_3(bench: Workbench) -> Found:
    small = preset("transformer-xl-24b-enwik8")
    large = small.replaced(pattern="(sf)x24", d_model=1024, d_inner=3072)
    names = {"base": "srupp-base-enwik8", "k5": "srupp-base-k5-enwik8"}
    names |= {"large": "srupp-large-enwik8", "r8": "srupp-large-r8-enwik8"}
    return {"parameters-txl": millions(large), **preset_sizes(names)}


@study("srupp-table-5")
def table_5(bench: Workbench) -> Found:
    names = {"txl": "transformer-xl-large", "base": "srupp-base-wt103"}
    names |= {"large": "srupp-large-wt103", "r8": "srupp-large-r8-wt103"}
    return preset_sizes(names | {"r8-k5": "srupp-large-r8-k5-wt103"})


@study("srupp-table-6")
def table_6(bench: Workbench) -> Found:
    return preset_sizes({"base": "srupp-base-lm1b", "large": "srupp-large-k5-lm1b"})


@study("srupp-table-7")
def table_7(bench: Workbench) -> Found:
    length = 128
    names = {"txl": "transformer-xl-large", "srupp": "srupp-large-r8-wt103"}
    names |= {"k5": "srupp-large-r8-k5-wt103"}
    sides = bench.measure({key: preset(name) for key, name in names.items()}, tgt_len=length)

    def speed(ratio: float) -> float:
        return 1 / ratio

    found = {
        "speed-srupp": sides.time_ratio("srupp", "txl", of=speed),
        "speed-k5": sides.time_ratio("k5", "txl", of=speed),
        "speed-k5-k1": sides.time_ratio("k5", "srupp", of=speed),
    }
    for key in names:
        reading = sides.readings[key]
        ends = (length / reading.high, length / reading.low)
        found[f"tokens-{key}"] = Ours(length / reading.median, sides.how, ends)
    return found


DETAILS = {
    "train_len": "train.tgt_len",
    "test_len": "model.tgt_len",
    "batch": "train.batch",
    "dropout": "model.dropout",
    "clip": "train.clip",
    "d": "model.d_model",
    "d1": "model.d_attention",
    "rate": "train.learning_rate",
    "warmup": "train.warmup",
    "steps": "train.steps",
    "decay": "train.weight_decay",
}
"""The words of Tables 11 and 12, and where a recipe has them."""


def details(names: dict[str, str]) -> Found:
    found: dict[str, Ours] = {}
    for key, name in names.items():
        model = preset(name)
        found |= settings(name, DETAILS, f"{key}-")
        found[f"{key}-ratio"] = Ours(model.d_model / model.d_attention, "the preset's setting")
        found[f"{key}-size"] = millions(model)
    return found


@study("srupp-table-8")
def table_8(bench: Workbench) -> Found:
    names = {"transformer": "transformer-translation-iwslt", "srupp": "srupp-translation-iwslt"}
    names["k2"] = "srupp-k2-translation-iwslt"
    found = {f"parameters-{key}": millions(preset(name)) for key, name in names.items()}
    recipes = {
        "transformer": reader("transformer-pocket-translation"),
        "srupp": reader("srupp-pocket-translation"),
        "k2": reader("srupp-pocket-translation", "(ra)x2 | (ra[source])x2"),
    }
    return found | compare_pairs(bench, "srupp-table-8", recipes, "transformer")


@study("srupp-table-11")
def table_11(bench: Workbench) -> Found:
    names = {"k5": "srupp-base-k5-enwik8", "base": "srupp-base-enwik8"}
    return details(names | {"large": "srupp-large-enwik8", "r8": "srupp-large-r8-enwik8"})


@study("srupp-table-12")
def table_12(bench: Workbench) -> Found:
    names = {"base": "srupp-base-wt103", "large": "srupp-large-wt103"}
    return details(names | {"r8-k5": "srupp-large-r8-k5-wt103", "r8": "srupp-large-r8-wt103"})


@study("srupp-figure-5")
def figure_5(bench: Workbench) -> Found:
    lengths = {"tgt_len": 512, "mem_len": 512}
    names = {"txl": "transformer-xl-24b-enwik8", "srupp": "srupp-small-enwik8"}
    configs = {
        key: preset(name).replaced(same_length=False, **lengths) for key, name in names.items()
    }
    sides = bench.measure(configs, **lengths)
    found = {"faster": sides.time_ratio("srupp", "txl", of=lambda ratio: 1 / ratio)}
    words = {"matrix products": "products", "the rest": "rest"}
    words |= {kind: kind for kind in ("attention", "recurrence", "norms")}
    for number, (key, config) in enumerate(configs.items()):
        bench.say(f"looking where the time of {key} goes", number / len(configs))
        with pinned_threads(bench.threads):
            reader = Reader(build(config).eval(), step_shape(config, **lengths, batch=1))
            spent = time_by_kind(reader, PROFILED)
        total = sum(spent.values())
        for kind, word in words.items():
            share = 100 * spent.get(kind, 0.0) / total
            found[f"{key}-{word}"] = Ours(share, "measured here, torch's profiler")
    return found
