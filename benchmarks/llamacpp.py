"""The weights of a Parformer model as GGUF, and llama.cpp that writes with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import torch
import xllamacpp
from gguf.quants import quantize

from parformer.model import Model

TYPES = {
    "float32": gguf.GGMLQuantizationType.F32,
    "int8": gguf.GGMLQuantizationType.Q8_0,
    "int4": gguf.GGMLQuantizationType.Q4_0,
}


def write_gguf(model: Model, path: Path, weights: str) -> None:
    """A model of `s` and `f` in turn, of the family gpt2 or llama, as llama.cpp knows it."""
    config = model.config
    arch = {"gpt2": "gpt2", "llama": "llama"}[config.family]
    layers = len(model.blocks) // 2
    writer = gguf.GGUFWriter(path, arch)
    writer.add_context_length(config.max_len)
    writer.add_embedding_length(config.d_model)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(config.d_inner)
    writer.add_head_count(config.n_head)
    if arch == "llama":
        writer.add_head_count_kv(config.n_kv_head or config.n_head)
        writer.add_layer_norm_rms_eps(config.norm_eps)
        writer.add_rope_dimension_count(config.head_width(config.n_head))
        writer.add_rope_freq_base(config.rotary_base)
    else:
        writer.add_layer_norm_eps(config.norm_eps)
    writer.add_vocab_size(config.vocab_size)
    add_tokenizer(writer, config.vocab_size)
    tensors = gpt2_tensors(model) if arch == "gpt2" else llama_tensors(model)
    for name, tensor in tensors.items():
        array = tensor.detach().float().contiguous().numpy()
        whole = array.ndim == 1 or name == "position_embd.weight"
        kind = TYPES["float32" if whole else weights]
        writer.add_tensor(name, quantize(array, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_tokenizer(writer: gguf.GGUFWriter, size: int) -> None:
    """Tokens that nobody reads: prompts are given as numbers."""
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([f"t{n}" for n in range(size)])
    writer.add_token_types([gguf.TokenType.NORMAL] * size)
    writer.add_token_merges(["t 0"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(size - 1)
    writer.add_add_bos_token(False)


def gpt2_tensors(model: Model) -> dict[str, torch.Tensor]:
    found: dict[str, Any] = ends(model)
    found["position_embd.weight"] = model.embedding.positions
    found["output_norm.bias"] = model.final_norm.bias
    for n in range(len(model.blocks) // 2):
        s, f = pair(model, n)
        parts = {
            "attn_norm": s.norm, "attn_qkv": s.qkv, "attn_output": s.out,
            "ffn_norm": f.norm, "ffn_up": f.inner, "ffn_down": f.out,
        }  # fmt: skip
        for name, module in parts.items():
            found[f"blk.{n}.{name}.weight"] = module.weight
            found[f"blk.{n}.{name}.bias"] = module.bias
    return found


def llama_tensors(model: Model) -> dict[str, torch.Tensor]:
    found = ends(model)
    for n in range(len(model.blocks) // 2):
        s, f = pair(model, n)
        sizes = [s.heads * s.width, *[s.kv_heads * s.width] * 2]
        q, k, v = torch.split(s.qkv.weight, sizes)
        gate, up = f.inner.weight.chunk(2)
        parts = {
            "attn_norm": s.norm.weight, "attn_q": in_turn(q, s.heads),
            "attn_k": in_turn(k, s.kv_heads), "attn_v": v, "attn_output": s.out.weight,
            "ffn_norm": f.norm.weight, "ffn_gate": gate, "ffn_up": up, "ffn_down": f.out.weight,
        }  # fmt: skip
        found |= {f"blk.{n}.{name}.weight": weight for name, weight in parts.items()}
    return found


def pair(model: Model, layer: int) -> tuple[Any, Any]:
    """An attention and its feed-forward."""
    return model.blocks[2 * layer], model.blocks[2 * layer + 1]


def ends(model: Model) -> dict[str, Any]:
    """Table and last norm; without an `output.weight` the head is tied."""
    table = model.embedding.words.tables[0]
    return {"token_embd.weight": table, "output_norm.weight": model.final_norm.weight}


def in_turn(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows whose rotary pairs stand side by side, as llama.cpp turns them."""
    return weight.view(heads, 2, -1, weight.shape[1]).transpose(1, 2).reshape(weight.shape)


class Llama:
    """A llama.cpp server in this process; `write` gives tokens and how long each took."""

    def __init__(self, path: Path, threads: int, context: int) -> None:
        params = xllamacpp.CommonParams()
        params.model.path = str(path)
        params.n_ctx = context
        params.n_parallel = 1
        params.n_gpu_layers = 0
        params.cpuparams.n_threads = threads
        params.cpuparams_batch.n_threads = threads
        params.warmup = True
        params.verbosity = -1
        self.server = xllamacpp.Server(params)

    def write(self, prompt: list[int], count: int) -> tuple[list[int], float]:
        asked: dict[str, Any] = {
            "prompt": prompt, "n_predict": count, "temperature": 0.0, "samplers": ["top_k"],
            "top_k": 1, "ignore_eos": True, "cache_prompt": False,
        }  # fmt: skip
        answer = self.server.handle_completions(asked)
        tokens = [int(token) for token in answer["choices"][0]["text"].split("t")[1:]]
        return tokens, answer["timings"]["predicted_per_token_ms"] / 1000
