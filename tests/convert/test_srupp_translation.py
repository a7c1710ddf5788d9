"""Does SRU++ for translation give the same numbers here?

The oracles hold two stacks of the package sru, wired as Lei 2021 says: the source stands before the
text that the decoder's attention looks at. That of two directions was recorded with sru 3.0.0.dev6.
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
from parformer.blocks.sru import Recurrent
from parformer.blocks.stack import StackState
from parformer.convert.srupp_translation import VectorTranslator
from parformer.errors import ParformerError
from tests.conftest import noise

ORACLES = Path(__file__).parents[1] / "oracles"


class Oracle:
    """What the package sru gave: `a` has an encoder of one direction, `b` of two."""

    def __init__(self, name: str) -> None:
        with safe_open(ORACLES / f"srupp_translation_{name}.safetensors", "pt") as file:
            self.tensors: dict[str, Tensor] = {n: file.get_tensor(n) for n in file.keys()}  # noqa: SIM118
            self.config: dict[str, Any] = json.loads(file.metadata()["config"])
        self.source, self.target = map(self.batch_first, ("input.source", "input.target"))
        self.there = ~self.batch_first("input.source_padding")

    def part(self, prefix: str) -> dict[str, Tensor]:
        return {n.removeprefix(prefix): t for n, t in self.tensors.items() if n.startswith(prefix)}

    def batch_first(self, name: str) -> Tensor:
        return self.tensors[name].transpose(0, 1)

    def translator(self) -> VectorTranslator:
        return pf.convert.from_srupp_translation(self.part("weight."), self.config)


@pytest.fixture(params=["a", "b"])
def oracle(request: pytest.FixtureRequest) -> Oracle:
    return Oracle(request.param)


@pytest.mark.parametrize("training", [True, False])
def test_both_sides_give_the_recorded_vectors(oracle: Oracle, training: bool) -> None:
    translator, there = oracle.translator().train(training), oracle.there
    encoded = translator.encode(oracle.source, there).vectors_bsd
    recorded = oracle.batch_first("output.encoder")
    assert_close(encoded[there], recorded[there], atol=5e-6, rtol=0.0)
    found = translator(oracle.source, oracle.target, there)
    assert_close(found, oracle.batch_first("output.decoder"), atol=5e-6, rtol=0.0)


def test_gradients_are_the_recorded_ones(oracle: Oracle) -> None:
    translator = oracle.translator()
    found = translator(oracle.source, oracle.target, oracle.there)
    (found * oracle.batch_first("input.weight_of_output")).sum().backward()
    recorded = {n: t for n, t in oracle.part("grad.").items() if not n.startswith("input.")}
    wanted = dict(pf.convert.from_srupp_translation(recorded, oracle.config).named_parameters())
    for name, parameter in translator.named_parameters():
        truth = wanted[name].detach()
        assert parameter.grad is not None, name
        error, largest = float((parameter.grad - truth).abs().max()), float(truth.abs().max())
        assert error <= 5e-5 * largest + 1e-6, f"{name}: off by {error:g} of {largest:g}"


def test_the_decoder_goes_on_token_by_token_with_its_source_and_its_cells(oracle: Oracle) -> None:
    translator = oracle.translator()
    with torch.no_grad():
        source = translator.encode(oracle.source, oracle.there)
        found: list[Tensor] = []
        state: StackState | None = None
        for x_b1e in oracle.target.split(1, dim=1):
            fresh = source if state is None else None
            y_b1d, state = translator.decoder(translator.target_in(x_b1e), state, source=fresh)
            found.append(y_b1d)
    wanted = oracle.batch_first("output.decoder")
    assert_close(torch.cat(found, dim=1), wanted, atol=5e-6, rtol=0.0)


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"project_input_first": False}, "project_input_first=false is not supported"),
        ({"decoder_layers": 3}, "the weights lack 'decoder.rnn_lst.2"),
    ],
)
def test_what_cannot_be_the_same_is_refused(config: dict[str, Any], problem: str) -> None:
    known = Oracle("a")
    with pytest.raises(ParformerError, match=problem):
        pf.convert.from_srupp_translation(known.part("weight."), known.config | config)


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


@pytest.mark.parametrize(
    ("pattern", "count"),
    [
        ("(a[both])x6 | (a[source])x6", 20_358_544),
        ("(r[both]a[both])x3 | (ra[source])x3", 19_572_106),
    ],
)
def test_two_directions_have_the_published_counts_too(pattern: str, count: int) -> None:
    assert pf.cost(pf.preset("srupp-translation-iwslt", pattern=pattern)).parameters == count


SMALL = {"vocab_size": 24, "source_vocab": 0, "d_model": 16, "d_attention": 8, "d_embed": 8}


@pytest.mark.parametrize(
    "pattern", ["(a)x6 | (a[source])x6", "(ra)x3 | (ra[source])x3", "r[both]a[both] | ra[source]"]
)
def test_a_model_of_srupp_translates_with_its_cells_carried(pattern: str) -> None:
    """By beams with state as by reading all again, alone as beside a longer sentence."""
    told = {**SMALL, "pad": 0, "start": 1, "end": 2, "pattern": pattern}
    model = pf.build(pf.preset("srupp-translation-iwslt", **told), seed=3)
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


# Both directions


def naive(block: Recurrent, x_td: Tensor, inside_tp: Tensor) -> Tensor:
    """One text, channel by channel: the first half onward, the second from the end."""
    width = x_td.shape[1]
    u_tkd = (inside_tp @ block.out.weight.T).view(len(x_td), 3, width)
    (vf, vr), (bf, br) = block.gate_weight.view(2, -1), block.gate_bias.view(2, -1)
    y_td = torch.zeros_like(x_td)
    for channel in range(width):
        cell = torch.zeros(())
        onward = range(len(x_td))
        for t in onward if channel < width // 2 else reversed(onward):
            candidate, forget, reset = u_tkd[t, :, channel]
            f = torch.sigmoid(forget + vf[channel] * cell + bf[channel])
            r = torch.sigmoid(reset + vr[channel] * cell + br[channel])
            cell = f * cell + (1 - f) * candidate
            y_td[t, channel] = r * cell + (1 - r) * x_td[t, channel]
    return y_td


def test_half_of_the_channels_read_from_the_end() -> None:
    """Alone and beside a longer text, outputs and gradients."""
    told = {**SMALL, "d_model": 6, "pattern": "r[full,both] | ra[source]", "d_embed": 4}
    model = pf.build(pf.preset("srupp-translation-iwslt", **told), seed=1)
    assert model.encoder is not None
    block = model.encoder.blocks[0]
    assert isinstance(block, Recurrent)
    x_btd = noise(2, 5, 6, dtype=torch.float32).requires_grad_()
    there_bt = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    y_btd, _ = model.encoder(x_btd, padding=there_bt)
    weight_td = noise(5, 6, dtype=torch.float32, seed=2)
    for row, length in ((0, 5), (1, 3)):
        x_td = x_btd[row, :length].detach().requires_grad_()
        wanted_td = naive(block, x_td, x_td)
        assert_close(y_btd[row, :length], wanted_td, atol=1e-6, rtol=0.0)
        (own,) = torch.autograd.grad((y_btd[row] * weight_td).sum(), x_btd, retain_graph=True)
        (wanted_td * weight_td[:length]).sum().backward()
        assert x_td.grad is not None
        assert_close(own[row, :length], x_td.grad, atol=1e-5, rtol=0.0)
    assert not y_btd[1, 3:].any()


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("a | r[both]a[source]", "which only the encoder of encoder . decoder may; leave it out"),
        ("(a[both])x2", "which only the encoder of encoder . decoder may"),
    ],
)
def test_a_decoder_never_reads_from_the_end(pattern: str, problem: str) -> None:
    with pytest.raises(ParformerError, match=problem):
        pf.cost(pf.preset("srupp-translation-iwslt", pattern=pattern, source_vocab=0))
