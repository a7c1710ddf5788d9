"""How does a model get weights of few bits?

Every matrix behind a `Linear`, and the table of words with the head that is tied to it, becomes
codes (`blocks/coded.py`); norms, biases and what else is small stay as they are. With `activations`
some text is read first, to learn how far the inputs of every matrix go.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from parformer.blocks.coded import NARROW, WIDE, CodedLinear
from parformer.blocks.linear import Linear
from parformer.compress.quantizers import Scheme, encode
from parformer.embedding import SingleTable
from parformer.errors import ConfigError, InputError
from parformer.model import Model
from parformer.train.ranges import few
from parformer.weights import matrices, named_tensors, put, put_table

CALIBRATED = 99.99
"""Percent of the inputs that keep within the reach of eight bits."""

Reading = Callable[[Model], None]
"""Whatever lets a model read some text."""


def coded(
    model: Model,
    bits: int | Mapping[str, int],
    *,
    activations: Reading | None = None,
    keep: Collection[str] = (),
    nearest: bool = False,
) -> Model:
    """A copy of a model in few bits: the same for all matrices, or by name.

    `keep` names what stays as it is. `activations` reads a little text with the model it is
    given; inputs then become eight bits wherever weights are. `nearest` takes the codes within
    the whole range, as a training sees them that shows weights in few bits.
    """
    again = deepcopy(model).eval()
    places = matrices(again)
    if not places:
        raise ConfigError("this model has no matrix left to quantize; it was quantized already")
    asked = bits if isinstance(bits, Mapping) else dict.fromkeys(places, bits)
    for name in (*keep, *(asked if isinstance(bits, Mapping) else ())):
        if name not in places:
            raise ConfigError(f"no matrix is called {name!r}; there are {', '.join(places)}")
    reaches = {} if activations is None else watch_inputs(again, activations)
    for name, weight in places.items():
        if name in keep or name not in asked:
            continue
        made = few(weight, asked[name]) if nearest else code(weight.detach(), asked[name])
        linear = again.get_submodule(name)
        if isinstance(linear, SingleTable):
            put_table(again, linear, made)
            continue
        made.bias = linear.bias  # type: ignore[assignment]
        if name in reaches:
            made.reach = reaches[name]
        put(again, name, made)
    return again


def code(weight_oi: Tensor, bits: int) -> CodedLinear:
    """A matrix in the codes of least squared error; four bits or fewer in groups."""
    if bits > NARROW:
        if bits != WIDE:
            raise ConfigError(f"weights are kept in 8 bits, or in 4 and fewer; got {bits}")
        held = encode(weight_oi.float(), Scheme(bits=WIDE, per="row"))
        return CodedLinear.from_codes(held.codes, held.steps, None, None)
    scheme = Scheme(bits=bits, per="group", range="mse")
    held = encode(weight_oi.float(), scheme)
    fewest, most = scheme.lowest, scheme.highest
    return CodedLinear.in_steps(
        weight_oi.float(), held.steps[..., 0], None, lowest=fewest, highest=most
    )


def watch_inputs(model: Model, read: Reading) -> dict[str, Tensor]:
    """How far the inputs of every matrix go while a text is read."""
    far: dict[str, list[Tensor]] = {}
    handles = []
    for name, module in model.named_modules():
        if type(module) is Linear and name in matrices(model):

            def hear(_: nn.Module, given: tuple[Any, ...], name: str = name) -> None:
                flat = given[0].detach().abs().flatten().float()
                some = flat[:: max(1, flat.numel() // 2**20)]
                far.setdefault(name, []).append(torch.quantile(some, CALIBRATED / 100)[None])

            handles.append(module.register_forward_pre_hook(hear))
    try:
        with torch.inference_mode():
            read(model)
    finally:
        for handle in handles:
            handle.remove()
    if not far:
        raise InputError("the text to calibrate on is empty; give some tokens")
    reaches = {name: torch.cat(seen).amax(0, keepdim=True).clone() for name, seen in far.items()}
    for name, reach in reaches.items():
        if not bool(torch.isfinite(reach)):
            raise InputError(
                f"inputs of {name!r} have NaN or infinity among them while the text is read, which "
                "have no range; look for them in the weights before it"
            )
    return reaches


def decoded(model: Model) -> Model:
    """The same numbers in plain matrices, which whoever wants to train or export may need."""
    again = deepcopy(model)
    tables: dict[Tensor, nn.Parameter] = {}
    for path, module in sorted(coded_maps(again), key=lambda found: found[0][-6:] != ".coded"):
        weight = tables[module.codes] if module.codes in tables else nn.Parameter(module.weight)
        if path.endswith(".coded"):
            words = again.get_submodule(path.removesuffix(".coded"))
            assert isinstance(words, SingleTable)
            words.coded, words.tables = None, nn.ParameterList([weight])
            tables[module.codes] = weight
            continue
        plain = Linear(module.in_features, module.out_features, bias=False)
        plain.weight, plain.bias = weight, module.bias  # type: ignore[assignment]
        put(again, path, plain)
    return again


def coded_maps(model: nn.Module) -> Iterator[tuple[str, CodedLinear]]:
    for path, module in model.named_modules():
        if isinstance(module, CodedLinear):
            yield path, module


def mean_bits(model: Model) -> float:
    """Bits that a number of the model is kept in, on average, scales and all."""
    kept = sum(t.numel() * t.element_size() for t in named_tensors(model).values())
    numbers = sum(p.numel() for p in decoded(model).parameters())
    return 8 * kept / numbers
