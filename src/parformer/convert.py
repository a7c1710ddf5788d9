"""How do published weights come in?

Each function takes a state dict (tensors by name) and its configuration (a dict) and gives a
Parformer model with the same numbers: Hugging Face's models, and the stacks of the package
sru. What it cannot represent exactly it refuses; no weight is left over or made up in silence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from parformer.blocks.stack import Stack
from parformer.config import ModelConfig
from parformer.errors import ConfigError, InputError
from parformer.fields import check_names, need_at_least
from parformer.model import Model, build_from, refill

ACTIVATION_NAMES = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "silu": "silu",
    "swish": "silu",
}


class Checkpoint:
    """Foreign weights by name, which notes what was taken."""

    def __init__(self, weights: Mapping[str, Tensor], prefix: str) -> None:
        self.weights = {name.removeprefix(prefix): tensor for name, tensor in weights.items()}
        self.taken: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self.weights

    def take(self, name: str) -> Tensor:
        if name not in self.weights:
            raise InputError(
                f"the weights lack {name!r}; they belong to another model or configuration"
            )
        self.taken.add(name)
        return self.weights[name]

    def linear(self, theirs: str, ours: str, *, transposed: bool = False) -> dict[str, Tensor]:
        """Weight and, where there is one, bias."""
        weight = self.take(f"{theirs}.weight")
        taken = {f"{ours}.weight": weight.T if transposed else weight}
        if f"{theirs}.bias" in self:
            taken[f"{ours}.bias"] = self.take(f"{theirs}.bias")
        return taken

    def joined(self, theirs: list[str], ours: str) -> dict[str, Tensor]:
        """Several linear maps of the same input as one."""
        parts = [self.linear(name, ours) for name in theirs]
        for name, part in zip(theirs, parts, strict=True):
            if part.keys() != parts[0].keys():
                raise InputError(
                    f"of {theirs[0]!r} and {name!r} only one has a bias; is it another model?"
                )
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    def tied(self, second: str, first: str) -> None:
        """A tied weight may stand there under its second name as well, with the same numbers."""
        if second in self and not torch.equal(self.take(second), self.take(first)):
            raise InputError(
                f"the weights {second!r} and {first!r} differ, but the configuration ties them; "
                "is it another model's?"
            )

    def refuse_leftovers(self, *harmless: str) -> None:
        """Every weight must have been used, but for buffers."""
        for name in sorted(self.weights.keys() - self.taken):
            if not name.endswith(harmless):
                raise InputError(f"the weights hold {name!r}, which this model has no place for")


def from_transformer_xl(weights: Mapping[str, Tensor], config: Mapping[str, Any]) -> Model:
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


def from_gpt2(weights: Mapping[str, Tensor], config: Mapping[str, Any]) -> Model:
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


def from_bert(weights: Mapping[str, Tensor], config: Mapping[str, Any]) -> Model:
    """BERT (`BertModel` with or without pooler, or `BertForMaskedLM`)."""
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
    if masked:
        got |= source.linear("cls.predictions.transform.dense", "head.transform")
        got |= source.linear("cls.predictions.transform.LayerNorm", "head.norm")
        got["head.bias"] = source.take("cls.predictions.bias")
        if ours.tie_weights:
            source.tied("cls.predictions.decoder.weight", "embeddings.word_embeddings.weight")
            source.tied("cls.predictions.decoder.bias", "cls.predictions.bias")
        else:
            got |= source.linear("cls.predictions.decoder", "head")  # its bias is the one in use
    source.refuse_leftovers("position_ids")
    return build_from(ours, got)


def from_llama(weights: Mapping[str, Tensor], config: Mapping[str, Any]) -> Model:
    """Llama (`LlamaForCausalLM`), with plain rotary positions."""
    layers, heads = whole(config, "num_hidden_layers"), whole(config, "num_attention_heads")
    rotary = config.get("rope_parameters") or {}
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


SRU_FIELDS = {
    "d": "width of the stream (hidden_size, and input_size too)",
    "d_attention": "width of attention (proj_size)",
    "layers": "num_layers",
    "attention_every": "attention_every_n_layers",
    "heads": "num_heads, 1 if left out",
    "highway_bias": "where reset gates start; trained weights do not ask",
    "post_layer_norm": "normalize_after of its attention modules, not its own; true if left out",
    "dropout": "0 if left out",
    "attn_dropout": "0 if left out",
    "mem_len": "places that attention remembers, 1,024 if left out",
}
"""What `from_sru` reads of a configuration, and what the package calls it."""


def from_sru(weights: Mapping[str, Tensor], config: Mapping[str, Any]) -> Stack:
    """SRU++ (`SRUpp` of the package sru), which has no embedding and no head.

    `config` names the fields in `SRU_FIELDS`. The stack maps (batch, time, width) and a state
    to outputs and the next state, where sru has time first.
    """
    check_names(config, SRU_FIELDS, "field of an SRUpp configuration")
    layers, every = whole(config, "layers"), whole(config, "attention_every")
    width, inside = whole(config, "d"), whole(config, "d_attention")
    for name in ("layers", "attention_every"):
        need_at_least(name, config[name], 1)
    heads, after = config.get("heads", 1), config.get("post_layer_norm", True)
    source = Checkpoint(weights, "")
    normed = "rnn_lst.0.transform_module.layer_norm.weight" in source
    place = ("post" if after else "pre") if normed else "off"
    recur = "r" if normed else "r[norm=off]"
    attend = f"a[heads={heads},norm={place}]"
    ours = ModelConfig(
        family="sru",
        pattern="".join(  # type: ignore[arg-type]
            recur if (i + 1) % every else attend for i in range(layers)
        ),
        vocab_size=1,
        head="none",
        d_model=width,
        d_attention=inside,
        n_head=1,
        d_inner=width,
        dropout=config.get("dropout", 0.0),
        dropatt=config.get("attn_dropout", 0.0),
        mem_len=config.get("mem_len", 1024),
    )
    got: dict[str, Tensor] = {}
    for i, spec in enumerate(ours.pattern):
        cell, block = f"rnn_lst.{i}", f"blocks.{i}"
        module = f"{cell}.transform_module"
        if f"{cell}.scale_x" in source and bool((source.take(f"{cell}.scale_x") != 1).any()):
            raise ConfigError(f"rescale=true ({cell}.scale_x is not 1) is not supported")
        got[f"{block}.gate_weight"] = source.take(f"{cell}.weight_c")
        got[f"{block}.gate_bias"] = source.take(f"{cell}.bias")
        got |= source.linear(f"{module}.linear1", f"{block}.project")
        if spec.letter == "a":
            got |= source.linear(f"{module}.linear2", f"{block}.key_value")
            got[f"{block}.alpha"] = source.take(f"{module}.alpha")
        if normed:
            got |= source.linear(f"{module}.layer_norm", f"{block}.inner_norm")
        last = "linear3" if spec.letter == "a" else "linear2"
        got[f"{block}.out.weight"] = by_kind(source.take(f"{module}.{last}.weight"), width)
    source.refuse_leftovers()
    with torch.device("meta"):
        outline = Stack(ours)
    return refill(outline, got)


def by_kind(weight: Tensor, width: int) -> Tensor:
    """Rows that sru sorts by channel (candidate, forget, reset, candidate, …), sorted by kind."""
    if weight.shape[0] != 3 * width:
        raise InputError(
            f"an SRU++ layer of width {width} makes {3 * width} numbers of a token, not "
            f"{weight.shape[0]}; is attention_every right, and its input as wide as its output?"
        )
    return weight.view(width, 3, -1).transpose(0, 1).flatten(0, 1)


def whole(config: Mapping[str, object], name: str) -> int:
    value = config.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ConfigError(f"the configuration needs a whole number {name!r}, got {value!r}")
    return value


def activation(name: str) -> Any:
    if name not in ACTIVATION_NAMES:
        raise ConfigError(
            f"unknown activation {name!r}; known: {', '.join(sorted(ACTIVATION_NAMES))}"
        )
    return ACTIVATION_NAMES[name]
