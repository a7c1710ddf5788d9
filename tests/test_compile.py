"""Compiled steps give the numbers of plain ones, from one graph without a break."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import Tensor
from torch._dynamo.utils import counters

import parformer as pf
from parformer.embedding import IGNORE
from parformer.kernels import native
from parformer.model import Model
from tests.conftest import lively, small_config

# torch.compile itself uses what torch calls deprecated
pytestmark = pytest.mark.filterwarnings("ignore")

CASES: dict[str, dict[str, Any]] = {
    "relative": {"family": "transformer-xl", "mem_len": 18},
    "relative, short memory": {"family": "transformer-xl", "mem_len": 4, "same_length": True},
    "relu": {"family": "transformer-xl", "mem_len": 6, "activation": "relu"},
    "learned": {"family": "gpt2", "max_len": 6},
    "rotary": {"family": "llama", "max_len": 12},
    "both sides": {"family": "bert", "max_len": 6},
}


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    native.enable(False)
    torch._dynamo.reset()


def train(model: Model, call: Any = None) -> list[Tensor]:
    """Losses and gradients of eight steps, with the memory carried where there is one."""
    generator = torch.Generator().manual_seed(0)
    state, found = None, []
    for _ in range(8):
        tokens = torch.randint(13, (3, 6), generator=generator)
        targets = torch.randint(13, (3, 6), generator=generator)
        if not model.config.causal:
            targets[:, ::2] = IGNORE
        out = (model if call is None else call)(tokens, state, targets)
        state = out.state if model.config.positions == "relative" else None
        used = [p for name, p in model.named_parameters() if not name.startswith("pooler")]
        found += [out.loss.detach(), *torch.autograd.grad(out.loss, used)]
    return found


def make(name: str, **changes: Any) -> Model:
    return lively(pf.build(small_config(pattern="sf", **CASES[name], **changes))).train()


@pytest.mark.parametrize(
    ("name", "compiled_kernels"),
    [
        ("learned", True),
        ("relu", False),
        *(pytest.param(n, k, marks=pytest.mark.soak) for n in CASES for k in (False, True)),
    ],
)
def test_one_graph_serves_all_steps(name: str, compiled_kernels: bool) -> None:
    if native.enable(compiled_kernels) is not compiled_kernels:
        pytest.skip("needs a C++ compiler")
    expected, model = train(make(name)), make(name)
    model.compile(backend="aot_eager", fullgraph=True, dynamic=False)
    torch.testing.assert_close(train(model), expected, rtol=1e-4, atol=1e-5)
    assert counters["stats"]["unique_graphs"] == 1


@pytest.mark.soak
@pytest.mark.parametrize("name", CASES)
def test_a_whole_model_compiles_without_a_break(name: str) -> None:
    expected, model = train(make(name)), make(name)
    whole = torch.compile(model, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(train(model, whole), expected, rtol=1e-4, atol=1e-5)
    assert counters["stats"]["unique_graphs"] <= 4


@pytest.mark.soak
def test_dropout_is_drawn_anew_in_every_step() -> None:
    model = make("relative", dropout=0.3, dropatt=0.3)
    model.compile(backend="aot_eager", fullgraph=True, dynamic=False)
    tokens = torch.arange(12).view(2, 6)
    out = model(tokens)
    for _ in range(3):
        out = model(tokens, out.state)
    again = [model(tokens, out.state).hidden for _ in range(2)]
    assert counters["stats"]["unique_graphs"] == 1
    assert not torch.equal(*again)


@pytest.mark.soak
def test_an_adaptive_vocabulary_trains_compiled() -> None:
    changes = {"embedding": "adaptive", "cutoffs": [4, 8], "div_val": 2}
    expected, model = train(make("relative", **changes)), make("relative", **changes)
    model.compile(backend="aot_eager", dynamic=False)
    torch.testing.assert_close(train(model), expected, rtol=1e-4, atol=1e-5)


def test_what_needs_no_gradient_runs_as_it_is() -> None:
    model = make("learned")
    model.compile(backend="aot_eager", fullgraph=True, dynamic=False)
    with torch.no_grad():
        model(torch.arange(12).view(2, 6))
    model.eval()
    model(torch.arange(12).view(2, 6))
    assert "unique_graphs" not in counters["stats"]


@pytest.mark.soak
@pytest.mark.parametrize("name", CASES)
def test_the_real_compiler_gives_the_same(name: str) -> None:
    native.enable()
    expected, model = train(make(name)), make(name)
    model.compile(fullgraph=True, dynamic=False)
    torch.testing.assert_close(train(model), expected, rtol=1e-4, atol=1e-5)


def test_a_synthesizer_goes_through_its_windows() -> None:
    """Positions that grow end neither in a graph for every step nor in other numbers."""
    pattern, made = "y[dense+vanilla,length=16]y[random,length=16]", []
    config = small_config("transformer-xl", pattern=pattern, mem_len=8, tgt_len=8)
    plain, compiled = (lively(pf.build(config)).train() for _ in range(2))

    def count(graph: Any, inputs: Any) -> Any:
        made.append(graph)
        return graph

    compiled.compile(backend=count)
    tokens = torch.randint(13, (2, 96), generator=torch.Generator().manual_seed(0))
    states: list[Any] = [None, None]
    for piece in tokens.split(8, dim=1):
        outs = [m(piece, s, targets=piece) for m, s in zip((plain, compiled), states, strict=True)]
        states = [out.state for out in outs]
        torch.testing.assert_close(outs[0].loss, outs[1].loss)
    assert len(made) <= 4
