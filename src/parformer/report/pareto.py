"""Which architectures are the best on this device, and how do I take one?

One page, or a screenful of terminal, from what `pareto.json` holds.

>>> verdict({"front": [], "limits": {"latency": 0.001}})
'No architecture was found within latency 1 ms.'
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from parformer.report.page import Html, Made, Part, Section, listed, page, paragraph, table
from parformer.report.pareto_figures import pictures, predictions, settling
from parformer.report.pareto_limits import SCRIPT, STYLE, sliders
from parformer.report.pareto_rows import (
    COUNTS,
    NAMES,
    Found,
    Row,
    costs_of,
    counted,
    drawing,
    family_of,
    finite,
    front_of,
    interval_words,
    is_measured,
    name_of,
    options_of,
    quality_name,
    quality_words,
    span,
    value_from,
    value_of,
    width_of,
    words_of,
)
from parformer.report.pareto_savings import savings_parts, savings_words
from parformer.report.search import long_time
from parformer.search.limits import METRICS, in_words

SIZES = ("layers", "width", "heads", "inner")


def pareto_page(found: Found) -> str:
    """The report as one self-contained HTML page."""
    lead = [
        paragraph(verdict(found), "verdict"),
        paragraph(receipt(found), "soft receipt"),
        *(paragraph(str(warning), "warning") for warning in found.get("warnings") or ()),
        paragraph(_what(found), "soft"),
    ]
    steps = settling(found)
    given = [
        ("Which architecture fits my limits?", _choice(found)),
        ("What does it save at equal quality?", savings_parts(found)),
        ("Did the search settle?", [steps] if steps else []),
        ("How far off were the predictions?", predictions(found)),
        ("How can it be repeated?", [_effort(found)]),
    ]
    return page(
        title=f"The best {family_of(found)} architectures for this device",
        lead=Html("\n".join(lead)),
        sections=[Section(heading, parts) for heading, parts in given if parts],
        made=Made(
            command=str(found.get("command") or "parformer search pareto"),
            date=str(found.get("date") or "an unknown day"),
            version=str(found.get("version") or "?"),
        ),
        script=SCRIPT,
        style=STYLE + _STYLE,
    )


def verdict(found: Found) -> str:
    """What the search found and what that is worth, in plain words."""
    front = front_of(found)
    limits = {m: most for m, most in (found.get("limits") or {}).items() if m in METRICS}
    within = listed(
        [f"{NAMES[metric]} {in_words(metric, most)}" for metric, most in limits.items()]
    )
    if not front:
        return f"No architecture was found{f' within {within}' if within else ''}."
    words = counted(len(front), "architecture")
    size = finite(found.get("front_size"))
    if size is not None and size > len(front):
        words += f" of {size:,.0f} unbeaten ones"
    costs = costs_of(found)
    if costs:
        values = [v for row in front if (v := value_of(row, costs[0])) is not None]
        ends = [in_words(costs[0], end) for end in sorted({min(values), max(values)})]
        what = "" if costs[0] in ("latency", "memory") else f" {NAMES[costs[0]]}"
        words += f" {'from' if len(ends) > 1 else 'of'} {' to '.join(ends)}{what}"
    words += f", within {within}" if within else ""
    gain, *others = savings_words(found)
    guessed = [m for m in costs if not any(is_measured(row, m) for row in front)]
    if guessed:
        others.append(
            f"All of {listed([NAMES[m] for m in guessed])} is predicted, nothing measured"
        )
    return " ".join(f"{sentence}." for sentence in (f"{words}; {gain}", *others))


def receipt(found: Found) -> str:
    """Where, how and when it was measured."""
    step = found.get("step") or {}
    parts = [device_words(found)]
    parts += [f"a step of {words}"] if (words := step.get("words")) else []
    parts += [str(date)] if (date := found.get("date")) else []
    return f"{'; '.join(parts)}."


def device_words(found: Found) -> str:
    """The machine, its threads and the version of torch."""
    device, step = found.get("device") or {}, found.get("step") or {}
    threads = device.get("threads") or step.get("threads")
    words = [str(device.get("cpu") or "an unknown device")]
    words += [counted(threads, "thread")] if threads else []
    words += [f"torch {str(torch).partition('+')[0]}"] if (torch := device.get("torch")) else []
    return ", ".join(words)


def _what(found: Found) -> str:
    evaluated = finite(found.get("evaluated"))
    words = "An architecture is on the front if nothing else "
    words += f"of the {evaluated:,.0f} that were looked at " if evaluated else "that was looked at "
    words += "is as good in everything and better in something. "
    if found.get("proxy") == "short-training":
        return words + "Quality is that of a short training; higher is better."
    words += "Nothing was trained: quality is "
    if found.get("proxy") in COUNTS:
        words += (
            f"the number of {quality_name(found)}, which LiteTransformerSearch found to rank "
            "models made of the same blocks nearly as training does."
        )
    else:
        words += f"the {quality_name(found)}, which stands for it; higher is better."
    return words


def _choice(found: Found) -> list[Part]:
    """Sliders, pictures, table: what the limits fade."""
    parts = []
    if (limits := sliders(found)) is not None:
        see = "Move a limit: what breaks it fades in the pictures and in the table below."
        if any(not is_measured(row, m) for row in front_of(found) for m in costs_of(found)):
            see += " A figure after ~ was predicted, not measured."
        parts.append(Part(limits, see))
    parts += pictures(found)
    if front_of(found):
        parts.append(_members(found))
    return parts


def _members(found: Found) -> Part:
    """The front as a table with a drawing of every architecture, its full patterns below."""
    front = front_of(found)
    inner = [width for row in front for width in options_of(row, "inner", found)]
    heads = [count for row in front for count in options_of(row, "heads", found)]
    head, timed = ["", "shape", *SIZES, quality_name(found)], "latency" in costs_of(found)
    if "decoder" not in quality_name(found):
        head.append("decoder parameters")
    if timed:
        head += ["latency predicted", "latency measured"]
    rest = [metric for metric in costs_of(found) if metric != "latency"]
    head += [NAMES[metric] for metric in rest if NAMES[metric] != quality_name(found)]
    body = []
    for number, row in enumerate(front):
        cells = [*_size_cells(found, row), quality_words(found, row.get("quality"))]
        if "decoder" not in quality_name(found):
            cells.append(_amount("parameters", finite(row.get("decoder_parameters"))))
        if timed:
            cells.append(_amount("latency", value_from(row, "predicted", "latency")))
            measured = _amount("latency", value_from(row, "measured", "latency"))
            cells.append(f"{measured}{' ≈' * bool(row.get('tie'))}\n{interval_words(row)}")
        cells += [words_of(row, m) for m in rest if NAMES[m] != quality_name(found)]
        shape = drawing(row, max(inner, default=0), max(heads, default=0))
        body.append(
            f'<tr data-row="{number}"><th scope="row">{escape(name_of(row))}</th>'
            f"<td>{shape}</td>" + "".join(map(_cell, cells)) + "</tr>\n"
        )
    top = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)
    patterns = table([], [(name_of(row), str(row.get("pattern"))) for row in front])
    see = "Bars upwards are inner widths of feed-forward blocks, layer by layer from the left"
    see += f" (the tallest is {max(inner):,})" if inner else ""
    see += f"; bars downwards are heads (at most {max(heads)})." if heads else "."
    if any(row.get("tie") for row in front):
        see += " ≈: the latency cannot be told from that of the next row."
    return Part(
        Html(
            f'<div class="scroll tall" tabindex="0" role="region" aria-label="the front"><table>'
            f"<thead><tr>{top}</tr></thead><tbody>\n{''.join(body)}</tbody></table></div>"
            f"<details><summary>full patterns</summary>{patterns}</details>"
        ),
        see,
    )


def _cell(text: str) -> str:
    """A second line is smaller."""
    first, _, more = text.partition("\n")
    return f"<td>{escape(first)}{f'<small>{escape(more)}</small>' if more else ''}</td>"


def _size_cells(found: Found, row: Row) -> list[str]:
    layers = finite(row.get("layers"))
    ranges = [span(options_of(row, option, found)) for option in ("heads", "inner")]
    return ["–" if layers is None else f"{layers:.0f}", width_of(row), *ranges]


def _amount(metric: str, value: float | None) -> str:
    return "–" if value is None else in_words(metric, value)


def _effort(found: Found) -> Part:
    """What another needs to do the same."""
    space, plan = found.get("space") or {}, found.get("plan") or {}
    step, seconds = found.get("step") or {}, found.get("seconds") or {}
    rows = [("command", str(found.get("command") or "not recorded"))]
    if space.get("name"):
        size = finite(space.get("size"))
        like = space.get("recipe") or space.get("like")
        words = [str(space["name"]), *([f"like {like}"] if like else [])]
        words += [f"{_large(size)} architectures"] if size else []
        rows.append(("space", ", ".join(words)))
    rows.append(("objectives", listed([str(name) for name in found.get("objectives") or ()])))
    rows += [("sampler", _plan_words(plan))] if plan else []
    rows += [("seed", str(seed))] if (seed := plan.get("seed")) is not None else []
    ways = {"profile": "predicted by a profile of the device", "measuring": "measured for each"}
    if found.get("latency_by"):
        rows.append(("latency", ways.get(found["latency_by"], str(found["latency_by"]))))
    rows += [("step", str(told))] if (told := step.get("words")) else []
    rows.append(("device", device_words(found)))
    took = {name: finite(seconds.get(name)) for name in ("profile", "search", "measure")}
    known = {name: value for name, value in took.items() if value is not None}
    rows += [(f"time to {_VERBS[name]}", long_time(value)) for name, value in known.items()]
    see = (
        f"All in all it took {long_time(sum(known.values()))}."
        if known
        else "Same seed, same search."
    )
    profile = found.get("profile") or {}
    if profile.get("reused"):
        see += " The profile of the device was there from an earlier run."
    held = profile.get("held_out") or {}
    median, tail = finite(held.get("median")), finite(held.get("p90"))
    if median is not None and tail is not None:
        see += f" On models it had not seen, the profile was off by {median:.1%} in the median and "
        see += f"{tail:.1%} at the 90th percentile."
    return Part(table([], [row for row in rows if row[1]]), see)


_VERBS = {"profile": "profile the device", "search": "search", "measure": "measure the front"}


def _large(size: float) -> str:
    if size < 1e6:
        return f"{size:,.0f}"
    digits, _, power = f"{size:.1e}".partition("e")
    raised = "".join("⁰¹²³⁴⁵⁶⁷⁸⁹"[int(digit)] for digit in str(int(power)))
    return f"{digits} × 10{raised}"


def _plan_words(plan: Row) -> str:
    names = {"population": "population", "parents": "parents", "mutated": "mutated",
             "crossed": "crossed", "mutation": "mutation", "iterations": "iterations"}  # fmt: skip
    parts = [f"{name} {plan[key]}" for key, name in names.items() if plan.get(key) is not None]
    return ", ".join([str(plan.get("sampler") or "?"), *parts])


def front_table(found: Found) -> RenderableType:
    """The front in a terminal."""
    front = front_of(found)
    if not front:
        return Text(verdict(found))
    drawn = Table(header_style="bold", title="The front", title_justify="left")
    drawn.add_column("")
    metrics = [metric for metric in costs_of(found) if NAMES[metric] != quality_name(found)]
    both = "latency" in metrics and any(_guess(row) for row in front)
    for name in (*SIZES, quality_name(found), *(NAMES[metric] for metric in metrics)):
        drawn.add_column(name, justify="right")
        if both and name == NAMES["latency"]:
            drawn.add_column("predicted", justify="right")
    for row in front:
        cells = [*_size_cells(found, row), quality_words(found, row.get("quality"))]
        for metric in metrics:
            tie = " ≈" if metric == "latency" and row.get("tie") else ""
            cells.append(words_of(row, metric) + tie)
            cells += [_guess(row)] if both and metric == "latency" else []
        drawn.add_row(*(Text(cell) for cell in (name_of(row), *cells)))
    return Group(drawn, *(Text(note, style="dim") for note in _notes(found, metrics)))


def _guess(row: Row) -> str:
    """The latency that was predicted, of what was measured too."""
    value = value_from(row, "predicted", "latency")
    return in_words("latency", value) if value and is_measured(row, "latency") else ""


def _notes(found: Found, metrics: Sequence[str]) -> list[str]:
    front = front_of(found)
    notes = []
    if any(not is_measured(row, metric) for row in front for metric in metrics):
        notes.append("~ predicted, not measured")
    if any(row.get("tie") for row in front):
        notes.append("≈ the latency cannot be told from that of the next row")
    off = (found.get("errors") or {}).get("latency") or {}
    median, high = finite(off.get("median")), finite(off.get("p90"))
    if median is not None and high is not None:
        notes.append(
            f"Predicted latency was off by {median:.1%} in the median, {high:.1%} in one of ten"
        )
    return notes


_STYLE = """\
.scroll.tall { max-height: 620px; overflow-y: auto; }
.tall thead th { position: sticky; top: 0; background: var(--card); z-index: 1; }
.tall thead th:first-child { z-index: 2; }
.tall tr > th:first-child { min-width: 3.4em; }
.tall table { font-size: .88rem; }
.tall th, .tall td { padding: 3px 8px; vertical-align: middle; }
.tall tr > :nth-child(2) { text-align: left; }
.tall small { display: block; color: var(--soft); font-size: .8em; line-height: 1.2; }
.receipt { max-width: none; }
.shape { display: block; }
details summary { cursor: pointer; color: var(--soft); font-size: .93rem; margin-top: 10px; }
details .facts td { font: .85em ui-monospace, SFMono-Regular, Menlo, monospace; }
@media print { .scroll.tall { max-height: none; } }
"""
