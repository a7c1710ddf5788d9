"""MobileBERT, as Hugging Face keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from parformer.config import ModelConfig
from parformer.convert.checkpoint import Checkpoint, Foreign, activation, whole
from parformer.errors import ConfigError
from parformer.fields import need_at_least
from parformer.model import Model, build_from

NORMS = {"no_norm": "affine", "layer_norm": "layer"}
WORDS = "embeddings.word_embeddings.weight"
THEIR_EPS = 1e-5
"""What Hugging Face's layer norms have in two places, whatever the configuration says."""


def from_mobilebert(weights: Mapping[str, Tensor], config: Foreign) -> Model:
    """MobileBERT (`MobileBertModel`, `MobileBertForMaskedLM`, `MobileBertForPreTraining`).

    Like the released code, the embedding reads padding as a neighbour: `trigrams="all"`.
    """
    eps = config.get("layer_norm_eps", 1e-12)
    if config.get("normalization_type", "no_norm") == "layer_norm" and eps != THEIR_EPS:
        raise ConfigError(
            f"layer_norm_eps {eps:g} with layer norms: Hugging Face's model has {THEIR_EPS:g} in "
            f"some of them, which cannot be kept; set layer_norm_eps={THEIR_EPS:g}"
        )
    return convert(weights, config, activation=activation(config.get("hidden_act", "relu")))


def convert(weights: Mapping[str, Tensor], config: Foreign, **conventions: Any) -> Model:
    """Any model of MobileBERT's names; `conventions` are fields that codes do not agree about."""
    source = Checkpoint(weights, "mobilebert.")
    ours = ModelConfig(**model_fields(source, config) | conventions)
    layers, feeds = whole(config, "num_hidden_layers"), whole(config, "num_feedforward_networks")
    got, feed = embedding(source, ours), str(ours.pattern[0].options.get("feed", ""))
    for i in range(layers):
        if feed:
            got |= around(source, f"encoder.layer.{i}", f"blocks.{i}", feed)
            places = [f"blocks.{i}.inside.blocks.{j}" for j in range(feeds + 1)]
        else:
            places = [f"blocks.{i * (feeds + 1) + j}" for j in range(feeds + 1)]
        got |= layer(source, f"encoder.layer.{i}", places, feed)
    if ours.pooler and ours.pool == "dense":
        got |= source.linear("pooler.dense", "pooler")
    if ours.pair_head != "none":
        got |= source.linear("cls.seq_relationship", "pair_head")
    if ours.head == "masked":
        theirs = "cls.predictions"
        got |= source.masked_head(theirs, f"{theirs}.transform.", WORDS, tied=ours.tie_weights)
        more = source.take(f"{theirs}.dense.weight").T
        got |= {"head.more.weight": more} if more.numel() else {}
    source.refuse_leftovers("position_ids")
    return build_from(ours, got)


def model_fields(source: Checkpoint, config: Foreign) -> dict[str, Any]:
    """What a configuration says of the model."""
    kind = config.get("normalization_type", "no_norm")
    if kind not in NORMS:
        raise ConfigError(f"unknown normalization_type {kind!r}; known: {', '.join(NORMS)}")
    dense = config.get("classifier_activation", True)
    return {
        "family": "mobilebert",
        "pattern": pattern(config),
        "vocab_size": whole(config, "vocab_size"),
        "d_model": whole(config, "hidden_size"),
        "d_bottleneck": whole(config, "intra_bottleneck_size"),
        "d_embed": whole(config, "embedding_size"),
        "n_head": whole(config, "num_attention_heads"),
        "d_inner": whole(config, "intermediate_size"),
        "max_len": whole(config, "max_position_embeddings"),
        "norm_type": NORMS[kind],
        "norm_eps": config.get("layer_norm_eps", 1e-12),
        "token_types": whole(config, "type_vocab_size"),
        "trigrams": "all" if config.get("trigram_input", True) else "none",
        "tie_weights": config.get("tie_word_embeddings", True),
        "head": "masked" if "cls.predictions.dense.weight" in source else "none",
        "pooler": not dense or "pooler.dense.weight" in source,
        "pool": "dense" if dense else "first",
        "pair_head": "next" if "cls.seq_relationship.weight" in source else "none",
        "dropout": config.get("hidden_dropout_prob", 0.0),
        "dropatt": config.get("attention_probs_dropout_prob", 0.0),
    }


def pattern(config: Foreign) -> str:
    """The layers, and who feeds their attention."""
    layers, feeds = whole(config, "num_hidden_layers"), whole(config, "num_feedforward_networks")
    for name in ("num_hidden_layers", "num_feedforward_networks"):
        need_at_least(name, whole(config, name), 1)
    inside = "s" + "f" * feeds
    if not config.get("use_bottleneck", True):
        return f"({inside})x{layers}"
    feed = "outside"
    if config.get("use_bottleneck_attention", False):
        feed = "inside"
    elif config.get("key_query_shared_bottleneck", True):
        feed = "shared"
    wide = whole(config, "intra_bottleneck_size") > whole(config, "hidden_size")
    return f"<{inside}>[feed={feed}{',wide' * wide}]x{layers}"


def embedding(source: Checkpoint, ours: ModelConfig) -> dict[str, Tensor]:
    got = {
        "embedding.words.tables.0": source.take(WORDS),
        "embedding.positions": source.take("embeddings.position_embeddings.weight"),
        "embedding.types": source.take("embeddings.token_type_embeddings.weight"),
    }
    mapped = [source.take(f"embeddings.embedding_transformation.{x}") for x in ("weight", "bias")]
    if ours.trigrams != "none" or ours.embed_width != ours.d_model:  # else nobody uses it
        names = ("embedding.words.projections.0", "embedding.words.bias")
        got |= dict(zip(names, mapped, strict=True))
    return got | source.linear("embeddings.LayerNorm", "embedding.norm")


def around(source: Checkpoint, theirs: str, ours: str, feed: str) -> dict[str, Tensor]:
    """A bottleneck without its inside."""
    ways = {"input": "down"} | ({"attention": "shared"} if feed == "shared" else {})
    got: dict[str, Tensor] = {}
    for way, name in ways.items():
        got |= source.linear(f"{theirs}.bottleneck.{way}.dense", f"{ours}.{name}")
        got |= source.linear(f"{theirs}.bottleneck.{way}.LayerNorm", f"{ours}.{name}_norm")
    got |= source.linear(f"{theirs}.output.bottleneck.dense", f"{ours}.out")
    return got | source.linear(f"{theirs}.output.bottleneck.LayerNorm", f"{ours}.norm")


def layer(source: Checkpoint, theirs: str, places: list[str], feed: str) -> dict[str, Tensor]:
    """One attention and several feed-forwards, at their places."""
    attend, *feeds = places
    parts = [f"{theirs}.attention.self.{name}" for name in ("query", "key", "value")]
    if feed == "shared":
        got = source.joined(parts[:2], f"{attend}.qkv.qk")
        got |= source.linear(parts[2], f"{attend}.qkv.v")
    else:
        got = source.joined(parts, f"{attend}.qkv")
    got |= source.linear(f"{theirs}.attention.output.dense", f"{attend}.out")
    got |= source.linear(f"{theirs}.attention.output.LayerNorm", f"{attend}.norm")
    stacked = [f"{theirs}.ffn.{j}." for j in range(len(feeds) - 1)]
    for name, feed in zip([*stacked, f"{theirs}."], feeds, strict=True):
        got |= source.linear(f"{name}intermediate.dense", f"{feed}.inner")
        got |= source.linear(f"{name}output.dense", f"{feed}.out")
        got |= source.linear(f"{name}output.LayerNorm", f"{feed}.norm")
    return got
