"""Does SRU++ for translation give the same numbers here?

The oracle holds two stacks of the package sru, wired as Lei 2021 says: the source stands before the
text that the decoder's attention looks at.
"""

# b batch, t time

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor
from torch.testing import assert_close

import parformer as pf
from parformer.blocks.stack import StackState
from parformer.errors import ParformerError

ORACLE = Path(__file__).parents[1] / "oracles/srupp_translation_a.safetensors"
with safe_open(ORACLE, "pt") as file:
    TENSORS: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    CONFIG: dict[str, Any] = json.loads(file.metadata()["config"])


def part(prefix: str) -> dict[str, Tensor]:
    return {n.removeprefix(prefix): t for n, t in TENSORS.items() if n.startswith(prefix)}


def batch_first(name: str) -> Tensor:
    return TENSORS[name].transpose(0, 1)


SOURCE, TARGET = batch_first("input.source"), batch_first("input.target")
THERE = ~batch_first("input.source_padding")


@pytest.mark.parametrize("training", [True, False])
def test_both_sides_give_the_recorded_vectors(training: bool) -> None:
    translator = pf.convert.from_srupp_translation(part("weight."), CONFIG).train(training)
    encoded = translator.encode(SOURCE, THERE).vectors_bsd
    assert_close(encoded[THERE], batch_first("output.encoder")[THERE], atol=5e-6, rtol=0.0)
    found = translator(SOURCE, TARGET, THERE)
    assert_close(found, batch_first("output.decoder"), atol=5e-6, rtol=0.0)


def test_gradients_are_the_recorded_ones() -> None:
    translator = pf.convert.from_srupp_translation(part("weight."), CONFIG)
    (translator(SOURCE, TARGET, THERE) * batch_first("input.weight_of_output")).sum().backward()
    recorded = {n: t for n, t in part("grad.").items() if not n.startswith("input.")}
    wanted = dict(pf.convert.from_srupp_translation(recorded, CONFIG).named_parameters())
    for name, parameter in translator.named_parameters():
        truth = wanted[name].detach()
        assert parameter.grad is not None, name
        error, largest = float((parameter.grad - truth).abs().max()), float(truth.abs().max())
        assert error <= 5e-5 * largest + 1e-6, f"{name}: off by {error:g} of {largest:g}"


def test_the_decoder_goes_on_token_by_token_with_its_source_and_its_cells() -> None:
    translator = pf.convert.from_srupp_translation(part("weight."), CONFIG)
    with torch.no_grad():
        source = translator.encode(SOURCE, THERE)
        found: list[Tensor] = []
        state: StackState | None = None
        for x_b1e in TARGET.split(1, dim=1):
            fresh = source if state is None else None
            y_b1d, state = translator.decoder(translator.target_in(x_b1e), state, source=fresh)
            found.append(y_b1d)
    assert_close(torch.cat(found, dim=1), batch_first("output.decoder"), atol=5e-6, rtol=0.0)


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"bidirectional_encoder": True}, "bidirectional_encoder=true is not supported"),
        ({"project_input_first": False}, "project_input_first=false is not supported"),
        ({"decoder_layers": 3}, "the weights lack 'decoder.rnn_lst.2"),
    ],
)
def test_what_cannot_be_the_same_is_refused(config: dict[str, Any], problem: str) -> None:
    with pytest.raises(ParformerError, match=problem):
        pf.convert.from_srupp_translation(part("weight."), CONFIG | config)


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("transformer-translation-iwslt", 20_106_628),
        ("srupp-translation-iwslt", 20_358_544),
        ("srupp-k2-translation-iwslt", 19_572_106),
    ],
)
def test_presets_have_the_published_counts(name: str, count: int) -> None:
    assert pf.cost(pf.preset(name)).parameters == count


SMALL = {"vocab_size": 24, "source_vocab": 0, "d_model": 16, "d_attention": 8, "d_embed": 8}


@pytest.mark.parametrize("name", ["srupp-translation-iwslt", "srupp-k2-translation-iwslt"])
def test_a_model_of_srupp_translates_with_its_cells_carried(name: str) -> None:
    """By beams with state as by reading all again, alone as beside a longer sentence."""
    model = pf.build(pf.preset(name, **SMALL, pad=0, start=1, end=2), seed=3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=torch.manual_seed(5)))
    assert sum(p.numel() for p in model.parameters()) == pf.cost(model.config).parameters
    source = torch.tensor([[5, 9, 4, 7, 2], [8, 3, 2, 0, 0]])
    found = pf.translate(model, source, beam=3, max_len=6)
    alone = pf.translate(model, source[1:, :3], beam=3, max_len=6)
    time = min(found.tokens.shape[2], alone.tokens.shape[2])
    assert torch.equal(found.tokens[1, :, :time], alone.tokens[0, :, :time])
    text = [token for token in found.tokens[0, 0].tolist() if token != 0]
    with torch.no_grad():
        out = model(torch.tensor([[1, *text[:-1]]]), source=source[:1])
    logs = out.logits[0].log_softmax(-1).gather(1, torch.tensor(text)[:, None])
    assert_close(logs.sum() / len(text), found.scores[0, 0], atol=1e-5, rtol=0.0)


def test_a_source_that_is_missing_or_padded_in_front_is_refused() -> None:
    model = pf.build(pf.preset("srupp-translation-iwslt", **SMALL, pad=0))
    with pytest.raises(ParformerError, match="a decoder needs its source"):
        model(torch.tensor([[1, 2]]))
    with pytest.raises(ParformerError, match="put what does not count last"):
        model.encode(torch.tensor([[0, 5, 6]]))


def test_a_recurrence_outside_of_an_encoder_still_reads_from_the_past_on() -> None:
    with pytest.raises(ParformerError, match="take a causal family"):
        pf.build(pf.ModelConfig(family="bert", pattern="a", vocab_size=9, d_model=8, n_head=1,
                                d_inner=8, max_len=8))  # fmt: skip
