"""DistilBERT, as Hugging Face keeps it."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from parformer.config import ModelConfig
from parformer.convert.checkpoint import Checkpoint, Foreign, activation, whole
from parformer.model import Model, build_from

WORDS = "embeddings.word_embeddings.weight"


def from_distilbert(weights: Mapping[str, Tensor], config: Foreign) -> Model:
    """DistilBERT (`DistilBertModel` or `DistilBertForMaskedLM`)."""
    layers = whole(config, "n_layers")
    source = Checkpoint(weights, "distilbert.")
    masked = "vocab_transform.weight" in source
    ours = ModelConfig(
        family="bert",
        pattern=f"(sf)x{layers}",  # type: ignore[arg-type]
        vocab_size=whole(config, "vocab_size"),
        d_model=whole(config, "dim"),
        n_head=whole(config, "n_heads"),
        d_inner=whole(config, "hidden_dim"),
        max_len=whole(config, "max_position_embeddings"),
        activation=activation(config.get("activation", "gelu")),
        norm_eps=1e-12,
        token_types=0,
        tie_weights=config.get("tie_word_embeddings", True),
        head="masked" if masked else "none",
        pooler=False,
        dropout=config.get("dropout", 0.0),
        dropatt=config.get("attention_dropout", 0.0),
        inner_dropout=False,
    )
    got = {
        "embedding.words.tables.0": source.take(WORDS),
        "embedding.positions": source.take("embeddings.position_embeddings.weight"),
    }
    got |= source.linear("embeddings.LayerNorm", "embedding.norm")
    for i in range(layers):
        theirs, attend, feed = f"transformer.layer.{i}", f"blocks.{2 * i}", f"blocks.{2 * i + 1}"
        parts = [f"{theirs}.attention.{name}_lin" for name in "qkv"]
        got |= source.joined(parts, f"{attend}.qkv")
        got |= source.linear(f"{theirs}.attention.out_lin", f"{attend}.out")
        got |= source.linear(f"{theirs}.sa_layer_norm", f"{attend}.norm")
        got |= source.linear(f"{theirs}.ffn.lin1", f"{feed}.inner")
        got |= source.linear(f"{theirs}.ffn.lin2", f"{feed}.out")
        got |= source.linear(f"{theirs}.output_layer_norm", f"{feed}.norm")
    if masked:
        got |= source.linear("vocab_transform", "head.transform")
        got |= source.linear("vocab_layer_norm", "head.norm")
        got["head.bias"] = source.take("vocab_projector.bias")
        if ours.tie_weights:
            source.tied("vocab_projector.weight", WORDS)
        else:
            got["head.weight"] = source.take("vocab_projector.weight")
    source.refuse_leftovers("position_ids")
    return build_from(ours, got)
