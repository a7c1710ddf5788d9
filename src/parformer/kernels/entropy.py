"""What does the loss cost in training, and must it?

Torch writes the whole table of log-probabilities, then another of zeros for the gradient, then
the gradient. Here a row's total is all that is kept, and the gradient is written once
(native.cpp has the loops).
"""

# n tokens, v vocabulary

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from parformer.kernels import native
from parformer.kernels.operator import Operator


def cross_entropy(logits_nv: Tensor, targets_n: Tensor, smoothing: float = 0.0) -> Tensor:
    """Negative log-probability of each target; 0 where the target is -100.

    With `smoothing` that share of it asks for all tokens alike.
    """
    if (
        native.enabled
        and torch.is_grad_enabled()
        and logits_nv.dtype == torch.float32
        and logits_nv.device.type == "cpu"
    ):
        losses_n: Tensor = losses_and_totals(logits_nv, targets_n, smoothing)[0]
        return losses_n
    return F.cross_entropy(logits_nv, targets_n, reduction="none", label_smoothing=smoothing)


def run_losses(logits_nv: Tensor, targets_n: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    library = native.library()
    assert library is not None
    logits_nv, targets_n = logits_nv.contiguous(), targets_n.contiguous()
    losses_n, totals_n = logits_nv.new_empty(len(logits_nv)), logits_nv.new_empty(len(logits_nv))
    share = torch.tensor(smoothing)
    tensors = (logits_nv, targets_n, share, losses_n, totals_n)
    sizes = (*logits_nv.shape, torch.get_num_threads())
    library.cross_entropy_forward(*(tensor.data_ptr() for tensor in tensors), *sizes)
    return losses_n, totals_n


def run_gradient(
    logits_nv: Tensor, targets_n: Tensor, smoothing: float, totals_n: Tensor, d_losses_n: Tensor
) -> Tensor:
    library = native.library()
    assert library is not None
    share = torch.tensor(smoothing)
    tensors = [x.contiguous() for x in (logits_nv, targets_n, share, totals_n, d_losses_n)]
    d_logits_nv = torch.empty_like(tensors[0])
    sizes = (*logits_nv.shape, torch.get_num_threads())
    addresses = (tensor.data_ptr() for tensor in (*tensors, d_logits_nv))
    library.cross_entropy_backward(*addresses, *sizes)
    return d_logits_nv


def outline_losses(logits_nv: Tensor, targets_n: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    return logits_nv.new_empty(len(logits_nv)), logits_nv.new_empty(len(logits_nv))


def outline_gradient(
    logits_nv: Tensor, targets_n: Tensor, smoothing: float, totals_n: Tensor, d_losses_n: Tensor
) -> Tensor:
    return logits_nv.new_empty(logits_nv.shape)


def keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    logits_nv, targets_n, ctx.smoothing = inputs
    ctx.save_for_backward(logits_nv, targets_n, output[1])
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def gradient(ctx: Any, d_losses_n: Tensor | None, _: object) -> tuple[Tensor | None, None, None]:
    if d_losses_n is None:
        return None, None, None
    logits_nv, targets_n, totals_n = ctx.saved_tensors
    return logits_gradient(logits_nv, targets_n, ctx.smoothing, totals_n, d_losses_n), None, None


logits_gradient = Operator("cross_entropy_gradient", run_gradient, outline_gradient)
losses_and_totals = Operator(
    "cross_entropy", run_losses, outline_losses, keep=keep, gradient=gradient
)
