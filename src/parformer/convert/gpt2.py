"""GPT-2, as Hugging Face keeps it."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from parformer.config import ModelConfig
from parformer.convert.checkpoint import Checkpoint, Foreign, activation, whole
from parformer.errors import ConfigError
from parformer.model import Model, build_from


def from_gpt2(weights: Mapping[str, Tensor], config: Foreign) -> Model:
    """GPT-2 (`GPT2LMHeadModel` or `GPT2Model`)."""
    layers, width = whole(config, "n_layer"), whole(config, "n_embd")
    for flag in ("scale_attn_by_inverse_layer_idx", "add_cross_attention"):
        if config.get(flag):
            raise ConfigError(f"{flag}=true is not supported")
    if not config.get("scale_attn_weights", True):
        raise ConfigError("scale_attn_weights=false is not supported")
    ours = ModelConfig(
        family="gpt2",
        pattern=f"(sf)x{layers}",  # type: ignore[arg-type]
        vocab_size=whole(config, "vocab_size"),
        d_model=width,
        n_head=whole(config, "n_head"),
        d_inner=config.get("n_inner") or 4 * width,
        max_len=whole(config, "n_positions"),
        activation=activation(config.get("activation_function", "gelu_new")),
        norm_eps=config.get("layer_norm_epsilon", 1e-5),
        tie_weights=config.get("tie_word_embeddings", True),
        dropout=config.get("resid_pdrop", 0.0),
        dropatt=config.get("attn_pdrop", 0.0),
    )
    source = Checkpoint(weights, "transformer.")
    got = {
        "embedding.words.tables.0": source.take("wte.weight"),
        "embedding.positions": source.take("wpe.weight"),
    }
    if ours.tie_weights:
        source.tied("lm_head.weight", "wte.weight")
    else:
        got["head.weight"] = source.take("lm_head.weight")
    for i in range(layers):
        theirs, attend, feed = f"h.{i}", f"blocks.{2 * i}", f"blocks.{2 * i + 1}"
        got |= source.linear(f"{theirs}.ln_1", f"{attend}.norm")
        got |= source.linear(f"{theirs}.attn.c_attn", f"{attend}.qkv", transposed=True)
        got |= source.linear(f"{theirs}.attn.c_proj", f"{attend}.out", transposed=True)
        got |= source.linear(f"{theirs}.ln_2", f"{feed}.norm")
        got |= source.linear(f"{theirs}.mlp.c_fc", f"{feed}.inner", transposed=True)
        got |= source.linear(f"{theirs}.mlp.c_proj", f"{feed}.out", transposed=True)
    got |= source.linear("ln_f", "final_norm")
    source.refuse_leftovers("attn.bias", "attn.masked_bias")
    return build_from(ours, got)
