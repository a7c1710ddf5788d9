"""How well do cheap scores rank trained models, for the terminal and as a picture?"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from xml.sax.saxutils import escape

from rich.table import Column, Table
from rich.text import Text

from parformer.report.figures import GREY, SHADES
from parformer.report.tables import right, slim
from parformer.search.ranking.rankings import SHARES, Bin, Ranking

Rankings = Mapping[str, Mapping[str, Ranking]]
"""By experiment, then by proxy."""

COLOURS = (*SHADES, GREY, "#1f2328")
DASHES = ("", "6 4", "2 3")
"""Of lines beyond the colours."""
WIDTH, PANEL, LEFT, TOP, GAP = 760, 200, 56, 44, 74
ACROSS = (WIDTH - 2 * LEFT - 24) // 2


def figure(value: float, digits: int = 3) -> str:
    """A correlation or a share, − where there is none.

    >>> figure(0.9736), figure(0.9736, 2), figure(float("nan"))
    ('0.974', '0.97', '−')
    """
    return "−" if math.isnan(value) else f"{value:.{digits}f}"


def short(value: float) -> str:
    """Ten of them fit into a row.

    >>> short(0.9736), short(-0.25), short(1)
    ('.97', '-.25', '1.0')
    """
    written = figure(value, 2)
    return written[:-1] if written.endswith("1.00") else written.replace("0.", ".", 1)


def tidy(name: str) -> str:
    """A name from a table: short, and without what would spoil a terminal or a picture."""
    return "".join(c if c.isprintable() else "�" for c in name[:60])


def flops_words(flops: float | None) -> str:
    """What a score costs, empty where nobody knows.

    >>> flops_words(2.5e12), flops_words(0), flops_words(None)
    ('2,500.0 G', 'none', '')
    """
    if flops is None:
        return ""
    return f"{flops / 1e9:,.1f} G" if flops else "none"


def summary(experiment: str, rankings: Mapping[str, Ranking]) -> Table:
    """One proxy per row: the correlation over all models, and what the score costs."""
    count = max(ranking.models for ranking in rankings.values())
    far = any(ranking.distance is not None for ranking in rankings.values())
    columns = ["SRC", "95% interval", *["front off by"] * far, "FLOPs of a model"]
    table = headed(tidy(experiment) + f", {count:,} models", columns)
    for name, ranking in rankings.items():
        row = [figure(ranking.spearman), " to ".join(map(figure, ranking.interval))]
        row += ["" if ranking.distance is None else f"{ranking.distance:.2%}"] if far else []
        table.add_row(Text(tidy(name)), *row, flops_words(ranking.flops))
    return table


def side_by_side(found: Mapping[str, Rankings]) -> Table:
    """Rank correlations, an experiment per row and a proxy per column, by every truth."""
    truths = list(found)
    first = found[truths[0]]
    proxies = list(next(iter(first.values())))
    columns = [f"{tidy(proxy)}, {tidy(truth)}" for truth in truths for proxy in proxies]
    table = headed("SRC (models)", columns)
    for experiment, group in first.items():
        count = max(ranking.models for ranking in group.values())
        row = [figure(found[t][experiment][p].spearman, 2) for t in truths for p in proxies]
        table.add_row(Text(f"{tidy(experiment)} ({count:,})"), *row)
    return table


def tops(rankings: Mapping[str, Ranking]) -> Table:
    """Two rows per proxy: how it ranks the truly best models, and how many of them it finds."""
    table = headed("among the best", ("", *(f"{share:.0%}" for share in SHARES)), padding=0)
    for name, ranking in rankings.items():
        kinds = (("SRC", ranking.top), ("CR", ranking.common))
        for label, (kind, values) in zip((name, ""), kinds, strict=True):
            table.add_row(Text(tidy(label)), kind, *(short(values[s]) for s in SHARES))
    return table


def sizes(rankings: Mapping[str, Ranking]) -> Table:
    """How a proxy ranks models of about one size."""
    bins = next(iter(rankings.values())).bins
    table = headed("among models of one size", map(size_words, bins))
    for name, ranking in rankings.items():
        table.add_row(Text(tidy(name)), *(figure(part.spearman, 2) for part in ranking.bins))
    return table


def headed(title: str, columns: Iterable[str], padding: int = 1) -> Table:
    """Figures, with what they are about over the column of names."""
    return slim(Column(Text(title), no_wrap=True), *right(columns), padding=padding)


def size_words(part: Bin) -> str:
    """A range of decoder parameters.

    >>> size_words(Bin(1_100_000, 2_340_000, 50, 0.9))
    '1.1–2.3 M'
    """
    return f"{part.low / 1e6:.1f}–{part.high / 1e6:.1f} M"


def ranking_svg(rankings: Rankings) -> str:
    """Correlation and common ratio against the share of best models, experiment by experiment."""
    names = list(dict.fromkeys(name for group in rankings.values() for name in group))
    height = TOP + 22 * math.ceil(len(names) / 4) + len(rankings) * (PANEL + GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        'font-family="sans-serif" font-size="12" fill="#334">',
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        f'<text x="{LEFT}" y="24" font-size="15" fill="#112">'
        "How proxies rank the best models</text>",
    ]
    for i, name in enumerate(names):
        x, y = LEFT + i % 4 * 172, TOP + 22 * (i // 4)
        parts.append(
            f'<line x1="{x}" x2="{x + 22}" y1="{y}" y2="{y}" {stroke(i)}/>'
            f'<text x="{x + 28}" y="{y + 4}">{escape(tidy(name))}</text>'
        )
    top = height - len(rankings) * (PANEL + GAP) + 30
    panels: tuple[tuple[str, Callable[[Ranking], Mapping[float, float]]], ...] = (
        ("Spearman among the truly best …", lambda ranking: ranking.top),
        ("share of them that the proxy finds", lambda ranking: ranking.common),
    )
    for experiment, group in rankings.items():
        for column, (title, pick) in enumerate(panels):
            lines = {names.index(name): pick(ranking) for name, ranking in group.items()}
            left = LEFT + column * (ACROSS + LEFT)
            parts += panel(title if column else f"{tidy(experiment)}: {title}", lines, left, top)
        top += PANEL + GAP
    return "\n".join([*parts, "</svg>", ""])


def panel(
    title: str, lines: Mapping[int, Mapping[float, float]], left: int, top: int
) -> Sequence[str]:
    """One diagram, its lines by their number among the proxies."""
    known = [y for line in lines.values() for y in line.values() if not math.isnan(y)]
    low = math.floor(5 * min([0.0, *known])) / 5

    def place(share: float, value: float) -> tuple[float, float]:
        return left + (share - 0.1) / 0.9 * ACROSS, top + (1 - value) / (1 - low) * PANEL

    parts = [f'<text x="{left}" y="{top - 12}" fill="#112">{escape(title)}</text>']
    for tick in range(round((1 - low) * 5) + 1):
        _, y = place(0.1, value := low + tick / 5)
        parts.append(
            f'<line x1="{left}" x2="{left + ACROSS}" y1="{y:.1f}" y2="{y:.1f}" stroke="#dde"/>'
            f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{value:.1f}</text>'
        )
    for share in (0.1, 0.4, 0.7, 1.0):
        x, _ = place(share, 0)
        parts.append(
            f'<text x="{x:.1f}" y="{top + PANEL + 18}" text-anchor="middle">{share:.0%}</text>'
        )
    for number, line in lines.items():
        points = [place(share, value) for share, value in line.items() if not math.isnan(value)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{path}" fill="none" {stroke(number)}/>')
    return parts


def stroke(number: int) -> str:
    """The look of a line."""
    dash = DASHES[number // len(COLOURS) % len(DASHES)]
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    return f'stroke="{COLOURS[number % len(COLOURS)]}" stroke-width="2"{dashes}'
