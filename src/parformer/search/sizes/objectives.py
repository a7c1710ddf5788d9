"""What is a candidate worth, and what does it cost?

Counts are exact. Latency and peak memory come from a profile of the device, which predicts them
at once, or from measuring every candidate. Quality is a proxy's score, higher is better.

>>> from parformer.search.sizes.space import read_space
>>> Grading().check(read_space("pocket-mixed"))
Traceback (most recent call last):
parformer.errors.ConfigError: decoder-parameters ranks models of one mix of blocks alone, ...
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Protocol

from parformer.config import ModelConfig
from parformer.costs import ModelCost, cost
from parformer.errors import ConfigError
from parformer.events import Watch
from parformer.fields import check_names, fit_fields
from parformer.measure.readings import Step
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
from parformer.search.sentences import sentence_flops
from parformer.search.sizes.space import Genome, SearchSpace
from parformer.train.distributed import Workers
from parformer.train.job import read_text
from parformer.train.plan import fit_vocabulary

OBJECTIVES = ("quality", "latency", "memory", "flops", "parameters", "state")

Figures = dict[str, float]
"""What is known of a candidate, by objective; quality as its proxy scores it."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """An architecture and what is to be minimised of it."""

    genome: Genome
    values: tuple[float, ...] | None
    """None for what could not be evaluated."""
    excess: float = 0.0
    """How far it breaks limits."""
    figures: Mapping[str, float] = field(default_factory=dict)
    """Everything known of it; empty for what could not be evaluated."""

    @property
    def fits(self) -> bool:
        """Whether it was evaluated and keeps to the limits."""
        return self.values is not None and not self.excess


Quality = Callable[[ModelConfig, ModelCost], float]
"""A score, higher is better."""


class Clock(Protocol):
    """What tells how long a model's step takes and how much memory it needs."""

    def latency(self, config: ModelConfig) -> float: ...
    def peak_bytes(self, config: ModelConfig) -> int: ...


@dataclass(frozen=True)
class Pricing:
    """Prices the candidates of one space."""

    space: SearchSpace
    step: Step
    quality: Quality
    clock: Clock | None
    """None where neither latency nor memory matters."""

    def allowed(self, genome: Genome) -> bool:
        """Whether it is within the space's own bounds."""
        return not self.space.bounds or self.space.within_bounds(
            count(self.space.config(genome), self.step)
        )

    def figures(self, genome: Genome) -> Figures:
        """Everything known of a candidate."""
        config = self.space.config(genome)
        price = count(config, self.step)
        found = {"quality": self.quality(config, price), **counted(config, self.step)}
        if self.clock is not None:
            found["latency"] = self.clock.latency(config)
            found["memory"] = float(self.clock.peak_bytes(config))
        return found


@lru_cache(maxsize=4096)
def count(config: ModelConfig, step: Step) -> ModelCost:
    """What can be counted of a model's step; of a translator's sentence, a step in its middle."""
    if step.source:
        half = (step.tgt_len or 1) // 2
        return cost(config, tgt_len=1, mem_len=half, batch=step.batch, src_len=step.source)
    shape = step.shape(config)
    return cost(config, tgt_len=shape.tgt_len, mem_len=shape.mem_len, batch=step.batch)


def counted(config: ModelConfig, step: Step) -> Figures:
    """The objectives that need no clock, of a step or of a whole sentence."""
    found = countable(count(config, step))
    if step.source:
        flops = sentence_flops(config, step.tgt_len or 1, step.source, step.beam)
        found["flops"] = float(step.batch * flops)
    return found


def countable(price: ModelCost) -> Figures:
    """The objectives that need no clock."""
    return {
        "flops": float(price.flops),
        "parameters": float(price.parameters),
        "decoder_parameters": float(price.decoder_parameters),
        "state": float(price.state_bytes),
        "size": float(price.size),
    }


def read_objectives(names: Sequence[str]) -> tuple[str, ...]:
    """Two or more different objectives, quality among them."""
    check_names(names, OBJECTIVES, "objective")
    if len(set(names)) < len(names):
        raise ConfigError(f"an objective is given twice in {', '.join(names)}; give each once")
    if "quality" not in names or len(names) < 2:
        raise ConfigError(
            f"a search weighs quality against something else, got {', '.join(names) or 'nothing'}; "
            "give quality and one or more of " + ", ".join(OBJECTIVES[1:])
        )
    return tuple(names)


def minimised(figures: Mapping[str, float], objectives: Sequence[str]) -> tuple[float, ...]:
    """What a search makes small: costs as they are, quality with its sign turned.

    >>> minimised({"quality": 3.0, "latency": 0.5}, ("quality", "latency"))
    (-3.0, 0.5)
    """
    return tuple(-figures[name] if name == "quality" else figures[name] for name in objectives)


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
    pair: str = ""
    """For a short training of translators: which of its texts are pairs."""
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
        if space.looks_up and self.proxy != SHORT_TRAINING:
            raise ConfigError(
                f"{self.proxy} takes the rows of n for weights, and here their number varies: they "
                f"cost no time, so it would always take the most; take {SHORT_TRAINING}"
            )

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
    marks = {name: getattr(recipe.model, name) for name in ("pad", "start", "end", "source_vocab")}

    def quality(config: ModelConfig, price: ModelCost) -> float:
        model = config.replaced(**marks) if config.source is not None else config
        return train_score(replace(recipe, model=model), tokens, valid, share=grading.share)

    return quality


def training_recipe(grading: Grading, like: ModelConfig) -> Recipe:
    """How candidates are trained, with nothing left to the clock."""
    if not grading.recipe:
        raise ConfigError(f"{SHORT_TRAINING} needs a recipe to train by; name a preset")
    changes: Json = {"train.time": 0.0, "train.compile": "off", "train.precision": "fp32"}
    if grading.corpus:
        changes["data.corpus"] = grading.corpus
    if grading.pair:
        changes["data.pair"] = grading.pair
    if like.source is not None:
        changes["train.task"] = "translate"
    if grading.steps:
        changes["train.steps"] = grading.steps
    return replace(read_recipe(grading.recipe, changes), model=like, search=None)
