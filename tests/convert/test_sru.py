"""Does a stack of the package sru give the same numbers here?

The oracle holds weights, two segments and gradients that sru 3.0.0.dev6 gave.
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
from parformer.errors import ParformerError
from tests.conftest import noise

ORACLE = Path(__file__).parents[1] / "oracles" / "srupp_a.safetensors"
near = {"atol": 1e-5, "rtol": 0.0}


def read_oracle() -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Configuration, and everything else by name; time comes second here."""
    with safe_open(ORACLE, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        config = json.loads(file.metadata()["config"])
    for name in tensors:
        if name.split(".")[0] in ("input", "hidden") or name == "grad.input.0":
            tensors[name] = tensors[name].transpose(0, 1)
    return config, tensors


def part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}


CONFIG, TENSORS = read_oracle()
WEIGHTS = part(TENSORS, "weight.")


def cells(state: Any) -> Tensor:
    return torch.stack([block.cell_bd for block in state.blocks])


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_outputs_and_cells_are_the_recorded_ones(training: bool, mode: Any) -> None:
    stack = pf.convert.from_sru(WEIGHTS, CONFIG).train(training)
    state = None
    with mode():
        for segment in range(2):
            y_btd, state = stack(TENSORS[f"input.{segment}"], state)
            assert_close(y_btd, TENSORS[f"hidden.{segment}"], **near)
            assert_close(cells(state), TENSORS[f"cell.{segment}"], **near)


def test_token_by_token_the_recorded_numbers_come_out_too() -> None:
    stack, state, found = pf.convert.from_sru(WEIGHTS, CONFIG), None, []
    both_btd = torch.cat((TENSORS["input.0"], TENSORS["input.1"]), dim=1)
    with torch.inference_mode():
        for x_btd in both_btd.split(1, dim=1):
            y_btd, state = stack(x_btd, state)
            found.append(y_btd)
    wanted_btd = torch.cat((TENSORS["hidden.0"], TENSORS["hidden.1"]), dim=1)
    assert_close(torch.cat(found, dim=1), wanted_btd, **near)


@pytest.mark.parametrize("training", [True, False])
def test_gradients_are_the_recorded_ones(training: bool) -> None:
    stack = pf.convert.from_sru(WEIGHTS, CONFIG).train(training)
    x_btd = TENSORS["input.0"].clone().requires_grad_()
    y_btd, _ = stack(x_btd)
    y_btd.square().sum().backward()
    recorded = part(TENSORS, "grad.")
    assert_close(x_btd.grad, recorded.pop("input.0"), **near)
    wanted = dict(pf.convert.from_sru(recorded, CONFIG).named_parameters())
    assert wanted.keys() == dict(stack.named_parameters()).keys()
    for name, parameter in stack.named_parameters():
        assert_close(
            parameter.grad,
            wanted[name].detach(),
            **near,
            msg=lambda text, name=name: f"gradient of {name}: {text}",
        )
        assert wanted[name].any(), name


def test_the_stack_is_what_the_configuration_says() -> None:
    stack = pf.convert.from_sru(WEIGHTS, CONFIG | {"dropout": 0.2, "attn_dropout": 0.1})
    assert isinstance(stack, Stack)
    assert stack.config.pattern.letters == "rara"
    assert (stack.config.d_model, stack.config.d_attention) == (16, 8)
    assert [block.dropout for block in stack.blocks] == [0.2, 0.2, 0.2, 0.0]
    assert [block.inner_dropout for block in stack.blocks] == [0.2] * 4
    assert stack.blocks[1].dropatt == 0.1
    assert not stack.training
    assert not any(p.is_meta for p in stack.parameters())
    assert pf.convert.from_sru(WEIGHTS, CONFIG | {"mem_len": 3}).initial_state().memory == 3


def test_norm_and_heads_follow_the_configuration() -> None:
    """What the oracle leaves out: heads, norm before attention, or no norm at all."""
    bare = {name: t for name, t in WEIGHTS.items() if "layer_norm" not in name}
    answers = [
        pf.convert.from_sru(weights, CONFIG | more)(noise(1, 5, 16, dtype=torch.float32))[0]
        for weights, more in (
            (WEIGHTS, {}),
            (WEIGHTS, {"heads": 2}),
            (WEIGHTS, {"post_layer_norm": False}),
            (bare, {}),
        )
    ]
    for i, one in enumerate(answers):
        assert all(not torch.allclose(one, other) for other in answers[i + 1 :])
    assert "norm=pre" in str(
        pf.convert.from_sru(WEIGHTS, CONFIG | {"post_layer_norm": False}).config.pattern
    )


@pytest.mark.parametrize(
    ("weights", "config", "problem"),
    [
        ({}, {"layers": 5}, r"the weights lack 'rnn_lst.4"),
        ({}, {"layers": 3}, r"hold 'rnn_lst.3.*', which this model has no place for"),
        ({}, {"layers": 0}, "layers must be at least 1, got 0"),
        ({}, {"attention_every": 0}, "attention_every must be at least 1, got 0"),
        ({}, {"attention_every": 3}, "makes 48 numbers of a token, not 16; is attention_every"),
        ({}, {"d": "16"}, "needs a whole number 'd', got '16'"),
        ({}, {"d": 8}, "an SRU.. layer of width 8 makes 24 numbers of a token, not 48"),
        ({}, {"d_attention": 4}, r"shape \(48, 8\), the configuration says \(48, 4\)"),
        ({}, {"heads": 3}, "3 heads do not divide the width 8"),
        ({}, {"bidirectional": True}, "unknown field of an SRUpp configuration 'bidirectional'"),
        ({"rnn_lst.1.scale_x": torch.tensor([1.2])}, {}, "rescale=true .* is not supported"),
        ({"rnn_lst.1.layer_norm.weight": torch.ones(16)}, {}, "'rnn_lst.1.layer_norm.weight'"),
        ({"input_to_hidden.weight": torch.ones(16, 4)}, {}, "hold 'input_to_hidden.weight'"),
    ],
)
def test_what_cannot_be_the_same_is_refused(
    weights: dict[str, Tensor], config: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ParformerError, match=problem) as caught:
        pf.convert.from_sru(WEIGHTS | weights, CONFIG | config)
    assert "\n" not in str(caught.value)
