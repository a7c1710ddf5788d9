"""What the benchmarks compare computes the same numbers."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import torch

import parformer as pf

FOLDER = Path(__file__).parents[1] / "benchmarks"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_textbook_step_gives_parformers_loss_and_gradients() -> None:
    config = pf.preset(
        "par-base", pattern="sffsf", vocab_size=90, cutoffs=[30, 60], d_model=32, n_head=4,
        d_inner=48, dropout=0.0, mem_len=12, clamp_len=9,
    )  # fmt: skip
    model = pf.build(config, dtype=torch.float64).train()
    textbook = load("textbook").Textbook(model, 12, 2)
    state = model.initial_state(2, zeros=True)
    generator = torch.Generator().manual_seed(0)
    for _ in range(4):
        tokens = torch.randint(90, (2, 5), generator=generator)
        targets = torch.randint(90, (2, 5), generator=generator)
        out = model(tokens, state, targets)
        state = out.state
        mine = torch.autograd.grad(out.loss, list(model.parameters()))
        loss = textbook.step(tokens, targets)
        theirs = torch.autograd.grad(loss, list(model.parameters()))
        torch.testing.assert_close(out.loss, loss)
        torch.testing.assert_close(mine, theirs)
