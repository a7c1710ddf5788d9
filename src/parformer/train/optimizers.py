"""How do gradients move the weights?

Adam, AdamW and RAdam are torch's own; LAMB, NVLAMB and Muon are in rules.py. All of them work the
same on weights that several processes share out among themselves (FSDP): a norm is that of
the whole tensor, and a saved state does not tell how many processes there were.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from parformer.blocks.ngrams import NGramMemory
from parformer.errors import ConfigError, FolderError
from parformer.recipe import TrainConfig
from parformer.train.rules import MOMENTS, Group, Lamb, Muon, RowAdam, blank_state
from parformer.train.shards import locals_of, norm_here, share_out, whole, whole_norms
from parformer.weights import with_todays_names

FUSED_DEVICES = {"cpu", "cuda", "mps", "xpu"}
"""Where torch has Adam in one kernel."""


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
    count = len(getattr(model, "blocks", ()))
    groups = [
        {"params": some, "weight_decay": decay, "keeps": keeps, "scale": scale}
        for named, decay in ((decaying, config.weight_decay), (fixed, 0.0))
        for scale, some in by_depth(named, count, config.layer_decay)
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
                half=config.precision == "bf16",
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
        group["lr"] = rate * group.get("scale", 1.0)


def by_depth(
    named: Mapping[str, nn.Parameter], blocks: int, decay: float
) -> list[tuple[float, list[nn.Parameter]]]:
    """Parameters with the share of the rate that they learn at: less, the deeper they are."""
    if decay == 1:
        return [(1.0, list(named.values()))]
    found: dict[float, list[nn.Parameter]] = {}
    for name, parameter in named.items():
        found.setdefault(decay ** (blocks + 1 - height(name, blocks)), []).append(parameter)
    return list(found.items())


def height(name: str, blocks: int) -> int:
    """How high in a model a parameter is: the embedding at 0, heads above all blocks."""
    first, *rest = name.split(".")
    if first == "embedding":
        return 0
    return int(rest[0]) + 1 if first == "blocks" else blocks + 1


def freeze(model: nn.Module, count: int) -> None:
    """Leave the first blocks as they are, and the embedding below them."""
    blocks = len(getattr(model, "blocks", ()))
    if count > blocks:
        raise ConfigError(
            f"train.frozen {count} is more than the model's {blocks} blocks; lower it"
        )
    for name, parameter in model.named_parameters():
        if count and height(name, blocks) <= count:
            parameter.requires_grad_(False)


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
        if not parameter.requires_grad:
            continue
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
        if parameter in groups:
            yield name, parameter, groups[parameter]
