"""What is a fit asked for?

>>> ask = Ask(corpus="python-source", limits=("latency=0.8x",), time=360.0)
>>> ask.bounds[0].most, Ask.from_dict(ask.to_dict()) == ask
(0.8, True)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from parformer.errors import ConfigError
from parformer.fields import check_names, fit_fields, need_at_least
from parformer.pattern import Pattern
from parformer.recipe import Recipe, read_recipe
from parformer.search.limits import Limit, read_limits

FAMILIES = {"transformer-xl": "pocket", "gpt2": "gpt2-pocket", "llama": "llama-pocket"}
"""The preset that a family's models are like, in all but their sizes."""

KINDS = ("byte", "used-bytes", "character", "word", "bpe")
"""What a token may be."""

SHORTEST = 60.0
"""Seconds below which nothing can be said about any model."""

NO_MORE = "latency=1x"
"""The limit where none is given: no slower than the baseline."""


@dataclass(frozen=True, kw_only=True)
class Ask:
    """A text and a budget, and what may be done with them."""

    corpus: str
    """A built-in or published corpus by name, or a file, a folder or a glob of text."""
    local: str = ""
    """A local copy of a published corpus."""
    tokenizer: str = "byte"
    """What a token is."""
    family: str = "transformer-xl"
    """Positions, norms and masks of all models."""
    choices: str = "rsfi"
    """Blocks that the search may place: recurrence, attention, feed-forward, nothing."""
    limits: tuple[str, ...] = ()
    """What the model may cost; `latency=0.7x` is of the interleaved baseline."""
    time: float = 600.0
    """Seconds for everything; 0 where `steps` says how long to train."""
    steps: int = 0
    """Updates that each finalist gets, in place of a time."""
    margin: float = 0.01
    """Within this share of the baseline's loss a model is at par."""
    seed: int = 0
    """Decides first weights and the order of the text."""
    tgt_len: int = 0
    """Tokens of the step whose latency counts; 0 means as the models are trained."""
    mem_len: int = -1
    """Tokens remembered before it; -1 means as the models are trained."""
    threads: int = 1
    """Threads that latency is measured with."""
    watts: float = 0.0
    """What the machine draws while it works; 0 means an estimate."""
    grid: float = 0.4
    """Kilograms of CO₂ for a kilowatt-hour."""
    price: float = 0.3
    """Money for a kilowatt-hour."""
    currency: str = "EUR"
    """What that money is."""

    def __post_init__(self) -> None:
        fit_fields(self)
        if self.steps:
            object.__setattr__(self, "time", 0.0)
        if self.family not in FAMILIES:
            raise ConfigError(f"cannot fit family {self.family!r}; known: {', '.join(FAMILIES)}")
        if not self.corpus:
            raise ConfigError("there is no text to fit; name a corpus, such as python-source")
        need_at_least("seed", self.seed, 0)
        need_at_least("steps", self.steps, 0)
        need_at_least("threads", self.threads, 1)
        need_at_least("tgt_len", self.tgt_len, 0)
        need_at_least("mem_len", self.mem_len, -1)
        if not self.steps and self.time < SHORTEST:
            raise ConfigError(
                f"{self.time:g} s are too short to train and compare models; "
                f"give --time {SHORTEST / 60:g}m or more"
            )
        if not 0 < self.margin < 1:
            raise ConfigError(
                f"--margin is a share of the loss between 0 and 1, got {self.margin:g}"
            )
        for name in ("watts", "grid", "price"):
            if getattr(self, name) < 0:
                raise ConfigError(f"--{name} must not be negative, got {getattr(self, name):g}")
        read_limits(self.limits)
        if self.tokenizer not in KINDS:
            raise ConfigError(f"unknown tokenizer {self.tokenizer!r}; known: {', '.join(KINDS)}")
        blocks = Pattern.parse(self.choices)
        letters = [spec.letter for spec in blocks]
        if any(spec.options or spec.inside for spec in blocks):
            raise ConfigError(
                f"--choices {self.choices!r} are letters alone: sizes are found; write rsfi"
            )
        for needed, why in (("s", "the baseline has attention"), ("f", "so have all models")):
            if needed not in letters:
                raise ConfigError(f"--choices {self.choices!r} lack {needed!r}: {why}; add it")

    @property
    def bounds(self) -> tuple[Limit, ...]:
        """The limits; without any, the baseline's own latency."""
        return read_limits(self.limits or (NO_MORE,))

    @property
    def letters(self) -> str:
        """The blocks to choose from."""
        return "".join(dict.fromkeys(spec.letter for spec in Pattern.parse(self.choices)))

    def recipe(self) -> Recipe:
        """How models of this family are trained, before their sizes are known."""
        changes: dict[str, Any] = {
            "data.corpus": self.corpus,
            "data.local": self.local,
            "data.tokenizer": self.tokenizer,
            "train.seed": self.seed,
            "train.compile": "off",
        }
        if self.tokenizer != "bpe":
            changes["data.vocab_size"] = 0
        return read_recipe(FAMILIES[self.family], changes)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"limits": list(self.limits)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        check_names(values, [field.name for field in fields(cls)], "field of a fit")
        return cls(**{**values, "limits": tuple(values.get("limits", ()))})
