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

    progressive: float = 0.0
    """Share of the updates in which layers are taught one after another, bottom up, by features and
    attention alone; all learn from the answers afterwards (MobileBERT)."""
    take: Literal["nothing", "ends", "layers"] = "nothing"
    """What the student takes from its teacher before the first update: embedding and heads
    (MobileBERT), or these and layers from all over the depth (DistilBERT)."""

    bits: int = 0
    """Bits that every matrix is shown in, as it will be kept; 0 means all it has."""
    ranges: Literal["whole", "learned"] = "whole"
    """How far the codes of few bits reach: over all numbers of a row or group, whatever they are by
    then, or a learned share of that, beyond which numbers are cut (Esser et al. 2020)."""
    range_rate: float = 0.003
    """How fast learned shares of ranges learn."""

    prune_by: Literal["magnitude", "movement", "soft-movement"] = "magnitude"
    """Which weights become zero: the smallest; or, in matrices of blocks, those that move towards
    zero, so many or below a threshold (Sanh et al. 2020)."""
    sparsity: float = 0.0
    """Share of every matrix that is zero in the end; soft movement goes by its penalty instead."""
    prune_over: Literal["matrix", "model"] = "matrix"
    """Where the smallest are looked for: in every matrix, of which each then loses its share, or in
    all of them together, of which some then keep more than others."""
    score_rate: float = 0.01
    """How fast the scores of movements learn."""
    threshold: float = 0.1
    """What a score's sigmoid has to be above in the end, where movement is soft."""
    score_penalty: float = 400.0
    """What the mean of these sigmoids counts beside the loss: more of it leaves fewer weights."""
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
        self.check_transfer()
        if not 0 <= self.soft <= 1:
            raise ConfigError(f"compress.soft is a share, got {self.soft:g}")
        if not self.temperature > 0:
            raise ConfigError(f"compress.temperature must be above 0, got {self.temperature:g}")
        need_at_least("compress.bits", self.bits, 0)
        if self.bits and self.bits != 8 and not 2 <= self.bits <= 4:
            raise ConfigError(f"compress.bits are 8, or 2 to 4; got {self.bits}")
        if not 0 <= self.sparsity < 1:
            raise ConfigError(f"compress.sparsity is a share below 1, got {self.sparsity:g}")
        self.check_movement()
        if self.ranges == "learned" and not self.bits:
            raise ConfigError("compress.ranges 'learned' needs compress.bits; say how many")
        if not self.range_rate > 0:
            raise ConfigError(f"compress.range_rate must be above 0, got {self.range_rate:g}")
        if not 0 <= self.prune_from < self.prune_until <= 1:
            raise ConfigError(
                f"compress.prune_from {self.prune_from:g} must lie before compress.prune_until "
                f"{self.prune_until:g}, both shares of the updates"
            )

    def check_transfer(self) -> None:
        """Refuse lessons without a teacher, or without anything to learn in them."""
        if not 0 <= self.progressive < 1:
            raise ConfigError(
                f"compress.progressive is a share of the updates below 1, got {self.progressive:g}"
            )
        if self.progressive and not self.listens:
            raise ConfigError(
                "compress.progressive teaches layers by compress.features, attention, means or "
                "variances; set one of them"
            )
        if self.take != "nothing" and not self.teacher:
            raise ConfigError(f"compress.take {self.take!r} needs a compress.teacher; name one")

    def check_movement(self) -> None:
        """Refuse what does not go with scores, or with looking for zeros all over a model."""
        if self.prune_over == "model":
            if self.prune_by != "magnitude":
                raise ConfigError(
                    f"compress.prune_over 'model' compares magnitudes, compress.prune_by "
                    f"{self.prune_by!r} scores of each matrix: one of both"
                )
            if not self.sparsity:
                raise ConfigError("compress.prune_over 'model' needs a compress.sparsity; give one")
        if self.prune_by == "magnitude":
            return
        if self.prune_by == "movement" and not self.sparsity:
            raise ConfigError("compress.prune_by 'movement' needs a compress.sparsity; give one")
        if self.bits or self.masks:
            other = "bits" if self.bits else "masks"
            raise ConfigError(
                f"compress.prune_by {self.prune_by!r} and compress.{other}: one of both"
            )
        if not 0 < self.threshold < 0.5:
            raise ConfigError(
                f"compress.threshold must lie between 0 and 0.5, where scores begin, got "
                f"{self.threshold:g}"
            )
        for name in ("score_rate", "score_penalty"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"compress.{name} must be above 0, got {getattr(self, name):g}")

    @property
    def learns_ranges(self) -> bool:
        """Whether shares of ranges learn beside the weights."""
        return self.bits > 0 and self.ranges == "learned"

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
        return self.sparsity * self.risen(share)

    def risen(self, share: float) -> float:
        """How far zeros, or a threshold, have come: from 0 to 1 by a cube."""
        if share < self.prune_from:
            return 0.0
        done = min(1.0, (share - self.prune_from) / (self.prune_until - self.prune_from))
        return 1 - (1 - done) ** 3
