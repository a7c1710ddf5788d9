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
from typing import Any, Self, cast

from parformer.ends import EmbeddingConfig, FirstWeights, HeadConfig
from parformer.errors import ConfigError
from parformer.fields import check_names, fit_fields
from parformer.parts import FAMILY, OPEN, StackConfig
from parformer.store.files import Json, read_plain


@cache
def toml_files(folder: str) -> Mapping[str, str]:
    """The texts of the TOML files that Parformer comes with, by name."""
    place = resources.files("parformer") / folder
    texts = {
        file.name.removesuffix(".toml"): file.read_text("utf-8")
        for file in sorted(place.iterdir(), key=lambda file: file.name)
        if file.name.endswith(".toml")
    }
    return types.MappingProxyType(texts)


FAMILIES: Mapping[str, Mapping[str, object]] = {
    name: OPEN | tomllib.loads(text) for name, text in toml_files("families").items()
}
"""What each family fills in where a configuration leaves it open."""

REQUIRED = ("vocab_size", "d_model", "n_head", "d_inner")


@dataclass(frozen=True, kw_only=True)
class ModelConfig(FirstWeights, HeadConfig, EmbeddingConfig, StackConfig):
    """Everything that decides a model's weights and its maths."""

    encoder: tuple[Any, ...] = ()
    """What is different in the encoder, in a table of its own: it sees both sides, and is else
    like the decoder."""

    def __post_init__(self) -> None:
        if not isinstance(self.family, str) or self.family not in FAMILIES:
            known = ", ".join(map(repr, FAMILIES))
            raise ConfigError(f"family must be one of {known}, got {self.family!r}")
        for name, value in FAMILIES[self.family].items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        object.__setattr__(self, "encoder", pairs_of(self.encoder))
        fit_fields(self)
        self.check_stack()
        self.check_embedding(self.d_model)
        self.check_head(causal=self.causal, adaptive=self.embedding == "adaptive")
        self.check_counts(self.vocab_size, adaptive=self.embedding == "adaptive")
        self.check_spreads()
        self._check_trigrams()
        self._check_stacks()
        if self.sinusoidal and self.d_model % 2:
            raise ConfigError(
                f"{self.positions} positions need an even d_model, got {self.d_model}; "
                f"try {self.d_model + 1}"
            )

    def _check_trigrams(self) -> None:
        if self.trigrams == "none":
            return
        if self.causal:
            raise ConfigError(
                f"trigrams={self.trigrams!r} needs causal=false: it reads the next token"
            )
        if self.head == "lm" and self.tie_projections == "all":
            raise ConfigError(
                f"trigrams={self.trigrams!r} project three tokens, which no head can reuse; "
                "set tie_projections='none'"
            )

    def _check_stacks(self) -> None:
        if self.pattern.encoder is None:
            if self.source_vocab:
                raise ConfigError(
                    f"source_vocab {self.source_vocab} is about an encoder, and there is none in "
                    f"{str(self.pattern)!r}; write one as encoder | decoder"
                )
            if self.encoder:
                raise ConfigError(
                    f"there is no encoder in {str(self.pattern)!r} that [encoder] could be about; "
                    "write one as encoder | decoder"
                )
            if self.pattern.count("c"):
                raise ConfigError(
                    f"c in {str(self.pattern)!r} looks at an encoder, and there is none; "
                    "write one as encoder | decoder"
                )
            return
        if not self.causal:
            raise ConfigError(
                f"the decoder of {str(self.pattern)!r} must be causal, and family "
                f"{self.family!r} sees both sides; set causal=true"
            )
        if self.pattern.encoder.count("c"):
            raise ConfigError(f"c in the encoder of {str(self.pattern)!r} has nothing to look at")
        assert self.source is not None  # the encoder's own configuration checks itself

    @property
    def source(self) -> StackConfig | None:
        """The stack that reads the source, where there is one."""
        if self.pattern.encoder is None:
            return None
        own = {
            "causal": False,
            "encodes": True,
            "mem_len": 0,
            "same_length": False,
            "drop_once": False,
        }
        given = dict(self.encoder)
        known = [field.name for field in fields(StackConfig)]
        check_names(given, [n for n in known if n not in ("pattern", "family")], "encoder field")
        if given.get("d_model", self.d_model) != self.d_model:
            raise ConfigError("encoder and decoder read one embedding, so d_model is the same")
        return self.stack(pattern=self.pattern.encoder, **own, **given)

    @property
    def source_words(self) -> Self:
        """What the embedding of a source is told."""
        return replace(self, vocab_size=self.source_vocab) if self.source_vocab else self

    @property
    def embed_width(self) -> int:
        """Width of the embedding table, or of its first cluster."""
        return self.d_embed or self.d_model

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

    def to_dict(self) -> Json:
        """Plain values, ready for TOML or JSON."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        values |= {"pattern": str(self.pattern), "cutoffs": list(self.cutoffs)}
        values["labels"] = list(self.labels)
        encoder = dict(values.pop("encoder"))
        return values | ({"encoder": encoder} if encoder else {})

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


def pairs_of(encoder: object) -> tuple[tuple[str, Any], ...]:
    """A table as pairs in order, which compare and hash."""
    if isinstance(encoder, tuple):
        return encoder
    if not isinstance(encoder, Mapping) or not all(isinstance(name, str) for name in encoder):
        raise ConfigError(f"encoder must be a table of fields, got {encoder!r:.60}")
    return tuple(sorted(encoder.items()))


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
    return tuple(toml_files("presets"))


def preset_table(name: str) -> dict[str, Any]:
    """A preset's file as it stands, with the tables of the preset it extends filled in."""
    check_names([name], presets(), "preset")
    table = tomllib.loads(toml_files("presets")[name])
    return merge_tables(preset_table(table["extends"]), table) if "extends" in table else table


SECTIONS = ("model", "data", "train", "search", "compress")
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
