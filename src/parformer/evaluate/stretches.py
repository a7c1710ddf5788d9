"""How do losses vary from one stretch of a text to the next?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from parformer.evaluate.perplexity import Tokens, evaluate
from parformer.model import Model

SEGMENT = 512
"""Tokens of a stretch of validation text whose mean loss counts as one observation."""


class Stretches:
    """Losses as an evaluation tells them, place by place."""

    def __init__(self) -> None:
        self.places: list[NDArray[np.int64]] = []
        self.losses: list[NDArray[np.float64]] = []

    def keep(self, where: NDArray[np.int64], what: NDArray[np.float64]) -> None:
        self.places.append(where)
        self.losses.append(what)

    def means(self) -> NDArray[np.float64]:
        """The mean of every stretch."""
        return segment_means(self.places, self.losses, SEGMENT)


def stretch_losses(model: Model, tokens: Tokens) -> NDArray[np.float64]:
    """The mean losses of a model on the stretches of a text."""
    kept = Stretches()
    evaluate(model, tokens, batch=8, each=kept.keep)
    return kept.means()


def segment_means(
    places: Sequence[NDArray[np.int64]], losses: Sequence[NDArray[np.float64]], length: int
) -> NDArray[np.float64]:
    """Mean losses of stretches of so many tokens, from losses at places in any order.

    >>> where, what = np.array([1, 2, 3, 4]), np.array([1.0, 3.0, 5.0, 7.0])
    >>> segment_means([where], [what], 2).tolist()
    [2.0, 6.0]
    """
    where = (np.concatenate(places) - 1) // length
    sums = np.bincount(where, weights=np.concatenate(losses))
    counts = np.bincount(where)
    whole: NDArray[np.float64] = sums[counts > 0] / counts[counts > 0]
    return whole
