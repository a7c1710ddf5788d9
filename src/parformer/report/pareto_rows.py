"""What is known of one architecture of a front, and how is it told and drawn?

>>> row = {"pattern": "s[heads=2]f[inner=512]s[heads=4]f[inner=1024]", "layers": 2}
>>> sizes({**row, "fields": {"d_model": 256}})
'2 layers, width 256, heads 2–4, inner 512–1,024'
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from html import escape
from typing import Any

from parformer.errors import PatternError
from parformer.pattern import BlockSpec, Pattern
from parformer.report.page import Html
from parformer.report.stack import COLOURS
from parformer.search.limits import METRICS, UNITS, in_words

Found = Mapping[str, Any]
"""What `pareto.json` holds."""

Row = Mapping[str, Any]
"""A member of the front or of the layer-scaled baseline."""

NOTHING: Found = {}

NAMES = {
    "latency": "latency",
    "memory": "peak memory",
    "flops": "FLOPs",
    "parameters": "parameters",
    "state": "state",
}
COUNTS = {"decoder-parameters": "decoder parameters", "parameters": "parameters"}
"""Proxies of quality that are numbers of parameters."""

FAMILIES = {
    "transformer-xl": "Transformer-XL",
    "gpt2": "GPT-2",
    "bert": "BERT",
    "llama": "Llama",
}
UP, DOWN, PITCH, WIDEST = 24, 9, 6.5, 110
"""Pixels of a drawing: above its floor, below it, per layer, and at most in all."""


def finite(value: Any) -> float | None:
    """A number that can be drawn and told, or nothing."""
    known = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if known and math.isfinite(value) else None


def value_from(row: Row, source: str, metric: str) -> float | None:
    """What was `predicted` or `measured`."""
    return finite((row.get(source) or {}).get(metric))


def value_of(row: Row, metric: str) -> float | None:
    """A figure of an architecture, as measured where it was measured, else as predicted."""
    if metric in ("latency", "memory"):
        measured = value_from(row, "measured", metric)
        return value_from(row, "predicted", metric) if measured is None else measured
    return finite(row.get({"state": "state_bytes"}.get(metric, metric)))


def is_measured(row: Row, metric: str) -> bool:
    """Whether a figure is certain: measured, or counted, which is exact."""
    if metric not in ("latency", "memory"):
        return True
    return value_from(row, "measured", metric) is not None


def interval_of(row: Row) -> tuple[float, float] | None:
    """Between what the measured latency lies."""
    ends = [finite(end) for end in (row.get("measured") or {}).get("latency_interval") or ()]
    low, high = ends if len(ends) == 2 else (None, None)
    return None if low is None or high is None else (low, high)


def costs_of(found: Found) -> list[str]:
    """The objectives that a search kept small, of those that any architecture has figures for."""
    given = [name for name in found.get("objectives") or () if name in METRICS]
    return [name for name in given if any(value_of(r, name) is not None for r in front_of(found))]


def front_of(found: Found) -> Sequence[Row]:
    return found.get("front") or []


def baseline_of(found: Found) -> Sequence[Row]:
    return found.get("baseline") or []


def name_of(row: Row) -> str:
    return str(row.get("name") or "?")


def family_of(found: Found) -> str:
    """The name of what was scaled, as people write it."""
    family = str((found.get("space") or {}).get("family") or "model")
    return FAMILIES.get(family, family)


def quality_name(found: Found) -> str:
    """What stands for quality."""
    proxy = str(found.get("proxy") or "quality")
    return COUNTS.get(proxy, f"{proxy} score")


def quality_words(found: Found, quality: Any) -> str:
    """A quality: a number of parameters for people, or the score of another proxy.

    >>> quality_words({"proxy": "parameters"}, 21_300_000), quality_words({}, -2.3456)
    ('21.3 M', '−2.346')
    """
    value = finite(quality)
    if value is None:
        return "–"
    words = in_words("parameters", value) if found.get("proxy") in COUNTS else f"{value:.4g}"
    return words.replace("-", "−")


def quality_told(found: Found, quality: Any) -> str:
    """A quality and what it is.

    >>> quality_told({"proxy": "snip"}, 10.43), quality_told({"proxy": "parameters"}, 9e6)
    ('snip score 10.43', '9 M parameters')
    """
    words = [quality_words(found, quality), quality_name(found)]
    return " ".join(words if found.get("proxy") in COUNTS else words[::-1])


def words_of(row: Row, metric: str) -> str:
    """A figure in words; `~` goes before what was only predicted."""
    value = value_of(row, metric)
    if value is None:
        return "–"
    return f"{'' if is_measured(row, metric) else '~'}{in_words(metric, value)}"


def interval_words(row: Row) -> str:
    """The interval of the measured latency, with one unit where one is enough.

    >>> interval_words({"measured": {"latency_interval": [0.0213, 0.0221]}})
    '21.3 – 22.1 ms'
    """
    if (ends := interval_of(row)) is None:
        return ""
    low, high = (in_words("latency", end) for end in ends)
    alike = low.split()[-1] == high.split()[-1]
    return f"{low.split()[0] if alike else low} – {high}"


def unit_of(metric: str, values: Iterable[float]) -> tuple[str, float]:
    """The unit that suits the largest of some values, and its size.

    >>> unit_of("latency", [0.003, 0.02]), unit_of("flops", [12.0])
    (('ms', 0.001), ('', 1.0))
    """
    _, _, unit = in_words(metric, max(values, default=1.0)).partition(" ")
    return unit, UNITS[metric][unit]


def blocks_of(row: Row) -> Sequence[BlockSpec]:
    return _blocks(str(row.get("pattern") or ""))


@lru_cache(maxsize=256)
def _blocks(pattern: str) -> Sequence[BlockSpec]:
    try:
        return Pattern.parse(pattern).blocks
    except PatternError:
        return ()


def options_of(row: Row, option: str, found: Found = NOTHING) -> list[int]:
    """The heads or inner widths of all blocks that have any, from the first to the last."""
    letter, field = {"heads": ("s", "n_head"), "inner": ("f", "d_inner")}[option]
    model = (found.get("space") or {}).get("model") or {}
    usual = (row.get("fields") or {}).get(field, model.get(field))
    values = [b.options.get(option, usual) for b in blocks_of(row) if b.letter == letter]
    return [int(value) for value in values if isinstance(value, int)]


def span(values: Sequence[int]) -> str:
    """From the least to the most.

    >>> span([4, 2, 8]), span([1024]), span([])
    ('2–8', '1,024', '–')
    """
    ends = sorted({min(values), max(values)}) if values else []
    return "–".join(f"{end:,}" for end in ends) or "–"


def width_of(row: Row) -> str:
    width = finite((row.get("fields") or {}).get("d_model"))
    return "–" if width is None else f"{width:,.0f}"


def counted(number: Any, what: str) -> str:
    """A number of things.

    >>> counted(1, "layer"), counted(2100, "layer")
    ('1 layer', '2,100 layers')
    """
    value = finite(number)
    return f"– {what}s" if value is None else f"{value:,.0f} {what}{'s' * (value != 1)}"


def sizes(row: Row, found: Found = NOTHING) -> str:
    """An architecture in a few words; its pattern says the rest."""
    words = [counted(row.get("layers"), "layer")]
    ranges = {option: span(options_of(row, option, found)) for option in ("heads", "inner")}
    parts = {"width": width_of(row), **ranges}
    return ", ".join(words + [f"{name} {part}" for name, part in parts.items() if part != "–"])


def columns(blocks: Sequence[BlockSpec]) -> list[tuple[BlockSpec | None, BlockSpec | None]]:
    """Layers as drawn: a feed-forward stands on whatever block comes right before it.

    >>> [tuple(str(b or "") for b in pair) for pair in columns(list(Pattern.parse("sffs")))]
    [('f', 's'), ('f', ''), ('', 's')]
    """
    made: list[tuple[BlockSpec | None, BlockSpec | None]] = []
    for block in blocks:
        if block.letter != "f":
            made.append((None, block))
        elif made and made[-1][0] is None:
            made[-1] = (block, made[-1][1])
        else:
            made.append((block, None))
    return made


def drawing(row: Row, tallest: int, most: int) -> Html:
    """Inner widths as bars upwards, heads as bars downwards, first layer at the left."""
    layers = columns(blocks_of(row))
    if not layers:
        return Html("")
    pitch = min(PITCH, WIDEST / len(layers))
    gap = min(1.5, pitch / 4)
    bars: dict[str, list[str]] = {}
    for place, (above, below) in enumerate(layers):
        for block, option, top, room in (
            (above, "inner", tallest, -UP),
            (below, "heads", most, DOWN),
        ):
            if block is not None and block.letter != "i":
                size = block.options.get(option)
                share = size / top if isinstance(size, int) and top else 0.5
                high = math.copysign(max(1.5, abs(room) * min(share, 1.0)), room)
                path = f"M{place * pitch:.4g} {UP + math.copysign(0.5, room):g}v{high:.3g}"
                bars.setdefault(block.letter, []).append(f"{path}h{pitch - gap:.3g}v{-high:.3g}z")
    paths = "".join(f'<path fill="{COLOURS[x]}" d="{"".join(d)}"/>' for x, d in bars.items())
    wide, high = len(layers) * pitch, UP + DOWN + 1
    lists = {name: ", ".join(map(str, options_of(row, name))) for name in ("inner", "heads")}
    label = escape("; ".join(f"{name} {text}" for name, text in lists.items() if text))
    return Html(
        f'<svg class="shape" width="{wide:.4g}" height="{high}" viewBox="0 0 {wide:.4g} {high}" '
        f'role="img" aria-label="{label or "a stack"}">{paths}</svg>'
    )
