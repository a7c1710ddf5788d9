from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from parformer.measure.memory import collector_paused, peak_memory

# b batch, d input, h hidden, o output
FLOAT = 4


def test_the_peak_is_the_most_alive_at_once() -> None:
    def work() -> None:
        a = torch.zeros(1000)
        b = torch.zeros(500)
        del a
        c = torch.zeros(250)
        del b, c

    memory = peak_memory(work)
    assert memory.peak_bytes == 1500 * FLOAT
    assert memory.allocated_bytes == 1750 * FLOAT
    assert memory.resident_bytes == 0


def test_views_and_in_place_work_take_no_memory() -> None:
    def work() -> list[torch.Tensor]:
        x = torch.zeros(10, 100)
        views = [x.view(1000), x[2:], x.t(), x.expand(5, 10, 100), x.detach()]
        x.add_(1).mul_(2)
        torch.mul(x, 2, out=x)
        return views

    assert peak_memory(work).allocated_bytes == 1000 * FLOAT


def test_a_view_keeps_the_whole_storage_alive() -> None:
    def work() -> None:
        view = torch.zeros(1000)[:1]
        torch.zeros(10)
        del view

    assert peak_memory(work).peak_bytes == 1010 * FLOAT


def test_bytes_depend_on_the_type() -> None:
    assert peak_memory(lambda: torch.zeros(10, dtype=torch.float64)).peak_bytes == 80
    assert peak_memory(lambda: torch.zeros(10, dtype=torch.bfloat16)).peak_bytes == 20
    assert peak_memory(lambda: torch.zeros(10, dtype=torch.bool)).peak_bytes == 10


def test_data_from_python_is_counted_and_so_is_growth() -> None:
    assert peak_memory(lambda: torch.tensor([1.0, 2.0, 3.0])).peak_bytes == 3 * FLOAT

    def grow() -> None:
        x = torch.zeros(10)
        x.resize_(100)

    assert peak_memory(grow).peak_bytes == 100 * FLOAT


def test_what_was_there_before_counts_only_as_resident() -> None:
    weight, tied = torch.ones(10, 10), torch.ones(5)

    def work() -> torch.Tensor:
        return weight.t() @ weight.view(10, 10)

    assert peak_memory(work).peak_bytes == 100 * FLOAT
    memory = peak_memory(work, resident=[weight, weight.t(), tied, tied])
    assert memory.resident_bytes == 105 * FLOAT
    assert memory.peak_bytes == 205 * FLOAT
    assert memory.working_bytes == 100 * FLOAT
    assert memory.to_dict() == {
        "peak_bytes": 820,
        "resident_bytes": 420,
        "allocated_bytes": 400,
    }


def test_a_resident_tensor_given_up_makes_room() -> None:
    kept = [torch.zeros(1000)]

    def work() -> None:
        kept.pop()
        torch.zeros(300)
        torch.zeros(600)

    assert peak_memory(work, resident=kept).peak_bytes == 1000 * FLOAT


def test_what_outlives_the_run_stays_counted_to_its_end() -> None:
    kept: list[torch.Tensor] = []

    def work() -> None:
        kept.append(torch.zeros(100))
        torch.zeros(10)

    assert peak_memory(work).peak_bytes == 110 * FLOAT
    assert peak_memory(work).peak_bytes == 110 * FLOAT


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients_only_two_layers_are_alive(
    mode: Callable[[], AbstractContextManager[None]],
) -> None:
    b, d, h, o = 7, 3, 50, 2
    model = nn.Sequential(nn.Linear(d, h), nn.ReLU(), nn.Linear(h, h), nn.Linear(h, o))
    x_bd = torch.ones(b, d)

    def work() -> None:
        with mode():
            model(x_bd)

    assert peak_memory(work).peak_bytes == 2 * b * h * FLOAT


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_operators_made_of_others_are_looked_into(
    mode: Callable[[], AbstractContextManager[None]],
) -> None:
    """A layer norm also makes the mean and the deviation of each row, and drops them."""
    b, d = 10, 20
    x_bd = torch.ones(b, d)

    def work() -> None:
        with mode():
            F.layer_norm(x_bd, (d,))

    memory = peak_memory(work)
    assert memory.peak_bytes == memory.allocated_bytes == (b * d + 2 * b) * FLOAT


@pytest.mark.parametrize(("b", "d", "h", "o"), [(7, 3, 5, 2), (1, 30, 10, 2), (9, 1, 1, 40)])
def test_a_backward_pass_counts_what_autograd_keeps(b: int, d: int, h: int, o: int) -> None:
    x_bd = torch.ones(b, d)
    w_dh = torch.ones(d, h, requires_grad=True)
    w_ho = torch.ones(h, o, requires_grad=True)

    def work() -> None:
        (torch.relu(x_bd @ w_dh) @ w_ho).sum().backward()

    forward = max(
        2 * b * h,  # the product and its relu, of which only the latter is kept
        b * h + b * o + 1,  # that, the output and the loss
    )
    scalars = 2  # the loss and its own gradient; expanded, that is the output's as well
    backward = max(
        scalars + 3 * b * h + h * o,  # w_ho's gradient; relu's result and gradients, in and out
        scalars + h * o + b * h + d * h,  # both weights' gradients and the first product's
    )
    memory = peak_memory(work)
    assert memory.peak_bytes == max(forward, backward) * FLOAT

    w_dh.grad = w_ho.grad = None
    assert peak_memory(work) == memory


def test_the_first_run_of_a_process_gives_the_same_number() -> None:
    program = """
import torch
from parformer.measure import peak_memory

x = torch.ones(100)

def layer(x):
    wide = x.repeat(10)
    return wide[:100] * 2

print(*(peak_memory(lambda: layer(layer(x))).peak_bytes for _ in range(2)))
"""
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ran.stdout.split() == [str((100 + 1000 + 100) * FLOAT)] * 2


def test_cycles_are_kept_whatever_the_collector_would_do() -> None:
    def work() -> None:
        for _ in range(5):
            cycle: list[object] = [torch.zeros(100)]
            cycle.append(cycle)

    threshold = gc.get_threshold()
    gc.set_threshold(1)
    try:
        assert peak_memory(work).peak_bytes == 500 * FLOAT
    finally:
        gc.set_threshold(*threshold)


def test_an_error_passes_through_and_leaves_nothing_behind() -> None:
    def work() -> None:
        torch.zeros(10)
        raise KeyError("mine")

    assert gc.isenabled()
    with pytest.raises(KeyError, match="mine"):
        peak_memory(work)
    assert gc.isenabled()
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with collector_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
