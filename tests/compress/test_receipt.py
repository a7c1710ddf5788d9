"""Are models measured with what was asked for?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import parformer as pf
from parformer.compress import receipt
from parformer.compress.receipt import Bench, Change, Figures, clock, step_of
from parformer.events import Watch
from parformer.measure.device import pinned_threads
from parformer.model import Model
from parformer.recipe import read_recipe
from parformer.report.compressed import lost, times
from parformer.train.distributed import Workers
from parformer.train.job import read_text


def test_native_steps_are_made_with_the_threads_that_are_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made: list[int] = []

    def noted(model: Model, time: int) -> object:
        made.append(torch.get_num_threads())
        return step_of(model, time)

    monkeypatch.setattr(receipt, "step_of", noted)
    model = pf.build(pf.preset("llama-pocket", pattern="sf")).eval()
    text = tmp_path / "words.txt"
    text.write_text("".join(f"line {n} says {n * n}\n" for n in range(200)))
    recipe = read_recipe("llama-pocket", {"data.corpus": str(text)})
    prepared = read_text(recipe, Workers(), Watch(), None, Path())
    bench = Bench(recipe, prepared, 1024, rounds=6, threads=1)
    with pinned_threads(2):
        found, _ = clock({"it": model}, bench, 1, lambda _: None)
    assert made == [1]
    assert found["it"].median > 0


def test_differences_are_told_with_their_intervals() -> None:
    sure = Change(ratio=0.5, low=0.45, high=0.56, verdict="less")
    noise = Change(ratio=1.001, low=0.996, high=1.006, verdict="tie")
    assert (times(sure), times(noise)) == (" ×0.50 (0.45 to 0.56)", " ×1.00 ≈ (1.00 to 1.01)")
    assert times(None) == ""
    figures = Figures(size=1, parameters=1, memory=1, token=1.0, piece=1.0, loss=2.0)
    assert lost(figures) == ""
    told = lost(replace(figures, loss_change=noise))
    assert told == " (loss +0.10% ≈, −0.40% to +0.60%)"
