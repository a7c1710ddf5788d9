"""How do vectors become probabilities?

Heads are tied to the embedding unless they say otherwise. An adaptive one pays for rare words
only where they occur: its loss goes cluster by cluster. What is known of the next token
already, from counts and repeats, is added to the logits of a flat one.
"""

# b batch, t time, d width, e embedding width, v vocabulary, c = head columns of rare clusters
# s selected tokens

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parformer.blocks.base import (
    TOKEN_BYTES,
    Cost,
    Shape,
    linear_cost,
    make_norm,
    norm_parameters,
)
from parformer.blocks.linear import ACTIVATIONS, LayerNorm, Linear
from parformer.config import ModelConfig
from parformer.counts.prior import Hints
from parformer.counts.recall import LONGEST, SHORTEST
from parformer.embedding import WordEmbedding, has_cluster_tables, token_shares
from parformer.kernels.entropy import cross_entropy
from parformer.kernels.half import linear
from parformer.kernels.packed import Packed, pack


class Head(nn.Module):
    """Vectors to log-probabilities and losses."""

    regular = True
    """Whether all shapes inside follow from the input's shape, not from what the targets are."""

    def logits(self, x_btd: Tensor, hints: Hints | None = None) -> Tensor:
        """Numbers whose log_softmax over the vocabulary are log-probabilities.

        `hints` is what is known of these tokens already, where the model has counts or recall.
        """
        raise AssertionError

    def losses(self, x_nd: Tensor, targets_n: Tensor, hints: Hints | None = None) -> Tensor:
        """Negative log-probability of each target, in fp32 or better."""
        raise AssertionError

    def pack(self, rows: int) -> bool:
        """Lay the weights out for this many rows; whether that was possible."""
        return False


class FlatHead(Head):
    """One row per token of the vocabulary; for masked words with a transform before it.

    BERT's and ALBERT's transforms are as wide as the table. MobileBERT's is as wide as the model,
    and what the table is too narrow for is read by a matrix of its own.
    """

    def __init__(self, config: ModelConfig, words: WordEmbedding) -> None:
        super().__init__()
        width = config.embed_width
        self.out = Linear(width, config.vocab_size, bias=config.output_bias)
        if config.tie_weights:
            self.out.weight = cast(nn.Parameter, words.tables[0])
        self.projection: nn.Parameter | None = None
        self.transform: nn.Module | None = None
        self.more: nn.Module | None = None
        """What the rest of a vector says, where the table is narrower than the transform."""
        if config.head == "masked":
            transformed = transform_width(config)
            self.transform = Linear(config.d_model, transformed)
            self.activation = ACTIVATIONS[config.activation]
            # a scale and a shift would leave nothing that keeps logits in bounds
            self.norm = (
                LayerNorm(transformed, eps=config.norm_eps)
                if config.norm_type == "affine"
                else make_norm(config, transformed)
            )
            if transformed > width:
                self.more = Linear(transformed - width, config.vocab_size, bias=False)
        elif width != config.d_model:
            self.projection = (
                words.projections[0]
                if config.tie_projections == "all"
                else nn.Parameter(torch.empty(config.d_model, width))
            )
        self.trust = Linear(config.d_model, 1) if config.counts else None
        """How much more than itself, or less, counting counts here."""
        self.repeats = nn.Parameter(torch.empty(LONGEST + 1)) if config.recall else None
        """How much likelier than else the token is that followed a repeat of this length."""
        self.surely = Linear(config.d_model, 1) if config.recall else None
        """And how much more here."""

    def draw(self) -> set[nn.Parameter]:
        """First weights of what weighs hints: as they are, and longer repeats more."""
        drawn: set[nn.Parameter] = set()
        for weigh in (self.trust, self.surely):
            if weigh is not None:
                drawn.add(cast(nn.Parameter, weigh.weight))
                weigh.weight.zero_()
        if self.repeats is not None:
            drawn.add(self.repeats)
            longer = torch.arange(LONGEST + 1, dtype=torch.float64) - SHORTEST
            self.repeats.copy_(0.6 + 0.11 * longer.clamp(min=0))
        return drawn

    def logits(self, x_btd: Tensor, hints: Hints | None = None) -> Tensor:
        read_btd = x_btd
        if self.transform is not None:
            x_btd = self.norm(self.activation(self.transform(x_btd)))
        elif self.projection is not None:
            x_btd = x_btd @ self.projection
        logits_btv: Tensor
        if self.more is None:
            logits_btv = self.out(x_btd)
        else:
            width = self.out.in_features
            logits_btv = self.out(x_btd[..., :width]) + self.more(x_btd[..., width:])
        return logits_btv if hints is None else self.hinted(logits_btv, read_btd, hints)

    def hinted(self, logits_btv: Tensor, read_btd: Tensor, hints: Hints) -> Tensor:
        """Logits that take into account what is known already."""
        logits_btv = widen(logits_btv)
        if self.trust is not None and hints.counted is not None:
            weight_bt1 = 1 + widen(self.trust(read_btd))
            logits_btv = torch.addcmul(logits_btv, weight_bt1, hints.counted.to(logits_btv.dtype))
        if self.repeats is not None and self.surely is not None:
            assert hints.expected is not None
            assert hints.length is not None
            more_bt = F.embedding(hints.length, self.repeats[:, None])
            more_bt = (more_bt + widen(self.surely(read_btd))) * (hints.length > 0)[..., None]
            expected_bt1 = hints.expected[..., None]
            logits_btv = logits_btv.scatter_add(-1, expected_bt1, more_bt.to(logits_btv.dtype))
        return logits_btv

    def losses(self, x_nd: Tensor, targets_n: Tensor, hints: Hints | None = None) -> Tensor:
        return cross_entropy(widen(self.logits(x_nd, hints)), targets_n)


class ClusterHead(Head):
    """A short list of frequent words, and one column for each cluster of rarer ones."""

    regular = False

    def __init__(self, config: ModelConfig, words: WordEmbedding) -> None:
        super().__init__()
        self.clusters = config.clusters
        rare = len(self.clusters) - 1
        self.one_table = config.div_val == 1
        if config.tie_weights:
            self.tables: list[Tensor] | nn.ParameterList = words.tables
        elif self.one_table:
            table = nn.Parameter(torch.empty(config.vocab_size, config.embed_width))
            self.tables = nn.ParameterList([table])
        else:
            self.tables = nn.ParameterList(
                [nn.Parameter(torch.empty(c.size, c.width)) for c in self.clusters]
            )
        self.projections = nn.ParameterList()
        if len(words.projections):
            for i, cluster in enumerate(self.clusters):
                tied = config.tie_projections == "all" or (
                    config.tie_projections == "tails" and i > 0
                )
                shared = words.projections[0 if self.one_table else i]
                self.projections.append(
                    shared if tied else nn.Parameter(torch.empty(config.d_model, cluster.width))
                )
        self.bias = nn.Parameter(torch.empty(config.vocab_size)) if config.output_bias else None
        self.cluster_weight = nn.Parameter(torch.empty(rare, config.embed_width))
        self.cluster_bias = nn.Parameter(torch.empty(rare)) if config.output_bias else None
        self.packed: Packed | None = None

    def pack(self, rows: int) -> bool:
        self.packed = pack(self._tables()[0], rows)
        return self.packed is not None

    def _project(self, x_nd: Tensor, i: int) -> Tensor:
        return x_nd @ self.projections[i] if len(self.projections) else x_nd

    def _tables(self) -> list[Tensor]:
        if self.one_table:
            return list(torch.split(self.tables[0], [c.size for c in self.clusters]))
        return list(self.tables)

    def _biases(self) -> list[Tensor | None]:
        if self.bias is None:
            return [None] * len(self.clusters)
        return list(torch.split(self.bias, [c.size for c in self.clusters]))

    def _short_list(
        self, x_nd: Tensor, table: Tensor, bias: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Logits of the frequent words, and of the rare clusters."""
        x_ne = self._project(x_nd, 0)
        if self.packed is not None and self.packed.fits(x_ne, table):
            words_nv = self.packed.linear(x_ne, table, bias)
        else:
            words_nv = linear(x_ne, table, bias)
        return words_nv, linear(x_ne, self.cluster_weight, self.cluster_bias)

    def logits(self, x_btd: Tensor, hints: Hints | None = None) -> Tensor:
        tables, biases = self._tables(), self._biases()
        head_btc = widen(
            torch.cat(self._short_list(x_btd, tables[0], biases[0]), dim=-1)
        ).log_softmax(-1)
        first = self.clusters[0].size
        parts = [head_btc[..., :first]]
        for i in range(1, len(self.clusters)):
            tail_btv = widen(linear(self._project(x_btd, i), tables[i], biases[i]))
            parts.append(tail_btv.log_softmax(-1) + head_btc[..., first + i - 1 : first + i])
        return torch.cat(parts, dim=-1)

    def losses(self, x_nd: Tensor, targets_n: Tensor, hints: Hints | None = None) -> Tensor:
        tables, biases = self._tables(), self._biases()
        short_list = self._short_list(x_nd, tables[0], biases[0])
        words_nv, clusters_nc = (widen(part) for part in short_list)
        # two sums of exponentials instead of one long row: nothing large is copied
        total_n = torch.logaddexp(log_sum_exp(words_nv), torch.logsumexp(clusters_nc, dim=-1))
        frequent_n = targets_n.clamp(max=self.clusters[0].high - 1)
        chosen_n = words_nv.gather(-1, frequent_n[:, None])[:, 0]
        for i, cluster in enumerate(self.clusters[1:], start=1):
            places_s = ((targets_n >= cluster.low) & (targets_n < cluster.high)).nonzero()[:, 0]
            # Training goes on without such a word too: no gradient may be missing in one of
            # several processes and not in another.
            if len(places_s) or torch.is_grad_enabled():
                tail_sv = widen(linear(self._project(x_nd[places_s], i), tables[i], biases[i]))
                inside_s = targets_n[places_s] - cluster.low
                tail_s = -F.cross_entropy(tail_sv, inside_s, reduction="none")
                chosen_n = chosen_n.index_copy(0, places_s, clusters_nc[places_s, i - 1] + tail_s)
        return total_n - chosen_n


def widen(x: Tensor) -> Tensor:
    """Half precision is too coarse to sum a vocabulary of exponentials."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def log_sum_exp(x_nv: Tensor) -> Tensor:
    """The same as torch.logsumexp, through the faster log_softmax."""
    return x_nv[:, 0] - x_nv.log_softmax(dim=-1)[:, 0]


def transform_width(config: ModelConfig) -> int:
    """How wide a masked-word head's transform is."""
    width = config.embed_width
    return max(config.d_model, width) if config.wide_head else width


def make_head(config: ModelConfig, words: WordEmbedding) -> Head | None:
    if config.head == "none":
        return None
    return (ClusterHead if len(config.clusters) > 1 else FlatHead)(config, words)


def pool(
    config: ModelConfig, dense: nn.Module | None, x_btd: Tensor, there: Tensor | None
) -> Tensor:
    """One vector for each text; `there` (batch, time) is true where there is a token."""
    if config.pool == "mean":
        if there is None:
            return x_btd.mean(1)
        weight_bt1 = there[..., None].to(x_btd.dtype)
        return (x_btd * weight_bt1).sum(1) / weight_bt1.sum(1).clamp(min=1)
    first_bd = x_btd[:, 0]
    return first_bd if dense is None else torch.tanh(dense(first_bd))


class LabelHead(nn.Module):
    """What is told of a labelled text, or of each of its tokens."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.out = Linear(config.d_model, config.label_width)
        self.dropout, self.of_tokens = config.label_dropout, config.label_head == "span"

    def forward(self, x_btd: Tensor, pooled_bd: Tensor | None) -> Tensor:
        """Logits of texts, or of tokens, in fp32 or better."""
        read = x_btd if self.of_tokens else pooled_bd
        assert read is not None
        if self.training and self.dropout:
            read = F.dropout(read, self.dropout)
        logits: Tensor = self.out(read)
        return widen(logits)


def head_cost(config: ModelConfig, shape: Shape) -> Cost:
    """What the head adds to the embedding, and the work of its loss or logits."""
    tokens, d = shape.batch * shape.tgt_len, config.d_model
    dense = config.pooler and config.pool == "dense"
    cost = linear_cost(d, d, shape.batch, bias=True) if dense else Cost()
    if config.pair_head != "none":
        cost += linear_cost(d, 2, shape.batch, bias=True)
    if config.label_width:
        rows = tokens if config.label_head == "span" else shape.batch
        cost += linear_cost(d, config.label_width, rows, bias=True)
    if config.head == "none":
        return cost
    if len(config.clusters) > 1:
        return cost + cluster_head_cost(config, tokens)
    if config.head == "masked":
        transformed = transform_width(config)
        cost += linear_cost(d, transformed, tokens, bias=True)
        cost += Cost(norm_parameters(config, transformed))
        more = transformed - config.embed_width
        cost += linear_cost(more, config.vocab_size, tokens, bias=False)
    elif config.embed_width != d:
        project = linear_cost(d, config.embed_width, tokens, bias=False)
        cost += project.shared() if config.tie_projections == "all" else project
    words = linear_cost(config.embed_width, config.vocab_size, tokens, bias=False)
    cost += words.shared() if config.tie_weights else words
    cost += Cost(state_bytes=TOKEN_BYTES * config.sight(config.vocab_size) * shape.batch)
    for _ in filter(None, (config.counts, config.recall)):
        cost += linear_cost(d, 1, tokens, bias=True)
    cost += Cost(LONGEST + 1 if config.recall else 0)
    return cost + Cost(config.vocab_size if config.output_bias else 0)


def cluster_head_cost(config: ModelConfig, tokens: int) -> Cost:
    rare = len(config.clusters) - 1
    bias = config.output_bias
    cost = linear_cost(config.embed_width, rare, tokens, bias=bias)
    cost += Cost(config.vocab_size if bias else 0)
    projected = has_cluster_tables(config) or config.embed_width != config.d_model
    for i, (cluster, share) in enumerate(zip(config.clusters, token_shares(config), strict=True)):
        share = share if i else 1.0  # every token asks the short list
        words = linear_cost(cluster.width, cluster.size, tokens, bias=False, share=share)
        cost += words.shared() if config.tie_weights else words
        if projected:
            tied = config.tie_projections == "all" or (config.tie_projections == "tails" and i > 0)
            project = linear_cost(config.d_model, cluster.width, tokens, bias=False, share=share)
            cost += project.shared() if tied else project
    return cost
