"""How good will a candidate be, as far as one can tell before it is trained?

>>> Grading().proxy
'decoder-parameters'
>>> from parformer.search.sizes.space import read_space
>>> Grading().check(read_space("pocket-mixed"))
Traceback (most recent call last):
parformer.errors.ConfigError: decoder-parameters ranks models of one mix of blocks alone, ...
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from parformer.config import ModelConfig
from parformer.costs import ModelCost
from parformer.errors import ConfigError
from parformer.events import Watch
from parformer.fields import check_names, fit_fields
from parformer.recipe import Recipe, read_recipe
from parformer.records import Json, Record
from parformer.search.ranking.proxies import (
    COUNTS,
    PROXIES,
    SHORT_TRAINING,
    check_proxy,
    draw_batch,
    score,
    train_score,
)
from parformer.search.sizes.objectives import Quality
from parformer.search.sizes.space import SearchSpace
from parformer.train.distributed import Workers
from parformer.train.job import read_text
from parformer.train.plan import fit_vocabulary


@dataclass(frozen=True, kw_only=True, slots=True)
class Grading(Record):
    """Which proxy, and what it works on."""

    proxy: str = "decoder-parameters"
    seed: int = 0
    """Decides random weights and batches."""
    recipe: str = ""
    """For a short training: a preset or TOML file that says how."""
    corpus: str = ""
    """For a short training: another text than the recipe's."""
    steps: int = 0
    """Updates of a whole training; 0 means as the recipe says."""
    share: float = 0.15
    """The share of them that a candidate is trained for."""

    def __post_init__(self) -> None:
        fit_fields(self)
        check_names([self.proxy], (*PROXIES, SHORT_TRAINING), "proxy")

    def check(self, space: SearchSpace) -> None:
        """Refuse a proxy that cannot rank the candidates of this space."""
        check_proxy(self.proxy, mixes=space.mixes)

    @property
    def expensive(self) -> bool:
        """Whether models have to be built for it."""
        return self.proxy not in COUNTS


def make_quality(grading: Grading, like: ModelConfig) -> Quality:
    """A function that scores candidates; higher is better."""
    if grading.proxy == SHORT_TRAINING:
        return trained_quality(grading, like)
    if grading.proxy in COUNTS:
        name = grading.proxy.replace("-", "_")
        return lambda config, price: float(getattr(price, name))
    batch = draw_batch(like, seed=grading.seed)
    return lambda config, price: score(grading.proxy, config, batch=batch, seed=grading.seed)


def trained_quality(grading: Grading, like: ModelConfig) -> Quality:
    """Candidates are trained for a while, all on the same text in the same order."""
    recipe = training_recipe(grading, like)
    prepared = read_text(recipe, Workers(), Watch(), None, Path())
    recipe = fit_vocabulary(recipe, prepared.tokenizer, lambda text: None)
    if recipe.model.vocab_size != like.vocab_size:
        raise ConfigError(
            f"the text of {recipe.data.corpus!r} has {recipe.model.vocab_size:,} different tokens "
            f"and the model {like.vocab_size:,}; set model.vocab_size to the former"
        )
    tokens, valid = (prepared.splits[split].tokens for split in ("train", "valid"))

    def quality(config: ModelConfig, price: ModelCost) -> float:
        return train_score(replace(recipe, model=config), tokens, valid, share=grading.share)

    return quality


def training_recipe(grading: Grading, like: ModelConfig) -> Recipe:
    """How candidates are trained, with nothing left to the clock."""
    if not grading.recipe:
        raise ConfigError(f"{SHORT_TRAINING} needs a recipe to train by; name a preset")
    changes: Json = {"train.time": 0.0, "train.compile": "off", "train.precision": "fp32"}
    if grading.corpus:
        changes["data.corpus"] = grading.corpus
    if grading.steps:
        changes["train.steps"] = grading.steps
    return replace(read_recipe(grading.recipe, changes), model=like, search=None)
