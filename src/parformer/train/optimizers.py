"""How do gradients move the weights?

Adam, AdamW and RAdam are torch's own; LAMB, NVLAMB and Muon are here. All of them work the
same on weights that several processes share out among themselves (FSDP): a norm is that of
the whole tensor, and a saved state does not tell how many processes there were.
"""

# n tensors; o out, i in: the two sides of a weight

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from parformer.blocks.ngrams import NGramMemory
from parformer.errors import FolderError
from parformer.recipe import TrainConfig
from parformer.weights import with_todays_names

if TYPE_CHECKING:  # takes a second to import, and only several processes need it
    from torch.distributed.tensor import DTensor

Group = dict[str, Any]
"""Parameters and their settings, as torch's optimizers keep them."""

MOMENTS = ("exp_avg", "exp_avg_sq")
FUSED_DEVICES = {"cpu", "cuda", "mps", "xpu"}
"""Where torch has Adam in one kernel."""

LARGEST_TRUSTED = 10.0
"""LAMB takes no weight's norm for larger than this."""
NVLAMB_NORM = 1.0
"""NVLAMB scales gradients down to this norm before anything else."""

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
NEWTON_SCHULZ_STEPS = 5
NEWTON_SCHULZ_EPS = 1e-7
MUON_RMS = 0.2
"""About the size of an AdamW update's entries, so that one learning rate serves both."""

PIECE = 2**16
"""Numbers that a CPU may sum in fp32; over many millions of them it would be off by percents."""


def make_optimizer(model: nn.Module, config: TrainConfig) -> Optimizer:
    """The optimizer that the recipe names, for weights that lie where they will stay.

    Weight decay is decoupled from the gradients, except in Adam, where it is part of them.
    """
    decaying, fixed = group_parameters(model)
    looked_up = sparse_rows(model)
    fixed = {name: p for name, p in fixed.items() if p not in looked_up}
    own_eps = 1e-6 if config.optimizer in ("lamb", "nvlamb") else 1e-8
    common: Group = {
        "lr": config.learning_rate,
        "betas": (config.beta1, config.beta2),
        "eps": config.eps or own_eps,
    }
    keeps = MOMENTS if config.optimizer == "lamb" else ("step", *MOMENTS)
    groups = [
        {"params": list(decaying.values()), "weight_decay": config.weight_decay, "keeps": keeps},
        {"params": list(fixed.values()), "weight_decay": 0.0, "keeps": keeps},
    ]
    optimizer = named_optimizer(config, groups, common, decaying)
    return RowAdam(list(looked_up), optimizer, **common) if looked_up else optimizer


def named_optimizer(
    config: TrainConfig, groups: list[Group], common: Group, decaying: dict[str, nn.Parameter]
) -> Optimizer:
    match config.optimizer:
        case "adam":
            return make_adam(torch.optim.Adam, groups, common)
        case "adamw":
            return make_adam(torch.optim.AdamW, groups, common)
        case "radam":
            return torch.optim.RAdam(groups, **common, decoupled_weight_decay=True, foreach=True)
        case "lamb" | "nvlamb":
            return Lamb(groups, **common, nvidia=config.optimizer == "nvlamb")
        case "muon":
            matrices = {name: p for name, p in decaying.items() if is_matrix_of_a_block(name, p)}
            groups[0]["params"] = [p for name, p in decaying.items() if name not in matrices]
            return Muon(
                list(matrices.values()),
                make_adam(torch.optim.AdamW, groups, common),
                lr=config.learning_rate,
                momentum=config.momentum,
                weight_decay=config.weight_decay,
            )


def make_adam(
    kind: type[torch.optim.Adam | torch.optim.AdamW], groups: list[Group], common: Group
) -> Optimizer:
    """Adam or AdamW in one kernel, where the device has it."""
    places = {p.device.type for group in groups for p in group["params"]}
    optimizer = kind(groups, **common, fused=places <= FUSED_DEVICES)
    optimizer.register_step_pre_hook(align_gradients)
    return optimizer


def align_gradients(optimizer: Optimizer, *_: Any) -> None:
    """Lay every gradient out as its parameter.

    Autograd does so by itself. A gradient from elsewhere need not be, and torch's fused kernels
    would take its numbers in the wrong order without a word.
    """
    for group in optimizer.param_groups:
        for p in group["params"]:
            if p.grad is not None and p.grad.stride() != p.stride():
                p.grad = torch.empty_like(p, requires_grad=False).copy_(p.grad)


def set_learning_rate(optimizer: Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate


def group_parameters(
    model: nn.Module,
) -> tuple[dict[str, nn.Parameter], dict[str, nn.Parameter]]:
    """The parameters that weight decay shrinks, and those that it leaves alone, by name.

    Biases, norms and whatever else has fewer than two dimensions are left alone. Both come in
    the order of `named_parameters`, which gives a shared parameter once.
    """
    decaying: dict[str, nn.Parameter] = {}
    fixed: dict[str, nn.Parameter] = {}
    for name, parameter in model.named_parameters():
        *path, last = name.split(".")
        in_norm = any(part == "norm" or part.endswith("_norm") for part in path)
        # rows of n-grams that a text seldom has would fade before they are seen again
        looked_up = "rows" in path
        shrinks = parameter.ndim >= 2 and not (in_norm or looked_up or last.endswith("bias"))
        (decaying if shrinks else fixed)[name] = parameter
    return decaying, fixed


def sparse_rows(model: nn.Module) -> dict[nn.Parameter, None]:
    """Tables whose gradients name the rows that were used, and no others."""
    blocks = [m for m in model.modules() if isinstance(m, NGramMemory) and m.sparse]
    return dict.fromkeys(table for block in blocks for table in block.rows)


def is_matrix_of_a_block(name: str, parameter: Tensor) -> bool:
    return parameter.ndim == 2 and "blocks" in name.split(".")


@torch.no_grad()
def clip_gradients(parameters: Iterable[nn.Parameter], limit: float) -> Tensor:
    """Scale the gradients down to the norm `limit` (0 for any), and give the norm they had."""
    gradients = [numbers_of(p) for p in parameters if p.grad is not None]
    if not gradients:
        return torch.zeros(())
    norm = norm_here(whole_norms(locals_of(gradients), gradients))
    # A device that computes on its own is not asked whether it is needed.
    if limit and (norm.device.type != "cpu" or float(norm) > limit - 1e-6):
        # The same small number as in torch: far below any limit, and 0 / 0 cannot happen.
        scale = (limit / (norm + 1e-6)).clamp(max=1.0)
        torch._foreach_mul_(locals_of(gradients), scale)
    return norm


def numbers_of(parameter: nn.Parameter) -> Tensor:
    """A gradient's numbers; of one that names rows, each row once."""
    gradient = parameter.grad
    assert gradient is not None
    if not gradient.is_sparse:
        return gradient
    parameter.grad = gradient.coalesce()
    return parameter.grad._values()


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
    ) -> None:
        self.adamw = adamw
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
        for p in group["params"]:
            if p.grad is not None:
                self._move(p, p.grad, group)
        self.adamw.param_groups, self.adamw.state = rest, self.state
        self.adamw.step()

    def _move(self, weight_oi: nn.Parameter, gradient_oi: Tensor, group: Group) -> None:
        if not self.state[weight_oi]:
            self.state[weight_oi] = blank_state(group, weight_oi)
        mean_oi = self.state[weight_oi]["momentum_buffer"]
        mean_oi.lerp_(gradient_oi, 1 - group["momentum"])
        ahead_oi = gradient_oi.lerp(mean_oi, group["momentum"])
        update_oi = share_out(orthogonal(whole(ahead_oi)), like=weight_oi)
        weight_oi.mul_(1 - group["lr"] * group["weight_decay"])
        size = MUON_RMS * math.sqrt(max(weight_oi.shape))
        weight_oi.add_(update_oi, alpha=-group["lr"] * size)


def orthogonal(matrix_oi: Tensor) -> Tensor:
    """The matrix with all its singular values brought near 1, by Newton-Schulz iteration.

    The polynomial is Muon's: steep at 0, so that five steps do, and not exact at 1.
    """
    if matrix_oi.shape[0] > matrix_oi.shape[1]:  # the smaller of the two squares is cheaper
        return orthogonal(matrix_oi.T).T
    a, b, c = NEWTON_SCHULZ
    # Without units for bf16, a CPU takes several times as long in it; a GPU gains as much.
    x_oi = matrix_oi.bfloat16() if matrix_oi.is_cuda else matrix_oi
    x_oi = x_oi / torch.linalg.vector_norm(x_oi).clamp(min=NEWTON_SCHULZ_EPS)
    for _ in range(NEWTON_SCHULZ_STEPS):
        square_oo = x_oi @ x_oi.T
        factor_oo = torch.addmm(square_oo, square_oo, square_oo, beta=b, alpha=c)
        x_oi = torch.addmm(x_oi, factor_oo, x_oi, beta=a)
    return x_oi


def state_tensors(optimizer: Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """All that the optimizer remembers, on the CPU, by names such as `head.bias/exp_avg`.

    The set of names is always the same: where nothing is remembered yet, zeros say so. Every
    process has to call this, and gets whole tensors. What is on the CPU anyway is not copied,
    so write it down before the next update.
    """
    return {
        f"{name}/{key}": whole(value).detach().cpu().contiguous()
        for name, parameter, group in in_order(optimizer, model)
        for key, value in (optimizer.state.get(parameter) or blank_state(group, parameter)).items()
    }


def load_state_tensors(
    optimizer: Optimizer, model: nn.Module, tensors: Mapping[str, Tensor]
) -> None:
    """Remember what `state_tensors` gave, or refuse it and stay as before."""
    owners = list(in_order(optimizer, model))
    blanks = {name: blank_state(group, parameter) for name, parameter, group in owners}
    expected = {f"{n}/{key}": t for n, s in blanks.items() for key, t in s.items()}
    tensors = with_todays_names(tensors, expected)
    check_state(expected, tensors)
    for name, parameter, _ in owners:
        for key, blank in blanks[name].items():
            blank.copy_(share_out(tensors[f"{name}/{key}"].to(blank.device), like=blank))
        optimizer.state[parameter] = blanks[name]


def check_state(expected: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> None:
    way_out = "it was saved for another model or optimizer, so start a new run"
    if missing := [name for name in expected if name not in given]:
        raise FolderError(
            f"the optimizer's state lacks {missing[0]!r} ({len(missing)} of {len(expected)} "
            f"tensors); {way_out}"
        )
    if surplus := [name for name in given if name not in expected]:
        raise FolderError(
            f"the optimizer's state has {surplus[0]!r} ({len(surplus)} tensors too many); {way_out}"
        )
    for name, tensor in expected.items():
        if given[name].shape != tensor.shape or given[name].dtype != tensor.dtype:
            raise FolderError(
                f"the optimizer's state has {name!r} as {given[name].dtype} of shape "
                f"{tuple(given[name].shape)}, not {tensor.dtype} of {tuple(tensor.shape)}; "
                f"{way_out}"
            )


def in_order(optimizer: Optimizer, model: nn.Module) -> Iterator[tuple[str, nn.Parameter, Group]]:
    """Every parameter with its name and group, in the order of the model."""
    groups = {p: group for group in optimizer.param_groups for p in group["params"]}
    for name, parameter in model.named_parameters():
        yield name, parameter, groups[parameter]


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


def whole_norms(parts: Sequence[Tensor], owners: Sequence[Tensor]) -> Tensor:
    """The norm of every tensor, of which this process has a part laid out as its owner says."""
    norms_n = torch.stack([norm_here(part) for part in parts])
    shards: dict[tuple[Any, int], list[int]] = {}
    for place, owner in enumerate(owners):
        if is_shared_out(owner):
            for axis, placement in enumerate(owner.placements):
                if placement.is_shard():
                    shards.setdefault((owner.device_mesh, axis), []).append(place)
    if not shards:
        return norms_n
    squares_n = norms_n.double().square()
    for (mesh, axis), places in shards.items():
        some_n = squares_n[places]
        dist.all_reduce(some_n, group=mesh.get_group(axis))
        squares_n[places] = some_n
    return squares_n.sqrt().to(norms_n.dtype)


def norm_here(tensor: Tensor) -> Tensor:
    dtype = torch.promote_types(tensor.dtype, torch.float32)
    if tensor.device.type == "cpu" and tensor.numel() > PIECE:
        pieces = torch.split(tensor.reshape(-1), PIECE)
        tensor = torch.stack(torch._foreach_norm(pieces, 2, dtype))
    norm: Tensor = torch.linalg.vector_norm(tensor, dtype=dtype)
    return norm


def is_shared_out(tensor: Tensor) -> TypeGuard[DTensor]:
    """Whether this process has a part of it only."""
    return hasattr(tensor, "device_mesh")


def locals_of(tensors: Iterable[Tensor]) -> list[Tensor]:
    """The parts that this process has, not copied."""
    return [t.to_local() if is_shared_out(t) else t for t in tensors]


def whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if is_shared_out(tensor) else tensor


def share_out(tensor: Tensor, *, like: Tensor) -> Tensor:
    """A whole tensor, which every process has, laid out as another one."""
    if not is_shared_out(like):
        return tensor
    from torch.distributed.tensor import DTensor, Replicate

    mesh = like.device_mesh
    everywhere = DTensor.from_local(tensor, mesh, [Replicate()] * mesh.ndim, run_check=False)
    return everywhere.redistribute(mesh, like.placements)
