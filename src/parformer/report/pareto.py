"""Which architectures are the best on this device, and how do I take one?

One page, or a screenful of terminal, from what a search for sizes found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

from rich.console import Group, RenderableType
from rich.text import Text

from parformer.report import pareto_rows as facts
from parformer.report.page import Html, Part, Section, page, paragraph, table, template
from parformer.report.pareto_figures import pictures, predictions, settling
from parformer.report.pareto_limits import sliders
from parformer.report.pareto_savings import savings_parts, savings_words
from parformer.report.tables import framed, right
from parformer.report.words import NAMES, amount, counted, listed, long_time, span
from parformer.search.limits import CLOCKED, in_words
from parformer.search.sizes.result import Member, SizesResult

SIZES = ("layers", "width", "heads", "inner")


def pareto_page(found: SizesResult) -> str:
    """The report as one self-contained HTML page."""
    lead = [
        paragraph(verdict(found), "verdict"),
        paragraph(f"{found.device.words()}; a step of {found.step.words}; {found.date}.",
                  "soft receipt"),
        *(paragraph(warning, "warning") for warning in found.warnings),
        paragraph(_what(found), "soft"),
    ]  # fmt: skip
    sections: list[Section] = [
        ("Which architecture fits my limits?", _choice(found)),
        ("What does it save at equal quality?", savings_parts(found)),
        ("Did the search settle?", [settling(found)]),
        ("How far off were the predictions?", predictions(found)),
        ("How can it be repeated?", [_effort(found)]),
    ]
    return page(
        title=f"The best {facts.family_of(found)} architectures for this device",
        lead=lead,
        sections=sections,
        made=found if found.command else replace(found, command="parformer search sizes"),
        script=template("pareto.js"),
        style=template("pareto.css"),
    )


def verdict(found: SizesResult) -> str:
    """What the search found and what that is worth, in plain words."""
    front, costs = found.front, facts.costs_of(found)
    within = listed([f"{NAMES[m]} {in_words(m, most)}" for m, most in found.limits.items()])
    if not front:
        return f"No architecture was found{f' within {within}' if within else ''}."
    words = counted(len(front), "architecture")
    if found.front_size > len(front):
        words += f" of {found.front_size:,} unbeaten ones"
    if costs:
        values = [v for one in front if (v := one.figure(costs[0])) is not None]
        ends = [in_words(costs[0], end) for end in sorted({min(values), max(values)})]
        what = "" if costs[0] in CLOCKED else f" {NAMES[costs[0]]}"
        words += f" {'from' if len(ends) > 1 else 'of'} {' to '.join(ends)}{what}"
    words += f", within {within}" if within else ""
    gain, *others = savings_words(found)
    guessed = [m for m in costs if not any(one.is_measured(m) for one in front)]
    if guessed:
        others.append(
            f"All of {listed([NAMES[m] for m in guessed])} is predicted, nothing measured"
        )
    return " ".join(f"{sentence}." for sentence in (f"{words}; {gain}", *others))


def _what(found: SizesResult) -> str:
    words = (
        f"An architecture is on the front if nothing else of the {found.evaluated:,} that were "
        "looked at is as good in everything and better in something. "
    )
    if found.proxy == "short-training":
        return words + "Quality is that of a short training; higher is better."
    words += "Nothing was trained: quality is "
    name = facts.quality_name(found.proxy)
    if found.proxy in facts.COUNTS:
        return words + (
            f"the number of {name}, which LiteTransformerSearch found to rank "
            "models made of the same blocks nearly as training does."
        )
    return words + f"the {name}, which stands for it; higher is better."


def _choice(found: SizesResult) -> list[Part]:
    """Sliders, pictures, table: what the limits fade."""
    if not found.front:
        return []
    parts = []
    if (limits := sliders(found)) is not None:
        see = "Move a limit: what breaks it fades in the pictures and in the table below."
        if any(not one.is_measured(m) for one in found.front for m in facts.costs_of(found)):
            see += " A figure after ~ was predicted, not measured."
        parts.append(Part(limits, see))
    return [*parts, *pictures(found), _members(found)]


def _members(found: SizesResult) -> Part:
    """The front as a table with a drawing of every architecture, its full patterns below."""
    inner = [width for one in found.front for width in facts.options_of(one, "inner", found)]
    heads = [count for one in found.front for count in facts.options_of(one, "heads", found)]
    quality, costs = facts.quality_name(found.proxy), facts.costs_of(found)
    counts = "decoder" not in quality
    rest = [metric for metric in costs if metric != "latency" and NAMES[metric] != quality]
    head = ["", "shape", *SIZES, quality, *["decoder parameters"] * counts]
    head += ["latency predicted", "latency measured"] if "latency" in costs else []
    body = []
    for one in found.front:
        shape = facts.drawing(one, found, max(inner, default=0), max(heads, default=0))
        cells = [one.name, shape, *_size_cells(found, one)]
        cells.append(facts.quality_words(found.proxy, one.quality))
        cells += [amount("parameters", one.decoder_parameters)] * counts
        if "latency" in costs:
            reads = (one.predicted, one.measured)
            times = (None if read is None else read.latency for read in reads)
            predicted, measured = (amount("latency", time) for time in times)
            cells += [predicted, f"{measured}{' ≈' * one.tie}\n{facts.interval_words(one)}"]
        body.append(cells + [facts.words_of(one, metric) for metric in rest])
    front = table([*head, *(NAMES[metric] for metric in rest)], body, region="the front")
    patterns = table([], [(one.name, str(one.pattern)) for one in found.front])
    see = "Bars upwards are inner widths of feed-forward blocks, layer by layer from the left"
    see += f" (the tallest is {max(inner):,})" if inner else ""
    see += f"; bars downwards are heads (at most {max(heads)})." if heads else "."
    if any(one.tie for one in found.front):
        see += " ≈: the latency cannot be told from that of the next row."
    more = f"<details><summary>full patterns</summary>{patterns}</details>"
    return Part(Html(front + more), see)


def _size_cells(found: SizesResult, member: Member) -> list[str]:
    ranges = [span(facts.options_of(member, option, found)) for option in ("heads", "inner")]
    depth = f"{member.encoder_layers} | " * bool(member.encoder_layers) + f"{member.layers}"
    return [depth, f"{facts.width_of(member, found):,}", *ranges]


def _effort(found: SizesResult) -> Part:
    """What another needs to do the same."""
    space, plan = found.space, found.plan
    ways = {"profile": "predicted by a profile of the device", "measuring": "measured for each"}
    kept = ("population", "parents", "mutated", "crossed", "mutation", "iterations")
    settings = [f"{name} {getattr(plan, name):g}" for name in kept]
    rows = [
        ("command", found.command or "not recorded"),
        ("space", f"{space.name}, like {space.recipe or space.like}, {_large(space.size)} "
                  "architectures"),
        ("objectives", listed(found.objectives)),
        ("sampler", ", ".join([plan.sampler, *settings])),
        ("seed", str(plan.seed)),
        ("latency", ways.get(found.latency_by, found.latency_by)),
        ("step", found.step.words),
        ("device", found.device.words()),
        *((f"time to {_VERBS[name]}", long_time(found.seconds[name]))
          for name in _VERBS if name in found.seconds),
    ]  # fmt: skip
    see = f"All in all it took {long_time(sum(found.seconds.values()))}."
    if found.profile is not None and found.profile.held_out is not None:
        off = found.profile.held_out.latency
        see += (
            f" On models it had not seen, the profile was off by {off.median:.1%} in the median "
            f"and {off.p90:.1%} at the 90th percentile."
        )
    return Part(table([], rows), see)


_VERBS = {"profile": "profile the device", "search": "search", "measure": "measure the front"}


def _large(size: float) -> str:
    if size < 1e6:
        return f"{size:,.0f}"
    digits, _, power = f"{size:.1e}".partition("e")
    raised = "".join("⁰¹²³⁴⁵⁶⁷⁸⁹"[int(digit)] for digit in str(int(power)))
    return f"{digits} × 10{raised}"


def front_table(found: SizesResult) -> RenderableType:
    """The front in a terminal."""
    if not found.front:
        return Text(verdict(found))
    quality = facts.quality_name(found.proxy)
    metrics = [metric for metric in facts.costs_of(found) if NAMES[metric] != quality]
    both = "latency" in metrics and any(one.predicted and one.measured for one in found.front)
    names = [[NAMES[m], *["predicted"] * (both and m == "latency")] for m in metrics]
    drawn = framed("", *right([*SIZES, quality, *chain(*names)]), title="The front")
    for one in found.front:
        cells = [*_size_cells(found, one), facts.quality_words(found.proxy, one.quality)]
        for metric in metrics:
            timed = metric == "latency"
            cells.append(facts.words_of(one, metric) + " ≈" * (timed and one.tie))
            if both and timed:
                known = one.predicted if one.measured else None
                cells.append("" if known is None else in_words("latency", known.latency))
        drawn.add_row(*(Text(cell) for cell in (one.name, *cells)))
    return Group(drawn, *(Text(note, style="dim") for note in _notes(found, metrics)))


def _notes(found: SizesResult, metrics: Sequence[str]) -> list[str]:
    notes = []
    if any(not one.is_measured(metric) for one in found.front for metric in metrics):
        notes.append("~ predicted, not measured")
    if any(one.tie for one in found.front):
        notes.append("≈ the latency cannot be told from that of the next row")
    if found.errors is not None:
        off = found.errors.latency
        notes.append(
            f"Predicted latency was off by {off.median:.1%} in the median, {off.p90:.1%} in one "
            "of ten"
        )
    return notes
