"""Optimizers that torch does not have: LAMB, NVLAMB, Muon, and Adam for rows of tables."""

# n tensors; o out, i in: the two sides of a weight

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from parformer.train.shards import (
    is_shared_out,
    locals_of,
    norm_here,
    share_out,
    whole,
    whole_norms,
)

Group = dict[str, Any]
"""Parameters and their settings, as torch's optimizers keep them."""

MOMENTS = ("exp_avg", "exp_avg_sq")

LARGEST_TRUSTED = 10.0
"""LAMB takes no weight's norm for larger than this."""
NVLAMB_NORM = 1.0
"""NVLAMB scales gradients down to this norm before anything else."""

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
NEWTON_SCHULZ_STEPS = 5
NEWTON_SCHULZ_EPS = 1e-7
LARGEST_STACK = 2**24
"""Numbers in all matrices that are made orthogonal at once."""
MUON_RMS = 0.2
"""About the size of an AdamW update's entries, so that one learning rate serves both."""


class RowAdam(Optimizer):
    """Adam that moves no row of a table but those that were looked up; another for the rest.

    What a row remembers stays as it is while nobody asks for it, so an update costs what was
    used, not what there is.
    """

    def __init__(
        self,
        tables: list[nn.Parameter],
        rest: Optimizer,
        *,
        lr: float,
        betas: tuple[float, float],
        eps: float,
    ) -> None:
        self.rest = rest
        keeps = ("step", *MOMENTS)
        first = {"params": tables, "lr": lr, "betas": betas, "eps": eps, "keeps": keeps}
        super().__init__([first, *rest.param_groups], {})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        group, *rest = self.param_groups
        for table in group["params"]:
            if table.grad is not None:
                self._move(table, table.grad.coalesce(), group)
        self.rest.param_groups, self.rest.state = rest, self.state
        self.rest.step()

    def _move(self, table: nn.Parameter, gradient: Tensor, group: Group) -> None:
        if not self.state[table]:
            self.state[table] = blank_state(group, table)
        state, (beta1, beta2) = self.state[table], group["betas"]
        state["step"] += 1
        step = float(state["step"])
        used, rows = gradient.indices()[0], gradient.values()
        mean = state["exp_avg"][used].lerp(rows, 1 - beta1)
        square = state["exp_avg_sq"][used].lerp(rows.square(), 1 - beta2)
        state["exp_avg"][used], state["exp_avg_sq"][used] = mean, square
        divisor = (square / (1 - beta2**step)).sqrt() + group["eps"]
        table.index_add_(0, used, mean / divisor, alpha=-group["lr"] / (1 - beta1**step))


class Lamb(Optimizer):
    """Adam whose updates grow with the norm of the tensor that they move.

    `nvidia` makes it NVLAMB: gradients are first scaled down to a global norm of 1, moments
    are corrected for their start from 0, and the ratio of norms is taken as it is. LAMB as
    Transformer-XL's reference has it does neither, and counts no weight's norm above 10.
    """

    def __init__(
        self,
        groups: Iterable[Group],
        *,
        lr: float,
        betas: tuple[float, float],
        eps: float,
        nvidia: bool,
    ) -> None:
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": eps})
        self.nvidia = nvidia

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        live = [[p for p in g["params"] if p.grad is not None] for g in self.param_groups]
        scale = self._gradient_scale([p.grad for ps in live for p in ps]) if self.nvidia else 1.0
        for group, parameters in zip(self.param_groups, live, strict=True):
            for p in parameters:
                if not self.state[p]:
                    self.state[p] = blank_state(group, p)
            for some in in_turns(parameters):
                self._move(some, group, scale)

    def _gradient_scale(self, gradients: list[Tensor]) -> float:
        norms_n = whole_norms(locals_of(gradients), gradients)
        return NVLAMB_NORM / max(NVLAMB_NORM, float(norm_here(norms_n)))

    def _move(self, parameters: list[nn.Parameter], group: Group, scale: float) -> None:
        beta1, beta2 = group["betas"]
        states = [self.state[p] for p in parameters]
        weights = locals_of(parameters)
        gradients = locals_of([p.grad for p in parameters if p.grad is not None])
        means = locals_of([state["exp_avg"] for state in states])
        squares = locals_of([state["exp_avg_sq"] for state in states])
        torch._foreach_mul_(means, beta1)
        torch._foreach_add_(means, gradients, alpha=(1 - beta1) * scale)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, gradients, gradients, (1 - beta2) * scale**2)

        divisors = torch._foreach_sqrt(squares)
        eps = [group["eps"]] * len(states)
        if self.nvidia:
            for state in states:
                state["step"] += 1
            steps = [float(state["step"]) for state in states]
            starts = [1 - beta1**step for step in steps]
            torch._foreach_mul_(
                divisors,
                [c / math.sqrt(1 - beta2**step) for c, step in zip(starts, steps, strict=True)],
            )
            eps = [group["eps"] * c for c in starts]
        torch._foreach_add_(divisors, eps)
        updates = torch._foreach_div(means, divisors)
        if group["weight_decay"]:
            torch._foreach_add_(updates, weights, alpha=group["weight_decay"])

        norms_n = whole_norms([*weights, *updates], [*parameters, *parameters])
        weight_n, update_n = norms_n.chunk(2)
        torch._foreach_mul_(updates, self._trust(weight_n, update_n, group["eps"]).tolist())
        torch._foreach_add_(weights, updates, alpha=-group["lr"])

    def _trust(self, weight_n: Tensor, update_n: Tensor, eps: float) -> Tensor:
        if self.nvidia:
            ratio_n = weight_n / update_n
        else:
            ratio_n = weight_n.clamp(max=LARGEST_TRUSTED) / (update_n + eps)
        return torch.where((weight_n == 0) | (update_n == 0), 1.0, ratio_n)


def in_turns(parameters: list[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Which parameters to work on at a time.

    A CPU is fastest with one after the other, while it is in the cache. A GPU wants them all
    at once, and so do processes, which exchange norms only once then.
    """
    if parameters and parameters[0].device.type == "cpu" and not is_shared_out(parameters[0]):
        return [[p] for p in parameters]
    return [parameters] if parameters else []


class Muon(Optimizer):
    """Momentum made orthogonal for matrices, and AdamW for everything else, as one optimizer."""

    def __init__(
        self,
        matrices: list[nn.Parameter],
        adamw: Optimizer,
        *,
        lr: float,
        momentum: float,
        weight_decay: float,
        half: bool = False,
    ) -> None:
        """With `half`, as on a GPU, matrices of a shape become orthogonal at once, in bf16."""
        self.adamw, self.half = adamw, half
        first = {
            "params": matrices,
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "keeps": ("momentum_buffer",),
        }
        super().__init__([first, *adamw.param_groups], {})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        group, *rest = self.param_groups
        matrices = [p for p in group["params"] if p.grad is not None]
        half = self.half or any(p.is_cuda for p in matrices)
        for some in of_one_shape(matrices) if half else [[p] for p in matrices]:
            self._move(some, group, half)
        self.adamw.param_groups, self.adamw.state = rest, self.state
        self.adamw.step()

    def _move(self, weights: list[nn.Parameter], group: Group, half: bool) -> None:
        """Matrices of one shape, all at once."""
        ahead = [whole(self._ahead(p, group)) for p in weights]
        if half:
            updates = orthogonal(torch.stack(ahead).bfloat16()).to(ahead[0].dtype).unbind()
        else:
            updates = tuple(orthogonal(matrix_oi) for matrix_oi in ahead)
        size = MUON_RMS * math.sqrt(max(weights[0].shape))
        for weight_oi, update_oi in zip(weights, updates, strict=True):
            weight_oi.mul_(1 - group["lr"] * group["weight_decay"])
            weight_oi.add_(share_out(update_oi, like=weight_oi), alpha=-group["lr"] * size)

    def _ahead(self, weight_oi: nn.Parameter, group: Group) -> Tensor:
        """The gradient, seen from where momentum will have brought it."""
        assert weight_oi.grad is not None
        if not self.state[weight_oi]:
            self.state[weight_oi] = blank_state(group, weight_oi)
        mean_oi: Tensor = self.state[weight_oi]["momentum_buffer"]
        mean_oi.lerp_(weight_oi.grad, 1 - group["momentum"])
        return weight_oi.grad.lerp(mean_oi, group["momentum"])


def of_one_shape(matrices: list[nn.Parameter]) -> Iterable[list[nn.Parameter]]:
    """Matrices of one shape together, as many as make a stack of a bearable size."""
    by_shape: dict[torch.Size, list[nn.Parameter]] = {}
    for matrix in matrices:
        by_shape.setdefault(matrix.shape, []).append(matrix)
    for shape, some in by_shape.items():
        most = max(1, LARGEST_STACK // shape.numel())
        yield from (some[first : first + most] for first in range(0, len(some), most))


def orthogonal(matrix_oi: Tensor) -> Tensor:
    """The matrix, or each of a stack, with all its singular values brought near 1.

    Newton-Schulz iteration, with Muon's polynomial: steep at 0, so that five steps do, and not
    exact at 1.
    """
    if matrix_oi.shape[-2] > matrix_oi.shape[-1]:  # the smaller of the two squares is cheaper
        return orthogonal(matrix_oi.mT).mT
    a, b, c = NEWTON_SCHULZ
    plus = torch.baddbmm if matrix_oi.ndim == 3 else torch.addmm
    norm = torch.linalg.vector_norm(matrix_oi, dim=(-2, -1), keepdim=True)
    x_oi: Tensor = matrix_oi / norm.clamp(min=NEWTON_SCHULZ_EPS)
    for _ in range(NEWTON_SCHULZ_STEPS):
        square_oo = x_oi @ x_oi.mT
        factor_oo = plus(square_oo, square_oo, square_oo, beta=b, alpha=c)
        x_oi = plus(x_oi, factor_oo, x_oi, beta=a)
    return x_oi


def blank_state(group: Group, parameter: nn.Parameter) -> dict[str, Tensor]:
    """What an optimizer remembers of a parameter before its first update."""
    # torch's own optimizers count on the CPU too, unless a fused kernel reads the counter.
    counter = parameter.device if group.get("fused") else "cpu"
    return {
        key: torch.zeros((), dtype=torch.float32, device=counter)
        if key == "step"
        else torch.zeros_like(parameter, requires_grad=False)
        for key in group["keeps"]
    }
