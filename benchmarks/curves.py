"""A picture of trainings: a curve for each, with its name at its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from drawing import SHADES, Picture, Point

Curve = Sequence[Point]


def picture(curves: Mapping[str, Curve], title: str, below: str) -> str:
    """The curves as SVG; `below` says what both axes are."""
    values = [value for curve in curves.values() for _, value in curve]
    last = max(curve[-1][0] for curve in curves.values())
    drawn = Picture(title, below, (0, last), (min(values), max(values)))
    drawn.rows()
    drawn.columns(drawn.quarters())
    shades = dict(zip(curves, SHADES, strict=False))
    for name, curve in curves.items():
        drawn.curve(curve, shades[name])
    ends = {name: curve[-1][1] for name, curve in curves.items()}
    drawn.names((end, f"{end:.2f} {name}", shades[name]) for name, end in ends.items())
    return drawn.svg()
