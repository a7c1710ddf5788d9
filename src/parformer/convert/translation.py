"""The Transformer for translation, as asappresearch's imitkd keeps it on torch's own layers."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from parformer.config import ModelConfig
from parformer.convert.checkpoint import Checkpoint, Foreign, whole
from parformer.convert.translator import Translator
from parformer.model import build_from


def from_translation(weights: Mapping[str, Tensor], config: Foreign) -> Translator:
    """The `Seq2Seq` of imitkd, made of Transformers, the baseline of SRU++'s translation models."""
    encoder, decoder = whole(config, "encoder_layers"), whole(config, "decoder_layers")
    width, tied = whole(config, "d"), bool(config.get("tied", True))
    ours = ModelConfig(
        family="transformer",
        pattern=f"(sf)x{encoder} | (scf)x{decoder}",  # type: ignore[arg-type]
        vocab_size=whole(config, "target_vocab"),
        source_vocab=whole(config, "source_vocab"),
        d_model=width,
        n_head=whole(config, "heads"),
        d_inner=whole(config, "d_inner"),
        tie_weights=tied,
        output_bias=True,
    )
    source = Checkpoint(weights, "")
    got = {
        "embedding.words.tables.0": source.take("tgt_embedding.weight"),
        "source_embedding.words.tables.0": source.take("src_embedding.weight"),
        "head.out.bias": source.take("output_layer.bias"),
    }
    if tied:
        source.tied("output_layer.weight", "tgt_embedding.weight")
    else:
        got["head.out.weight"] = source.take("output_layer.weight")
    for i in range(encoder):
        attend, feed = (f"encoder.blocks.{2 * i + j}" for j in range(2))
        got |= attention(source, f"encoder.layers.{i}", attend)
        got |= feed_forward(source, f"encoder.layers.{i}", feed, "norm2")
    for i in range(decoder):
        attend, look, feed = (f"blocks.{3 * i + j}" for j in range(3))
        got |= attention(source, f"decoder.layers.{i}", attend)
        got |= cross_attention(source, f"decoder.layers.{i}", look, width)
        got |= feed_forward(source, f"decoder.layers.{i}", feed, "norm3")
    source.refuse_leftovers(".pe")
    tokens = {name: whole(config, name) for name in ("sos", "eos", "pad")}
    return Translator(
        build_from(ours, got), start=tokens["sos"], end=tokens["eos"], pad=tokens["pad"]
    )


def attention(source: Checkpoint, layer: str, ours: str) -> dict[str, Tensor]:
    """Self-attention, whose maps torch keeps as one."""
    theirs = f"{layer}.self_attn"
    got = source.linear(f"{theirs}.out_proj", f"{ours}.out")
    for kind in ("weight", "bias"):
        got[f"{ours}.qkv.{kind}"] = source.take(f"{theirs}.in_proj_{kind}")
    return got | source.linear(f"{layer}.norm1", f"{ours}.norm")


def cross_attention(source: Checkpoint, layer: str, ours: str, width: int) -> dict[str, Tensor]:
    """Attention to the source: the queries' map, and that of keys and values."""
    theirs = f"{layer}.multihead_attn"
    got = source.linear(f"{theirs}.out_proj", f"{ours}.out")
    for kind in ("weight", "bias"):
        joined = source.take(f"{theirs}.in_proj_{kind}")
        got[f"{ours}.query.{kind}"] = joined[:width]
        got[f"{ours}.key_value.{kind}"] = joined[width:]
    return got | source.linear(f"{layer}.norm2", f"{ours}.norm")


def feed_forward(source: Checkpoint, layer: str, ours: str, norm: str) -> dict[str, Tensor]:
    got = source.linear(f"{layer}.linear1", f"{ours}.inner")
    got |= source.linear(f"{layer}.linear2", f"{ours}.out")
    return got | source.linear(f"{layer}.{norm}", f"{ours}.norm")
