"""What does a model cost, before it is built?

Parameters, FLOPs per step and bytes of state, exactly; two FLOPs per multiply-add.

>>> from parformer.config import preset
>>> cost(preset("par-base")).parameters
199840218
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from parformer.blocks.base import Cost, Shape, find_block, norm_parameters
from parformer.config import ModelConfig
from parformer.embedding import embedding_cost, head_cost
from parformer.errors import ConfigError


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
    shape: Shape
    blocks: tuple[Row, ...]
    embedding: Cost
    head: Cost

    def to_dict(self) -> dict[str, Any]:
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
) -> ModelCost:
    """Price one step of `tgt_len` new tokens after `mem_len` remembered ones.

    What is left out comes from the configuration. The adaptive head's rare clusters are
    priced for the shares in `embedding.TAIL_SHARES`.
    """
    shape = step_shape(config, tgt_len, mem_len, batch)
    priced: dict[object, Cost] = {}
    rows = []
    total = Cost()
    for index, spec in enumerate(config.pattern):
        if spec not in priced:
            priced[spec] = find_block(spec).cost(config, spec.options, shape)
        rows.append(Row(index, str(spec), priced[spec]))
        total += priced[spec]
    stack = total.parameters
    if config.positions == "relative" and config.position_bias == "shared":
        stack += 2 * config.n_head * config.head_width(config.n_head)
    if config.final_norm:
        stack += norm_parameters(config)
    words, head = embedding_cost(config, shape), head_cost(config, shape)
    return ModelCost(
        parameters=stack + words.parameters + head.parameters,
        decoder_parameters=stack,
        embedding_parameters=words.parameters,
        head_parameters=head.parameters,
        flops=total.flops + words.flops + head.flops,
        flops_cached=total.flops_cached + words.flops_cached + head.flops_cached,
        state_bytes=total.state_bytes,
        state_bytes_per_token=total.state_bytes_per_token,
        shape=shape,
        blocks=tuple(rows),
        embedding=words,
        head=head,
    )


def step_shape(config: ModelConfig, tgt_len: int | None, mem_len: int | None, batch: int) -> Shape:
    """The step to price or measure, with what is left out taken from the configuration."""
    time = config.step_len if tgt_len is None else tgt_len
    past = (config.mem_len if config.causal else 0) if mem_len is None else mem_len
    if past and not config.causal:
        raise ConfigError(f"a model that sees both sides has no memory, got mem_len {past}")
    if config.positions == "learned" and time + past > config.max_len:
        raise ConfigError(
            f"tgt_len {time} and mem_len {past} exceed the window of {config.max_len}; "
            "lower one of them or raise max_len"
        )
    memory = past if config.positions in ("relative", "none") else config.memory
    return Shape(batch, time, past, memory)
