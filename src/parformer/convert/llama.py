"""Llama, as Hugging Face keeps it."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from parformer.config import ModelConfig
from parformer.convert.checkpoint import Checkpoint, Foreign, activation, whole
from parformer.errors import ConfigError
from parformer.model import Model, build_from


def from_llama(weights: Mapping[str, Tensor], config: Foreign) -> Model:
    """Llama (`LlamaForCausalLM`), with plain rotary positions."""
    layers, heads = whole(config, "num_hidden_layers"), whole(config, "num_attention_heads")
    rotary: Foreign = config.get("rope_parameters") or {}
    if config.get("rope_scaling") or rotary.get("rope_type", "default") != "default":
        scaling = config.get("rope_scaling") or rotary
        raise ConfigError(f"rotary scaling {scaling!r} is not supported; only plain positions are")
    ours = ModelConfig(
        family="llama",
        pattern=f"(sf)x{layers}",  # type: ignore[arg-type]
        vocab_size=whole(config, "vocab_size"),
        d_model=whole(config, "hidden_size"),
        n_head=heads,
        d_head=config.get("head_dim") or 0,
        n_kv_head=config.get("num_key_value_heads") or heads,
        d_inner=whole(config, "intermediate_size"),
        max_len=whole(config, "max_position_embeddings"),
        rotary_base=rotary.get("rope_theta", config.get("rope_theta", 10_000.0)),
        activation=activation(config.get("hidden_act", "silu")),
        attention_bias=config.get("attention_bias", False),
        feed_forward_bias=config.get("mlp_bias", False),
        norm_eps=config.get("rms_norm_eps", 1e-6),
        tie_weights=config.get("tie_word_embeddings", False),
        dropatt=config.get("attention_dropout", 0.0),
    )
    source = Checkpoint(weights, "model.")
    got = {"embedding.words.tables.0": source.take("embed_tokens.weight")}
    if ours.tie_weights:
        source.tied("lm_head.weight", "embed_tokens.weight")
    else:
        got["head.weight"] = source.take("lm_head.weight")
    for i in range(layers):
        theirs, attend, feed = f"layers.{i}", f"blocks.{2 * i}", f"blocks.{2 * i + 1}"
        parts = [f"{theirs}.self_attn.{name}_proj" for name in "qkv"]
        got |= source.joined(parts, f"{attend}.qkv")
        got |= source.linear(f"{theirs}.self_attn.o_proj", f"{attend}.out")
        got |= source.linear(f"{theirs}.input_layernorm", f"{attend}.norm")
        parts = [f"{theirs}.mlp.gate_proj", f"{theirs}.mlp.up_proj"]
        got |= source.joined(parts, f"{feed}.inner")
        got |= source.linear(f"{theirs}.mlp.down_proj", f"{feed}.out")
        got |= source.linear(f"{theirs}.post_attention_layernorm", f"{feed}.norm")
    got |= source.linear("norm", "final_norm")
    source.refuse_leftovers("inv_freq")
    return build_from(ours, got)
