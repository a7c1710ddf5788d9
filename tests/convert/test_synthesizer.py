"""Does every mode of the released Synthesizers give the same numbers here?

The oracle holds weights, outputs and gradients of tensorflow/mesh, and of a torch reading of the
factored dense form.
"""

# b batch, t time, d width

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
from parformer.blocks.stack import Stack
from parformer.blocks.taps import Taps
from parformer.convert.synthesizer import MODES
from parformer.errors import InputError, ParformerError

ORACLE = Path(__file__).parents[1] / "oracles" / "synthesizer_a.safetensors"
near = {"atol": 1e-5, "rtol": 1e-5}

with safe_open(ORACLE, "pt") as file:
    TENSORS = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    CONFIG = json.loads(file.metadata()["config"])

IDS_BT = TENSORS["input.sequence_id"]


def assert_near(found: Tensor, wanted: Tensor, name: str = "") -> None:
    """To 1e-5 of the largest number: scores of 40 leave fp32 no more of a gradient of 40."""
    most = 1e-5 * max(1.0, float(wanted.abs().max()))
    assert_close(found, wanted, atol=most, rtol=0.0, msg=lambda text: f"{name}: {text}")


def part(mode: str, what: str) -> dict[str, Tensor]:
    prefix = f"{mode}.{what}."
    return {n.removeprefix(prefix): t for n, t in TENSORS.items() if n.startswith(prefix)}


def run(stack: Stack, mode: str, x_btd: Tensor) -> Tensor:
    """The places of one text see each other: what the mesh calls padding is a text by itself."""
    if mode == "factored_dense":
        return stack(x_btd)[0]
    y_btd = torch.zeros_like(x_btd)
    for number in IDS_BT.unique():
        has_b = (number == IDS_BT).any(1)
        there_bt = IDS_BT[has_b] == number
        given_btd, _ = stack(x_btd[has_b], padding=there_bt)
        own_btd = torch.where(there_bt[..., None], given_btd, 0.0)
        y_btd = y_btd.index_add(0, has_b.nonzero()[:, 0], own_btd)
    return y_btd


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("training", [True, False])
def test_outputs_and_gradients_are_the_recorded_ones(mode: str, training: bool) -> None:
    stack = pf.convert.from_synthesizer(part(mode, "weight"), CONFIG, mode).train(training)
    x_btd = TENSORS[f"{mode}.input.x"].clone().requires_grad_()
    y_btd = run(stack, mode, x_btd)
    assert_near(y_btd, TENSORS[f"{mode}.output"])
    (y_btd * TENSORS[f"{mode}.input.weight_of_output"]).sum().backward()
    recorded = part(mode, "grad")
    assert_near(x_btd.grad, recorded.pop("input.x"))
    wanted = dict(pf.convert.from_synthesizer(recorded, CONFIG, mode).named_parameters())
    for name, parameter in stack.named_parameters():
        if mode == "factored_dense" and ".out." in name:
            continue  # which is not theirs
        assert_near(parameter.grad, wanted[name].detach(), name)
        assert wanted[name].any(), name


def test_the_attention_of_the_factored_form_is_the_recorded_one() -> None:
    weights = part("factored_dense", "weight")
    stack, taps = pf.convert.from_synthesizer(weights, CONFIG, "factored_dense"), Taps("weights")
    stack(TENSORS["factored_dense.input.x"], taps=taps)
    wanted_btn = TENSORS["factored_dense.output.attention"]
    assert_close(taps.heard["0"]["weights"][:, 0], wanted_btn, **near)


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "factored_dense"])
def test_a_causal_one_reads_in_pieces(mode: str) -> None:
    config = CONFIG | {"causal": True}
    stack = pf.convert.from_synthesizer(TENSORS, config, mode)
    x_btd = TENSORS[f"{mode}.input.x"]
    with torch.inference_mode():
        whole_btd, _ = stack(x_btd)
        first_btd, state = stack(x_btd[:, :4])
        second_btd, _ = stack(x_btd[:, 4:], state)
    assert_close(torch.cat((first_btd, second_btd), dim=1), whole_btd, **near)


@pytest.mark.parametrize(
    ("mode", "weights", "config", "problem"),
    [
        ("dense", {}, {}, "unknown mode of a Synthesizer 'dense'"),
        ("random", {"q": torch.ones(12, 12)}, {}, "lack 'blocks.0|have a surplus|no place for"),
        ("dense_plus", {"k": None}, {}, "the weights lack 'k'"),
        (
            "random_plus",
            {"alpha": torch.ones(1)},
            {},
            "hold 'alpha', which this model has no place",
        ),
        ("random", {}, {"heads": "3"}, "needs a whole number 'heads', got '3'"),
        ("random", {}, {"d_model": 10}, r"of shape \(12, 12\), the configuration says"),
    ],
)
def test_what_cannot_be_the_same_is_refused(
    mode: str, weights: dict[str, Any], config: dict[str, Any], problem: str
) -> None:
    given = part(mode, "weight") | weights
    given = {name: tensor for name, tensor in given.items() if tensor is not None}
    with pytest.raises(ParformerError, match=problem) as caught:
        pf.convert.from_synthesizer(given, CONFIG | config, mode)
    assert "\n" not in str(caught.value)


def test_a_text_beyond_its_length_is_refused() -> None:
    stack = pf.convert.from_synthesizer(TENSORS, CONFIG, "random")
    with pytest.raises(InputError, match="8 tokens are beyond the length 7"):
        stack(torch.zeros(1, 8, 12))
