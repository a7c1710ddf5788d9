"""Synthesizers: the modes of tensorflow/mesh, and the factored dense form of a torch reading."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from parformer.blocks.stack import Stack
from parformer.config import ModelConfig
from parformer.convert.checkpoint import Checkpoint, Foreign, whole
from parformer.fields import check_names
from parformer.model import refill

MODES = {
    "random": "random",
    "factorized": "factored-random",
    "dense_minus": "dense",
    "random_plus": "random+vanilla",
    "random_plus_alpha": "random+vanilla,alpha",
    "dense_plus": "dense+vanilla",
    "dense_plus_alpha": "dense+vanilla,alpha",
    "factored_dense": "factored-dense",
}
"""What the modes are called here."""

SYNTHESIZER_FIELDS = ("d_model", "heads", "d_head", "length", "causal", "a", "b", "bias")
"""What `from_synthesizer` reads of a configuration; the rest is about how it was run."""


def from_synthesizer(weights: Mapping[str, Tensor], config: Foreign, mode: str) -> Stack:
    """One layer as its authors released it, without norm and residual sum, as a stack of one block.

    The stack maps (batch, time, width) to outputs and a state; `padding` hides places. Matrices of
    the mesh are (in, out) there. `factorized` has the same row for every query, as released:
    a bug, kept to be compared with; `y[factored-random]` is the paper's product.
    """
    check_names([mode], MODES, "mode of a Synthesizer")
    config = config.get(mode, config) if isinstance(config.get(mode), Mapping) else config
    own = {n: t for n, t in weights.items() if n.startswith(f"{mode}.weight.")}
    source = Checkpoint(own or weights, f"{mode}.weight." if own else "weight.")
    ours = stack_config(source, config, mode)
    got: dict[str, Tensor] = {}
    block = "blocks.0"
    if mode == "factored_dense":
        got |= source.linear("value_fc", f"{block}.key_value")
        for name in "ab":
            got |= source.linear(f"{name}_proj", f"{block}.scores.factored-dense.{name}")
        got[f"{block}.out.weight"] = torch.eye(ours.d_model)  # it ends with the values
        if ours.attention_bias:
            got[f"{block}.out.bias"] = torch.zeros(ours.d_model)
    else:
        got |= mesh_weights(source, block, mode)
    source.refuse_leftovers()
    with torch.device("meta"):
        outline = Stack(ours)
    return refill(outline, got)


def mesh_weights(source: Checkpoint, block: str, mode: str) -> dict[str, Tensor]:
    """The weights of a mode of the mesh, by our names."""
    got = {f"{block}.out.weight": source.take("o").T}
    if "q" in source:
        got[f"{block}.query.weight"] = source.take("q").T
    both = [source.take("k").T, source.take("v").T] if "plus" in mode else [source.take("kv").T]
    got[f"{block}.key_value.weight"] = torch.cat(both)
    if mode.startswith("random"):
        got[f"{block}.scores.random.table_hnn"] = source.take("R").transpose(0, 1)
    elif mode.startswith("dense"):
        got[f"{block}.scores.dense.shared.weight"] = source.take("pi.kernel").T
    else:
        place = f"{block}.scores.factored-random"
        got[f"{place}.rows_hnr"] = source.take("R1").permute(1, 2, 0)
        got[f"{place}.columns_hnr"] = source.take("R2").permute(1, 2, 0)
    if mode.endswith("alpha"):
        got[f"{block}.alpha"] = source.take("alpha")
    return got


def stack_config(source: Checkpoint, config: Foreign, mode: str) -> ModelConfig:
    """A stack of that one block; its table is as long as the weights are."""
    options = f"{MODES[mode]},bare,released"
    length = whole(config, "length")
    if mode == "factored_dense":
        options += f",a={whole(config, 'a')},b={whole(config, 'b')}"
    elif mode != "factorized":
        length = source.take("R" if mode.startswith("random") else "pi.kernel").shape[-1]
    else:
        options += f",rank={source.take('R1').shape[0]}"
        length = source.take("R1").shape[-1]
    return ModelConfig(
        family="gpt2",
        pattern=f"y[{options},length={length}]",  # type: ignore[arg-type]
        vocab_size=1,
        head="none",
        positions="none",
        final_norm=False,
        causal=bool(config.get("causal", False)),
        mem_len=length if config.get("causal", False) else 0,
        attention_bias=bool(config.get("bias", False)),
        d_model=whole(config, "d_model"),
        n_head=whole(config, "heads"),
        d_head=config.get("d_head", 0),
        d_inner=1,
    )
