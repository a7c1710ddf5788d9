"""A picture of trainings: a curve for each, with its name at its end."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

WIDTH, HEIGHT = 760, 380
LEFT, RIGHT, TOP, BOTTOM = 56, 200, 34, 46
SHADES = ("#c0392b", "#d97b16", "#1b3a8c", "#12877a", "#8e44ad", "#6b7280")
APART = 16
"""Between two names."""

Curve = Sequence[tuple[float, float]]


def picture(curves: Mapping[str, Curve], title: str, below: str) -> str:
    """The curves as SVG; `below` says what both axes are."""
    last = max(curve[-1][0] for curve in curves.values())
    values = [value for curve in curves.values() for _, value in curve]
    low, high = min(values), max(values)
    step = step_of(high - low)

    def across(place: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * place / last

    def up(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (value - low) / (high - low)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="system-ui, sans-serif" font-size="12" fill="#868e96">',
        f'<text x="{LEFT}" y="18" font-size="14" font-weight="600">{title}</text>',
        f'<text x="{across(last / 2):.0f}" y="{HEIGHT - 8}" text-anchor="middle">{below}</text>',
    ]
    for number in range(math.ceil(low / step), math.floor(high / step) + 1):
        y = up(number * step)
        parts.append(
            f'<line x1="{LEFT}" x2="{across(last):.1f}" y1="{y:.1f}" y2="{y:.1f}" '
            f'stroke="#868e9633"/><text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">'
            f"{number * step:g}</text>"
        )
    parts += [
        f'<text x="{across(last * n / 4):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">'
        f"{last * n / 4:,.0f}</text>"
        for n in range(5)
    ]
    shades = dict(zip(curves, SHADES, strict=False))
    for name, curve in curves.items():
        points = " ".join(f"{across(place):.1f},{up(value):.1f}" for place, value in curve)
        line = f'<polyline points="{points}" fill="none" stroke="{shades[name]}" '
        parts.append(line + 'stroke-width="2"/>')
    lowest = -math.inf
    for name in sorted(curves, key=lambda name: -curves[name][-1][1]):
        lowest = max(up(curves[name][-1][1]), lowest + APART)
        parts.append(
            f'<text x="{across(last) + 10:.1f}" y="{lowest + 4:.1f}" fill="{shades[name]}">'
            f"{curves[name][-1][1]:.2f} {name}</text>"
        )
    return "\n".join([*parts, "</svg>", ""])


def step_of(span: float) -> float:
    """A round distance of which four to ten fit.

    >>> step_of(1.0), step_of(3.2), step_of(0.07)
    (0.2, 0.5, 0.01)
    """
    power: float = 10 ** math.floor(math.log10(span / 4))
    return next(f * power for f in (5, 2, 1) if f * power <= span / 4)
