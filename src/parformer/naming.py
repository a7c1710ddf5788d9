"""Which models are meant by what somebody typed?

A preset, a TOML file, or a bare pattern that takes its sizes from a preset.

>>> [title for title in ModelsRequest(models=("par-base", "(sf)x16")).configs()]
['PAR Transformer Base', '(sf)x16']
>>> design(par=32, p=5).written
'(sfff)x6 (f)x8'
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from parformer.config import ModelConfig, preset, preset_table, presets, read_model
from parformer.errors import ConfigError, PatternError
from parformer.fields import check_names, need_at_least, parse_assignment
from parformer.pattern import Pattern, describe, interleaved, par, sandwich
from parformer.records import Record
from parformer.verbs import requested

LIKE = "transformer-xl-base"


@dataclass(frozen=True, kw_only=True)
class ModelsRequest:
    """Models, and what is to be changed about all of them."""

    models: tuple[str, ...]
    """Presets, patterns or TOML files."""
    pattern: str = ""
    """Replace the pattern of each model."""
    like: str = LIKE
    """The preset that a bare pattern takes its sizes from."""
    changes: tuple[str, ...] = ()
    """Replace a field, such as d_model=256; may be repeated."""

    def configs(self) -> dict[str, ModelConfig]:
        """The configurations by title."""
        changes = dict(map(parse_assignment, self.changes))
        if self.pattern:
            changes["pattern"] = self.pattern
        found = {}
        for title, name in by_title(self.models).items():
            if is_model_name(name):
                found[title] = read_model(name, **changes)
            else:
                found[title] = read_model(self.like, **{"pattern": read_pattern(name), **changes})
        return found


@dataclass(frozen=True, kw_only=True)
class CostRequest(ModelsRequest):
    """A step of some models, to be priced."""

    tgt_len: int | None = None
    """New tokens per step."""
    mem_len: int | None = None
    """Remembered tokens before them."""
    batch: int = 1
    """Texts at once."""

    def __post_init__(self) -> None:
        need_at_least("batch", self.batch, 1)


@dataclass(frozen=True, slots=True)
class Shown(Record):
    """A model in words."""

    name: str
    pattern: str
    letters: str
    words: str


def show(*models: str) -> tuple[Shown, ...]:
    """What these presets, files or patterns are."""
    named = {title: read_pattern(name) for title, name in by_title(models).items()}
    return tuple(
        Shown(title, str(found), found.letters, describe(found)) for title, found in named.items()
    )


@dataclass(frozen=True, slots=True)
class Listed(Record):
    """A preset, as a list of them has it."""

    name: str
    title: str
    pattern: str
    source: str


def list_presets() -> tuple[Listed, ...]:
    tables = {name: preset_table(name) for name in presets()}
    return tuple(
        Listed(name, table["title"], str(preset(name).pattern), table["source"])
        for name, table in tables.items()
    )


@dataclass(frozen=True, kw_only=True)
class DesignRequest:
    """A rule for a pattern, or a pattern in some notation."""

    par: int | None = None
    """PAR's rule for so many blocks; see --p."""
    sandwich: int | None = None
    """Sandwich of so many blocks; see --k."""
    interleaved: int | None = None
    """So many blocks, attention and feed-forward in turn."""
    from_megatron: str | None = None
    """Such as *-*-: * is attention, - a feed-forward."""
    from_layer_types: str | None = None
    """Such as full_attention,mlp,full_attention,mlp."""
    pattern: str | None = None
    """A pattern, to see its canonical form."""
    p: float | None = None
    """One block in P is attention; 5 unless given."""
    k: int | None = None
    """Attention blocks moved to the front; 6 unless given."""
    notation: Literal["pattern", "megatron", "layer-types"] = "pattern"
    """How to write it."""

    def __post_init__(self) -> None:
        if self.p is not None and self.par is None:
            raise PatternError(f"--p {self.p:g} belongs to --par; add --par BLOCKS")
        if self.k is not None and self.sandwich is None:
            raise PatternError(f"--k {self.k} belongs to --sandwich; add --sandwich BLOCKS")
        asked = [name for name in SOURCES if getattr(self, name) is not None]
        if len(asked) != 1:
            flags = [f"--{name.replace('_', '-')}" for name in asked or SOURCES]
            raise PatternError(f"give one of {', '.join(flags)}")


SOURCES = ("par", "sandwich", "interleaved", "from_megatron", "from_layer_types", "pattern")


@dataclass(frozen=True, slots=True)
class Designed:
    """A pattern, and how it is written in the notation that was asked for."""

    pattern: Pattern
    notation: str
    written: str | list[str]

    def to_dict(self) -> dict[str, str | list[str]]:
        return {"pattern": str(self.pattern), self.notation: self.written}


def design(request: DesignRequest | None = None, **given: object) -> Designed:
    """Write a pattern by a paper's rule, or in another notation."""
    asked = requested(DesignRequest, request, given)
    if asked.par is not None:
        pattern = par(asked.par, 5 if asked.p is None else asked.p)
    elif asked.sandwich is not None:
        pattern = sandwich(asked.sandwich, 6 if asked.k is None else asked.k)
    elif asked.interleaved is not None:
        pattern = interleaved(asked.interleaved)
    elif asked.from_megatron is not None:
        pattern = Pattern.from_megatron(asked.from_megatron)
    elif asked.from_layer_types is not None:
        words = asked.from_layer_types.split(",")
        pattern = Pattern.from_layer_types([word.strip() for word in words])
    else:
        pattern = Pattern.parse(asked.pattern or "")
    written: str | list[str] = str(pattern)
    if asked.notation == "megatron":
        written = pattern.to_megatron()
    elif asked.notation == "layer-types":
        written = pattern.to_layer_types()
    return Designed(pattern, asked.notation, written)


def by_title(models: Sequence[str]) -> dict[str, str]:
    """What somebody names, by the title to show; none may hide another."""
    titles: dict[str, str] = {}
    for name in models:
        title = title_of(name)
        if title in titles:
            raise ConfigError(
                f"{titles[title]!r} and {name!r} would both be called {title!r}; "
                "name each model once, and files differently"
            )
        titles[title] = name
    return titles


def is_model_name(text: str) -> bool:
    return text in presets() or text.endswith(".toml")


def read_pattern(text: str) -> Pattern:
    """The pattern of a preset or a file, or the text itself as one."""
    if is_model_name(text):
        return read_model(text).pattern
    try:
        return Pattern.parse(text)
    except PatternError:
        if 4 < len(text) < 100 and text.replace("-", "").isalnum():
            check_names([text], presets(), "preset or pattern")
        raise


def title_of(text: str) -> str:
    if text in presets():
        return str(preset_table(text)["title"])
    return Path(text).stem if text.endswith(".toml") else str(read_pattern(text))
