"""Do all scores find what matters least, and can they be held against losses of blocks?"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from parformer.compress import worth
from parformer.compress.choosing import measured_worth
from parformer.compress.narrowing import along, channel_sizes
from parformer.compress.receipt import Bench
from parformer.compress.request import CompressRequest, Score
from parformer.compress.shrinking import STREAM, Kept, magnitude
from parformer.compress.work import Work
from parformer.compress.worth import comparable, find_worth
from parformer.events import Watch
from parformer.model import Model
from parformer.recipe import read_recipe
from parformer.train.distributed import Workers
from parformer.train.job import read_text
from parformer.weights import named_tensors
from tests.compress.test_shrinking import alive


def work_for(model: Model, folder: Path, score: Score) -> Work:
    text = folder / "words.txt"
    text.write_text("".join(f"line {n} says {n * n}\n" for n in range(2000)))
    changes = {"data.corpus": str(text), "model.pattern": "sfsf", "train.batch": 2}
    recipe = read_recipe("gpt2-pocket", changes)
    prepared = read_text(recipe, Workers(), Watch(), None, folder)
    request = CompressRequest(model=Path("x"), limits=("size=0.5x",), score=score)
    return Work(
        request=request,
        targets=request.targets,
        bench=Bench(recipe, prepared, 1024),
        size=10**6,
        latency=1.0,
        original=folder,
        folder=folder,
        watch=Watch(),
    )


@pytest.mark.parametrize("score", ["gradient", "magnitude", "loss"])
def test_what_is_silent_goes_first(
    score: Score, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worth, "TRIED", 512)
    monkeypatch.setattr(worth, "BATCHES", 2)
    if score == "magnitude":
        monkeypatch.delattr(worth, "importance")  # no gradient is asked for
    model = alive("gpt2-pocket", pattern="sfsf", d_model=32, d_inner=96)
    silent = torch.arange(96) % 2 == 0
    with torch.no_grad():
        model.blocks[1].out.weight[:, silent] = 0
        model.blocks[2].out.weight[:, :16] = 0  # two heads of four
    found = find_worth(model, work_for(model, tmp_path, score)).units
    assert set(found) == {f"blocks.{number}" for number in range(4)}
    assert found["blocks.1"][silent].max() < found["blocks.1"][~silent].min()
    assert found["blocks.2"][:2].max() < found["blocks.2"][2:].min()
    assert bool(found["blocks.1"].isfinite().all()), "all may go, where a limit asks for that"


def test_sizes_add_up_to_what_is_lost_without_the_smaller_halves() -> None:
    sizes = {"a": torch.tensor([3.0, 1.0, 2.0, 9.0]), "b": torch.tensor([4.0, 0.5])}
    asked: list[Kept] = []

    def grows(kept: Kept) -> float:
        asked.append(kept)
        return 0.7

    found = comparable(sizes | {STREAM: torch.ones(4)}, grows)
    assert {path: stays.tolist() for path, stays in asked[0].items() if stays is not None} == {
        "a": [0, 3],
        "b": [0],
    }
    assert float(found["a"][[1, 2]].sum() + found["b"][1]) == pytest.approx(0.7)
    torch.testing.assert_close(found["a"] / found["b"][0], sizes["a"] / sizes["b"][0])
    noise = comparable(sizes, lambda _: -0.1)
    assert min(float(one.min()) for one in noise.values()) > 0


def test_a_few_heads_are_measured_one_by_one() -> None:
    lost = {4: 0.0, 3: 0.1, 2: 0.3}

    def grows(stays: Tensor) -> float:
        return lost[len(stays)]

    found = measured_worth(torch.tensor([5.0, 1.0, 3.0, 2.0]), grows)
    assert found.tolist() == [torch.inf, pytest.approx(0.1), torch.inf, pytest.approx(0.2)]


def test_a_channels_size_is_that_of_all_its_weights() -> None:
    """A channel that is made twice as large everywhere is told to be."""
    model = alive("gpt2-pocket", pattern="sf", d_model=32)
    axes = along(model)
    assert axes is not None
    before = channel_sizes(model, axes)
    with torch.no_grad():
        for name, tensor in named_tensors(model).items():
            for axis, count in enumerate(axes[name]):
                for part in range(count):
                    tensor.select(axis, 5 + 32 * part).mul_(2)
    after = channel_sizes(model, axes)
    assert float(after[5] / before[5]) == pytest.approx(2, rel=0.05)
    assert torch.equal(magnitude(model, axes)[STREAM], after)
