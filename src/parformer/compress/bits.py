"""How many bits does each matrix bear?

Every matrix is tried in four bits alone, and what that costs on some training text is its
sensitivity. Costs add up nearly enough to choose by: those that lose least for the bytes that they
save become four bits, as many as the size asks for or the loss allows; the others eight.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from parformer.blocks.coded import NARROW, WIDE, CodedLinear
from parformer.compress.coding import code, coded
from parformer.model import Model
from parformer.records import Record
from parformer.weights import matrices, named_tensors


@dataclass(frozen=True, kw_only=True)
class Borne(Record):
    """What a matrix costs in few bits."""

    plain: int
    wide: int
    narrow: int
    """Bytes as it is, in eight bits and in four."""
    loses: float
    """What the loss grows by in four bits, as a share; noise may make it negative."""


@dataclass(frozen=True, kw_only=True)
class Bearing(Record):
    """The same of every matrix, by name."""

    matrices: Mapping[str, Borne]


def sensitivity(
    model: Model, loss: Callable[[Model], float], say: Callable[[str, float], None]
) -> dict[str, Borne]:
    """Every matrix alone in four bits."""
    before, found = loss(model), {}
    places = matrices(model)
    for number, (name, weight) in enumerate(places.items()):
        say(f"trying {name} in 4 bits", number / len(places))
        after = loss(coded(model, {name: NARROW}))
        sizes = [bytes_of(code(weight.detach(), bits)) for bits in (WIDE, NARROW)]
        plain = weight.numel() * weight.element_size()
        grown = after / before - 1
        found[name] = Borne(plain=plain, wide=sizes[0], narrow=sizes[1], loses=grown)
    return found


def bytes_of(linear: CodedLinear) -> int:
    return sum(t.numel() * t.element_size() for t in named_tensors(linear).values())


def by_size(borne: Mapping[str, Borne], rest: int, most: float) -> dict[str, int]:
    """Bits by name: four where the least is lost for it, until all keep within so many bytes.

    >>> a = Borne(plain=400, wide=100, narrow=50, loses=0.001)
    >>> b = Borne(plain=400, wide=100, narrow=50, loses=0.01)
    >>> by_size({"a": a, "b": b}, rest=10, most=170)
    {'a': 4, 'b': 8}
    """
    bits = dict.fromkeys(borne, WIDE)
    total = rest + sum(one.wide for one in borne.values())
    for name in in_order(borne):
        if total <= most:
            break
        bits[name] = NARROW
        total += borne[name].narrow - borne[name].wide
    return bits


def by_loss(borne: Mapping[str, Borne], most: float) -> dict[str, int]:
    """Bits by name: four for as many as may lose so much together.

    >>> a = Borne(plain=400, wide=100, narrow=50, loses=0.001)
    >>> b = Borne(plain=400, wide=100, narrow=50, loses=0.01)
    >>> by_loss({"a": a, "b": b}, most=0.005)
    {'a': 4, 'b': 8}
    """
    bits, lost = dict.fromkeys(borne, WIDE), 0.0
    for name in in_order(borne):
        lost += max(borne[name].loses, 0.0)
        if lost > most:
            break
        bits[name] = NARROW
    return bits


def in_order(borne: Mapping[str, Borne]) -> list[str]:
    """Those first that lose the least for every byte saved."""
    return sorted(borne, key=lambda n: borne[n].loses / (borne[n].wide - borne[n].narrow))
