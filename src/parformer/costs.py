"""What does a model cost, before it is built?

Parameters, FLOPs per step and bytes of state, exactly; two FLOPs per multiply-add.

>>> from parformer.config import preset
>>> cost(preset("par-base")).parameters
199840218
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from torch import Tensor

from parformer.blocks.base import BYTES, Cost, Shape
from parformer.blocks.stack import Seen, stack_costs, stack_parameters
from parformer.config import ModelConfig
from parformer.embedding import embedding_cost
from parformer.errors import ConfigError
from parformer.head import head_cost
from parformer.store.files import Json


@dataclass(frozen=True, slots=True)
class Row:
    """A block of the pattern and its price."""

    index: int
    block: str
    cost: Cost


@dataclass(frozen=True, slots=True)
class ModelCost:
    """The price of a model and of its parts."""

    parameters: int
    decoder_parameters: int
    """The stack: blocks, their shared position biases, the final norm."""
    embedding_parameters: int
    """Everything that turns tokens into vectors: tables, projections, positions, types."""
    head_parameters: int
    """What the head does not share with the embedding."""
    flops: int
    """Per step, with the memory projected again: the papers' way."""
    flops_cached: int
    """Per step, with projected keys and values remembered."""
    state_bytes: int
    """With memory full, in fp32."""
    state_bytes_per_token: int
    size: int
    """Bytes of the saved model: weights and constants in fp32, and counts."""
    shape: Shape
    blocks: tuple[Row, ...]
    embedding: Cost
    head: Cost
    encoder: Cost
    """What reading a source takes, once."""

    def to_dict(self) -> Json:
        """Plain values, ready for JSON."""
        values = asdict(self)
        for row in values["blocks"]:
            row |= row.pop("cost")
        return values


def cost(
    config: ModelConfig,
    *,
    tgt_len: int | None = None,
    mem_len: int | None = None,
    batch: int = 1,
    src_len: int | None = None,
) -> ModelCost:
    """Price one step of `tgt_len` new tokens after `mem_len` remembered ones.

    What is left out comes from the configuration. The adaptive head's rare clusters are
    priced for the shares in `embedding.TAIL_SHARES`. A model with an encoder reads `src_len`
    tokens of source in its first step, which is the one that `flops` prices; `flops_cached` is
    that of a later one.
    """
    shape = step_shape(config, tgt_len, mem_len, batch, src_len)
    seen: Seen = {}
    encoder = encoder_cost(config, shape, seen)
    prices = list(stack_costs(config, config.pattern, shape, seen))
    rows = [Row(i, str(s), p) for i, (s, p) in enumerate(zip(config.pattern, prices, strict=True))]
    total = sum(prices, encoder)
    stack = total.parameters + stack_parameters(config)
    words, head = embedding_cost(config, shape), head_cost(config, shape)
    if config.source_vocab:
        words += Cost(embedding_cost(config.source_words, shape).parameters)
    parameters = stack + words.parameters + head.parameters
    return ModelCost(
        parameters=parameters,
        decoder_parameters=stack,
        embedding_parameters=words.parameters,
        head_parameters=head.parameters,
        flops=total.flops + words.flops + head.flops,
        flops_cached=total.flops_cached + words.flops_cached + head.flops_cached,
        state_bytes=total.state_bytes + head.state_bytes,
        state_bytes_per_token=total.state_bytes_per_token,
        size=BYTES * (parameters + total.constants) + config.counts,
        shape=shape,
        blocks=tuple(rows),
        embedding=words,
        head=head,
        encoder=encoder,
    )


def encoder_cost(config: ModelConfig, shape: Shape, seen: Seen) -> Cost:
    """What reading the source takes, once: its embedding and its stack."""
    source = config.source
    if source is None:
        return Cost()
    whole = Shape(shape.batch, shape.source, 0, 0)
    words = embedding_cost(config.source_words, whole).shared()
    blocks = sum(stack_costs(source, source.pattern, whole, seen), words)
    total = blocks + Cost(stack_parameters(source))
    return replace(total, flops_cached=0)


def step_shape(
    config: ModelConfig,
    tgt_len: int | None,
    mem_len: int | None,
    batch: int,
    src_len: int | None = None,
) -> Shape:
    """The step to price or measure, with what is left out taken from the configuration."""
    time = config.step_len if tgt_len is None else tgt_len
    past = (config.mem_len if config.causal else 0) if mem_len is None else mem_len
    if past and not config.causal:
        raise ConfigError(f"a model that sees both sides has no memory, got mem_len {past}")
    if config.numbered and time + past > config.max_len:
        raise ConfigError(
            f"tgt_len {time} and mem_len {past} exceed the window of {config.max_len}; "
            "lower one of them or raise max_len"
        )
    memory = past if config.positions in ("relative", "none") else config.memory
    if config.source is None:
        if src_len:
            raise ConfigError(f"a model without an encoder reads no source, got src_len {src_len}")
        return Shape(batch, time, past, memory)
    source = config.source.step_len if src_len is None else src_len
    return Shape(batch, time, past, memory, source)


def refuse_fewer_weights(config: ModelConfig, weights: Mapping[str, Tensor]) -> None:
    """Refuse a long pattern that these weights cannot be of, before its blocks are made."""
    wanted = cost(config, tgt_len=1, mem_len=0).parameters
    given = sum(weight.numel() for weight in weights.values())
    if len(weights) < len(config.pattern) and given != wanted:
        raise ConfigError(
            f"{len(config.pattern):,} blocks have {wanted:,} parameters, the weights {given:,}"
        )
