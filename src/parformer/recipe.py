"""How is a model trained: on which text, with which optimizer, for how long?

A recipe is a model's configuration, its data and its training together, one TOML file with
the tables [model], [data] and [train], and [search] where a pattern is looked for. Every
preset has one, the papers' own where they published it; a run's `config.toml` is the recipe
that it follows.

>>> recipe = read_recipe("par-base", {"train.steps": 100})
>>> recipe.train.optimizer, recipe.train.steps, recipe.data.corpus
('lamb', 100, 'wikitext-103')
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, Self

from parformer.config import SECTIONS, ModelConfig, read_tables
from parformer.errors import ConfigError
from parformer.fields import check_names, field_types, fit_fields, fit_type, need_at_least
from parformer.store.files import Json

Tokenizers = Literal["byte", "used-bytes", "character", "word", "bpe", "wordpiece", "unigram"]
"""What a text can be cut into; any tokenizer.json of Hugging Face's is named by its path."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DataConfig:
    """Which text, and what its tokens are."""

    corpus: str = "python-source"
    """A built-in or published corpus by name, or a file, a folder or a glob of text."""
    local: str = ""
    """Where a local copy of a published corpus lies; empty means fetch it."""
    tokenizer: str = "byte"
    """What a token is."""
    vocab_size: int = 0
    """Most tokens that the vocabulary may have; 0 means all of the text, or 8,192 pieces."""
    min_count: int = 0
    """Words that are rarer than this become <unk>."""
    pair: str = ""
    """Which of the corpus' texts are sources and which translations, such as de-en."""
    longest: int = 175
    """Pairs with more words on a side are left out of train; 0 keeps all."""
    ratio: float = 0.0
    """Pairs are left out of train with so many times more words on one side; 0 keeps all."""
    lower: bool = False
    """Pairs are read in small letters."""
    identity: str = ""
    """SHA-256 of the text, which a run writes down: it does not go on with another text."""

    def __post_init__(self) -> None:
        fit_fields(self, "data.")
        if not self.tokenizer.endswith(".json"):
            fit_type("data.tokenizer", self.tokenizer, Tokenizers)
        need_at_least("data.vocab_size", self.vocab_size, 0)
        need_at_least("data.min_count", self.min_count, 0)
        need_at_least("data.longest", self.longest, 0)
        if self.ratio and self.ratio < 1:
            raise ConfigError(f"data.ratio is at least 1, or 0 for any, got {self.ratio:g}")
        if not self.corpus:
            raise ConfigError("data.corpus is empty; name one, such as python-source")


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainConfig:
    """What happens to the weights, update by update."""

    steps: int = 1000
    """Updates of the weights."""
    time: float = 0.0
    """Seconds to train instead; the steps that fit are found out once and written down."""
    seed: int = 0
    """Decides the first weights, the order of the text and what dropout drops."""

    task: str = "auto"
    """What is learned: language, masked or translate; auto asks the model."""
    batch: int = 16
    """Texts side by side in one update, over all devices."""
    batch_tokens: int = 0
    """Tokens of pairs in one update, their padding counted, in place of a number of texts; 0 means
    train.batch pairs."""
    accumulate: int = 1
    """Pieces that the batch is worked off in, to save memory."""
    tgt_len: int = 0
    """Tokens of each text per update; 0 means as the model says."""
    mem_len: int = -1
    """Tokens of memory while training; -1 means as the model says."""
    clamp_len: int = -1
    """Distances beyond this count as this while training; -1 means never."""
    order: Literal["auto", "streams", "windows"] = "auto"
    """Texts read on and on with their memory, or windows in random order; auto asks the model."""
    roll: bool = True
    """Begin every stream elsewhere in each epoch."""
    mask: float = 0.15
    """Share of tokens that a masked model has to guess."""

    optimizer: Literal["adam", "adamw", "radam", "lamb", "nvlamb", "muon"] = "adamw"
    """Muon takes the matrices inside blocks and leaves the rest to AdamW."""
    learning_rate: float = 1e-3
    """The highest rate."""
    beta1: float = 0.9
    """How long a gradient is remembered."""
    beta2: float = 0.999
    """How long a gradient's size is remembered."""
    eps: float = 0.0
    """What keeps an update from dividing by zero; 0 means the optimizer's own."""
    weight_decay: float = 0.0
    """How strongly weights shrink; norms and biases never do."""
    clip: float = 1.0
    """Largest norm of all gradients together; 0 means any."""
    momentum: float = 0.95
    """Muon's memory."""

    label_smoothing: float = 0.0
    """Share of a translation's loss that asks for all tokens alike."""
    schedule: Literal["cosine", "linear", "constant", "trapezoid", "inverse-sqrt"] = "cosine"
    """How the rate falls after the warm-up; a trapezoid stays at the top and falls in the last
    three tenths, so that a training can be made longer until then; inverse-sqrt (Noam's, Vaswani
    et al. 2017) falls with the root of the step, wherever the end is."""
    warmup: int = 0
    """Steps over which the rate rises from 0."""
    final_rate: float = 0.0
    """The rate at the end."""
    first_step_full: bool = False
    """The first update at the full rate, a slip of the reference's schedule."""

    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Numbers that matrices are multiplied in; auto tries which is faster here."""
    compile: Literal["auto", "on", "off"] = "auto"
    """Let torch.compile fuse the step; auto does so where a run is long enough to gain."""
    kernels: Literal["auto", "native", "plain"] = "auto"
    """Attention and GELU compiled for this very CPU, or torch's own; auto asks for a compiler."""
    threads: int = 0
    """CPU threads; 0 means as many as torch takes."""

    log_every: int = 10
    """Steps from one line of metrics to the next."""
    evaluate_every: int = 0
    """Steps from one validation to the next; 0 means ten times in the run."""
    evaluate_tokens: int = 65_536
    """Tokens of the valid split to look at, from many places; 0 means all."""
    final_tokens: int = 1_000_000
    """Tokens of the test split to look at when a run is done; 0 means all."""
    checkpoint_every: int = 0
    """Steps from one checkpoint to the next; 0 means about once a minute."""
    keep: int = 2
    """Checkpoints to keep, two at least."""

    def __post_init__(self) -> None:
        fit_fields(self, "train.")
        for name in ("steps", "batch", "accumulate", "log_every"):
            need_at_least(f"train.{name}", getattr(self, name), 1)
        for name in (
            "seed",
            "tgt_len",
            "warmup",
            "threads",
            "evaluate_every",
            "evaluate_tokens",
            "final_tokens",
            "checkpoint_every",
            "batch_tokens",
        ):
            need_at_least(f"train.{name}", getattr(self, name), 0)
        need_at_least("train.mem_len", self.mem_len, -1)
        need_at_least("train.clamp_len", self.clamp_len, -1)
        need_at_least("train.keep", self.keep, 2)
        for name in ("time", "learning_rate", "eps", "weight_decay", "clip", "final_rate"):
            if getattr(self, name) < 0:
                raise ConfigError(f"train.{name} must not be negative, got {getattr(self, name):g}")
        for name in ("beta1", "beta2", "momentum"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(
                    f"train.{name} is a share from 0 to below 1, got {getattr(self, name):g}"
                )
        if not 0 <= self.label_smoothing < 1:
            raise ConfigError(
                f"train.label_smoothing is a share from 0 to below 1, got {self.label_smoothing:g}"
            )
        if not 0 < self.mask < 1:
            raise ConfigError(f"train.mask is a share between 0 and 1, got {self.mask:g}")
        if self.batch % self.accumulate:
            raise ConfigError(
                f"train.accumulate {self.accumulate} does not divide train.batch {self.batch}; "
                "choose a divisor"
            )
        if self.final_rate > self.learning_rate:
            raise ConfigError(
                f"train.final_rate {self.final_rate:g} is above train.learning_rate "
                f"{self.learning_rate:g}; lower it"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchConfig:
    """How the differentiable search finds a pattern; its updates are those of [train]."""

    layers: int = 0
    """Layers that get a block each; 0 means as many as the model's pattern has."""
    choices: str = "sfi"
    """The blocks that every layer may choose from, written as a pattern."""
    by: Literal["supernet", "trials", "usual", "random"] = "supernet"
    """One supernet, as PAR Transformer has it; or short trainings whose better half goes on: of
    patterns that a regression finds promising, of the usual ones alone, or of random ones."""
    mode: Literal["soft", "sampled"] = "soft"
    """Run all choices and mix them, as in the paper, or only one that is drawn (GDAS)."""
    seeds: int = 1
    """Searches, each with a seed of its own from train.seed up."""

    warmup: float = 0.2
    """Share of the updates in which the architecture stays as it is."""
    share: float = 0.2
    """Share of the text, and of the updates after the warm-up, that is the architecture's."""
    cycle: int = 0
    """Updates from one turn of the weights to the next; 0 means an epoch."""
    learning_rate: float = 1e-2
    """The rate of the architecture's Adam."""
    weight_decay: float = 5e-4
    """How strongly the architecture is drawn back to where all choices are alike."""
    beta1: float = 0.9
    """How long a gradient of the architecture is remembered."""
    beta2: float = 0.999
    """How long its size is remembered."""
    temperature: float = 5.0
    """How even the mixing is at first (FBNet)."""
    final_temperature: float = 0.087
    """How even it is in the end; with the same as at first it stays constant."""
    floor: float = 0.0
    """Share of every layer's mixing that is given to all its choices alike."""
    guard: float = 0.25
    """A layer keeps a kind of block if the loss, when the warm-up ends, would grow by this share
    or more without it, whatever the search settles on; 0 keeps nothing."""
    patience: float = 0.75
    """Stop when the pattern has not changed for so large a share of what follows the warm-up."""

    penalty: str = ""
    """A price on what blocks cost, such as flops=0.1: so much of the loss for one baseline."""
    limit: str = ""
    """What the pattern may cost, such as latency=0.7x: of the interleaved model's."""
    ramp: float = 0.0
    """Share of what follows the warm-up over which the penalty grows to its full height."""
    steering: float = 0.2
    """How fast the penalty follows a limit that is not met."""

    def __post_init__(self) -> None:
        fit_fields(self, "search.")
        need_at_least("search.layers", self.layers, 0)
        need_at_least("search.cycle", self.cycle, 0)
        need_at_least("search.seeds", self.seeds, 1)
        if self.layers in (1, 2):
            raise ConfigError(
                f"search.layers {self.layers} cannot be cut into thirds of the depth, which the "
                "result is told in; give at least 3"
            )
        if self.cycle == 1:
            raise ConfigError("search.cycle 1 leaves no turn for the architecture; give 2 or more")
        if self.guard < 0:
            raise ConfigError(f"search.guard must not be negative, got {self.guard:g}")
        for name in ("warmup", "ramp", "floor"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(
                    f"search.{name} is a share from 0 to below 1, got {getattr(self, name):g}"
                )
        if not 0 < self.share < 1:
            raise ConfigError(f"search.share is a share between 0 and 1, got {self.share:g}")
        if not 0 < self.patience <= 1:
            raise ConfigError(f"search.patience is a share above 0, got {self.patience:g}")
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(
                    f"search.{name} is a share from 0 to below 1, got {getattr(self, name):g}"
                )
        for name in ("learning_rate", "temperature", "final_temperature", "steering"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"search.{name} must be above 0, got {getattr(self, name):g}")
        if self.weight_decay < 0:
            raise ConfigError(
                f"search.weight_decay must not be negative, got {self.weight_decay:g}"
            )
        if self.penalty and self.limit:
            raise ConfigError(
                f"search.penalty {self.penalty!r} and search.limit {self.limit!r} are two ways "
                "to the same end; give one of them"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """A model, its text and its training; with [search], one that looks for the pattern first."""

    model: ModelConfig
    data: DataConfig = DataConfig()
    train: TrainConfig = TrainConfig()
    search: SearchConfig | None = None
    machine: str = ""
    """What the training was made for, in words."""

    def replaced(self, changes: Mapping[str, object]) -> Self:
        """The same recipe with fields changed, each named with its section: `train.steps`."""
        recipe = self
        for section, values in by_section(changes).items():
            part: Any = getattr(recipe, section) or SearchConfig()
            if isinstance(part, ModelConfig):
                part = part.replaced(**values)
            else:
                check_names(values, [f.name for f in fields(part)], f"field of [{section}]")
                part = replace(part, **values)
            recipe = replace(recipe, **{section: part})
        return recipe

    def to_dict(self) -> Json:
        """Plain values, ready for TOML or JSON."""
        tables: Json = {"machine": self.machine} if self.machine else {}
        tables["model"] = self.model.to_dict()
        for name in ("data", "train", "search"):
            section = getattr(self, name)
            if section is not None:
                tables[name] = {f.name: getattr(section, f.name) for f in fields(section)}
        return tables

    @classmethod
    def from_dict(cls, tables: Mapping[str, Any]) -> Self:
        """Read what `to_dict` gave, or a TOML file's tables."""
        return cls(
            model=ModelConfig.from_dict(tables["model"]),
            data=read_section(DataConfig, tables.get("data", {}), "data"),
            train=read_section(TrainConfig, tables.get("train", {}), "train"),
            search=(
                read_section(SearchConfig, tables["search"], "search")
                if "search" in tables
                else None
            ),
            machine=str(tables.get("machine", "")),
        )


def read_section(cls: type[Any], values: Mapping[str, Any], section: str) -> Any:
    check_names(values, [f.name for f in fields(cls)], f"field of [{section}]")
    return cls(**values)


def by_section(changes: Mapping[str, object]) -> dict[str, dict[str, object]]:
    """Split `section.field` names; a name without a section gets a hint where it belongs."""
    parts: dict[str, dict[str, object]] = {}
    for name, value in changes.items():
        section, dot, field = name.partition(".")
        if not dot:
            homes: dict[str, type] = {"model": ModelConfig, "data": DataConfig}
            homes |= {"train": TrainConfig, "search": SearchConfig}
            owners = [s for s, cls in homes.items() if name in field_types(cls)]
            hint = f"did you mean {owners[0]}.{name}?" if owners else "such as train.steps"
            known = ", ".join(SECTIONS)
            raise ConfigError(f"{name!r} lacks its section, one of {known}; {hint}")
        check_names([section], SECTIONS, "section")
        parts.setdefault(section, {})[field] = value
    return parts


def read_recipe(source: str, changes: Mapping[str, object] | None = None) -> Recipe:
    """A recipe by preset name or from a TOML file, with some fields replaced."""
    tables = read_tables(source)
    for section, values in by_section(changes or {}).items():
        tables[section] = tables.get(section, {}) | values
    return Recipe.from_dict(tables)
