"""PAR Transformer's tables and figures: counts, latencies, and how small models compare."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from parformer.config import ModelConfig, preset
from parformer.costs import cost
from parformer.pattern import Pattern, par, sandwich
from parformer.recipe import Recipe
from parformer.reproduce.study import Found, Ours
from parformer.reproduce.trainings import (
    SHORT,
    compare_losses,
    percent_above,
    pocket,
    train_pocket,
)
from parformer.reproduce.workbench import Sides, Workbench, settings, study

COUNT = "exact count"
BASE = {"txl": "transformer-xl-base", "sandwich": "sandwich-base", "par": "par-base"}
STEP = {"tgt_len": 64, "mem_len": 640}
"""How the paper runs the Base models."""
LONGER = 140 / 40
"""How many times the short training's updates the long one has."""
HALF = 16
"""Blocks of a pocket training, half the paper's."""


def models(names: Mapping[str, str]) -> dict[str, ModelConfig]:
    return {key: preset(name) for key, name in names.items()}


def counted(value: float) -> Ours:
    return Ours(value, COUNT)


def attention(patterns: Mapping[str, Pattern]) -> dict[str, Ours]:
    """How many attention blocks each has."""
    return {f"attention-{key}": counted(one.count("s")) for key, one in patterns.items()}


def base_latency(bench: Workbench) -> Sides:
    return bench.measure(models(BASE), **STEP)


def thin(pattern: Pattern | str, *, width: int = 96, inner: int = 288) -> Recipe:
    """A stack of many narrow blocks on bytes."""
    sizes = {"model__d_model": width, "model__d_inner": inner, **SHORT}
    return pocket(model__pattern=str(pattern), **sizes)


def thin_base() -> dict[str, Recipe]:
    """The Base models with half their blocks."""
    patterns = {"txl": Pattern.parse("(sf)x8"), "sandwich": sandwich(HALF, 3), "par": par(HALF, 5)}
    return {key: thin(pattern) for key, pattern in patterns.items()}


@study("par-table-1")
def table_1(bench: Workbench) -> Found:
    found = attention({key: config.pattern for key, config in models(BASE).items()})
    ours, theirs = (found[f"attention-{key}"].value for key in ("par", "txl"))
    found["replaced"] = counted(100 * (1 - ours / theirs))
    found |= base_latency(bench).latencies("txl")
    return found | compare_losses(bench, "par-table-1", thin_base(), "txl")


@study("par-table-2")
def table_2(bench: Workbench) -> Found:
    large = {key: name.replace("base", "large") for key, name in BASE.items()}
    sides = bench.measure(models(large), tgt_len=128, mem_len=1600)
    found = sides.latencies("txl", "-large")
    middle = {key: name.replace("base", "24b-enwik8") for key, name in BASE.items()}
    sides = bench.measure(models(middle), tgt_len=128, mem_len=2052)
    found |= sides.latencies("txl", "-24b")
    patterns = {
        "interleaved": Pattern.parse("(sf)x12"),
        "sandwich-5": preset("sandwich-24b-enwik8").pattern,
        "sandwich-3": preset("sandwich-24b-text8").pattern,
        "par": preset("par-24b-enwik8").pattern,
    }
    recipes = {key: thin(pattern, width=64, inner=192) for key, pattern in patterns.items()}
    losses = compare_losses(bench, "par-table-2", recipes, "interleaved")
    if "loss-par" in losses:
        losses["loss-par-text8"] = losses["loss-par"]
    return found | losses


@study("par-table-3")
def table_3(bench: Workbench) -> Found:
    names = {"bert": "bert-base", "distilbert": "distilbert", "par": "par-bert-base"}
    configs = models(names)
    found = attention({key: configs[key].pattern for key in ("bert", "par")})
    return found | bench.measure(configs, tgt_len=384).latencies("bert")


@study("par-figure-6")
def figure_6(bench: Workbench) -> Found:
    patterns = {"bert": Pattern.parse("(sf)x6"), "par": par(12, 5)}
    recipes = {key: pocket("bert-pocket", model__pattern=str(one)) for key, one in patterns.items()}
    return compare_losses(bench, "par-figure-6", recipes, "bert", "train")


@study("par-table-a1")
def table_a1(bench: Workbench) -> Found:
    name, model = "transformer-xl-base", preset("transformer-xl-base")
    fields = {word: f"model.{word}" for word in ("d_model", "n_head", "d_inner")}
    fields |= {word: f"train.{word}" for word in ("tgt_len", "mem_len")}
    head = Ours(model.head_width(model.n_head), "the preset's setting")
    return settings(name, fields) | {"d_head": head}


@study("par-table-a2")
def table_a2(bench: Workbench) -> Found:
    found = {}
    for key, config in models(BASE).items():
        price = cost(config, **STEP)
        found[f"parameters-{key}"] = counted(price.parameters / 1e6)
        found[f"flops-{key}"] = counted(price.flops / 1e9)
    return found | base_latency(bench).latencies("txl")


@study("par-table-a3")
def table_a3(bench: Workbench) -> Found:
    """Two lengths, each with equal updates for all models."""
    recipes = thin_base()
    more = replace(bench, seconds=bench.seconds * LONGER / (1 + LONGER))
    long = train_pocket(more, "par-table-a3-long", recipes)
    if long is None:
        return {}
    less = replace(bench, steps=max(1, round(long.plan.steps / LONGER)))
    short = train_pocket(less, "par-table-a3-short", recipes)
    assert short is not None
    pairs = zip(long.curves["txl"], short.curves["txl"], strict=True)
    gains = [percent_above(a.loss, b.loss) for a, b in pairs]
    return {
        **short.more_losses("txl", split="valid", prefix="short-"),
        **long.more_losses("txl", split="valid", prefix="long-"),
        "longer": long.of_seeds(gains, "txl"),
    }


@study("par-figure-1")
def figure_1(bench: Workbench) -> Found:
    config = preset("transformer-xl-base")
    blocks = {str(row.block): row.cost for row in cost(config, **STEP).blocks}
    found = {f"flops-{key}": counted(blocks[key].flops / 1e9) for key in ("s", "f")}
    found["flops-i"] = counted(cost(config.replaced(pattern="i"), **STEP).blocks[0].cost.flops)
    found["growth-s"] = counted(key_products(config, 1024) / key_products(config, 512))
    found["growth-f"] = counted(block_flops(config, "f", 1024) / block_flops(config, "f", 512))
    same = {letter: config.replaced(pattern=f"({letter})x8", head="none") for letter in "sf"}
    sides = bench.measure(same, **STEP)
    found["latency-sf"] = sides.time_ratio("s", "f")
    found["search-cost"] = search_pace(bench)
    return found


def block_flops(config: ModelConfig, letter: str, length: int) -> int:
    price = cost(config.replaced(pattern=letter), tgt_len=length, mem_len=0)
    return price.blocks[0].cost.flops


def key_products(config: ModelConfig, length: int) -> int:
    """What of attention is neither projection nor anything else that grows with the text alone.

    FLOPs are a·N + b·N²; twice the length tells the two apart.
    """
    once, twice = block_flops(config, "s", length), block_flops(config, "s", 2 * length)
    return (twice - 2 * once) // 2


def search_pace(bench: Workbench) -> Ours:
    """Updates of the pocket search beside updates of the interleaved model."""
    from parformer.measure.device import pinned_threads
    from parformer.reproduce.trainings import settled
    from parformer.search.placement.decide import find_pace, timetable_of
    from parformer.train.distributed import Workers

    recipe = settled(bench, pocket("pocket-search"))
    bench.say("timing updates of a search", 0.9)
    tokens = bench.text(recipe).splits["train"].tokens
    with pinned_threads(bench.threads):
        pace = find_pace(recipe, tokens, Workers())
    ratio = pace.mean(timetable_of(recipe, tokens)) / pace.baseline
    return Ours(ratio, "measured here: updates of the pocket search, in turns with the baseline's")


@study("par-figure-4")
def figure_4(bench: Workbench) -> Found:
    rule = par(32, 5)
    places = [i for i, spec in enumerate(rule.blocks, start=1) if spec.letter == "s"]
    found = {
        "attention-5": counted(rule.count("s")),
        "within": counted(round(2 * len(rule) / 3)),
        "last": counted(places[-1]),
    }
    recipes = {"interleaved": thin("(sf)x8")} | {f"{p}": thin(par(HALF, p)) for p in (3, 4, 5, 8)}
    return found | compare_losses(bench, "par-figure-4", recipes, "interleaved")


@study("par-figure-5")
def figure_5(bench: Workbench) -> Found:
    configs = models(BASE)
    lengths = {len(config.pattern) for config in configs.values()}
    assert len(lengths) == 1
    sides = base_latency(bench)
    prices = {key: cost(config, **STEP) for key, config in configs.items()}
    longer = bench.measure({k: configs[k] for k in ("txl", "par")}, tgt_len=64, mem_len=1280)
    return {
        "blocks": counted(lengths.pop()),
        "lower": sides.time_ratio("par", "txl", of=lambda ratio: 100 * (1 - ratio)),
        "latency-sandwich": sides.time_ratio("sandwich", "txl"),
        **{f"ms-{key}": sides.milliseconds(key) for key in configs},
        "state": counted(prices["par"].state_bytes / prices["txl"].state_bytes),
        "longer": longer.time_ratio("par", "txl"),
    }


PATTERNS = {
    "0": "(f)x32",
    "1": "(sfff)x1 (f)x28",
    "3": "(sfff)x3 (f)x20",
    "4": "(sfff)x4 (f)x16",
    "5": "(sfff)x5 (f)x12",
    "6a": "(sff)x6 (f)x14",
    "6b": "(sfff)x6 (f)x8",
    "7a": "(sff)x7 (f)x11",
    "7b": "(sfff)x7 (f)x4",
    "16": "(sf)x16",
}
"""Architectures of the first version's Table 1."""
HALVED = {
    "0": "(f)x16",
    "1": "(sfff)x1 (f)x12",
    "4": "(sfff)x2 (f)x8",
    "6a": "(sff)x3 (f)x7",
    "6b": "(sfff)x3 (f)x4",
    "16": "(sf)x8",
}


@study("par-first-table-1")
def first_table_1(bench: Workbench) -> Found:
    found = attention({key: Pattern.parse(pattern) for key, pattern in PATTERNS.items()})
    recipes = {key: thin(pattern) for key, pattern in HALVED.items()}
    return found | compare_losses(bench, "par-first-table-1", recipes, "16")
