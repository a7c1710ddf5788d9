from __future__ import annotations

import time
from typing import Any

import pytest
import torch

from parformer.config import preset
from parformer.measure import models
from parformer.measure.memory import peak_memory
from parformer.measure.models import Reader, measure_models, stand_in
from parformer.model import build

FAMILIES = ("pocket", "lts-gpt2", "llama-pocket", "srupp-pocket")


def small(name: str) -> Any:
    sizes = {"vocab_size": 300, "cutoffs": ()} if name == "lts-gpt2" else {}
    pattern = {"lts-gpt2": "(sf)x2", "srupp-pocket": "rra"}.get(name, "(sf)x2")
    return preset(name, pattern=pattern, d_model=64, n_head=4, d_inner=96, **sizes)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_stand_in_is_built_like_the_model_and_needs_the_same_memory(name: str) -> None:
    config = small(name)
    ours, theirs = stand_in(config), build(config)
    assert [(n, w.shape, w.dtype) for n, w in ours.named_parameters()] == [
        (n, w.shape, w.dtype) for n, w in theirs.named_parameters()
    ]
    assert not ours.training
    shape = models.step_shape(config, 8, 0, 1)
    peaks = []
    for model in (ours, theirs):
        reader = Reader(model, shape)
        reader()
        peaks.append(peak_memory(reader, resident=list(reader.resident())).peak_bytes)
    assert peaks[0] == peaks[1]
    with torch.inference_mode():
        assert torch.isfinite(ours(torch.zeros(1, 8, dtype=torch.long)).logits).all()


def test_a_stand_ins_weights_vary_and_lie_in_memory_of_their_own() -> None:
    config = small("pocket")
    weights = dict(stand_in(config).named_parameters())
    matrices = {name: w for name, w in weights.items() if w.ndim > 1}
    assert all(w.std() > 0.5 * config.init_std for w in matrices.values())
    assert len({w.untyped_storage().data_ptr() for w in weights.values()}) == len(weights)
    # nothing of it is as large as the piece, but what is larger repeats it
    large = stand_in(config.replaced(vocab_size=2 * models.PIECE // 64))
    table = max(large.parameters(), key=torch.numel).flatten()
    assert torch.equal(table[: models.PIECE], table[models.PIECE : 2 * models.PIECE])
    halved = stand_in(config, dtype=torch.bfloat16)
    assert {w.dtype for w in halved.parameters()} == {torch.bfloat16}


class Slow:
    """A reader that takes a given time, and counts how often it is called."""

    calls: dict[int, int]

    def __init__(self, model: Any, shape: Any, *, seed: int = 0) -> None:
        self.model = model
        self.seconds = 0.06 if len(model.config.pattern) > 1 else 0.0005
        self.shape = shape
        Slow.calls[len(model.config.pattern)] = 0

    def __call__(self) -> None:
        Slow.calls[len(self.model.config.pattern)] += 1
        time.sleep(self.seconds)

    def resident(self) -> list[torch.Tensor]:
        return list(self.model.parameters())


def test_a_long_step_runs_twice_before_its_rounds_and_once_in_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(models, "Reader", Slow)
    Slow.calls = {}
    one, two = (preset("pocket", pattern=p, d_model=16, n_head=2) for p in ("s", "ss"))
    found = measure_models({"short": one, "long": two}, rounds=8)
    assert Slow.calls[2] == 2 + 8
    assert Slow.calls[1] > 2 * 8
    assert found.latency["long"].median == pytest.approx(0.06, rel=0.2)
    assert found.latency["short"].median < 0.01
