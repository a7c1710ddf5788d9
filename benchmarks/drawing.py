"""Pictures of measurements as SVG: a frame with its scales, curves, dots, and names beside them."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

SHADES = (
    "#c0392b", "#d97b16", "#1b3a8c", "#12877a", "#8e44ad", "#6b7280", "#5c940d", "#e64980"
)  # fmt: skip
GREY = "#868e96"
APART = 16
"""Between two names."""
Point = tuple[float, float]


@dataclass
class Picture:
    """What is drawn goes into a frame whose scales are given first."""

    title: str
    below: str
    """What both axes are."""
    across: tuple[float, float]
    up: tuple[float, float]
    """The least and the most on either axis."""
    stretched: Callable[[float], float] = float
    """What the axis across is even in, such as a logarithm."""
    width: int = 760
    height: int = 380
    right: int = 200
    """Room for names."""
    left: int = 56
    top: int = 34
    bottom: int = 46
    parts: list[str] = field(default_factory=list)

    def x(self, value: float) -> float:
        first, here, last = (self.stretched(one) for one in (self.across[0], value, self.across[1]))
        return self.left + (self.width - self.left - self.right) * (here - first) / (last - first)

    def y(self, value: float) -> float:
        low, high = self.up
        whole = self.height - self.top - self.bottom
        return self.height - self.bottom - whole * (value - low) / (high - low)

    def rows(self, form: str = "g") -> None:
        """Lines at round values, with what they stand for."""
        low, high = self.up
        step = step_of(high - low)
        for number in range(math.ceil(low / step), math.floor(high / step) + 1):
            y = self.y(number * step)
            self.parts.append(
                f'<line x1="{self.left}" x2="{self.width - self.right}" y1="{y:.1f}" y2="{y:.1f}" '
                f'stroke="{GREY}33"/>'
            )
            self.write(self.left - 8, y + 4, f"{number * step:{form}}", anchor="end")

    def columns(self, values: Iterable[float], form: str = ",.0f") -> None:
        for value in values:
            self.write(
                self.x(value), self.height - self.bottom + 18, f"{value:{form}}", anchor="middle"
            )

    def quarters(self) -> list[float]:
        """Five values from the least to the most."""
        first, last = self.across
        return [first + (last - first) * n / 4 for n in range(5)]

    def write(
        self, x: float, y: float, text: str, shade: str = "", *, anchor: str = "", size: int = 0
    ) -> None:
        own = "".join(
            f' {name}="{value}"'
            for name, value in (("text-anchor", anchor), ("fill", shade), ("font-size", size))
            if value
        )
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}"{own}>{html.escape(text)}</text>')

    def curve(self, points: Sequence[Point], shade: str) -> None:
        self.parts.append(
            f'<polyline points="{self.placed(points)}" fill="none" stroke="{shade}" '
            'stroke-width="2"/>'
        )

    def band(self, low: Sequence[Point], high: Sequence[Point], shade: str) -> None:
        """What is between two curves."""
        around = [*low, *reversed(high)]
        self.parts.append(
            f'<polygon points="{self.placed(around)}" fill="{shade}" opacity="0.15"/>'
        )

    def dot(self, point: Point, shade: str, radius: int = 4) -> None:
        x, y = self.x(point[0]), self.y(point[1])
        self.parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{shade}"/>')

    def names(self, named: Iterable[tuple[float, str, str]], *, size: int = 0) -> None:
        """Values upwards, names and shades: beside the frame, none over another."""
        last = -math.inf
        for value, name, shade in sorted(named, key=lambda one: -one[0]):
            last = max(self.y(value), last + APART)
            self.write(self.width - self.right + 10, last + 4, name, shade, size=size)

    def placed(self, points: Iterable[Point]) -> str:
        return " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in points)

    def svg(self) -> str:
        opening = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
            f'font-family="system-ui, sans-serif" font-size="12" fill="{GREY}">'
        )
        title = (
            f'<text x="{self.left}" y="18" font-size="14" font-weight="600">'
            f"{html.escape(self.title)}</text>"
        )
        middle = (self.left + self.width - self.right) / 2
        below = (
            f'<text x="{middle:.1f}" y="{self.height - 8}" text-anchor="middle">'
            f"{html.escape(self.below)}</text>"
        )
        return "\n".join([opening, title, below, *self.parts, "</svg>", ""])


def step_of(span: float) -> float:
    """A round distance of which four to ten fit.

    >>> step_of(1.0), step_of(3.2), step_of(0.07)
    (0.2, 0.5, 0.01)
    """
    power: float = 10 ** math.floor(math.log10(span / 4))
    return next(f * power for f in (5, 2, 1) if f * power <= span / 4)


def with_room(values: Sequence[float], share: float = 0.04) -> tuple[float, float]:
    """The least and the most, with some room around.

    >>> with_room([1.0, 2.0], 0.5)
    (0.5, 2.5)
    """
    low, high = min(values), max(values)
    room = share * (high - low)
    return low - room, high + room
