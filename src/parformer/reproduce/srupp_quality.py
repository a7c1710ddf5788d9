"""SRU++'s tables and figures about quality, by pocket trainings: how much attention, and where."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from parformer.config import preset
from parformer.recipe import Recipe
from parformer.reproduce.srupp import attention_in, millions, preset_sizes, wide
from parformer.reproduce.study import Found, Ours
from parformer.reproduce.trainings import (
    SHORT,
    Trained,
    compare_losses,
    loss,
    percent_above,
    pocket,
    train_pocket,
)
from parformer.reproduce.workbench import Workbench, study

ALL = set(range(1, 11))
EVERY = {"1": (ALL, 304, 76), "2": (ALL & {2, 4, 6, 8, 10}, 304, 80), "5": ({5, 10}, 312, 80)}
EVERY |= {"10": ({10}, 320, 80), "none": (set(), 320, 80)}
"""Layers with attention, width outside and inside: all have about as many parameters."""


def small(
    layers: set[int], d: int = 304, inside: int = 76, *, heads: int = 1, **changes: object
) -> Recipe:
    """Ten thin layers of SRU++ on bytes."""
    sizes = {"model__d_model": d, "model__d_attention": inside, "model__d_inner": d, **SHORT}
    pattern = {"model__pattern": attention_in(layers, heads)}
    return pocket("srupp-pocket", **{**pattern, **sizes, **changes})


def transformer() -> Recipe:
    """A Transformer-XL of as many parameters."""
    return pocket(model__d_inner=440, **SHORT)


def by_amount() -> dict[str, Recipe]:
    return {key: small(*sizes) for key, sizes in EVERY.items()}


@study("srupp-table-1")
def table_1(bench: Workbench) -> Found:
    found = preset_sizes({"txl": "transformer-xl-24b-enwik8", "srupp": "srupp-small-enwik8"})
    longer = {"model__tgt_len": 96, "model__mem_len": 96, "train__batch": 11}
    recipes = {"txl": transformer(), "512": small(ALL), "768": small(ALL, **longer)}
    return found | compare_losses(bench, "srupp-table-1", recipes, "txl")


@study("srupp-table-2")
def table_2(bench: Workbench) -> Found:
    found = {"parameters": millions(preset("srupp-small-enwik8"))}
    trained = train_pocket(bench, "srupp-table-2", {**by_amount(), "txl": transformer()})
    if trained is not None:
        found |= trained.more_losses("1")
        found |= {f"time-{key}": trained.pace_ratio(key, "1") for key in EVERY if key != "1"}
    return found


@study("srupp-table-4")
def table_4(bench: Workbench) -> Found:
    base = preset("srupp-base-enwik8")
    sizes = {"4": (3072, 768), "6": (3840, 640), "8": (4480, 560), "10": (5040, 504)}
    found = {f"parameters-{key}": millions(wide(base, *size)) for key, size in sizes.items()}
    thin = {"4": (304, 76), "6": (372, 62), "8": (432, 54), "10": (480, 48)}
    recipes = {key: small(ALL, *size) for key, size in thin.items()}
    return found | compare_losses(bench, "srupp-table-4", recipes, "4", "valid")


@study("srupp-table-9")
def table_9(bench: Workbench) -> Found:
    best = pocket("srupp-pocket", **SHORT)
    rates = {"3": 1.0, "2": 2 / 3, "1.5": 1 / 2}
    recipes = {}
    for rate, share in rates.items():
        for decay in ("0.10", "0.01", "0.00"):
            changes = {"train.learning_rate": share * best.train.learning_rate}
            changes["train.weight_decay"] = float(decay)
            recipes[f"{rate}-{decay}"] = best.replaced(changes)
    losses = compare_losses(bench, "srupp-table-9", recipes, "3-0.10", "valid")
    trains = {f"loss-{key}": recipe.train for key, recipe in recipes.items()}
    notes = {k: f"rate {t.learning_rate:.2g}, decay {t.weight_decay:g}" for k, t in trains.items()}
    return {key: replace(ours, note=notes[key]) for key, ours in losses.items()}


PLACES: Mapping[str, tuple[set[int], int, int]] = {
    "all": (ALL, 1, 0),
    "6-10": ({6, 7, 8, 9, 10}, 1, 0),
    "even": ({2, 4, 6, 8, 10}, 1, 0),
    "8-10": ({8, 9, 10}, 1, 3136),
    "thirds": ({3, 6, 9}, 1, 3136),
    "5-10": ({5, 10}, 1, 0),
    "5-10-h2": ({5, 10}, 2, 0),
    "10": ({10}, 1, 0),
    "10-h2": ({10}, 2, 0),
    "all-r8": (ALL, 1, 4480),
    "5-10-r8": ({5, 10}, 1, 4480),
}
"""Layers with attention, heads, and the width where it is not the base model's (Table 10)."""


@study("srupp-table-10")
def table_10(bench: Workbench) -> Found:
    base = preset("srupp-base-enwik8")
    found = {}
    for key, (layers, heads, d) in PLACES.items():
        config = base.replaced(pattern=attention_in(layers, heads))
        if d:
            config = wide(config, d, d // (8 if key.endswith("r8") else 4))
        found[f"parameters-{key}"] = millions(config)
    kept = ("all", "6-10", "even", "8-10", "thirds", "5-10", "5-10-h2", "10")
    recipes = {key: small(PLACES[key][0], heads=PLACES[key][1]) for key in kept}
    return found | compare_losses(bench, "srupp-table-10", recipes, "all", "valid")


@study("srupp-figure-3")
def figure_3(bench: Workbench) -> Found:
    recipes = {key: small(*EVERY[key]) for key in ("1", "10")}
    trained = train_pocket(bench, "srupp-figure-3", {"txl": transformer(), **recipes})
    if trained is None:
        return {}
    return {f"reach-{key}": faster_to(trained, key, "txl") for key in recipes}


def faster_to(trained: Trained, name: str, baseline: str) -> Ours:
    """How many times sooner a model has the loss that the baseline ends with."""
    found, plan = [], trained.plan
    for ours, theirs in zip(trained.curves[name], trained.curves[baseline], strict=True):
        steps = next((step for step, loss in ours.valid if loss <= theirs.loss), math.nan)
        found.append(plan.steps * plan.pace(baseline) / (steps * plan.pace(name)))
    there = not any(map(math.isnan, found))
    note = "at the first validation that is as good" if there else "did not get there"
    return trained.of_seeds(found, name, note)


@study("srupp-figure-4")
def figure_4(bench: Workbench) -> Found:
    one, two = (1, 4, 7, 10), (1, 5, 9)
    recipes = {f"one-{layer}": small({layer}) for layer in one}
    recipes |= {f"two-{layer}": small({layer, 10}) for layer in two}
    trained = train_pocket(bench, "srupp-figure-4", recipes)
    if trained is None:
        return {}
    found = trained.more_losses("one-10", split="valid", prefix="")
    found["first-last"] = trained.more_loss("one-1", "one-7", split="valid")
    return found


@study("srupp-figure-6")
def figure_6(bench: Workbench) -> Found:
    without = "a[norm=off]" * 10
    recipes = {"norm": small(ALL), "off": small(ALL, model__pattern=without)}
    trained = train_pocket(bench, "srupp-figure-6", recipes)
    if trained is None:
        return {}
    found = {}
    for key in recipes:
        gaps = [percent_above(one.loss, loss(one, "train")) for one in trained.curves[key]]
        found[f"gap-{key}"] = trained.of_seeds(gaps, key)
    found["train"] = trained.above("norm", "off", "train")
    found["valid"] = trained.more_loss("norm", "off", split="valid")
    return found
