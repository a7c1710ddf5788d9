"""Is this model one that others know by name, and what are its weights called there?

The ways in (`parformer.convert`) say how foreign weights become ours. Numbered weights sent
through them show where each of them ends up, and so the way back: nothing is written twice, and
what the way in cannot tell apart has no way out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from parformer import convert
from parformer.config import ModelConfig
from parformer.errors import ParformerError
from parformer.model import Model, load
from parformer.pattern import BlockSpec
from parformer.store.files import Json
from parformer.weights import named_tensors

ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "gelu-tanh": "gelu_new", "silu": "silu"}
FREE = {
    "dropout",
    "dropatt",
    "dropkernel",
    "label_dropout",
    "tgt_len",
    "mem_len",
    "draws",
    "first_weights",
}
"""Fields that change nothing about what a trained model computes, where it has a window."""
LARGEST = 2**52
"""Weights that can be numbered."""

__all__ = ["Known", "find_known", "load"]


@dataclass(frozen=True, eq=False)
class Known:
    """A model as others have it."""

    architecture: str
    config: Json
    weights: dict[str, Tensor]


def find_known(model: Model) -> Known | None:
    """The model as a known architecture; None where it is none, or not just that."""
    for shape in (gpt2, llama, bert, albert, mobilebert):
        described = shape(model.config)
        if described is not None:
            architecture, config, way_in = described
            weights = way_back(model, architecture, config, way_in)
            if weights is not None:
                return Known(architecture, config, weights)
    return None


Described = tuple[str, Json, Callable[..., Model]]


def layers_of(config: ModelConfig) -> int:
    """How many layers of attention and feed-forward, all alike; 0 where it is otherwise."""
    specs = list(config.pattern)
    pair = (BlockSpec("s"), BlockSpec("f"))
    alike = all(spec == pair[n % 2] for n, spec in enumerate(specs))
    return len(specs) // 2 if specs and len(specs) % 2 == 0 and alike else 0


def gpt2(config: ModelConfig) -> Described | None:
    layers = layers_of(config)
    if config.family != "gpt2" or not layers:
        return None
    told = {
        "model_type": "gpt2",
        "vocab_size": config.vocab_size,
        "n_positions": config.max_len,
        "n_embd": config.d_model,
        "n_layer": layers,
        "n_head": config.n_head,
        "n_inner": config.d_inner,
        "activation_function": ACTIVATIONS[config.activation],
        "layer_norm_epsilon": config.norm_eps,
        "tie_word_embeddings": config.tie_weights,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    return "GPT2LMHeadModel", told, convert.from_gpt2


def llama(config: ModelConfig) -> Described | None:
    layers = layers_of(config)
    if config.family != "llama" or not layers:
        return None
    told = {
        "model_type": "llama",
        "vocab_size": config.vocab_size,
        "hidden_size": config.d_model,
        "num_hidden_layers": layers,
        "num_attention_heads": config.n_head,
        "num_key_value_heads": config.n_kv_head or config.n_head,
        "head_dim": config.head_width(config.n_head),
        "intermediate_size": config.d_inner,
        "max_position_embeddings": config.max_len,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rotary_base},
        "hidden_act": ACTIVATIONS[config.activation],
        "attention_bias": config.attention_bias,
        "mlp_bias": config.feed_forward_bias,
        "rms_norm_eps": config.norm_eps,
        "tie_word_embeddings": config.tie_weights,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    return "LlamaForCausalLM", told, convert.from_llama


def encoder(config: ModelConfig) -> Json:
    """What BERT and its relatives are all told."""
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.d_model,
        "num_attention_heads": config.n_head,
        "intermediate_size": config.d_inner,
        "max_position_embeddings": config.max_len,
        "hidden_act": ACTIVATIONS[config.activation],
        "layer_norm_eps": config.norm_eps,
        "type_vocab_size": config.token_types,
        "tie_word_embeddings": config.tie_weights,
        "pad_token_id": max(config.pad, 0),
    }


def head_of(config: ModelConfig, name: str) -> str:
    """The class whose weights are these; BERT's for masked words alone has no pooler."""
    if config.head == "masked":
        return f"{name}For{'PreTraining' if config.pair_head != 'none' else 'MaskedLM'}"
    return f"{name}Model"


def bert(config: ModelConfig) -> Described | None:
    layers = layers_of(config)
    if config.family != "bert" or not layers:
        return None
    told = {"model_type": "bert", "num_hidden_layers": layers, **encoder(config)}
    return head_of(config, "Bert"), told, convert.from_bert


def albert(config: ModelConfig) -> Described | None:
    specs = list(config.pattern)
    if config.family != "albert" or len(specs) != 1 or specs[0].letter != "{":
        return None
    inside = str(specs[0].inside).replace(" ", "")
    if inside != "sf":
        return None
    told = {
        "model_type": "albert",
        "embedding_size": config.embed_width,
        "num_hidden_layers": specs[0].times,
        "num_hidden_groups": 1,
        "inner_group_num": 1,
        **encoder(config),
    }
    return head_of(config, "Albert"), told, convert.from_albert


def mobilebert(config: ModelConfig) -> Described | None:
    specs = list(config.pattern)
    if config.family != "mobilebert" or not specs or specs[0].inside is None:
        return None
    feed = str(specs[0].options.get("feed", ""))
    if feed not in ("shared", "inside", "outside") or any(spec != specs[0] for spec in specs):
        return None
    told = {
        "model_type": "mobilebert",
        "num_hidden_layers": len(specs),
        "num_feedforward_networks": len(specs[0].inside) - 1,
        "embedding_size": config.embed_width,
        "intra_bottleneck_size": config.d_bottleneck or config.d_model // 4,
        "true_hidden_size": config.d_bottleneck or config.d_model // 4,
        "use_bottleneck": True,
        "use_bottleneck_attention": feed == "inside",
        "key_query_shared_bottleneck": feed == "shared",
        "normalization_type": "no_norm" if config.norm_type == "affine" else "layer_norm",
        "classifier_activation": config.pool == "dense" or not config.pooler,
        "trigram_input": config.trigrams != "none",
        **encoder(config),
    }
    return head_of(config, "MobileBert"), told, convert.from_mobilebert


def way_back(
    model: Model, architecture: str, config: Json, way_in: Callable[..., Model]
) -> dict[str, Tensor] | None:
    """Our weights under foreign names; None where the way in makes another model of them."""
    foreign = blank(architecture, config)
    ids: dict[str, Tensor] = {}
    count = 0
    for name, weight in foreign.items():
        ids[name] = torch.arange(count, count + weight.numel()).double().view(weight.shape)
        count += weight.numel()
    assert count < LARGEST
    try:
        twin = way_in(ids, config | {"pooler": model.config.pooler})
    except ParformerError:
        return None
    if not same(twin.config, model.config):
        return None
    flat = torch.cat([weight.flatten().float() for weight in foreign.values()])
    ours = named_tensors(model)
    for name, where in named_tensors(twin).items():
        flat[where.detach().long().flatten()] = ours[name].detach().float().flatten().cpu()
    sizes = [weight.numel() for weight in foreign.values()]
    parts = zip(foreign.items(), torch.split(flat, sizes), strict=True)
    return {name: part.view(weight.shape).clone() for (name, weight), part in parts}


def same(one: ModelConfig, other: ModelConfig) -> bool:
    """Whether two configurations compute the same."""
    left, right = one.to_dict(), other.to_dict()
    for values in (left, right):
        values["n_kv_head"] = values["n_kv_head"] or values["n_head"]
        values["d_head"] = values["d_head"] or values["d_model"] // values["n_head"]
        unused = () if values["pooler"] else ("pool",)
        for name in ("start", "end", "pad", *FREE, *unused):
            values.pop(name, None)
    return left == right


def blank(architecture: str, config: Json) -> dict[str, Tensor]:
    """The foreign model's own weights, those that are kept under two names once."""
    import transformers

    described = transformers.AutoConfig.for_model(**config)
    foreign = getattr(transformers, architecture)(described)
    seen: set[int] = set()
    found = {}
    for name, weight in foreign.state_dict().items():
        if weight.data_ptr() not in seen and weight.is_floating_point():
            seen.add(weight.data_ptr())
            found[name] = weight.detach()
    return found
