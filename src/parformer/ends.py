"""What are the ends of a model told: embedding, head, and how weights are drawn?"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from parformer.errors import ConfigError
from parformer.fields import need_at_least
from parformer.grams import check_table, largest_order
from parformer.parts import FAMILY

MAX_CUTOFFS = 63
"""Halving any width that often leaves nothing of it."""


@dataclass(frozen=True, kw_only=True)
class EmbeddingConfig:
    """How tokens become vectors."""

    vocab_size: int
    """Number of different tokens."""
    embedding: Literal["plain", "adaptive", "factorized"] = FAMILY
    """One table; clusters of falling width; or a narrow table and a projection."""
    d_embed: int = 0
    """Width of the embedding table (its first cluster); 0 means d_model."""
    cutoffs: tuple[int, ...] = ()
    """Where an adaptive vocabulary is cut, frequent words first."""
    div_val: int = 1
    """Each adaptive cluster is this many times narrower than the one before."""
    projection_bias: bool = FAMILY
    """A bias in the projection of a factorized embedding (ALBERT has one, OPT has not)."""
    narrow_positions: bool = FAMILY
    """Positions, token types and the norm are as wide as a factorized embedding's table, and its
    projection comes last (ALBERT)."""
    trigrams: Literal["none", "tokens", "all"] = FAMILY
    """The embedding projects each token beside the next and the previous one (MobileBERT), of those
    that are tokens; or of all, padding too, as the released code does."""
    scale_embedding: bool = FAMILY
    """Multiply embeddings by the square root of d_model."""
    embedding_norm: bool = FAMILY
    """A norm on the sum of embeddings."""
    token_types: int = FAMILY
    """Number of segment kinds (BERT: 2)."""
    pad: int = -1
    """A token that stands for none: it has no sinusoidal position, it learns nothing from being
    looked up, and nobody attends to it in a source; -1 where there is no such token."""
    start: int = -1
    """The token that a text begins with which is written for a source; -1 where nobody says."""
    end: int = -1
    """The token that sources and what is written for them end with; -1 where nobody says."""
    source_vocab: int = 0
    """Tokens of the source, if it has an embedding of its own; 0 where both sides share one."""

    def check_embedding(self, width: int) -> None:
        """Refuse tables that make no vectors of this width."""
        for name, least in (("vocab_size", 1), ("div_val", 1), ("d_embed", 0), ("token_types", 0)):
            need_at_least(name, getattr(self, name), least)
        for name, least in (("pad", -1), ("start", -1), ("end", -1), ("source_vocab", 0)):
            need_at_least(name, getattr(self, name), least)
        for name in ("start", "end"):
            if getattr(self, name) >= self.vocab_size:
                raise ConfigError(
                    f"{name} {getattr(self, name)} is no token of a vocabulary of "
                    f"{self.vocab_size}; lower it, or set -1 for none"
                )
        if self.pad >= min(self.vocab_size, self.source_vocab or self.vocab_size):
            raise ConfigError(
                f"pad {self.pad} is no token of a vocabulary of {self.vocab_size}; lower it, or "
                "set -1 for none"
            )
        if self.pad >= 0 and self.embedding == "adaptive":
            raise ConfigError(f"pad {self.pad} needs embedding='plain' or 'factorized'; set pad=-1")
        if self.embedding == "plain" and (self.d_embed or width) != width:
            raise ConfigError(
                f"a plain embedding is as wide as the model, got d_embed {self.d_embed} for "
                f"d_model {width}; set embedding='factorized'"
            )
        if self.embedding != "adaptive" and (self.cutoffs or self.div_val != 1):
            raise ConfigError(
                f"cutoffs {list(self.cutoffs)} and div_val {self.div_val} belong to "
                f"embedding='adaptive', got {self.embedding!r}"
            )
        if self.embedding == "adaptive":
            self._check_clusters(self.d_embed or width)
        if self.trigrams != "none" and self.narrow_positions:
            raise ConfigError(
                f"trigrams={self.trigrams!r} are projected before positions are added; "
                "set narrow_positions=false"
            )
        for name, off in (("trigrams", "none"), ("narrow_positions", False)):
            if self.embedding == "adaptive" and getattr(self, name) != off:
                raise ConfigError(
                    f"{name}={getattr(self, name)!r} needs one table, got embedding='adaptive'"
                )

    def _check_clusters(self, first: int) -> None:
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
        if first // self.div_val ** len(self.cutoffs) < 1:
            raise ConfigError(
                f"the last of {len(self.cutoffs) + 1} clusters would have width 0: "
                f"d_embed {first} over div_val {self.div_val}; lower div_val"
            )


@dataclass(frozen=True, kw_only=True)
class HeadConfig:
    """What vectors become in the end."""

    head: Literal["lm", "masked", "none"] = FAMILY
    """Next-token head, masked-word head with its transform, or hidden states only."""
    tie_weights: bool = True
    """The output head reuses the embedding tables."""
    tie_projections: Literal["all", "tails", "none"] = "tails"
    """Which output projections reuse the embedding's: Transformer-XL shares all but the first."""
    output_bias: bool = FAMILY
    """A bias per token in the head."""
    wide_head: bool = FAMILY
    """A masked-word head that reads the model's whole width: to a narrower table it adds a matrix
    of its own (MobileBERT)."""
    pooler: bool = FAMILY
    """One vector for a whole text, of its first token, as BERT's classifiers use it."""
    pool: Literal["dense", "first", "mean"] = FAMILY
    """How: a tanh projection of the first token, that token as it is (MobileBERT), or the mean of
    all tokens (sentence encoders)."""
    pair_head: Literal["none", "next", "order"] = "none"
    """Two logits for a pair of sentences, from what is pooled: 1 where the second does not follow
    the first (BERT), or where the two have changed places (ALBERT)."""
    label_head: Literal["none", "class", "score", "choice", "span"] = "none"
    """What is told of labelled texts: a class, a score, or how right a choice is, from what is
    pooled; or where an answer starts and ends, from every token."""
    labels: tuple[str, ...] = ()
    """The classes, in the order of their logits."""
    label_dropout: float = 0.1
    """Share of what that head reads which is dropped while training."""
    final_dropout: bool = FAMILY
    """Drop some of what the head reads, too."""
    counts: int = 0
    """Bytes of a table of n-grams, counted on the training text, whose log-probabilities are added
    to the logits; 0 for none."""
    count_order: int = 0
    """Tokens of its longest n-grams; 0 means as many as can be counted, 8 at most."""
    recall: int = 0
    """Tokens of recent text in which the longest repeat of the last ones is looked for; what
    followed it then is expected to follow again; 0 for none."""

    def check_head(self, *, causal: bool, adaptive: bool) -> None:
        """Refuse a head that the other parts cannot feed."""
        if self.head == "masked" and adaptive:
            raise ConfigError(
                "a masked-word head needs embedding='plain' or 'factorized', got 'adaptive'"
            )
        if self.head == "masked" and causal:
            raise ConfigError("a masked-word head needs causal=false: it reads both sides")
        if self.pair_head != "none" and not self.pooler:
            raise ConfigError(f"pair_head={self.pair_head!r} reads what is pooled; set pooler=true")

        if self.label_head in ("class", "score", "choice") and not self.pooler:
            raise ConfigError(
                f"label_head={self.label_head!r} reads what is pooled; set pooler=true"
            )
        if self.labels and self.label_head != "class":
            raise ConfigError(f"labels are those of label_head='class', got {self.label_head!r}")
        if not 0 <= self.label_dropout < 1:
            raise ConfigError(
                f"label_dropout is a share from 0 to below 1, got {self.label_dropout:g}"
            )

    @property
    def label_width(self) -> int:
        """Numbers that the head for labelled texts gives."""
        widths = {"none": 0, "class": len(self.labels), "score": 1, "choice": 1, "span": 2}
        return widths[self.label_head]

    def check_counts(self, vocab_size: int, *, adaptive: bool) -> None:
        """Refuse a table of counts that this head cannot use."""
        for name in ("counts", "recall"):
            need_at_least(name, getattr(self, name), 0)
        if not self.counts and not self.recall:
            return
        if self.head != "lm" or adaptive:
            raise ConfigError(
                "counts and recall tell the next token of a plain vocabulary: they need head='lm' "
                f"and no adaptive embedding, got head {self.head!r}"
            )
        if self.counts:
            check_table(vocab_size, self.counts, self.count_order)

    def sight(self, vocab_size: int) -> int:
        """How many tokens before the last one have to be remembered for counts and recall."""
        order = self.count_order or largest_order(vocab_size)
        return max(order - 1 if self.counts else 0, self.recall)


@dataclass(frozen=True, kw_only=True)
class FirstWeights:
    """How weights are drawn before the first update."""

    first_weights: Literal["family", "scaled"] = "family"
    """As the family's authors draw them; or by each matrix's own inputs, and every residual block
    begins with nothing to add, which holds for any width and depth."""
    draws: Literal["normal", "noisy-norms", "shrinking", "uniform", "xavier"] = FAMILY
    """As authors draw them: all alike; norms too (Transformer-XL); smaller the more blocks add up
    (GPT-2); evenly within bounds (SRU++); or by what goes in and out (fairseq's Transformers)."""
    init_std: float = 0.02
    """Spread of the first weights; of scaled ones, of the embedding alone."""
    projection_std: float = 0.01
    """Spread of the first embedding projections."""

    def check_spreads(self) -> None:
        for name in ("init_std", "projection_std"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} must not be negative, got {getattr(self, name)}")
