"""How do weights get their place in a model that is only an outline yet?

Parameters and buffers are told by name; what is shared stays shared, and weights that version 0.1
called otherwise are found.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import torch
from torch import Tensor, nn

from parformer.blocks.coded import NARROW, WIDE, CodedLinear
from parformer.blocks.linear import Linear
from parformer.embedding import SingleTable
from parformer.errors import ParformerError

WEIGHT_TYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
"""What a weight may be kept as."""
BUFFER_TYPES = (*WEIGHT_TYPES, torch.int8, torch.uint8, torch.int32, torch.int64, torch.bool)
"""What anything else that belongs to a model may be kept as: masks, scales, small numbers."""

LEAST = 4096
"""Numbers of a matrix that is worth codes of its own, or zeros."""

RENAMED = {"head.weight": "head.out.weight", "head.bias": "head.out.bias"}
"""What some weights of version 0.1 are called today."""


def named_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and what else belongs to a model, each once."""
    kept = module.state_dict(keep_vars=True)
    buffers = {name: b for name, b in module.named_buffers() if name in kept}
    return {**dict(module.named_parameters()), **buffers}


def with_todays_names(tensors: Mapping[str, Tensor], wanted: Collection[str]) -> dict[str, Tensor]:
    """Tensors that version 0.1 wrote, under the names that are wanted now.

    What an optimizer remembers of a weight has its name and more, such as `head.bias/exp_avg`.
    """
    named = {}
    for name, tensor in tensors.items():
        weight, slash, more = name.partition("/")
        today = f"{RENAMED.get(weight, weight)}{slash}{more}"
        named[today if name not in wanted and today in wanted else name] = tensor
    return named


def place(model: nn.Module, make: Callable[[Tensor], Tensor]) -> None:
    """Give what an outline holds its place; what is shared stays shared."""
    made: dict[Tensor, Tensor] = {}
    for module in model.modules():
        for name, outline in module.named_parameters(recurse=False, remove_duplicate=False):
            if outline not in made:
                made[outline] = nn.Parameter(make(outline))
            setattr(module, name, made[outline])
        temporary = module._non_persistent_buffers_set
        for name, buffer in module.named_buffers(recurse=False, remove_duplicate=False):
            if name not in temporary:
                if buffer not in made:
                    made[buffer] = make(buffer)
                setattr(module, name, made[buffer])


def new_like(outline: Tensor, device: str | torch.device, dtype: torch.dtype) -> Tensor:
    """A weight with its place; what is no weight begins at zero, as what it is."""
    if isinstance(outline, nn.Parameter):
        return torch.empty_like(outline, device=device, dtype=dtype)
    return torch.zeros_like(outline, device=device)


def take_codes(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Where tensors hold codes, let an outline have a place for them instead of a matrix."""
    for name in tensors:
        path, dot, leaf = name.rpartition(".")
        if leaf != "codes" or not dot:
            continue
        bits = WIDE if tensors[name].dtype == torch.int8 else NARROW
        try:
            found = model.get_submodule(path.removesuffix(".coded"))
        except AttributeError:
            continue  # a surplus, which is told by name
        reach = f"{path}.reach" in tensors
        with torch.device("meta"):
            if isinstance(found, SingleTable) and path.endswith(".coded") and len(found.tables):
                rows, width = found.tables[0].shape
                put_table(model, found, CodedLinear(width, rows, bits=bits, bias=False))
            elif isinstance(found, nn.Linear):
                shape, bias = (found.in_features, found.out_features), found.bias is not None
                put(model, path, CodedLinear(*shape, bits=bits, bias=bias, reach=reach))


def share_codes(model: nn.Module, again: nn.Module) -> None:
    """Let an outline of the same model have the very codes that the model has."""
    for path, module in list(model.named_modules()):
        if isinstance(module, CodedLinear):
            if path.endswith(".coded"):
                words = again.get_submodule(path.removesuffix(".coded"))
                assert isinstance(words, SingleTable)
                words.coded, words.tables = module, nn.ParameterList()
            else:
                put(again, path, module)


def matrices(model: nn.Module) -> dict[str, Tensor]:
    """Every matrix that is large enough to be kept in few bits or pruned, each once, by name.

    The table of words is one of them, and whatever is tied to it is not told again.
    """
    found: dict[str, Tensor] = {}
    for name, module in model.named_modules():
        if isinstance(module, SingleTable) and len(module.tables):
            found[name] = module.tables[0]
    tables = list(found.values())
    for name, module in model.named_modules():
        if type(module) is not Linear or module.weight.numel() < LEAST:
            continue
        if not any(module.weight is table for table in tables):
            found[name] = module.weight
    return found


def put(model: nn.Module, path: str, module: nn.Module) -> None:
    """Another module in the place of one inside of a model."""
    parent, _, leaf = path.rpartition(".")
    setattr(model.get_submodule(parent), leaf, module)


def put_table(model: nn.Module, words: SingleTable, coded: CodedLinear) -> None:
    """A table of words in few bits; whoever is tied to it reads the same codes."""
    table = words.tables[0]
    for path, module in list(model.named_modules()):
        if isinstance(module, nn.Linear) and module.weight is table:
            put(model, path, coded.sharing(module.bias))
    words.coded, words.tables = coded, nn.ParameterList()


def fill(
    model: nn.Module,
    weights: Mapping[str, Tensor],
    what: str,
    refusal: type[ParformerError],
    device: str | torch.device,
) -> None:
    """Copy weights by name into an outline, once every one is there and fits."""
    take_codes(model, weights)
    wanted = named_tensors(model)
    weights = with_todays_names(weights, wanted)
    for name in sorted(wanted.keys() ^ weights.keys()):
        lost = "lack" if name in wanted else "have a surplus"
        raise refusal(f"{what} {lost} {name!r}; they belong to another configuration")
    for name, outline in wanted.items():
        given = weights[name]
        if outline.shape != given.shape:
            raise refusal(
                f"{what} hold {name!r} of shape {tuple(given.shape)}, the "
                f"configuration says {tuple(outline.shape)}"
            )
        fine = WEIGHT_TYPES if isinstance(outline, nn.Parameter) else BUFFER_TYPES
        if given.dtype not in fine:
            known = ", ".join(map(str, fine))
            raise refusal(f"{what} hold {name!r} as {given.dtype}; known: {known}")
    names = {outline: name for name, outline in wanted.items()}
    kind = torch.contiguous_format
    place(model, lambda o: weights[names[o]].to(device, copy=True, memory_format=kind))
