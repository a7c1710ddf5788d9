"""What does attention look at?

A text is read once, and every block that attends tells its weights, head by head.

>>> from parformer.config import preset
>>> from parformer.model import build
>>> model = build(preset("pocket", pattern="(sf)x2"))
>>> seen = look(model, torch.arange(9)[None], near=1)
>>> [(one.place, one.block, len(one.heads)) for one in seen]
[('0', 's', 4), ('2', 's', 4)]
"""

# h heads, t time, n keys

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import parformer
from parformer.blocks.attention import SelfAttention
from parformer.blocks.base import Block
from parformer.blocks.cross_attention import CrossAttention
from parformer.blocks.groups import placed
from parformer.blocks.places import make_mask
from parformer.blocks.sru_attention import SRUAttention
from parformer.blocks.synthesizer import Synthesizer
from parformer.blocks.synthetic import Table
from parformer.blocks.taps import Taps
from parformer.config import ModelConfig
from parformer.data.tokenizers import Tokenizer
from parformer.errors import ConfigError, InputError
from parformer.fields import need_at_least
from parformer.measure.device import find_device
from parformer.model import Model, load
from parformer.pattern import BlockSpec
from parformer.records import Record
from parformer.train.run import open_run
from parformer.verbs import requested

MOST = 256
"""Tokens that can be drawn beside each other."""
PLACES = 128
"""Places of a learned table that are shown."""
FULL = 255
"""What stands for all of the weight in a map."""


@dataclass(frozen=True, kw_only=True)
class AttentionRequest:
    """A trained model, and a text to see its attention on."""

    model: Path
    """Folder of a run or of a model."""
    text: str
    """What it reads."""
    source: str = ""
    """What its encoder reads, if it has one."""
    near: int = 3
    """Tokens on each side that count as near."""
    device: str = "auto"
    """Such as cpu or cuda:0."""

    def __post_init__(self) -> None:
        need_at_least("near", self.near, 0)


@dataclass(frozen=True, slots=True)
class Head(Record):
    """Where one head's weight lies, on average over all tokens."""

    map: str = field(repr=False)
    """A byte for every token and key, row by row, in base64; 255 is all of a token's weight."""
    near: float | None
    """The share within so many tokens on each side; none over a source, which has its own order."""
    itself: float | None
    first: float
    """The share on the first key, where weight goes that nobody needs."""


@dataclass(frozen=True, slots=True)
class Looks(Record):
    """A block that attends, or a table that it has learned."""

    place: str
    """In the stack, as taps name it."""
    block: str
    rows: int
    columns: int
    keys: str
    """What the columns are: `text`, `source`, or `places` of a learned table."""
    heads: tuple[Head, ...]
    even: float | None
    """The share near a token if weight were spread evenly over all that it sees."""
    shares: Mapping[str, float] = field(default_factory=dict)
    """Learned weights of what the block adds up: those of a sum, or `alpha` of SRU++."""

    @property
    def near(self) -> float | None:
        return mean([head.near for head in self.heads])

    @property
    def itself(self) -> float | None:
        return mean([head.itself for head in self.heads])

    @property
    def first(self) -> float:
        return sum(head.first for head in self.heads) / len(self.heads)


@dataclass(frozen=True, kw_only=True)
class AttentionResult(Record):
    """What the blocks of a model look at in a text."""

    model: str
    pattern: str
    tokens: tuple[str, ...]
    source: tuple[str, ...]
    near: int
    blocks: tuple[Looks, ...]
    """Every block that attends, in the order that they run."""
    tables: tuple[Looks, ...]
    """What Synthesizers have learned for places, whatever the text."""
    command: str = ""
    date: str = ""
    version: str = ""


def attention(
    request: AttentionRequest | None = None, *, command: str = "", **given: Any
) -> AttentionResult:
    """What a trained model attends to while it reads a text."""
    asked = requested(AttentionRequest, request, given)
    opened = open_run(Path(asked.model))
    tokenizer = opened.need_tokenizer()
    model = load(opened.folder, device=find_device(asked.device))
    return see(model, tokenizer, asked, command)


def see(
    model: Model, tokenizer: Tokenizer, asked: AttentionRequest, command: str = ""
) -> AttentionResult:
    """The same of a model that is at hand."""
    if not attends(model):
        raise ConfigError(
            f"no block of {str(model.config.pattern)!r} attends, so there is nothing to show; "
            "take a model with s, c, a, l or y"
        )
    if bool(asked.source) != (model.encoder is not None):
        has = "has an encoder, which needs a source to read" if model.encoder else "has no encoder"
        raise ConfigError(f"this model {has}; {'give' if model.encoder else 'leave out'} --source")
    limit = most_tokens(model.config)
    tokens = encoded(tokenizer, asked.text, "text", limit)
    source = encoded(tokenizer, asked.source, "source", limit) if asked.source else []
    device = next(model.parameters()).device
    given_bs = torch.tensor([source], device=device) if source else None
    return AttentionResult(
        model=str(asked.model),
        pattern=str(model.config.pattern),
        tokens=pieces(tokenizer, tokens),
        source=pieces(tokenizer, source),
        near=asked.near,
        blocks=look(model, torch.tensor([tokens], device=device), given_bs, near=asked.near),
        tables=tuple(tables_of(model, asked.near)),
        command=command,
        date=datetime.now(UTC).strftime("%Y-%m-%d"),
        version=parformer.__version__,
    )


def attends(model: Model) -> bool:
    """Whether anything in a model does."""
    kinds = (SelfAttention, CrossAttention, SRUAttention, Synthesizer)  # LSRA has the first inside
    return any(isinstance(module, kinds) for module in model.modules())


def most_tokens(config: ModelConfig) -> int:
    """How long a text may be: within the window, and such that it can be drawn."""
    return min(MOST, config.max_len or MOST)


def encoded(tokenizer: Tokenizer, text: str, what: str, limit: int) -> list[int]:
    tokens = tokenizer.encode(text)
    if not tokens:
        raise InputError(f"the {what} is empty; give some words to look at")
    if len(tokens) > limit:
        raise InputError(
            f"the {what} has {len(tokens):,} tokens, and at most {limit} can be read and drawn at "
            "once; give a shorter one"
        )
    return tokens


def pieces(tokenizer: Tokenizer, tokens: Sequence[int]) -> tuple[str, ...]:
    """What each token stands for."""
    return tuple(tokenizer.decode([token]) for token in tokens)


@torch.no_grad()
def look(
    model: Model, tokens_bt: Tensor, source_bs: Tensor | None = None, *, near: int = 3
) -> tuple[Looks, ...]:
    """What every block that attends looks at in a text (one row), in the order that they run."""
    taps, training = Taps("weights"), model.training
    model.eval()
    try:
        model(tokens_bt, source=source_bs, taps=taps)
    finally:
        model.train(training)
    known = {place: (spec, block) for place, spec, block in every_block(model)}
    found = []
    for place, weights_bhtn in taps.having("weights").items():
        # several branches of one block that attend have places inside of its own
        spec, block = known[place] if place in known else known[place.rpartition(".")[0]]
        keys = "source" if isinstance(block, CrossAttention) else "text"
        found.append(looks(place, spec, block, weights_bhtn[0].float().cpu(), keys, near))
    return tuple(found)


def every_block(model: Model) -> Iterator[tuple[str, BlockSpec, Block]]:
    """Blocks of the encoder first, as they run."""
    if model.encoder is not None:
        yield from placed(model.encoder, "encoder.")
    yield from placed(model)


def looks(
    place: str, spec: BlockSpec, block: Block, weights_htn: Tensor, keys: str, near: int
) -> Looks:
    """What a block's weights say."""
    _, time, count = weights_htn.shape
    within = keys != "source"
    # a text without memory: queries and keys are the same tokens
    distance_tn = (torch.arange(time)[:, None] - torch.arange(count)[None]).abs()
    heads = []
    for weights_tn in weights_htn:
        mean_n = weights_tn.mean(0)
        heads.append(
            Head(
                map=packed(weights_tn),
                near=share(weights_tn, distance_tn <= near) if within else None,
                itself=share(weights_tn, distance_tn == 0) if within else None,
                first=round(float(mean_n[0]), 4),
            )
        )
    even = None
    if within:
        seen_tn = visible(block, weights_htn).float()
        even = share(seen_tn / seen_tn.sum(-1, keepdim=True), distance_tn <= near)
    shares = shares_of(block)
    return Looks(place, str(spec), time, count, keys, tuple(heads), even, shares)


def visible(block: Block, weights_htn: Tensor) -> Tensor:
    """What each token may look at, whether or not it does; weights can be too small to be any."""
    seen_tn = torch.ones(weights_htn.shape[1:], dtype=torch.bool)
    if not weights_htn.triu(1).any():
        seen_tn = seen_tn.tril()
    if isinstance(block, Synthesizer):
        window_n = torch.arange(len(seen_tn)) // block.sizes.length
        seen_tn = seen_tn & (window_n[:, None] == window_n)
    return seen_tn


def share(weights_tn: Tensor, there_tn: Tensor) -> float:
    """The part of all weight that lies there."""
    return round(float((weights_tn * there_tn).sum() / len(weights_tn)), 4)


def packed(weights_tn: Tensor) -> str:
    """A byte for each weight, as text."""
    whole = (weights_tn * FULL).round().clamp(0, FULL).to(torch.uint8)
    return b64encode(whole.contiguous().numpy().tobytes()).decode()


def shares_of(block: Block) -> dict[str, float]:
    """How much of each part a block takes, where it has learned that."""
    if isinstance(block, SRUAttention):
        return {"alpha": round(float(block.alpha.detach()), 4)}
    if isinstance(block, Synthesizer) and block.alpha is not None:
        parts = torch.softmax(torch.cat((block.alpha, block.alpha.new_zeros(1))).detach(), dim=0)
        return {k: round(float(p), 4) for k, p in zip(block.sizes.kinds, parts, strict=True)}
    return {}


@torch.no_grad()
def tables_of(model: Model, near: int = 3) -> Iterator[Looks]:
    """The tables of Synthesizers as weights, were they alone; the first places of each."""
    for place, spec, block in every_block(model):
        if not isinstance(block, Synthesizer):
            continue
        for kind, part in block.scores.items():
            if isinstance(part, Table):
                count = min(block.sizes.length, PLACES)
                scores_hnn = part.matrix(0, count, 0, count).float().cpu()
                causal = block.causal
                mask = make_mask(count, count, scores_hnn, causal=causal, reach=0, padding=None)
                weights_hnn = torch.softmax(scores_hnn + (0 if mask is None else mask), dim=-1)
                found = looks(place, spec, block, weights_hnn, "places", near)
                yield Looks(
                    place, f"{kind} of {spec}", count, count, "places", found.heads, found.even
                )


def mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None
