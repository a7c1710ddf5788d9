"""How do translators and summarisers compare that were trained here, on pairs of one's own?

The papers' pairs take days on GPUs. What can be compared in minutes is the difference between two
models that were trained alike, in points of BLEU or ROUGE on the test split, beside the same
difference in the paper. No pairs come with the package: `--pairs` names them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parformer.errors import ConfigError, need
from parformer.recipe import Recipe
from parformer.reproduce.study import Ours
from parformer.reproduce.trainings import pocket, train_pocket
from parformer.reproduce.workbench import Workbench
from parformer.train.alike import Trained
from parformer.train.run import read_result

SCORES: Mapping[str, str] = {"bleu": "sacrebleu", "rougeL": "rouge_score"}
"""What is compared, and the package that counts it."""
SCORED = 16_384
"""Tokens of the test split's references that each model writes its own for."""
SOURCE_WORDS = 120
"""Of a text that is summarised, from its beginning."""


def reader(preset: str, pattern: str = "", /, **changes: Any) -> Recipe:
    """A small recipe of an encoder and a decoder; its text follows from the request."""
    own = {"model__pattern": pattern} if pattern else {}
    return pocket(preset, **own, train__final_tokens=SCORED, **changes)


def compare_pairs(
    bench: Workbench,
    study: str,
    recipes: Mapping[str, Recipe],
    baseline: str,
    score: str = "bleu",
    *,
    task: str = "translate",
) -> dict[str, Ours]:
    """By how many points each is above the baseline; nothing without pairs or trainings."""
    if not (bench.pairs and bench.training):
        return {}
    need(SCORES[score], extra="translate")
    told: dict[str, object] = {"data.corpus": bench.pairs, "data.pair": bench.pair}
    told["train.task"] = task
    if task == "summarise":
        told["data.source_words"] = SOURCE_WORDS
    recipes = {name: recipe.replaced(told) for name, recipe in recipes.items()}
    splits = bench.text(recipes[baseline]).splits
    if "test" not in splits:
        raise ConfigError(
            f"the pairs of {bench.pairs!r} have no test split to compare models on; "
            f"they have {', '.join(splits)}"
        )
    trained = train_pocket(bench, f"{study}-pairs", recipes)
    assert trained is not None, "trainings are asked for"
    points = {
        name: [points_of(one, score) for one in runs] for name, runs in trained.curves.items()
    }
    found = {}
    for name in recipes:
        if name == baseline:
            continue
        both = list(zip(points[name], points[baseline], strict=True))
        scores = ", ".join(f"{a:.1f} beside {b:.1f}" for a, b in both)
        note = f"{recipes[name].model.pattern}: {scores}"
        found[f"{score}-{name}-more"] = trained.of_seeds([a - b for a, b in both], name, note)
    return found


def points_of(training: Trained, score: str) -> float:
    """What a finished training was worth on the test split, of a hundred."""
    result = read_result(training.path)
    assert result is not None, "it is finished"
    found = result.to_dict()["test"]
    return float(found[score])
