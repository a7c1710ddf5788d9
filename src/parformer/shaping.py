"""What shapes a model's weights while it trains, beside its text?

The table [compress] of a recipe, where there is one: a teacher whose answers are learned from, few
bits that the weights are shown in, and zeros that more and more of them become.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from parformer.errors import ConfigError
from parformer.fields import fit_fields, need_at_least


@dataclass(frozen=True, kw_only=True, slots=True)
class CompressConfig:
    """Distillation, fake quantization and pruning, each only where it is asked for."""

    teacher: str = ""
    """A run or a model folder of the same vocabulary, whose answers are learned from."""
    teacher_identity: str = ""
    """SHA-256 of its weights, which a run writes down."""
    soft: float = 0.5
    """Share of the loss that asks for the teacher's answers; the rest asks for the text's."""
    temperature: float = 2.0
    """How much evener both sides' answers are made before they are compared."""
    soft_loss: Literal["kl", "cross-entropy", "mse"] = "kl"
    """How answers are compared: by divergence, by cross entropy, or by squares of logits."""
    features: float = 0.0
    """Weight of the squared difference of what blocks give, layer by layer, each normed (MobileBERT
    has 100)."""
    attention: float = 0.0
    """Weight of the divergence of attention weights, head by head."""
    means: float = 0.0
    """Weight of the squared difference of a token's mean over its channels (MobileBERT: 5,000)."""
    variances: float = 0.0
    """Weight of the difference of its variance (MobileBERT: 5)."""

    bits: int = 0
    """Bits that every matrix is shown in, as it will be kept; 0 means all it has."""

    sparsity: float = 0.0
    """Share of every matrix that is zero in the end."""
    prune_from: float = 0.0
    """Share of the updates after which zeros begin."""
    prune_until: float = 0.6
    """Share of the updates after which there are as many as there will be; they rise by a cube."""
    masks: str = ""
    """A file of masks, such as a lottery ticket's: what is zero stays zero from the first update
    on."""

    def __post_init__(self) -> None:
        fit_fields(self, "compress.")
        for name in ("features", "attention", "means", "variances"):
            if getattr(self, name) < 0:
                raise ConfigError(
                    f"compress.{name} must not be negative, got {getattr(self, name):g}"
                )
            if getattr(self, name) and not self.teacher:
                raise ConfigError(f"compress.{name} needs a compress.teacher; name one")
        if not 0 <= self.soft <= 1:
            raise ConfigError(f"compress.soft is a share, got {self.soft:g}")
        if not self.temperature > 0:
            raise ConfigError(f"compress.temperature must be above 0, got {self.temperature:g}")
        need_at_least("compress.bits", self.bits, 0)
        if self.bits and self.bits != 8 and not 2 <= self.bits <= 4:
            raise ConfigError(f"compress.bits are 8, or 2 to 4; got {self.bits}")
        if not 0 <= self.sparsity < 1:
            raise ConfigError(f"compress.sparsity is a share below 1, got {self.sparsity:g}")
        if not 0 <= self.prune_from < self.prune_until <= 1:
            raise ConfigError(
                f"compress.prune_from {self.prune_from:g} must lie before compress.prune_until "
                f"{self.prune_until:g}, both shares of the updates"
            )

    @property
    def listens(self) -> tuple[str, ...]:
        """What has to be heard of the blocks."""
        hidden = self.features or self.means or self.variances
        return ("output",) * bool(hidden) + ("weights",) * bool(self.attention)

    def zeros_at(self, share: float) -> float:
        """Share of zeros once this share of the updates is done.

        >>> round(CompressConfig(sparsity=0.8, prune_until=0.5).zeros_at(0.25), 3)
        0.7
        """
        if not self.sparsity or share < self.prune_from:
            return 0.0
        done = min(1.0, (share - self.prune_from) / (self.prune_until - self.prune_from))
        return self.sparsity * (1 - (1 - done) ** 3)
