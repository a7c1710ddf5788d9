"""What do embedding and head do, as operations of a program?"""

# d width, e embedding width, v vocabulary

from __future__ import annotations

import ctypes
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from parformer.blocks.coded import CodedLinear
from parformer.blocks.linear import plain_weight
from parformer.config import ModelConfig
from parformer.counts.look import compiled
from parformer.counts.prior import Prior
from parformer.counts.recall import LONGEST, SHORTEST
from parformer.counts.table import CHANCES
from parformer.embedding import ClusterTables, Embedding, SingleTable, number_waves
from parformer.head import ClusterHead, FlatHead, Head
from parformer.native.program import CELLS, NOWHERE, RECENT, NoForm, Program, Span, bits
from parformer.native.slots import Cell, Tokens


def write_embedding(
    program: Program, embedding: Embedding, config: ModelConfig
) -> tuple[Span, Cell | None]:
    """Vectors of the tokens, and where tokens without a position are counted, if there are any."""
    words = embedding.words
    if isinstance(words, ClusterTables):
        return place(program, embedding, config, look_up_clusters(program, words))
    assert isinstance(words, SingleTable)
    if words.trigrams != "none":
        raise NoForm("trigrams read the next token")
    if words.coded is not None:
        x, table = program.take(words.coded.in_features), program.coded(words.coded)
    else:
        x, table = program.take(words.tables[0].shape[1]), program.matrix(words.tables[0])
    program.add("look_up", *x.words, table, 0, 0, *NOWHERE)
    if embedding.projects_last:
        x, pads = place(program, embedding, config, x)
        return project(program, words, x), pads
    return place(program, embedding, config, project(program, words, x))


def project(program: Program, words: SingleTable, x: Span) -> Span:
    if not len(words.projections):
        return x
    wide = program.map(program.matrix(words.projections[0], words.bias), x)
    program.give(x)
    return wide


def look_up_clusters(program: Program, words: ClusterTables) -> Span:
    x = program.take(words.width)
    narrow = program.take(max(cluster.width for cluster in words.clusters))
    edges: list[int] = []
    parts = zip(words.clusters, words.tables, words.projections, strict=True)
    for cluster, table, projection in parts:
        edges += [cluster.low, cluster.high, program.matrix(table), program.matrix(projection)]
    where = program.pointers(edges)
    program.add("look_up", *x.words, 0, len(words.clusters), where, *narrow.words)
    program.give(narrow)
    return x


def place(
    program: Program, embedding: Embedding, config: ModelConfig, x: Span
) -> tuple[Span, Cell | None]:
    """With positions and token types, normed."""
    positions, pad, pads = 0, -1, None
    if embedding.positions is not None:
        positions = program.address(embedding.positions, config.max_len, x.width)
    elif embedding.sinusoids:
        waves = number_waves(config.max_len, embedding.sinusoids, torch.empty(1, x.width))
        positions = program.address(waves, config.max_len, x.width)
        if config.pad >= 0:
            pad, pads = config.pad, Cell(program.state(CELLS, 1), 1)
    kind = 0 if embedding.types is None else program.address(embedding.types[0], x.width)
    if embedding.scale != 1.0 or positions or kind:
        number = 0 if pads is None else pads.number
        scale = bits(embedding.scale)
        program.add("place", *x.words, x.width, scale, positions, kind, pad, number)
    if embedding.norm is not None:
        program.norm(embedding.norm, x, out=x)
    return x, pads


def write_head(
    program: Program, head: Head | None, prior: Prior | None, x: Span, config: ModelConfig
) -> tuple[Span, Tokens | None]:
    """Logits of the last token of each text, and which tokens counts and recall look at."""
    last = program.take(x.width)
    program.add("last", *x.words, *last.words, x.width)
    logits = program.take(config.vocab_size, program.batch)
    if isinstance(head, FlatHead) and head.transform is None:
        write_flat(program, head, last, logits)
        hints = None
        if prior is not None:
            hints = write_hints(program, head, prior, last, logits)
        return logits, hints
    if isinstance(head, ClusterHead):
        write_clusters(program, head, last, logits)
        return logits, None
    raise NoForm(f"{type(head).__name__} writes nothing token by token")


def write_flat(program: Program, head: FlatHead, x: Span, logits: Span) -> None:
    if head.projection is not None:
        x = program.map(program.matrix(turned(head.projection)), x)
    program.linear(head.out, x, out=logits)


def turned(projection: Tensor) -> Tensor:
    """A matrix whose rows are the columns of this one."""
    return projection.detach().mT.contiguous()


def write_clusters(program: Program, head: ClusterHead, x: Span, logits: Span) -> None:
    tables, biases = head._tables(), head._biases()
    columns = program.take(len(head.clusters) - 1, program.batch)
    first, projected = 0, x
    for i, (table, bias) in enumerate(zip(tables, biases, strict=True)):
        if len(head.projections):
            projected = program.map(program.matrix(turned(head.projections[i])), x)
        out = logits.part(first, len(table))
        program.map(program.matrix(table, bias), projected, out=out)
        if i == 0:
            weight = program.matrix(head.cluster_weight, head.cluster_bias)
            program.map(weight, projected, out=columns)
        first += len(table)
    sizes = program.pointers([cluster.size for cluster in head.clusters])
    program.add("clusters", *logits.words, *columns.words, columns.width, sizes)


def write_hints(program: Program, head: FlatHead, prior: Prior, x: Span, logits: Span) -> Tokens:
    """What counts and repeats say is added to the logits."""
    readers = compiled()
    if readers is None:
        raise NoForm("counts are looked up in numpy here")
    slot = Tokens(program.state(RECENT, prior.sight), prior.sight)
    room = program.take(logits.width, 1)
    look, tables, plans, trust = 0, 0, 0, 0
    if prior.table is not None and head.trust is not None:
        trust = weigher(program, head.trust, x.width)
        found = prior.readable(prior.table)
        if found.layout is not None:
            look = address_of(readers.look)
            program.kept += [torch.from_numpy(found.table), torch.from_numpy(found.addresses)]
            tables = program.pointers([found.table.ctypes.data])
            plans = program.pointers([found.addresses.ctypes.data])
    gains, surely = 0, 0
    if head.repeats is not None and head.surely is not None:
        gains = program.address(head.repeats, LONGEST + 1)
        surely = weigher(program, head.surely, x.width)
    chances = program.address(torch.from_numpy(np.array(CHANCES)), len(CHANCES))
    program.add(
        *("hints", *x.words, *logits.words, *room.words, x.width, logits.width, slot.number),
        *(look, tables, plans, chances, trust, address_of(readers.repeats)),
        *(prior.recall, SHORTEST, LONGEST, gains, surely),
    )
    return slot


def weigher(program: Program, weigh: nn.Module, width: int) -> int:
    """The weights of a map to one number, and its bias behind them."""
    if not isinstance(weigh, CodedLinear) and plain_weight(weigh) is None:
        raise NoForm("what weighs counts is no plain linear map")
    weight, bias = cast(Tensor, weigh.weight), cast(Tensor, weigh.bias)
    return program.address(torch.cat((weight[0].detach(), bias.detach())), width + 1)


def address_of(function: object) -> int:
    found = ctypes.cast(function, ctypes.c_void_p).value  # type: ignore[arg-type]
    assert found is not None
    return found
