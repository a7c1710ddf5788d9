"""BERT, as Hugging Face keeps it."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from parformer.config import ModelConfig
from parformer.convert.checkpoint import Checkpoint, Foreign, activation, whole
from parformer.errors import ConfigError
from parformer.model import Model, build_from


def from_bert(weights: Mapping[str, Tensor], config: Foreign) -> Model:
    """BERT (`BertModel` with or without pooler, `BertForMaskedLM`, `BertForPreTraining`, or
    `BertForNextSentencePrediction`).
    """
    layers = whole(config, "num_hidden_layers")
    source = Checkpoint(weights, "bert.")
    masked = "cls.predictions.transform.dense.weight" in source
    if config.get("is_decoder"):
        raise ConfigError("is_decoder=true is not supported")
    ours = ModelConfig(
        family="bert",
        pattern=f"(sf)x{layers}",  # type: ignore[arg-type]
        vocab_size=whole(config, "vocab_size"),
        d_model=whole(config, "hidden_size"),
        n_head=whole(config, "num_attention_heads"),
        d_inner=whole(config, "intermediate_size"),
        max_len=whole(config, "max_position_embeddings"),
        activation=activation(config.get("hidden_act", "gelu")),
        norm_eps=config.get("layer_norm_eps", 1e-12),
        token_types=whole(config, "type_vocab_size"),
        tie_weights=config.get("tie_word_embeddings", True),
        head="masked" if masked else "none",
        pooler="pooler.dense.weight" in source,
        pair_head="next" if "cls.seq_relationship.weight" in source else "none",
        dropout=config.get("hidden_dropout_prob", 0.0),
        dropatt=config.get("attention_probs_dropout_prob", 0.0),
    )
    got = {
        "embedding.words.tables.0": source.take("embeddings.word_embeddings.weight"),
        "embedding.positions": source.take("embeddings.position_embeddings.weight"),
        "embedding.types": source.take("embeddings.token_type_embeddings.weight"),
    }
    got |= source.linear("embeddings.LayerNorm", "embedding.norm")
    for i in range(layers):
        theirs, attend, feed = f"encoder.layer.{i}", f"blocks.{2 * i}", f"blocks.{2 * i + 1}"
        parts = [f"{theirs}.attention.self.{name}" for name in ("query", "key", "value")]
        got |= source.joined(parts, f"{attend}.qkv")
        got |= source.linear(f"{theirs}.attention.output.dense", f"{attend}.out")
        got |= source.linear(f"{theirs}.attention.output.LayerNorm", f"{attend}.norm")
        got |= source.linear(f"{theirs}.intermediate.dense", f"{feed}.inner")
        got |= source.linear(f"{theirs}.output.dense", f"{feed}.out")
        got |= source.linear(f"{theirs}.output.LayerNorm", f"{feed}.norm")
    if ours.pooler:
        got |= source.linear("pooler.dense", "pooler")
    if ours.pair_head != "none":
        got |= source.linear("cls.seq_relationship", "pair_head")
    if masked:
        theirs, words = "cls.predictions", "embeddings.word_embeddings.weight"
        got |= source.masked_head(theirs, f"{theirs}.transform.", words, tied=ours.tie_weights)
    source.refuse_leftovers("position_ids")
    return build_from(ours, got)
