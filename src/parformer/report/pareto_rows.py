"""What is known of one architecture of a front, and how is it told and drawn?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from parformer.pattern import BlockSpec
from parformer.report.page import Html
from parformer.report.stack import colour
from parformer.report.words import counted, interval, span
from parformer.search.limits import METRICS, in_words
from parformer.search.sizes.result import Member, SizesResult

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


def costs_of(found: SizesResult) -> list[str]:
    """The objectives that a search kept small, of those that any architecture has figures for."""
    given = [name for name in found.costs if name in METRICS]
    return [name for name in given if any(one.figure(name) is not None for one in found.front)]


def family_of(found: SizesResult) -> str:
    """The name of what was scaled, as people write it."""
    return FAMILIES.get(found.space.family, found.space.family)


def quality_name(proxy: str) -> str:
    """What stands for quality."""
    return COUNTS.get(proxy, f"{proxy} score")


def quality_words(proxy: str, quality: float) -> str:
    """A quality: a number of parameters for people, or the score of another proxy.

    >>> quality_words("parameters", 21_300_000), quality_words("snip", -2.3456)
    ('21.3 M', '−2.346')
    """
    words = in_words("parameters", quality) if proxy in COUNTS else f"{quality:.4g}"
    return words.replace("-", "−")


def quality_told(proxy: str, quality: float) -> str:
    """A quality and what it is.

    >>> quality_told("snip", 10.43), quality_told("parameters", 9e6)
    ('snip score 10.43', '9 M parameters')
    """
    words = [quality_words(proxy, quality), quality_name(proxy)]
    return " ".join(words if proxy in COUNTS else words[::-1])


def words_of(member: Member, metric: str) -> str:
    """A figure in words; `~` goes before what was only predicted."""
    value = member.figure(metric)
    if value is None:
        return "–"
    return f"{'' if member.is_measured(metric) else '~'}{in_words(metric, value)}"


def interval_words(member: Member) -> str:
    """The interval of the measured latency."""
    ends = None if member.measured is None else member.measured.latency_interval
    return "" if ends is None else interval(*ends)


def options_of(member: Member, option: str, found: SizesResult) -> list[int]:
    """The heads or inner widths of all blocks that have any, from the first to the last."""
    letter, field = {"heads": ("s", "n_head"), "inner": ("f", "d_inner")}[option]
    usual = getattr(found.space.model, field)
    values = [b.options.get(option, usual) for b in blocks_of(member) if b.letter == letter]
    return [value for value in values if isinstance(value, int)]


def blocks_of(member: Member) -> list[BlockSpec]:
    """All blocks of a model, those of an encoder first."""
    return [*(member.pattern.encoder or ()), *member.pattern]


def width_of(member: Member, found: SizesResult) -> int:
    return member.fields.get("d_model", found.space.model.d_model)


def sizes(member: Member, found: SizesResult) -> str:
    """An architecture in a few words; its pattern says the rest."""
    ranges = {option: span(options_of(member, option, found)) for option in ("heads", "inner")}
    parts = {"width": f"{width_of(member, found):,}", **ranges}
    words = [f"{name} {part}" for name, part in parts.items() if part != "–"]
    return ", ".join([counted(member.layers, "layer"), *words])


def columns(blocks: Sequence[BlockSpec]) -> list[tuple[BlockSpec | None, BlockSpec | None]]:
    """Layers as drawn: a feed-forward stands on whatever block comes right before it.

    >>> from parformer.pattern import Pattern
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


def drawing(member: Member, found: SizesResult, tallest: int, most: int) -> Html:
    """Inner widths as bars upwards, heads as bars downwards, first layer at the left."""
    layers = columns(blocks_of(member))
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
    paths = "".join(f'<path fill="{colour(x)}" d="{"".join(d)}"/>' for x, d in bars.items())
    wide, high = len(layers) * pitch, UP + DOWN + 1
    lists = {n: ", ".join(map(str, options_of(member, n, found))) for n in ("inner", "heads")}
    label = escape("; ".join(f"{name} {text}" for name, text in lists.items() if text))
    return Html(
        f'<svg class="shape" width="{wide:.4g}" height="{high}" viewBox="0 0 {wide:.4g} {high}" '
        f'role="img" aria-label="{label or "a stack"}">{paths}</svg>'
    )
