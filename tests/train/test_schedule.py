"""Does the learning rate rise and fall as it was written down?"""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

from parformer.config import preset
from parformer.recipe import TrainConfig
from parformer.train.schedule import BESIDE_COUNTS, rate, rate_for


def rates(**fields: Any) -> list[float]:
    config = TrainConfig(**fields)
    return [rate(step, config) for step in range(config.steps)]


def test_the_warm_up_begins_above_nought_and_ends_at_the_full_rate() -> None:
    found = rates(steps=20, warmup=4, learning_rate=0.8)
    assert found[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8])
    assert found[5] < 0.8


def test_a_line_falls_evenly_to_the_final_rate() -> None:
    found = rates(steps=6, warmup=2, learning_rate=1.0, final_rate=0.2, schedule="linear")
    assert found == pytest.approx([0.5, 1.0, 1.0, 0.8, 0.6, 0.4])


def test_a_cosine_is_halfway_at_half_time() -> None:
    found = rates(steps=14, warmup=2, learning_rate=1.0, final_rate=0.5)
    assert found[8] == pytest.approx(0.75)
    # a third of the way: (1 + cos 60°) / 2 = 3/4 of the difference are left
    assert found[6] == pytest.approx(0.875)
    assert found[2:] == sorted(found[2:], reverse=True)
    assert found[-1] > 0.5


def test_a_constant_rate_stays() -> None:
    found = rates(steps=5, warmup=2, learning_rate=0.6, final_rate=0.1, schedule="constant")
    assert found == pytest.approx([0.3, 0.6, 0.6, 0.6, 0.6])


@pytest.mark.parametrize("schedule", ["cosine", "linear"])
def test_past_the_end_the_rate_is_final(schedule: Any) -> None:
    config = TrainConfig(steps=9, warmup=3, final_rate=1e-4, schedule=schedule)
    for step in (9, 10, 1000):
        assert rate(step, config) == pytest.approx(1e-4)
    assert rate(8, config) > 1e-4


@pytest.mark.parametrize("schedule", ["cosine", "linear", "constant", "trapezoid"])
@pytest.mark.parametrize("warmup", [4, 5, 40])
def test_a_warm_up_that_outlasts_the_training_only_rises(warmup: int, schedule: Any) -> None:
    found = rates(steps=4, warmup=warmup, learning_rate=1.0, schedule=schedule)
    assert found == pytest.approx([(step + 1) / warmup for step in range(4)])


@pytest.mark.parametrize("schedule", ["cosine", "linear", "constant", "trapezoid"])
def test_a_single_update_has_the_full_rate(schedule: Any) -> None:
    assert rates(steps=1, learning_rate=0.3, schedule=schedule) == [0.3]
    assert rates(steps=1, learning_rate=0.3, warmup=1, schedule=schedule) == [0.3]
    config = TrainConfig(steps=1, warmup=1, learning_rate=0.3, final_rate=0.1)
    assert rate(1, config) == pytest.approx(0.1)


def test_a_trapezoid_does_not_depend_on_its_length_until_it_falls() -> None:
    short, long = (
        rates(steps=steps, warmup=5, learning_rate=1.0, final_rate=0.1, schedule="trapezoid")
        for steps in (20, 50)
    )
    assert short[:14] == long[:14]
    assert short[5:15] == [1.0] * 10
    assert short[14:] == pytest.approx([0.1 + 0.9 * left / 6 for left in range(6, 0, -1)])
    assert long[35:] == pytest.approx([0.1 + 0.9 * left / 15 for left in range(15, 0, -1)])


def test_without_warm_up_the_cosine_is_torchs() -> None:
    found = rates(steps=17, learning_rate=0.02, final_rate=0.003)
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=0.02)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 17, 0.003)
    for step in range(17):
        assert found[step] == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-12)
        optimizer.step()
        scheduler.step()


@pytest.mark.parametrize("warmup", [0, 1, 7])
def test_the_references_slip_is_reproduced(warmup: int) -> None:
    """The rate is set after each update, so nobody sets the first one."""
    steps, full, final = 25, 0.01, 0.001
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=full)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps - warmup, final)
    expected = []
    for done in range(1, steps + 1):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if done < warmup:
            optimizer.param_groups[0]["lr"] = full * done / warmup
        else:
            with warnings.catch_warnings():  # torch would rather count by itself
                warnings.simplefilter("ignore")
                scheduler.step(done - warmup)
    found = rates(
        steps=steps, warmup=warmup, learning_rate=full, final_rate=final, first_step_full=True
    )
    assert found == pytest.approx(expected, rel=1e-12)
    assert found[0] == full


def test_the_references_slip_in_numbers() -> None:
    found = rates(steps=8, warmup=4, learning_rate=1.0, schedule="linear", first_step_full=True)
    assert found == pytest.approx([1.0, 0.25, 0.5, 0.75, 1.0, 0.75, 0.5, 0.25])


def test_the_rate_falls_with_the_width_and_not_with_the_depth() -> None:
    known = preset("pocket")
    assert rate_for(known, 0.012, known) == pytest.approx(0.012)
    wide = preset("pocket", d_model=256, d_inner=768)
    assert rate_for(wide, 0.012, known) == pytest.approx(0.012 * 2**-0.75)
    deep = preset("pocket", pattern="(sf)x16")
    assert rate_for(deep, 0.012, known) == pytest.approx(0.012)


def test_a_model_beside_counts_has_no_high_rate() -> None:
    known = preset("pocket")
    narrow = preset("pocket", d_model=48, d_inner=144, counts=100_000)
    assert rate_for(narrow, 0.012, known) == BESIDE_COUNTS
    assert rate_for(narrow.replaced(counts=0), 0.012, known) > 4 * BESIDE_COUNTS
    wide = preset("pocket", d_model=1024, d_inner=3072, counts=100_000)
    assert rate_for(wide, 0.012, known) == rate_for(wide.replaced(counts=0), 0.012, known)
