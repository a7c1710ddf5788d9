"""A picture of lottery tickets: loss against the share of weights that is left."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

WIDTH, HEIGHT = 720, 340
LEFT, RIGHT, TOP, BOTTOM = 56, 150, 34, 46
SHADES = ("#7c5cff", "#e8a200", "#868e96")
Line = Sequence[Sequence[tuple[float, float]]]
"""Of every seed: shares of weights that are left, and bits per byte."""


def picture(lines: Mapping[str, Line], title: str) -> str:
    """A curve for each way of setting back: the mean over seeds, and from the least to the most."""
    shares = [left for line in lines.values() for one in line for left, _ in one]
    losses = [loss for line in lines.values() for one in line for _, loss in one]
    low, high = min(losses), max(losses)
    low, high = low - 0.04 * (high - low), high + 0.04 * (high - low)

    def across(left: float) -> float:
        whole = math.log(1 / min(shares))
        return LEFT + (WIDTH - LEFT - RIGHT) * math.log(1 / left) / whole

    def up(loss: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (loss - low) / (high - low)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="system-ui, sans-serif" font-size="12" fill="#868e96">',
        f'<text x="{LEFT}" y="18" font-size="14" font-weight="600">{title}</text>',
    ]
    step = 0.1 if high - low < 0.8 else 0.25
    for number in range(math.ceil(low / step), math.floor(high / step) + 1):
        y = up(number * step)
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#868e9633"/>'
            f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{number * step:.2f}</text>'
        )
    for left in sorted({round(left, 3) for left in shares}):
        parts.append(
            f'<text x="{across(left):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">'
            f"{left:.0%}</text>"
        )
    parts.append(
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 8}" text-anchor="middle">'
        "weights that are left; bits per byte upwards</text>"
    )
    named: list[tuple[float, str, str]] = []
    for shade, (name, line) in zip(SHADES, lines.items(), strict=False):
        rounds = [list(points) for points in zip(*line, strict=False)]
        places = [across(points[0][0]) for points in rounds]
        means = [up(statistics.mean(loss for _, loss in points)) for points in rounds]
        lowest = [up(min(loss for _, loss in points)) for points in rounds]
        highest = [up(max(loss for _, loss in points)) for points in rounds]
        around = [
            *zip(places, lowest, strict=True),
            *reversed([*zip(places, highest, strict=True)]),
        ]
        parts.append(f'<polygon points="{joined(around)}" fill="{shade}" opacity="0.15"/>')
        middle = joined(zip(places, means, strict=True))
        parts.append(f'<polyline points="{middle}" fill="none" stroke="{shade}" stroke-width="2"/>')
        dots = zip(places, means, strict=True)
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{shade}"/>' for x, y in dots]
        named.append((means[-1], name, shade))
    last = -math.inf
    for y, name, shade in sorted(named):
        last = max(y, last + 16)
        parts.append(
            f'<text x="{WIDTH - RIGHT + 10}" y="{last + 4:.1f}" fill="{shade}">{name}</text>'
        )
    return "\n".join([*parts, "</svg>", ""])


def joined(points: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
