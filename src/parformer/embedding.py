"""How do tokens become vectors? Three embeddings: plain, adaptive, factorized."""

# b batch, t time, d width, e embedding width, s selected tokens

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parformer.blocks.base import Cost, Shape, linear_cost, make_norm, norm_parameters
from parformer.blocks.coded import CodedLinear
from parformer.config import ModelConfig
from parformer.errors import InputError

IGNORE = -100
"""A target that does not count."""

TAIL_SHARES = (1 / 32, 1 / 32, 1 / 512)
"""Shares of tokens that costs assume in the first, second and any further rare cluster of an
adaptive vocabulary; the true ones depend on the text."""


class WordEmbedding(nn.Module):
    """Tokens to vectors of the model's width."""

    tables: nn.ParameterList
    projections: nn.ParameterList
    """Each (d, e): from the table's width to the model's."""


class SingleTable(WordEmbedding):
    """One table, and a projection where it is narrower than the model or reads neighbours."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.tables = nn.ParameterList(
            [nn.Parameter(torch.empty(config.vocab_size, config.embed_width))]
        )
        self.coded: CodedLinear | None = None
        """The table in few bits, where it is kept so; `tables` is empty then."""
        self.shown: Callable[[Tensor], Tensor] | None = None
        """What is seen in its place, as a `Linear` has it."""
        self.projections = nn.ParameterList()
        self.trigrams, self.pad = config.trigrams, config.pad
        projected = projected_width(config)
        if projected:
            self.projections.append(nn.Parameter(torch.empty(config.d_model, projected)))
        self.bias = (
            nn.Parameter(torch.empty(config.d_model))
            if config.projection_bias and projected
            else None
        )

    def forward(self, tokens_bt: Tensor, padding_bt: Tensor | None = None) -> Tensor:
        return self.project(self.look_up(tokens_bt, padding_bt))

    def look_up(self, tokens_bt: Tensor, padding_bt: Tensor | None = None) -> Tensor:
        """Rows of the table; with neighbours the next one, this one and the previous one."""
        if self.coded is not None:
            x_bte = self.coded.rows(tokens_bt)
        else:
            table = self.tables[0] if self.shown is None else self.shown(self.tables[0])
            x_bte = torch.embedding(table, tokens_bt, self.pad)
        if self.trigrams == "none":
            return x_bte
        if self.trigrams == "tokens" and padding_bt is not None:
            x_bte = x_bte * padding_bt[..., None]
        next_bte, last_bte = F.pad(x_bte[:, 1:], (0, 0, 0, 1)), F.pad(x_bte[:, :-1], (0, 0, 1, 0))
        return torch.cat((next_bte, x_bte, last_bte), dim=-1)

    def project(self, x_bte: Tensor) -> Tensor:
        """Vectors of the model's width."""
        if not len(self.projections):
            return x_bte
        return F.linear(x_bte, self.projections[0], self.bias)


def projected_width(config: ModelConfig) -> int:
    """What a single table's projection reads; 0 where there is none."""
    if config.trigrams != "none":
        return 3 * config.embed_width
    return config.embed_width if config.embed_width != config.d_model else 0


class ClusterTables(WordEmbedding):
    """Each cluster of the vocabulary has its own table and projection; rare words are narrow."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.clusters = config.clusters
        self.width = config.d_model
        self.tables = nn.ParameterList(
            [nn.Parameter(torch.empty(c.size, c.width)) for c in self.clusters]
        )
        self.projections = nn.ParameterList(
            [nn.Parameter(torch.empty(config.d_model, c.width)) for c in self.clusters]
        )

    def forward(self, tokens_bt: Tensor) -> Tensor:
        if torch.compiler.is_exporting():
            return self.everywhere(tokens_bt)
        flat_n = tokens_bt.flatten()
        x_nd = self.tables[0].new_zeros(flat_n.shape[0], self.width)
        for cluster, table, projection in zip(
            self.clusters, self.tables, self.projections, strict=True
        ):
            places_s = ((flat_n >= cluster.low) & (flat_n < cluster.high)).nonzero()[:, 0]
            rows_se = F.embedding(flat_n[places_s] - cluster.low, table)
            x_nd = x_nd.index_copy(0, places_s, F.linear(rows_se, projection))
        return torch.unflatten(x_nd, 0, tokens_bt.shape)

    def everywhere(self, tokens_bt: Tensor) -> Tensor:
        """The same with every cluster looked up for every token: no shape depends on the text."""
        x_btd: Tensor | None = None
        for cluster, table, projection in zip(
            self.clusters, self.tables, self.projections, strict=True
        ):
            inside_bt = (tokens_bt >= cluster.low) & (tokens_bt < cluster.high)
            rows_bte = F.embedding((tokens_bt - cluster.low).clamp(0, cluster.size - 1), table)
            own_btd = F.linear(rows_bte, projection) * inside_bt[..., None]
            x_btd = own_btd if x_btd is None else x_btd + own_btd
        assert x_btd is not None
        return x_btd


class Embedding(nn.Module):
    """Words, and where the family has them positions, token types and a norm."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.words: WordEmbedding = (
            ClusterTables(config) if has_cluster_tables(config) else SingleTable(config)
        )
        self.scale = math.sqrt(config.d_model) if config.scale_embedding else 1.0
        self.dropout = config.dropout
        self.projects_last = config.narrow_positions
        width = added_width(config)
        self.positions = (
            nn.Parameter(torch.empty(config.max_len, width))
            if config.positions == "learned"
            else None
        )
        self.types = (
            nn.Parameter(torch.empty(config.token_types, width)) if config.token_types else None
        )
        self.sinusoids = config.positions if config.sinusoidal else ""
        self._waves: Tensor | None = None
        self.norm = make_norm(config, width) if config.embedding_norm else None

    def forward(
        self,
        tokens_bt: Tensor,
        types_bt: Tensor | None,
        position: int,
        padding_bt: Tensor | None = None,
        there_bn: Tensor | None = None,
    ) -> Tensor:
        """Vectors of tokens after `position` others.

        `there_bn` says of those others and of these which are tokens, where some are not: only
        they are counted in sinusoidal positions.
        """
        words, places = self.words, (types_bt, position, there_bn)
        if isinstance(words, SingleTable) and self.projects_last:
            x_bte = self._placed(words.look_up(tokens_bt, padding_bt), *places)
            return words.project(x_bte)
        if isinstance(words, SingleTable):
            return self._placed(words(tokens_bt, padding_bt), *places)
        return self._placed(words(tokens_bt), *places)

    def _placed(
        self, x_btd: Tensor, types_bt: Tensor | None, position: int, there_bn: Tensor | None
    ) -> Tensor:
        """With positions and token types, normed."""
        if self.scale != 1.0:
            x_btd = x_btd * self.scale
        if self.positions is not None and there_bn is None:
            x_btd = x_btd + self.positions[position : position + x_btd.shape[1]]
        elif self.positions is not None and there_bn is not None:
            number_bt = numbers_of(there_bn, x_btd.shape[1])
            x_btd = x_btd + F.embedding(number_bt, self.positions)
        if self.sinusoids:
            x_btd = x_btd + self.places(x_btd.shape[1], position, there_bn, x_btd)
        if self.types is not None:
            row = self.types[0] if types_bt is None else F.embedding(types_bt, self.types)
            x_btd = x_btd + row
        if self.norm is not None:
            x_btd = self.norm(x_btd)
        return F.dropout(x_btd, self.dropout) if self.training and self.dropout else x_btd

    def places(self, time: int, position: int, there_bn: Tensor | None, like: Tensor) -> Tensor:
        """Vectors of these places, zeros where there is no token."""
        if there_bn is None:
            return self.waves(position + time, like)[position : position + time]
        known_nd = self.waves(there_bn.shape[1], like)
        there_bt1 = there_bn[:, -time:, None]
        return F.embedding(numbers_of(there_bn, time), known_nd) * there_bt1

    def waves(self, count: int, like: Tensor) -> Tensor:
        """Rows of the first `count` numbers or more, made once."""
        known_nd = self._waves
        if known_nd is None or len(known_nd) < count or not alike(known_nd, like):
            with torch.inference_mode(False):  # training may need them after an evaluation
                known_nd = number_waves(max(count, 64), self.sinusoids, like)
            if not torch.compiler.is_compiling():  # what a graph makes belongs to the graph
                self._waves = known_nd
        return known_nd


def numbers_of(there_bn: Tensor, time: int) -> Tensor:
    """What the last tokens are numbered, where only those that are there count."""
    return (there_bn.long().cumsum(1) - 1)[:, -time:].clamp(min=0)


def alike(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and one.device == other.device


def there_of(
    config: ModelConfig, window: Tensor, present: Tensor | None, *, ragged: bool = False
) -> Tensor | None:
    """Which tokens of a window are counted by sinusoidal positions; None if all are.

    So do learned ones where the rows are `ragged`: where each began when it did.
    """
    pads = config.sinusoidal and config.pad >= 0
    if not (config.sinusoidal or ragged) or (not pads and present is None):
        return None
    there = window != config.pad if pads else torch.ones_like(window, dtype=torch.bool)
    return there if present is None else there & present[:, -window.shape[1] :]


FAIRSEQ_FIRST = 2
"""What fairseq numbers the first token: one more than its pad, which is 1."""


def number_waves(count: int, kind: str, like: Tensor) -> Tensor:
    """Sines and cosines for the first `count` tokens, at falling rates.

    Vaswani et al. stop one step before the rate of 1/10,000, which fairseq reaches.
    """
    halves, width = kind == "sinusoidal-halves", like.shape[-1]
    first = FAIRSEQ_FIRST if halves else 0
    place_n = torch.arange(first, first + count, device=like.device, dtype=torch.float64)
    step_k = torch.arange(width // 2, device=like.device, dtype=torch.float64)
    steps = max(1, width // 2 - 1) if halves else width // 2
    angle_nk = torch.outer(place_n, torch.exp(-step_k * (math.log(10_000) / steps)))
    waves = (angle_nk.sin(), angle_nk.cos())
    both_nd = torch.cat(waves, -1) if halves else torch.stack(waves, -1).flatten(1)
    return both_nd.to(like.dtype)


def added_width(config: ModelConfig) -> int:
    """Width of positions, token types and their norm."""
    return config.embed_width if config.narrow_positions else config.d_model


def has_cluster_tables(config: ModelConfig) -> bool:
    return config.div_val > 1 and len(config.clusters) > 1


def embedding_cost(config: ModelConfig, shape: Shape) -> Cost:
    """Tables, projections, positions, types and norm of the input side."""
    tokens = shape.batch * shape.tgt_len
    parameters = sum(cluster.size * cluster.width for cluster in config.clusters)
    if not has_cluster_tables(config):
        parameters = config.vocab_size * config.embed_width
    if config.positions == "learned":
        parameters += config.max_len * added_width(config)
    parameters += config.token_types * added_width(config)
    if config.embedding_norm:
        parameters += norm_parameters(config, added_width(config))
    cost = Cost(parameters)
    if has_cluster_tables(config):
        for cluster, share in zip(config.clusters, token_shares(config), strict=True):
            cost += linear_cost(cluster.width, config.d_model, tokens, bias=False, share=share)
    elif projected := projected_width(config):
        cost += linear_cost(projected, config.d_model, tokens, bias=config.projection_bias)
    return cost


def token_shares(config: ModelConfig) -> list[float]:
    """The share of tokens that falls into each cluster, as costs assume it."""
    rare = [TAIL_SHARES[min(i, 2)] for i in range(len(config.clusters) - 1)]
    return [1 - sum(rare), *rare]


def check_tokens(tokens: Tensor, size: int, what: str) -> None:
    """Refuse what is no (batch, time) of whole numbers below `size`."""
    if tokens.dim() != 2 or tokens.dtype not in (torch.int64, torch.int32):
        raise InputError(
            f"{what} must be whole numbers (int64 or int32) of shape (batch, time), "
            f"got {tokens.dtype} of shape {tuple(tokens.shape)}"
        )
    if tokens.numel() == 0:
        raise InputError(f"{what} are empty, shape {tuple(tokens.shape)}; give at least one")
    if torch.compiler.is_compiling() or tokens.device.type != "cpu":
        return  # looking would stop the graph or the device
    if tokens.numel() == 1:
        low = high = int(tokens.item())
    else:
        low, high = (int(value) for value in torch.aminmax(tokens))
    if low < 0 or high >= size:
        bad = low if low < 0 else high
        raise InputError(f"{what} hold {bad}, outside 0 … {size - 1}; is it another vocabulary?")
