"""What does the front save beside the same model with fewer layers?

At equal quality, as LiteTransformerSearch computes it, and beside its published figures.

>>> ratio_words(1.62, "faster", "slower"), ratio_words(0.8, "faster", "slower")
('1.6× faster', '1.2× slower')
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from parformer.report.page import Html, Part, table
from parformer.report.pareto_rows import COUNTS, family_of, quality_name, quality_words
from parformer.report.words import counted, listed, overlap
from parformer.search.limits import in_words
from parformer.search.sizes.result import Saving, Savings, SizesResult

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


def ratio_words(ratio: float, better: str, worse: str) -> str:
    """A ratio above 1 is to the good."""
    return f"{ratio:.1f}× {better}" if ratio >= 1 else f"{1 / ratio:.1f}× {worse}"


def same_time(found: SizesResult, row: Saving) -> bool:
    """Whether the latencies of a baseline and of what matches it cannot be told apart."""
    both = [one for one in found.front if one.name == row.found]
    both += [one for one in found.baseline if one.layers == row.layers]
    read = [one.measured.latency_interval for one in both if one.measured is not None]
    ends = [interval for interval in read if interval is not None]
    return len(read) == len(ends) == 2 and overlap(*ends)


def savings_words(found: SizesResult) -> list[str]:
    """What the search gained in plain words, or that it gained nothing, or that this is unknown.

    The first goes on with a sentence, the others are sentences.
    """
    if not found.baseline:
        return ["no layer-scaled baseline was compared, so what the search gains is not known"]
    if found.savings is None:
        return [_why_nothing(found)]
    largest = found.savings.largest
    alike = abs(largest.speedup - 1) <= ALIKE or same_time(found, largest)
    speed = 1.0 if alike else largest.speedup
    space = 1.0 if abs(largest.memory_ratio - 1) <= ALIKE else largest.memory_ratio
    parts = [
        f"about as {plain}" if ratio == 1 else ratio_words(ratio, better, worse)
        for ratio, plain, better, worse in (
            (speed, "fast", "faster", "slower"),
            (space, "much memory", "less memory", "more memory"),
        )
    ]
    at = f"at the quality of the {largest.layers}-layer {family_of(found)}"
    words = (" but " if max(speed, space) > 1 > min(speed, space) else ", ").join(parts)
    said = f"{at}: {words}"
    if max(speed, space) <= 1:
        said = f"the front does not beat layer-scaling: {at}, {words}"
    return [said, *_mean_words(found.savings)]


def _why_nothing(found: SizesResult) -> str:
    least = min(base.quality for base in found.baseline)
    if max(one.quality for one in found.front) >= least:
        return "latency and memory were not compared with layer-scaling at equal quality"
    return "the front reaches the quality of no layer-scaled model, so nothing is compared"


def _mean_words(savings: Savings) -> list[str]:
    # the fastest and the smallest that match a depth are often two models, and say so
    kinds = (
        (savings.latency_saved, "latency for the fastest"),
        (savings.memory_saved, "memory for the smallest"),
    )
    parts = [f"{abs(share):.1%} {'less' if share >= 0 else 'more'} {what}" for share, what in kinds]
    if len(savings.rows) < 2:
        return []
    depths = len(savings.rows)
    return [f"On average over the {depths} depths whose quality it reaches: {listed(parts)}"]


def savings_parts(found: SizesResult) -> list[Part]:
    """Depth by depth, and beside the paper's averages."""
    if found.savings is None:
        return []
    rows = found.savings.rows
    see = (
        f"Every row is a layer-scaled {family_of(found)} and the cheapest on the front whose "
        f"quality ({quality_name(found.proxy)}) is at least as high. Above 1× the search wins."
    )
    missing = len(found.baseline) - len(rows)
    if missing > 0:
        see += f" {counted(missing, 'depth')} left out: nothing on the front reaches that quality."
    if any(same_time(found, row) for row in rows):
        see += " ≈: the two latencies cannot be told apart."
    if not all(one.is_measured("latency") for one in found.front):
        see += " Where nothing was measured, predictions are compared."
    return [Part(_depths(found, rows), see), *_published(found, found.savings)]


def _depths(found: SizesResult, rows: Sequence[Saving]) -> Html:
    head = ["layer-scaled", quality_name(found.proxy), "matched by"]
    head += ["latency", "latency found", "× faster", "memory", "memory found", "× less memory"]
    body = [
        (
            counted(row.layers, "layer"),
            quality_words(found.proxy, row.quality),
            row.found,
            in_words("latency", row.latency),
            in_words("latency", row.found_latency),
            f"{row.speedup:.2f}{' ≈' * same_time(found, row)}",
            in_words("memory", row.memory),
            in_words("memory", row.found_memory),
            f"{row.memory_ratio:.2f}",
        )
        for row in rows
    ]
    return table(head, body)


def _published(found: SizesResult, savings: Savings) -> list[Part]:
    """Our averages beside LiteTransformerSearch's, where the search was of its kind."""
    paper = PAPER.get(found.space.family)
    if paper is None or not found.space.name.startswith("lts"):
        return []
    largest = savings.largest
    mine = (savings.latency_saved, savings.memory_saved, largest.speedup, largest.memory_ratio)
    note = "" if largest.layers == 16 else f" (here {largest.layers})"
    rows = [("this search", *_saved(mine))]
    rows += [(f"the paper, {device}", *_saved(figures)) for device, figures in paper.items()]
    head = ["", "latency saved", "memory saved"]
    head += [f"{what}, 16 layers{note}" for what in ("× faster", "× less memory")]
    quality = quality_name(found.proxy)
    stands = f"models with as many {quality} stand" if found.proxy in COUNTS else (
        f"an equal {quality} stands"
    )  # fmt: skip
    see = (
        "The paper's figures are from section 4.4 of LiteTransformerSearch (LM1B). It compares "
        f"trained models of equal perplexity; here {stands} for that"
        ". Devices, vocabularies and ways to measure differ too: compare sizes, not digits."
    )
    return [Part(table(head, rows), see)]


def _saved(figures: Sequence[float | None]) -> list[str]:
    words = ["–" if f is None else f"{f:.1%}".replace("-", "−") for f in figures[:2]]
    return words + ["–" if f is None else f"{f:.1f}" for f in figures[2:]]
