"""Which blocks may a search not give up?

What takes several blocks together is learned late, and an architecture that moves on breaks
it before its use shows. So when the warm-up ends, the supernet is asked once what it would
lose without each choice of each layer. A layer that cannot do without a kind of block gets
it, whatever the search settles on afterwards.
"""

# l layer, c choice

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from parformer.errors import FolderError
from parformer.pattern import ALPHABET
from parformer.search.placement.choices import Choices
from parformer.search.placement.result import Table


def read_removal(rows: Any) -> Table:
    """What a checkpoint has of the test."""
    try:
        return tuple(tuple(map(float, row)) for row in rows)
    except (TypeError, ValueError):
        raise FolderError(f"the stored removal test is broken: {rows!r}") from None


def needed_kinds(removal: Table, space: Choices, least: float) -> dict[int, str]:
    """The kind of block that a layer cannot do without, by its letter.

    `removal` has what the loss grew by, as a share, without each choice. Needed is what it would
    grow by `least` or more without. A layer that needs several kinds gets the one that fewer
    layers need, for the others have more places.
    """
    layers: dict[str, dict[int, float]] = {}
    for layer, (shares, choices) in enumerate(zip(removal, space.layers, strict=True)):
        for share, spec in zip(shares, choices, strict=True):
            if share >= least and spec.letter != "i":
                own = layers.setdefault(spec.letter, {})
                own[layer] = max(share, own.get(layer, 0.0))
    found: dict[int, str] = {}
    order = list(ALPHABET)
    for letter in sorted(layers, key=lambda kind: (len(layers[kind]), order.index(kind))):
        for layer in layers[letter]:
            found.setdefault(layer, letter)
    return found


def overruled(picks: Sequence[int], needs: Mapping[int, str], space: Choices) -> list[int]:
    """The layers where the picks are of another kind than the one that is needed."""
    return [
        layer
        for layer, kind in sorted(needs.items())
        if space.layers[layer][picks[layer]].letter != kind
    ]


def put_back(
    log_probabilities: Sequence[Sequence[float]],
    needs: Mapping[int, str],
    space: Choices,
    weight: float = 1e3,
) -> list[list[float]]:
    """Probabilities that prefer what is needed; a limit still has the last word."""
    rows = [list(row) for row in log_probabilities]
    for layer, kind in needs.items():
        for pick, spec in enumerate(space.layers[layer]):
            if spec.letter != kind:
                rows[layer][pick] -= weight
    return rows
