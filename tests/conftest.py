"""Small models with weights that matter, and a count of the multiplications that really happen."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before torch: tests share their machine

import pytest
import torch
from hypothesis import HealthCheck, settings
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from parformer.blocks import BlockState, Context, Source
from parformer.blocks.places import Places, sinusoids
from parformer.config import FAMILIES, ModelConfig
from parformer.model import Model, build
from parformer.pattern import Pattern

# A slow machine is no failure, and the same examples run everywhere.
settings.register_profile(
    "parformer", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("parformer")


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Nothing is kept where the person who runs the tests keeps things; all workers share it."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    os.environ["PARFORMER_CACHE"] = str(folder / "cache")


@pytest.fixture(autouse=True, scope="session")
def no_power_cut() -> Iterator[None]:
    """No test waits for a disk: what a killed process wrote is there all the same."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


torch.set_num_threads(1)  # such small products only lose by being shared out


def different_families() -> list[str]:
    """One family of each kind that blocks can tell apart: the others differ at the ends alone."""
    told = ("causal", "norm_type", "gated", "attention_bias", "feed_forward_bias", "inner_dropout")
    kinds: dict[tuple[object, ...], str] = {}
    for family, usual in FAMILIES.items():
        positions = usual["positions"] if usual["positions"] in ("relative", "rotary") else ""
        kinds.setdefault((positions, *(usual[name] for name in told)), family)
    return list(kinds.values())


DIFFERENT = different_families()
SOURCE = 6
"""Tokens that an encoder has read."""


def small_config(family: str, **changes: Any) -> ModelConfig:
    """A configuration that is quick to build: width 12, three heads of width 4."""
    values: dict[str, Any] = {
        "family": family,
        "pattern": "sf",
        "vocab_size": 13,
        "d_model": 12,
        "n_head": 3,
        "d_inner": 20,
    }
    if family != "transformer-xl":
        values["max_len"] = 64
    values |= changes
    if Pattern.parse(values["pattern"]).letters == "c":
        values["pattern"] = "f | c"  # which looks at an encoder
    return ModelConfig.from_dict(values)


@cache
def small_model(
    family: str,
    pattern: str,
    dtype: torch.dtype = torch.float64,
    **changes: Any,
) -> Model:
    """A model whose weights are large enough that every one of them shows in the output."""
    return lively(build(small_config(family, pattern=pattern, **changes), dtype=dtype))


@torch.no_grad()
def lively(model: Model) -> Model:
    """The same model with weights and biases far from nought, the same on every call."""
    generator = torch.Generator().manual_seed(7)
    for parameter in model.parameters():
        fresh = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        parameter.copy_(0.4 * fresh)
    return model


def noise(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    """Normal numbers, the same on every call."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def run_block(
    model: Model,
    x_btd: Tensor,
    state: BlockState | None = None,
    *,
    memory: int = 0,
    position: int = 0,
    padding: Tensor | None = None,
) -> tuple[Tensor, BlockState | None]:
    """One step of a model's first block, given what a model would give it."""
    context = context_of(model, len(x_btd), memory, position, padding)
    context = replace(context, tokens=tokens_of(x_btd))
    if state is not None and not model.training:
        context = replace(context, source=None)  # which the block remembers
    y_btd, after = model.blocks[0](x_btd, state, context)
    return y_btd, after


def tokens_of(x_btd: Tensor) -> Tensor:
    """Tokens that such vectors might stand for: the same for the same vector."""
    return (x_btd.detach()[..., 0].double() * 999).long() % 97


def context_of(
    model: Model, batch: int, memory: int = 0, position: int = 0, padding: Tensor | None = None
) -> Context:
    """What a model tells its blocks; one with an encoder gives all texts the same source."""
    config = model.config
    dtype = next(model.parameters()).dtype
    source = None
    if model.encoder is not None:
        one_1sd = noise(1, SOURCE, config.d_model, dtype=dtype, seed=5)
        source = Source(one_1sd.expand(batch, -1, -1))
    places = None
    if config.positions == "relative":
        biases = None
        if model.content_bias is not None and model.position_bias is not None:
            biases = (model.content_bias, model.position_bias)

        def table(count: int, ahead: int) -> Tensor:
            return sinusoids(count, config.d_model, config.clamp_len, ahead).to(dtype)

        places = Places(table, biases)
    return Context(memory, position, padding, source, places)


def run_pieces(
    model: Model, x_btd: Tensor, lengths: list[int], *, memory: int
) -> tuple[Tensor, BlockState | None]:
    """A text in pieces of these lengths, each after what the block remembers of the others."""
    pieces, state, position = [], None, 0
    for piece_btd in torch.split(x_btd, lengths, dim=1):
        y_btd, state = run_block(model, piece_btd, state, memory=memory, position=position)
        pieces.append(y_btd)
        position += piece_btd.shape[1]
    return torch.cat(pieces, dim=1), state


class CountFlops(TorchDispatchMode):
    """Two FLOPs for every multiply-add of the matrix products that run inside `with`."""

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name in ("mm", "bmm"):
            self.flops += 2 * args[0].numel() * args[1].shape[-1]
        elif name in ("addmm", "baddbmm"):
            self.flops += 2 * args[1].numel() * args[2].shape[-1]
        elif func.namespace == "parformer" and name == "convolution":
            self.flops += 2 * result.numel() * args[1].shape[-1]
        elif name.startswith("_scaled_dot_product"):
            query_bhtk, key_bgnk = args[:2]
            self.flops += 2 * 2 * query_bhtk.numel() * key_bgnk.shape[2]
        else:
            for product in ("mm", "mv", "dot", "linear", "matmul", "einsum", "conv"):
                assert product not in name.split("_"), f"{name} multiplies, but is not counted"
        return result
