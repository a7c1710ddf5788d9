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
from parformer.phases import phases_of
from parformer.placing import SearchConfig as SearchConfig
from parformer.shaping import CompressConfig as CompressConfig
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
    vocabularies: Literal["joint", "separate"] = "joint"
    """Whether both sides of pairs share a vocabulary, or each has one of vocab_size."""
    longest: int = 175
    """Pairs with more words on a side are left out of train; 0 keeps all."""
    ratio: float = 0.0
    """Pairs are left out of train with so many times more words on one side; 0 keeps all."""
    lower: bool = False
    """Pairs are read in small letters."""
    source_words: int = 0
    """Words of a source that are read, from its beginning, such as 400 of an article; 0 means
    all."""
    texts: tuple[str, ...] = ()
    """Columns of labelled data that hold a text, one or two; without names the usual ones."""
    label: str = ""
    """Column that holds the label; without a name 'label'."""
    delimiter: str = ""
    """What stands between columns; without one a comma in .csv files and a tab in .tsv files."""
    documents: Literal["auto", "blank-lines", "files"] = "auto"
    """Where documents end: at blank lines, or with their files; auto asks if there are many."""
    field: str = ""
    """The name of the text in files of JSON lines, each a document of its own."""
    stride: int = 128
    """Tokens from one piece of a long passage to the next, where an answer is looked for; 0 refuses
    passages that are longer than the window."""
    identity: str = ""
    """SHA-256 of the text, which a run writes down: it does not go on with another text."""

    def __post_init__(self) -> None:
        fit_fields(self, "data.")
        if not self.tokenizer.endswith(".json"):
            fit_type("data.tokenizer", self.tokenizer, Tokenizers)
        need_at_least("data.vocab_size", self.vocab_size, 0)
        need_at_least("data.min_count", self.min_count, 0)
        need_at_least("data.longest", self.longest, 0)
        need_at_least("data.source_words", self.source_words, 0)
        need_at_least("data.stride", self.stride, 0)
        if len(self.texts) > 2:
            raise ConfigError(f"data.texts are one or two columns, got {len(self.texts)}")
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
    """What is learned: language, masked, pretrain, translate, summarise, classify, score, choice,
    span, or a benchmark such as sst2; auto asks the model."""
    start: str = ""
    """A run, a model folder or a Hugging Face folder whose weights are the first ones."""
    start_identity: str = ""
    """SHA-256 of those weights, which a run writes down."""
    epochs: float = 0.0
    """Times that every example is seen, in place of a number of steps; 0 means steps."""
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
    mask_unit: Literal["piece", "word", "n-gram"] = "piece"
    """What of a document is hidden at a time: a token, a whole word, or up to three words."""
    mask_most: int = 0
    """Tokens of a row that are hidden at most, whatever their share; 0 means any."""
    packed: bool = False
    """Whether rows of a pretraining without pairs go on with the next document where one ends."""
    phases: tuple[str, ...] = ()
    """Phases of a pretraining, such as steps=900 length=128 batch=64 rate=6e-3 warmup=200."""

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
    frozen: int = 0
    """Blocks from the bottom whose weights stay as they are, and the embedding's with them."""
    layer_decay: float = 1.0
    """Each block learns at so much of the rate of the block above it, and the embedding at the
    least; 1 means all alike."""
    class_weights: Literal["none", "balanced"] = "none"
    """Whether rare classes weigh more in the loss, as much as they are rarer."""
    patience: int = 0
    """Stop after so many validations without a better one, and keep the best weights; 0 means
    never, and the last ones."""

    label_smoothing: float = 0.0
    """Share of a translation's loss that asks for all tokens alike."""
    schedule: Literal["cosine", "linear", "constant", "trapezoid", "inverse-sqrt"] = "cosine"
    """How the rate falls after the warm-up; a trapezoid stays at the top and falls in the last
    three tenths, so that a training can be made longer until then; inverse-sqrt (Noam's, Vaswani
    et al. 2017) falls with the root of the step, wherever the end is."""
    warmup: int = 0
    """Steps over which the rate rises from 0."""
    warmup_share: float = 0.0
    """The same as a share of all steps; 0 means train.warmup."""
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
    average: int = 0
    """The model in the end is the mean of so many checkpoints, from the last one back, or of all
    where there are fewer; 0 means the last weights."""

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
            "frozen",
            "patience",
            "mask_most",
            "average",
        ):
            need_at_least(f"train.{name}", getattr(self, name), 0)
        need_at_least("train.mem_len", self.mem_len, -1)
        need_at_least("train.clamp_len", self.clamp_len, -1)
        need_at_least("train.keep", self.keep, 2)
        for name in (
            "time", "learning_rate", "eps", "weight_decay", "clip", "final_rate", "epochs",
        ):  # fmt: skip
            if getattr(self, name) < 0:
                raise ConfigError(f"train.{name} must not be negative, got {getattr(self, name):g}")
        for name in ("beta1", "beta2", "momentum", "label_smoothing", "warmup_share"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(
                    f"train.{name} is a share from 0 to below 1, got {getattr(self, name):g}"
                )
        if self.average and self.patience:
            raise ConfigError(
                f"train.patience {self.patience} keeps the best weights and train.average "
                f"{self.average} the mean of the last; give one of them"
            )
        if not 0 < self.layer_decay <= 1:
            raise ConfigError(f"train.layer_decay is a share above 0, got {self.layer_decay:g}")
        if self.layer_decay < 1 and self.optimizer == "muon":
            raise ConfigError(
                f"train.layer_decay {self.layer_decay:g} is not for muon; take adamw or lamb"
            )
        if not 0 < self.mask < 1:
            raise ConfigError(f"train.mask is a share between 0 and 1, got {self.mask:g}")
        if self.batch % self.accumulate:
            raise ConfigError(
                f"train.accumulate {self.accumulate} does not divide train.batch {self.batch}; "
                "choose a divisor"
            )
        phases_of(self)
        if self.final_rate > self.learning_rate:
            raise ConfigError(
                f"train.final_rate {self.final_rate:g} is above train.learning_rate "
                f"{self.learning_rate:g}; lower it"
            )


OPTIONAL: Mapping[str, type[Any]] = {"search": SearchConfig, "compress": CompressConfig}
"""Tables that only some recipes have."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """A model, its text and its training.

    With [search] it looks for the pattern first, with [compress] weights are shaped on the way.
    """

    model: ModelConfig
    data: DataConfig = DataConfig()
    train: TrainConfig = TrainConfig()
    search: SearchConfig | None = None
    compress: CompressConfig | None = None
    machine: str = ""
    """What the training was made for, in words."""

    def replaced(self, changes: Mapping[str, object]) -> Self:
        """The same recipe with fields changed, each named with its section: `train.steps`."""
        recipe = self
        for section, values in by_section(changes).items():
            part: Any = getattr(recipe, section) or OPTIONAL[section]()
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
        for name in ("data", "train", *OPTIONAL):
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
            **{
                name: read_section(kind, tables[name], name) if name in tables else None
                for name, kind in OPTIONAL.items()
            },
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
            homes |= {"train": TrainConfig, **OPTIONAL}
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
