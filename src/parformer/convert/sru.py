"""SRU++ stacks of the package sru."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from parformer.blocks.stack import Stack
from parformer.config import ModelConfig
from parformer.convert.checkpoint import Checkpoint, Foreign, whole
from parformer.errors import ConfigError, InputError
from parformer.fields import check_names, need_at_least
from parformer.model import refill

SRU_FIELDS = {
    "d": "width of the stream (hidden_size, and input_size too)",
    "d_attention": "width of attention (proj_size)",
    "layers": "num_layers",
    "attention_every": "attention_every_n_layers",
    "heads": "num_heads, 1 if left out",
    "highway_bias": "where reset gates start; trained weights do not ask",
    "post_layer_norm": "normalize_after of its attention modules, not its own; true if left out",
    "dropout": "0 if left out",
    "attn_dropout": "0 if left out",
    "mem_len": "places that attention remembers, 1,024 if left out",
}
"""What `from_sru` reads of a configuration, and what the package calls it."""


def from_sru(weights: Mapping[str, Tensor], config: Foreign) -> Stack:
    """SRU++ (`SRUpp` of the package sru), which has no embedding and no head.

    `config` names the fields in `SRU_FIELDS`. The stack maps (batch, time, width) and a state
    to outputs and the next state, where sru has time first.
    """
    check_names(config, SRU_FIELDS, "field of an SRUpp configuration")
    layers, every = whole(config, "layers"), whole(config, "attention_every")
    width, inside = whole(config, "d"), whole(config, "d_attention")
    for name in ("layers", "attention_every"):
        need_at_least(name, config[name], 1)
    heads, after = config.get("heads", 1), config.get("post_layer_norm", True)
    source = Checkpoint(weights, "")
    normed = "rnn_lst.0.transform_module.layer_norm.weight" in source
    place = ("post" if after else "pre") if normed else "off"
    recur = "r" if normed else "r[norm=off]"
    attend = f"a[heads={heads},norm={place}]"
    ours = ModelConfig(
        family="sru",
        pattern="".join(  # type: ignore[arg-type]
            recur if (i + 1) % every else attend for i in range(layers)
        ),
        vocab_size=1,
        head="none",
        d_model=width,
        d_attention=inside,
        n_head=1,
        d_inner=width,
        dropout=config.get("dropout", 0.0),
        dropatt=config.get("attn_dropout", 0.0),
        mem_len=config.get("mem_len", 1024),
    )
    got: dict[str, Tensor] = {}
    for i, spec in enumerate(ours.pattern):
        cell, block = f"rnn_lst.{i}", f"blocks.{i}"
        module = f"{cell}.transform_module"
        if f"{cell}.scale_x" in source and bool((source.take(f"{cell}.scale_x") != 1).any()):
            raise ConfigError(f"rescale=true ({cell}.scale_x is not 1) is not supported")
        got[f"{block}.gate_weight"] = source.take(f"{cell}.weight_c")
        got[f"{block}.gate_bias"] = source.take(f"{cell}.bias")
        got |= source.linear(f"{module}.linear1", f"{block}.project")
        if spec.letter == "a":
            got |= source.linear(f"{module}.linear2", f"{block}.key_value")
            got[f"{block}.alpha"] = source.take(f"{module}.alpha")
        if normed:
            got |= source.linear(f"{module}.layer_norm", f"{block}.inner_norm")
        last = "linear3" if spec.letter == "a" else "linear2"
        got[f"{block}.out.weight"] = by_kind(source.take(f"{module}.{last}.weight"), width)
    source.refuse_leftovers()
    with torch.device("meta"):
        outline = Stack(ours)
    return refill(outline, got)


def by_kind(weight: Tensor, width: int) -> Tensor:
    """Rows that sru sorts by channel (candidate, forget, reset, candidate, …), sorted by kind."""
    if weight.shape[0] != 3 * width:
        raise InputError(
            f"an SRU++ layer of width {width} makes {3 * width} numbers of a token, not "
            f"{weight.shape[0]}; is attention_every right, and its input as wide as its output?"
        )
    return weight.view(width, 3, -1).transpose(0, 1).flatten(0, 1)
