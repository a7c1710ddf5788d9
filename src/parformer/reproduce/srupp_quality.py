"""SRU++'s tables and figures about quality, by pocket trainings: how much attention, and where."""

from __future__ import annotations

import math
from collections.abc import Mapping

from parformer.config import preset
from parformer.recipe import Recipe
from parformer.reproduce.registry import study
from parformer.reproduce.srupp import attention_in, millions, wide
from parformer.reproduce.study import Found, Ours
from parformer.reproduce.trainings import Trained, pocket, train_pocket
from parformer.reproduce.workbench import Workbench

ALL = set(range(1, 11))
EVERY = {"1": (ALL, 304, 76), "2": (ALL & {2, 4, 6, 8, 10}, 304, 80), "5": ({5, 10}, 312, 80)}
EVERY |= {"10": ({10}, 320, 80), "none": (set(), 320, 80)}
"""Layers with attention, width outside and inside: all have about as many parameters."""


def small(
    layers: set[int], d: int = 304, inside: int = 76, *, heads: int = 1, **changes: object
) -> Recipe:
    """Ten thin layers of SRU++ on bytes."""
    return pocket(
        "srupp-pocket",
        **{
            "model__pattern": attention_in(layers, heads),
            "model__d_model": d,
            "model__d_attention": inside,
            "model__d_inner": d,
            "model__tgt_len": 64,
            "model__mem_len": 64,
            **changes,
        },
    )


def transformer() -> Recipe:
    """A Transformer-XL of as many parameters."""
    return pocket(model__d_inner=440, model__tgt_len=64, model__mem_len=64)


def by_amount() -> dict[str, Recipe]:
    return {key: small(*sizes) for key, sizes in EVERY.items()}


@study("srupp-table-1")
def table_1(bench: Workbench) -> Found:
    found = {
        "parameters-txl": millions(preset("transformer-xl-24b-enwik8")),
        "parameters-srupp": millions(preset("srupp-small-enwik8")),
    }
    longer = {"model__tgt_len": 96, "model__mem_len": 96, "train__batch": 11}
    recipes = {"txl": transformer(), "512": small(ALL), "768": small(ALL, **longer)}
    trained = train_pocket(bench, "srupp-table-1", recipes)
    if trained is not None:
        found |= {f"loss-{key}": trained.more_loss(key, "txl") for key in ("512", "768")}
    return found


@study("srupp-table-2")
def table_2(bench: Workbench) -> Found:
    found = {"parameters": millions(preset("srupp-small-enwik8"))}
    trained = train_pocket(bench, "srupp-table-2", {**by_amount(), "txl": transformer()})
    if trained is not None:
        found |= {
            f"loss-{key}": trained.more_loss(key, "1") for key in trained.curves if key != "1"
        }
        found |= {f"time-{key}": trained.pace_ratio(key, "1") for key in EVERY if key != "1"}
    return found


@study("srupp-table-4")
def table_4(bench: Workbench) -> Found:
    base = preset("srupp-base-enwik8")
    sizes = {"4": (3072, 768), "6": (3840, 640), "8": (4480, 560), "10": (5040, 504)}
    found = {f"parameters-{key}": millions(wide(base, *size)) for key, size in sizes.items()}
    thin = {"4": (304, 76), "6": (372, 62), "8": (432, 54), "10": (480, 48)}
    recipes = {key: small(ALL, *size) for key, size in thin.items()}
    trained = train_pocket(bench, "srupp-table-4", recipes)
    if trained is not None:
        for key in ("6", "8", "10"):
            found[f"loss-{key}"] = trained.more_loss(key, "4", split="valid")
    return found


@study("srupp-table-9")
def table_9(bench: Workbench) -> Found:
    best = pocket("srupp-pocket", model__tgt_len=64, model__mem_len=64)
    rates = {"3": 1.0, "2": 2 / 3, "1.5": 1 / 2}
    recipes = {
        f"{rate}-{decay}": best.replaced(
            {
                "train.learning_rate": share * best.train.learning_rate,
                "train.weight_decay": float(decay),
            }
        )
        for rate, share in rates.items()
        for decay in ("0.10", "0.01", "0.00")
    }
    trained = train_pocket(bench, "srupp-table-9", recipes)
    if trained is None:
        return {}
    return {
        f"loss-{key}": noted(trained.more_loss(key, "3-0.10", split="valid"), recipes[key])
        for key in recipes
        if key != "3-0.10"
    }


def noted(ours: Ours, recipe: Recipe) -> Ours:
    words = f"rate {recipe.train.learning_rate:.2g}, decay {recipe.train.weight_decay:g}"
    return Ours(ours.value, ours.how, ours.interval, words, ours.single)


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
    trained = train_pocket(bench, "srupp-table-10", recipes)
    if trained is not None:
        for key in kept[1:]:
            found[f"loss-{key}"] = trained.more_loss(key, "all", split="valid")
    return found


@study("srupp-figure-3")
def figure_3(bench: Workbench) -> Found:
    recipes = {key: small(*EVERY[key]) for key in ("1", "10")}
    trained = train_pocket(bench, "srupp-figure-3", {"txl": transformer(), **recipes})
    if trained is None:
        return {}
    return {f"reach-{key}": faster_to(trained, key, "txl") for key in recipes}


def faster_to(trained: Trained, name: str, baseline: str) -> Ours:
    """How many times sooner a model has the loss that the baseline ends with."""
    found = []
    for ours, theirs in zip(trained.curves[name], trained.curves[baseline], strict=True):
        goal = theirs.valid_loss
        steps = next((step for step, loss in ours.valid if loss <= goal), None)
        spent = trained.steps * trained.pace(baseline)
        found.append(math.nan if steps is None else spent / (steps * trained.pace(name)))
    note = (
        "did not get there"
        if any(map(math.isnan, found))
        else "at the first validation that is as good"
    )
    return trained.of_seeds(found, name, note)


@study("srupp-figure-4")
def figure_4(bench: Workbench) -> Found:
    one, two = (1, 4, 7, 10), (1, 5, 9)
    recipes = {f"one-{layer}": small({layer}) for layer in one}
    recipes |= {f"two-{layer}": small({layer, 10}) for layer in two}
    trained = train_pocket(bench, "srupp-figure-4", recipes)
    if trained is None:
        return {}
    found = {
        key: trained.more_loss(key, "one-10", split="valid") for key in recipes if key != "one-10"
    }
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
        gaps = [100 * (curve.valid_loss / curve.train_loss - 1) for curve in trained.curves[key]]
        found[f"gap-{key}"] = trained.of_seeds(gaps, key)
    pairs = list(zip(trained.curves["norm"], trained.curves["off"], strict=True))
    fits = [100 * (a.train_loss / b.train_loss - 1) for a, b in pairs]
    found["train"] = trained.of_seeds(fits, "norm")
    found["valid"] = trained.more_loss("norm", "off", split="valid")
    return found
