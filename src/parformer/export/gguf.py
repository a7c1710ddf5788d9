"""How does a model become a GGUF file, for llama.cpp and everything built on it?

A Llama-family pattern of attention and feed-forward in any order is an architecture `deci`, whose
layers have heads, key-value heads and widths of their own, or none; GPT-2's shape is `gpt2`.
Recurrence, convolution, look-ups and counts have no place there.
"""

# h heads, k head width, d width

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from parformer.blocks.attention import SelfAttention
from parformer.blocks.feed_forward import FeedForward
from parformer.data.bpe import Bpe
from parformer.data.characters import Bytes
from parformer.data.tokenizer import Tokenizer
from parformer.errors import ConfigError, need
from parformer.evaluate.perplexity import at_rest
from parformer.export.parity import Differs, texts
from parformer.export.words import byte_letters
from parformer.generate.writing import Sampling, generate
from parformer.model import Model
from parformer.store.files import Json, sync

TYPES = ("f32", "f16", "q8_0", "q4_0")
BLOCK = 32
"""Numbers that share a scale, in the types below 16 bits; rows must be a multiple of it."""
CLOSE = {"f32": 0.05, "f16": 0.1, "q8_0": 1.0, "q4_0": 6.0}
"""How far log-probabilities may lie apart: llama.cpp itself computes in fewer bits in places."""
GREEDY = 24
"""Tokens after each of three prompts."""


@dataclass
class Layer:
    """One layer there: attention, a feed-forward, or both."""

    attention: SelfAttention | None = None
    feed: FeedForward | None = None


def write(path: Path, tokenizer: Tokenizer, model: Model, kind: str) -> tuple[Json, Json]:
    """Write the file if llama.cpp, where it is installed, computes what the model computes."""
    gguf = need("gguf", extra="gguf")
    refuse_homeless(model)
    beside = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fill(gguf, beside, tokenizer, model, kind)
        compared = check(model, beside, kind)
        sync(beside)
        beside.replace(path)
    except OSError as error:
        raise ConfigError(f"cannot write {str(path)!r}: {error.strerror}") from None
    finally:
        beside.unlink(missing_ok=True)
    timed = compared.pop("latency", {})
    return compared, timed


def refuse_homeless(model: Model) -> None:
    """Say in a line why llama.cpp has no place for a model, and what comes nearest."""
    config = model.config
    blocks = [*model.blocks]
    strange = [b for b in blocks if not isinstance(b, SelfAttention | FeedForward)]
    why = ""
    if strange or model.encoder is not None:
        letters = "".join(sorted({getattr(b, "letter", "?") for b in strange})) or "|"
        near = "".join("f" if isinstance(b, FeedForward) else "s" for b in blocks)
        why = f"blocks {letters!r} of {str(config.pattern)!r}; the nearest that has is {near!r}"
    elif model.prior is not None:
        why = "counts and repeats; train it with counts=0 and recall=0"
    elif config.family not in ("llama", "gpt2") or config.head != "lm":
        why = f"the family {config.family!r}; llama and gpt2 have one"
    elif config.family == "gpt2":
        why = gpt2_differs(model)
    else:
        why = llama_differs(model)
    if why:
        raise ConfigError(f"GGUF has no home for {why}")


def llama_differs(model: Model) -> str:
    config = model.config
    widths = {b.width for b in model.blocks if isinstance(b, SelfAttention)}
    if len(widths) > 1:
        return f"heads of different widths ({sorted(widths)}); give all one with head="
    if config.attention_bias or config.feed_forward_bias or config.output_bias:
        return "biases of the llama family; train it without"
    if not config.gated or config.activation != "silu" or config.norm_type != "rms":
        return "a llama that is not gated by silu under root-mean-square norms"
    return ""


def gpt2_differs(model: Model) -> str:
    config = model.config
    layers = [*layers_of(model)]
    whole = all(one.attention is not None and one.feed is not None for one in layers)
    shapes = {(one.attention.heads, one.feed.out.in_features) for one in layers if whole}  # type: ignore[union-attr]
    plain = all(b.kv_heads == b.heads for b in model.blocks if isinstance(b, SelfAttention))
    if not whole or len(shapes) != 1 or not plain or config.activation != "gelu-tanh":
        return (
            f"{str(config.pattern)!r} of the family gpt2: layers there are all alike; the nearest "
            f"that has is '(sf)x{max(1, len(layers))}', or the family llama in any order"
        )
    return ""


def layers_of(model: Model) -> Iterator[Layer]:
    """Attention and the feed-forward behind it are a layer; so is each alone."""
    layer = Layer()
    for block in model.blocks:
        if isinstance(block, SelfAttention):
            if layer.attention is not None:
                yield layer
                layer = Layer()
            layer.attention = block
        else:
            assert isinstance(block, FeedForward)
            layer.feed = block
            yield layer
            layer = Layer()
    if layer.attention is not None:
        yield layer


def fill(gguf: Any, path: Path, tokenizer: Tokenizer, model: Model, kind: str) -> None:
    """Everything that the file holds."""
    config = model.config
    layers = [*layers_of(model)]
    is_gpt2 = config.family == "gpt2"
    writer = gguf.GGUFWriter(path, "gpt2" if is_gpt2 else "deci")
    writer.add_name(path.name.split(".")[1] or "parformer")
    writer.add_context_length(config.max_len)
    writer.add_embedding_length(config.d_model)
    writer.add_block_count(len(layers))
    writer.add_vocab_size(config.vocab_size)
    writer.add_file_type({"f32": 0, "f16": 1, "q4_0": 2, "q8_0": 7}[kind])
    if is_gpt2:
        first = layers[0]
        assert first.attention is not None
        assert first.feed is not None
        writer.add_head_count(first.attention.heads)
        writer.add_feed_forward_length(first.feed.out.in_features)
        writer.add_layer_norm_eps(config.norm_eps)
    else:
        heads = [one.attention for one in layers]
        # the first layer must have a head, and gets one of zeros where the pattern has none
        least = [1] + [0] * (len(layers) - 1)
        pairs = list(zip(heads, least, strict=True))
        writer.add_head_count([few if one is None else one.heads for one, few in pairs])
        writer.add_head_count_kv([few if one is None else one.kv_heads for one, few in pairs])
        feeds = [BLOCK if o.feed is None else o.feed.out.in_features for o in layers]
        writer.add_feed_forward_length(feeds)
        width = head_width(model)
        writer.add_key_length(width)
        writer.add_value_length(width)
        writer.add_rope_dimension_count(width)
        writer.add_rope_freq_base(config.rotary_base)
        writer.add_layer_norm_rms_eps(config.norm_eps)
    add_tokenizer(gguf, writer, tokenizer, config.vocab_size)
    named = gpt2_tensors(model, layers) if is_gpt2 else llama_tensors(model, layers)
    for name, tensor in named:
        add_tensor(gguf, writer, name, tensor.detach().float().cpu().numpy(), kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_tensor(gguf: Any, writer: Any, name: str, array: NDArray[np.float32], kind: str) -> None:
    """A tensor in the type that was asked for, where its rows allow it; vectors stay exact."""
    wanted = getattr(gguf.GGMLQuantizationType, kind.upper())
    if array.ndim < 2 or name.startswith("position"):
        wanted = gguf.GGMLQuantizationType.F32
    elif kind.startswith("q") and array.shape[-1] % BLOCK:
        wanted = gguf.GGMLQuantizationType.F16
    data = gguf.quants.quantize(np.ascontiguousarray(array), wanted)
    writer.add_tensor(name, data, raw_dtype=wanted)


def llama_tensors(model: Model, layers: list[Layer]) -> Iterator[tuple[str, Tensor]]:
    yield from ends(model)
    for number, layer in enumerate(layers):
        at, d = f"blk.{number}", model.config.d_model
        if layer.attention is not None:
            block = layer.attention
            sizes = [block.heads * block.width] + [block.kv_heads * block.width] * 2
            q, k, v = torch.split(weight_of(block.qkv), sizes)
            yield f"{at}.attn_norm.weight", weight_of(block.norm)
            yield f"{at}.attn_q.weight", in_turns(q, block.heads)
            yield f"{at}.attn_k.weight", in_turns(k, block.kv_heads)
            yield f"{at}.attn_v.weight", v
            yield f"{at}.attn_output.weight", weight_of(block.out)
        elif number == 0:
            width = head_width(model)
            yield f"{at}.attn_norm.weight", torch.ones(d)
            for name in ("attn_q", "attn_k", "attn_v"):
                yield f"{at}.{name}.weight", torch.zeros(width, d)
            yield f"{at}.attn_output.weight", torch.zeros(d, width)
        if layer.feed is None:  # a layer without one is left out whole, so it gets one of zeros
            yield f"{at}.ffn_norm.weight", torch.ones(d)
            yield f"{at}.ffn_gate.weight", torch.zeros(BLOCK, d)
            yield f"{at}.ffn_up.weight", torch.zeros(BLOCK, d)
            yield f"{at}.ffn_down.weight", torch.zeros(d, BLOCK)
            continue
        gate, up = weight_of(layer.feed.inner).chunk(2)
        yield f"{at}.ffn_norm.weight", weight_of(layer.feed.norm)
        yield f"{at}.ffn_gate.weight", gate
        yield f"{at}.ffn_up.weight", up
        yield f"{at}.ffn_down.weight", weight_of(layer.feed.out)


def head_width(model: Model) -> int:
    widths = (block.width for block in model.blocks if isinstance(block, SelfAttention))
    return next(widths, BLOCK)


def gpt2_tensors(model: Model, layers: list[Layer]) -> Iterator[tuple[str, Tensor]]:
    yield from ends(model)
    assert model.embedding.positions is not None
    yield "position_embd.weight", model.embedding.positions
    for number, layer in enumerate(layers):
        assert layer.attention is not None
        assert layer.feed is not None
        parts = {
            "attn_norm": layer.attention.norm,
            "attn_qkv": layer.attention.qkv,
            "attn_output": layer.attention.out,
            "ffn_norm": layer.feed.norm,
            "ffn_up": layer.feed.inner,
            "ffn_down": layer.feed.out,
        }
        for name, module in parts.items():
            yield f"blk.{number}.{name}.weight", weight_of(module)
            yield f"blk.{number}.{name}.bias", weight_of(module, "bias")


def ends(model: Model) -> Iterator[tuple[str, Tensor]]:
    """The embedding, the last norm, and the head unless it is the embedding again."""
    yield "token_embd.weight", model.embedding.words.tables[0]
    assert model.final_norm is not None
    yield "output_norm.weight", weight_of(model.final_norm)
    if model.config.family == "gpt2":
        yield "output_norm.bias", weight_of(model.final_norm, "bias")
    if not model.config.tie_weights:
        assert model.head is not None
        yield "output.weight", weight_of(model.head.get_submodule("out"))


def weight_of(module: torch.nn.Module, name: str = "weight") -> Tensor:
    found = getattr(module, name)
    assert isinstance(found, Tensor)
    return found


def in_turns(rows_hd: Tensor, heads: int) -> Tensor:
    """Rows in the order that llama.cpp turns them in: pairs side by side, not half a head apart."""
    halves = rows_hd.view(heads, 2, -1, rows_hd.shape[-1])
    return halves.transpose(1, 2).reshape(rows_hd.shape)


def add_tokenizer(gguf: Any, writer: Any, tokenizer: Tokenizer, size: int) -> None:
    """Bytes, or byte pairs as GPT-2 has them."""
    if isinstance(tokenizer, Bytes):
        letters = byte_letters()
        words = [letters[byte] for byte in range(256)]
        merges = [f"{letters[0]} {letters[0]}"]  # there must be one; this makes no token
    elif isinstance(tokenizer, Bpe):
        told = tokenizer.to_dict()["library"]["model"]
        words = sorted(told["vocab"], key=told["vocab"].__getitem__)
        merges = [" ".join(pair) for pair in told["merges"]]
    else:
        raise ConfigError(
            f"GGUF has no home for a {tokenizer.kind} tokenizer; byte and bpe have one"
        )
    kinds = [gguf.TokenType.NORMAL] * len(words) + [gguf.TokenType.UNUSED] * (size - len(words))
    words += [f"[UNUSED{number}]" for number in range(len(words), size)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(words)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    writer.add_add_bos_token(False)
    # where none is named, a token that texts do hold would end them
    writer.add_eos_token_id(words.index(byte_letters()[0]))


def check(model: Model, path: Path, kind: str) -> Json:
    """Compare with what llama.cpp computes, where it is installed."""
    if find_spec("xllamacpp") is None:
        return {"compared": [], "note": "xllamacpp is not installed, so nothing was compared"}
    worst, same, compared = 0.0, [], []
    greedy = Sampling(temperature=0)
    room = max(1, min(GREEDY, model.config.max_len - 17))
    first = [texts(model, 1, time)[0].tolist() for time in (1, 7, 16)]
    written = generate(model, first, room, sampling=greedy)
    # after each token that the model itself writes
    prompts = [a + b[:n] for a, b in zip(first, written, strict=True) for n in range(room)]
    told = ask_llama_cpp(path, prompts, model.config.max_len)
    with at_rest(model):
        for prompt, one in zip(prompts, told["likeliest"], strict=True):
            if not one:
                continue
            state = model.initial_state(1, model.config.memory or model.config.step_len)
            logits = model(torch.tensor([prompt]), state, last_only=True).logits
            assert logits is not None
            logs_v = logits[0, -1].float().log_softmax(-1)
            apart = (abs(float(logs_v[int(token)]) - value) for token, value in one.items())
            worst = max(worst, *apart)
            same.append(int(logs_v.argmax()) == int(max(one, key=one.__getitem__)))
            compared.append(f"the token after {len(prompt)} others")
    if worst > CLOSE[kind]:
        raise Differs(
            f"llama.cpp's log-probabilities differ by {worst:.2g}, {CLOSE[kind]:g} is allowed for "
            f"{kind}; nothing was written"
        )
    return {
        "largest_difference": worst,
        "compared": compared,
        "likeliest_token_equal": sum(same) / len(same),
        "latency": {"llama.cpp": {"seconds_per_token": told["seconds"]}},
    }


def ask_llama_cpp(path: Path, prompts: list[list[int]], context: int, threads: int = 1) -> Json:
    """What comes after each prompt and how fast, from a process of its own."""
    asked = {"file": str(path.resolve()), "prompts": prompts, "context": context}
    asked |= {"threads": threads, "tokens": max(1, min(64, context - 17))}
    done = subprocess.run(
        [sys.executable, "-m", "parformer.export.llama_cpp"],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if done.returncode or not done.stdout:
        raise Differs(
            f"llama.cpp cannot run the file (status {done.returncode}"
            f"{'; ' + done.stderr.strip()[-200:] if done.stderr else ''}); nothing was written"
        )
    found: Json = json.loads(done.stdout)
    return found
