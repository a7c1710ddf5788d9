"""Are weights in few bits the same whole numbers in C++ as in torch?"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from parformer.blocks.coded import CodedLinear
from parformer.embedding import SingleTable
from parformer.kernels import extension
from parformer.model import Model, build
from parformer.native.program import BITS, Weights
from parformer.weights import put, put_table
from tests.conftest import small_config
from tests.native.test_decoder import check, some_tokens

pytestmark = pytest.mark.skipif(not extension.find_compilers(), reason="needs a C++ compiler")

PATTERNS = [("llama", "sfsf"), ("gpt2", "sfsf"), ("transformer-xl", "sf"), ("sru", "rar")]
SIZES: dict[str, Any] = {"d_model": 72, "n_head": 3, "d_inner": 150, "vocab_size": 51}


def make(family: str, pattern: str, **changes: Any) -> Model:
    mem_len = 16 if family in ("transformer-xl", "sru") else 0
    model = build(small_config(family, pattern=pattern, mem_len=mem_len, **SIZES | changes))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            spread = 1.0 if "norm" in name else parameter.shape[-1] ** -0.5
            parameter.copy_(spread * torch.randn(parameter.shape, generator=generator))
    return model


def coded(model: Model, bits: int) -> Model:
    """The same model with every matrix in codes, multiplied by torch."""
    words = model.embedding.words
    assert isinstance(words, SingleTable)
    put_table(model, words, CodedLinear.of(words.tables[0], None, bits=bits))
    for path, module in list(model.named_modules()):
        if isinstance(module, nn.Linear):
            put(model, path, CodedLinear.of(module.weight, module.bias, bits=bits))
    return model


def rounded(model: Model, weights: Weights) -> Model:
    """The same model with every matrix rounded as its codes are, in fp32 again."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() != 2:
                continue
            if weights == "bfloat16":
                parameter.copy_(parameter.bfloat16())
            else:
                parameter.copy_(CodedLinear.of(parameter, None, bits=BITS[weights]).weight)
    return model


@pytest.mark.parametrize("level", ["best", "portable"])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("weights", ["bfloat16", "int8", "int4"])
@pytest.mark.parametrize(("family", "pattern"), PATTERNS)
def test_a_decoder_in_few_bits_is_the_rounded_model(
    family: str, pattern: str, weights: Weights, batch: int, level: str
) -> None:
    model = make(family, pattern)
    decoder = model.native(batch=batch, weights=weights, level=level, memory=16)
    if family == "transformer-xl":  # distances are projected once, with the weights as they are
        kept = [block.distance.weight.clone() for block in model.blocks[::2]]
    rounded(model, weights)
    if family == "transformer-xl":
        with torch.no_grad():
            for block, weight in zip(model.blocks[::2], kept, strict=True):
                block.distance.weight.copy_(weight)
    if family == "gpt2":
        fresh = make(family, pattern)
        with torch.no_grad():  # positions are no matrix
            model.embedding.positions.copy_(fresh.embedding.positions)
    with torch.inference_mode():
        state = model.initial_state(batch, 16)
        for number in range(8):
            tokens = some_tokens(batch, 1, 51, seed=number)
            out = model(tokens, state)
            state = out.state
            ours = decoder.step(tokens)
            assert_close(ours, out.logits[:, 0], atol=1e-3, rtol=0)
    assert float(out.logits.std()) > 0.3


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize(("family", "pattern"), PATTERNS)
def test_a_model_that_was_compressed_is_run_with_its_codes(
    family: str, pattern: str, bits: int
) -> None:
    model = coded(make(family, pattern), bits)
    if family == "llama":
        whole = make(family, pattern).native().bytes
        assert model.native().bytes < whole / 2  # rows this short are filled up
    check(model, batch=2, memory=16, steps=[1] * 5, near=1e-3)


@pytest.mark.parametrize("bits", [8, 4])
def test_odd_sizes_and_rows_of_zeros(bits: int) -> None:
    for width, inner, vocab in ((5, 3, 7), (33, 31, 17), (130, 257, 65)):
        model = make("gpt2", "ff", d_model=width, n_head=1, d_inner=inner, vocab_size=vocab)
        with torch.no_grad():
            model.blocks[0].inner.weight[1] = 0.0
            model.blocks[1].out.weight.zero_()
        for batch in (1, 2, 7):
            again = coded(make_again(model), bits)
            check(again, batch=batch, steps=[1] * 3, near=1e-3)


def make_again(model: Model) -> Model:
    again = build(model.config)
    again.load_state_dict(model.state_dict())
    return again
