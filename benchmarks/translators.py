"""The weights of a Parformer translator in transformers' and in CTranslate2's models."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ctranslate2
import torch
import transformers
from ctranslate2.specs import common_spec, transformer_spec
from torch import Tensor, nn

from parformer.model import Model


def as_pegasus(model: Model) -> Any:
    """Pegasus of transformers: norms before, one after each stack, sinusoids, one table.

    For patterns (sf)xN | (scf)xN of the family transformer with norm="pre" and final_norm=true.
    """
    config = model.config
    assert model.encoder is not None
    theirs = transformers.PegasusForConditionalGeneration(
        transformers.PegasusConfig(
            vocab_size=config.vocab_size,
            max_position_embeddings=config.max_len,
            encoder_layers=len(model.encoder.blocks) // 2,
            decoder_layers=len(model.blocks) // 3,
            encoder_ffn_dim=config.d_inner,
            decoder_ffn_dim=config.d_inner,
            encoder_attention_heads=config.n_head,
            decoder_attention_heads=config.n_head,
            d_model=config.d_model,
            activation_function="relu",
            scale_embedding=True,
            pad_token_id=config.pad,
            eos_token_id=config.end,
            decoder_start_token_id=config.start,
            forced_eos_token_id=config.end,
        )
    ).eval()
    places = places_of(model)
    with torch.no_grad():
        theirs.model.shared.weight.copy_(model.embedding.words.tables[0])
        for stack, blocks, norm in (
            (theirs.model.encoder, model.encoder.blocks, model.encoder.final_norm),
            (theirs.model.decoder, model.blocks, model.final_norm),
        ):
            stack.embed_positions.weight.copy_(places)
            copy(stack.layer_norm, norm)
            size = 2 if stack is theirs.model.encoder else 3
            for number, layer in enumerate(stack.layers):
                fill_layer(layer, list(blocks)[size * number : size * (number + 1)])
    return theirs


def places_of(model: Model) -> Tensor:
    """What is added to the embedding of each place."""
    like = model.embedding.words.tables[0]
    return model.embedding.waves(model.config.max_len, like)[: model.config.max_len]


def fill_layer(layer: Any, blocks: list[Any]) -> None:
    attention, forward = blocks[0], blocks[-1]
    copy(layer.self_attn_layer_norm, attention.norm)
    own = zip(attention.qkv.weight.chunk(3), attention.qkv.bias.chunk(3), strict=True)
    fill_attention(layer.self_attn, [*own], attention.out)
    if len(blocks) == 3:
        across = blocks[1]
        copy(layer.encoder_attn_layer_norm, across.norm)
        both = zip(across.key_value.weight.chunk(2), across.key_value.bias.chunk(2), strict=True)
        parts = [(across.query.weight, across.query.bias), *both]
        fill_attention(layer.encoder_attn, parts, across.out)
    copy(layer.final_layer_norm, forward.norm)
    copy(layer.fc1, forward.inner)
    copy(layer.fc2, forward.out)


def fill_attention(theirs: Any, parts: list[tuple[Tensor, Tensor]], out: Any) -> None:
    maps = (theirs.q_proj, theirs.k_proj, theirs.v_proj)
    for one, (weight, bias) in zip(maps, parts, strict=True):
        one.weight.copy_(weight)
        one.bias.copy_(bias)
    copy(theirs.out_proj, out)


def copy(theirs: nn.Module, ours: Any) -> None:
    theirs.weight.copy_(ours.weight)  # type: ignore[operator]
    theirs.bias.copy_(ours.bias)  # type: ignore[operator]


def write_ctranslate2(model: Model, folder: Path, quantization: str | None) -> Path:
    """The same weights as CTranslate2 keeps them; tokens are named by their numbers."""
    config = model.config
    assert model.encoder is not None
    layers = (len(model.encoder.blocks) // 2, len(model.blocks) // 3)
    spec = transformer_spec.TransformerSpec.from_config(
        layers, config.n_head, pre_norm=True, activation=common_spec.Activation.RELU
    )
    table, places = array(model.embedding.words.tables[0]), array(places_of(model))
    for stack in (spec.encoder, spec.decoder):
        embeddings = stack.embeddings
        (embeddings[0] if isinstance(embeddings, list) else embeddings).weight = table
        stack.scale_embeddings = True
        stack.position_encodings.encodings = places
    spec.decoder.projection.weight = table
    norms(spec.encoder.layer_norm, model.encoder.final_norm)
    norms(spec.decoder.layer_norm, model.final_norm)
    for stack, blocks, size in (
        (spec.encoder, model.encoder.blocks, 2),
        (spec.decoder, model.blocks, 3),
    ):
        for number, layer in enumerate(stack.layer):
            set_layer(layer, list(blocks)[size * number : size * (number + 1)])
    names = list(words(config.vocab_size))
    spec.register_source_vocabulary(names)
    spec.register_target_vocabulary(names)
    spec.config.bos_token = spec.config.decoder_start_token = names[config.start]
    spec.config.eos_token, spec.config.unk_token = names[config.end], names[config.pad]
    spec.config.add_source_bos = spec.config.add_source_eos = False
    spec.validate()
    spec.optimize(quantization=quantization)
    folder.mkdir(parents=True, exist_ok=True)
    spec.save(str(folder))
    return folder


def words(size: int) -> Iterator[str]:
    return (f"t{n}" for n in range(size))


def array(tensor: Tensor) -> Any:
    """A copy: CTranslate2 changes what it is given."""
    return tensor.detach().float().clone().contiguous().numpy()


def norms(spec: Any, norm: Any) -> None:
    spec.gamma, spec.beta = array(norm.weight), array(norm.bias)


def linear(spec: Any, weight: Tensor, bias: Tensor) -> None:
    spec.weight, spec.bias = array(weight), array(bias)


def set_layer(layer: Any, blocks: list[Any]) -> None:
    attention, forward = blocks[0], blocks[-1]
    norms(layer.self_attention.layer_norm, attention.norm)
    linear(layer.self_attention.linear[0], attention.qkv.weight, attention.qkv.bias)
    linear(layer.self_attention.linear[1], attention.out.weight, attention.out.bias)
    if len(blocks) == 3:
        across = blocks[1]
        norms(layer.attention.layer_norm, across.norm)
        linear(layer.attention.linear[0], across.query.weight, across.query.bias)
        linear(layer.attention.linear[1], across.key_value.weight, across.key_value.bias)
        linear(layer.attention.linear[2], across.out.weight, across.out.bias)
    norms(layer.ffn.layer_norm, forward.norm)
    linear(layer.ffn.linear_0, forward.inner.weight, forward.inner.bias)
    linear(layer.ffn.linear_1, forward.out.weight, forward.out.bias)


def translator(folder: Path, threads: int) -> Any:
    return ctranslate2.Translator(str(folder), device="cpu", inter_threads=1, intra_threads=threads)
