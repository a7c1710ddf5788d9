"""Which kinds of operations does the time of a step go to?

Self times of torch's profiler, added up by kind. What Parformer compiled itself is no operation
of torch, so it is given a name first.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.autograd.profiler_util import FunctionEvent

from parformer.kernels import attention, convolution
from parformer.kernels import recurrence as kernel

KINDS = ("matrix products", "attention", "recurrence", "convolution", "norms", "the rest")
BY_NAME = {
    "aten::mm": "matrix products",
    "aten::addmm": "matrix products",
    "aten::bmm": "attention",
    "aten::baddbmm": "attention",
    "aten::_softmax": "attention",
    "aten::_softmax_backward_data": "attention",
    "aten::_scaled_dot_product_flash_attention_for_cpu": "attention",
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": "attention",
    "sru_cpu::cpu_forward": "recurrence",
    "aten::native_layer_norm": "norms",
    "aten::native_layer_norm_backward": "norms",
}


@contextmanager
def labelled() -> Iterator[None]:
    """Let the profiler know Parformer's compiled functions by name."""

    def named(run: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **more: Any) -> Any:
            with torch.profiler.record_function(name):
                return run(*arguments, **more)

        return call

    operators = {
        kernel.fused: "recurrence",
        kernel.recurrence_gradient: "recurrence",
        attention.attention: "attention",
        attention.attention_gradient: "attention",
        convolution.fused: "convolution",
        convolution.convolution_gradient: "convolution",
    }
    before = {operator: operator.direct for operator in operators}
    for operator, name in operators.items():
        operator.direct = named(operator.direct, name)
    try:
        yield
    finally:
        for operator, run in before.items():
            operator.direct = run


def time_by_kind(work: Callable[[], object], calls: int) -> dict[str, float]:
    """Seconds of one call, by kind of operation."""
    work()
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # it would tell of every start and stop
    with labelled(), torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as p:
        for _ in range(calls):
            work()
    spent: dict[str, float] = defaultdict(float)
    for event in p.events():
        spent[kind_above(event)] += event.self_cpu_time_total / 1e6 / calls
    return spent


def kind_above(event: FunctionEvent) -> str:
    """What this event, or what it is part of, is known as; the outermost name counts."""
    at: FunctionEvent | None = event
    found = "the rest"
    while at is not None:
        found = at.name if at.name in KINDS else BY_NAME.get(at.name, found)
        at = at.cpu_parent
    return found
