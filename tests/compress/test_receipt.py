"""Are models measured with what was asked for?"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import parformer as pf
from parformer.compress import receipt
from parformer.compress.receipt import Bench, clock, step_of
from parformer.events import Watch
from parformer.measure.device import pinned_threads
from parformer.model import Model
from parformer.recipe import read_recipe
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
