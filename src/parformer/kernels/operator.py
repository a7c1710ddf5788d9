"""How is a compiled function called: as an operator, or just called?

`torch.compile` needs an operator, something that it calls without looking inside. From an
operator to its function torch takes a tenth of a millisecond of Python, more than some of
them compute, so elsewhere the function is called directly. Both ways give the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode

Keep = Callable[[Any, tuple[Any, ...], Any], None]
Gradient = Callable[..., Any]


class Operator:
    """A function of tensors, perhaps with a gradient of its own."""

    def __init__(
        self,
        name: str,
        run: Callable[..., Any],
        outline: Callable[..., Any],
        *,
        keep: Keep | None = None,
        gradient: Gradient | None = None,
    ) -> None:
        """`outline` gives tensors like the answer's; `keep` and `gradient` are for autograd."""
        self.operator = torch.library.custom_op(
            f"parformer::{name}", run, mutates_args=(), device_types="cpu"
        )
        self.operator.register_fake(outline)
        self.direct: Callable[..., Any] = run
        if keep is not None and gradient is not None:
            self.operator.register_autograd(gradient, setup_context=keep)
            self.direct = make_function(run, keep, gradient).apply

    def __call__(self, *inputs: Any) -> Any:
        # whoever listens to operators, as tracing does, must hear of this one
        if torch.compiler.is_compiling() or _get_current_dispatch_mode() is not None:
            return self.operator(*inputs)
        return self.direct(*inputs)


def make_function(run: Callable[..., Any], keep: Keep, gradient: Gradient) -> Any:
    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Any:
            answer = run(*inputs)
            keep(ctx, inputs, answer)
            return answer

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            return gradient(ctx, *gradients)

    return Function
