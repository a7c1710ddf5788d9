"""How does the differentiable search find a pattern?

The table [search] of a recipe, where there is one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from parformer.errors import ConfigError
from parformer.fields import fit_fields, need_at_least


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchConfig:
    """How the differentiable search finds a pattern; its updates are those of [train]."""

    layers: int = 0
    """Layers that get a block each; 0 means as many as the model's pattern has."""
    encoder_layers: int = 0
    """The same of an encoder, for translators; `layers` are the decoder's then."""
    choices: str = "sfi"
    """The blocks that every layer may choose from, written as a pattern; for translators those of
    the encoder, a bar, and those of the decoder."""
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
        need_at_least("search.encoder_layers", self.encoder_layers, 0)
        need_at_least("search.cycle", self.cycle, 0)
        need_at_least("search.seeds", self.seeds, 1)
        if self.layers in (1, 2) and "|" not in self.choices:
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
