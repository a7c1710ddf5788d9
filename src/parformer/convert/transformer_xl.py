"""Transformer-XL, as Hugging Face kept it."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from parformer.config import ModelConfig
from parformer.convert.checkpoint import Checkpoint, Foreign, whole
from parformer.errors import ConfigError
from parformer.model import Model, build_from


def from_transformer_xl(weights: Mapping[str, Tensor], config: Foreign) -> Model:
    """Transformer-XL (`TransfoXLLMHeadModel`), with its adaptive embedding and head."""
    layers, vocab_size = whole(config, "n_layer"), whole(config, "vocab_size")
    given = config.get("cutoffs", [])
    if not isinstance(given, list | tuple) or not all(type(c) is int for c in given):
        raise ConfigError(f"the configuration needs a list of whole 'cutoffs', got {given!r}")
    cutoffs = [c for c in given if 0 < c < vocab_size]
    if not config.get("proj_share_all_but_first", True):
        raise ConfigError("proj_share_all_but_first=false is not supported")
    if config.get("attn_type", 0):
        raise ConfigError(f"attn_type={config['attn_type']!r} is not supported; only 0 is")
    ours = ModelConfig(
        family="transformer-xl",
        pattern=f"(sf)x{layers}",  # type: ignore[arg-type]
        vocab_size=vocab_size,
        d_model=whole(config, "d_model"),
        n_head=whole(config, "n_head"),
        d_head=whole(config, "d_head"),
        d_inner=whole(config, "d_inner"),
        position_bias="per-layer" if config.get("untie_r", True) else "shared",
        norm="pre" if config.get("pre_lnorm") else "post",
        norm_eps=config.get("layer_norm_epsilon", 1e-5),
        embedding="adaptive",
        d_embed=whole(config, "d_embed"),
        cutoffs=tuple(cutoffs),
        div_val=config.get("div_val", 1),
        tie_weights=config.get("tie_word_embeddings", config.get("tie_weight", True)),
        dropout=config.get("dropout", 0.0),
        dropatt=config.get("dropatt", 0.0),
        mem_len=whole(config, "mem_len"),
        clamp_len=config.get("clamp_len", -1),
        same_length=config.get("same_length", False),
    )
    source = Checkpoint(weights, "transformer.")
    got = transformer_xl_ends(source, ours)
    if ours.position_bias == "shared":
        got["content_bias"] = source.take("r_w_bias").flatten()
        got["position_bias"] = source.take("r_r_bias").flatten()
    for i in range(layers):
        theirs, attend, feed = f"layers.{i}", f"blocks.{2 * i}", f"blocks.{2 * i + 1}"
        got |= source.linear(f"{theirs}.dec_attn.qkv_net", f"{attend}.qkv")
        got |= source.linear(f"{theirs}.dec_attn.o_net", f"{attend}.out")
        got |= source.linear(f"{theirs}.dec_attn.r_net", f"{attend}.distance")
        got |= source.linear(f"{theirs}.dec_attn.layer_norm", f"{attend}.norm")
        if ours.position_bias == "per-layer":
            got[f"{attend}.content_bias"] = source.take(f"{theirs}.dec_attn.r_w_bias").flatten()
            got[f"{attend}.position_bias"] = source.take(f"{theirs}.dec_attn.r_r_bias").flatten()
        else:
            source.tied(f"{theirs}.dec_attn.r_w_bias", "r_w_bias")
            source.tied(f"{theirs}.dec_attn.r_r_bias", "r_r_bias")
        got |= source.linear(f"{theirs}.pos_ff.CoreNet.0", f"{feed}.inner")
        got |= source.linear(f"{theirs}.pos_ff.CoreNet.3", f"{feed}.out")
        got |= source.linear(f"{theirs}.pos_ff.layer_norm", f"{feed}.norm")
    source.refuse_leftovers("inv_freq")
    return build_from(ours, got)


def transformer_xl_ends(source: Checkpoint, ours: ModelConfig) -> dict[str, Tensor]:
    """The adaptive embedding and head."""
    tables = len(ours.clusters) if ours.div_val > 1 else 1
    got: dict[str, Tensor] = {}
    for i in range(tables):
        got[f"embedding.words.tables.{i}"] = source.take(f"word_emb.emb_layers.{i}.weight")
        if ours.tie_weights:
            source.tied(f"crit.out_layers.{i}.weight", f"word_emb.emb_layers.{i}.weight")
        else:
            got[f"head.tables.{i}"] = source.take(f"crit.out_layers.{i}.weight")
        if f"word_emb.emb_projs.{i}" in source:
            got[f"embedding.words.projections.{i}"] = source.take(f"word_emb.emb_projs.{i}")
    if "crit.out_projs.0" in source and "embedding.words.projections.0" in got:
        got["head.projections.0"] = source.take("crit.out_projs.0")
    for i in range(1, len(ours.clusters)):
        source.tied(f"crit.out_projs.{i}", f"word_emb.emb_projs.{i if tables > 1 else 0}")
    biases = [source.take(f"crit.out_layers.{i}.bias") for i in range(tables)]
    got["head.bias"] = torch.cat(biases)
    if ours.cutoffs:
        got["head.cluster_weight"] = source.take("crit.cluster_weight")
        got["head.cluster_bias"] = source.take("crit.cluster_bias")
    return got
