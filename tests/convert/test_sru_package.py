"""Does a stack give what the package sru gives now, where that is installed?

The recorded oracle has one configuration; here are the others that `from_sru` reads.
"""

# b batch, t time, d width

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import parformer as pf
from tests.conftest import noise

WIDTH, INSIDE, TIME = 16, 8, 6


@pytest.fixture(scope="module")
def package() -> Any:
    # it compiles with ninja, which pip puts beside python
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it looks for CUDA, and for a torch of its time
        return pytest.importorskip("sru", reason="comes with the extra 'bench'")


def run_theirs(module: nn.Module, x_btd: Tensor, state: Any) -> tuple[Tensor, Any]:
    """One segment, and what the next one needs."""
    cell, memory = (None, None) if state is None else state
    past, time = 0 if memory is None else memory[0].shape[0], x_btd.shape[1]
    hidden = torch.full((time, past + time), -1e4).triu(past + 1)
    y_tbd, cell, more = module(x_btd.transpose(0, 1), c0=cell, memory=memory, attn_mask=hidden)
    return y_tbd.transpose(0, 1), (cell.detach(), [x.detach() for x in more["saved_inputs"]])


@pytest.mark.parametrize(
    "options",
    [
        {"num_heads": 1, "attention_every_n_layers": 1},
        {"num_heads": 4, "attention_every_n_layers": 3},
        {"num_heads": 2, "attention_every_n_layers": 2, "pre": True},
        {"num_heads": 2, "attention_every_n_layers": 1, "attn_layer_norm": False},
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:Running SRU on CPU with grad_enabled")
def test_the_package_gives_the_same(package: Any, options: dict[str, Any]) -> None:
    """Outputs of two segments, cells, and the gradient of every weight."""
    torch.manual_seed(0)
    given = {name: value for name, value in options.items() if name != "pre"}
    theirs = package.SRUpp(WIDTH, WIDTH, INSIDE, num_layers=3, highway_bias=-2.0, **given)
    for layer in theirs.rnn_lst:
        layer.transform_module.normalize_after = "pre" not in options
    for parameter in theirs.parameters():
        if parameter.requires_grad and parameter.ndim == 1:
            nn.init.normal_(parameter, std=0.7)  # alpha and the norms as well
    config = {
        "d": WIDTH,
        "d_attention": INSIDE,
        "layers": 3,
        "attention_every": options["attention_every_n_layers"],
        "heads": options["num_heads"],
        "post_layer_norm": "pre" not in options,
    }
    ours = pf.convert.from_sru(theirs.state_dict(), config).train()
    theirs.train()
    mine = yours = None
    loss = {}
    for number in range(2):
        x_btd = noise(2, TIME, WIDTH, dtype=torch.float32, seed=number)
        y_btd, mine = ours(x_btd, mine)
        z_btd, yours = run_theirs(theirs, x_btd, yours)
        assert_close(y_btd, z_btd, atol=1e-5, rtol=0.0)
        assert_close(torch.stack([b.cell_bd for b in mine.blocks]), yours[0], atol=1e-5, rtol=0.0)
        loss = {"ours": y_btd.square().mean(), "theirs": z_btd.square().mean()}
    for value in loss.values():
        value.backward()
    recorded = {name: p.grad for name, p in theirs.named_parameters() if p.grad is not None}
    wanted = dict(pf.convert.from_sru(recorded, config).named_parameters())
    for name, parameter in ours.named_parameters():
        assert_close(parameter.grad, wanted[name].detach(), atol=1e-5, rtol=1e-4, msg=name)
        assert wanted[name].any(), name
