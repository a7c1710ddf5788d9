"""Does Lite Transformer give the same numbers here?

The oracles hold weights, inputs, outputs and gradients that the released code gave.
"""

# b batch, t time, d width

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import Tensor, nn
from torch.testing import assert_close

import parformer as pf
from parformer.errors import ParformerError

ORACLES = Path(__file__).parents[1] / "oracles"


def read_oracle(name: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    with safe_open(ORACLES / f"{name}.safetensors", "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return json.loads(file.metadata()["config"]), tensors


def part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}


STACK, STACK_TENSORS = read_oracle("lsra_lm_a")
MODEL, MODEL_TENSORS = read_oracle("lsra_a")
STACK_WEIGHTS, MODEL_WEIGHTS = part(STACK_TENSORS, "weight."), part(MODEL_TENSORS, "weight.")
SOURCE, TARGET = MODEL_TENSORS["input.src_tokens"], MODEL_TENSORS["input.prev_output_tokens"]


def check_gradients(ours: nn.Module, wanted: nn.Module, relative: float) -> None:
    """Relative to the largest entry; a key's bias under a softmax has noise for a gradient."""
    theirs = dict(wanted.named_parameters())
    for name, parameter in ours.named_parameters():
        assert parameter.grad is not None, name
        found, truth = parameter.grad, theirs[name].detach()
        largest = float(truth.abs().max())
        assert largest > 0, name
        error = float((found - truth).abs().max())
        assert error <= relative * largest + 1e-6, f"{name}: off by {error:g} of {largest:g}"


def time_second(x_tbd: Tensor) -> Tensor:
    return x_tbd.transpose(0, 1)


# A stack


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("lengths", [[20], [7, 13], [1] * 20, [3, 1, 16]])
def test_a_stack_gives_the_recorded_outputs_in_any_pieces(
    training: bool, lengths: list[int]
) -> None:
    stack = pf.convert.from_lite_stack(STACK_WEIGHTS, STACK).train(training)
    state, found = None, []
    with torch.set_grad_enabled(training):
        for x_btd in time_second(STACK_TENSORS["input.x"]).split(lengths, dim=1):
            y_btd, state = stack(x_btd, state)
            found.append(y_btd.detach())
    wanted_btd = time_second(STACK_TENSORS["output.layers.1"])
    assert_close(torch.cat(found, dim=1), wanted_btd, atol=5e-6, rtol=0.0)


def test_a_stack_gives_the_recorded_gradients() -> None:
    stack = pf.convert.from_lite_stack(STACK_WEIGHTS, STACK)
    x_btd = time_second(STACK_TENSORS["input.x"]).clone().requires_grad_()
    stack(x_btd)[0].square().sum().backward()
    recorded = part(STACK_TENSORS, "grad.")
    truth = time_second(recorded.pop("input.x"))
    assert_close(x_btd.grad, truth, atol=5e-6 * float(truth.abs().max()), rtol=0.0)
    check_gradients(stack, pf.convert.from_lite_stack(recorded, STACK), 1e-5)


def test_the_stack_is_what_the_configuration_says() -> None:
    stack = pf.convert.from_lite_stack(STACK_WEIGHTS, STACK)
    first, second = stack.config.pattern[0], stack.config.pattern[2]
    assert str(first) == "l[branches=attend12h4+dynamic12h4k5]"
    assert str(second) == "l[branches=attend12h4+dynamic12h4k31]"
    assert (stack.config.norm, stack.config.final_norm, stack.config.causal) == ("pre", False, True)
    light = {
        n.replace("branches.1.weight_linear.weight", "branches.1.weight"): t
        for n, t in STACK_WEIGHTS.items()
    }
    for i, taps in enumerate(STACK["kernels"]):
        place = f"layers.{i}.self_attn.branches.1"
        light[f"{place}.weight"] = torch.randn(4, 1, taps)
        light[f"{place}.linear1.weight"] = torch.randn(12, 12)
        light[f"{place}.linear1.bias"] = torch.randn(12)
    branches = ["attn:1:12:4", "lightweight:default:12:4"]
    stack = pf.convert.from_lite_stack(light, STACK | {"branches": branches})
    assert str(stack.config.pattern[0]) == "l[branches=attend12h4+light12h4k5]"
    assert stack(torch.randn(2, 5, 24))[0].shape == (2, 5, 24)


@pytest.mark.parametrize(
    ("weights", "config", "problem"),
    [
        ({}, {"kernels": [5]}, r"hold 'layers.1.*', which this model has no place for"),
        ({}, {"kernels": [5, 31, 31]}, "the weights lack 'layers.2"),
        ({}, {"kernels": [5, 7]}, r"shape \(124, 12\), the configuration says \(28, 12\)"),
        ({}, {"branches": ["attn:1:8:4", "dynamic:default:12:4"]}, "have 20 channels together"),
        ({}, {"branches": ["attn:1:12:5", "dynamic:default:12:4"]}, "5 heads do not divide the 12"),
        ({}, {"branches": ["conv:1:12:4"]}, "a kind of attn, dynamic, lightweight, got 'conv:1"),
        ({}, {"branches": "attn:1:24:4"}, "branches are texts such as .*, got 'attn:1:24:4'"),
        ({}, {"weight_softmax": False}, "weight_softmax=false is not supported"),
        ({}, {"causal": False, "kernels": [4, 31]}, "a kernel of 4 taps .* has no middle"),
        ({}, {"heads": 4}, "unknown field of a Lite Transformer stack 'heads'"),
        ({"layers.0.fc3.weight": torch.ones(2)}, {}, "hold 'layers.0.fc3.weight'"),
    ],
)
def test_what_cannot_be_the_same_is_refused(
    weights: dict[str, Tensor], config: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ParformerError, match=problem) as caught:
        pf.convert.from_lite_stack(STACK_WEIGHTS | weights, STACK | config)
    assert "\n" not in str(caught.value)


# A model for translation


def smoothed(logits_btv: Tensor, target_bt: Tensor) -> Tensor:
    """(1 − e) of the target's loss and e of all classes' mean, over targets that are no pad."""
    losses_btv = -F.log_softmax(logits_btv, dim=-1)
    counted_bt = target_bt.ne(MODEL["pad"])
    own = losses_btv.gather(-1, target_bt[..., None])[..., 0][counted_bt].sum()
    every = losses_btv[counted_bt].sum()
    share = MODEL["label_smoothing"]
    return (1 - share) * own + share / logits_btv.shape[-1] * every


def test_a_translator_gives_the_recorded_logits_and_gradients() -> None:
    translator = pf.convert.from_lite_transformer(MODEL_WEIGHTS, MODEL)
    source = translator.model.encode(SOURCE)
    wanted = time_second(MODEL_TENSORS["output.encoder_out"])
    there = SOURCE.ne(MODEL["pad"])
    assert_close(source.vectors_bsd[there], wanted[there], atol=5e-6, rtol=0.0)
    logits = translator(SOURCE, TARGET).logits
    assert_close(logits, MODEL_TENSORS["output.logits"], atol=1e-5, rtol=0.0)
    loss = smoothed(logits, MODEL_TENSORS["input.target"])
    assert_close(loss[None], MODEL_TENSORS["output.loss_sum"], atol=0.0, rtol=1e-6)
    loss.backward()
    recorded = part(MODEL_TENSORS, "grad.")
    recorded["decoder.embed_tokens.weight"] = recorded["encoder.embed_tokens.weight"]
    check_gradients(translator, pf.convert.from_lite_transformer(recorded, MODEL), 5e-5)


def test_a_translator_goes_on_from_its_state() -> None:
    model = pf.convert.from_lite_transformer(MODEL_WEIGHTS, MODEL).model
    with torch.no_grad():
        out, logits = model(TARGET[:, :3], source=SOURCE), []
        logits.append(out.logits)
        for token in TARGET[:, 3:].split(1, dim=1):
            out = model(token, out.state)
            logits.append(out.logits)
    assert_close(torch.cat(logits, 1), MODEL_TENSORS["output.logits"], atol=1e-5, rtol=0.0)


def test_padding_leaks_as_released_and_not_without_leaky() -> None:
    """A sentence alone is encoded as it is beside longer ones, unless the block is told to leak."""
    row, wanted = MODEL["padded_row"], MODEL_TENSORS["output.encoder_out_row_alone"]
    leaky = pf.convert.from_lite_transformer(MODEL_WEIGHTS, MODEL).model
    pattern = str(leaky.config.pattern)
    assert pattern.count(",leaky") == 2
    tight = pf.model.reconfigure(leaky, pattern=pattern.replace(",leaky", ""))
    there = SOURCE[row].ne(MODEL["pad"])
    assert there.sum() == len(wanted) < len(there)
    for model in (leaky, tight):
        with torch.no_grad():
            alone = model.encode(SOURCE[row : row + 1, there]).vectors_bsd[0]
            beside = model.encode(SOURCE).vectors_bsd[row, there]
        assert_close(alone, wanted, atol=5e-6, rtol=0.0)
        assert (float((alone - beside).abs().max()) > 0.05) == (model is leaky)
    assert_close(beside, wanted, atol=5e-6, rtol=0.0)


def test_separate_embeddings_and_norms_before_have_their_places() -> None:
    """Three matrices for source, target and output, and a last norm on each side."""
    own = {
        "encoder.embed_tokens.weight": torch.randn(11, 16),
        "decoder.embed_out": torch.randn(23, 16),
    }
    for side in ("encoder", "decoder"):
        own |= {f"{side}.layer_norm.{name}": torch.randn(16) for name in ("weight", "bias")}
    config = MODEL | {"source_vocab": 11, "share_all_embeddings": False}
    config |= {"share_decoder_input_output_embed": False, "decoder_normalize_before": True}
    config |= {"encoder_normalize_before": True}
    translator = pf.convert.from_lite_transformer(MODEL_WEIGHTS | own, config)
    model = translator.model
    assert translator(SOURCE % 11, TARGET).logits.shape == (3, 7, 23)
    assert sum(p.numel() for p in model.parameters()) == pf.cost(model.config).parameters
    assert model.encoder.final_norm is not None
    with pytest.raises(ParformerError, match=r"tokens hold 22, outside 0 … 10"):
        translator(torch.full((1, 2), 22), TARGET[:1])
