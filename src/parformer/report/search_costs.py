"""What does the found pattern cost, and what is it worth?

Beside the interleaved Transformer, the Sandwich and PAR's rule: figures, tables, sentences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from parformer.pattern import Pattern
from parformer.report.page import ACCENT, Html, Part, axis, listed, plot, table
from parformer.report.search_figures import Found, Trace, row_of
from parformer.report.tables import duration, gigaflops, megabytes

Row = Mapping[str, Any]
"""A pattern that was compared, or one that was trained anew."""

METRICS = {
    "parameters": "parameters",
    "FLOPs": "flops",
    "state": "state_bytes",
    "time": "latency_seconds",
}
STYLES = {
    "found": {"color": ACCENT, "symbol": "circle"},
    "interleaved": {"color": "#868e96", "symbol": "square"},
    "sandwich": {"color": "#0c8599", "symbol": "diamond"},
    "par": {"color": "#e8a200", "symbol": "triangle-up"},
}


def row_name(row: Row) -> str:
    return "PAR's rule" if row["name"] == "par" else str(row["name"])


def ratios(row: Row, base: Row) -> dict[str, float]:
    """How many times the other's cost this one has, where both are known and there is any."""
    pairs = {word: (row[key], base[key]) for word, key in METRICS.items()}
    return {word: a / b for word, (a, b) in pairs.items() if b and a is not None}


def same_time(row: Row, base: Row) -> bool:
    """Whether the intervals of two times overlap, so that neither is known to be faster."""
    mine, theirs = row["latency_interval"], base["latency_interval"]
    return bool(mine and theirs) and bool(mine[0] <= theirs[1] and theirs[0] <= mine[1])


def cost_rows(found: Found) -> list[tuple[str, list[str]]]:
    """One line per figure with a cell for every pattern, for pages and terminals alike."""
    compared, base = found["compared"], row_of(found, "interleaved")

    def against(word: str) -> tuple[str, list[str]]:
        shares = [ratios(row, base) if base else {} for row in compared]
        return "  ×\u00a0interleaved", [f"{s[word]:.2f}" if word in s else "–" for s in shares]

    def interval(row: Row) -> str:
        ends = row["latency_interval"]
        low, high = map(duration, ends or (0, 0))
        alike = low.split()[1] == high.split()[1]  # one unit is enough for both
        return (f"{low.split()[0]} – {high}" if alike else f"{low} – {high}") if ends else "–"

    timed = any(row["latency_seconds"] is not None for row in compared)
    rows = [
        ("self-attention", [str(Pattern.parse(r["pattern"]).count("s")) for r in compared]),
        ("parameters", [f"{row['parameters']:,}" for row in compared]),
        *[against("parameters")] * bool(base),
        ("FLOPs per step", [gigaflops(row["flops"]) for row in compared]),
        *[against("FLOPs")] * bool(base),
        ("state, memory full", [megabytes(row["state_bytes"]) for row in compared]),
        *[against("state")] * bool(base),
    ]
    if timed:
        times = [row["latency_seconds"] for row in compared]
        rows += [
            ("time per step", ["–" if time is None else duration(time) for time in times]),
            ("  interval", [interval(row) for row in compared]),
            *[against("time")] * bool(base),
        ]
    return rows


def cost_table(found: Found) -> Html:
    names = [row_name(row) for row in found["compared"]]
    return table(["", *names], [(label, *cells) for label, cells in cost_rows(found)])


def cost_figure(found: Found) -> Part:
    """Costs relative to the interleaved Transformer."""
    base, own = row_of(found, "interleaved"), row_of(found, "found")
    data: list[Trace] = []
    for row in found["compared"]:
        if base and row is not base:
            shares, name = ratios(row, base), escape(row_name(row))
            bar: Trace = {"type": "bar", "name": name, "x": list(shares), "y": [*shares.values()]}
            bar["marker"] = {"color": STYLES.get(row["name"], STYLES["interleaved"])["color"]}
            data.append(bar | {"hovertemplate": f"{name}: %{{y:.3f}} × %{{x}}<extra></extra>"})
    line: dict[str, Any] = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": 1, "y1": 1}
    line["line"] = {"color": "#868e96", "width": 1.5, "dash": "dot"}
    see = "The dotted line is the interleaved Transformer; below it is cheaper."
    if base and own and (shares := ratios(own, base)):
        words = listed(
            [f"{s:.2f}× its {word}" if s else f"no {word}" for word, s in shares.items()]
        )
        see += f" The found pattern has {words}."
        if "time" in shares and same_time(own, base):
            see += " The two times cannot be told apart: their intervals overlap."
    y = axis("× interleaved", rangemode="tozero")
    return Part(plot(data, height=340, xaxis=axis(), yaxis=y, shapes=[line], showlegend=True), see)


def cost_sentence(found: Found) -> str:
    """What the found pattern costs beside the interleaved Transformer, in plain words."""
    own, base = row_of(found, "found"), row_of(found, "interleaved")
    if not (own and base):
        return ""
    shares = ratios(own, base)
    parts = [_more_or_less(shares["FLOPs"], "computation")] if "FLOPs" in shares else []
    if "state" in shares:
        parts.append(_more_or_less(shares["state"], "memory for past text"))
    if "time" in shares and not same_time(own, base):
        times = duration(own["latency_seconds"]), duration(base["latency_seconds"])
        parts.append(f"{_more_or_less(shares['time'], 'time')} ({times[0]} against {times[1]})")
    if not parts:
        return ""
    words = f"Beside the interleaved Transformer it needs {listed(parts)} per step"
    if "time" in shares and same_time(own, base):
        words += "; which of the two is faster could not be told, as their times overlap"
    return f"{words}."


def _more_or_less(share: float, what: str) -> str:
    if not share:
        return f"no {what}"
    if f"{abs(share - 1):.0%}" == "0%":
        return f"as much {what}"
    return (
        f"{share:.1f} times the {what}"
        if share >= 2
        else (f"{abs(share - 1):.0%} {'less' if share < 1 else 'more'} {what}")
    )


def scored(found: Found) -> tuple[str, str, str]:
    """The split and the figure that all patterns trained anew share, and its name."""
    runs = found["retrained"]
    split = "test" if all(run["test"] for run in runs) else "valid"
    bits = all(run[split]["bits"] is not None for run in runs)
    kind = "bits per character" if bits else "perplexity"
    return split, "bits" if bits else "perplexity", f"{split} {kind}"


def quality_figure(found: Found) -> Part:
    """Quality against cost, one point per pattern that was trained anew."""
    split, score, unit = scored(found)
    rows = [(run, row) for run in found["retrained"] if (row := row_of(found, run["name"]))]
    timed = all(row["latency_seconds"] is not None for _, row in rows)
    what = "%{x:.3g} ms" if timed else "%{x:.4g} MFLOPs"
    data: list[Trace] = []
    for run, row in rows:
        cost = row["latency_seconds"] * 1e3 if timed else row["flops"] / 1e6
        point: Trace = {"type": "scatter", "mode": "markers+text", "text": [escape(row_name(run))]}
        point |= {"x": [cost], "y": [run[split][score]], "textposition": "top center"}
        point["marker"] = {"size": 13, **STYLES.get(run["name"], STYLES["interleaved"])}
        point["hovertemplate"] = f"%{{text}}: %{{y:.3f}} at {what}<extra></extra>"
        data.append(point | {"cliponaxis": False, "showlegend": False})
    x = axis("time per step, ms" if timed else "FLOPs per step, millions")
    x["range"] = _with_room([point["x"][0] for point in data])
    y = axis(unit, range=_with_room([point["y"][0] for point in data]))
    drawn = plot(data, height=380, xaxis=x, yaxis=y)
    return Part(drawn, f"Lower and further left is better. {quality_sentence(found)}")


def _with_room(values: Sequence[float]) -> list[float]:
    """Ends of an axis that leave room for the words at its points."""
    low, high = min(values), max(values)
    room = 0.2 * (high - low) or 0.1 * abs(high) or 1.0
    return [low - room, high + room]


def quality_sentence(found: Found) -> str:
    """The found pattern's quality beside the interleaved Transformer's."""
    split, score, unit = scored(found)
    values = {run["name"]: run[split][score] for run in found["retrained"]}
    if not {"found", "interleaved"} <= set(values):
        best = min(found["retrained"], key=lambda run: run[split][score])
        return f"No {unit} is below that of {row_name(best)}, {best[split][score]:.3f}."
    failed = [row_name(run) for run in found["retrained"] if run.get("learned") is False]
    if failed:
        return (
            f"Trained anew, {listed(failed)} learned less than counting pairs of tokens gives in "
            "this time, so there is nothing to compare; train longer, or at a lower rate."
        )
    mine, theirs = values["found"], values["interleaved"]
    words = f"{abs(mine / theirs - 1):.1%} {'below' if mine < theirs else 'above'}"
    words = "within 0.05% of" if words.startswith("0.0%") else words
    return (
        f"Trained anew, the found pattern reaches {mine:.3f} {unit}, {words} the interleaved "
        f"Transformer's {theirs:.3f}. Each was trained once, so small differences may be luck."
    )


def quality_table(found: Found) -> Html:
    """What every pattern reached when trained anew, and its distance from interleaved."""
    split, score, unit = scored(found)
    base = next((run for run in found["retrained"] if run["name"] == "interleaved"), None)
    columns = [
        (f"{where} {word}", where, key)
        for where in ("valid", "test")
        for key, word in (("perplexity", "perplexity"), ("bits", "bits per character"))
        if any(run[where] and run[where][key] is not None for run in found["retrained"])
    ]
    rows = []
    for run in found["retrained"]:
        cells = [
            f"{run[where][key]:.3f}" if run[where] and run[where][key] is not None else "–"
            for _, where, key in columns
        ]
        change = "–"
        if base and run is not base and False not in (run.get("learned"), base.get("learned")):
            change = f"{run[split][score] - base[split][score]:+.3f}".replace("-", "−")
        rows.append((row_name(run), f"{run['steps']:,}", *cells, change))
    head = ["", "steps", *(name for name, _, _ in columns), f"{unit} against interleaved"]
    return table(head, rows)
