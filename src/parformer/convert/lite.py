"""Lite Transformer, as mit-han-lab's code on fairseq keeps it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from parformer.blocks.stack import Stack
from parformer.config import ModelConfig
from parformer.convert.checkpoint import Checkpoint, Foreign, activation, whole
from parformer.convert.translator import Translator
from parformer.errors import ConfigError
from parformer.fields import check_names
from parformer.model import build_from, refill

LITE_FIELDS = {
    "d_model": "width of the stream",
    "d_inner": "inner width of feed-forwards",
    "branches": "kind:kernel:channels:heads of each branch, from the left",
    "kernels": "what a kernel called default is, for each layer",
    "glu": "gates in dynamic convolutions; false if left out",
    "weight_softmax": "taps sum to one; must be true",
    "conv_linear": "maps around convolutions; must be true",
    "normalize_before": "norms before blocks, not after; false if left out",
    "final_norm": "one more norm after the last layer; false if left out",
    "causal": "a token sees only what came before it; true if left out",
    "activation": "of feed-forwards, relu if left out",
    "mem_len": "places that attention remembers, 1,024 if left out",
}
"""What `from_lite_stack` reads of a configuration."""

BRANCHES = {"attn": "attend", "dynamic": "dynamic", "lightweight": "light"}
"""Kinds of branches, theirs and ours."""


def from_lite_stack(weights: Mapping[str, Tensor], config: Foreign) -> Stack:
    """A stack of Lite Transformer's layers, which has no embedding and no head.

    `config` names the fields in `LITE_FIELDS`. The stack maps (batch, time, width) and a state to
    outputs and the next state, where the original has time first.
    """
    check_names(config, LITE_FIELDS, "field of a Lite Transformer stack")
    refuse_other_taps(config)
    kernels, branches = config.get("kernels", []), config.get("branches", [])
    gated = bool(config.get("glu", False))
    blocks = [lsra(branches, kernels, i, gated=gated) for i in range(len(kernels))]
    ours = ModelConfig(
        family="lite",
        pattern="".join(f"{block}f" for block in blocks),  # type: ignore[arg-type]
        vocab_size=1,
        head="none",
        positions="none",
        d_model=whole(config, "d_model"),
        d_inner=whole(config, "d_inner"),
        n_head=1,
        norm="pre" if config.get("normalize_before", False) else "post",
        final_norm=config.get("final_norm", False),
        causal=config.get("causal", True),
        activation=activation(config.get("activation", "relu")),
        mem_len=config.get("mem_len", 1024) if config.get("causal", True) else 0,
    )
    source = Checkpoint(weights, "")
    got = layers(source, "", "", branches, len(kernels))
    if ours.final_norm:
        got |= source.linear("layer_norm", "final_norm")
    source.refuse_leftovers()
    with torch.device("meta"):
        outline = Stack(ours)
    return refill(outline, got)


def from_lite_transformer(weights: Mapping[str, Tensor], config: Foreign) -> Translator:
    """Lite Transformer for translation (`transformer_multibranch_v2`), encoder and decoder.

    Places of a source that hold no token count in its convolutions as they do in the released
    code: blocks of the encoder are `l[leaky]`.
    """
    refuse_other_taps(config)
    if whole(config, "pad") != 1:
        raise ConfigError(f"fairseq's pad is token 1, got pad {config['pad']}")
    sides = [lite_side(config, side) for side in ("encoder", "decoder")]
    (encoder, own), (decoder, common) = sides
    shared = bool(config.get("share_all_embeddings", False))
    ours = ModelConfig(
        family="lite",
        pattern=f"{encoder} | {decoder}",  # type: ignore[arg-type]
        vocab_size=whole(config, "target_vocab"),
        source_vocab=0 if shared else whole(config, "source_vocab"),
        pad=1,
        tie_weights=shared or bool(config.get("share_decoder_input_output_embed", False)),
        activation=activation(config.get("activation_fn", "relu")),
        encoder=tuple(own.items()),
        **common,
    )
    source = Checkpoint(weights, "")
    got = {"embedding.words.tables.0": source.take("decoder.embed_tokens.weight")}
    if shared:
        source.tied("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
    else:
        got["source_embedding.words.tables.0"] = source.take("encoder.embed_tokens.weight")
    if ours.tie_weights:
        source.tied("decoder.embed_out", "decoder.embed_tokens.weight")
    else:
        got["head.out.weight"] = source.take("decoder.embed_out")
    for side, place in (("encoder", "encoder."), ("decoder", "")):
        branches = config[f"{side}_branch_type"]
        count = whole(config, f"{side}_layers")
        cross = side == "decoder"
        got |= layers(source, f"{side}.", place, branches, count, cross=cross)
        if config.get(f"{side}_normalize_before"):
            got |= source.linear(f"{side}.layer_norm", f"{place}final_norm")
    source.refuse_leftovers("_float_tensor", ".version")
    end = int(config.get("eos", 2))  # which fairseq's decoders start with, too
    return Translator(build_from(ours, got), start=end, end=end, pad=1)


def lite_side(config: Foreign, side: str) -> tuple[str, dict[str, Any]]:
    """The pattern of the encoder or the decoder, and what its stack is told."""
    branches, kernels = config.get(f"{side}_branch_type"), config.get(f"{side}_kernel_size_list")
    count, gated = whole(config, f"{side}_layers"), bool(config.get(f"{side}_glu", False))
    if not isinstance(kernels, Sequence) or len(kernels) != count:
        raise ConfigError(f"{side}_kernel_size_list must have {count} entries, got {kernels!r:.60}")
    rest = "cf" if side == "decoder" else "f"
    leaky = side == "encoder"
    blocks = [lsra(branches, kernels, i, gated=gated, leaky=leaky) + rest for i in range(count)]
    before = bool(config.get(f"{side}_normalize_before", False))
    return "".join(blocks), {
        "d_model": whole(config, f"{side}_embed_dim"),
        "d_inner": whole(config, f"{side}_ffn_embed_dim"),
        "n_head": whole(config, f"{side}_attention_heads"),
        "norm": "pre" if before else "post",
        "final_norm": before,
    }


def refuse_other_taps(config: Foreign) -> None:
    for name in ("weight_softmax", "conv_linear"):
        if not config.get(name, True):
            raise ConfigError(f"{name}=false is not supported; every released model has it true")


def lsra(
    branches: object, kernels: Sequence[object], layer: int, *, gated: bool, leaky: bool = False
) -> str:
    """The block of one layer, such as l[branches=attend8h2+dynamic8h4k3]."""
    if not isinstance(branches, Sequence) or isinstance(branches, str) or not branches:
        raise ConfigError(f"branches are texts such as 'attn:1:80:4', got {branches!r:.60}")
    words = []
    for branch in branches:
        kind, kernel, channels, heads = parts_of(branch)
        taps = kernels[layer] if kernel == "default" else kernel
        own = "" if kind == "attn" else f"k{taps}"
        words.append(f"{BRANCHES[kind]}{channels}h{heads}{own}")
    options = f"branches={'+'.join(words)}"
    options += "" if gated else ",glu=off"
    return f"l[{options}{',leaky' if leaky else ''}]"


def parts_of(branch: object) -> tuple[str, str, str, str]:
    """Kind, kernel, channels and heads."""
    found = branch.split(":") if isinstance(branch, str) else []
    if len(found) != 4 or found[0] not in BRANCHES:
        raise ConfigError(
            f"a branch is kind:kernel:channels:heads with a kind of {', '.join(BRANCHES)}, "
            f"got {branch!r:.60}"
        )
    return found[0], found[1], found[2], found[3]


def layers(
    source: Checkpoint,
    theirs: str,
    ours: str,
    branches: Sequence[object],
    count: int,
    *,
    cross: bool = False,
) -> dict[str, Tensor]:
    """The weights of one side, layer by layer."""
    got: dict[str, Tensor] = {}
    size = 3 if cross else 2
    for i in range(count):
        layer, first = f"{theirs}layers.{i}", f"{ours}blocks.{size * i}"
        feed = f"{ours}blocks.{size * i + size - 1}"
        for j, branch in enumerate(branches):
            place = f"{layer}.self_attn.branches.{j}"
            got |= branch_weights(source, parts_of(branch)[0], place, f"{first}.branches.{j}")
        got |= source.linear(f"{layer}.self_attn_layer_norm", f"{first}.norm")
        if cross:
            look, place = f"{ours}blocks.{size * i + 1}", f"{layer}.encoder_attn"
            got |= source.linear(f"{place}.q_proj", f"{look}.query")
            got |= source.joined([f"{place}.k_proj", f"{place}.v_proj"], f"{look}.key_value")
            got |= source.linear(f"{place}.out_proj", f"{look}.out")
            got |= source.linear(f"{layer}.encoder_attn_layer_norm", f"{look}.norm")
        got |= source.linear(f"{layer}.fc1", f"{feed}.inner")
        got |= source.linear(f"{layer}.fc2", f"{feed}.out")
        got |= source.linear(f"{layer}.final_layer_norm", f"{feed}.norm")
    return got


def branch_weights(source: Checkpoint, kind: str, theirs: str, ours: str) -> dict[str, Tensor]:
    if kind == "attn":
        got = source.joined([f"{theirs}.{name}_proj" for name in "qkv"], f"{ours}.qkv")
        return got | source.linear(f"{theirs}.out_proj", f"{ours}.out")
    got = source.linear(f"{theirs}.linear1", f"{ours}.inner")
    if kind == "dynamic":
        got |= source.linear(f"{theirs}.weight_linear", f"{ours}.kernel")
    else:
        got[f"{ours}.scores"] = source.take(f"{theirs}.weight").squeeze(1)
    return got | source.linear(f"{theirs}.linear2", f"{ours}.out")
