"""ALBERT, as Hugging Face keeps it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from torch import Tensor

from parformer.config import ModelConfig
from parformer.convert.checkpoint import Checkpoint, Foreign, activation, whole
from parformer.errors import ConfigError
from parformer.fields import need_at_least
from parformer.model import Model, build_from

WORDS = "embeddings.word_embeddings.weight"


def from_albert(weights: Mapping[str, Tensor], config: Foreign) -> Model:
    """ALBERT (`AlbertModel` with or without pooler, `AlbertForMaskedLM`, `AlbertForPreTraining`).

    Layers of one group become `{sf}x12`; a group that is used once is just its blocks.
    """
    source = Checkpoint(weights, "albert.")
    uses, inner = group_uses(config), whole(config, "inner_group_num")
    width, narrow = whole(config, "hidden_size"), whole(config, "embedding_size")
    if width == narrow:
        raise ConfigError(
            f"embedding_size {narrow} is hidden_size, and Hugging Face's model maps the one to the "
            "other all the same, which has no place here"
        )
    masked = "predictions.dense.weight" in source
    ours = ModelConfig(
        family="albert",
        pattern="".join(  # type: ignore[arg-type]
            "sf" * inner if count == 1 else f"{{{'sf' * inner}}}x{count}" for count in uses
        ),
        vocab_size=whole(config, "vocab_size"),
        d_model=width,
        d_embed=narrow,
        n_head=whole(config, "num_attention_heads"),
        d_inner=whole(config, "intermediate_size"),
        max_len=whole(config, "max_position_embeddings"),
        activation=activation(config.get("hidden_act", "gelu_new")),
        norm_eps=config.get("layer_norm_eps", 1e-12),
        token_types=whole(config, "type_vocab_size"),
        tie_weights=config.get("tie_word_embeddings", True),
        head="masked" if masked else "none",
        pooler="pooler.weight" in source,
        pair_head="order" if "sop_classifier.classifier.weight" in source else "none",
        dropout=config.get("hidden_dropout_prob", 0.0),
        dropatt=config.get("attention_probs_dropout_prob", 0.0),
    )
    got = {
        "embedding.words.tables.0": source.take(WORDS),
        "embedding.words.projections.0": source.take("encoder.embedding_hidden_mapping_in.weight"),
        "embedding.words.bias": source.take("encoder.embedding_hidden_mapping_in.bias"),
        "embedding.positions": source.take("embeddings.position_embeddings.weight"),
        "embedding.types": source.take("embeddings.token_type_embeddings.weight"),
    }
    got |= source.linear("embeddings.LayerNorm", "embedding.norm")
    at = 0
    for group, count in enumerate(uses):
        first, place = (at, "blocks") if count == 1 else (0, f"blocks.{at}.inside.blocks")
        for i in range(inner):
            theirs = f"encoder.albert_layer_groups.{group}.albert_layers.{i}"
            got |= layer(source, theirs, f"{place}.{first + 2 * i}", f"{place}.{first + 2 * i + 1}")
        at += 2 * inner if count == 1 else 1
    if ours.pooler:
        got |= source.linear("pooler", "pooler")
    if ours.pair_head != "none":
        got |= source.linear("sop_classifier.classifier", "pair_head")
    if masked:
        got |= source.masked_head("predictions", "predictions.", WORDS, tied=ours.tie_weights)
    source.refuse_leftovers("position_ids")
    return build_from(ours, got)


def layer(source: Checkpoint, theirs: str, attend: str, feed: str) -> dict[str, Tensor]:
    """One attention and one feed-forward."""
    parts = [f"{theirs}.attention.{name}" for name in ("query", "key", "value")]
    got = source.joined(parts, f"{attend}.qkv")
    got |= source.linear(f"{theirs}.attention.dense", f"{attend}.out")
    got |= source.linear(f"{theirs}.attention.LayerNorm", f"{attend}.norm")
    got |= source.linear(f"{theirs}.ffn", f"{feed}.inner")
    got |= source.linear(f"{theirs}.ffn_output", f"{feed}.out")
    return got | source.linear(f"{theirs}.full_layer_layer_norm", f"{feed}.norm")


def group_uses(config: Foreign) -> list[int]:
    """How many layers use each group, in order.

    >>> group_uses({"num_hidden_layers": 7, "num_hidden_groups": 3, "inner_group_num": 1})
    [3, 2, 2]
    """
    layers, groups = whole(config, "num_hidden_layers"), whole(config, "num_hidden_groups")
    for name in ("num_hidden_layers", "num_hidden_groups", "inner_group_num"):
        need_at_least(name, whole(config, name), 1)
    used = Counter(int(i / (layers / groups)) for i in range(layers))
    return [used[group] for group in sorted(used)]
