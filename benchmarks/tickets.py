"""A picture of lottery tickets: loss against the share of weights that is left."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from drawing import Picture, with_room

SHADES = ("#7c5cff", "#e8a200", "#868e96")
Line = Sequence[Sequence[tuple[float, float]]]
"""Of every seed: shares of weights that are left, and bits per byte."""


def picture(lines: Mapping[str, Line], title: str) -> str:
    """A curve for each way of setting back: the mean over seeds, and from the least to the most."""
    shares = [left for line in lines.values() for one in line for left, _ in one]
    losses = [loss for line in lines.values() for one in line for _, loss in one]
    drawn = Picture(
        title, "weights that are left; bits per byte upwards", (1.0, min(shares)),
        with_room(losses), stretched=lambda left: -math.log(left), height=340, right=150,
    )  # fmt: skip
    drawn.rows(".2f")
    drawn.columns(sorted({round(left, 3) for left in shares}), ".0%")
    named: list[tuple[float, str, str]] = []
    for shade, (name, line) in zip(SHADES, lines.items(), strict=False):
        rounds = [list(points) for points in zip(*line, strict=False)]
        low, mean, high = (
            [(points[0][0], kind([loss for _, loss in points])) for points in rounds]
            for kind in (min, statistics.mean, max)
        )
        drawn.band(low, high, shade)
        drawn.curve(mean, shade)
        for point in mean:
            drawn.dot(point, shade, 3)
        named.append((mean[-1][1], name, shade))
    drawn.names(named)
    return drawn.svg()
