"""What does the front save beside the same model with fewer layers?

At equal quality, as LiteTransformerSearch computes it, and beside its published figures.

>>> ratio_words(1.62, "faster", "slower"), ratio_words(0.8, "faster", "slower")
('1.6× faster', '1.2× slower')
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from parformer.report.page import Html, Part, listed, table
from parformer.report.pareto_rows import (
    COUNTS,
    Found,
    Row,
    baseline_of,
    counted,
    family_of,
    finite,
    front_of,
    interval_of,
    is_measured,
    quality_name,
    quality_words,
)
from parformer.search.limits import in_words

ALIKE = 0.05
"""Ratios this near to 1 would be told as 1.0×."""

PAPER: Mapping[str, Mapping[str, tuple[float, float, float | None, float | None]]] = {
    "transformer-xl": {
        "ARM": (0.198, 0.288, 1.6, 1.9),
        "Core i7": (0.258, 0.300, 1.7, 1.9),
        "TITAN Xp": (0.305, 0.270, 2.5, 2.0),
    },
    "gpt2": {
        "ARM": (0.0, 0.118, None, None),
        "Core i7": (0.138, 0.097, 1.3, 1.2),
        "TITAN Xp": (0.119, 0.129, 1.5, 1.2),
    },
}
"""LiteTransformerSearch, section 4.4: latency and memory saved on average; and how much faster
and smaller than the 16-layer baseline."""


def rows_of(found: Found) -> Sequence[Row]:
    """The layer-scaled models whose quality the front reaches."""
    return (found.get("savings") or {}).get("rows") or []


def largest_of(found: Found) -> Row | None:
    """The deepest of them."""
    savings = found.get("savings") or {}
    deepest = max(rows_of(found), key=lambda row: finite(row.get("layers")) or 0, default=None)
    return savings.get("largest") or deepest


def ratio_words(ratio: float, better: str, worse: str) -> str:
    """A ratio above 1 is to the good."""
    return f"{ratio:.1f}× {better}" if ratio >= 1 else f"{1 / ratio:.1f}× {worse}"


def alike(ratio: float) -> bool:
    return abs(ratio - 1) <= ALIKE


def same_time(found: Found, row: Row) -> bool:
    """Whether the latencies of a baseline and of what matches it cannot be told apart."""
    mine = next((r for r in front_of(found) if r.get("name") == row.get("found")), {})
    theirs = next((r for r in baseline_of(found) if r.get("layers") == row.get("layers")), {})
    one, other = interval_of(mine), interval_of(theirs)
    return one is not None and other is not None and one[0] <= other[1] and other[0] <= one[1]


def savings_words(found: Found) -> list[str]:
    """What the search gained in plain words, or that it gained nothing, or that this is unknown.

    The first goes on with a sentence, the others are sentences.
    """
    if not baseline_of(found) and not rows_of(found):
        return ["no layer-scaled baseline was compared, so what the search gains is not known"]
    largest = largest_of(found)
    if largest is None:
        return [_why_nothing(found)]
    speed, space = finite(largest.get("speedup")), finite(largest.get("memory_ratio"))
    if speed is not None and (alike(speed) or same_time(found, largest)):
        speed = 1.0
    if space is not None and alike(space):
        space = 1.0
    parts = [
        f"about as {plain}" if ratio == 1 else ratio_words(ratio, better, worse)
        for ratio, plain, better, worse in (
            (speed, "fast", "faster", "slower"),
            (space, "much memory", "less memory", "more memory"),
        )
        if ratio
    ]
    at = f"at the quality of the {largest.get('layers')}-layer {family_of(found)}"
    ratios = [ratio for ratio in (speed, space) if ratio]
    if not ratios:
        return [f"{at} nothing was compared"]
    words = (" but " if max(ratios) > 1 > min(ratios) else ", ").join(parts)
    said = f"{at}: {words}"
    if max(ratios) <= 1:
        said = f"the front does not beat layer-scaling: {at}, {words}"
    return [said, *_mean_words(found)]


def _why_nothing(found: Found) -> str:
    best, least = (
        [q for row in rows if (q := finite(row.get("quality"))) is not None]
        for rows in (front_of(found), baseline_of(found))
    )
    if best and least and max(best) >= min(least):
        return "latency and memory were not compared with layer-scaling at equal quality"
    return "the front reaches the quality of no layer-scaled model, so nothing is compared"


def _mean_words(found: Found) -> list[str]:
    savings, count = found.get("savings") or {}, len(rows_of(found))
    # the fastest and the smallest that match a depth are often two models, and say so
    each = all("fastest" in row for row in rows_of(found))
    kinds = (("latency_saved", "latency", "fastest"), ("memory_saved", "memory", "smallest"))
    parts = [
        f"{abs(saved):.1%} {'less' if saved >= 0 else 'more'} {what}"
        + (f" for the {which}" if each else "")
        for key, what, which in kinds
        if (saved := finite(savings.get(key))) is not None
    ]
    if not parts or count < 2:
        return []
    return [f"On average over the {count} depths whose quality it reaches: {listed(parts)}"]


def savings_parts(found: Found) -> list[Part]:
    """Depth by depth, and beside the paper's averages."""
    rows = rows_of(found)
    if not rows:
        return []
    see = (
        f"Every row is a layer-scaled {family_of(found)} and the cheapest on the front whose "
        f"quality ({quality_name(found)}) is at least as high. Above 1× the search wins."
    )
    missing = len(baseline_of(found)) - len(rows)
    if missing > 0:
        see += f" {counted(missing, 'depth')} left out: nothing on the front reaches that quality."
    if any(same_time(found, row) for row in rows):
        see += " ≈: the two latencies cannot be told apart."
    if any(not is_measured(row, "latency") for row in front_of(found)):
        see += " Where nothing was measured, predictions are compared."
    parts = [Part(_depths(found, rows), see)]
    if (published := _published(found)) is not None:
        parts.append(published)
    return parts


def _depths(found: Found, rows: Sequence[Row]) -> Html:
    kinds = [
        (metric, ratio, better)
        for metric, ratio, better in (
            ("latency", "speedup", "× faster"),
            ("memory", "memory_ratio", "× less memory"),
        )
        if any(finite(row.get(f"found_{metric}")) is not None for row in rows)
    ]
    head = ["layer-scaled", quality_name(found), "matched by"]
    for metric, _, better in kinds:
        head += [metric, f"{metric} found", better]
    body = []
    for row in rows:
        cells = [counted(row.get("layers"), "layer"), quality_words(found, row.get("quality"))]
        cells.append(str(row.get("found") or "–"))
        for metric, ratio, _ in kinds:
            amounts = [finite(row.get(key)) for key in (metric, f"found_{metric}")]
            cells += ["–" if a is None else in_words(metric, a) for a in amounts]
            share = finite(row.get(ratio))
            tie = " ≈" if metric == "latency" and same_time(found, row) else ""
            cells.append("–" if share is None else f"{share:.2f}{tie}")
        body.append(cells)
    return table(head, body)


def _published(found: Found) -> Part | None:
    """Our averages beside LiteTransformerSearch's, where the search was of its kind."""
    space, savings = found.get("space") or {}, found.get("savings") or {}
    paper = PAPER.get(str(space.get("family")))
    if paper is None or not str(space.get("name")).startswith("lts"):
        return None
    largest = largest_of(found) or {}
    mine: list[Any] = [savings.get("latency_saved"), savings.get("memory_saved")]
    mine += [largest.get("speedup"), largest.get("memory_ratio")]
    depth = finite(largest.get("layers"))
    note = "" if depth is None or depth == 16 else f" (here {depth:.0f})"
    rows = [("this search", *_saved(mine))]
    rows += [(f"the paper, {device}", *_saved(figures)) for device, figures in paper.items()]
    head = ["", "latency saved", "memory saved"]
    head += [f"{what}, 16 layers{note}" for what in ("× faster", "× less memory")]
    see = (
        "The paper's figures are from section 4.4 of LiteTransformerSearch (LM1B). It compares "
        "trained models of equal perplexity; here "
        + (
            f"models with as many {quality_name(found)} stand for that"
            if found.get("proxy") in COUNTS
            else f"an equal {quality_name(found)} stands for that"
        )
        + ". Devices, vocabularies and ways to measure differ too: compare sizes, not digits."
    )
    return Part(table(head, rows), see)


def _saved(figures: Sequence[Any]) -> list[str]:
    known = [finite(figure) for figure in figures]
    words = ["–" if f is None else f"{f:.1%}".replace("-", "−") for f in known[:2]]
    return words + ["–" if f is None else f"{f:.1f}" for f in known[2:]]
