"""What is a stack of blocks told?

A stack is all that blocks know of; a model has one, or two where it reads a source, and the
inside of a bottleneck is one too. `ModelConfig` is the parts together, flat, as people write it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from parformer.errors import ConfigError
from parformer.fields import fit_fields, need_at_least
from parformer.pattern import BlockSpec, Pattern

FAMILY: Any = None
"""A field's default that says: as the family has it."""

OPEN: dict[str, Any] = {
    "embedding": "plain",
    "projection_bias": False,
    "narrow_positions": False,
    "trigrams": "none",
    "wide_head": False,
    "pool": "dense",
}
"""What a family has where its file does not say."""


@dataclass(frozen=True, kw_only=True)
class StackConfig:
    """Which blocks in which order, and what each of them is unless it says otherwise."""

    family: str
    """What fills in the fields that are left open."""
    pattern: Pattern
    """Which blocks, in which order; a text is read as one."""
    d_model: int
    """Width of the stream that all blocks read and write."""
    n_head: int
    """Attention heads of an `s` or `c` block that does not say `heads=`."""
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
    d_bottleneck: int = 0
    """Width of the stream inside a `< >` that does not say `width=`; 0 means a quarter of
    d_model."""
    d_source: int = 0
    """Width of what `c` blocks look at; 0 means d_model."""

    positions: Literal[
        "relative", "learned", "rotary", "sinusoidal", "sinusoidal-halves", "none"
    ] = FAMILY
    """How a block knows where a token stands. Sinusoids are added to the embedding: sines and
    cosines in turn, of numbers from 0 (Vaswani et al. 2017), or in two halves from 2 (fairseq)."""
    position_bias: Literal["shared", "per-layer", "none"] = FAMILY
    """Where the two bias vectors of relative attention live."""
    max_len: int = 0
    """The window of learned, rotary and sinusoidal positions; 0 where there is none."""
    rotary_base: float = 10_000.0
    """The slowest rotation's base, for rotary positions."""
    causal: bool = FAMILY
    """Whether a token sees only what came before it."""

    encodes: bool = False
    """Whether this stack reads a source for another; a model says so of its encoder."""

    norm: Literal["pre", "post"] = FAMILY
    """Normalise what a block reads, or what the residual sum gives."""
    norm_type: Literal["layer", "rms", "affine"] = FAMILY
    """Layer norm, root-mean-square norm, or no norm but a scale and a shift for every channel
    (MobileBERT's NoNorm)."""
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

    absent_score: float = 0.0
    """What attention scores a place without a token; 0 means −∞, so that nothing of it is seen
    (Google's MobileBERT has −6)."""

    dropout: float = 0.0
    """Share of activations dropped while training."""
    dropatt: float = 0.0
    """Share of attention weights dropped while training."""
    dropkernel: float = -1.0
    """Share of convolutions' kernels dropped while training; -1 means dropatt."""
    inner_dropout: bool = FAMILY
    """Drop inside feed-forward blocks as well."""
    drop_once: bool = FAMILY
    """Leave what the last block gives to whoever reads it, and drops of it anyway."""

    tgt_len: int = 0
    """Tokens per step when nothing else is said; 0 means the window, max_len."""
    mem_len: int = 0
    """Tokens of memory carried from step to step, where positions are relative or none."""
    clamp_len: int = -1
    """Distances beyond this count as this; -1 means never."""
    same_length: bool = False
    """Every token sees exactly mem_len keys, itself included, as in the original evaluation."""

    def __post_init__(self) -> None:
        fit_fields(self)
        self.check_stack()

    def check_stack(self) -> None:
        """Refuse sizes and lengths that do not fit together."""
        for name in ("d_model", "n_head", "d_inner"):
            need_at_least(name, getattr(self, name), 1)
        widths = ("d_head", "n_kv_head", "d_attention", "d_bottleneck", "d_source")
        for name in (*widths, "max_len", "tgt_len", "mem_len"):
            need_at_least(name, getattr(self, name), 0)
        need_at_least("clamp_len", self.clamp_len, -1)
        for name in ("dropout", "dropatt"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{name} is a share from 0 to below 1, got {getattr(self, name)}")
        if self.dropkernel != -1 and not 0 <= self.dropkernel < 1:
            raise ConfigError(
                f"dropkernel is a share from 0 to below 1, or -1 for dropatt, got {self.dropkernel}"
            )
        for name in ("norm_eps", "rotary_base"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be positive, got {getattr(self, name)}")
        if self.absent_score and self.positions == "relative":
            raise ConfigError(
                f"absent_score {self.absent_score:g} is not for relative positions; leave it at 0"
            )
        self._settle_positions()
        self._check_same_length()
        self.head_width(self.n_head)

    def _settle_positions(self) -> None:
        if self.positions == "learned" and self.max_len == 0:
            raise ConfigError(
                "learned positions need a window, got max_len 0; set it, such as 1024"
            )
        if (self.positions == "rotary" or self.sinusoidal) and self.max_len == 0:
            object.__setattr__(self, "max_len", 2048)
        if self.numbered and self.tgt_len > self.max_len:
            raise ConfigError(
                f"tgt_len {self.tgt_len} exceeds the window max_len {self.max_len}; raise max_len"
            )
        if self.positions == "relative" and self.position_bias == "none":
            object.__setattr__(self, "position_bias", "shared")
        if self.positions == "relative" and self.d_model % 2:
            raise ConfigError(
                f"relative positions need an even d_model, got {self.d_model}; "
                f"try {self.d_model + 1}"
            )

    def _check_same_length(self) -> None:
        if not self.same_length:
            return
        if self.positions not in ("relative", "none") or self.mem_len == 0:
            raise ConfigError(
                f"same_length needs relative positions and a memory, got {self.positions!r} "
                f"positions and mem_len {self.mem_len}; set mem_len, such as 640"
            )
        if self.positions == "none" and self.pattern.count("s"):
            raise ConfigError(
                f"same_length without positions is for a blocks, and {str(self.pattern)!r} has s; "
                "set positions='relative' or same_length=false"
            )

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
    def shared_biases(self) -> bool:
        """Whether all blocks of the stack share the biases of relative attention."""
        return self.positions == "relative" and self.position_bias == "shared"

    @property
    def numbered(self) -> bool:
        """Whether the embedding tells places, counted from the beginning of a window."""
        return self.positions == "learned" or self.sinusoidal

    @property
    def sinusoidal(self) -> bool:
        """Whether sines and cosines of numbers are added to the embedding."""
        return self.positions in ("sinusoidal", "sinusoidal-halves")

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
    def reach(self) -> int:
        """How many keys a token sees at most, itself included; 0 means all there are."""
        return self.mem_len if self.same_length else 0

    def stack(self, **changes: Any) -> StackConfig:
        """The stack alone, with some fields changed."""
        values = {field.name: getattr(self, field.name) for field in fields(StackConfig)}
        return StackConfig(**{**values, **changes})

    def narrowed(self, spec: BlockSpec) -> InsideConfig:
        """What the inside of a bottleneck is told: the same on a narrower stream."""
        assert spec.inside is not None
        options, feed = spec.options, str(spec.options.get("feed", ""))
        width = int(options.get("width", self.d_bottleneck or max(1, self.d_model // 4)))
        if ("wide" in options) != (width > self.d_model):
            than, way_out = ("wider", "lower width= or d_bottleneck, or say that it is meant: wide")
            if "wide" in options:
                than, way_out = "not wider", "raise width= or d_bottleneck, or leave out wide"
            raise ConfigError(
                f"the inside of {str(spec)!r} has width {width}, {than} than the stream's "
                f"{self.d_model}; {way_out}"
            )
        own = {"pattern": spec.inside, "d_model": width, "final_norm": False, "drop_once": False}
        if feed:
            own["dropout"] = 0.0  # as MobileBERT has it: only what goes up is dropped of
        values = {field.name: getattr(self, field.name) for field in fields(StackConfig)}
        values["d_source"] = self.d_source or self.d_model
        return InsideConfig(**values | own, feed=feed, d_outside=self.d_model)


@dataclass(frozen=True, kw_only=True)
class InsideConfig(StackConfig):
    """The inside of a bottleneck, and what its attention reads instead of its own stream."""

    feed: str = ""
    """As in the brackets after `< >`; empty where they say nothing."""
    d_outside: int = 0
    """Width of the stream around the bottleneck."""

    def stack(self, **changes: Any) -> StackConfig:
        return replace(self, **changes)
