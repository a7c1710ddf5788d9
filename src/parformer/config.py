"""What exactly is this model, before anything is built?

A configuration is frozen and checks itself. A family fills in what is left open
(positions, norms, activation, mask, head); every one of these stays a field.

>>> config = preset("par-base", d_inner=1024)
>>> str(config.pattern), config.norm, config.head_width(8)
('(sfff)x6 (f)x8', 'post', 64)
"""

from __future__ import annotations

import tomllib
import types
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, Self, cast

from parformer.errors import ConfigError
from parformer.fields import check_names, field_types, fit_fields, fit_type, need_at_least
from parformer.pattern import Pattern
from parformer.store.files import read_plain

FAMILY: Any = None
"""A field's default that says: as the family has it."""

FAMILIES: Mapping[str, Mapping[str, object]] = {
    # As the authors' released code, which the published parameter counts belong to.
    "transformer-xl": {
        "positions": "relative",
        "position_bias": "shared",
        "norm": "post",
        "norm_type": "layer",
        "norm_eps": 1e-5,
        "final_norm": False,
        "activation": "relu",
        "gated": False,
        "attention_bias": False,
        "feed_forward_bias": True,
        "inner_dropout": True,
        "causal": True,
        "scale_embedding": True,
        "embedding_norm": False,
        "token_types": 0,
        "pooler": False,
        "head": "lm",
        "output_bias": True,
    },
    "gpt2": {
        "positions": "learned",
        "position_bias": "none",
        "norm": "pre",
        "norm_type": "layer",
        "norm_eps": 1e-5,
        "final_norm": True,
        "activation": "gelu-tanh",
        "gated": False,
        "attention_bias": True,
        "feed_forward_bias": True,
        "inner_dropout": False,
        "causal": True,
        "scale_embedding": False,
        "embedding_norm": False,
        "token_types": 0,
        "pooler": False,
        "head": "lm",
        "output_bias": False,
    },
    "bert": {
        "positions": "learned",
        "position_bias": "none",
        "norm": "post",
        "norm_type": "layer",
        "norm_eps": 1e-12,
        "final_norm": False,
        "activation": "gelu",
        "gated": False,
        "attention_bias": True,
        "feed_forward_bias": True,
        "inner_dropout": False,
        "causal": False,
        "scale_embedding": False,
        "embedding_norm": True,
        "token_types": 2,
        "pooler": True,
        "head": "masked",
        "output_bias": True,
    },
    "llama": {
        "positions": "rotary",
        "position_bias": "none",
        "norm": "pre",
        "norm_type": "rms",
        "norm_eps": 1e-6,
        "final_norm": True,
        "activation": "silu",
        "gated": True,
        "attention_bias": False,
        "feed_forward_bias": False,
        "inner_dropout": False,
        "causal": True,
        "scale_embedding": False,
        "embedding_norm": False,
        "token_types": 0,
        "pooler": False,
        "head": "lm",
        "output_bias": False,
    },
    # SRU++ as its authors train it; r and a have a norm of their own, so norms are for s and f.
    "sru": {
        "positions": "none",
        "position_bias": "none",
        "norm": "pre",
        "norm_type": "layer",
        "norm_eps": 1e-5,
        "final_norm": False,
        "activation": "gelu",
        "gated": False,
        "attention_bias": False,
        "feed_forward_bias": True,
        "inner_dropout": True,
        "causal": True,
        "scale_embedding": False,
        "embedding_norm": False,
        "token_types": 0,
        "pooler": False,
        "head": "lm",
        "output_bias": True,
    },
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """Everything that decides a model's weights and its maths."""

    family: Literal["transformer-xl", "gpt2", "bert", "llama", "sru"]
    """What fills in the fields below that are left open."""
    pattern: Pattern
    """Which blocks, in which order; a text is read as one."""
    vocab_size: int
    """Number of different tokens."""
    d_model: int
    """Width of the stream that all blocks read and write."""
    n_head: int
    """Attention heads of an `s` block that does not say `heads=`."""
    d_inner: int
    """Inner width of an `f` block that does not say `inner=`."""
    d_head: int = 0
    """Width of one head; 0 means d_model divided by the block's number of heads."""
    round_heads: bool = False
    """Let heads that don't divide d_model round their width down, as LiteTransformerSearch does."""
    n_kv_head: int = 0
    """Heads that keys and values have, shared by groups of queries; 0 means as many as queries."""
    d_attention: int = 0
    """Width inside an `r` or `a` block without `width=`; 0 means a quarter of d_model."""

    positions: Literal["relative", "learned", "rotary", "none"] = FAMILY
    """How a block knows where a token stands."""
    position_bias: Literal["shared", "per-layer", "none"] = FAMILY
    """Where the two bias vectors of relative attention live."""
    max_len: int = 0
    """The window of learned and rotary positions; 0 where there is none."""
    rotary_base: float = 10_000.0
    """The slowest rotation's base, for rotary positions."""
    causal: bool = FAMILY
    """Whether a token sees only what came before it."""

    norm: Literal["pre", "post"] = FAMILY
    """Normalise what a block reads, or what the residual sum gives."""
    norm_type: Literal["layer", "rms"] = FAMILY
    """Layer norm or root-mean-square norm."""
    norm_eps: float = FAMILY
    """What keeps a norm from dividing by zero."""
    final_norm: bool = FAMILY
    """One more norm after the last block."""
    activation: Literal["relu", "gelu", "gelu-tanh", "silu"] = FAMILY
    """The non-linearity of feed-forward blocks."""
    gated: bool = FAMILY
    """Feed-forward blocks multiply by a second, activated projection."""
    attention_bias: bool = FAMILY
    """Biases in attention's projections."""
    feed_forward_bias: bool = FAMILY
    """Biases in feed-forward's projections."""

    embedding: Literal["plain", "adaptive", "factorized"] = "plain"
    """One table; clusters of falling width; or a narrow table and a projection."""
    d_embed: int = 0
    """Width of the embedding table (its first cluster); 0 means d_model."""
    cutoffs: tuple[int, ...] = ()
    """Where an adaptive vocabulary is cut, frequent words first."""
    div_val: int = 1
    """Each adaptive cluster is this many times narrower than the one before."""
    tie_weights: bool = True
    """The output head reuses the embedding tables."""
    tie_projections: Literal["all", "tails", "none"] = "tails"
    """Which output projections reuse the embedding's: Transformer-XL shares all but the first."""
    projection_bias: bool = False
    """A bias in the projection of a factorized embedding (ALBERT has one, OPT has not)."""
    scale_embedding: bool = FAMILY
    """Multiply embeddings by the square root of d_model."""
    embedding_norm: bool = FAMILY
    """A norm on the sum of embeddings."""
    token_types: int = FAMILY
    """Number of segment kinds (BERT: 2)."""
    head: Literal["lm", "masked", "none"] = FAMILY
    """Next-token head, masked-word head with its transform, or hidden states only."""
    output_bias: bool = FAMILY
    """A bias per token in the head."""
    pooler: bool = FAMILY
    """A tanh projection of the first token, as BERT's classifiers use it."""

    dropout: float = 0.0
    """Share of activations dropped while training."""
    dropatt: float = 0.0
    """Share of attention weights dropped while training."""
    inner_dropout: bool = FAMILY
    """Drop inside feed-forward blocks as well."""
    first_weights: Literal["family", "scaled"] = "family"
    """As the family's authors draw them; or by each matrix's own inputs, and every residual block
    begins with nothing to add, which holds for any width and depth."""
    init_std: float = 0.02
    """Spread of the first weights; of scaled ones, of the embedding alone."""
    projection_std: float = 0.01
    """Spread of the first embedding projections."""

    tgt_len: int = 0
    """Tokens per step when nothing else is said; 0 means the window, max_len."""
    mem_len: int = 0
    """Tokens of memory carried from step to step, where positions are relative or none."""
    clamp_len: int = -1
    """Distances beyond this count as this; -1 means never."""
    same_length: bool = False
    """Every token sees exactly mem_len keys, itself included, as in the original evaluation."""

    def __post_init__(self) -> None:
        fit_type("family", self.family, field_types(ModelConfig)["family"])
        for name, value in FAMILIES[self.family].items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        fit_fields(self)
        for name in ("vocab_size", "d_model", "n_head", "d_inner", "div_val"):
            need_at_least(name, getattr(self, name), 1)
        for name in (
            "d_head",
            "n_kv_head",
            "d_attention",
            "max_len",
            "d_embed",
            "token_types",
            "tgt_len",
            "mem_len",
        ):
            need_at_least(name, getattr(self, name), 0)
        need_at_least("clamp_len", self.clamp_len, -1)
        for name in ("dropout", "dropatt"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{name} is a share from 0 to below 1, got {getattr(self, name)}")
        for name in ("norm_eps", "rotary_base"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be positive, got {getattr(self, name)}")
        for name in ("init_std", "projection_std"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} must not be negative, got {getattr(self, name)}")
        self._settle_lengths()
        self._check_embedding()
        self.head_width(self.n_head)

    def _settle_lengths(self) -> None:
        if self.positions == "learned" and self.max_len == 0:
            raise ConfigError(
                "learned positions need a window, got max_len 0; set it, such as 1024"
            )
        if self.positions == "rotary" and self.max_len == 0:
            object.__setattr__(self, "max_len", 2048)
        if self.positions == "learned" and self.tgt_len > self.max_len:
            raise ConfigError(
                f"tgt_len {self.tgt_len} exceeds the window max_len {self.max_len}; raise max_len"
            )
        if self.positions == "relative" and self.position_bias == "none":
            object.__setattr__(self, "position_bias", "shared")
        if self.positions == "relative" and not self.causal:
            raise ConfigError(
                "relative positions are causal here; for a model that sees both sides "
                "set positions='learned' or 'rotary'"
            )
        if self.positions == "relative" and self.d_model % 2:
            raise ConfigError(
                f"relative positions need an even d_model, got {self.d_model}; "
                f"try {self.d_model + 1}"
            )
        windows = self.positions not in ("relative", "none")
        if self.same_length and (windows or self.mem_len == 0):
            raise ConfigError(
                f"same_length needs relative positions and a memory, got {self.positions!r} "
                f"positions and mem_len {self.mem_len}; set mem_len, such as 640"
            )
        if self.same_length and self.positions == "none" and self.pattern.count("s"):
            raise ConfigError(
                f"same_length without positions is for a blocks, and {str(self.pattern)!r} has s; "
                "set positions='relative' or same_length=false"
            )

    def _check_embedding(self) -> None:
        if self.embedding == "plain" and self.embed_width != self.d_model:
            raise ConfigError(
                f"a plain embedding is as wide as the model, got d_embed {self.d_embed} for "
                f"d_model {self.d_model}; set embedding='factorized'"
            )
        if self.embedding != "adaptive" and (self.cutoffs or self.div_val != 1):
            raise ConfigError(
                f"cutoffs {list(self.cutoffs)} and div_val {self.div_val} belong to "
                f"embedding='adaptive', got {self.embedding!r}"
            )
        if self.embedding == "adaptive":
            if len(self.cutoffs) > MAX_CUTOFFS:
                raise ConfigError(
                    f"at most {MAX_CUTOFFS} cutoffs make sense, got {len(self.cutoffs):,}"
                )
            edges = (0, *self.cutoffs, self.vocab_size)
            if any(low >= high for low, high in pairwise(edges)):
                raise ConfigError(
                    f"cutoffs must rise between 0 and vocab_size {self.vocab_size}, "
                    f"got {list(self.cutoffs)}"
                )
            if self.embed_width // self.div_val ** len(self.cutoffs) < 1:
                raise ConfigError(
                    f"the last of {len(self.cutoffs) + 1} clusters would have width 0: "
                    f"d_embed {self.embed_width} over div_val {self.div_val}; lower div_val"
                )
            if self.head == "masked":
                raise ConfigError(
                    "a masked-word head needs embedding='plain' or 'factorized', got 'adaptive'"
                )
        if self.head == "masked" and self.causal:
            raise ConfigError("a masked-word head needs causal=false: it reads both sides")

    def head_width(self, heads: int) -> int:
        """Width of one head in a block with this many heads."""
        if self.d_head:
            return self.d_head
        if heads > self.d_model:
            raise ConfigError(f"{heads} heads do not fit into d_model {self.d_model}; set d_head")
        if self.d_model % heads and not self.round_heads:
            raise ConfigError(
                f"{heads} heads do not divide d_model {self.d_model}; set d_head "
                f"(round_heads=true would take {self.d_model // heads})"
            )
        return self.d_model // heads

    @property
    def embed_width(self) -> int:
        """Width of the embedding table, or of its first cluster."""
        return self.d_embed or self.d_model

    @property
    def step_len(self) -> int:
        """Tokens per step when nothing else is said."""
        return self.tgt_len or self.max_len or 64

    @property
    def memory(self) -> int:
        """How many past tokens a state may hold at most."""
        if not self.causal:
            return 0
        return self.mem_len if self.positions in ("relative", "none") else self.max_len

    @property
    def clusters(self) -> tuple[Cluster, ...]:
        """The vocabulary's pieces, frequent words first; just one unless it is adaptive."""
        edges = (0, *self.cutoffs, self.vocab_size)
        return tuple(
            Cluster(low, high, self.embed_width // self.div_val**i)
            for i, (low, high) in enumerate(pairwise(edges))
        )

    def replaced(self, **changes: object) -> Self:
        """The same configuration with some fields changed; unknown names are refused."""
        check_names(changes, [f.name for f in fields(self)], "field")
        if changes.get("family", self.family) != self.family:
            usual = FAMILIES[self.family]
            left_open = {n: FAMILY for n, v in usual.items() if getattr(self, n) == v}
            changes = left_open | changes
        return replace(self, **cast(Any, changes))

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for TOML or JSON."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return values | {"pattern": str(self.pattern), "cutoffs": list(self.cutoffs)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Read what `to_dict` gave, or a TOML table by hand."""
        check_names(values, [f.name for f in fields(cls)], "field")
        missing = [n for n in ("family", "pattern", *REQUIRED) if n not in values]
        if missing:
            raise ConfigError(
                f"missing field {missing[0]!r}; a model needs family, pattern, "
                f"{', '.join(REQUIRED)}"
            )
        return cls(**values)


REQUIRED = ("vocab_size", "d_model", "n_head", "d_inner")


MAX_CUTOFFS = 63
"""Halving any width that often leaves nothing of it."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """A stretch of the vocabulary and the width of its embedding."""

    low: int
    high: int
    width: int

    @property
    def size(self) -> int:
        return self.high - self.low


def presets() -> tuple[str, ...]:
    """The names of all built-in models.

    >>> "par-base" in presets()
    True
    """
    return tuple(sorted(name.removesuffix(".toml") for name in preset_files()))


@cache
def preset_files() -> Mapping[str, str]:
    folder = resources.files("parformer") / "presets"
    texts = {f.name: f.read_text("utf-8") for f in folder.iterdir() if f.name.endswith(".toml")}
    return types.MappingProxyType(texts)


def preset_table(name: str) -> dict[str, Any]:
    """A preset's file as it stands, with the tables of the preset it extends filled in."""
    check_names([name], presets(), "preset")
    table = tomllib.loads(preset_files()[f"{name}.toml"])
    return merge_tables(preset_table(table["extends"]), table) if "extends" in table else table


SECTIONS = ("model", "data", "train", "search")
"""The tables of a recipe."""


def merge_tables(parent: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """A file that extends another: its tables add to the parent's, its other words win."""
    merged = {**parent, **own}
    for section in SECTIONS:
        values = own.get(section, {})
        if section in parent and isinstance(values, dict):
            merged[section] = parent[section] | values
    return merged


def preset(name: str, **changes: object) -> ModelConfig:
    """A built-in model's configuration, with some fields replaced.

    >>> preset("transformer-xl-base", pattern="(sfff)x6 (f)x8").d_model
    512
    """
    values = preset_table(name)["model"]
    check_names(changes, [f.name for f in fields(ModelConfig)], "field")
    return ModelConfig.from_dict(values | changes)


TOML_LIMIT = 2**18
"""Bytes of a recipe; it takes a hundred lines."""


def read_tables(source: str) -> dict[str, Any]:
    """The tables of a preset, or of a TOML file and what it extends."""
    if not source.endswith(".toml"):
        return preset_table(source)
    try:
        tables = tomllib.loads(read_plain(Path(source), TOML_LIMIT))
    except OSError as error:
        raise ConfigError(f"cannot read {source!r}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # TOML's own error is a ValueError too
        raise ConfigError(f"{source!r} is not TOML: {error}") from None
    try:
        check_names(tables, (*SECTIONS, "title", "source", "machine", "extends"), "table or name")
    except ConfigError as error:
        raise ConfigError(f"{source!r}: {error}") from None
    for section in SECTIONS:
        if not isinstance(tables.get(section, {}), dict):
            raise ConfigError(f"{section!r} in {source!r} must be a table, [{section}]")
    if "model" not in tables and "extends" not in tables:
        raise ConfigError(f"{source!r} has no [model] table; 'parformer show' prints one")
    return (
        merge_tables(preset_table(str(tables["extends"])), tables)
        if "extends" in tables
        else tables
    )


def read_model(source: str, **changes: object) -> ModelConfig:
    """A configuration by preset name or from a TOML file with a [model] table."""
    values = read_tables(source)["model"]
    check_names(changes, [f.name for f in fields(ModelConfig)], "field")
    return ModelConfig.from_dict(values | changes)
